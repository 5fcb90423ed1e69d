"""What CV+ promises, on linear models that overfit; intervals that widen with the distance from training data, and labels without components."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from hydragnn.ensemble.building.basis import held_out_estimate
from hydragnn.ensemble.domain.rarity import Rarity
from hydragnn.ensemble.estimates.calibration.cross_validation import cross_interval, graph_scores
from hydragnn.ensemble.estimates.calibration.numbers import Calibration, fit_calibration
from hydragnn.ensemble.estimates.calibration.protocol import NO_GROWTH, POWER, USUAL, Distance, held_out_p_values
from hydragnn.ensemble.estimates.classes import ClassEstimate
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.metrics import gaussian_crps, point_metrics
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field
from hydragnn.models import Categorical, Target
from tests.ensemble.conftest import TARGETS, distances_of, points, refused

Array = np.ndarray[Any, np.dtype[Any]]
ENERGY = TARGETS[0]
FORCES = Field(name="forces", on="node", shape=(2,), unit="eV/Angstrom", parity="vector", role="target")
PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Graphs that fold members were trained on, fresh graphs of the same kind, and what all members say about both."""

    target: Target
    truth: Array
    """[graphs, items, width]"""
    words: Array
    """[members, graphs, items, width]"""
    each: int
    """Members of a fold."""
    folds: int
    train: int

    @property
    def weights(self) -> Array:
        return np.full(len(self.words), 1 / len(self.words))

    def rows(self, graphs: Array, members: Sequence[int]) -> Labelled:
        items, shape = self.truth.shape[1], self.target.field.shape
        means = [self.words[m][graphs].reshape(-1, *shape) for m in members]
        labels, nodes = self.truth[graphs].reshape(-1, *shape), np.full(len(graphs) * items, items)
        return points(labels, means, np.repeat(graphs, items), nodes)

    def labels(self, later: int = 0) -> list[Labelled]:
        of = [(fold + later) % self.folds * self.each for fold in range(self.folds)]
        members = [tuple(range(first, first + self.each)) for first in of]
        graphs = [np.arange(fold, self.train, self.folds) for fold in range(self.folds)]
        return [replace(self.rows(some, own), fold=own) for own, some in zip(members, graphs)]


