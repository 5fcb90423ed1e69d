"""Classes: probabilities of the mixture, calibrated by a temperature, and conformal sets of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import pydantic
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import entr, log_softmax, softmax
from scipy.stats import rankdata

from hydragnn.ensemble.calibration import Part, conformal_quantile, evidence
from hydragnn.ensemble.estimates import AnyCalibration, Counts, Estimate, Labelled, Labels, Owners
from hydragnn.ensemble.metrics import rank_correlation
from hydragnn.ensemble.numbers import component_names
from hydragnn.ensemble.selection import Evidence
from hydragnn.ensemble.uncertainty import Array
from hydragnn.errors import InputError
from hydragnn.graphs.field import Field
from hydragnn.models import Categorical, Distribution, Target
from hydragnn.settings import Count, Fraction, NotNegative, Positive
from hydragnn.training.class_metrics import class_sums, class_values

QUANTITIES: Final = ("probability", "label", "set", "entropy", "epistemic", "aleatoric")
PER_CLASS = ("probability", "set")
METRICS = ("accuracy", "balanced_accuracy", "error_rate", "auroc", "nll", "brier", "ece")
TINY = float(np.finfo(np.float64).tiny)
HOTTEST = 20.0
"""Largest temperature that is tried, and one over the smallest: a perfect model on validation must not become certain."""

Rows = Float[Array, "rows classes"]


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCalibration:
    """How the probabilities of one categorical field become honest: one temperature, and the threshold of the sets."""

    temperature: Positive
    """Logarithms of probabilities are divided by it: above 1 the members were too sure."""
    threshold: NotNegative
    """A class belongs to the set where all other classes together have at most this probability."""
    nominal: Fraction
    graphs: Count
    """Graphs behind the threshold."""
    guaranteed: bool
    """False where these are too few for the nominal level: every set then holds the least likely label seen."""
    method: str = "temperature"
    part: Part = "valid"

    def fits(self, field: Field) -> bool:
        """Return True for every field of classes."""
        return bool(field.classes)

    @property
    def follows(self) -> bool:
        """Probabilities differ from item to item."""
        return True

    @property
    def sentence(self) -> str:
        """Which graphs are behind the sets."""
        return f"sets of classes {evidence(self.part, self.graphs, self.guaranteed, self.nominal)}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``calibration_from_json`` gives the same calibration back."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassEstimate(Estimate):
    """One categorical field of all graphs; rows of graphs that failed have NaN, label -1 and an empty set.

    ``probability`` is that of every class, calibrated; ``label`` the likeliest class. ``set`` marks the classes that hold the
    truth with the nominal probability: split conformal sets of the least ambiguous kind (LAC; Sadinle, Lei and Wasserman
    2019, arXiv:1609.00451), not randomised. A set may be empty: even the likeliest class is then less probable than the
    truth usually is. ``entropy`` is that of the calibrated probabilities; ``epistemic`` (what members disagree about: mutual
    information) and ``aleatoric`` (mean entropy of the members) sum to the entropy before calibration. All in nats. Without
    a calibration probabilities are the members' raw mixture and every set holds all classes.
    """

    quantities = QUANTITIES
    headline = "label"
    doubt_name = "entropy"

    probability: Float[Array, "items *shape_and_classes"]
    label: Int[NDArray[np.int64], "items *shape"]
    set: UInt8[NDArray[np.uint8], "items *shape_and_classes"]
    entropy: Float[Array, "items *shape"]
    epistemic: Float[Array, "items *shape"]
    aleatoric: Float[Array, "items *shape"]
    members: Float[Array, "members items *shape_and_classes"]

    @property
    def doubt(self) -> Float[Array, "items *shape"]:
        """The entropy."""
        return self.entropy

    @classmethod
    def of(
        cls,
        target: Target,
        members: Sequence[Distribution],
        weights: Float[Array, " members"],
        calibration: AnyCalibration | None,
        nodes: Counts,
    ) -> "ClassEstimate":
        """The mixture of the members' probabilities."""
        every = member_probabilities(members)
        raw = np.tensordot(weights, every, axes=1)
        total, aleatoric = entropy(raw), np.tensordot(weights, entropy(every), axes=1)
        if calibration is None:
            probability, inside = raw, np.isfinite(raw)
        else:
            assert isinstance(calibration, ClassCalibration)
            probability = temper(raw, calibration.temperature)
            inside = others(probability) <= calibration.threshold
        failed = np.asarray(np.isnan(raw).any(axis=-1))
        return ClassEstimate(
            target=target,
            probability=probability,
            label=np.where(failed, -1, np.nan_to_num(probability).argmax(axis=-1)),
            set=(inside & ~failed[..., None]).astype(np.uint8),
            entropy=entropy(probability),
            epistemic=np.maximum(total - aleatoric, 0.0),
            aleatoric=aleatoric,
            members=every,
        )

    @classmethod
    def blank(cls, target: Target, members: int, items: int) -> "ClassEstimate":
        """NaN for all items, without labels and with empty sets."""
        per_class = np.full((items, *target.field.shape, target.field.classes), np.nan)
        alone = np.full((items, *target.field.shape), np.nan)
        return ClassEstimate(
            target=target,
            probability=per_class,
            label=np.full(alone.shape, -1),
            set=np.zeros(per_class.shape, dtype=np.uint8),
            entropy=alone,
            epistemic=alone,
            aleatoric=alone,
            members=np.broadcast_to(per_class, (members, *per_class.shape)),
        )

    @classmethod
    def join_parts(cls, parts: Sequence["ClassEstimate"]) -> "ClassEstimate":
        """Estimates of consecutive graphs as one."""
        values = {quantity: np.concatenate([part[quantity] for part in parts]) for quantity in QUANTITIES}
        members = np.concatenate([part.members for part in parts], axis=1)
        return ClassEstimate(target=parts[0].target, members=members, **values)

    @classmethod
    def calibration(
        cls,
        target: Target,
        valid: Labelled,
        apart: Labelled | None,
        weights: Float[Array, " members"],
        nominal: float,
    ) -> ClassCalibration:
        """The temperature of least NLL on validation, and the threshold of the conformal sets."""
        on, first = apart or valid, valid if len(valid) else apart or valid
        raw, before = (np.tensordot(weights, member_probabilities(one.members), axes=1) for one in (on, first))
        temperature = fit_temperature(target.field, first.labels, before)
        fitted = fit_classes(target.field, on.labels, raw, on.graph, nominal=nominal, temperature=temperature)
        return replace(fitted, part=on.part)

    @classmethod
    def evidence(cls, target: Target, labels: Labels, members: Sequence[Distribution]) -> Evidence:
        """Labels and the members' probabilities."""
        every = member_probabilities(members).reshape(len(members), -1, target.field.classes)
        return ClassEvidence(target=labels.ravel().astype(np.int64), probabilities=every)

    @classmethod
    def columns(cls, target: Target, quantity: str) -> list[str]:
        """One for each component, and for each of its classes where a quantity has a number per class."""
        if quantity not in PER_CLASS:
            return component_names(target.field)
        return [
            f"{component}_{number}"
            for component in component_names(target.field)
            for number in range(target.field.classes)
        ]

    def evaluation(self, labels: Labels, names: Sequence[str], trivial: Mapping[str, float | None]) -> dict[str, Any]:
        """Scores of the trivial predictor (class frequencies), of every member and of the ensemble, its sets and confusions.

        ``confusion`` counts labels by true class (rows) and predicted class. ``best_member`` is the best on these very graphs.
        """
        classes, truth = self.field.classes, labels.ravel().astype(np.int64)
        flat = self.probability.reshape(-1, classes)
        scores = [class_scores(every.reshape(-1, classes), truth) for every in self.members]
        best = min(range(len(scores)), key=lambda position: scores[position]["nll"])
        confusion = np.zeros((classes, classes), dtype=np.int64)
        np.add.at(confusion, (truth, self.label.ravel()), 1)
        return {
            "unit": self.field.unit,
            "distribution": Categorical.kind,
            "classes": classes,
            "trivial": {key: trivial.get(key) for key in METRICS},
            "members": [{"name": name, **values} for name, values in zip(names, scores)],
            "best_member": names[best],
            "ensemble": {**class_scores(flat, truth), **self._set_metrics(truth)},
            "confusion": confusion.tolist(),
        }

    def _set_metrics(self, truth: NDArray[np.int64]) -> dict[str, float]:
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
        """Target and all quantities, and the graph of each row."""
        classes = self.field.classes
        values = {quantity: self[quantity] for quantity in QUANTITIES}
        return {
            "target": labels.ravel().astype(np.int64),
            **{
                name: array.reshape(-1, classes) if name in PER_CLASS else array.ravel()
                for name, array in values.items()
            },
            "graph": np.repeat(graph, self.field.width),
        }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassEvidence(Evidence):
    """What all candidates predict for the labelled validation rows of one categorical field."""

    target: Int[NDArray[np.int64], " rows"]
    probabilities: Float[Array, "candidates rows classes"]

    @property
    def candidates(self) -> int:
        """How many there are."""
        return len(self.probabilities)

    def score(self, picks: Sequence[int], score: str) -> float:
        """Mean score of the mixture of these picks: ``nll``, or for ``crps`` its sibling on classes, the Brier score."""
        mixed = self.probabilities[list(picks)].mean(axis=0)
        of_label = mixed[np.arange(len(self.target)), self.target]
        if score == "nll":
            return float(-np.log(np.maximum(of_label, TINY)).mean())
        return float(((mixed**2).sum(axis=1) - 2.0 * of_label + 1.0).mean())

    def diversity(self, weights: Float[Array, " candidates"]) -> dict[str, float]:
        """As for numbers, with the distance of the probabilities from the truth as the error of every class."""
        from hydragnn.ensemble.selection import NumberEvidence

        truth = np.eye(self.probabilities.shape[2])[self.target].ravel()
        means = self.probabilities.reshape(self.candidates, -1)
        return NumberEvidence(target=truth, means=means, variances=np.zeros_like(means)).diversity(weights)


