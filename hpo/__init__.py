"""Which configuration to try next, and how far: campaigns of trials, judged at rungs, that survive any kill."""

from hydragnn.hpo.campaign import CampaignResult, OnEvent, run_campaign, run_search, trial_folder
from hydragnn.hpo.costs import CostModel
from hydragnn.hpo.final import FinalTraining, best_runs, given_runs, run_final
from hydragnn.hpo.launching.launcher import Exit, Launcher, Task
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.records import (
    CampaignHistory,
    TrialHistory,
    campaign_history,
    campaign_records,
    finished_runs,
    parameter_importance,
)
from hydragnn.hpo.sampler import SAMPLERS
from hydragnn.hpo.scheduling.scheduler import State, Trial, transition
from hydragnn.hpo.settings import CampaignSettings, GivenRun, SearchSettings, campaign_settings, read_campaign
from hydragnn.hpo.space import Space, space_of
from hydragnn.hpo.status import CampaignStatus, Follower, campaign_status
from hydragnn.hpo.table import CampaignView
from hydragnn.hpo.timeline import Timeline
