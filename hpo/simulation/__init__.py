"""Simulated campaigns: the real scheduler on a virtual machine with faults."""

from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import VirtualCampaign
from hydragnn.hpo.simulation.courses import Course, drawn_courses
from hydragnn.hpo.simulation.figures import Figures, figures_of, final_scenario, scenario_of
from hydragnn.hpo.simulation.world import Scenario
