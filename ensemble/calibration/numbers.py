"""Scale of the spread and conformal intervals of numbers, per field."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pydantic
from jaxtyping import Float, Int

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Count, Fraction, NotNegative, Positive
from hydragnn.ensemble.calibration.corrections import NONE, Corrections, fit_corrections
from hydragnn.ensemble.calibration.cross_validation import FoldScores, guaranteed_level
from hydragnn.ensemble.calibration.forms import (
    CONSTANT,
    GROWTH,
    TINY,
    Form,
    Rows,
    Width,
    believed,
    choose_form,
    fit_width,
)
from hydragnn.ensemble.calibration.protocol import Part
from hydragnn.ensemble.uncertainty import Array, MixtureMoments, isotropic
from hydragnn.graphs.field import Field

Method = Literal["spread", "absolute"]


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Calibration of one component, or of a whole vector or tensor."""

    scale: Positive
    """Factor on the spread (method spread) or the standard deviation itself in the field's unit (absolute)."""
    floor: NotNegative
    """Smallest spread that is believed, in the field's unit, before scaling, over what the form says of the item."""
    quantile: NotNegative
    """Half-width of the interval in units of the calibrated standard deviation."""
    reference: NotNegative
    """Median spread on validation, in the field's unit, before scaling, over what the form says; 0 where there is none."""
    typical: Positive = 1.0
    """Median magnitude of predictions on validation, in the field's unit."""
    corrections: Corrections = NONE
    """Factors on the standard deviation by nodes and magnitude."""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Calibration of one numeric field: standard deviation and interval."""

    method: Method
    """spread: the scale is the members' spread, and what its form adds, with the form as its floor; absolute: it is the form alone."""
    nominal: Fraction
    components: tuple[Component, ...]
    graphs: Count
    """Graphs behind it."""
    guaranteed: bool
    """False where these are too few for the nominal level: the largest error seen is used then."""
    part: Part = "valid"
    form: Form = CONSTANT
    folds: tuple[FoldScores, ...] = ()
    """Of a cross-validation ensemble, whose intervals are CV+ and not the mean plus and minus a width; else empty."""

    def fits(self, field: Field) -> bool:
        """Return True where the number of components is that of the field."""
        components = 1 if turning_axes(field) else field.width
        of_folds = all(fold.fits(components) for fold in self.folds)
        return not field.classes and len(self.components) == components and of_folds

    @property
    def follows(self) -> bool:
        """The standard deviation says how far the members disagree about an item."""
        return self.method == "spread"

    @property
    def sentence(self) -> str:
        """Return the words for interval widths and the graphs behind them."""
        widths = self.form.words(self.follows)
        if any(component.corrections != NONE for component in self.components):
            widths += ", corrected by thirds of graphs and predictions"
        if self.folds:
            widths += ", and wider where folds disagree"
        return f"interval widths {widths}; {evidence(self.part, self.graphs, self.guaranteed, self.nominal, len(self.folds))}"

    def without_folds(self) -> "Calibration":
        """The same for one fold alone, with intervals around its own mean."""
        return replace(self, folds=())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``calibration_from_json`` gives the same calibration back."""
        lists = {"components": [asdict(one) for one in self.components], "folds": [asdict(one) for one in self.folds]}
        return {**asdict(self), **lists}


def evidence(part: Part, graphs: int, guaranteed: bool, nominal: float, folds: int = 0) -> str:
    """Return the words for the calibrating graphs, with guarantees of folds.

    >>> evidence("calibration", 52, True, 0.9)
    'calibrated on 52 graphs that chose nothing'
    >>> evidence("valid", 5, False, 0.9)
    'calibrated on 5 validation graphs, which also chose the epoch: too few to guarantee 90 %'
    >>> evidence("held-out", 394, True, 0.9, folds=5)
    'calibrated on 394 graphs by members that had not seen them (CV+ over 5 folds: 90 % is usual; they also chose the scale, else 77 % would be guaranteed)'
    """
    which = {
        "calibration": "graphs that chose nothing",
        "valid": "validation graphs, which also chose the epoch",
        "held-out": "graphs by members that had not seen them",
    }[part]
    if folds and guaranteed:
        least = math.floor(100 * guaranteed_level(nominal, graphs, folds))
        which += f" (CV+ over {folds} folds: {nominal * 100:g} % is usual; they also chose the scale, else {least} % would be guaranteed)"
    return f"calibrated on {graphs} {which}" + ("" if guaranteed else f": too few to guarantee {nominal * 100:g} %")


def conformal_quantile(
    scores: Float[np.ndarray, " rows"], graph: Int[np.ndarray, " rows"], nominal: float
) -> tuple[float, bool]:
    """Return the quantile of scores for a new graph, and whether it is guaranteed.

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Known:
    """Spread, magnitude and nodes of every item, on which its interval may depend."""

    spread: Float[Array, "items *shape"]
    """Standard deviation of the mixture before calibration; the same for all components of a vector or tensor."""
    magnitude: Float[Array, "items *shape"]
    """Size of the prediction; the length of a vector or tensor."""
    nodes: Float[Array, " items"]
    """Nodes of the item's graph."""


