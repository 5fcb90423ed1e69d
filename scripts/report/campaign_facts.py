"""Reading a campaign folder: its trials, their hyperparameters, objective and end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn.hpo import TrialHistory, campaign_history, campaign_records, parameter_importance
from hydragnn.record import RunRecord
from hydragnn.scripts.report.facts import CampaignFacts, Trial


def campaign_facts(folder: Path) -> CampaignFacts:
    """A campaign folder; InputError where it is missing or damaged."""
    history = campaign_history(folder)
    records = {number: record for number, record, _ in campaign_records(folder)}
    return CampaignFacts(
        folder=folder,
        config=history.settings.base,
        search=history.settings.search.to_json(),
        objective=objective_name(history.settings.search.objective),
        rungs=history.rungs[:-1],
        trials=tuple(_trial(trial, records.get(trial.number)) for trial in history.trials),
        importances=parameter_importance(folder),
        seconds=history.seconds,
        timeline=history.timeline,
        left_out=history.settings.left_out or {},
        sampler=history.sampler,
    )


def objective_name(objective: str | Mapping[str, float]) -> str:
    """The objective in words.

    >>> objective_name({"energy": 1.0, "forces": 2.0})
    'relative error (energy 1, forces 2)'
    """
    if isinstance(objective, str):
        return objective
    return "relative error (" + ", ".join(f"{field} {weight:g}" for field, weight in objective.items()) + ")"


def _trial(trial: TrialHistory, record: RunRecord | None) -> Trial:
    """A trial that failed or was lost has no objective: what it reached at an earlier rung is no result."""
    ended_badly = trial.status in ("failed", "lost")
    kind, _, message = (trial.failure or "").partition(": ") if ended_badly else ("", "", "")
    return Trial(
        number=trial.number,
        folder=trial.folder,
        parameters=trial.values,
        objective=None if ended_badly else trial.value,
        record=record,
        status=trial.status,
        reason=message,
        failure_kind=kind,
    )


def value_at(table: Any, path: str) -> Any:
    """The value under a dotted path; None where the path ends early.

    >>> value_at({"heads": [{"weight": 2.0}]}, "heads.0.weight")
    2.0
    """
    here = table
    for key in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(key)
        elif isinstance(here, list) and key.isdigit() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    return here
