"""Predictions of an ensemble for one target; one class per kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, nearest
from hydragnn.ensemble.calibration.protocol import AnyCalibration, Labels, Owners, Part
from hydragnn.ensemble.evidence import Evidence
from hydragnn.graphs.field import Field
from hydragnn.models import Distribution, Target

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on
Counts = Int[np.ndarray, " items"]
"""The nodes of the graph that each item belongs to."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labelled:
    """Labelled items of one target in one part, with predictions of members."""

    part: Part
    labels: Labels
    members: Sequence[Distribution]
    graph: Owners
    nodes: Counts

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoldLabels:
    """Labelled items that some members have not seen, with their predictions."""

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
    score_names: ClassVar[tuple[str, ...]]
    """Scores of the trivial predictor."""
    ranking: ClassVar[str]
    """The score by which members are compared; lower is better."""

    target: Target
    members: Float[Array, "members items *rest"]
    """What every member says; NaN where a graph failed, and where a member was not asked."""

    @property
    def field(self) -> Field:
        """The field that is predicted."""
        return self.target.field

    @property
    def asked(self) -> Bool[np.ndarray, "members items"]:
        """Return which members predicted which items."""
        return np.asarray(np.isfinite(self.members).all(axis=tuple(range(2, self.members.ndim))))

    def spread_members(self, positions: Sequence[int], members: int) -> "Estimate":
        """Return the estimate as part of an ensemble of more members."""
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
        """Return the uncertainty of every item, by which graphs are flagged."""

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
        """Return the quantities that are unknown for so many members."""

    @classmethod
    @abstractmethod
    def blank(cls, target: Target, members: int, items: int) -> "Estimate":
        """The estimate of items that could not be predicted."""

    @classmethod
    def join_parts(cls, parts: Sequence[Any]) -> "Estimate":
        """Return estimates of consecutive graphs as one."""
        values = {quantity: np.concatenate([part[quantity] for part in parts]) for quantity in cls.quantities}
        return cls(target=parts[0].target, members=np.concatenate([part.members for part in parts], axis=1), **values)

    @classmethod
    @abstractmethod
    def calibration(
        cls,
        target: Target,
        valid: Labelled,
        separate: Labelled | None,
        weights: Float[Array, " members"],
        nominal: float,
    ) -> AnyCalibration:
        """Return the calibration on graphs ``separate``, else on validation.

        Whatever is chosen is chosen on validation. InputError where nothing is labelled.
        """

    @classmethod
    @abstractmethod
    def cross_calibration(
        cls, target: Target, folds: Sequence[FoldLabels], weights: Float[Array, " members"], nominal: float
    ) -> AnyCalibration:
        """Return the CV+ calibration on graphs that folds have not seen.

        InputError where nothing is labelled.
        """

    @classmethod
    @abstractmethod
    def evidence(cls, target: Target, labels: Labels, members: Sequence[Distribution]) -> Evidence:
        """Return the evidence for selection and diversity."""

    @classmethod
    @abstractmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """Return suffixes of the target's name in tables, one per number."""

    def evaluation(self, labels: Labels, names: Sequence[str], trivial: Mapping[str, float | None]) -> dict[str, Any]:
        """Return scores of trivial predictor, members and ensemble.

        ``best_member`` is the best on these very graphs, which no selection could have known. It is empty where members were asked
        about different graphs.
        """
        scores = {
            name: self.scores(values[items], labels[items])
            for name, values, items in zip(names, self.members, self.asked)
            if items.any()
        }
        is_fair = self.asked.all()
        return {
            "unit": self.field.unit,
            "trivial": {key: trivial.get(key) for key in self.score_names},
            "members": [{"name": name, **values} for name, values in scores.items()],
            "best_member": min(scores, key=lambda name: scores[name][self.ranking]) if is_fair else "",
            "ensemble": {**self.scores(self.headline_values, labels), **self.uncertainty_scores(labels)},
        }

    @property
    @abstractmethod
    def headline_values(self) -> Float[Array, "items *shape"]:
        """Return the ensemble's values, in the form of those of members."""

    @abstractmethod
    def scores(self, values: Float[Array, "items *shape"], labels: Labels) -> dict[str, float]:
        """Return errors of values, in the form of those of members."""

    @abstractmethod
    def uncertainty_scores(self, labels: Labels) -> dict[str, float]:
        """Return scores of the uncertainty, as far as it is known."""

    @abstractmethod
    def rows(self, labels: Labels, graph: Owners) -> dict[str, NDArray[Any]]:
        """The labelled items behind an evaluation, components flattened, by name."""
