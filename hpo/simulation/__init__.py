"""Simulated campaigns: the real scheduler on a virtual machine with faults."""

from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import VirtualCampaign
from hydragnn.hpo.simulation.policies import POLICIES, PolicyResult, compare_policies, final_training, scenario_of
from hydragnn.hpo.simulation.population import Course, Population, drawn_population, recorded_population
from hydragnn.hpo.simulation.world import Scenario
