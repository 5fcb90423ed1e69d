"""What a report is about, as plain values: read once by ``collect``, then only looked at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.graphs.texts import Texts
from hydragnn.hpo import Timeline
from hydragnn.record import RunRecord

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors of one predictor for one field on one part, in the field's unit; NaN where unknown."""

    name: str
    values: Mapping[str, float] = member(default_factory=dict)

    @property
    def error(self) -> float:
        """The error that is compared first: mean absolute error of numbers, share of wrong labels of classes."""
        return self.values.get("mae", self.values.get("error_rate", math.nan))

    def __getitem__(self, metric: str) -> float:
        return self.values.get(metric, math.nan)


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldScores:
    """How well one field is predicted on one part, by the trivial predictor, every member and the ensemble."""

    field: str
    unit: str
    trivial: Scores
    members: tuple[Scores, ...]
    best_member: Scores | None
    ensemble: Scores | None
    uncertainty: Mapping[str, float] = member(default_factory=dict)
    confusion: tuple[tuple[int, ...], ...] = ()
    """Labels by true class (rows) and predicted class; empty for numbers."""

    @property
    def categorical(self) -> bool:
        """Classes, not numbers."""
        return "error_rate" in self.of_model.values

    @property
    def of_model(self) -> Scores:
        """What a user would work with: the ensemble, or the best single model where there is none."""
        best_of_all = self.ensemble or self.best_member
        return best_of_all if best_of_all is not None else self.trivial


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Points:
    """Targets and predictions of one field on one part, one row per number; ``std`` is the calibrated deviation."""

    field: str
    unit: str
    target: Values
    mean: Values
    graph: NDArray[np.int64]
    std: Values | None = None
    lower: Values | None = None
    upper: Values | None = None

    @property
    def error(self) -> Values:
        """Prediction minus target."""
        return self.mean - self.target

    @property
    def spread(self) -> Values | None:
        """Calibrated standard deviation; None where the prediction has none."""
        return self.std if self.std is not None and float(self.std.max(initial=0.0)) > 0 else None

    @property
    def covered(self) -> NDArray[np.bool_] | None:
        """Return True for each target inside its interval; None where there are no intervals."""
        if self.lower is None or self.upper is None:
            return None
        return np.asarray((self.target >= self.lower) & (self.target <= self.upper))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassPoints:
    """Labels and predicted probabilities of one categorical field on one part, one row per label."""

    field: str
    target: NDArray[np.int64]
    probability: Values
    graph: NDArray[np.int64]
    set: NDArray[np.bool_] | None = None
    """Which classes belong to each conformal set; None where there are none."""

    @property
    def label(self) -> NDArray[np.int64]:
        """The likeliest class."""
        return self.probability.argmax(axis=1)

    @property
    def covered(self) -> NDArray[np.bool_] | None:
        """Return True for each label in its set; None where there are no sets."""
        return None if self.set is None else self.set[np.arange(len(self.target)), self.target]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Everything known about predictions on one part (test, valid)."""

    name: str
    scores: tuple[FieldScores, ...]
    points: Mapping[str, Points] = member(default_factory=dict)
    class_points: Mapping[str, ClassPoints] = member(default_factory=dict)

    @property
    def all_points(self) -> Mapping[str, Points | ClassPoints]:
        """Rows of every field, in the order of the scores."""
        both: dict[str, Points | ClassPoints] = {**self.points, **self.class_points}
        return {scores.field: both[scores.field] for scores in self.scores if scores.field in both}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Member:
    """One model of an ensemble."""

    name: str
    weight: float
    record: RunRecord | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EnsembleFacts:
    """An ensemble folder as read."""

    folder: Path
    nominal: float
    members: tuple[Member, ...]
    parts: Mapping[str, Part]
    description: Mapping[str, Any]
    branch: str
    """The branch that it predicts; empty where there are no branches."""
    calibration: Mapping[str, str]
    """How the intervals of every field are made, in words."""
    speed: float
    """Graphs per second that all members together predict; NaN where unknown."""
    failed: Mapping[str, Mapping[str, str]]
    """Graphs that could not be predicted, by part, with the reason."""
    domain: "DomainFacts | None" = None

    @property
    def cross_validated(self) -> bool:
        """Every graph was held out by some members and trained others."""
        return "held-out" in self.parts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DomainFacts:
    """Which graphs of the parts are outside the training domain."""

    allowed: float
    """Share that may be flagged of graphs like those of training."""
    flagged: Mapping[str, float]
    """Share by part."""
    by_detector: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, Values]
    """By part, one per graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trial:
    """One configuration of a search and what became of it; objective is None where it never got a value."""

    number: int
    folder: Path
    parameters: Mapping[str, Any]
    objective: float | None
    record: RunRecord | None
    status: str
    reason: str = ""
    failure_kind: str = ""

    @property
    def architecture(self) -> str:
        """The kind of its model; empty where neither its record nor the search says it."""
        model = self.record.config.get("model", {}) if self.record else {}
        return str(self.parameters.get("model.kind") or model.get("kind", ""))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CampaignFacts:
    """A campaign folder as read; trials in the order of their numbers."""

    folder: Path
    config: Mapping[str, Any]
    search: Mapping[str, Any]
    objective: str
    rungs: tuple[int, ...]
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    seconds: float
    timeline: Timeline = member(default_factory=Timeline)
    left_out: Mapping[str, str] = member(default_factory=dict)
    """Architectures that the default space was without, each with the reason."""
    sampler: str = ""
    """Which one found configurations, and why where the program chose it."""

    @property
    def scored(self) -> list[Trial]:
        """Trials with a value of the objective."""
        return [trial for trial in self.trials if trial.objective is not None]

    def thin(self, most: int = 400) -> "CampaignFacts":
        """What pictures show that have a line for every trial: where there are too many, the best and an even sample of the others."""
        if len(self.trials) <= most:
            return self
        best = sorted(self.scored, key=lambda trial: trial.objective or 0.0)[: most // 4]
        numbers = {trial.number for trial in best}
        others = [trial for trial in self.trials if trial.number not in numbers]
        sample = [others[int(k)] for k in np.linspace(0, len(others) - 1, most - len(best))]
        return replace(self, trials=tuple(sorted([*best, *sample], key=lambda trial: trial.number)))

    @property
    def measure(self) -> str:
        """The objective without the weights that may follow it in brackets."""
        return self.objective.split(" (")[0]

    @property
    def best(self) -> Trial | None:
        """The trial with the smallest objective."""
        return min(self.scored, key=lambda trial: trial.objective or 0.0, default=None)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunFacts:
    """A run folder as read."""

    folder: Path
    record: RunRecord


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Target:
    """Values of one target field, drawn from a sample of every part."""

    field: str
    unit: str
    on: str
    components: int
    parts: Mapping[str, Values]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DataFacts:
    """The store behind the report; ``sampled`` graphs were read for compositions and targets, sizes are complete."""

    path: Path
    fingerprint: str
    dim: int
    nodes: NDArray[np.int64]
    edges: NDArray[np.int64]
    parts: Mapping[str, int]
    fields: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, Any]
    notes: tuple[str, ...]
    composition: Mapping[str, float]
    composition_of: str
    targets: tuple[Target, ...]
    sampled: int
    names: Texts = member(default_factory=lambda: Texts(()))
    """Of all graphs; empty where they have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """One field's error with and without edges, beside the trivial predictor."""

    field: str
    unit: str
    with_edges: float
    without_edges: float
    trivial: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facts:
    """All that one report shows; what does not apply is None or empty."""

    title: str
    kind: str
    folder: str
    config: Mapping[str, Any]
    """The configuration as it was asked for; a search's base may be incomplete without a trial's values."""
    resolved: Mapping[str, Any]
    """The complete configuration of the run, of the best trial or of the first member."""
    branch: str = ""
    """The branch that an ensemble predicts; empty where there are no branches, and where all are shown."""
    stores: Mapping[str, str] = member(default_factory=dict)
    """The store of every branch; empty where there are no branches."""
    run: RunFacts | None = None
    campaign: CampaignFacts | None = None
    ensemble: EnsembleFacts | None = None
    data: DataFacts | None = None
    data_problem: str = ""
    parts: Mapping[str, Part] = member(default_factory=dict)
    ablation: tuple[Ablation, ...] = ()

    @property
    def other_stores(self) -> list[str]:
        """The data sets from which the trunk learned beside that of ``branch``: ``metals (metals.h5)``."""
        return [f"{name} ({store})" for name, store in self.stores.items() if self.branch and name != self.branch]

    @property
    def verdict_part(self) -> Part | None:
        """The part that the verdict is about: test, or what members held out where there is none, or validation."""
        return self.parts.get("test") or self.parts.get("held-out") or self.parts.get("valid")
