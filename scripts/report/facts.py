"""Contents of a report as plain values, read once by ``collect``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.places import StorePlace
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.texts import Texts
from hydragnn.hpo import Timeline
from hydragnn.record import RunRecord
from hydragnn.scripts.report.words import join

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors of one predictor for one field on one part."""

    name: str
    values: Mapping[str, float] = member(default_factory=dict)

    @property
    def error(self) -> float:
        """Return the mean absolute error, of classes the share of wrong labels."""
        return self.values.get("mae", self.values.get("error_rate", math.nan))

    def __getitem__(self, metric: str) -> float:
        return self.values.get(metric, math.nan)


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldScores:
    """Errors of one field on one part: trivial predictor, members and ensemble."""

    field: str
    unit: str
    trivial: Scores
    members: tuple[Scores, ...]
    best_member: Scores | None
    ensemble: Scores | None
    uncertainty: Mapping[str, float] = member(default_factory=dict)
    confusion: tuple[tuple[int, ...], ...] = ()
    """Labels by true class (rows) and predicted class; empty for numbers."""
    baselines: tuple[Scores, ...] = ()
    """Simple predictors that read inputs: ``BASELINES``."""

    @property
    def categorical(self) -> bool:
        """Return True for classes, False for numbers."""
        return "error_rate" in self.of_model.values

    @property
    def of_model(self) -> Scores:
        """Return the scores of the ensemble, else of the best model."""
        return self.ensemble or self.best_member or self.trivial

    @property
    def best_baseline(self) -> Scores | None:
        """Return the simple predictor with the smallest error, if any has one."""
        measured = [one for one in self.baselines if math.isfinite(one.error)]
        return min(measured, key=lambda one: one.error, default=None)

    @property
    def lost_to(self) -> Scores | None:
        """Return the simple predictor that is better than both model and trivial predictor."""
        best = self.best_baseline
        return best if best is not None and best.error < min(self.of_model.error, self.trivial.error) else None

    @property
    def better_member(self) -> Scores | None:
        """Return the best member if the ensemble is 2 % worse."""
        best = self.best_member if self.ensemble is not None and len(self.members) > 1 else None
        return best if best is not None and self.of_model.error > 1.02 * best.error else None

    @property
    def ratio(self) -> float:
        """Return the model's error over the trivial predictor's; NaN if unknown."""
        base = self.trivial.error
        return self.of_model.error / base if math.isfinite(base) and base > 0 else math.nan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Points:
    """Targets and predictions of one field, one row per number."""

    field: str
    unit: str
    target: Values
    mean: Values
    graph: NDArray[np.int64]
    std: Values | None = None
    """Calibrated deviations."""
    lower: Values | None = None
    upper: Values | None = None

    @property
    def error(self) -> Values:
        """Return prediction minus target."""
        return self.mean - self.target

    @property
    def spread(self) -> Values | None:
        """Return calibrated standard deviations; None where predictions have none."""
        return self.std if self.std is not None and float(self.std.max(initial=0.0)) > 0 else None

    @property
    def covered(self) -> Values | None:
        """Return 1 for each target inside its interval, NaN where that is unknown; None without intervals."""
        if self.lower is None or self.upper is None or not len(self.target) or np.isnan(self.upper).all():
            return None
        inside = (self.target >= self.lower) & (self.target <= self.upper)
        return np.where(np.isnan(self.upper), np.nan, inside.astype(np.float64))

    def per_node(self, nodes: NDArray[np.int64]) -> "Points":
        """Return targets and predictions over the nodes of their graphs."""
        own, unit = nodes[self.graph], f"{self.unit}/atom" if self.unit == "eV" else f"{self.unit} per node".strip()
        return Points(field=self.field, unit=unit, target=self.target / own, mean=self.mean / own, graph=self.graph)

    def graph_errors(self) -> "GraphErrors":
        """Return the errors of every graph, its numbers as one vector."""
        numbers, group = np.unique(self.graph, return_inverse=True)
        values = (np.abs(self.error), self.error**2, self.target**2)
        absolute, squared, size = (np.bincount(group, weights=own) for own in values)
        count, relative = np.bincount(group), np.sqrt(squared / np.where(size > 0, size, np.nan))
        return GraphErrors(numbers, absolute / count, np.sqrt(squared / count), relative)


