"""Verdict at the top of a report: rules with stated thresholds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hydragnn.ensemble import TargetEvaluation
from hydragnn.scripts.report.facts import (
    ClassPoints,
    Facts,
    Part,
    Points,
    best_member,
    better_baseline,
    better_member,
    error,
    metric,
    model_scores,
    predictors,
    ratio,
)
from hydragnn.scripts.report.origin import failures_of
from hydragnn.scripts.report.words import join, per_node, plain_number, with_unit
from hydragnn.training.baselines import BASELINES

Grade = Literal["good", "fair", "poor", "unknown"]

USEFUL, WEAK = 0.5, 0.9  # error / error of the trivial predictor
NARROW, BROAD = 0.03, 0.08  # |coverage - nominal|
RANKS, BARELY_RANKS = 0.5, 0.2  # Spearman correlation of spread and error

THRESHOLDS = (
    f"Error: good below {USEFUL:g} times the error of the trivial predictor (the mean of the training part; of energies with reference values the composition; of forces zero), "
    f"fair below {WEAK:g}, poor above; at most fair where a simple baseline has a smaller error. "
    f"Coverage: good within {NARROW * 100:g} percentage points of the promise, or within {BROAD * 100:g} where that is less "
    "than two standard errors (whole graphs counted, since values of one graph stand or fall together); "
    f"fair within {BROAD * 100:g} points or two standard errors; poor beyond. Fewer than 20 graphs are too few to judge. "
    f"Spread: good if its rank correlation with the error is at least {RANKS:g}, fair from {BARELY_RANKS:g}. "
    "A field is as good as the worse of error and coverage; the whole is as good as its worst field."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One graded statement."""

    grade: Grade
    sentence: str
    short: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldVerdict:
    """Verdict on one field."""

    field: str
    scores: TargetEvaluation
    error: Statement
    coverage: Statement
    spread: Statement
    observed: float | None
    grade: Grade

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Return predictors with their errors, and these in percent of the largest."""
        errors = [(name, error(scores)) for name, scores in predictors(self.scores).items()]
        longest = max((value for _, value in errors if math.isfinite(value)), default=0.0) or 1.0
        return [(name, value, 100 * value / longest if math.isfinite(value) else 0.0) for name, value in errors]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Verdict on the whole."""

    grade: Grade
    headline: str
    explanation: str
    part: str
    fields: tuple[FieldVerdict, ...]
    cautions: tuple[str, ...]


def coverage_error(points: Points | ClassPoints, nominal: float) -> float:
    """Return the standard error of coverage when whole graphs are drawn.

    The design effect (Kish 1965) inflates the binomial error; where hits do not vary it is the rows per graph.
    """
    covered = points.covered
    if covered is None or not len(covered):
        return math.nan
    finite = np.isfinite(covered)
    covered = covered[finite]
    _, group = np.unique(points.graph[finite], return_inverse=True)
    size = np.bincount(group).astype(np.float64)
    hits = np.bincount(group, weights=covered)
    rows, share = len(covered), float(covered.mean())
    binomial = share * (1 - share) / rows
    clustered = float(((hits - size * share) ** 2).sum()) / rows**2
    effect = clustered / binomial if binomial > 0 else rows / len(size)
    effect = min(max(1.0, effect), max(1.0, rows / len(size)) * 2)
    return math.sqrt(nominal * (1 - nominal) / rows * effect)


def error_finding(one: TargetEvaluation) -> Statement:
    """Compare the error with those of simpler predictors and the best member."""
    share, own = ratio(one), error(model_scores(one))
    if not math.isfinite(share):
        return Statement(grade="unknown", short="not known", sentence="There is no trivial predictor to compare with.")
    if share == 0:
        sentence = "no error at all; make sure that the targets are not among the inputs."
    elif share < WEAK:
        sentence = f"{plain_number(1 / share)} times smaller than the trivial predictor's error."
    else:
        sentence = f"{'hardly' if share < 1 else 'no'} better than the trivial predictor."
    of_node = metric(model_scores(one), "mae_per_node")
    if math.isfinite(of_node):
        sentence += f" It is {per_node(of_node, one.unit)}."
    best = one.members.get(best_member(one))
    if one.ensemble and best is not None and len(one.members) > 1 and share > 0:
        gain = 1 - own / error(best) if error(best) > 0 else 0.0
        side = f"{abs(gain) * 100:.0f} % {'below' if gain >= 0 else 'above'}"
        sentence += f" {side if abs(gain) >= 0.005 else 'Level with'} its best member"
        worse = better_member(one)
        sentence += f", {worse}, which alone predicts these graphs better." if worse else "."
    simple = better_baseline(one)
    if simple:
        errors = f"{plain_number(error(one.baselines[simple]))} against {plain_number(own)}"
        who = "A simpler predictor"
        advice = "Train on more graphs, give them other inputs, or search settings of the model."
        if simple not in BASELINES:
            who, advice = "A model of others", "Predict with it, or train on labels of it (hydragnn data label)."
        errors = with_unit(errors, one.unit, "{0} {1}")
        sentence += f" {who} is better: {BASELINES.get(simple, simple)}, {errors}. {advice}"
    return Statement(
        grade="good" if share < USEFUL and not simple else "fair" if share < WEAK else "poor",
        short=f"{share * 100:.{0 if share >= 0.1 else 1}f} % of trivial",
        sentence=sentence,
    )


