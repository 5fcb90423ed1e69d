"""What CV+ promises, on linear models that overfit, and its parts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from hydragnn.ensemble.building.basis import held_out_estimate
from hydragnn.ensemble.estimates.calibration.cross_validation import cross_interval, graph_scores
from hydragnn.ensemble.estimates.classes import ClassEstimate
from hydragnn.ensemble.estimates.estimate import FoldLabels, Labelled
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.graphs import Field
from hydragnn.models import Categorical, Target
from tests.ensemble.conftest import points

Array = np.ndarray[Any, np.dtype[Any]]
ENERGY = Field(name="energy", on="graph", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(2,), unit="eV/Angstrom", parity="vector", role="target")
PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")


def target_of(field: Field) -> Target:
    return Target(field=field, loss="mse", weight=1.0)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Graphs that fold members were trained on, fresh graphs of the same kind, and what all members say about both."""

    truth: Array
    """[graphs, items, width]"""
    words: Array
    """[members, graphs, items, width]"""
    folds: list[tuple[int, ...]]
    """The members of every fold."""
    fold_of_graph: Array
    train: int


def draw(seed: int, field: Field, *, each: int, folds: int = 5, train: int = 40, fresh: int = 1) -> Draw:
    """Members fitted by least squares on half of the numbers that their graphs have: near interpolation."""
    generator = np.random.default_rng(seed)
    items, graphs = (3 if field.on == "node" else 1), train + fresh
    inputs = generator.normal(size=(graphs, items, 16))
    noise = generator.normal(size=(graphs, 1, field.width)) + 0.5 * generator.normal(size=(graphs, items, field.width))
    truth = inputs @ generator.normal(size=(16, field.width)) + noise * np.exp(
        0.3 * generator.normal(size=(graphs, 1, 1))
    )
    fold_of_graph = np.arange(train) % folds
    words = []
    for fold in range(folds):
        seen = np.flatnonzero(fold_of_graph != fold)
        for _ in range(each):
            own = generator.choice(
                seen, size=len(seen) - len(seen) // 10, replace=False
            )  # another tenth chose an epoch
            x, y = inputs[own].reshape(-1, 16), truth[own].reshape(-1, field.width)
            words.append(inputs @ np.linalg.lstsq(x, y, rcond=None)[0])
    return Draw(
        truth=truth,
        words=np.stack(words),
        folds=[tuple(range(fold * each, (fold + 1) * each)) for fold in range(folds)],
        fold_of_graph=fold_of_graph,
        train=train,
    )


def labelled(one: Draw, graphs: Array, members: Sequence[int], field: Field) -> Labelled:
    """What these members say about these graphs."""
    items = one.truth.shape[1]
    means = [one.words[m][graphs].reshape(-1, *field.shape) for m in members]
    labels, nodes = one.truth[graphs].reshape(-1, *field.shape), np.full(len(graphs) * items, items)
    return points(labels, means, np.repeat(graphs, items), nodes)


def covered(one: Draw, field: Field, members_of: Callable[[int], tuple[int, ...]]) -> float:
    """The share of the fresh graphs' numbers inside the intervals, where so calibrated."""
    weights = np.full(len(one.words), 1 / len(one.words))
    folds = []
    for fold in range(len(one.folds)):
        members = members_of(fold)
        graphs = np.flatnonzero(one.fold_of_graph == fold)
        folds.append(FoldLabels(members=members, rows=labelled(one, graphs, members, field)))
    fitted = NumberEstimate.cross_calibration(target_of(field), folds, weights, 0.9)
    assert fitted.guaranteed and fitted.graphs == one.train
    fresh = labelled(one, np.arange(one.train, len(one.truth)), range(len(one.words)), field)
    estimate = NumberEstimate.of(target_of(field), fresh.members, weights, fitted, fresh.nodes)
    assert (estimate.lower <= estimate.mean).all() and (estimate.mean <= estimate.upper).all()
    return float(((estimate.lower <= fresh.labels) & (fresh.labels <= estimate.upper)).mean())


DRAWS = 100


@pytest.mark.parametrize(
    ("field", "each"),
    [(ENERGY, 1), (ENERGY, 3), (FORCES, 3)],
    ids=["one member per fold", "three members per fold", "vectors of nodes"],
)
def test_cross_validated_intervals_hold_fresh_graphs(field: Field, each: int) -> None:
    hits = [
        covered(one, field, one.folds.__getitem__) for one in (draw(seed, field, each=each) for seed in range(DRAWS))
    ]
    # one fresh graph per draw: shares of its numbers vary less than one hit or miss, so the binomial bound holds for them, too
    assert np.mean(hits) >= binom.ppf(1e-4, DRAWS, 0.9) / DRAWS


def test_scores_of_members_that_have_seen_the_graphs_would_not_hold() -> None:
    """What the test above is worth: with one fold's graphs scored by another fold's members, intervals are far too narrow."""
    draws = [draw(seed, ENERGY, each=1) for seed in range(DRAWS)]
    hits = [covered(one, ENERGY, lambda fold, one=one: one.folds[(fold + 1) % 5]) for one in draws]
    assert np.mean(hits) < binom.ppf(1e-4, DRAWS, 0.9) / DRAWS


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
            folds.append(FoldLabels(members=members, rows=rows))
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
    folds = [
        FoldLabels(members=(k,), rows=labelled(one, np.flatnonzero(one.fold_of_graph == k), (k,), ENERGY))
        for k in (0, 1)
    ]
    fitted = NumberEstimate.cross_calibration(target_of(ENERGY), folds, np.full(2, 0.5), 0.9)
    assert not fitted.guaranteed and fitted.sentence.endswith("had not seen them: too few to guarantee 90 %")


def test_no_label_meets_an_interval_that_it_made() -> None:
    """Wrong labels of a fold widen the intervals of the other folds, and leave its own as they are."""
    one, weights = draw(0, FORCES, each=2), np.full(10, 0.1)
    folds = [
        FoldLabels(members=members, rows=labelled(one, np.flatnonzero(one.fold_of_graph == k), members, FORCES))
        for k, members in enumerate(one.folds)
    ]
    wrong = replace(folds[2], rows=replace(folds[2].rows, labels=10 * folds[2].rows.labels + 5))
    before, after = (
        held_out_estimate(target_of(FORCES), every, weights, 0.9) for every in (folds, [*folds[:2], wrong, *folds[3:]])
    )
    assert isinstance(before, NumberEstimate) and isinstance(after, NumberEstimate)
    own = np.repeat(np.arange(5), len(before.mean) // 5) == 2
    for quantity in ("mean", "std", "lower", "upper"):
        np.testing.assert_array_equal(before[quantity][own], after[quantity][own])
    assert ((after.upper - after.lower)[~own] > (before.upper - before.lower)[~own]).all()
