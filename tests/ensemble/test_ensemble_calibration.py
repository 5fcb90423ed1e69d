"""Intervals hold the truth as often as they say, on data like that of the calibration."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.ensemble.estimates.calibration.numbers import (
    Calibrated,
    Calibration,
    calibrated,
    conformal_quantile,
    fit_calibration,
)
from hydragnn.ensemble.estimates.metrics import miscalibration_area
from hydragnn.ensemble.estimates.moments import MixtureMoments
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field

ENERGY = Field(name="energy", on="graph", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")


def of_single_nodes(field: Field, calibration: Calibration, moments: MixtureMoments) -> Calibrated:
    """Return the uncertainty of items in graphs of one node."""
    return calibrated(field, calibration, moments, np.ones(len(moments.mean), dtype=np.int64))


@given(st.integers(1, 300), st.floats(0.05, 0.99))
def test_with_one_item_per_graph_the_quantile_is_the_split_conformal_rank(graphs: int, nominal: float) -> None:
    scores = np.random.default_rng(graphs).uniform(size=graphs)
    rank = math.ceil((graphs + 1) * nominal - 1e-9)
    value, guaranteed = conformal_quantile(scores, np.arange(graphs), nominal)
    assert guaranteed == (rank <= graphs)
    assert value == np.sort(scores)[min(rank, graphs) - 1]


@given(st.integers(2, 30), st.integers(1, 5))
def test_repeating_the_items_of_a_graph_does_not_move_the_quantile(graphs: int, copies: int) -> None:
    scores = np.random.default_rng(graphs).uniform(size=graphs)
    once = conformal_quantile(scores, np.arange(graphs), 0.8)
    assert conformal_quantile(np.repeat(scores, copies), np.repeat(np.arange(graphs), copies), 0.8) == once


def synthetic(field: Field, graphs: int, items: int, seed: int) -> tuple[np.ndarray, MixtureMoments, np.ndarray]:
    """Heteroscedastic errors with a strong effect of the graph; three members' worth of noise in the spread."""
    generator = np.random.default_rng(seed)
    graph = np.repeat(np.arange(graphs), items)
    sigma = np.exp(generator.normal(size=graphs))[graph] * np.exp(0.3 * generator.normal(size=graphs * items))
    shape = (graphs * items, *field.shape)
    error = generator.normal(size=shape) * sigma.reshape(-1, *[1] * len(field.shape))
    variance = np.broadcast_to((0.2 * sigma.reshape(-1, *[1] * len(field.shape))) ** 2, shape)
    variance = variance * generator.chisquare(2, size=shape) / 2
    moments = MixtureMoments(mean=np.zeros(shape), epistemic=variance, aleatoric=np.zeros(shape))
    return error, moments, graph


@pytest.mark.parametrize("differ", [True, False])
@pytest.mark.parametrize("field, items", [(ENERGY, 1), (FORCES, 12)], ids=["graph scalar", "node vector"])
def test_coverage_on_new_graphs_is_nominal(field: Field, items: int, differ: bool) -> None:
    observed = []
    for seed in range(30):
        target, moments, graph = synthetic(field, 120, items, seed)
        fresh, new, _ = synthetic(field, 120, items, 1000 + seed)
        moments, new = (replace(one, epistemic=one.epistemic * differ) for one in (moments, new))
        calibration = fit_calibration(field, target, moments, graph, nominal=0.9)
        assert calibration.follows == differ
        width = of_single_nodes(field, calibration, new).half_width
        observed.append(float(np.mean(np.abs(fresh) <= width)))
        assert calibration.guaranteed
    # the mean over 30 calibrations of 120 graphs: its standard error is below 0.01
    assert 0.875 <= np.mean(observed) <= 0.935


def test_graphs_of_any_size_are_covered_alike() -> None:
    """Large graphs with small errors and small graphs with large ones: pooled items would forget the small graphs."""
    covered = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        sizes = generator.choice([1, 40], size=200)
        graph = np.repeat(np.arange(200), sizes)
        error = generator.normal(size=len(graph)) * np.where(sizes[graph] == 1, 5.0, 1.0)
        flat = MixtureMoments(mean=np.zeros(len(graph)), epistemic=np.zeros(len(graph)), aleatoric=np.zeros(len(graph)))
        field = Field(name="heat", on="node", role="target")
        calibration = fit_calibration(field, error[graph < 100], part(flat, graph < 100), graph[graph < 100])
        new = graph >= 100
        inside = np.abs(error[new]) <= of_single_nodes(field, calibration, part(flat, new)).half_width
        covered.append(np.mean([inside[graph[new] == g].mean() for g in range(100, 200)]))
    # the mean over 40 calibrations of 100 graphs: its standard error is below 0.01
    assert 0.885 <= np.mean(covered) <= 0.935


