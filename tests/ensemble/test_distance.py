"""Intervals widen with the distance from training data, and labels may lack components."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.ensemble.domain.rarity import Rarity
from hydragnn.ensemble.estimates.calibration.numbers import Calibration, fit_calibration
from hydragnn.ensemble.estimates.calibration.protocol import NO_GROWTH, POWER, Distance, held_out_p_values
from hydragnn.ensemble.estimates.estimate import FoldLabels, Labelled
from hydragnn.ensemble.estimates.metrics import coverage, gaussian_crps, point_metrics
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
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


GRAPHS, PER_GRAPH, WEIGHTS = 60, 4, np.full(3, 1 / 3)
BOTH = Target(field=Field(name="y", on="node", shape=(2,), role="target", dtype="float64"))
ONE = Target(field=Field(name="y", on="node", role="target", dtype="float64"))


def rows(seed: int = 0) -> Labelled:
    """Labels of two components, of which a third is missing."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(GRAPHS * PER_GRAPH, 2))
    means = [truth + generator.normal(size=truth.shape) * np.exp(truth / 3) for _ in WEIGHTS]
    labels = np.where(generator.random(truth.shape) < 1 / 3, np.nan, truth)
    labels[:, 1][:PER_GRAPH] = np.nan
    labels[~np.isfinite(labels).any(axis=1)] = 0.5
    graph, nodes = np.repeat(np.arange(GRAPHS), PER_GRAPH), np.full(GRAPHS * PER_GRAPH, PER_GRAPH)
    p_values = np.repeat(generator.uniform(0.02, 1.0, GRAPHS), PER_GRAPH)
    return points(labels, means, graph, nodes, p_values=p_values)


def present(of: Labelled, component: int) -> Labelled:
    """The rows of one component that have a label."""
    known = np.isfinite(of.labels[:, component])
    means = [one.mean[torch.from_numpy(known), component].numpy() for one in of.members]
    own = of.graph[known], of.nodes[known], of.p_values[known]
    return points(of.labels[known, component], means, *own)


@pytest.mark.parametrize("component", [0, 1])
def test_every_component_is_calibrated_as_if_its_present_labels_were_all(component: int) -> None:
    every, own = rows(), present(rows(), component)
    for count in (len(WEIGHTS), 1):  # one member has no spread
        both, one = (
            fit_calibration(
                target.field, some.labels, moments_of(some.members[:count], np.full(count, 1 / count)), some.graph
            )
            for target, some in ((BOTH, every), (ONE, own))
        )
        mine, alone = both.components[component], one.components[0]
        assert mine.quantile == pytest.approx(alone.quantile * alone.scale / mine.scale, rel=0.3)
        if count == 1:
            assert (mine.scale, mine.quantile) == pytest.approx((alone.scale, alone.quantile), rel=1e-12)


def test_calibration_with_a_distance_and_by_folds_keeps_its_promise_on_present_labels() -> None:
    calibration = NumberEstimate.calibration(BOTH, rows(0), rows(1), WEIGHTS, 0.9)
    grown = NumberEstimate.calibration_at(
        BOTH, calibration, [FoldLabels(members=(0, 1, 2), rows=rows(1))], WEIGHTS, Distance(power=0.25)
    )
    folds = [
        FoldLabels(members=own, rows=replace(rows(2 + k), members=[rows(2 + k).members[m] for m in own]))
        for k, own in enumerate(((0, 1), (2,)))
    ]
    crossed = NumberEstimate.cross_calibration(BOTH, folds, WEIGHTS, 0.9)
    fresh = rows(9)
    for one in (calibration, grown, crossed):
        estimate = NumberEstimate.of(BOTH, fresh.members, WEIGHTS, one, fresh.nodes).at(one, fresh.p_values)
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
    assert scores.ensemble["coverage"] == coverage(y, lower, upper) and scores.ensemble["unknown"] == 0.0
    assert scores.members["a"]["mae"] == pytest.approx(
        np.abs(some.members[0].mean.numpy()[known] - y).mean(), rel=1e-12
    )
    evidence = NumberEstimate.evidence(BOTH, some.labels, some.members)
    scale: NDArray[np.float64] = np.broadcast_to(np.nanstd(some.labels, axis=0), known.shape)[known]
    np.testing.assert_allclose(evidence.target, y / scale, rtol=1e-12)
    assert np.isfinite(evidence.row_errors(WEIGHTS)).all()


def test_a_component_without_any_label_is_an_error_and_a_metric_passes_over_it() -> None:
    some = rows()
    bare = replace(some, labels=np.stack([some.labels[:, 0], np.full(len(some), np.nan)], axis=1))
    with pytest.raises(InputError, match="field y has no labelled graph to calibrate on"):
        NumberEstimate.calibration(BOTH, bare, None, WEIGHTS, 0.9)
    known = np.isfinite(bare.labels[:, 0])
    both, one = (
        point_metrics(bare.labels, bare.labels * 0 + 1),
        point_metrics(bare.labels[known, :1], np.ones((known.sum(), 1))),
    )
    assert both == pytest.approx(one, rel=1e-12)
