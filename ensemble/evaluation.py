"""How good an ensemble is on graphs that nobody trained on, beside its members and the trivial predictor."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray

from hydragnn.ensemble.estimates import AnyCalibration
from hydragnn.ensemble.member_outputs import MemberOutputs
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.ensemble.uncertainty import Array
from hydragnn.errors import InputError
from hydragnn.models import Target

Part = dict[str, dict[str, Any]]


def part_evaluation(
    targets: Sequence[Target],
    said: MemberOutputs,
    names: Sequence[str],
    weights: Float[Array, " members"],
    calibrations: Mapping[str, AnyCalibration],
    trivial: Mapping[str, Mapping[str, float | None]],
) -> tuple[Part, dict[str, NDArray[Any]]]:
    """Metrics of every target on one part, and the rows behind them as arrays named TARGET/WHAT.

    Rows are the labelled items with their components flattened. A target without labels in this part is left out.
    """
    metrics: Part = {}
    arrays: dict[str, NDArray[Any]] = {}
    for target in targets:
        use = said.usable(target)
        if not use.any():
            continue
        one = estimates_of(target).of(
            target, said.of(target, use), weights, calibrations.get(target.name), said.nodes(target)[use]
        )
        labels = said.labels[target.name][use]
        metrics[target.name] = one.evaluation(labels, names, trivial.get(target.name, {}))
        rows = one.rows(labels, said.owners(target)[use])
        arrays |= {f"{target.name}/{what}": values for what, values in rows.items()}
    if not metrics:
        raise InputError(
            "this part of the data has no labelled graph that could be predicted; give the split a larger fraction"
        )
    return metrics, arrays
