"""Intervals widen with the distance from training data, and end in "unknown"."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hydragnn.ensemble.domain.rarity import Rarity
from hydragnn.ensemble.estimates.calibration.numbers import Calibration
from hydragnn.ensemble.estimates.calibration.protocol import NO_GROWTH, POWER, Distance, held_out_p_values
from hydragnn.ensemble.estimates.estimate import FoldLabels, Labelled
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from tests.ensemble.conftest import points

FORCES = Target(
    field=Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target"),
    loss="mse",
    weight=1.0,
)
MEMBERS = 3
ITEMS = 4
DISTANCE = Distance(power=POWER, unknown=0.01)


def drawn(seed: int, p_values: np.ndarray, power: float = POWER) -> Labelled:
    """Graphs whose errors grow with a power of their p-values, which members do not see."""
    generator = np.random.default_rng(seed)
    shape = (len(p_values) * ITEMS, 3)
    size = np.repeat(np.maximum(0.1 / p_values, 1.0) ** power, ITEMS)[:, None]
    means = generator.normal(size=(MEMBERS, *shape))
    graph, nodes = np.repeat(np.arange(len(p_values)), ITEMS), np.full(len(p_values) * ITEMS, ITEMS)
    return points(size * generator.normal(size=shape), means, graph, nodes, p_values=np.repeat(p_values, ITEMS))


def fitted(rows: Labelled, distance: Distance) -> Calibration:
    weights = np.full(MEMBERS, 1 / MEMBERS)
    plain = NumberEstimate.calibration(FORCES, rows, None, weights, 0.9)
    folds = [FoldLabels(members=tuple(range(MEMBERS)), rows=rows)]
    return NumberEstimate.calibration_at(FORCES, plain, folds, weights, distance)


def predicted(rows: Labelled, calibration: Calibration) -> NumberEstimate:
    one = NumberEstimate.of(FORCES, rows.members, np.full(MEMBERS, 1 / MEMBERS), calibration, rows.nodes)
    return one.at(calibration, rows.p_values)


def test_growth_leaves_the_mean_square_of_usual_graphs() -> None:
    p_values = (np.arange(1_000_000) + 0.5) / 1_000_000
    growth = DISTANCE.growth(p_values)
    assert np.sqrt(np.mean(growth**2)) == pytest.approx(1, abs=1e-2)  # the integrand has a pole at 0
    assert (np.diff(growth) <= 0).all()
    np.testing.assert_array_equal(DISTANCE.growth(np.array([np.nan])), 1.0)


def test_p_values_of_held_out_graphs_are_those_against_the_others() -> None:
    scores = np.random.default_rng(0).exponential(size=(30, 1))
    ranked = Rarity(usual=np.zeros(1), unit=np.ones(1), held_out=np.sort(scores[:, 0]))
    own = held_out_p_values(ranked.p_values(scores), 30)
    for graph in range(30):
        others = replace(ranked, held_out=np.sort(np.delete(scores[:, 0], graph)))
        alone = others.p_values(scores[graph : graph + 1])[0]
        assert own[graph] == pytest.approx(alone) or scores[graph] == scores.max()


def test_intervals_of_far_graphs_hold_as_often_as_those_of_usual_ones() -> None:
    calibration = fitted(drawn(0, np.random.default_rng(1).uniform(0.011, 1.0, size=400)), DISTANCE)
    plain = fitted(drawn(0, np.random.default_rng(1).uniform(0.011, 1.0, size=400)), NO_GROWTH)
    far = drawn(2, np.full(400, 0.012))
    inside = [
        np.mean((one.lower <= far.labels) & (far.labels <= one.upper))
        for one in (predicted(far, calibration), predicted(far, plain))
    ]
    assert 0.87 <= inside[0] <= 0.94 and inside[1] < 0.8


def test_beyond_all_calibrating_graphs_intervals_are_unknown_and_std_stays() -> None:
    calibration = fitted(drawn(0, np.random.default_rng(1).uniform(0.011, 1.0, size=100)), DISTANCE)
    rows = drawn(3, np.array([0.5, 0.01, 0.001, np.nan]))
    one = predicted(rows, calibration)
    unknown = np.repeat([False, True, True, False], ITEMS)
    np.testing.assert_array_equal(np.isnan(one.lower).all(axis=1), unknown)
    np.testing.assert_array_equal(np.isnan(one.upper).any(axis=1), unknown)
    assert np.isfinite(one.mean).all() and np.isfinite(one.std).all()
    scores = one.uncertainty_scores(np.zeros(one.mean.shape))
    assert scores["unknown"] == 0.5
    assert scores["coverage"] == pytest.approx(np.mean((one.lower <= 0) & (one.upper >= 0)) * 2)


def test_calibrations_are_read_as_they_were_written_with_and_without_a_distance() -> None:
    rows = drawn(0, np.random.default_rng(1).uniform(0.011, 1.0, size=50))
    calibration = fitted(rows, DISTANCE)
    assert calibration_from_json(calibration.to_json()) == calibration
    old = fitted(rows, NO_GROWTH).to_json()
    del old["distance"]
    assert calibration_from_json(old).distance == NO_GROWTH
    one = NumberEstimate.of(FORCES, rows.members, np.full(MEMBERS, 1 / MEMBERS), calibration_from_json(old), rows.nodes)
    np.testing.assert_array_equal(one.at(calibration_from_json(old), rows.p_values).lower, one.lower)


def test_vectors_turn_with_their_intervals() -> None:
    rows = drawn(4, np.random.default_rng(1).uniform(0.011, 1.0, size=60))
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    turned = replace(
        rows, labels=rows.labels @ turn, members=[Point(mean=one.mean @ torch.from_numpy(turn)) for one in rows.members]
    )
    stds = [predicted(some, fitted(some, DISTANCE)).std for some in (rows, turned)]
    np.testing.assert_allclose(stds[0], stds[1], rtol=1e-9)


def test_a_calibrating_graph_with_a_kind_that_training_never_had_counts_as_the_rarest() -> None:
    values = held_out_p_values(np.array([0.5 / 31, 2 / 31, 1.0, np.nan]), graphs=30)
    np.testing.assert_allclose(values, [1 / 30, 1 / 30, 1.0, np.nan])
    assert Distance(power=POWER).growth(values)[0] < 2.0
