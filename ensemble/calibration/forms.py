"""Scales of the error, and the choice among them on validation.

A score is |error| / scale, and the interval is as wide as the scale times a quantile of the scores (split conformal; Lei et
al. 2018, arXiv:1604.04173, section 5.2). Any scale that is fixed before the calibration part is looked at keeps the promise
over all graphs; the right one keeps it also for the large and for the small among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pydantic
from jaxtyping import Float, Int

from hydragnn.base.settings import NotNegative
from hydragnn.ensemble.calibration.corrections import NONE, Corrections
from hydragnn.ensemble.metrics import gaussian_crps
from hydragnn.ensemble.uncertainty import Array

TINY = 1e-30
"""Smallest standard deviation, in any unit: a perfect model on validation must not divide by zero elsewhere."""

GROWTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""What is tried for b / a in a + b |prediction|, with predictions in units of a typical one."""

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
    """Only for what adds up over nodes."""


GROWTH: Final[Mapping[str, Growth]] = {
    "constant": Growth(of=lambda nodes, size, growth: np.ones_like(size), words=""),
    "sqrt_nodes": Growth(
        of=lambda nodes, size, growth: np.sqrt(nodes),
        words="the square root of the number of nodes",
        extensive=True,
    ),
    "nodes": Growth(of=lambda nodes, size, growth: nodes, words="the number of nodes", extensive=True),
    "magnitude": Growth(of=lambda nodes, size, growth: 1.0 + growth * size, words="the magnitude of the prediction"),
}
"""The first is the simplest, and stays where no other is better."""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Growth of errors with graph or prediction, up to a factor."""

    kind: str = "constant"
    growth: NotNegative = 0.0
    """b / a in a + b |prediction|, with predictions in units of a typical one; 0 for other kinds."""
    shared: NotNegative = 0.0
    """What is added to the members' spread as the root of the sum of squares, in median spreads; 0 where there is no spread."""

    def __post_init__(self) -> None:
        if self.kind not in GROWTH:
            raise ValueError(f"unknown form {self.kind!r}; known: {', '.join(GROWTH)}")

    def relative(
        self, nodes: Float[Array, " items"], size: Float[Array, "items *shape"]
    ) -> Float[Array, "items *shape"]:
        """The scale of every item, up to a factor."""
        counts = np.maximum(nodes, 1.0).reshape(-1, *[1] * (size.ndim - 1))
        return np.broadcast_to(GROWTH[self.kind].of(counts, size, self.growth), size.shape)

    def trusted(
        self,
        spread: Float[Array, "items *shape"],
        relative: Float[Array, "items *shape"],
        reference: Array | float,
        floor: Array | float,
    ) -> Float[Array, "items *shape"]:
        """Return the believed spread of members, at least the floor.

        Both ``reference``, the median spread, and ``floor`` are over ``relative``, what the form says of the item.
        """
        together = np.hypot(spread, self.shared * reference * relative) if self.shared else spread
        return np.maximum(together, floor * relative)

    def words(self, follows: bool) -> str:
        """Return the words for interval widths.

        >>> Form(kind="sqrt_nodes").words(follows=False)
        'grow with the square root of the number of nodes'
        """
        grows = GROWTH[self.kind].words
        if follows and self.shared:
            return "follow the members' spread beside a typical one" + (f" that grows with {grows}" if grows else "")
        if follows:
            return "follow the members' spread" + (f", with a floor that grows with {grows}" if grows else "")
        return f"grow with {grows}" if grows else "are the same for all"


CONSTANT = Form()


def forms(extensive: bool) -> list[Form]:
    """Return all candidates for a target, the simplest first."""
    kinds = [kind for kind, growth in GROWTH.items() if kind != "magnitude" and (extensive or not growth.extensive)]
    plain = [*(Form(kind=kind) for kind in kinds), *(Form(kind="magnitude", growth=growth) for growth in GROWTHS)]
    return plain + [replace(form, shared=SHARED) for form in plain]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Errors of labelled items with spread, magnitude and nodes; components are columns."""

    error: Float[Array, "rows components"]
    spread: Float[Array, "rows components"]
    magnitude: Float[Array, "rows components"]
    nodes: Float[Array, " rows"]
    graph: Int[np.ndarray, " rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Width:
    """Units of one component's scale, fixed on validation."""

    floor: float
    """Smallest spread that is believed, over what the form says of the item; 0 where spreads are not used."""
    reference: float
    """Median spread over what the form says; 0 where there is no spread."""
    typical: float
    """Median magnitude of a prediction."""
    corrections: Corrections = NONE
    """What the form leaves."""


def fit_width(rows: Rows, component: int, form: Form, follows: bool) -> Width:
    """The units of one component's scale; no label is looked at."""
    magnitude, spread = rows.magnitude[:, component], rows.spread[:, component]
    typical = float(np.median(magnitude)) or float(magnitude.mean()) or 1.0
    positive = spread > 0
    relative = (spread / form.relative(rows.nodes, magnitude / typical))[positive]
    reference = float(np.median(relative)) if len(relative) else 0.0
    return Width(floor=FLOOR * reference if follows else 0.0, reference=reference, typical=typical)


def believed(
    form: Form,
    width: Width,
    spread: Float[Array, " rows"],
    magnitude: Float[Array, " rows"],
    nodes: Float[Array, " rows"],
) -> Float[Array, " rows"]:
    """Return the scale of one component's errors, up to a factor."""
    relative = form.relative(nodes, magnitude / width.typical)
    trusted = form.trusted(spread, relative, width.reference, width.floor) if width.floor else relative
    return trusted * width.corrections.of(nodes, magnitude)


def choose_form(rows: Rows, candidates: Sequence[Form], follows: bool) -> Form:
    """Return the form whose normal distributions have the least CRPS.

    Each graph is left out in turn from the factor that its error is measured with, and all graphs weigh the same. Components count in
    units of their CRPS with the simplest form, the first, which stays unless another is better. Neither the order of the
    items nor the unit matters.
    """
    if len(np.unique(rows.graph)) < 2:
        return candidates[0]
    scores = np.array([_scores(rows, form, follows) for form in candidates])
    simplest = np.where(scores[0] > 0, scores[0], 1.0)
    return candidates[int(np.argmin((scores / simplest).mean(axis=1)))]


def _scores(rows: Rows, form: Form, follows: bool) -> list[float]:
    """The CRPS of every component."""
    result = []
    for c in range(rows.error.shape[1]):
        width = fit_width(rows, c, form, follows)
        scale = believed(form, width, rows.spread[:, c], rows.magnitude[:, c], rows.nodes)
        result.append(left_out_crps(rows.error[:, c], scale, rows.graph))
    return result


def left_out_crps(error: Float[Array, " rows"], scale: Float[Array, " rows"], graph: Int[np.ndarray, " rows"]) -> float:
    """Return the mean CRPS over graphs, each left out of its factor."""
    _, group, counts = np.unique(graph, return_inverse=True, return_counts=True)
    squares = (error / scale) ** 2
    rest = np.maximum(squares.sum() - np.bincount(group, weights=squares), 0.0)
    factor = np.sqrt(rest / (len(error) - counts))
    crps = gaussian_crps(error, np.zeros_like(error), np.maximum(factor[group] * scale, TINY))
    return float(np.mean(np.bincount(group, weights=crps) / counts))
