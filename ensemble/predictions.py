"""What an ensemble says about graphs: values, where their uncertainty comes from, and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from hydragnn.ensemble.calibration import (
    Calibration,
    calibrated_std,
    half_width,
    raw_spread,
    turning_axes,
    variance_factor,
)
from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.uncertainty import Array, isotropic, total_variance
from hydragnn.errors import InputError, nearest
from hydragnn.graphs.field import Field

QUANTITIES = ("mean", "std", "epistemic", "aleatoric", "lower", "upper")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate:
    """One field of all graphs, in its unit; rows of graphs that failed are NaN.

    ``std`` is the calibrated standard deviation and ``epistemic`` and ``aleatoric`` are its two parts as standard
    deviations (their squares sum to that of ``std`` above the calibration's floor). Vectors and tensors have one
    uncertainty for all their components. ``lower`` and ``upper`` enclose the truth with the nominal probability. Without
    a calibration the std is the members' raw one and there are no intervals (NaN).
    """

    field: Field
    mean: Float[Array, "items *shape"]
    std: Float[Array, "items *shape"]
    epistemic: Float[Array, "items *shape"]
    aleatoric: Float[Array, "items *shape"]
    lower: Float[Array, "items *shape"]
    upper: Float[Array, "items *shape"]
    members: Float[Array, "members items *shape"]

    def __getitem__(self, quantity: str) -> Array:
        """One of ``QUANTITIES`` by name."""
        if quantity not in QUANTITIES:
            raise InputError(f"an estimate has no {quantity}; {nearest(quantity, list(QUANTITIES))}")
        values: Array = getattr(self, quantity)
        return values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Predictions:
    """Estimates for a number of graphs, in their order: ``predictions["energy"].mean``."""

    fields: Mapping[str, Estimate]
    nodes_per_graph: Int[NDArray[np.int64], " graphs"]
    status: tuple[str, ...]
    """``ok``, or why a graph failed."""
    domain: tuple[str, ...]
    """Empty where a graph looks like the training data, otherwise what is foreign about it."""

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.fields:
            raise InputError(f"there is no prediction of {name}; {nearest(name, list(self.fields))}")
        return self.fields[name]

    @property
    def ok(self) -> Bool[NDArray[np.bool_], " graphs"]:
        """Which graphs were predicted."""
        return np.array([status == "ok" for status in self.status], dtype=np.bool_)

    def graph_of_item(self, name: str) -> Int[NDArray[np.int64], " items"]:
        """The graph that each row of a field belongs to."""
        graphs = np.arange(len(self))
        return np.repeat(graphs, self.nodes_per_graph) if self[name].field.on == "node" else graphs


def estimate(
    field: Field,
    means: Float[Array, "members items *shape"],
    variances: Float[Array, "members items *shape"] | None,
    weights: Float[Array, " members"],
    calibration: Calibration | None,
) -> Estimate:
    """Several members' words on one field as one estimate."""
    moments = total_variance(means, variances, weights)
    spread = raw_spread(field, moments)
    parts = isotropic(moments, turning_axes(field))
    if calibration is None:
        factor, std, width = np.ones(field.shape), spread, np.full_like(spread, np.nan)
    else:
        factor, std = variance_factor(field, calibration), calibrated_std(field, calibration, spread)
        std = np.where(np.isnan(spread), np.nan, std)
        width = half_width(field, calibration, std)
    return Estimate(
        field=field,
        mean=moments.mean,
        std=std,
        epistemic=np.sqrt(parts.epistemic * factor),
        aleatoric=np.sqrt(parts.aleatoric * factor),
        lower=moments.mean - width,
        upper=moments.mean + width,
        members=means,
    )


def combined(
    fields: Sequence[Field],
    outcomes: Sequence[Outcome],
    names: Sequence[str],
    weights: Float[Array, " members"],
    calibrations: Mapping[str, Calibration],
    nodes_per_graph: Int[NDArray[np.int64], " graphs"],
    domain: Sequence[str],
) -> Predictions:
    """All members' outcomes on the same graphs as one prediction; a graph that one member failed on has failed."""
    estimates: dict[str, Estimate] = {}
    for field in fields:
        means = np.stack([outcome.means[field.name] for outcome in outcomes])
        known = [outcome.variances.get(field.name) for outcome in outcomes]
        # a member that predicts points claims no noise of its own
        variances = np.stack([np.zeros_like(means[0]) if v is None else v for v in known])
        all_points = all(v is None for v in known)
        estimates[field.name] = estimate(
            field, means, None if all_points else variances, weights, calibrations.get(field.name)
        )
    status = [
        next((f"member {name}: {reason}" for name, reason in zip(names, reasons) if reason), "ok")
        for reasons in zip(*(outcome.reasons for outcome in outcomes))
    ]
    return Predictions(fields=estimates, nodes_per_graph=nodes_per_graph, status=tuple(status), domain=tuple(domain))


def nothing(fields: Sequence[Field], members: int, nodes: int, reason: str) -> Predictions:
    """The prediction for one graph that could not even be tried."""
    estimates: dict[str, Estimate] = {}
    for field in fields:
        blank = np.full((nodes if field.on == "node" else 1, *field.shape), np.nan)
        estimates[field.name] = Estimate(
            field=field,
            mean=blank,
            std=blank,
            epistemic=blank,
            aleatoric=blank,
            lower=blank,
            upper=blank,
            members=np.broadcast_to(blank, (members, *blank.shape)),
        )
    return Predictions(fields=estimates, nodes_per_graph=np.array([nodes]), status=(reason,), domain=("",))


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of consecutive graphs as one."""
    estimates: dict[str, Estimate] = {}
    for name, first in parts[0].fields.items():
        values = {quantity: np.concatenate([part[name][quantity] for part in parts]) for quantity in QUANTITIES}
        members = np.concatenate([part[name].members for part in parts], axis=1)
        estimates[name] = Estimate(field=first.field, members=members, **values)
    return Predictions(
        fields=estimates,
        nodes_per_graph=np.concatenate([part.nodes_per_graph for part in parts]),
        status=tuple(status for part in parts for status in part.status),
        domain=tuple(flag for part in parts for flag in part.domain),
    )