def member_probabilities(members: Sequence[Distribution]) -> Float[Array, "members items *shape_and_classes"]:
    """What every member predicts."""
    for one in members:
        assert isinstance(one, Categorical), f"{one.kind} is not a distribution of classes"
    return np.stack([one.probabilities.numpy() for one in members if isinstance(one, Categorical)])


def entropy(probabilities: Float[Array, "... classes"]) -> Float[Array, "..."]:
    """Entropy over the last axis, in nats.

    >>> entropy(np.array([[0.5, 0.5], [1.0, 0.0]])).round(4)
    array([0.6931, 0.    ])
    """
    return np.asarray(entr(probabilities).sum(axis=-1))


def temper(probabilities: Float[Array, "... classes"], temperature: float) -> Float[Array, "... classes"]:
    """The probabilities whose logarithms are those of ``probabilities`` over the temperature, up to a constant."""
    return np.asarray(softmax(np.log(np.maximum(probabilities, TINY)) / temperature, axis=-1))


def others(probabilities: Float[Array, "... classes"]) -> Float[Array, "... classes"]:
    """The probability of all other classes together; summed up, since 1 minus a probability near 1 has no digits left.

    >>> others(np.array([0.2, 0.3, 0.5]))
    array([0.8, 0.7, 0.5])
    """
    return probabilities @ (1.0 - np.eye(probabilities.shape[-1]))