def part(moments: MixtureMoments, rows: slice) -> MixtureMoments:
    return MixtureMoments(mean=moments.mean[rows], epistemic=moments.epistemic[rows], aleatoric=moments.aleatoric[rows])


def test_the_calibrated_spread_is_honest() -> None:
    generator = np.random.default_rng(5)
    std = generator.uniform(0.5, 2.0, size=3000)
    target = generator.normal(0.0, std)
    moments = MixtureMoments(mean=np.zeros(3000), epistemic=(0.1 * std) ** 2, aleatoric=np.zeros(3000))
    calibration = fit_calibration(ENERGY, target, moments, np.arange(3000))
    # the factor is known to 1/sqrt(2 * 3000) = 1.3 %
    assert calibration.components[0].scale == pytest.approx(10.0, rel=0.05)
    assert miscalibration_area(target, moments.mean, of_single_nodes(ENERGY, calibration, moments).std) < 0.02
    assert of_single_nodes(ENERGY, calibration, moments).factor == pytest.approx(calibration.components[0].scale ** 2)


def test_members_that_agree_by_chance_do_not_make_an_empty_interval() -> None:
    target, moments, graph = synthetic(ENERGY, 100, 1, 3)
    calibration = fit_calibration(ENERGY, target, moments, graph)
    agreed = MixtureMoments(mean=np.zeros(1), epistemic=np.zeros(1), aleatoric=np.zeros(1))
    assert of_single_nodes(ENERGY, calibration, agreed).half_width[0] > 0


def test_one_point_model_gets_intervals_of_equal_width() -> None:
    target = np.random.default_rng(0).normal(size=50)
    alone = MixtureMoments(mean=np.zeros(50), epistemic=np.zeros(50), aleatoric=np.zeros(50))
    calibration = fit_calibration(ENERGY, target, alone, np.arange(50))
    assert calibration.method == "absolute"
    std = of_single_nodes(ENERGY, calibration, alone).std
    np.testing.assert_allclose(std, np.sqrt(np.mean(target**2)))


def test_components_with_different_scales_are_calibrated_apart_unless_they_turn() -> None:
    field = Field(name="pair", on="graph", shape=(2,), role="target")
    generator = np.random.default_rng(0)
    target = generator.normal(size=(400, 2)) * np.array([1.0, 100.0])
    moments = MixtureMoments(mean=np.zeros((400, 2)), epistemic=np.ones((400, 2)), aleatoric=np.zeros((400, 2)))
    calibration = fit_calibration(field, target, moments, np.arange(400))
    assert [round(math.log10(component.scale)) for component in calibration.components] == [0, 2]
    vectors = Field(name="pull", on="graph", shape=(2,), parity="vector", role="target")
    assert len(fit_calibration(vectors, target, moments, np.arange(400)).components) == 1


def test_a_perfect_model_still_has_finite_calibration() -> None:
    exact = MixtureMoments(mean=np.ones(20), epistemic=np.zeros(20), aleatoric=np.zeros(20))
    calibration = fit_calibration(ENERGY, np.ones(20), exact, np.arange(20))
    assert np.isfinite(of_single_nodes(ENERGY, calibration, part(exact, slice(3))).half_width).all()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda t, m, g: fit_calibration(ENERGY, t, m, g, nominal=90.0), "fraction between 0 and 1"),
        (lambda t, m, g: fit_calibration(ENERGY, t[:0], part(m, slice(0)), g[:0]), "labelled"),
        (lambda t, m, g: calibration_from_json({"method": "spread"}), "damaged"),
    ],
    ids=["nominal in percent", "no labels", "damaged"],
)
def test_bad_calibration_input_is_refused(call: Callable, says: str) -> None:
    target, moments, graph = synthetic(ENERGY, 20, 1, 0)
    with pytest.raises(InputError, match=says):
        call(target, moments, graph)
