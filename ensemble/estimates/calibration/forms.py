"""Scales of the error, and the choice among them on validation.

A score is |error| / scale, and the interval is as wide as the scale times a quantile of the scores (split conformal; Lei et
al. 2018, arXiv:1604.04173, section 5.2). Any scale that is fixed before the calibration part is looked at keeps the promise
over all graphs; the right one keeps it also for the large and for the small among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pydantic
from jaxtyping import Float, Int

from hydragnn.base.settings import NotNegative, Positive
from hydragnn.ensemble.estimates.calibration.corrections import NONE, Corrections
from hydragnn.ensemble.estimates.metrics import gaussian_crps
from hydragnn.ensemble.estimates.moments import Array

TINY = 1e-30
"""Smallest standard deviation, in any unit: a perfect model on validation must not divide by zero elsewhere."""

GROWTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Candidates for b / a in a + b |prediction|, with predictions in units of a typical one."""

SHARED = 1.0
"""Share of the median spread that may be added to every spread, as the root of the sum of squares, where that has less CRPS.

Members err together, and few of them differ by chance; both make errors follow the spread less than in proportion. More than one
median would leave little of the spread where members disagree most.
"""

FLOOR = 0.5
"""Smallest believed spread, as a fraction of the median spread on validation.

Few members agree by chance, so a spread near zero means little; with a floor near the usual spread, intervals no longer
follow the members where it matters.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """One way in which errors grow from item to item."""

    of: Callable[[Array, Array, float], Array]
    """Relative scale of items, from the nodes of their graph, the size of their prediction in typical ones, and ``growth``."""
    words: str
    extensive: bool = False
    """Only for targets that add up over nodes."""


GROWTH: Final[Mapping[str, Growth]] = {
    "constant": Growth(of=lambda nodes, size, growth: np.ones_like(size), words=""),
    "sqrt_nodes": Growth(
        of=lambda nodes, size, growth: np.sqrt(nodes), words="the square root of the number of nodes", extensive=True
    ),
    "nodes": Growth(of=lambda nodes, size, growth: nodes, words="the number of nodes", extensive=True),
    "magnitude": Growth(of=lambda nodes, size, growth: 1.0 + growth * size, words="the magnitude of the prediction"),
}
"""The first is the simplest, and stays where no other is better."""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthForm:
    """Growth of errors with graph or prediction, up to a factor."""

    kind: str = "constant"
    growth: NotNegative = 0.0
    """b / a in a + b |prediction|, with predictions in units of a typical one; 0 for other kinds."""
    shared: NotNegative = 0.0
    """Spread added to that of members as the root of the sum of squares, in median spreads; 0 where there is none."""

    def __post_init__(self) -> None:
        if self.kind not in GROWTH:
            raise ValueError(f"unknown form {self.kind!r}; known: {', '.join(GROWTH)}")

    def relative(
        self, nodes: Float[Array, " items"], size: Float[Array, "items *shape"]
    ) -> Float[Array, "items *shape"]:
        """Return the scale of every item, up to a factor."""
        counts = np.maximum(nodes, 1.0).reshape(-1, *[1] * (size.ndim - 1))
        return np.broadcast_to(GROWTH[self.kind].of(counts, size, self.growth), size.shape)

    def words(self, follows: bool) -> str:
        """Return the words for interval widths.

        >>> GrowthForm(kind="sqrt_nodes").words(follows=False)
        'grow with the square root of the number of nodes'
        """
        grows = GROWTH[self.kind].words
        if follows and self.shared:
            return "follow the members' spread beside a typical one" + (f" that grows with {grows}" if grows else "")
        if follows:
            return "follow the members' spread" + (f", with a floor that grows with {grows}" if grows else "")
        return f"grow with {grows}" if grows else "are the same for all"


CONSTANT = GrowthForm()


def forms(extensive: bool) -> list[GrowthForm]:
    """Return all candidates for a target, the simplest first."""
    kinds = [kind for kind, growth in GROWTH.items() if kind != "magnitude" and (extensive or not growth.extensive)]
    plain = [
        *(GrowthForm(kind=kind) for kind in kinds),
        *(GrowthForm(kind="magnitude", growth=growth) for growth in GROWTHS),
    ]
    return plain + [replace(form, shared=SHARED) for form in plain]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScaleRows:
    """Spread, magnitude and nodes of items, with components as columns."""

    spread: Float[Array, "rows components"]
    """Standard deviation of the mixture before calibration."""
    magnitude: Float[Array, "rows components"]
    """Size of the prediction; the length of a vector or tensor."""
    nodes: Float[Array, " rows"]
    """Nodes of the item's graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LabelledRows(ScaleRows):
    """Rows with their errors, and the graph of each."""

    error: Float[Array, "rows components"]
    """NaN where the label of a component is missing."""
    graph: Int[np.ndarray, " rows"]

    def labelled(self, column: int) -> "LabelledRows":
        """Return the rows that have a label of a component."""
        labelled = ~np.isnan(self.error[:, column])
        if labelled.all():
            return self
        return LabelledRows(**{entry.name: getattr(self, entry.name)[labelled] for entry in fields(self)})


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

    def unscaled(self, rows: ScaleRows, column: int, form: GrowthForm, follows: bool) -> Float[Array, " rows"]:
        """Return the scale of errors, up to corrections and one factor."""
        relative = form.relative(rows.nodes, rows.magnitude[:, column] / self.typical)
        if not follows:
            return relative
        spread = rows.spread[:, column]
        together = np.hypot(spread, form.shared * self.reference * relative) if form.shared else spread
        return np.maximum(together, self.floor * relative)

    def corrected(self, rows: ScaleRows, column: int, form: GrowthForm, follows: bool) -> Float[Array, " rows"]:
        """Return the scale of errors, up to one factor."""
        corrections = self.corrections.of(rows.nodes, rows.magnitude[:, column])
        return self.unscaled(rows, column, form, follows) * corrections