def draw(seed: int, field: Field, *, each: int, folds: int = 5, train: int = 40) -> Draw:
    """Members fitted by least squares on half of the numbers that their graphs have: near interpolation."""
    generator = np.random.default_rng(seed)
    items, graphs = (3 if field.on == "node" else 1), train + 1
    inputs = generator.normal(size=(graphs, items, 16))
    noise = generator.normal(size=(graphs, 1, field.width)) + 0.5 * generator.normal(size=(graphs, items, field.width))
    scale = inputs @ generator.normal(size=(16, field.width))
    truth, words = scale + noise * np.exp(0.3 * generator.normal(size=(graphs, 1, 1))), []
    for fold in range(folds):
        seen = np.flatnonzero(np.arange(train) % folds != fold)
        for _ in range(each):  # another tenth chose an epoch
            own = generator.choice(seen, size=len(seen) - len(seen) // 10, replace=False)
            x, y = inputs[own].reshape(-1, 16), truth[own].reshape(-1, field.width)
            words.append(inputs @ np.linalg.lstsq(x, y, rcond=None)[0])
    target = Target(field=field, loss="mse", weight=1.0)
    return Draw(target=target, truth=truth, words=np.stack(words), each=each, folds=folds, train=train)


def covered(one: Draw, later: int = 0) -> float:
    """The share of the fresh graph's numbers inside the intervals, calibrated by members of folds or of later ones."""
    fitted = NumberEstimate.cross_calibration(one.target, one.labels(later), one.weights, 0.9)
    assert fitted.guaranteed and fitted.graphs == one.train
    fresh = one.rows(np.array([one.train]), range(len(one.words)))
    estimate = NumberEstimate.of(one.target, fresh.members, one.weights, fitted, fresh.nodes)
    assert (estimate.lower <= estimate.mean).all() and (estimate.mean <= estimate.upper).all()
    return float(((estimate.lower <= fresh.labels) & (fresh.labels <= estimate.upper)).mean())


DRAWS = 100


@pytest.mark.parametrize(
    ("field", "each", "later"),
    [(ENERGY, 1, 0), (ENERGY, 3, 0), (FORCES, 3, 0), (ENERGY, 1, 1)],
    ids=["one member per fold", "three members per fold", "vectors of nodes", "members that have seen the graphs"],
)
def test_intervals_hold_fresh_graphs_unless_members_had_seen_those(field: Field, each: int, later: int) -> None:
    """By members of another fold, the last case, they are far too narrow."""
    hits = [covered(draw(seed, field, each=each), later) for seed in range(DRAWS)]
    # one fresh graph per draw: shares of its numbers vary less than one hit or miss, so the binomial bound holds for them, too
    assert (np.mean(hits) >= binom.ppf(1e-4, DRAWS, 0.9) / DRAWS) == (not later)


@pytest.mark.parametrize("each", [1, 2])
def test_cross_validated_sets_hold_the_classes_of_fresh_graphs(each: int) -> None:
    weights, hits, sizes = np.full(5 * each, 0.2 / each), [], []
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        middle = generator.normal(size=(41, 3))
        labels = (middle + generator.gumbel(size=(41, 3))).argmax(axis=1)
        words = middle + 0.8 * generator.normal(size=(5 * each, 41, 3))
        words[:, :40] += 3.0 * np.eye(3)[labels[:40]]  # what members have learnt by heart
        folds = []
        for fold in range(5):
            members, graphs = tuple(range(fold * each, (fold + 1) * each)), np.arange(fold, 40, 5)
            own = words[list(members)][:, graphs] - 3.0 * np.eye(3)[labels[graphs]]
            rows = Labelled(
                labels=labels[graphs].astype(np.float64),
                members=[Categorical(logits=torch.from_numpy(values)) for values in own],
                graph=graphs,
                nodes=np.ones(8, dtype=np.int64),
            )
            folds.append(replace(rows, fold=members))
        target = Target(field=PHASE, loss="cross_entropy", distribution=Categorical)
        fitted = ClassEstimate.cross_calibration(target, folds, weights, 0.9)
        fresh = [Categorical(logits=torch.from_numpy(values[40:])) for values in words]
        one = ClassEstimate.of(target, fresh, weights, fitted, np.ones(1, dtype=np.int64))
        hits.append(bool(one.set[0, labels[40]]))
        sizes.append(int(one.set.sum()))
    assert np.mean(hits) >= binom.ppf(1e-4, DRAWS, 0.9) / DRAWS
    assert np.mean(sizes) < 3  # not by holding everything


@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.5, 0.8, 0.9]))
def test_the_interval_is_that_of_the_paper(seed: int, folds: int, nominal: float) -> None:
    generator = np.random.default_rng(seed)
    scores = [np.sort(generator.exponential(size=generator.integers(1, 9))) for _ in range(folds)]
    means, stds = generator.normal(size=(folds, 4)), generator.exponential(size=(folds, 4)) + 0.1
    lower, upper = cross_interval(means, stds, [tuple(values) for values in scores], nominal)
    count = sum(map(len, scores))
    highest = min(math.ceil((count + 1) * nominal - 1e-9), count)
    for item in range(4):
        low = sorted(means[k, item] - r * stds[k, item] for k, values in enumerate(scores) for r in values)
        high = sorted(means[k, item] + r * stds[k, item] for k, values in enumerate(scores) for r in values)
        assert upper[item] == high[highest - 1] and lower[item] == low[count - highest]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 5))
