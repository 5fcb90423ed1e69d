"""Protocol of a detector: values per graph that grow with foreignness."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float

from hydragnn.ensemble.domain.view import Array, GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """One number that a detector has for every graph."""

    slack: float
    """How far above its usual value the number may rise whatever held-out graphs showed, in its own unit."""
    exact: bool = False
    """The number is 0, or above 0 for what training never showed: there is no threshold to set."""


@runtime_checkable
class Detector(Protocol):
    """One way of being foreign, fitted on the training part."""

    name: ClassVar[str]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the names of the columns of ``values``."""

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return how foreign every graph is; NaN where unknown."""

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for what is foreign about a graph."""

    def settings(self) -> dict[str, Any]:
        """Return all that is no tensor, as plain JSON."""

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name."""


@runtime_checkable
class Fit(Protocol):
    """A detector in the making, shown one training batch after the other."""

    def show(self, view: GraphView) -> None:
        """Some graphs of the training part."""

    def detectors(self) -> list[Detector]:
        """Return the fitted detectors; none where nothing applies."""
