"""Honest error bars: a scale for the spread and conformal intervals, per field, fitted on graphs that no member was trained on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.ensemble.uncertainty import Array, MixtureMoments, isotropic
from hydragnn.errors import InputError
from hydragnn.graphs.field import Field

Method = Literal["spread", "absolute"]

FLOOR = 0.5
"""Smallest believed spread, as a fraction of the median spread on validation.

Few members agree by chance, so a spread near zero means little; with a floor near the usual spread, intervals no longer
follow the members where it matters. Measured for forces of acetylacetone (three small PaiNN trained at 300 K; coverage
of 90 % intervals at 300 K and 600 K, mean width at 300 K in eV/Angstrom): floor 0.1: .92 .89 0.203; 0.5: .92 .88 0.197; 1:
.92 .84 0.178; 1.5: .91 .79 0.172.
"""

TINY = 1e-30
"""Smallest standard deviation, in any unit: a perfect model on validation must not divide by zero elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Calibration of one component of a field (of all components together for vectors and tensors)."""

    scale: float
    """Factor on the spread (method spread) or the standard deviation itself in the field's unit (absolute)."""
    floor: float
    """Smallest spread that is believed, in the field's unit, before scaling."""
    quantile: float
    """Half-width of the interval in units of the calibrated standard deviation."""
    reference: float
    """Median spread on validation, in the field's unit, before scaling; 0 where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """How the spread of one field becomes a standard deviation and an interval."""

    method: Method
    nominal: float
    components: tuple[Component, ...]
    graphs: int
    """Graphs behind it."""
    guaranteed: bool
    """False where these are too few for the nominal level: the largest error seen is used then."""
    part: str = "valid"

    @property
    def follows(self) -> bool:
        """The standard deviation differs from item to item."""
        return self.method == "spread"

    @property
    def sentence(self) -> str:
        """What interval widths depend on, and which graphs are behind them."""
        widths = "follow the members' spread" if self.follows else "are the same for all"
        return f"interval widths {widths}; {evidence(self.part, self.graphs, self.guaranteed, self.nominal)}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``number_calibration_from_json`` gives the same calibration back."""
        return {**asdict(self), "components": [asdict(component) for component in self.components]}


def evidence(part: str, graphs: int, guaranteed: bool, nominal: float) -> str:
    """Which graphs calibrated, in words.

    >>> evidence("calibration", 52, True, 0.9)
    'calibrated on 52 graphs that chose nothing'
    >>> evidence("valid", 5, False, 0.9)
    'calibrated on 5 validation graphs, which also chose the epoch: too few to guarantee 90 %'
    """
    which = {"calibration": "graphs that chose nothing", "valid": "validation graphs, which also chose the epoch"}[part]
    return f"calibrated on {graphs} {which}" + ("" if guaranteed else f": too few to guarantee {nominal * 100:g} %")


def number_calibration_from_json(value: Mapping[str, Any]) -> Calibration:
    """The calibration that ``Calibration.to_json`` wrote; KeyError or TypeError on anything else."""
    components = tuple(Component(**component) for component in value["components"])
    return Calibration(**{**value, "components": components})


def conformal_quantile(
    scores: Float[NDArray[np.float64], " rows"], graph: Int[NDArray[np.int64], " rows"], nominal: float
) -> tuple[float, bool]:
    """The score below which a new graph's item falls with probability ``nominal``, and whether that is guaranteed.

    Every graph has the same weight, shared by its items, and one more graph is counted with infinite scores: items of one
    graph are not exchangeable with those of another, graphs are (Lee, Barber and Willett 2023, arXiv:2306.06342). With
    one item per graph it is the split-conformal quantile, rank ceil((n + 1) nominal) of n. With too few graphs for the
    level the largest score is given and nothing is guaranteed.

    >>> conformal_quantile(np.arange(1.0, 20.0), np.arange(19), nominal=0.9)
    (18.0, True)
    """
    groups, inverse, counts = np.unique(graph, return_inverse=True, return_counts=True)
    weights = 1.0 / ((len(groups) + 1) * counts[inverse])
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])
    position = int(np.searchsorted(reached, nominal * (1.0 - 1e-12)))
    if position == len(scores):
        return float(scores[order[-1]]), False
    return float(scores[order[position]]), True