def test_one_score_per_graph_is_never_too_small(seed: int, graphs: int, items: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.exponential(size=graphs * items)
    graph = generator.permutation(np.repeat(np.arange(graphs), items))
    kept = graph_scores(scores, graph, total=graphs)
    assert len(kept) == graphs and list(kept) == sorted(kept)
    for number, value in enumerate(kept):
        share = (number + 1) / graphs  # of all items, since graphs have equally many
        assert (scores <= value).mean() >= share - 1e-12 > (scores < value).mean() - 1e-9 - 1 / (graphs * items)
    if items == 1:
        np.testing.assert_array_equal(kept, np.sort(scores))


def test_of_many_graphs_few_scores_are_kept_and_none_is_rounded_down() -> None:
    scores = np.random.default_rng(0).exponential(size=25_000)
    kept = np.array(graph_scores(scores, np.arange(25_000), total=50_000))
    assert len(kept) == 500
    np.testing.assert_array_equal(kept, np.sort(scores)[49::50])


def test_without_enough_graphs_nothing_is_guaranteed_and_the_sentence_says_so() -> None:
    one = draw(0, ENERGY, each=1, folds=2, train=8)
    fitted = NumberEstimate.cross_calibration(one.target, one.labels(), one.weights, 0.9)
    assert not fitted.guaranteed and fitted.sentence.endswith("had not seen them: too few to guarantee 90 %")


def test_no_label_meets_an_interval_that_it_made() -> None:
    """Wrong labels of a fold widen the intervals of the other folds, and leave its own as they are."""
    one = draw(0, FORCES, each=2)
    folds = one.labels()
    wrong = replace(folds[2], labels=10 * folds[2].labels + 5)
    others = [*folds[:2], wrong, *folds[3:]]
    before, after = (held_out_estimate(one.target, every, one.weights, 0.9) for every in (folds, others))
    assert isinstance(before, NumberEstimate) and isinstance(after, NumberEstimate)
    own = np.repeat(np.arange(5), len(before.mean) // 5) == 2
    for quantity in ("mean", "std", "lower", "upper"):
        np.testing.assert_array_equal(before[quantity][own], after[quantity][own])
    assert ((after.upper - after.lower)[~own] > (before.upper - before.lower)[~own]).all()


PULLS = Target(field=TARGETS[1], loss="mse", weight=1.0)
MEMBERS, ITEMS = 3, 4
WEIGHTS = np.full(MEMBERS, 1 / MEMBERS)
DISTANCE = Distance.among(distances_of(np.arange(1, 100) / 99))


def drawn(seed: int, p_values: np.ndarray, power: float = POWER, doubts: float = 0.0) -> Labelled:
    """Graphs whose errors grow with a power of their p-values and with doubts, which no item shows."""
    generator = np.random.default_rng(seed)
    shape = (len(p_values) * ITEMS, 3)
    size = np.repeat(np.maximum(USUAL / p_values, 1.0) ** power * np.exp(DISTANCE.doubts * doubts), ITEMS)[:, None]
    means = generator.normal(size=(MEMBERS, *shape))
    graph, nodes = np.repeat(np.arange(len(p_values)), ITEMS), np.full(len(p_values) * ITEMS, ITEMS)
    return points(
        size * generator.normal(size=shape), means, graph, nodes, distances_of(np.repeat(p_values, ITEMS), doubts)
    )


def fitted(rows: Labelled, distance: Distance) -> Calibration:
    plain = NumberEstimate.calibration(PULLS, rows, None, WEIGHTS, 0.9)
    return NumberEstimate.calibration_at(PULLS, plain, [rows], WEIGHTS, distance)


def predicted(rows: Labelled, calibration: Calibration, target: Target = PULLS) -> NumberEstimate:
    one = NumberEstimate.of(target, rows.members, WEIGHTS, calibration, rows.nodes)
    return one.at(calibration, rows.distances)


def spread_graphs(seed: int, graphs: int) -> Labelled:
    """Return graphs of all distances that calibrate."""
    return drawn(seed, np.random.default_rng(1).uniform(0.011, 1.0, size=graphs))


@pytest.mark.parametrize("largest", [0.0, np.log(60)], ids=["no doubts", "one graph of 60 times the doubts"])
def test_growth_leaves_the_mean_square_of_usual_graphs(largest: float) -> None:
    calibrating = distances_of(np.arange(1, 100) / 99)
    calibrating[0, 1] = largest
    growth = Distance.among(calibrating).growth(distances_of(np.arange(1, 100) / 99))
    assert np.sqrt(np.mean(growth**2)) == pytest.approx(1)
    assert (np.diff(growth) <= 0).all()
    np.testing.assert_array_equal(DISTANCE.growth(distances_of([np.nan], np.nan)), 1.0)


def test_p_values_of_held_out_graphs_are_those_against_the_others() -> None:
    scores = np.random.default_rng(0).exponential(size=(30, 1))
    ranked = Rarity(usual=np.zeros(1), unit=np.ones(1), held_out=np.sort(scores[:, 0]))
    own = held_out_p_values(ranked.p_values(scores), 30)
    for graph in range(30):
        others = np.delete(scores[:, 0], graph)
        assert own[graph] == pytest.approx((1 + (others >= scores[graph]).sum()) / 30)


@pytest.mark.parametrize(("p_value", "doubts"), [(0.012, 0.0), (0.5, 1.0), (0.012, 0.5)])
def test_intervals_of_far_graphs_hold_as_often_as_those_of_usual_ones(p_value: float, doubts: float) -> None:
    far, calibrating, inside = drawn(2, np.full(400, p_value), doubts=doubts), spread_graphs(0, 400), []
    for distance in (DISTANCE, NO_GROWTH):
        one = predicted(far, fitted(calibrating, distance))
        inside.append(np.mean((one.lower <= far.labels) & (far.labels <= one.upper)))
    assert 0.87 <= inside[0] <= 0.94 and inside[1] < 0.8


def test_beyond_all_calibrating_graphs_intervals_are_unknown_and_std_stays() -> None:
    one = predicted(drawn(3, np.array([0.5, 0.01, 0.001, np.nan])), fitted(spread_graphs(0, 100), DISTANCE))
    unknown = np.repeat([False, True, True, False], ITEMS)
    np.testing.assert_array_equal(np.isnan(one.lower).all(axis=1), unknown)
    np.testing.assert_array_equal(np.isnan(one.upper).any(axis=1), unknown)
    assert np.isfinite(one.mean).all() and np.isfinite(one.std).all()
    scores = one.uncertainty_scores(np.zeros(one.mean.shape))
    assert scores["unknown"] == 0.5
    assert scores["coverage"] == pytest.approx(np.mean((one.lower <= 0) & (one.upper >= 0)) * 2)


def test_calibrations_are_read_as_they_were_written_with_and_without_a_distance() -> None:
    rows = spread_graphs(0, 50)
    calibration = fitted(rows, DISTANCE)
    assert calibration_from_json(calibration.to_json()) == calibration
    old = fitted(rows, NO_GROWTH).to_json()
    del old["distance"]
    read = calibration_from_json(old)
    assert isinstance(read, Calibration) and read.distance == NO_GROWTH
    one = NumberEstimate.of(PULLS, rows.members, WEIGHTS, read, rows.nodes)
    np.testing.assert_array_equal(predicted(rows, read).lower, one.lower)


def test_errors_of_whole_graphs_grow_with_their_distance_from_similar_ones() -> None:
    calibrating = distances_of(np.arange(1, 100) / 99)
    of_graphs, of_nodes = (Distance.among(calibrating, further=one) for one in (1.0, 0.0))
    away = distances_of([0.5], further=np.log(3))
    assert of_graphs.growth(away) == pytest.approx(3 * of_graphs.growth(distances_of([0.5])))
    assert of_nodes.growth(away) == of_nodes.growth(distances_of([0.5]))


def test_a_calibrating_graph_with_a_kind_that_training_never_had_counts_as_the_rarest() -> None:
    values = held_out_p_values(np.array([0.5 / 31, 1 / 31, 1.0, np.nan]), graphs=30)
    np.testing.assert_allclose(values, [1 / 30, 1 / 30, 1.0, np.nan])
    assert Distance.among(distances_of(values[:3])).growth(distances_of(values))[0] < 2.0


GRAPHS = 60
BOTH = Target(field=Field(name="y", on="node", shape=(2,), role="target", dtype="float64"))
ONE = Target(field=Field(name="y", on="node", role="target", dtype="float64"))


def rows(seed: int = 0) -> Labelled:
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(GRAPHS * ITEMS, 2))
    means = [truth + generator.normal(size=truth.shape) * np.exp(truth / 3) for _ in WEIGHTS]
    labels = np.where(generator.random(truth.shape) < 1 / 3, np.nan, truth)
    labels[:, 1][:ITEMS] = np.nan
    labels[~np.isfinite(labels).any(axis=1)] = 0.5
    graph, nodes = np.repeat(np.arange(GRAPHS), ITEMS), np.full(GRAPHS * ITEMS, ITEMS)
    p_values = np.repeat(generator.uniform(0.02, 1.0, GRAPHS), ITEMS)
    return points(labels, means, graph, nodes, distances_of(p_values))


def present(of: Labelled, component: int) -> Labelled:
    known = np.isfinite(of.labels[:, component])
    means = [one.mean[torch.from_numpy(known), component].numpy() for one in of.members]
    own = of.graph[known], of.nodes[known], of.distances[known]
    return points(of.labels[known, component], means, *own)


@pytest.mark.parametrize("component", [0, 1])
def test_every_component_is_calibrated_as_if_its_present_labels_were_all(component: int) -> None:
    every, own = rows(), present(rows(), component)
    for count in (len(WEIGHTS), 1):  # one member has no spread
        shares = np.full(count, 1 / count)
        both, one = (
            fit_calibration(target.field, some.labels, moments_of(some.members[:count], shares), some.graph)
            for target, some in ((BOTH, every), (ONE, own))
        )
        mine, alone = both.components[component], one.components[0]
        assert mine.quantile == pytest.approx(alone.quantile * alone.scale / mine.scale, rel=0.3)
        if count == 1:
            assert (mine.scale, mine.quantile) == pytest.approx((alone.scale, alone.quantile), rel=1e-12)


def test_calibration_with_a_distance_and_by_folds_keeps_its_promise_on_present_labels() -> None:
    calibration = NumberEstimate.calibration(BOTH, rows(0), rows(1), WEIGHTS, 0.9)
    whole = [rows(1)]
    grown = NumberEstimate.calibration_at(BOTH, calibration, whole, WEIGHTS, Distance(power=0.25))
    folds = [
        replace(rows(2 + k), members=[rows(2 + k).members[m] for m in own], fold=own)
        for k, own in enumerate(((0, 1), (2,)))
    ]
    crossed = NumberEstimate.cross_calibration(BOTH, folds, WEIGHTS, 0.9)
    fresh = rows(9)
    for one in (calibration, grown, crossed):
        estimate = predicted(fresh, one, BOTH)
        assert np.isfinite(estimate.std).all() and np.isfinite(estimate.upper).mean() > 0.95
        assert 0.85 < estimate.uncertainty_scores(fresh.labels)["coverage"] < 0.985


def test_scores_and_evidence_are_of_present_labels() -> None:
    some = rows()
    calibration = NumberEstimate.calibration(BOTH, some, None, WEIGHTS, 0.9)
    estimate = NumberEstimate.of(BOTH, some.members, WEIGHTS, calibration, some.nodes)
    known = np.isfinite(some.labels)
    y, mean, std, lower, upper = (
        values[known] for values in (some.labels, estimate.mean, estimate.std, estimate.lower, estimate.upper)
    )
    scores = estimate.evaluation(some.labels, some.nodes, ["a", "b", "c"], {}, {})
    spread = np.nanmean((some.labels - np.nanmean(some.labels, axis=0)) ** 2)
    assert scores.ensemble["rmse"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-12)
    assert scores.ensemble["r2"] == pytest.approx(1 - np.mean((mean - y) ** 2) / spread, rel=1e-12)
    assert scores.ensemble["crps"] == pytest.approx(np.mean(gaussian_crps(y, mean, std)), rel=1e-12)
    assert scores.ensemble["coverage"] == np.mean((lower <= y) & (y <= upper)) and scores.ensemble["unknown"] == 0.0
    first = some.members[0].mean.numpy()[known]
    assert scores.members["a"]["mae"] == pytest.approx(np.abs(first - y).mean(), rel=1e-12)
    evidence = NumberEstimate.evidence(BOTH, some.labels, some.members)
    scale: NDArray[np.float64] = np.broadcast_to(np.nanstd(some.labels, axis=0), known.shape)[known]
    np.testing.assert_allclose(evidence.target, y / scale, rtol=1e-12)
    assert np.isfinite(evidence.row_errors(WEIGHTS)).all()


def test_a_component_without_any_label_is_an_error_and_a_metric_passes_over_it() -> None:
    some = rows()
    bare = replace(some, labels=np.stack([some.labels[:, 0], np.full(len(some), np.nan)], axis=1))
    refused("field y has no labelled graph to calibrate on", NumberEstimate.calibration, BOTH, bare, None, WEIGHTS, 0.9)
    known = np.isfinite(bare.labels[:, 0])
    one = point_metrics(bare.labels[known, :1], np.ones((known.sum(), 1)))
    assert point_metrics(bare.labels, bare.labels * 0 + 1) == pytest.approx(one, rel=1e-12)
