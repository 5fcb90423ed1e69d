"""Reading a campaign folder: its trials, their hyperparameters, objective and end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn.errors import InputError
from hydragnn.files import read_json
from hydragnn.hpo.journal import NAME, read_journal
from hydragnn.hpo.scheduler import State, step
from hydragnn.hpo.scheduler import Trial as Scheduled
from hydragnn.record import read_record
from hydragnn.scripts.report.facts import CampaignFacts, Trial


def campaign_facts(folder: Path) -> CampaignFacts:
    """A campaign folder; InputError where it is missing or damaged."""
    description = read_json(folder / "campaign.json")
    search = description.get("search") if isinstance(description, dict) else None
    if not isinstance(search, dict):
        raise InputError(f"{folder / 'campaign.json'} has no [search] section; was {folder} made by hydragnn search?")
    state = replayed(folder)
    trials = tuple(_trial(folder, scheduled) for _, scheduled in sorted(state.trials.items()))
    return CampaignFacts(
        folder=folder,
        config={key: value for key, value in description.items() if key != "search"},
        search=search,
        objective=objective_name(search.get("objective", "valid/loss")),
        rungs=tuple(state.plan.rungs[:-1]),
        trials=trials,
        importances=importances(trials),
    )


def replayed(folder: Path) -> State:
    """The campaign's state after all events of its journal."""
    state = State()
    for time, event in read_journal(folder / NAME):
        state, _ = step(state, event, time)
    return state


def objective_name(objective: Any) -> str:
    """The objective in words.

    >>> objective_name({"energy": 1.0, "forces": 2.0})
    'relative error (energy 1, forces 2)'
    """
    if isinstance(objective, Mapping):
        return "relative error (" + ", ".join(f"{field} {weight:g}" for field, weight in objective.items()) + ")"
    return str(objective)


def _trial(folder: Path, scheduled: Scheduled) -> Trial:
    place = folder / "trials" / f"{scheduled.number:04d}"
    record = read_record(place) if (place / "record.json").is_file() else None
    failure = scheduled.failure if scheduled.status in ("failed", "lost") else None
    return Trial(
        number=scheduled.number,
        folder=place,
        parameters=scheduled.values,
        objective=None if scheduled.status in ("failed", "lost") else scheduled.value,
        record=record,
        status=scheduled.status,
        reason=failure.message if failure else "",
        failure_kind=failure.kind if failure else "",
    )


def importances(trials: Sequence[Trial]) -> dict[str, float]:
    """Share of the objective's variation that each hyperparameter explains; empty with fewer than eight scored trials.

    Mean decrease of impurity in a random forest on the logarithm of the objective (fANOVA's surrogate, Hutter et al.
    2014); categories are numbered in alphabetical order, inactive parameters get a value of their own.
    """
    from sklearn.ensemble import RandomForestRegressor

    scored = [trial for trial in trials if trial.objective is not None and math.isfinite(trial.objective)]
    names = sorted({name for trial in scored for name in trial.parameters})
    values = [trial.objective or 0.0 for trial in scored]
    if len(scored) < 8 or len(names) < 2 or min(values) == max(values):
        return {}
    columns = [_numbered([trial.parameters.get(name) for trial in scored]) for name in names]
    goal = [math.log(value) for value in values] if min(values) > 0 else values
    forest = RandomForestRegressor(n_estimators=128, random_state=0, n_jobs=1)
    forest.fit([list(row) for row in zip(*columns)], goal)
    return {name: float(share) for name, share in zip(names, forest.feature_importances_)}


def _numbered(values: Sequence[Any]) -> list[float]:
    """Numbers as they are; anything else by its place among the distinct values; a missing value below all."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        low = min((float(value) for value in present), default=0.0) - 1.0
        return [low if value is None else float(value) for value in values]
    order = {label: float(place) for place, label in enumerate(sorted({str(value) for value in present}))}
    return [-1.0 if value is None else order[str(value)] for value in values]


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
