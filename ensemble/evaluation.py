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
from hydragnn.graphs.field import Field

Part = dict[str, dict[str, Any]]


def part_evaluation(
    fields: Sequence[Field],
    said: MemberOutputs,
    names: Sequence[str],
    weights: Float[Array, " members"],
    calibrations: Mapping[str, AnyCalibration],
    trivial: Mapping[str, Mapping[str, float | None]],
) -> tuple[Part, dict[str, NDArray[Any]]]:
    """Metrics of every field on one part, and the rows behind them as arrays named FIELD/WHAT.

    Rows are the labelled items with their components flattened. A field without labels in this part is left out.
    """
    metrics: Part = {}
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields:
        use = said.usable(field)
        if not use.any():
            continue
        one = estimates_of(field).of(field, said.of(field, use), weights, calibrations.get(field.name))
        labels = said.labels[field.name][use]
        metrics[field.name] = one.evaluation(labels, names, trivial.get(field.name, {}))
        rows = one.rows(labels, said.owners(field)[use])
        arrays |= {f"{field.name}/{what}": values for what, values in rows.items()}
    if not metrics:
        raise InputError(
            "this part of the data has no labelled graph that could be predicted; give the split a larger fraction"
        )
    return metrics, arrays
