"""Intervals hold the truth as often as they say, for the large and the small, by factors of thirds."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.ensemble.estimates.calibration.corrections import LARGEST, NONE, PRIOR, Correction, fit_corrections
from hydragnn.ensemble.estimates.calibration.numbers import (
    Calibrated,
    Calibration,
    calibrated,
    conformal_quantile,
    fit_calibration,
    rows_of,
)
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.metrics import miscalibration_area
from hydragnn.ensemble.estimates.moments import MixtureMoments
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from tests.ensemble.conftest import points

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


HUMP = Target(field=ENERGY, extensive=True)
DRAWS = 60


def labelled(graphs: int, generator: np.random.Generator) -> Labelled:
    """Errors that are largest for predictions of middle size, and smallest for the largest graphs."""
    nodes = generator.integers(2, 200, graphs)
    mean = generator.uniform(0.0, 3.0, graphs) * generator.choice([-1.0, 1.0], graphs)
    sigma = np.where(np.abs(np.abs(mean) - 1.5) < 0.5, 2.0, 1.0) * np.where(nodes > 134, 0.5, 1.0)
    truth = mean + sigma * generator.normal(size=graphs)
    return points(truth, [mean], np.arange(graphs), nodes)


def moments(items: Labelled) -> MixtureMoments:
    mean = items.members[0].mean.numpy()
    return MixtureMoments(mean=mean, epistemic=np.zeros_like(mean), aleatoric=np.zeros_like(mean))


def thirds(calibration: Calibration, fresh: Labelled) -> np.ndarray:
    """Coverage of thirds by magnitude, then by nodes."""
    half_width = calibrated(ENERGY, calibration, moments(fresh), fresh.nodes).half_width
    inside = np.abs(fresh.labels - moments(fresh).mean) <= half_width
    orders = [np.argsort(by, kind="stable") for by in (np.abs(moments(fresh).mean), fresh.nodes)]
    return np.array([part.mean() for order in orders for part in np.array_split(inside[order], 3)])


def test_thirds_share_the_promise_where_no_form_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    corrected, bare = [], []
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        valid, apart, fresh = (labelled(n, generator) for n in (100, 50, 400))
        corrected.append(thirds(NumberEstimate.calibration(HUMP, valid, apart, np.ones(1), 0.9), fresh))
        with monkeypatch.context() as patch:
            patch.setattr("hydragnn.ensemble.estimates.calibration.numbers.fit_corrections", lambda *of: NONE)
            bare.append(thirds(NumberEstimate.calibration(HUMP, valid, apart, np.ones(1), 0.9), fresh))
    # split conformal promises 46 of 51 over all graphs, whatever the factors; 0.046 is the deviation of one draw
    assert np.mean(corrected) == pytest.approx(46 / 51, abs=4 * 0.046 / DRAWS**0.5)
    worst = np.abs(np.mean(corrected, axis=0) - 46 / 51).max()
    assert worst <= 0.05 and np.abs(np.mean(bare, axis=0) - 46 / 51).max() > 1.5 * worst


def test_where_thirds_are_alike_many_graphs_need_no_factors() -> None:
    generator = np.random.default_rng(1)
    size = 20_000
    fitted = fit_corrections(
        np.abs(generator.normal(size=size)),
        generator.integers(2, 50, size).astype(float),
        generator.uniform(size=size),
        np.arange(size),
    )
    factors = [*fitted.nodes.factors, *fitted.magnitude.factors]
    assert len(factors) == 6 and factors == pytest.approx(np.ones(6), abs=0.05)


def test_few_graphs_hardly_move_a_factor() -> None:
    scores, values = np.array([1.0, 1.0, 8.0]), np.array([1.0, 2.0, 3.0])
    fitted = fit_corrections(scores, np.ones(3), values, np.arange(3))
    assert fitted.magnitude.factors[2] / fitted.magnitude.factors[0] == pytest.approx(8.0 ** (1 / (1 + PRIOR)))
    assert fitted.nodes == Correction(knots=(1.0,), factors=(1.0,))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1e-6, 0.5, 1024.0]))
def test_neither_order_nor_numbering_nor_unit_matters(seed: int, unit: float) -> None:
    generator = np.random.default_rng(seed)
    rows, graphs = 60, 15
    scores, magnitude = np.abs(generator.normal(size=(2, rows)))
    nodes, graph = generator.integers(1, 6, rows).astype(float), generator.integers(0, graphs, rows)
    order, names = generator.permutation(rows), generator.permutation(graphs)
    one = fit_corrections(scores, nodes, magnitude, graph)
    other = fit_corrections(scores[order], nodes[order], unit * magnitude[order], names[graph][order])
    assert one.of(nodes, magnitude) == pytest.approx(other.of(nodes, unit * magnitude), rel=1e-9)
    assert all(1 / LARGEST <= factor <= LARGEST for factor in (*one.nodes.factors, *one.magnitude.factors))
    doubled = np.concatenate([np.arange(rows)] * 2)  # every item of every graph twice
    twice = fit_corrections(scores[doubled], nodes[doubled], magnitude[doubled], graph[doubled])
    assert one.of(nodes, magnitude) == pytest.approx(twice.of(nodes, magnitude), rel=1e-9)


def test_a_graph_with_many_items_in_a_third_counts_there_as_one_with_few() -> None:
    generator = np.random.default_rng(5)
    magnitude, graph = np.tile([1.0, 2.0, 3.0], 20), np.repeat(np.arange(20), 3)
    scores = np.abs(generator.normal(size=60))
    scores[0] = 4.0
    ratios = []
    for rows in (np.arange(60), np.concatenate([np.arange(60), np.zeros(5, dtype=np.int64)])):
        factors = fit_corrections(scores[rows], np.ones(len(rows)), magnitude[rows], graph[rows]).magnitude.factors
        ratios.append([factor / factors[2] for factor in factors])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-9)


@pytest.mark.parametrize("scores", [np.zeros(30), np.repeat([0.0, 1.0, 1e30], 10)], ids=["perfect", "partly perfect"])
def test_errors_of_zero_have_finite_factors(scores: np.ndarray) -> None:
    fitted = fit_corrections(scores, np.full(30, 4.0), np.arange(30.0), np.arange(30))
    assert np.isfinite(fitted.of(np.array([4.0]), np.array([np.float64(3.0)]))).all()


def test_vectors_are_corrected_by_their_length() -> None:
    generator = np.random.default_rng(3)
    mean = generator.normal(size=(90, 3)) * np.exp(generator.normal(size=(90, 1)))
    error = generator.normal(size=(90, 3)) * np.where(np.linalg.norm(mean, axis=1) > 1.5, 5.0, 1.0)[:, None]
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    graph, nodes = np.repeat(np.arange(30), 3), np.repeat(generator.integers(2, 9, 30), 3)
    widths = []
    for rotation in (np.eye(3), turn):
        rows = (mean + error) @ rotation, [mean @ rotation], graph, nodes
        own = points(*rows)
        target = Target(field=FORCES)
        fitted = NumberEstimate.calibration(target, own, own, np.ones(1), 0.9)
        assert fitted.components[0].corrections != NONE
        one = NumberEstimate.of(target, own.members, np.ones(1), fitted, nodes)
        widths.append(one.std)
        np.testing.assert_allclose(widths[-1], widths[-1][:, :1].repeat(3, axis=1), rtol=1e-9)
    np.testing.assert_allclose(widths[0], widths[1], rtol=1e-9)


def two_members(graphs: int) -> tuple[Labelled, Labelled]:
    generator = np.random.default_rng(4)
    parts = []
    for _ in range(2):
        one = labelled(graphs, generator)
        mean = one.members[0].mean
        other = mean + 0.1 * torch.from_numpy(generator.normal(size=graphs))
        parts.append(replace(one, members=[one.members[0], Point(mean=other)]))
    return parts[0], parts[1]


def test_the_parts_of_the_variance_and_what_is_added_sum_to_it_above_the_floor() -> None:
    valid, apart = two_members(100)
    fitted = NumberEstimate.calibration(HUMP, valid, apart, np.full(2, 0.5), 0.9)
    one = NumberEstimate.of(HUMP, apart.members, np.full(2, 0.5), fitted, apart.nodes)
    first, second = (one.mean.numpy() for one in apart.members)
    component, mixed = fitted.components[0], moments_of(apart.members, np.full(2, 0.5))
    relative = fitted.form.relative(
        rows_of(ENERGY, mixed, apart.nodes).nodes, np.abs(first + second) / 2 / component.typical
    )
    added = (
        calibrated(ENERGY, fitted, mixed, apart.nodes).factor
        * (fitted.form.shared * component.reference * relative) ** 2
    )
    above = np.abs(first - second) / 2 > component.floor * relative
    assert fitted.follows and above.any() and fitted.form.shared
    parts = one.epistemic**2 + one.aleatoric**2 + added
    np.testing.assert_allclose(one.std[above] ** 2, parts[above], rtol=1e-9)


def test_the_calibration_part_has_no_say_in_factors_and_the_report_mentions_them() -> None:
    generator = np.random.default_rng(0)
    valid, apart, other = (labelled(60, generator) for _ in range(3))
    fitted = [NumberEstimate.calibration(HUMP, valid, part, np.ones(1), 0.9) for part in (apart, other)]
    assert fitted[0].components[0].corrections == fitted[1].components[0].corrections != NONE
    assert ", corrected by thirds of graphs and predictions; calibrated on 60 graphs" in fitted[0].sentence
    alone = NumberEstimate.calibration(HUMP, valid, None, np.ones(1), 0.9)
    assert alone.components[0].corrections == NONE and "corrected" not in alone.sentence


def test_factors_come_back_from_json_and_manifests_without_them_have_none() -> None:
    valid, apart = two_members(60)
    fitted = NumberEstimate.calibration(HUMP, valid, apart, np.full(2, 0.5), 0.9)
    written = json.loads(json.dumps(fitted.to_json()))
    assert calibration_from_json(written) == fitted
    written["components"][0].pop("corrections")
    read = calibration_from_json(written)
    assert isinstance(read, Calibration) and read.components[0].corrections == NONE
