"""Predictions of an ensemble for one target; one class per kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, nearest
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, Distance, Labels, Owners
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.graphs.field import Field
from hydragnn.models import Categorical, Distribution, Target

Members = Sequence[Distribution]
Weights = Float[Array, " members"]
"""Shares of members; their sum is 1."""
Metrics = Mapping[str, float | None]
Counts = Int[np.ndarray, " items"]
"""The nodes of the graph that each item belongs to."""
PER_NODE = ("mae_per_node", "rmse_per_node")
"""Further scores of targets that grow with the nodes of a graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Labelled:
    """Labelled items of one target in one part or fold, with predictions of members."""

    labels: Labels
    members: Members
    graph: Owners
    nodes: Counts
    distances: Float[Array, "items three"] | None = None
    """Distances of each item's graph from training (``DomainScores.distances``); None where there are none."""
    fold: tuple[int, ...] = ()
    """Positions in the ensemble of these members, which have not seen the items; empty of all members."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEvaluation:
    """Scores of one target in one part of the data.

    Scores of numbers are ``mae`` and ``rmse`` (in ``unit``) and ``r2``; of an ensemble also ``crps`` and ``interval_width`` (in
    ``unit``), ``nll``, ``coverage``, ``unknown``, ``miscalibration_area`` and ``spearman``: ``coverage`` and ``interval_width`` are of values with an interval, ``unknown`` is the share
    of the others. Scores of classes are those of
    ``hydragnn.ensemble.estimates.classes.class_scores``; of an ensemble also ``coverage``, ``set_size``, ``empty_sets`` and ``spearman``.
    """

    unit: str
    trivial: Mapping[str, float | None]
    """Scores of the predictor that uses the training labels only; None where there is none."""
    members: Mapping[str, Mapping[str, float]]
    """Scores of every member by its name."""
    best_member: str
    """The best member on these very labels, which no selection could use; empty where members predicted different graphs."""
    ensemble: Mapping[str, float]
    confusion: tuple[tuple[int, ...], ...] = ()
    """Labels of classes, counted by true class (rows) and predicted class."""
    baselines: Mapping[str, Mapping[str, float | None]] = member(default_factory=dict)
    """Scores of simple predictors that read inputs: composition, ridge and boosting."""

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain JSON."""
        classes = {"distribution": Categorical.kind, "classes": len(self.confusion)} if self.confusion else {}
        return {
            "unit": self.unit,
            **classes,
            "trivial": dict(self.trivial),
            "members": [{"name": name, **scores} for name, scores in self.members.items()],
            "best_member": self.best_member,
            "ensemble": dict(self.ensemble),
            **({"confusion": [list(row) for row in self.confusion]} if self.confusion else {}),
            **({"baselines": {name: dict(of) for name, of in self.baselines.items()}} if self.baselines else {}),
        }

    def __str__(self) -> str:
        """Return the score that ranks members: RMSE, or NLL of classes."""
        score = "nll" if self.confusion else "rmse"
        best, trivial = self.members.get(self.best_member), self.trivial.get(score)
        comparisons = [f"best member {best[score]:.4g}"] if best else []
        simple = {name: of[score] for name, of in self.baselines.items()} | {"trivial": trivial}
        comparisons += [f"{name} {value:.4g}" for name, value in simple.items() if value is not None]
        unit = f" {self.unit}" if self.unit and not self.confusion else ""
        return f"{score} {self.ensemble[score]:.4g}{unit}" + (f" ({', '.join(comparisons)})" if comparisons else "")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CandidateEvidence:
    """Predictions of all candidates for labelled rows of one numeric field."""

    target: Array
    """The label of every row."""
    values: Float[Array, "candidates rows ..."]

    def row_errors(self, weights: Float[Array, " candidates"]) -> Float[Array, " rows"]:
        """Return the absolute error of the mean of every row."""
        return np.abs(np.tensordot(weights, self.values, axes=1) - self.target)

    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """Return the correlation of errors, and the gain from averaging.

        ``ambiguity`` is the weighted variance between members over their mean squared error (Krogh and Vedelsby 1994): 0
        for copies, 0.5 where averaging halves the squared error. The correlation of a member alone is 1.
        """
        errors = self.values - self.target
        epistemic = np.tensordot(weights, (self.values - np.tensordot(weights, self.values, axes=1)) ** 2, axes=1)
        mean_mse = float(weights @ np.mean(errors**2, axis=1))
        centred = errors - errors.mean(axis=1, keepdims=True)
        norms = np.sqrt((centred**2).sum(axis=1))
        norms[norms == 0] = 1.0
        correlation = (centred @ centred.T) / np.outer(norms, norms)
        pairs = correlation[np.triu_indices(len(errors), k=1)]
        return {
            "error_correlation": float(pairs.mean()) if len(pairs) else 1.0,
            "ambiguity": float(np.mean(epistemic)) / mean_mse if mean_mse > 0 else 0.0,
        }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate(ABC):
    """One target of all graphs; rows of graphs that failed are NaN."""

    quantities: ClassVar[tuple[str, ...]]
    """Arrays in prediction files."""
    headline: ClassVar[str]
    """The quantity that goes by the target's own name where names are short."""
    scored: ClassVar[str]
    """The quantity that is scored, in the form of the values of members."""
    doubt_name: ClassVar[str]
    """The uncertainty of items, by which graphs are flagged."""
    score_names: ClassVar[tuple[str, ...]]
    """Scores of the trivial predictor."""
    ranking: ClassVar[str]
    """The score by which members are compared; lower is better."""

    target: Target
    members: Float[Array, "members items *rest"]
    """Values of every member; NaN where a graph failed, and where a member did not predict."""

    @property
    def field(self) -> Field:
        """Return the field that is predicted."""
        return self.target.field

    def __getitem__(self, quantity: str) -> NDArray[Any]:
        """Return one of ``quantities`` by name."""
        if quantity not in self.quantities:
            raise InputError(f"an estimate has no {quantity}; {nearest(quantity, list(self.quantities))}")
        values: NDArray[Any] = getattr(self, quantity)
        return values

    @classmethod
    @abstractmethod
    def of(
        cls, target: Target, members: Members, weights: Weights, calibration: AnyCalibration | None, nodes: Counts
    ) -> "Estimate":
        """Return the mixture of the members."""

    @classmethod
    @abstractmethod
    def absent(cls, target: Target, members: int, *, calibrated: bool) -> frozenset[str]:
        """Return the quantities that are unknown for so many members."""

    @classmethod
    def blank(cls, target: Target, members: int, items: int) -> "Estimate":
        """Return the estimate of items that could not be predicted."""
        nothing = [target.distribution.blank(target.field, items)] * members
        return cls.of(target, nothing, np.full(members, 1 / members), None, np.zeros(items, dtype=np.int64))

    @classmethod
    def join_parts(cls, parts: Sequence[Any]) -> "Estimate":
        """Return estimates of consecutive graphs as one."""
        values = {quantity: np.concatenate([part[quantity] for part in parts]) for quantity in cls.quantities}
        return cls(target=parts[0].target, members=np.concatenate([part.members for part in parts], axis=1), **values)

    def items(self, rows: Any) -> "Estimate":
        """Return the estimate of items by number."""
        return replace(self, members=self.members[:, rows], **{name: self[name][rows] for name in self.quantities})

    @classmethod
    @abstractmethod
    def calibration(
        cls, target: Target, valid: Labelled, separate: Labelled | None, weights: Weights, nominal: float
    ) -> AnyCalibration:
        """Return the calibration on graphs ``separate``, else on validation.

        All choices are made on validation. InputError where nothing is labelled.
        """

    @classmethod
    @abstractmethod
    def cross_calibration(
        cls, target: Target, folds: Sequence[Labelled], weights: Weights, nominal: float
    ) -> AnyCalibration:
        """Return the CV+ calibration on graphs that folds have not seen.

        InputError where nothing is labelled.
        """

    @classmethod
    def calibration_at(
        cls,
        target: Target,
        calibration: AnyCalibration,
        folds: Sequence[Labelled],
        weights: Weights,
        distance: Distance,
    ) -> AnyCalibration:
        """Return the calibration with uncertainties that grow with the distance of graphs.

        ``folds`` are the graphs that it was fitted on; without cross-validation all members predict all of them. Of classes nothing grows.
        """
        return calibration

    def at(self, calibration: AnyCalibration | None, distances: Float[Array, "items three"] | None) -> "Estimate":
        """Return the estimate of graphs at a distance from training data."""
        return self

    @classmethod
    @abstractmethod
    def evidence(cls, target: Target, labels: Labels, members: Members) -> CandidateEvidence:
        """Return the evidence for weights and diversity."""

    @classmethod
    @abstractmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """Return suffixes of the target's name in tables, one per number."""

    def evaluation(
        self, labels: Labels, nodes: Counts, names: Sequence[str], trivial: Metrics, baselines: Mapping[str, Metrics]
    ) -> TargetEvaluation:
        """Return scores of trivial predictor, simple baselines, members and ensemble.

        ``nodes`` are those of the graph of every item; errors of what grows with them are also per node.
        """

        def errors(values: NDArray[Any], items: Any = slice(None)) -> dict[str, float]:
            scores = self.scores(values[items], labels[items])
            if self.target.extensive:
                per = nodes[items].reshape(-1, *[1] * len(self.field.shape))
                of_nodes = self.scores(values[items] / per, labels[items] / per)
                scores |= {name: of_nodes[name.removesuffix("_per_node")] for name in PER_NODE}
            return scores

        predicted = np.isfinite(self.members).all(axis=tuple(range(2, self.members.ndim)))  # [members, items]
        scores = {
            name: errors(values, items) for name, values, items in zip(names, self.members, predicted) if items.any()
        }
        keys = self.score_names + (PER_NODE if self.target.extensive else ())
        return TargetEvaluation(
            unit=self.field.unit,
            trivial={key: trivial.get(key) for key in keys},
            members=scores,
            best_member=min(scores, key=lambda name: scores[name][self.ranking]) if predicted.all() else "",
            ensemble={**errors(self[self.scored]), **self.uncertainty_scores(labels)},
            baselines={name: {key: of.get(key) for key in keys} for name, of in baselines.items()},
        )

    @abstractmethod
    def scores(self, values: Float[Array, "items *shape"], labels: Labels) -> dict[str, float]:
        """Return errors of values, in the form of those of members."""

    @abstractmethod
    def uncertainty_scores(self, labels: Labels) -> dict[str, float]:
        """Return scores of the uncertainty, as far as it is known."""

    @abstractmethod
    def rows(self, labels: Labels, graph: Owners) -> dict[str, NDArray[Any]]:
        """Return the labelled items of an evaluation, components flattened, by name."""