def known_of(field: Field, moments: MixtureMoments, nodes: Int[np.ndarray, " items"]) -> Known:
    """Return spread, magnitude and nodes of items, whatever the axes."""
    magnitude, axes = np.abs(moments.mean), turning_axes(field)
    if axes:
        length = np.sqrt((magnitude**2).sum(axis=tuple(range(-axes, 0)), keepdims=True))
        magnitude = np.broadcast_to(length, magnitude.shape)
    return Known(spread=raw_spread(field, moments), magnitude=magnitude, nodes=nodes.astype(np.float64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Units of scores, fixed before the calibration part is read."""

    method: Method
    form: Form
    widths: tuple[Width, ...]


def fit_scale(field: Field, rows: Rows, method: Method | None, candidates: Sequence[Form]) -> Scale:
    """Return the scale with the best candidate; it uses any spread.

    Whether it is is no matter of scores: on graphs like those of training it may not pay, and elsewhere nothing else widens.
    """
    differ = bool((rows.spread > 0).any(axis=0).all())
    method = method or ("spread" if differ else "absolute")
    if method == "spread" and not differ:
        raise InputError(
            f"field {field.name}: the members do not differ, so there is no spread; use absolute intervals"
        )
    follows = method == "spread"
    candidates = [form for form in candidates if follows or not form.shared]
    form = choose_form(rows, candidates, follows) if len(candidates) > 1 else candidates[0]
    widths = tuple(fit_width(rows, c, form, follows) for c in range(rows.error.shape[1]))
    return Scale(method=method, form=form, widths=widths)


def corrected_scale(scale: Scale, rows: Rows) -> Scale:
    """Return the scale with corrections by thirds of these rows."""
    widths = []
    for c, width in enumerate(scale.widths):
        magnitude = rows.magnitude[:, c]
        trusted = believed(scale.form, width, rows.spread[:, c], magnitude, rows.nodes)
        scores = np.abs(rows.error[:, c]) / trusted
        widths.append(replace(width, corrections=fit_corrections(scores, rows.nodes, magnitude, rows.graph)))
    return replace(scale, widths=tuple(widths))


def fit_calibration(
    field: Field,
    target: Float[Array, "items *shape"],
    moments: MixtureMoments,
    graph: Int[np.ndarray, " items"],
    *,
    nominal: float = 0.9,
    method: Method | None = None,
    nodes: Int[np.ndarray, " items"] | None = None,
    scale: Scale | None = None,
) -> Calibration:
    """Return the calibration of a field from labelled items.

    The ``scale`` was fitted on other graphs; without one it is of the simplest form, and fitted on these. Method ``spread``
    divides errors by the ensemble's standard deviation, so that intervals widen where members disagree; ``absolute`` does
    without. The default is spread wherever there is any. Vectors and tensors are calibrated with all components together, so
    that nothing depends on how the axes lie.
    """
    if not 0.0 < nominal < 1.0:
        raise InputError(f"the nominal level is {nominal:g}; give a fraction between 0 and 1, for example 0.9")
    if len(target) == 0:
        raise InputError(f"field {field.name} has no labelled graph to calibrate on; enlarge the validation part")
    rows = labelled_rows(
        field, target, moments, graph, np.ones(len(target), dtype=np.int64) if nodes is None else nodes
    )
    scale = scale or fit_scale(field, rows, method, [CONSTANT])
    assert nodes is not None or not GROWTH[scale.form.kind].extensive, "this form needs the nodes of every item's graph"
    fitted = [_component(rows, c, scale, nominal) for c in range(rows.error.shape[1])]
    return Calibration(
        method=scale.method,
        nominal=nominal,
        components=tuple(component for component, _ in fitted),
        graphs=len(np.unique(graph)),
        guaranteed=all(guaranteed for _, guaranteed in fitted),
        form=scale.form,
    )


def raw_spread(field: Field, moments: MixtureMoments) -> Float[Array, "items *shape"]:
    """Return the standard deviation of the mixture before calibration."""
    return np.sqrt(isotropic(moments, turning_axes(field)).variance)


def turning_axes(field: Field) -> int:
    """Return the number of last axes that turn with the graph."""
    return {"scalar": 0, "vector": 1, "tensor": 2}[field.parity]


def calibrated_std(field: Field, calibration: Calibration, facts: Known) -> Float[Array, "items *shape"]:
    """Return the calibrated standard deviation; NaN where there is no prediction."""
    typical, scale, floor, reference = (
        _spread_over(field, [getattr(component, name) for component in calibration.components])
        for name in ("typical", "scale", "floor", "reference")
    )
    relative = calibration.form.relative(facts.nodes, facts.magnitude / typical)
    factor = scale * _correction(field, calibration, facts)
    if calibration.follows:
        return factor * calibration.form.trusted(facts.spread, relative, reference, floor)
    return np.where(np.isnan(facts.spread), np.nan, factor * relative)


def half_width(
    field: Field, calibration: Calibration, std: Float[Array, "items *shape"]
) -> Float[Array, "items *shape"]:
    """Return half the width of the interval around the mean."""
    return std * _spread_over(field, [component.quantile for component in calibration.components])


def variance_factor(field: Field, calibration: Calibration, facts: Known) -> Float[Array, "items *shape"]:
    """Return the factor on raw variances that makes them calibrated."""
    if calibration.method == "absolute":
        return np.ones(facts.spread.shape)
    scale = _spread_over(field, [component.scale for component in calibration.components])
    return (scale * _correction(field, calibration, facts)) ** 2


def _correction(field: Field, calibration: Calibration, facts: Known) -> Float[Array, "items *shape"]:
    """Return the correction of every number."""
    magnitude = facts.magnitude.reshape(len(facts.nodes), field.width)
    columns = np.array_split(magnitude, len(calibration.components), axis=1)
    factors = [
        one.corrections.of(np.broadcast_to(facts.nodes[:, None], own.shape), own)
        for one, own in zip(calibration.components, columns)
    ]
    return np.concatenate(factors, axis=1).reshape(facts.magnitude.shape)


def _spread_over(field: Field, values: list[float]) -> Array:
    """One number per component, or one for all, in the field's shape."""
    return np.broadcast_to(np.array(values if len(values) > 1 else values[0]).reshape(-1), (field.width,)).reshape(
        field.shape
    )


def labelled_rows(
    field: Field,
    target: Float[Array, "items *shape"],
    moments: MixtureMoments,
    graph: Int[np.ndarray, " items"],
    nodes: Int[np.ndarray, " items"],
) -> Rows:
    """Return errors with spread and magnitude as [rows, components to calibrate]."""
    facts = known_of(field, moments, nodes)
    components, repeats = (1, field.width) if turning_axes(field) else (field.width, 1)
    error, spread, magnitude = (
        values.reshape(len(graph) * repeats, components)
        for values in (target - moments.mean, facts.spread, facts.magnitude)
    )
    return Rows(
        error=error,
        spread=spread,
        magnitude=magnitude,
        nodes=np.repeat(facts.nodes, repeats),
        graph=np.repeat(graph, repeats),
    )


def _component(rows: Rows, component: int, scale: Scale, nominal: float) -> tuple[Component, bool]:
    """Return the factor of largest likelihood with the quantile of scores."""
    width, error = scale.widths[component], rows.error[:, component]
    trusted = believed(scale.form, width, rows.spread[:, component], rows.magnitude[:, component], rows.nodes)
    factor = max(float(np.sqrt(np.mean((error / trusted) ** 2))), TINY)
    quantile, guaranteed = conformal_quantile(np.abs(error) / (factor * trusted), rows.graph, nominal)
    result = Component(
        scale=factor,
        floor=width.floor,
        quantile=quantile,
        reference=width.reference,
        typical=width.typical,
        corrections=width.corrections,
    )
    return result, guaranteed
