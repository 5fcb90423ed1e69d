"""Objectives: numbers from a run record, which are minimised."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from hydragnn.base.errors import InputError, own_code
from hydragnn.base.imports import REFERENCE, function_named
from hydragnn.base.settings import Settings
from hydragnn.hpo.fronts import Bounds
from hydragnn.record import RunRecord


def _kind(value: Any) -> str:
    """Return the form of an objective, which decides its parser."""
    if isinstance(value, list):
        return "several"
    if isinstance(value, Goal) or (isinstance(value, Mapping) and {"of", "at_most"} & value.keys()):
        return "bounded"
    return "weights" if isinstance(value, Mapping) else "name"


_form = Discriminator(
    _kind,
    custom_error_type="objective",
    custom_error_message="give a name, or weights of fields; of and at_most are for one of several objectives in a list",
)
Name = Annotated[str, Tag("name")]
Weights = Annotated[dict[str, Annotated[float, Field(ge=0, strict=True)]], Tag("weights")]
Quantity = Annotated[Name | Weights, _form]
"""A curve, a cost, weights per field of normalised errors, or ``package.module:function``."""


class Goal(Settings):
    """One of several objectives."""

    of: Quantity
    """Quantity that is minimised, as an objective alone."""

    at_most: float | None = Field(default=None, strict=True)
    """Trials with a larger value count after all others, and are not chosen."""


JOULES = "cost/joules_per_graph"  # energy of training over the graphs that it showed

NO_ENERGY = (
    f"{JOULES}: the machine measures no energy, by Cray's pm_counters, NVML, ROCm or RAPL (whose files the administrator opens "
    "to users); take another objective"
)

Bounded = Annotated[Goal, Tag("bounded")]
Several = Annotated[list[Annotated[Name | Weights | Bounded, _form]], Tag("several")]
Objective = Annotated[Name | Weights | Several, _form]
"""One quantity, or several, of which each may have a bound."""


def joules_per_graph(record: RunRecord) -> float:
    """Return joules per graph of training; 0 where nothing measured them."""
    weights = {one["name"]: one.get("weight", 1.0) for one in record.config.get("branches", [])}
    parts = [(weights.get(name, 1.0), one.parts) for name, one in record.branches.items()] or [(1.0, record.parts)]
    graphs = record.epochs * sum(weight * counts.get("train", 0) for weight, counts in parts)
    return (record.usage.joules or 0.0) / graphs if graphs else 0.0


COSTS = {
    "cost/ms_per_graph": lambda record: record.cost.ms_per_graph,
    JOULES: joules_per_graph,
    "cost/memory_mb": lambda record: record.cost.peak_memory_mb,
    "cost/parameters": lambda record: float(record.parameters),
}
"""Costs of a record that are objectives."""

THROUGHPUT = "throughput"  # objective of a search for fast layouts: seconds per graph of training, all ranks together


def goals_of(objective: Objective) -> list[Goal]:
    """Return the objectives with their bounds."""
    every = objective if isinstance(objective, list) else [objective]
    return [one if isinstance(one, Goal) else Goal(of=one) for one in every]


def bounds_of(objective: Objective) -> Bounds:
    """Return the bounds of several objectives; empty for one."""
    return tuple(goal.at_most for goal in goals_of(objective)) if isinstance(objective, list) else ()


def quantity_text(quantity: Quantity) -> str:
    """Return a quantity in words: ``relative error (energy 1, forces 2)``."""
    if isinstance(quantity, str):
        return "seconds per graph" if quantity == THROUGHPUT else quantity
    return "relative error (" + ", ".join(f"{field} {weight:g}" for field, weight in quantity.items()) + ")"


def objective_value(record: RunRecord, objective: Quantity, epochs: int | None = None) -> float | None:
    """Return the objective of the model kept after ``epochs`` epochs.

    That is the epoch with the lowest ``valid/loss`` so far; None where it is missing or not finite.

    >>> curves = {"valid/loss": [3.0, 1.0, 2.0], "valid/energy/mae": [9.0, 8.0, 7.0]}
    >>> record = RunRecord(config={}, config_hash="", data_hash="", seed=0, curves=curves, trivial={"valid/energy/mae": 16.0})
    >>> objective_value(record, "valid/energy/mae"), objective_value(record, {"energy": 1.0}, epochs=1)
    (8.0, 0.5625)
    """
    if objective == THROUGHPUT:
        speed = record.cost.graphs_per_second
        return 1.0 / speed if speed > 0 else None
    if isinstance(objective, str) and objective in COSTS:
        return COSTS[objective](record) or None
    if isinstance(objective, str) and REFERENCE.fullmatch(objective):
        return _own_value(record, objective, epochs)
    epoch = _best_epoch(record.curves, epochs)
    if epoch is None:
        return None
    if isinstance(objective, str):
        return _finite(record.curves.get(objective, []), epoch)
    total = 0.0
    for field, weight in objective.items():
        errors = (f"valid/{field}/mae", f"valid/{field}/error_rate")  # of numbers, and of classes
        name = next((name for name in errors if name in record.curves), "")
        error, trivial = _finite(record.curves.get(name, []), epoch), record.trivial.get(name, 0.0)
        if error is None or trivial <= 0:
            return None
        total += weight * error / trivial
    return total / sum(objective.values())


def check_bounds(objective: Objective, source: str) -> None:
    """Raise InputError for a bound below all values of its objective."""
    for goal in goals_of(objective):
        name = goal.of if isinstance(goal.of, str) else "/mae"
        positive = name in (THROUGHPUT, *COSTS) or name.endswith(("/mae", "/rmse", "/error_rate", "/brier"))
        if goal.at_most is not None and goal.at_most <= 0 and positive:
            raise InputError(
                f"{source}: search.objective: at_most = {goal.at_most:g} is below all values of {quantity_text(goal.of)}; give a number above 0"
            )


def check_objective(
    objective: Objective,
    targets: Sequence[str],
    source: str,
    classes: Collection[str] = frozenset(),
    added: Sequence[str] = (),
) -> None:
    """Raise InputError where an objective names a field without a prediction.

    ``added`` are curves of callbacks.
    """
    metrics = {field: ("error_rate", "nll", "brier") if field in classes else ("mae", "rmse") for field in targets}
    errors = [f"valid/{field}/{metric}" for field in targets for metric in metrics[field]]
    valid = ["valid/loss", THROUGHPUT, *COSTS, *errors, *added]
    for quantity in (goal.of for goal in goals_of(objective)):
        if isinstance(quantity, str) and REFERENCE.fullmatch(quantity):
            function_named(quantity, where=f"{source}: search.objective = {quantity!r}", noun="number of a record")
        elif isinstance(quantity, str) and quantity not in valid:
            raise InputError(f"{source}: search.objective = {quantity!r} is not recorded; valid: {', '.join(valid)}")
        unknown = [] if isinstance(quantity, str) else [field for field in quantity if field not in targets]
        if unknown:
            raise InputError(f"{source}: search.objective: no head predicts {unknown[0]}; valid: {', '.join(targets)}")


def _own_value(record: RunRecord, objective: str, epochs: int | None) -> float | None:
    """Return a user's function of the record, which ends after ``epochs`` epochs."""
    function = function_named(objective, where=f"search.objective = {objective!r}", noun="number of a record")
    seen = record if epochs is None or epochs >= record.epochs else _cut(record, epochs)
    name = f"search.objective = {objective!r}, on the record of a trial after {seen.epochs} epochs,"
    with own_code(name, "repair it, and continue with --resume"):
        value = float(function(seen))
    return value if math.isfinite(value) else None


def _cut(record: RunRecord, epochs: int) -> RunRecord:
    """Return the record as of ``epochs`` epochs: without notes, with all costs."""
    curves = {name: curve[:epochs] for name, curve in record.curves.items()}
    best, epoch = dict[str, float](), _best_epoch(curves)
    if epoch is not None:
        best = {name: value for name, curve in curves.items() if (value := _finite(curve, epoch)) is not None}
        best["epoch"] = epoch + 1.0
    return replace(record, curves=curves, epochs=epochs, best=best, status="paused", notes=[], failure=None)


def _best_epoch(curves: Mapping[str, Sequence[float | None]], epochs: int | None = None) -> int | None:
    """Return the epoch with the lowest finite ``valid/loss``; None without one."""
    losses = curves.get("valid/loss", [])[:epochs]
    finite = [(loss, epoch) for epoch, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]
    return min(finite)[1] if finite else None


def _finite(values: Sequence[float | None], position: int) -> float | None:
    value = values[position] if position < len(values) else None
    return value if value is not None and math.isfinite(value) else None