def coverage_finding(points: Points | ClassPoints | None, observed: float | None, nominal: float) -> Statement:
    """Compare the share of values inside their intervals with the promise."""
    if observed is None or not math.isfinite(observed):
        return Statement(grade="unknown", sentence="There are no intervals to check.")
    promise, miss = f"{nominal * 100:.0f} %", observed - nominal
    graphs = len(np.unique(points.graph)) if points is not None else 0
    chance = 2 * coverage_error(points, nominal) if points is not None else 0.0
    grade: Grade = "good" if abs(miss) <= NARROW else "fair" if abs(miss) <= BROAD else "poor"
    if points is not None and graphs < 20:
        grade, sentence = "unknown", f"{graphs} graphs are too few to judge coverage."
    elif grade == "good":
        sentence = f"The {promise} intervals keep their promise."
    elif abs(miss) <= chance:
        grade = "good" if abs(miss) <= BROAD else "fair"
        side = f"{abs(miss) * 100:.0f} points {'below' if miss < 0 else 'above'} the promise"
        sentence = f"{side}; with {graphs} graphs, chance alone allows {chance * 100:.0f}."
    else:
        side = "narrow: the model is overconfident" if miss < 0 else "wide: the model is more careful than it need be"
        sentence = f"Intervals are {'somewhat' if grade == 'fair' else 'much'} too {side}."
    unknown = float(np.isnan(points.covered).mean()) if points is not None and points.covered is not None else 0.0
    if unknown:
        sentence += f" {unknown * 100:.{int(unknown < 0.01)}f} % of values lie too far outside the training data for an interval."
    return Statement(grade=grade, sentence=sentence)


def spread_finding(spearman: float | None) -> Statement:
    """Grade how well the spread separates bad predictions from good ones."""
    if spearman is None or not math.isfinite(spearman):
        return Statement(grade="unknown", sentence="Predictions carry no spread.")
    grade: Grade = "good" if spearman >= RANKS else "fair" if spearman >= BARELY_RANKS else "poor"
    verb = {"good": "tells", "fair": "hints", "poor": "does not tell"}[grade]
    return Statement(grade=grade, short=f"{spearman:.2f}", sentence=f"The spread {verb} which predictions are worse.")


def field_verdict(
    field: str, one: TargetEvaluation, points: Points | ClassPoints | None, nominal: float
) -> FieldVerdict:
    """Return the verdict on one field from scores and predictions."""
    observed, of_error = one.ensemble.get("coverage"), error_finding(one)
    if observed is None and points is not None and points.covered is not None:
        observed = float(np.nanmean(points.covered))
    coverage = coverage_finding(points, observed, nominal)
    return FieldVerdict(
        field=field,
        scores=one,
        error=of_error,
        coverage=coverage,
        spread=spread_finding(one.ensemble.get("spearman")),
        observed=observed,
        grade=worst([of_error.grade, coverage.grade]) if of_error.grade != "unknown" else "unknown",
    )


def worst(grades: Sequence[Grade]) -> Grade:
    """Return the lowest grade; unknown counts only if all are unknown.

    >>> worst(["good", "unknown", "fair"]), worst(["unknown"])
    ('fair', 'unknown')
    """
    order: tuple[Grade, ...] = ("poor", "fair", "good")
    return next((grade for grade in order if grade in grades), "unknown")


def verdict(facts: Facts) -> Verdict:
    """Return the verdict on a report's facts."""
    part, nominal = facts.part, facts.evaluation.nominal
    rows = part.scores.items() if part else ()
    fields = tuple(field_verdict(name, one, part.points.get(name) if part else None, nominal) for name, one in rows)
    grade = worst([field.grade for field in fields])
    return Verdict(
        grade=grade,
        headline=_headline(facts, grade, fields),
        explanation=_explanation(facts, fields, part),
        part=part.name if part else "",
        fields=fields,
        cautions=tuple(_cautions(facts, part, fields)),
    )


