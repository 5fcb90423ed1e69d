"""Classes: calibrated probabilities of the mixture, and conformal sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from scipy.special import entr

from hydragnn.ensemble.estimates import estimate
from hydragnn.ensemble.estimates.calibration import classes
from hydragnn.ensemble.estimates.calibration.classes import ClassCalibration
from hydragnn.ensemble.estimates.calibration.cross_validation import cross_sets, graph_scores, shares
from hydragnn.ensemble.estimates.calibration.protocol import AnyCalibration, Labels, Owners, with_fold_scores
from hydragnn.ensemble.estimates.estimate import CandidateEvidence, Counts, Labelled, Members, Metrics, Weights
from hydragnn.ensemble.estimates.metrics import rank_correlation
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.numbers import component_names
from hydragnn.models import Categorical, Target
from hydragnn.training.class_metrics import class_sums, class_values

PER_CLASS = ("probability", "set")
Rows = Float[Array, "rows classes"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassEstimate(estimate.Estimate):
    """Predictions of one categorical field.

    Rows of graphs that failed have NaN, label -1 and an empty set.

    ``probability`` is that of every class, calibrated; ``label`` the likeliest class. ``set`` marks the classes that hold the
    truth with the nominal probability: split conformal sets of the least ambiguous kind (LAC; Sadinle, Lei and Wasserman
    2019, arXiv:1609.00451), not randomised. A set may be empty: even the likeliest class is then less probable than the
    truth usually is. ``entropy`` is that of the calibrated probabilities; ``epistemic`` (what members disagree about: mutual
    information; NaN of one member alone) and ``aleatoric`` (mean entropy of the members) sum to the entropy before calibration. All in nats. Without
    a calibration probabilities are the members' raw mixture and every set holds all classes.
    """

    quantities = ("probability", "label", "set", "entropy", "epistemic", "aleatoric")
    headline = "label"
    scored = "probability"
    doubt_name = "entropy"
    score_names = ("accuracy", "balanced_accuracy", "error_rate", "auroc", "nll", "brier", "ece")
    ranking = "nll"

    probability: Float[Array, "items *shape_and_classes"]
    label: Int[np.ndarray, "items *shape"]
    set: UInt8[np.ndarray, "items *shape_and_classes"]
    entropy: Float[Array, "items *shape"]
    epistemic: Float[Array, "items *shape"]
    aleatoric: Float[Array, "items *shape"]

    @classmethod
    def of(
        cls, target: Target, members: Members, weights: Weights, calibration: AnyCalibration | None, nodes: Counts
    ) -> "ClassEstimate":
        """Return the mixture of the members' probabilities."""
        every = member_probabilities(members)
        raw = np.tensordot(weights, every, axes=1)
        total, aleatoric = entropy(raw), np.tensordot(weights, entropy(every), axes=1)
        if calibration is None:
            probability, belongs = raw, np.isfinite(raw)
        else:
            assert isinstance(calibration, ClassCalibration)
            probability = classes.temper(raw, calibration.temperature)
            belongs = classes.others(probability) <= calibration.threshold
            if folds := calibration.folds:
                of_folds = [
                    np.tensordot(shares(weights, one.members), every[list(one.members)], axes=1) for one in folds
                ]
                scores = classes.others(classes.temper(np.stack(of_folds), calibration.temperature))
                belongs = cross_sets(scores, [one.scores[0] for one in folds], calibration.nominal)
        failed = np.asarray(np.isnan(raw).any(axis=-1))
        alone = "epistemic" in cls.absent(target, int(np.count_nonzero(weights)), calibrated=calibration is not None)
        return ClassEstimate(
            target=target,
            probability=probability,
            label=np.where(failed, -1, np.nan_to_num(probability).argmax(axis=-1)),
            set=(belongs & ~failed[..., None]).astype(np.uint8),
            entropy=entropy(probability),
            epistemic=np.full_like(total, np.nan) if alone else np.maximum(total - aleatoric, 0.0),
            aleatoric=aleatoric,
            members=every,
        )

    @classmethod
    def absent(cls, target: Target, members: int, *, calibrated: bool) -> frozenset[str]:
        """Return ``epistemic`` for one member, ``set`` without a calibration."""
        facts = {"epistemic": members > 1, "set": calibrated}
        return frozenset(name for name, is_known in facts.items() if not is_known)

    @classmethod
    def calibration(
        cls, target: Target, valid: Labelled, separate: Labelled | None, weights: Weights, nominal: float
    ) -> ClassCalibration:
        """Return the temperature from validation and the threshold of the sets."""
        on, first = separate or valid, valid if len(valid) else separate or valid
        raw, valid_raw = (np.tensordot(weights, member_probabilities(one.members), axes=1) for one in (on, first))
        temperature = classes.fit_temperature(target.field, first.labels, valid_raw)
        fitted = classes.fit_classes(target.field, on.labels, raw, on.graph, nominal=nominal, temperature=temperature)
        return replace(fitted, part="calibration" if separate else "valid")

    @classmethod
    def cross_calibration(
        cls, target: Target, folds: Sequence[Labelled], weights: Weights, nominal: float
    ) -> ClassCalibration:
        """Return the temperature of least NLL of all folds, and CV+ sets."""
        field = target.field
        raw = [np.tensordot(shares(weights, one.fold), member_probabilities(one.members), axes=1) for one in folds]
        graph = np.concatenate([one.graph for one in folds])
        labels = np.concatenate([one.labels for one in folds])
        fitted = classes.fit_classes(field, labels, np.concatenate(raw), graph, nominal=nominal)
        scores = []
        for one, probabilities in zip(folds, raw):
            others_of_label = classes.label_scores(field, one.labels, probabilities, fitted.temperature)
            scores.append((graph_scores(others_of_label, np.repeat(one.graph, field.width), fitted.graphs),))
        return with_fold_scores(fitted, [one.fold for one in folds], scores)

    @classmethod
    def evidence(cls, target: Target, labels: Labels, members: Members) -> CandidateEvidence:
        """Return labels and the members' probabilities."""
        every = member_probabilities(members).reshape(len(members), -1, target.field.classes)
        return ClassEvidence(target=labels.ravel().astype(np.int64), values=every)

    @classmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """Return a suffix per component, or per component and class."""
        if quantity not in PER_CLASS:
            return component_names(target.field)
        return [
            f"{component}_{number}"
            for component in component_names(target.field)
            for number in range(target.field.classes)
        ]

    def evaluation(
        self, labels: Labels, nodes: Counts, names: Sequence[str], trivial: Metrics, baselines: Mapping[str, Metrics]
    ) -> estimate.TargetEvaluation:
        """Return scores as for numbers, and the confusion matrix."""
        confusion = np.zeros((self.field.classes, self.field.classes), dtype=np.int64)
        np.add.at(confusion, (labels.ravel().astype(np.int64), self.label.ravel()), 1)
        every = super(ClassEstimate, self).evaluation(labels, nodes, names, trivial, baselines)
        return replace(every, confusion=tuple(map(tuple, confusion.tolist())))

    def scores(self, values: Float[Array, "items *shape_and_classes"], labels: Labels) -> dict[str, float]:
        """Return scores of probabilities."""
        return class_scores(values.reshape(-1, self.field.classes), labels.ravel().astype(np.int64))

    def uncertainty_scores(self, labels: Labels) -> dict[str, float]:
        """Return coverage and size of sets, and correlation of errors with entropy."""
        truth = labels.ravel().astype(np.int64)
        inside = self.set.reshape(-1, self.field.classes)
        sizes = inside.sum(axis=1)
        wrong = (self.label.ravel() != truth).astype(np.float64)
        return {
            "coverage": float(inside[np.arange(len(truth)), truth].mean()),
            "set_size": float(sizes.mean()),
            "empty_sets": float((sizes == 0).mean()),
            "spearman": rank_correlation(wrong, self.entropy.ravel()),
        }

    def rows(self, labels: Labels, graph: Owners) -> dict[str, NDArray[Any]]:
        """Return target, all quantities, and the graph of each row."""
        width = [self.field.classes]
        return {
            "target": labels.ravel().astype(np.int64),
            **{name: self[name].reshape(-1, *width * (name in PER_CLASS)) for name in self.quantities},
            "graph": np.repeat(graph, self.field.width),
        }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassEvidence(CandidateEvidence):
    """Predictions of all candidates for labelled rows of one categorical field."""

    def row_errors(self, weights: Weights) -> Float[Array, " rows"]:
        """Return the Brier score of every row."""
        mixed = np.tensordot(weights, self.values, axes=1)
        of_label = mixed[np.arange(len(self.target)), self.target]
        return np.asarray((mixed**2).sum(axis=1) - 2.0 * of_label + 1.0)

    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """Return the diversity of the probabilities, taken as numbers."""
        truth = np.eye(self.values.shape[2])[self.target].ravel()
        return CandidateEvidence(target=truth, values=self.values.reshape(len(self.values), -1)).diversity(weights)