class GraphErrors(NamedTuple):
    """Errors of one field by graph."""

    number: NDArray[np.int64]
    mae: Values
    rmse: Values
    relative: Values
    """Relative L2: norm of the error over norm of the truth; NaN where the truth is zero."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClassPoints:
    """Labels and probabilities of one field, one row per label."""

    field: str
    target: NDArray[np.int64]
    probability: Values
    graph: NDArray[np.int64]
    set: NDArray[np.bool_] | None = None
    """Classes of each conformal set; None without sets."""

    @property
    def label(self) -> NDArray[np.int64]:
        """Return the likeliest classes."""
        return self.probability.argmax(axis=1)

    @property
    def covered(self) -> Values | None:
        """Return 1 for each label in its set; None without sets."""
        return None if self.set is None else self.set[np.arange(len(self.target)), self.target].astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Scores and predictions on one part of the data (test, valid)."""

    name: str
    scores: tuple[FieldScores, ...]
    points: Mapping[str, Points | ClassPoints] = member(default_factory=dict)

    @property
    def numbers(self) -> dict[str, Points]:
        """Return the points of numeric fields."""
        return {name: points for name, points in self.points.items() if isinstance(points, Points)}

    @property
    def classes(self) -> dict[str, ClassPoints]:
        """Return the points of categorical fields."""
        return {name: points for name, points in self.points.items() if isinstance(points, ClassPoints)}