def fit_classes(
    field: Field,
    labels: Labels,
    probabilities: Float[Array, "items *shape_and_classes"],
    graph: Owners,
    *,
    nominal: float,
    temperature: float | None = None,
) -> ClassCalibration:
    """The threshold of the sets (LAC) from labelled items, for probabilities at a temperature, by default their own best.

    All components of a field share both. InputError where there is no labelled item.
    """
    if not 0.0 < nominal < 1.0:
        raise InputError(f"the nominal level is {nominal:g}; give a fraction between 0 and 1, for example 0.9")
    truth, flat = _rows(field, labels, probabilities)
    temperature = fit_temperature(field, labels, probabilities) if temperature is None else temperature
    scores = others(temper(flat, temperature))[np.arange(len(truth)), truth]
    threshold, guaranteed = conformal_quantile(scores, np.repeat(graph, field.width), nominal)
    return ClassCalibration(
        temperature=temperature,
        threshold=threshold,
        nominal=nominal,
        graphs=len(np.unique(graph)),
        guaranteed=guaranteed,
    )


def fit_temperature(field: Field, labels: Labels, probabilities: Float[Array, "items *shape_and_classes"]) -> float:
    """The temperature of least NLL on labelled items (Guo et al. 2017, arXiv:1706.04599); InputError without any."""
    truth, flat = _rows(field, labels, probabilities)
    logs, row = np.log(np.maximum(flat, TINY)), np.arange(len(truth))

    def nll(log_temperature: float) -> float:
        return float(-log_softmax(logs / np.exp(log_temperature), axis=1)[row, truth].mean())

    reach = np.log(HOTTEST)
    return float(np.exp(minimize_scalar(nll, bounds=(-reach, reach), method="bounded").x))


def _rows(field: Field, labels: Labels, probabilities: Array) -> tuple[Int[NDArray[np.int64], " rows"], Rows]:
    """True classes and probabilities of all components, one row each; InputError where there is none."""
    if not len(labels):
        raise InputError(f"field {field.name} has no labelled graph to calibrate on; enlarge the validation part")
    return labels.ravel().astype(np.int64), probabilities.reshape(-1, field.classes)


def class_scores(probabilities: Rows, labels: Int[NDArray[np.int64], " rows"]) -> dict[str, float]:
    """accuracy, balanced accuracy, error rate, NLL, Brier score, expected calibration error and AUROC."""
    p, y = torch.from_numpy(np.ascontiguousarray(probabilities)), torch.from_numpy(labels)
    nll = -p[torch.arange(len(y)), y].clamp_min(TINY).log()
    values = class_values(class_sums(p, nll, y).numpy(), p.shape[1])
    scores = {name: value for name, value in values.items() if value is not None and name != "count"}
    area = auroc(probabilities, labels)
    return scores if np.isnan(area) else {**scores, "auroc": area}


def auroc(probabilities: Rows, labels: Int[NDArray[np.int64], " rows"]) -> float:
    """Area under the ROC curve of each class against the rest, averaged over the classes that occur; NaN for one class alone.

    The chance that a row of the class has a higher probability of it than a row of another class; ties count half.

    >>> auroc(np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]), np.array([0, 1, 1]))
    1.0
    """
    areas = []
    for number in np.unique(labels):
        of_class = labels == number
        positive, negative = int(of_class.sum()), int((~of_class).sum())
        if negative:
            ranks = rankdata(probabilities[:, number])[of_class].sum()
            areas.append((ranks - positive * (positive + 1) / 2) / (positive * negative))
    return float(np.mean(areas)) if areas else float("nan")
