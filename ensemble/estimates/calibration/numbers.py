"""Scale of the spread and conformal intervals of numbers, per field."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pydantic
from jaxtyping import Float, Int

from hydragnn.ensemble.estimates.calibration import forms
from hydragnn.ensemble.estimates.calibration.corrections import NONE, fit_corrections
from hydragnn.ensemble.estimates.calibration.cross_validation import cross_interval
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, check_calibration
from hydragnn.ensemble.estimates.moments import Array, MixtureMoments, isotropic
from hydragnn.graphs.field import Field


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration(AnyCalibration):
    """Calibration of one numeric field: standard deviation and interval."""

    method: Literal["spread", "absolute"]
    """spread: the scale is the members' spread with its form as an addition and floor; absolute: the form alone."""
    components: tuple[forms.Component, ...]
    form: forms.GrowthForm = forms.CONSTANT

    def fits(self, field: Field) -> bool:
        """Return True where the number of components is that of the field."""
        components = 1 if turning_axes(field) else field.width
        of_folds = all(fold.fits(components) for fold in self.folds)
        return not field.classes and len(self.components) == components and of_folds

    @property
    def follows(self) -> bool:
        """Return True where the standard deviation follows the members' spread."""
        return self.method == "spread"

    @property
    def sentence(self) -> str:
        """Return the words for interval widths and the graphs behind them."""
        widths = self.form.words(self.follows)
        if any(component.corrections != NONE for component in self.components):
            widths += ", corrected by thirds of graphs and predictions"
        if self.distance.power:
            widths += ", grow with the distance from training data"
        if self.folds:
            widths += ", and wider where folds disagree"
        return f"interval widths {widths}; {self.evidence}"


def conformal_quantile(
    scores: Float[np.ndarray, " rows"], graph: Int[np.ndarray, " rows"], nominal: float
) -> tuple[float, bool]:
    """Return the quantile of scores for a new graph, and its guarantee.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreScale:
    """Units of scores, fixed before the calibration part is read."""

    follows: bool
    """True where the scale follows the members' spread."""
    form: forms.GrowthForm
    components: tuple[forms.Component, ...]
    """With scale 1 and quantile 0."""


def fit_scale(
    rows: forms.LabelledRows, candidates: Sequence[forms.GrowthForm], *, by_thirds: bool = False
) -> ScoreScale:
    """Return the scale with the best candidate, and corrections by thirds; it uses any spread.

    Scores do not decide on the spread: it may not pay on graphs like those of training, and elsewhere nothing else widens.
    """
    follows = bool((rows.spread > 0).any(axis=0).all())
    candidates = [form for form in candidates if follows or not form.shared]
    form = forms.choose_form(rows, candidates, follows) if len(candidates) > 1 else candidates[0]
    components = []
    for c in range(rows.error.shape[1]):
        component, own = forms.unit_component(rows, c, form, follows), rows.labelled(c)
        if by_thirds and len(own.graph):
            scores = np.abs(own.error[:, c]) / component.corrected(own, c, form, follows)
            corrections = fit_corrections(scores, own.nodes, own.magnitude[:, c], own.graph)
            component = replace(component, corrections=corrections)
        components.append(component)
    return ScoreScale(follows=follows, form=form, components=tuple(components))


def fit_calibration(
    field: Field,
    target: Float[Array, "items *shape"],
    moments: MixtureMoments,
    graph: Int[np.ndarray, " items"],
    *,
    nominal: float = 0.9,
    nodes: Int[np.ndarray, " items"] | None = None,
    scale: ScoreScale | None = None,
) -> Calibration:
    """Return the calibration of a field from labelled items.

    The ``scale`` was fitted on other graphs; without one it is of the simplest form, and fitted on these. Errors are divided by
    the ensemble's standard deviation wherever members differ, so that intervals widen where they disagree. Vectors and tensors are calibrated with all components together, so
    that nothing depends on how the axes lie.
    """
    check_calibration(field, nominal, len(target))
    rows = labelled_rows(
        field, target, moments, graph, np.ones(len(target), dtype=np.int64) if nodes is None else nodes
    )
    scale = scale or fit_scale(rows, [forms.CONSTANT])
    assert nodes is not None or not forms.GROWTH[scale.form.kind].extensive, (
        "this form needs the nodes of every item's graph"
    )
    components, guarantees = [], []
    for c, component in enumerate(scale.components):
        own = rows.labelled(c)
        check_calibration(field, nominal, len(own.graph))
        trusted = component.corrected(own, c, scale.form, scale.follows)
        factor = max(float(np.sqrt(np.mean((own.error[:, c] / trusted) ** 2))), forms.TINY)  # of largest likelihood
        quantile, guaranteed = conformal_quantile(np.abs(own.error[:, c]) / (factor * trusted), own.graph, nominal)
        components.append(replace(component, scale=factor, quantile=quantile))
        guarantees.append(guaranteed)
    return Calibration(
        method="spread" if scale.follows else "absolute",
        nominal=nominal,
        components=tuple(components),
        graphs=len(np.unique(graph)),
        guaranteed=all(guarantees),
        form=scale.form,
    )


def turning_axes(field: Field) -> tuple[int, ...]:
    """Return the last axes, which turn with the graph."""
    return {"scalar": (), "vector": (-1,), "tensor": (-2, -1)}[field.parity]