def member_probabilities(members: Members) -> Float[Array, "members items *shape_and_classes"]:
    """Return the probabilities of every member."""
    for one in members:
        assert isinstance(one, Categorical), f"{one.kind} is not a distribution of classes"
    return np.stack([one.probabilities.numpy() for one in members if isinstance(one, Categorical)])


def entropy(probabilities: Float[Array, "... classes"]) -> Float[Array, "..."]:
    """Return the entropy over the last axis, in nats.

    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(4)
    array([0.6931, 0.    ])
    """
    return np.asarray(entr(probabilities).sum(axis=-1))


def class_scores(probabilities: Rows, labels: Int[np.ndarray, " rows"]) -> dict[str, float]:
    """Return accuracy, NLL, Brier score, calibration error, AUROC and others."""
    from sklearn.metrics import roc_auc_score  # which predictions do not need

    p, y = torch.from_numpy(np.ascontiguousarray(probabilities)), torch.from_numpy(labels)
    nll = -p[torch.arange(len(y)), y].clamp_min(classes.TINY).log()
    values = class_values(class_sums(p, nll, y).numpy(), p.shape[1])
    scores = {name: value for name, value in values.items() if value is not None and name != "count"}
    if len(present := np.unique(labels)) > 1:  # the mean of class against rest
        areas = [roc_auc_score(labels == number, probabilities[:, number]) for number in present]
        scores["auroc"] = float(np.mean(areas))
    return scores