def evaluation_part(parts: Mapping[str, Part]) -> Part | None:
    """Return the test part, else held-out graphs, else validation."""
    return parts.get("test") or parts.get("held-out") or parts.get("valid")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Member:
    """One model of an ensemble."""

    name: str
    weights: Mapping[str, float]
    """By field."""
    record: RunRecord | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DomainFacts:
    """Graphs of every part that lie outside the training domain."""

    allowed: float
    """Share that may be flagged of graphs like those of training."""
    expected: float
    """Share that is; more where held-out graphs are few."""
    flagged: Mapping[str, float]
    """Share by part."""
    by_detector: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, Values]
    """By part, p-values of its graphs; empty where unknown."""
    excesses: Mapping[str, Values]
    """By part, what each graph exceeds in each detector."""

    def reasons(self, part: "Part") -> dict[int, str]:
        """Return the detectors that flag each graph, if graphs are known."""
        graphs, first = max(
            (np.unique(one.graph, return_index=True) for one in part.points.values()), key=lambda own: len(own[0])
        )
        p_values = self.scores.get(part.name, np.zeros(0))
        if len(graphs) != len(p_values):
            return {}
        names, reasons = list(self.by_detector[part.name]), {}
        for graph, p_value, own in zip(graphs[np.argsort(first)], p_values, np.nan_to_num(self.excesses[part.name])):
            most = [names[k] for k in np.argsort(-own, kind="stable")[:3] if own[k] >= own.max() / 2]
            reasons[int(graph)] = join(most) if p_value <= self.allowed + 1e-12 else ""
        return reasons


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EnsembleFacts:
    """Contents of an ensemble folder."""

    folder: Path
    nominal: float
    members: tuple[Member, ...]
    parts: Mapping[str, Part]
    description: Mapping[str, Any]
    branch: str
    """The branch that it predicts; empty without branches."""
    calibration: Mapping[str, str]
    """One sentence on the intervals of every field."""
    speed: float
    """Graphs per second that all members together predict; NaN where unknown."""
    failed: Mapping[str, Mapping[str, str]]
    """Graphs that could not be predicted, by part, with the reason."""
    domain: DomainFacts | None = None

    @property
    def selection(self) -> Mapping[str, Any]:
        """Return how the members were selected; empty where unknown."""
        return self.description.get("selection") or {}

    @property
    def cross_validated(self) -> bool:
        """Return True where every graph was held out by some members."""
        return "held-out" in self.parts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trial:
    """One configuration of a search; its objective may be None."""

    number: int
    folder: Path
    parameters: Mapping[str, Any]
    objective: float | None
    record: RunRecord | None
    status: str
    reason: str = ""
    failure_kind: str = ""
    speed: float = 0.0
    """Graphs of training per second in the first segment; 0 where unknown."""

    @property
    def architecture(self) -> str:
        """Return the kind of its model; empty where unknown."""
        model = self.record.config.get("model", {}) if self.record else {}
        return str(self.parameters.get("model.kind") or model.get("kind", ""))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CampaignFacts:
    """Contents of a campaign folder; trials in the order of their numbers."""

    folder: Path
    config: Mapping[str, Any]
    search: Mapping[str, Any]
    objective: str
    rungs: tuple[int, ...]
    trials: tuple[Trial, ...]
    importances: Mapping[str, float]
    timeline: Timeline = member(default_factory=Timeline)
    left_out: Mapping[str, str] = member(default_factory=dict)
    """Architectures that the default space lacks, each with the reason."""
    sampler: str = ""

    @property
    def scored(self) -> list[Trial]:
        """Return the trials with a value of the objective."""
        return [trial for trial in self.trials if trial.objective is not None]

    @property
    def ranked(self) -> list[Trial]:
        """Return the scored trials, best first."""
        return sorted(self.scored, key=lambda trial: trial.objective or 0.0)

    @property
    def best(self) -> Trial | None:
        """Return the trial with the smallest objective."""
        return next(iter(self.ranked), None)

    @property
    def measure(self) -> str:
        """Return the objective without the weights that may follow it in brackets."""
        return self.objective.split(" (")[0]

    def thin(self, most: int = 400) -> "CampaignFacts":
        """Return the best trials and an even sample of the others."""
        if len(self.trials) <= most:
            return self
        best = self.ranked[: most // 4]
        numbers = {trial.number for trial in best}
        others = [trial for trial in self.trials if trial.number not in numbers]
        sample = [others[int(k)] for k in np.linspace(0, len(others) - 1, most - len(best))]
        return replace(self, trials=tuple(sorted([*best, *sample], key=lambda trial: trial.number)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Target:
    """Values of one target field, from a sample of every part."""

    field: str
    unit: str
    on: str
    components: int
    parts: Mapping[str, Values]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DataFacts:
    """Contents of a store; compositions and targets are from a sample."""

    path: StorePlace
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartGraphs:
    """Graphs of the evaluated part with the item behind every number."""

    numbers: NDArray[np.int64]
    """In the store, ascending; an even sample where there are many."""
    batch: GraphBatch
    items: Mapping[str, NDArray[np.int64]]
    """By field of nodes or edges, the item of each row of its points; -1 where unknown."""

    def place(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of graphs in the batch; -1 for others."""
        place = np.minimum(np.searchsorted(self.numbers, graphs), len(self.numbers) - 1)
        return np.where(self.numbers[place] == graphs, place, -1)

    @property
    def species(self) -> NDArray[np.int64] | None:
        """Return the atomic number of every node; None without atoms."""
        return self.batch[ATOMIC_NUMBERS].numpy() if ATOMIC_NUMBERS in self.batch.fields else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablation:
    """Errors of one field with edges, without edges, and trivial."""

    field: str
    unit: str
    with_edges: float
    without_edges: float
    trivial: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facts:
    """Contents of one report; what does not apply is None or empty."""

    title: str
    kind: str
    folder: str
    config: Mapping[str, Any]
    """The configuration as it was written; a search's base may lack a trial's values."""
    resolved: Mapping[str, Any]
    """The complete configuration of the run, of the best trial or of the first member."""
    branch: str = ""
    """The branch that an ensemble predicts; empty without branches, and where all are shown."""
    stores: Mapping[str, str] = member(default_factory=dict)
    """The store of every branch; empty without branches."""
    run: RunRecord | None = None
    campaign: CampaignFacts | None = None
    ensemble: EnsembleFacts | None = None
    data: DataFacts | None = None
    data_problem: str = ""
    parts: Mapping[str, Part] = member(default_factory=dict)
    ablation: tuple[Ablation, ...] = ()
    graphs: PartGraphs | None = None
    """Of the part that the verdict is about; None without its store."""

    @property
    def outside(self) -> dict[int, str]:
        """Return ``DomainFacts.reasons`` of the evaluated part."""
        domain, part = self.ensemble.domain if self.ensemble else None, self.evaluation_part
        return domain.reasons(part) if domain and part else {}

    @property
    def units(self) -> dict[str, str]:
        """Return the units of all fields with scores."""
        return {scores.field: scores.unit for part in self.parts.values() for scores in part.scores}

    def name_of(self, graph: int) -> str:
        """Return the name of a graph; empty without one."""
        return self.data.names[graph] if self.data is not None and graph < len(self.data.names) else ""

    @property
    def other_stores(self) -> list[str]:
        """Return the other data sets that trained the trunk: ``metals (metals.h5)``."""
        return [f"{name} ({store})" for name, store in self.stores.items() if self.branch and name != self.branch]

    @property
    def evaluation_part(self) -> Part | None:
        """Return the part that the verdict is about."""
        return evaluation_part(self.parts)

    @property
    def nominal(self) -> float:
        """Return the share of values that intervals promise to hold."""
        return self.ensemble.nominal if self.ensemble else 0.9