def rows_of(field: Field, moments: MixtureMoments, nodes: Int[np.ndarray, " items"]) -> forms.ScaleRows:
    """Return spread, magnitude and nodes of items as [rows, components to calibrate]."""
    magnitude, axes = np.abs(moments.mean), turning_axes(field)
    if axes:
        length = np.sqrt((magnitude**2).sum(axis=axes, keepdims=True))
        magnitude = np.broadcast_to(length, magnitude.shape)
    spread = np.sqrt(isotropic(moments, axes).variance)
    repeats = field.width if axes else 1
    spread, magnitude = (one.reshape(len(nodes) * repeats, field.width // repeats) for one in (spread, magnitude))
    return forms.ScaleRows(spread=spread, magnitude=magnitude, nodes=np.repeat(nodes.astype(np.float64), repeats))


def labelled_rows(
    field: Field,
    target: Float[Array, "items *shape"],
    moments: MixtureMoments,
    graph: Int[np.ndarray, " items"],
    nodes: Int[np.ndarray, " items"],
) -> forms.LabelledRows:
    """Return the rows of labelled items with their errors."""
    rows = rows_of(field, moments, nodes)
    return forms.LabelledRows(
        spread=rows.spread,
        magnitude=rows.magnitude,
        nodes=rows.nodes,
        error=(target - moments.mean).reshape(rows.spread.shape),
        graph=np.repeat(graph, len(rows.nodes) // max(1, len(nodes))),
    )


def calibrated(
    field: Field, calibration: Calibration, moments: MixtureMoments, nodes: Int[np.ndarray, " items"]
) -> tuple[Float[Array, "items *shape"], Float[Array, "items *shape"], Float[Array, "items *shape"]]:
    """Return calibrated deviations, half widths of intervals, and factors on raw variances.

    They have the field's shape, and NaN without a prediction.
    """
    rows = rows_of(field, moments, nodes)
    std, half, variance = (np.ones(rows.spread.shape) for _ in range(3))
    for c, component in enumerate(calibration.components):
        unscaled = component.unscaled(rows, c, calibration.form, calibration.follows)
        factor = component.scale * component.corrections.of(rows.nodes, rows.magnitude[:, c])
        std[:, c] = np.where(np.isnan(rows.spread[:, c]), np.nan, factor * unscaled)
        half[:, c] = std[:, c] * component.quantile
        if calibration.follows:
            variance[:, c] = factor**2
    std, half, variance = (one.reshape(len(nodes), *field.shape) for one in (std, half, variance))
    return std, half, variance


def quantities_of(
    field: Field,
    calibration: Calibration | None,
    moments: MixtureMoments,
    folds: Sequence[MixtureMoments],
    nodes: Int[np.ndarray, " items"],
) -> dict[str, Float[Array, "items *shape"]]:
    """Return standard deviation, its parts and the ends of intervals.

    Intervals are around the mean of all members, and those of ``folds`` are CV+. Without a calibration there are none (NaN).
    """
    parts = isotropic(moments, turning_axes(field))
    epistemic, aleatoric, std = parts.epistemic, parts.aleatoric, np.sqrt(parts.variance)
    lower = upper = np.full_like(std, np.nan)
    if calibration is not None and not folds:
        std, half, factor = calibrated(field, calibration, moments, nodes)
        epistemic, aleatoric = epistemic * factor, aleatoric * factor
        lower, upper = moments.mean - half, moments.mean + half
    elif calibration is not None:
        counts = np.array([len(fold.scores[0]) for fold in calibration.folds])
        stds, _, factors = map(np.stack, zip(*(calibrated(field, calibration, one, nodes) for one in folds)))
        lower, upper = _cross_ends(np.stack([one.mean for one in folds]), stds, calibration)
        lower, upper = np.minimum(lower, moments.mean), np.maximum(upper, moments.mean)
        std = np.sqrt(np.average(stds**2, axis=0, weights=counts))
        if calibration.follows:
            within = [isotropic(one, turning_axes(field)) for one in folds]
            epistemic = np.average(factors * [one.epistemic for one in within], axis=0, weights=counts)
            aleatoric = np.average(factors * [one.aleatoric for one in within], axis=0, weights=counts)
    roots = {"std": std, "epistemic": np.sqrt(epistemic), "aleatoric": np.sqrt(aleatoric)}
    return {**roots, "lower": lower, "upper": upper}


def _cross_ends(
    means: Float[Array, "folds items *shape"], stds: Float[Array, "folds items *shape"], calibration: Calibration
) -> tuple[Float[Array, "items *shape"], Float[Array, "items *shape"]]:
    """Return lower and upper ends of the CV+ intervals of every component."""
    lower, upper = np.empty(means.shape[1:]), np.empty(means.shape[1:])
    components = len(calibration.components)
    columns = [values.reshape(len(means), -1, components) for values in (means, stds)]
    for c in range(components):
        scores = [fold.scores[c] for fold in calibration.folds]
        ends = cross_interval(columns[0][..., c], columns[1][..., c], scores, calibration.nominal)
        lower.reshape(-1, components)[:, c], upper.reshape(-1, components)[:, c] = ends
    return lower, upper
