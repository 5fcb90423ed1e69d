"""Components whose labels are missing: ensembles calibrate, weigh and judge on the present ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.ensemble.estimates.calibration.numbers import fit_calibration
from hydragnn.ensemble.estimates.calibration.protocol import Distance
from hydragnn.ensemble.estimates.estimate import FoldLabels, Labelled
from hydragnn.ensemble.estimates.metrics import coverage, gaussian_crps, point_metrics
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
from hydragnn.graphs import Field
from hydragnn.models import Target
from tests.ensemble.conftest import points

GRAPHS, ITEMS, WEIGHTS = 60, 4, np.full(3, 1 / 3)
BOTH = Target(field=Field(name="y", on="node", shape=(2,), role="target", dtype="float64"))
ONE = Target(field=Field(name="y", on="node", role="target", dtype="float64"))


def rows(seed: int = 0) -> Labelled:
    """Labels of two components, of which a third is missing."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=(GRAPHS * ITEMS, 2))
    means = [truth + generator.normal(size=truth.shape) * np.exp(truth / 3) for _ in WEIGHTS]
    labels = np.where(generator.random(truth.shape) < 1 / 3, np.nan, truth)
    labels[:, 1][:ITEMS] = np.nan
    labels[~np.isfinite(labels).any(axis=1)] = 0.5
    graph, nodes = np.repeat(np.arange(GRAPHS), ITEMS), np.full(GRAPHS * ITEMS, ITEMS)
    p_values = np.repeat(generator.uniform(0.02, 1.0, GRAPHS), ITEMS)
    return points(labels, means, graph, nodes, p_values=p_values)


def present(of: Labelled, component: int) -> Labelled:
    """The rows of one component that have a label."""
    known = np.isfinite(of.labels[:, component])
    means = [one.mean[torch.from_numpy(known), component].numpy() for one in of.members]
    own = of.graph[known], of.nodes[known], of.part, of.p_values[known]
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
