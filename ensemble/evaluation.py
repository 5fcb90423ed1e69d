"""How good an ensemble is on graphs that nobody trained on, beside its members and the trivial predictor."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from hydragnn.ensemble.calibration import Calibration, turning_axes
from hydragnn.ensemble.heard import Heard, member_means, member_variances
from hydragnn.ensemble.metrics import (
    coverage,
    gaussian_crps,
    gaussian_nll,
    miscalibration_area,
    point_metrics,
    rank_correlation,
)
from hydragnn.ensemble.predictions import Estimate, estimate
from hydragnn.ensemble.uncertainty import Array
from hydragnn.errors import InputError
from hydragnn.graphs.field import Field

Part = dict[str, dict[str, Any]]


def part_evaluation(
    fields: Sequence[Field],
    said: Heard,
    names: Sequence[str],
    weights: Float[Array, " members"],
    calibrations: Mapping[str, Calibration],
    trivial: Mapping[str, Mapping[str, float | None]],
) -> tuple[Part, dict[str, Array]]:
    """Metrics of every field on one part, and the rows behind them as arrays named FIELD/WHAT.

    Rows are the labelled items with their components flattened. A field without labels in this part is left out.
    """
    metrics: Part = {}
    arrays: dict[str, Array] = {}
    for field in fields:
        use = said.usable(field)
        if not use.any():
            continue
        variances = member_variances(field, said)
        one = estimate(
            field,
            member_means(field, said)[:, use],
            None if variances is None else variances[:, use],
            weights,
            calibrations.get(field.name),
        )
        target = said.labels[field.name][use]
        metrics[field.name] = field_evaluation(one, target, names, trivial.get(field.name, {}))
        arrays |= _rows(field, one, target, said, use)
    if not metrics:
        raise InputError(
            "this part of the data has no labelled graph that could be predicted; give the split a larger fraction"
        )
    return metrics, arrays


def field_evaluation(
    one: Estimate,
    target: Float[Array, "items *shape"],
    names: Sequence[str],
    trivial: Mapping[str, float | None],
) -> dict[str, Any]:
    """Point metrics of the trivial predictor, of every member and of the ensemble, and the honesty of its uncertainty.

    ``best_member`` is the best on these very graphs, which no selection could have known: the harshest comparison.
    """
    width = one.field.width
    metrics = [point_metrics(target.reshape(-1, width), values.reshape(-1, width)) for values in one.members]
    best = min(range(len(metrics)), key=lambda position: metrics[position]["rmse"])
    return {
        "unit": one.field.unit,
        "trivial": {key: trivial.get(key) for key in ("mae", "rmse", "r2")},
        "members": [{"name": name, **values} for name, values in zip(names, metrics)],
        "best_member": names[best],
        "ensemble": {
            **point_metrics(target.reshape(-1, width), one.mean.reshape(-1, width)),
            **uncertainty_metrics(one, target),
        },
    }


def uncertainty_metrics(one: Estimate, target: Float[Array, "items *shape"]) -> dict[str, float]:
    """CRPS, NLL, coverage, interval width, miscalibration area, and Spearman's correlation of spread and error.

    The error of a vector or tensor is its length where it is compared with the spread, since both belong to the item.
    """
    y, mean, std = target.ravel(), one.mean.ravel(), one.std.ravel()
    error = np.abs(target - one.mean)
    axes = turning_axes(one.field)
    if axes:
        last = tuple(range(-axes, 0))
        error, spread = np.sqrt((error**2).sum(axis=last)), one.std.mean(axis=last)
    else:
        spread = one.std
    return {
        "crps": float(np.mean(gaussian_crps(y, mean, std))),
        "nll": float(np.mean(gaussian_nll(y, mean, std))),
        "coverage": coverage(y, one.lower.ravel(), one.upper.ravel()),
        "interval_width": float(np.mean(one.upper - one.lower)),
        "miscalibration_area": miscalibration_area(y, mean, std),
        "spearman": rank_correlation(error.ravel(), spread.ravel()),
    }


def _rows(
    field: Field, one: Estimate, target: Array, said: Heard, use: Bool[NDArray[np.bool_], " items"]
) -> dict[str, Any]:
    quantities = ("mean", "std", "epistemic", "aleatoric", "lower", "upper")
    return {
        f"{field.name}/target": target.ravel(),
        **{f"{field.name}/{quantity}": one[quantity].ravel() for quantity in quantities},
        f"{field.name}/graph": np.repeat(said.owners(field)[use], field.width),
        f"{field.name}/members": one.members.reshape(len(one.members), -1),
    }