def unit_component(rows: ScaleRows, column: int, form: GrowthForm, follows: bool) -> Component:
    """Return a component with scale 1 and quantile 0, without labels."""
    magnitude, spread = rows.magnitude[:, column], rows.spread[:, column]
    typical = float(np.median(magnitude)) or float(magnitude.mean()) or 1.0
    relative = (spread / form.relative(rows.nodes, magnitude / typical))[spread > 0]
    reference = float(np.median(relative)) if len(relative) else 0.0
    floor = FLOOR * reference if follows else 0.0
    return Component(scale=1.0, floor=floor, quantile=0.0, reference=reference, typical=typical)


def choose_form(rows: LabelledRows, candidates: Sequence[GrowthForm], follows: bool) -> GrowthForm:
    """Return the form whose normal distributions have the least CRPS.

    Each graph is left out in turn from the factor that its error is measured with, and all graphs weigh the same. Components count in
    units of their CRPS with the simplest form, the first, which stays unless another is better. Neither the order of the
    items nor the unit matters.
    """
    if len(np.unique(rows.graph)) < 2:
        return candidates[0]
    scores = np.zeros((len(candidates), rows.error.shape[1]))
    for number, form in enumerate(candidates):
        for c in range(rows.error.shape[1]):
            own = rows.labelled(c)
            if len(np.unique(own.graph)) > 1:
                scale = unit_component(own, c, form, follows).corrected(own, c, form, follows)
                scores[number, c] = left_out_crps(own.error[:, c], scale, own.graph)
    simplest = np.where(scores[0] > 0, scores[0], 1.0)
    return candidates[int(np.argmin((scores / simplest).mean(axis=1)))]


def left_out_crps(error: Float[Array, " rows"], scale: Float[Array, " rows"], graph: Int[np.ndarray, " rows"]) -> float:
    """Return the mean CRPS over graphs, each left out of its factor."""
    _, group, counts = np.unique(graph, return_inverse=True, return_counts=True)
    squares = (error / scale) ** 2
    rest = np.maximum(squares.sum() - np.bincount(group, weights=squares), 0.0)
    factor = np.sqrt(rest / (len(error) - counts))
    crps = gaussian_crps(error, np.zeros_like(error), np.maximum(factor[group] * scale, TINY))
    return float(np.mean(np.bincount(group, weights=crps) / counts))
