"""Contents of a report, which ``collect`` reads once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.places import StorePlace
from hydragnn.datasets import GraphStore
from hydragnn.datasets.store import Sizes
from hydragnn.ensemble import Evaluation, Manifest, TargetEvaluation
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.texts import NAME
from hydragnn.hpo import CampaignHistory, TrialHistory
from hydragnn.hpo.fronts import Bounds, violation
from hydragnn.hpo.objective import bounds_of, goals_of, quantity_text
from hydragnn.hpo.records import Effects
from hydragnn.hpo.scheduling.state import FAILED
from hydragnn.importing.page import Import
from hydragnn.record import RunRecord
from hydragnn.scripts.report.words import join

Values = NDArray[np.float64]
Scores = Mapping[str, float | None]
"""Metrics of one predictor for one field on one part, by name."""


def metric(scores: Scores | None, name: str) -> float:
    """Return one metric; NaN where it is unknown.

    >>> metric({"r2": None}, "r2"), metric({"mae": 0.5}, "mae")
    (nan, 0.5)
    """
    value = (scores or {}).get(name)
    return math.nan if value is None else value


def error(scores: Scores | None) -> float:
    """Return the mean absolute error, of classes the share of wrong labels."""
    return metric(scores, "mae" if "mae" in (scores or {}) else "error_rate")


def model_scores(one: TargetEvaluation) -> Scores:
    """Return the scores of the ensemble, else of the best model."""
    return one.ensemble or one.members.get(best_member(one)) or one.trivial


def is_categorical(one: TargetEvaluation) -> bool:
    """Return True for classes, False for numbers."""
    return "error_rate" in model_scores(one)


BETTER = 1.02
"""Ratio of errors from which a part is better than the ensemble."""


def smallest_error(predictors: Mapping[str, Scores]) -> str:
    """Return the predictor with the smallest error; empty without any."""
    finite = [name for name, scores in predictors.items() if math.isfinite(error(scores))]
    return min(finite, key=lambda name: error(predictors[name]), default="")


def best_member(one: TargetEvaluation) -> str:
    """Return the member with the smallest error; empty where members predicted different graphs."""
    return one.best_member and (smallest_error(one.members) or one.best_member)


def predictors(one: TargetEvaluation) -> dict[str, Scores]:
    """Return scores of the trivial predictor, best simple one, best member and ensemble."""
    simple, member = one.baselines.get(smallest_error(one.baselines)), one.members.get(best_member(one))
    best = "best member" if one.ensemble else "model"
    every = {"trivial": one.trivial, "best simple": simple, best: member, "ensemble": one.ensemble}
    return {name: scores for name, scores in every.items() if scores}


def better_baseline(one: TargetEvaluation) -> str:
    """Return the simple predictor that beats model and trivial one, if any.

    An ensemble by 2 %, since it may be a member.
    """
    best, own = smallest_error(one.baselines), error(model_scores(one)) / (BETTER if one.ensemble else 1.0)
    return best if best and error(one.baselines[best]) < min(own, error(one.trivial)) else ""


def better_member(one: TargetEvaluation) -> str:
    """Return the best member if 2 % better; else empty."""
    best = best_member(one) if one.ensemble and len(one.members) > 1 else ""
    return best if best and error(one.ensemble) > BETTER * error(one.members[best]) else ""


def ratio(one: TargetEvaluation) -> float:
    """Return the model's error over the trivial predictor's; NaN if unknown."""
    base = error(one.trivial)
    return error(model_scores(one)) / base if math.isfinite(base) and base > 0 else math.nan


class GraphErrors(NamedTuple):
    """Errors of one field by graph."""

    number: NDArray[np.int64]
    mae: Values
    rmse: Values
    relative: Values
    """Relative L2: norm of the error over norm of the truth; NaN where the truth is zero."""


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
        """Return 1 inside an interval, NaN if unknown; None without intervals."""
        if self.lower is None or self.upper is None or not len(self.target) or np.isnan(self.upper).all():
            return None
        inside = (self.target >= self.lower) & (self.target <= self.upper)
        return np.where(np.isnan(self.upper), np.nan, inside.astype(np.float64))

    def graph_errors(self) -> GraphErrors:
        """Return the errors of every graph, its numbers as one vector."""
        numbers, group = np.unique(self.graph, return_inverse=True)
        values = (np.abs(self.error), self.error**2, self.target**2)
        absolute, squared, size = (np.bincount(group, weights=own) for own in values)
        count, relative = np.bincount(group), np.sqrt(squared / np.where(size > 0, size, np.nan))
        return GraphErrors(numbers, absolute / count, np.sqrt(squared / count), relative)


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
    """One part of the data with its scores and rows."""

    name: str
    scores: Mapping[str, TargetEvaluation]
    points: Mapping[str, Points | ClassPoints]

    @property
    def numbers(self) -> dict[str, Points]:
        """Return the points of numeric fields."""
        return {name: points for name, points in self.points.items() if isinstance(points, Points)}

    @property
    def classes(self) -> dict[str, ClassPoints]:
        """Return the points of categorical fields."""
        return {name: points for name, points in self.points.items() if isinstance(points, ClassPoints)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Campaign:
    """A campaign with the records of its trials, by number."""

    history: CampaignHistory
    records: Mapping[int, RunRecord]
    importances: Mapping[str, float]
    effects: Effects | None = None
    """None with few results, or without the package ``shap``."""

    @property
    def search(self) -> dict[str, Any]:
        """Return the settings of the search as a table."""
        return self.history.settings.search.to_json()

    @property
    def objective(self) -> str:
        """Return the objective, the first of several, in words."""
        return self.objectives[0]

    @property
    def objectives(self) -> list[str]:
        """Return all objectives in words: ``relative error (energy 1, forces 2)``."""
        return [quantity_text(goal.of) for goal in goals_of(self.history.settings.search.objective)]

    @property
    def bounds(self) -> Bounds:
        """Return the bounds of several objectives; empty for one."""
        return bounds_of(self.history.settings.search.objective)

    @property
    def measure(self) -> str:
        """Return the objective without the weights that may follow it in brackets."""
        return self.objective.split(" (")[0]

    @property
    def scores(self) -> dict[int, float]:
        """Return the objectives of trials that did not fail, by number."""
        trials = [trial for trial in self.history.trials if trial.status not in FAILED]
        return {trial.number: trial.value for trial in trials if trial.value is not None}

    @property
    def ranked(self) -> list[TrialHistory]:
        """Return trials with an objective: those within bounds first, by value."""
        scores = self.scores
        trials = [trial for trial in self.history.trials if trial.number in scores]
        return sorted(trials, key=lambda one: (violation(one.objectives, self.bounds), one.objectives))

    @property
    def best(self) -> TrialHistory | None:
        """Return the trial with the smallest objective within bounds."""
        return next(iter(self.ranked), None)

    @property
    def best_record(self) -> RunRecord | None:
        """Return the record of the best trial."""
        return self.records.get(self.best.number) if self.best else None


def failure_kind(trial: TrialHistory) -> str:
    """Return the kind of failure that ended a trial; empty for others."""
    return trial.failure.kind if trial.failure and trial.status in FAILED else ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Data:
    """A store with counts of its parts and values of a sample."""

    path: StorePlace
    store: GraphStore = member(repr=False)
    sizes: Sizes
    parts: Mapping[str, int]
    present: Mapping[str, Mapping[str, int]]
    """By field and part, the graphs that have it."""
    labels: Mapping[str, Mapping[str, tuple[int, int]]]
    """By field and part, the numbers that are there, and those that might be."""
    notes: tuple[str, ...] = ()
    targets: Mapping[str, Mapping[str, Values]] = member(default_factory=dict)
    """By target and part, its values in the sample."""
    sampled: int = 0


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Facts:
    """Contents of one report; what does not apply is None or empty."""

    title: str = ""
    kind: str
    folder: str = ""
    config: Mapping[str, Any] = member(default_factory=dict)
    """The configuration as it was written; a search's base may lack a trial's values."""
    resolved: Mapping[str, Any] = member(default_factory=dict)
    """The complete configuration of the run, of the best trial or of the first member."""
    run: RunRecord | None = None
    campaign: Campaign | None = None
    manifest: Manifest | None = None
    """The ensemble, without its training domain."""
    members: Mapping[str, RunRecord] = member(default_factory=dict)
    """Records of the ensemble's members by name, as far as they are there."""
    evaluation: Evaluation
    """Scores of the ensemble, else of the run or best trial; without parts where there are none."""
    points: Mapping[str, Mapping[str, Points | ClassPoints]] = member(default_factory=dict)
    """Rows behind the scores, by part and field."""
    p_values: Mapping[str, Values] = member(default_factory=dict)
    """By part, scores of its graphs in the training domain; empty where unknown."""
    excesses: Mapping[str, Values] = member(default_factory=dict)
    """By part, what each graph exceeds in each detector."""
    branch: str = ""
    """The branch that an ensemble predicts; empty without branches, and where all are shown."""
    stores: Mapping[str, str] = member(default_factory=dict)
    """The store of every branch; empty without branches."""
    origin: Import | None = None
    """Page of its import; None for what was trained here."""
    data: Data | None = None
    data_problem: str = ""
    graphs: PartGraphs | None = None
    """Graphs of the part that the verdict is about; None without its store."""

    @property
    def notes(self) -> list[str]:
        """Return what trainings noted on their data, such as copies in two parts."""
        records = (self.run, self.campaign and self.campaign.best_record, *self.members.values())
        return list(dict.fromkeys(note for record in records if record for note in record.notes))

    @property
    def parts(self) -> dict[str, Part]:
        """Return all parts with scores."""
        scores = self.evaluation.parts
        return {name: Part(name=name, scores=own, points=self.points.get(name, {})) for name, own in scores.items()}

    @property
    def part(self) -> Part | None:
        """Return the part of the verdict: test, held-out graphs or validation."""
        parts = self.parts
        return parts.get("test") or parts.get("held-out") or parts.get("valid")

    @property
    def outside(self) -> dict[int, str]:
        """Return the detectors that flag each graph of the evaluated part."""
        part = self.part
        if part is None or not self.evaluation.domain or not part.points:
            return {}
        of_fields = (np.unique(one.graph, return_index=True) for one in part.points.values())
        graphs, first = max(of_fields, key=lambda own: len(own[0]))
        p_values = self.p_values.get(part.name, np.zeros(0))
        if len(graphs) != len(p_values):
            return {}
        allowed, names = self.evaluation.domain["false_alarms"], list(self.evaluation.domain["detectors"])
        reasons = {}
        for graph, p_value, own in zip(graphs[np.argsort(first)], p_values, np.nan_to_num(self.excesses[part.name])):
            most = [names[k] for k in np.argsort(-own, kind="stable")[:3] if own[k] >= own.max() / 2]
            reasons[int(graph)] = join(most) if p_value <= allowed + 1e-12 else ""
        return reasons

    @property
    def units(self) -> dict[str, str]:
        """Return the units of all fields with scores."""
        return {name: one.unit for scores in self.evaluation.parts.values() for name, one in scores.items()}

    def name_of(self, graph: int) -> str:
        """Return the name of a graph; empty without one."""
        names = self.data.store.texts.get(NAME, ()) if self.data is not None else ()
        return names[graph] if graph < len(names) else ""