def _headline(facts: Facts, grade: Grade, fields: Sequence[FieldVerdict]) -> str:
    if not fields or grade == "unknown":
        return "There is not yet enough here to judge this model."
    if facts.manifest is None or all(field.coverage.grade == "unknown" for field in fields):
        return {
            "good": "It has learned its task; how far each prediction can be trusted is not known.",
            "fair": "It has learned something, but use it with care.",
            "poor": "Do not use it: it is no better than guessing the mean.",
        }[grade]
    poor = join([field.field for field in fields if field.grade == "poor"])
    return {
        "good": "Reliable on graphs like those it was trained on.",
        "fair": "Use it with care: read the rows that are marked fair.",
        "poor": f"Not reliable for {poor}; see why below.",
    }[grade]


def _explanation(facts: Facts, fields: Sequence[FieldVerdict], part: Part | None) -> str:
    if not fields or part is None:
        return "No trial has finished with errors in physical units."
    ratios = [ratio(f.scores) * 100 for f in fields if f.error.grade != "unknown"]
    covered = [f.observed * 100 for f in fields if f.observed is not None]
    model = {"ensemble": "The ensemble", "campaign": "The best trial", "run": "The model"}[facts.kind]
    where = {"test": "graphs it has never seen", "held-out": "graphs that the members asked have not seen"}
    graphs = where.get(part.name, "validation graphs")

    def span(values: Sequence[str]) -> str:
        return " to ".join(dict.fromkeys((values[0], values[-1])))

    sentences = []
    if ratios:
        share = span([plain_number(float(f"{value:.2g}")) for value in sorted(ratios)])
        sentences.append(f"{model}'s error on {graphs} is {share} % of the trivial predictor's.")
    if covered and facts.manifest is not None:
        share = span([f"{value:.0f}" for value in sorted(covered)])
        sentences.append(f"Its {facts.evaluation.nominal * 100:.0f} % intervals hold {share} % of the true values.")
    for words, better in (("One member alone", better_member), ("A simple baseline", better_baseline)):
        names = [f"{f.field} ({name})" for f in fields if (name := better(f.scores))]
        sentences += [f"{words} is better for {join(names)}."] if names else []
    return " ".join(sentences)


def _cautions(facts: Facts, part: Part | None, fields: Sequence[FieldVerdict]) -> Iterator[str]:
    manifest = facts.manifest
    yield from (f"Note: {note}." for note in facts.notes)
    if part is not None and part.name == "held-out":
        yield (
            "There is no test part: every graph was predicted by the members that had not seen it, with intervals from the other "
            "folds. Settings that were chosen by looking at the folds flatter these errors; all members together are rather better."
        )
    elif part is not None and part.name != "test":
        untouched = facts.data is not None and facts.data.parts.get("test", 0) > 0
        yield (
            "These are validation errors, which chose the model, so they flatter it a little; "
            + ("the test part has not been looked at yet." if untouched else "there is no test part.")
        )
    if facts.origin is not None and (numbers := failures_of(facts.origin)):
        yield f"Its files suffered known failures of the public HydraGNN ({numbers}): see Import."
    if manifest is None:
        yield "A single model says nothing about its own uncertainty; an ensemble does."
    elif len(manifest.members) < 3:
        yield "Fewer than three members: the spread between them says little."
    if part is not None and (lost := len(facts.evaluation.failed.get(part.name, {}))):
        yield f"{lost} graph(s) of the {part.name} part could not be predicted and are not counted."
    if weak := join([f.field for f in fields if f.spread.grade == "poor"]):
        yield f"For {weak} the spread does not tell good predictions from bad ones: use the interval, not the ranking."
    for name, other in facts.parts.items():
        if name not in ("test", "held-out", "valid") and other.scores:
            yield f"On {name}, which is other data: error of {join([_in_short(field, one) for field, one in other.scores.items()])}."
    if part is not None and manifest is not None:
        yield f"Coverage holds for data like the {part.name} part; on new kinds of graphs check it again."


def _in_short(field: str, one: TargetEvaluation) -> str:
    covered = one.ensemble.get("coverage")
    inside = "" if covered is None else f" with {covered * 100:.0f} % inside the intervals"
    return f"{field} {error_finding(one).short}{inside}"
