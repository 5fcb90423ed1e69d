"""What an ensemble says about one target; every kind of distribution has a class of its own that knows all about it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, nearest
from hydragnn.ensemble.calibration import Part
from hydragnn.ensemble.cross_validation import FoldScores
from hydragnn.ensemble.selection import Evidence
from hydragnn.graphs.field import Field
from hydragnn.models import Distribution, Target

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on
Labels = Float[Array, "items *shape"]
"""Labels in the field's unit, classes as whole numbers."""
Owners = Int[np.ndarray, " items"]
"""The number of the graph that each item belongs to."""
Counts = Int[np.ndarray, " items"]
"""The nodes of the graph that each item belongs to."""


@runtime_checkable
class AnyCalibration(Protocol):
    """How an ensemble's raw words become honest, fitted on graphs that no member was trained on."""

    @property
    def sentence(self) -> str:
        """What a report says of it: what widths depend on, and which graphs are behind them."""

    @property
    def follows(self) -> bool:
        """Return True where the uncertainty differs from item to item, so that a large one is a sign."""

    def fits(self, field: Field) -> bool:
        """Return True where it is for fields like this one."""

    @property
    def folds(self) -> tuple[FoldScores, ...]:
        """Of a cross-validation ensemble: what each fold says of the graphs that it has not seen."""

    def without_folds(self) -> "AnyCalibration":
        """The same for one fold alone, around what its own members say."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labelled:
    """The labelled items of one target in one part of the data, with what every member says about them."""

    part: Part
    labels: Labels
    members: Sequence[Distribution]
    graph: Owners
    nodes: Counts

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldLabels:
    """The labelled items of one target that some members have not seen, with what these members alone say about them."""

    members: tuple[int, ...]
    """Positions in the ensemble."""
    rows: Labelled


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate(ABC):
    """One target of all graphs; rows of graphs that failed are NaN."""

    quantities: ClassVar[tuple[str, ...]]
    """What prediction files hold of it, one array each."""
    headline: ClassVar[str]
    """The quantity that goes by the target's own name where names are short."""
    doubt_name: ClassVar[str]

    target: Target
    members: Float[Array, "members items *rest"]
    """What every member says; NaN where a graph failed, and where a member was not asked."""

    @property
    def field(self) -> Field:
        """The field that is predicted."""
        return self.target.field

    @property
    def asked(self) -> Bool[np.ndarray, "members items"]:
        """Which members said something about which items."""
        return np.asarray(np.isfinite(self.members).all(axis=tuple(range(2, self.members.ndim))))

    def spread_members(self, positions: Sequence[int], members: int) -> "Estimate":
        """The same of an ensemble of so many members, of which only those at the positions were asked."""
        every = np.full((members, *self.members.shape[1:]), np.nan)
        every[list(positions)] = self.members
        return replace(self, members=every)

    def __getitem__(self, quantity: str) -> NDArray[Any]:
        """One of ``quantities`` by name."""
        if quantity not in self.quantities:
            raise InputError(f"an estimate has no {quantity}; {nearest(quantity, list(self.quantities))}")
        values: NDArray[Any] = getattr(self, quantity)
        return values

    @property
    @abstractmethod
    def doubt(self) -> Float[Array, "items *shape"]:
        """How unsure the ensemble is of every item; what graphs are flagged by."""

    @classmethod
    @abstractmethod
    def of(
        cls,
        target: Target,
        members: Sequence[Distribution],
        weights: Float[Array, " members"],
        calibration: AnyCalibration | None,
        nodes: Counts,
    ) -> "Estimate":
        """The mixture of what the members say."""

    @classmethod
    @abstractmethod
    def absent(cls, target: Target, members: int, *, calibrated: bool) -> frozenset[str]:
        """Return the quantities that nothing is known of where so many members have a weight; files have no columns for them."""

    @classmethod
    @abstractmethod
    def blank(cls, target: Target, members: int, items: int) -> "Estimate":
        """The estimate of items that could not be predicted."""

    @classmethod
    @abstractmethod
    def join_parts(cls, parts: Sequence[Any]) -> "Estimate":
        """Estimates of consecutive graphs as one."""

    @classmethod
    @abstractmethod
    def calibration(
        cls,
        target: Target,
        valid: Labelled,
        apart: Labelled | None,
        weights: Float[Array, " members"],
        nominal: float,
    ) -> AnyCalibration:
        """The calibration on graphs ``apart`` that chose nothing, or on validation where there are none.

        Whatever is chosen is chosen on validation. InputError where nothing is labelled.
        """

    @classmethod
    @abstractmethod
    def cross_calibration(
        cls, target: Target, folds: Sequence[FoldLabels], weights: Float[Array, " members"], nominal: float
    ) -> AnyCalibration:
        """The calibration on graphs that folds of members have not seen, which choose nothing; CV+.

        InputError where nothing is labelled.
        """

    @classmethod
    @abstractmethod
    def evidence(cls, target: Target, labels: Labels, members: Sequence[Distribution]) -> Evidence:
        """What selection and diversity go by."""

    @classmethod
    @abstractmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """What follows the target's name in the columns of a table, one for each number of a quantity."""

    @abstractmethod
    def evaluation(self, labels: Labels, names: Sequence[str], trivial: Mapping[str, float | None]) -> dict[str, Any]:
        """Metrics of the trivial predictor, of every member and of the ensemble, and the honesty of its uncertainty."""

    @abstractmethod
    def rows(self, labels: Labels, graph: Owners) -> dict[str, NDArray[Any]]:
        """The labelled items behind an evaluation, components flattened, by name."""
