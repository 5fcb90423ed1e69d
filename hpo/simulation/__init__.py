"""Campaigns on a virtual clock: the real scheduler, a simulated machine with its faults, and the static practice beside it."""

from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import VirtualCampaign
from hydragnn.hpo.simulation.population import Course, Population, drawn_population, recorded_population
from hydragnn.hpo.simulation.results import PolicyResult
from hydragnn.hpo.simulation.study import POLICIES, Scenario, compare_policies, final_training, scenario_of
