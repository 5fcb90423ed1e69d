"""Campaigns of trials, compared at rungs, that survive any kill.

Names are loaded on first use: a status comes from the journal alone, and needs no part of what trains.
"""

from typing import TYPE_CHECKING

from hydragnn.base.imports import names_in

if TYPE_CHECKING:
    from hydragnn.hpo.campaign import OnEvent, run_search, trial_folder
    from hydragnn.hpo.final import best_runs, given_runs, run_final
    from hydragnn.hpo.launching.launcher import Exit, Task
    from hydragnn.hpo.launching.local import LocalLauncher
    from hydragnn.hpo.objective import Objective, objective_value
    from hydragnn.hpo.records import (
        CampaignHistory,
        TrialHistory,
        campaign_history,
        campaign_records,
        finished_runs,
        parameter_effects,
        parameter_importance,
    )
    from hydragnn.hpo.scheduling.scheduler import State, Trial, decide
    from hydragnn.hpo.search_settings import SearchSettings
    from hydragnn.hpo.settings import CampaignSettings, GivenRun, campaign_settings, read_campaign
    from hydragnn.hpo.space.points import Space, space_of
    from hydragnn.hpo.status import CampaignStatus, Follower, campaign_status
    from hydragnn.hpo.status.timeline import Timeline
    from hydragnn.hpo.status.view import CampaignView

__getattr__ = names_in(__name__, __file__)