def fit_calibration(
    field: Field,
    target: Float[Array, "items *shape"],
    moments: MixtureMoments,
    graph: Int[NDArray[np.int64], " items"],
    *,
    nominal: float = 0.9,
    method: Method | None = None,
) -> Calibration:
    """Scale and interval factor of every component from labelled validation items.

    Method ``spread`` divides errors by the ensemble's standard deviation, so that intervals widen where members
    disagree; ``absolute`` gives every item the same width. The default is spread wherever there is any. Vectors and
    tensors are calibrated with all components together, so that nothing depends on how the axes lie.
    """
    if not 0.0 < nominal < 1.0:
        raise InputError(f"the nominal level is {nominal:g}; give a fraction between 0 and 1, for example 0.9")
    if len(target) == 0:
        raise InputError(f"field {field.name} has no labelled graph to calibrate on; enlarge the validation part")
    error, spread, rows_of = _columns(field, target - moments.mean, raw_spread(field, moments), graph)
    method = method or ("spread" if bool((spread > 0).any(axis=0).all()) else "absolute")
    if method == "spread" and not (spread > 0).any(axis=0).all():
        raise InputError(
            f"field {field.name}: the members do not differ, so there is no spread; use absolute intervals"
        )
    fitted = [_component(error[:, c], spread[:, c], rows_of, nominal, method) for c in range(error.shape[1])]
    return Calibration(
        method=method,
        nominal=nominal,
        components=tuple(component for component, _ in fitted),
        graphs=len(np.unique(graph)),
        guaranteed=all(guaranteed for _, guaranteed in fitted),
    )


def raw_spread(field: Field, moments: MixtureMoments) -> Float[Array, "items *shape"]:
    """Standard deviation of the mixture before calibration; the same for all components of a vector or tensor."""
    return np.sqrt(isotropic(moments, turning_axes(field)).variance)


def turning_axes(field: Field) -> int:
    """How many of a field's last axes turn with the graph: 1 for vectors, 2 for tensors."""
    return {"scalar": 0, "vector": 1, "tensor": 2}[field.parity]


def calibrated_std(
    field: Field, calibration: Calibration, spread: Float[Array, "items *shape"]
) -> Float[Array, "items *shape"]:
    """Standard deviation after calibration, in the field's unit; never zero."""
    scale = _spread_over(field, [component.scale for component in calibration.components])
    if calibration.method == "absolute":
        return np.broadcast_to(scale, spread.shape).copy()
    floor = _spread_over(field, [component.floor for component in calibration.components])
    return scale * np.maximum(spread, floor)


def half_width(
    field: Field, calibration: Calibration, std: Float[Array, "items *shape"]
) -> Float[Array, "items *shape"]:
    """Half of the interval around the mean that holds the truth with the nominal probability."""
    return std * _spread_over(field, [component.quantile for component in calibration.components])


def variance_factor(field: Field, calibration: Calibration) -> Float[Array, "*shape"]:
    """What the raw variances are multiplied with so that their sum is the calibrated variance (above the floor)."""
    if calibration.method == "absolute":
        return np.ones(field.shape)
    return _spread_over(field, [component.scale**2 for component in calibration.components])


def _spread_over(field: Field, values: list[float]) -> Array:
    """One number per component, or one for all, in the field's shape."""
    return np.broadcast_to(np.array(values if len(values) > 1 else values[0]).reshape(-1), (field.width,)).reshape(
        field.shape
    )


def _columns(
    field: Field, error: Array, spread: Array, graph: NDArray[np.int64]
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Errors and spreads as [rows, components to calibrate], and the graph of every row."""
    if turning_axes(field):
        return error.reshape(-1, 1), spread.reshape(-1, 1), np.repeat(graph, field.width)
    return error.reshape(len(graph), field.width), spread.reshape(len(graph), field.width), graph


def _component(
    error: Array, spread: Array, graph: NDArray[np.int64], nominal: float, method: Method
) -> tuple[Component, bool]:
    reference = float(np.median(spread[spread > 0])) if (spread > 0).any() else 0.0
    if method == "absolute":
        scale = max(float(np.sqrt(np.mean(error**2))), TINY)
        quantile, guaranteed = conformal_quantile(np.abs(error) / scale, graph, nominal)
        return Component(scale=scale, floor=0.0, quantile=quantile, reference=reference), guaranteed
    floor = FLOOR * reference
    believed = np.maximum(spread, floor)
    scale = max(float(np.sqrt(np.mean((error / believed) ** 2))), TINY)  # the factor of largest likelihood
    quantile, guaranteed = conformal_quantile(np.abs(error) / (scale * believed), graph, nominal)
    return Component(scale=scale, floor=floor, quantile=quantile, reference=reference), guaranteed
