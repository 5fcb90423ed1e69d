"""Intervals hold the truth as often as they say, for the large and the small, and widths grow with what errors grow with."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.ensemble.estimates.calibration.corrections import LARGEST, NONE, PRIOR, Correction, fit_corrections
from hydragnn.ensemble.estimates.calibration.forms import (
    CONSTANT,
    GROWTH,
    GrowthForm,
    LabelledRows,
    choose_form,
    forms,
    left_out_crps,
)
from hydragnn.ensemble.estimates.calibration.numbers import (
    Calibration,
    calibrated,
    conformal_quantile,
    fit_calibration,
    fit_scale,
    labelled_rows,
    rows_of,
)
from hydragnn.ensemble.estimates.calibration.protocol import Distance
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.metrics import gaussian_crps, miscalibration_area
from hydragnn.ensemble.estimates.moments import MixtureMoments
from hydragnn.ensemble.estimates.numbers import NumberEstimate, moments_of
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from tests.ensemble.conftest import TARGETS, distances_of, points, refused

ENERGY, FORCES = TARGETS
EXTENSIVE = Target(field=ENERGY, extensive=True)
ALONE, BOTH = np.ones(1), np.full(2, 0.5)
DRAWS = 100


def mixture(mean: np.ndarray, variance: np.ndarray | float = 0.0) -> MixtureMoments:
    epistemic = np.broadcast_to(np.asarray(variance, dtype=np.float64), mean.shape)
    return MixtureMoments(mean=mean, epistemic=epistemic, aleatoric=np.zeros(mean.shape))


class Calibrated(NamedTuple):
    std: np.ndarray
    half_width: np.ndarray
    factor: np.ndarray


def of_single_nodes(field: Field, calibration: Calibration, moments: MixtureMoments) -> Calibrated:
    return Calibrated(*calibrated(field, calibration, moments, np.ones(len(moments.mean), dtype=np.int64)))


@given(st.integers(1, 300), st.floats(0.05, 0.99), st.integers(2, 5))
def test_the_quantile_is_the_split_conformal_rank_of_graphs(graphs: int, nominal: float, copies: int) -> None:
    scores = np.random.default_rng(graphs).uniform(size=graphs)
    rank = math.ceil((graphs + 1) * nominal - 1e-9)
    value, guaranteed = conformal_quantile(scores, np.arange(graphs), nominal)
    assert guaranteed == (rank <= graphs) and value == np.sort(scores)[min(rank, graphs) - 1]
    repeated = conformal_quantile(np.repeat(scores, copies), np.repeat(np.arange(graphs), copies), 0.8)
    assert repeated == conformal_quantile(scores, np.arange(graphs), 0.8)


def synthetic(field: Field, graphs: int, items: int, seed: int) -> tuple[np.ndarray, MixtureMoments, np.ndarray]:
    """Heteroscedastic errors with a strong effect of the graph; three members' worth of noise in the spread."""
    generator = np.random.default_rng(seed)
    graph = np.repeat(np.arange(graphs), items)
    sigma = np.exp(generator.normal(size=graphs))[graph] * np.exp(0.3 * generator.normal(size=graphs * items))
    shape, sigma = (graphs * items, *field.shape), sigma.reshape(-1, *[1] * len(field.shape))
    error = generator.normal(size=shape) * sigma
    return error, mixture(np.zeros(shape), (0.2 * sigma) ** 2 * generator.chisquare(2, size=shape) / 2), graph


@pytest.mark.parametrize("differ", [True, False])
@pytest.mark.parametrize("field, items", [(ENERGY, 1), (FORCES, 12)], ids=["graph scalar", "node vector"])
def test_coverage_on_new_graphs_is_nominal(field: Field, items: int, differ: bool) -> None:
    observed = []
    for seed in range(30):
        target, moments, graph = synthetic(field, 120, items, seed)
        fresh, new, _ = synthetic(field, 120, items, 1000 + seed)
        moments, new = (replace(one, epistemic=one.epistemic * differ) for one in (moments, new))
        calibration = fit_calibration(field, target, moments, graph, nominal=0.9)
        assert calibration.guaranteed and calibration.follows == differ
        observed.append(float(np.mean(np.abs(fresh) <= of_single_nodes(field, calibration, new).half_width)))
    # the mean over 30 calibrations of 120 graphs: its standard error is below 0.01
    assert 0.875 <= np.mean(observed) <= 0.935


def test_graphs_of_any_size_are_covered_alike() -> None:
    """Large graphs with small errors and small graphs with large ones: pooled items would forget the small graphs."""
    covered, field = [], Field(name="heat", on="node", role="target")
    for seed in range(40):
        generator = np.random.default_rng(seed)
        sizes = generator.choice([1, 40], size=200)
        graph = np.repeat(np.arange(200), sizes)
        error = generator.normal(size=len(graph)) * np.where(sizes[graph] == 1, 5.0, 1.0)
        old, new = graph < 100, graph >= 100
        calibration = fit_calibration(field, error[old], mixture(np.zeros(old.sum())), graph[old])
        inside = np.abs(error[new]) <= of_single_nodes(field, calibration, mixture(np.zeros(new.sum()))).half_width
        covered.append(np.mean([inside[graph[new] == g].mean() for g in range(100, 200)]))
    # the mean over 40 calibrations of 100 graphs: its standard error is below 0.01
    assert 0.885 <= np.mean(covered) <= 0.935


def test_the_calibrated_spread_is_honest() -> None:
    generator = np.random.default_rng(5)
    std = generator.uniform(0.5, 2.0, size=3000)
    target, moments = generator.normal(0.0, std), mixture(np.zeros(3000), (0.1 * std) ** 2)
    calibration = fit_calibration(ENERGY, target, moments, np.arange(3000))
    one = of_single_nodes(ENERGY, calibration, moments)
    # the factor is known to 1/sqrt(2 * 3000) = 1.3 %
    assert calibration.components[0].scale == pytest.approx(10.0, rel=0.05)
    assert miscalibration_area(target, moments.mean, one.std) < 0.02
    assert one.factor == pytest.approx(calibration.components[0].scale ** 2)


def test_members_that_agree_and_one_point_model_get_intervals_of_equal_width_also_where_it_is_perfect() -> None:
    calibration = fit_calibration(ENERGY, *synthetic(ENERGY, 100, 1, 3))
    assert of_single_nodes(ENERGY, calibration, mixture(np.zeros(1))).half_width[0] > 0
    for target in (np.random.default_rng(0).normal(size=50), np.zeros(50)):
        calibration = fit_calibration(ENERGY, target, mixture(np.zeros(50)), np.arange(50))
        one = of_single_nodes(ENERGY, calibration, mixture(np.zeros(50)))
        np.testing.assert_allclose(one.std, np.sqrt(np.mean(target**2)), atol=1e-20)
        assert calibration.method == "absolute" and np.isfinite(one.half_width).all()


def test_components_with_different_scales_are_calibrated_apart_unless_they_turn() -> None:
    field = Field(name="pair", on="graph", shape=(2,), role="target")
    target = np.random.default_rng(0).normal(size=(400, 2)) * np.array([1.0, 100.0])
    rows = target, mixture(np.zeros((400, 2)), 1.0), np.arange(400)
    calibration = fit_calibration(field, *rows)
    assert [round(math.log10(component.scale)) for component in calibration.components] == [0, 2]
    assert len(fit_calibration(replace(field, parity="vector"), *rows).components) == 1


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda t, m, g: fit_calibration(ENERGY, t, m, g, nominal=90.0), "fraction between 0 and 1"),
        (lambda t, m, g: fit_calibration(ENERGY, t[:0], mixture(t[:0]), g[:0]), "labelled"),
        (lambda t, m, g: calibration_from_json({"method": "spread"}), "damaged"),
    ],
)
def test_bad_calibration_input_is_refused(call: Callable[..., Any], says: str) -> None:
    refused(says, call, *synthetic(ENERGY, 20, 1, 0))


SIGMAS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "constant": lambda nodes, size: np.ones(len(nodes)),
    "sqrt_nodes": lambda nodes, size: np.sqrt(nodes),
    "nodes": lambda nodes, size: nodes / 10,
    "magnitude": lambda nodes, size: 0.1 + size,
    "no form": lambda nodes, size: np.where(abs(np.log(size)) < 0.43, 2.0, 1.0) * np.where(nodes > 134, 0.5, 1.0),
}
"""Errors by nodes and the size of predictions."""


def labelled(kind: str, graphs: int, generator: np.random.Generator) -> Labelled:
    """Return graphs whose errors grow in one way, and the prediction of a single model."""
    nodes = generator.integers(2, 200, graphs)
    mean = np.exp(generator.normal(0.0, 1.0, graphs)) * generator.choice([-1.0, 1.0], graphs)
    truth = mean + 0.01 * SIGMAS[kind](nodes, np.abs(mean)) * generator.normal(size=graphs)
    return points(truth, [mean], np.arange(graphs), nodes)


def parts(kind: str, *sizes: int, seed: Any = 0) -> list[Labelled]:
    generator = np.random.default_rng(seed)
    return [labelled(kind, size, generator) for size in sizes]


def fit(valid: Labelled, apart: Labelled | None, weights: np.ndarray = ALONE) -> Calibration:
    return NumberEstimate.calibration(EXTENSIVE, valid, apart, weights, 0.9)


def thirds(calibration: Calibration, fresh: Labelled) -> np.ndarray:
    """Coverage of thirds by magnitude, then by nodes."""
    mean = fresh.members[0].mean.numpy()
    _, half_width, _ = calibrated(ENERGY, calibration, mixture(mean), fresh.nodes)
    inside = np.abs(fresh.labels - mean) <= half_width
    orders = [np.argsort(by, kind="stable") for by in (np.abs(mean), fresh.nodes)]
    return np.array([part.mean() for order in orders for part in np.array_split(inside[order], 3)])


@pytest.mark.parametrize("kind", SIGMAS)
def test_one_model_alone_covers_small_and_large_alike(kind: str) -> None:
    """By forms, and by factors of thirds where no form fits."""
    chosen, plain = [], []
    for seed in range(DRAWS):
        valid, apart, fresh = parts(kind, 100, 50, 300, seed=[seed, *kind.encode()])
        chosen.append(thirds(fit(valid, apart), fresh))
        constant = fit_calibration(ENERGY, apart.labels, moments_of(apart.members, ALONE), apart.graph)
        plain.append(thirds(constant, fresh))
    # split conformal promises 46 of 51; a draw has a standard error of 0.042 from its 50 graphs and 0.017 from the fresh ones
    assert np.mean(chosen) == pytest.approx(46 / 51, abs=4 * 0.046 / DRAWS**0.5)
    # the same with 100 graphs in a third, and what remains of wrong choices among validation graphs
    worst = np.abs(np.mean(chosen, axis=0) - 46 / 51).max()
    assert worst <= 0.05
    assert kind == "constant" or np.abs(np.mean(plain, axis=0) - 46 / 51).max() > 1.5 * worst


def rows_by_nodes(kind: str, graphs: int, seed: int, variance: float = 0.0) -> tuple[Labelled, LabelledRows]:
    one = labelled(kind, graphs, np.random.default_rng(seed))
    moments = mixture(one.members[0].mean.numpy(), variance)
    return one, labelled_rows(ENERGY, one.labels, moments, one.graph, one.nodes)


@pytest.mark.parametrize("kind", GROWTH)
def test_with_many_graphs_the_right_form_is_chosen(kind: str) -> None:
    rows = rows_by_nodes(kind, 2000, 1)[1]
    assert choose_form(rows, forms(extensive=True), follows=False).kind == kind
    of_one = replace(rows, graph=np.zeros(2000, dtype=np.int64))
    assert choose_form(of_one, forms(extensive=True), follows=False) == CONSTANT


def test_only_what_adds_up_over_nodes_grows_with_them() -> None:
    assert {form.kind for form in forms(extensive=False)} == {"constant", "magnitude"}
    assert {form.kind for form in forms(extensive=True)} == set(GROWTH) and forms(extensive=True)[0] == CONSTANT
    for form in forms(extensive=True):  # also without nodes
        assert (form.relative(np.zeros(2), np.zeros((2, 1))) > 0).all()


def test_where_thirds_are_alike_many_graphs_need_no_factors() -> None:
    generator, size = np.random.default_rng(1), 20_000
    scores, nodes = np.abs(generator.normal(size=size)), generator.integers(2, 50, size).astype(float)
    fitted = fit_corrections(scores, nodes, generator.uniform(size=size), np.arange(size))
    factors = [*fitted.nodes.factors, *fitted.magnitude.factors]
    assert len(factors) == 6 and factors == pytest.approx(np.ones(6), abs=0.05)


def test_few_graphs_hardly_move_a_factor() -> None:
    fitted = fit_corrections(np.array([1.0, 1.0, 8.0]), np.ones(3), np.array([1.0, 2.0, 3.0]), np.arange(3))
    assert fitted.magnitude.factors[2] / fitted.magnitude.factors[0] == pytest.approx(8.0 ** (1 / (1 + PRIOR)))
    assert fitted.nodes == Correction(knots=(1.0,), factors=(1.0,))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 0.5, 1024.0]))
def test_neither_order_nor_numbering_nor_unit_matters(seed: int, follows: bool, unit: float) -> None:
    generator, order = np.random.default_rng(seed), np.random.default_rng(seed).permutation(40)
    error, *others = generator.normal(size=(3, 40, 2))
    own = {"nodes": generator.integers(1, 30, 40).astype(np.float64), "graph": generator.integers(0, 10, 40)}
    rows = LabelledRows(error=error, spread=np.abs(others[0]), magnitude=np.abs(others[1]), **own)
    names = np.random.default_rng(seed + 1).permutation(10) + 7
    numbers = {name: unit * getattr(rows, name)[order] for name in ("error", "spread", "magnitude")}
    other = LabelledRows(**numbers, nodes=rows.nodes[order], graph=names[rows.graph][order])
    assert choose_form(rows, forms(True), follows) == choose_form(other, forms(True), follows)
    scales = [fit_scale(replace(one, spread=one.spread * follows), forms(True)) for one in (rows, other)]
    assert {scale.follows for scale in scales} == {follows}
    for ours, theirs in zip(*(scale.components for scale in scales)):
        assert theirs.floor == pytest.approx(unit * ours.floor, rel=1e-9)

    def factors(of: LabelledRows, own: Any = slice(None), unit: float = 1.0) -> np.ndarray:
        columns = np.abs(of.error[own, 0]), of.nodes[own], of.magnitude[own, 0], of.graph[own]
        fitted = fit_corrections(*columns)
        assert all(1 / LARGEST <= factor <= LARGEST for factor in (*fitted.nodes.factors, *fitted.magnitude.factors))
        return fitted.of(rows.nodes, unit * rows.magnitude[:, 0])

    assert factors(rows) == pytest.approx(factors(other, unit=unit), rel=1e-9)
    assert factors(rows) == pytest.approx(factors(rows, np.tile(np.arange(40), 2)), rel=1e-9)  # every item twice


def test_a_graph_with_many_items_in_a_third_counts_there_as_one_with_few() -> None:
    magnitude, graph = np.tile([1.0, 2.0, 3.0], 20), np.repeat(np.arange(20), 3)
    scores = np.abs(np.random.default_rng(5).normal(size=60))
    scores[0] = 4.0
    ratios = []
    for rows in (np.arange(60), np.concatenate([np.arange(60), np.zeros(5, dtype=np.int64)])):
        factors = fit_corrections(scores[rows], np.ones(len(rows)), magnitude[rows], graph[rows]).magnitude.factors
        ratios.append([factor / factors[2] for factor in factors])
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-9)


@pytest.mark.parametrize("scores", [np.zeros(30), np.repeat([0.0, 1.0, 1e30], 10)], ids=["perfect", "partly perfect"])
def test_errors_of_zero_have_finite_factors(scores: np.ndarray) -> None:
    fitted = fit_corrections(scores, np.full(30, 4.0), np.arange(30.0), np.arange(30))
    assert np.isfinite(fitted.of(np.array([4.0]), np.array([3.0]))).all()


def test_vectors_have_the_same_intervals_however_the_axes_lie() -> None:
    """By their length, by factors of thirds, and by their distance from training data."""
    generator, target = np.random.default_rng(3), Target(field=FORCES)
    mean = generator.normal(size=(90, 3)) * np.exp(generator.normal(size=(90, 1)))
    error = generator.normal(size=(90, 3)) * np.where(np.linalg.norm(mean, axis=1) > 1.5, 5.0, 1.0)[:, None]
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    graph, nodes = np.repeat(np.arange(30), 3), np.repeat(generator.integers(2, 9, 30), 3)
    distances, widths = distances_of(np.repeat(generator.uniform(0.03, 1.0, size=30), 3), 0.5), []
    for rotation in (np.eye(3), turn):
        rows = (mean + error) @ rotation, [mean @ rotation], graph, nodes
        valid = apart = points(*rows, distances)
        plain = NumberEstimate.calibration(target, valid, apart, ALONE, 0.9)
        fitted = NumberEstimate.calibration_at(target, plain, [apart], ALONE, Distance.among(distances))
        assert fitted.form.kind == "magnitude" and fitted.components[0].corrections != NONE
        widths.append(NumberEstimate.of(target, valid.members, ALONE, fitted, nodes).at(fitted, distances).std)
        np.testing.assert_allclose(widths[-1], widths[-1][:, :1].repeat(3, axis=1), rtol=1e-9)
    np.testing.assert_allclose(widths[0], widths[1], rtol=1e-9)


def two_members(graphs: int) -> list[Labelled]:
    generator, both = np.random.default_rng(4), []
    for one in parts("no form", graphs, graphs):
        mean, apart = one.members[0].mean, 0.001 * torch.from_numpy(generator.normal(size=graphs))
        both.append(replace(one, members=[Point(mean=mean), Point(mean=mean + apart)]))
    return both


def test_the_parts_of_the_variance_and_what_is_added_sum_to_it_above_the_floor() -> None:
    valid, apart = two_members(100)
    fitted = fit(valid, apart, BOTH)
    one = NumberEstimate.of(EXTENSIVE, apart.members, BOTH, fitted, apart.nodes)
    first, second = (one.mean.numpy() for one in apart.members)
    component, mixed = fitted.components[0], moments_of(apart.members, BOTH)
    sizes = np.abs(first + second) / 2 / component.typical
    relative = fitted.form.relative(rows_of(ENERGY, mixed, apart.nodes).nodes, sizes)
    _, _, factor = calibrated(ENERGY, fitted, mixed, apart.nodes)
    added = factor * (fitted.form.shared * component.reference * relative) ** 2
    above = np.abs(first - second) / 2 > component.floor * relative
    assert fitted.follows and above.any() and fitted.form.shared
    variance = one.epistemic**2 + one.aleatoric**2 + added
    np.testing.assert_allclose(one.std[above] ** 2, variance[above], rtol=1e-9)


def test_the_calibration_part_chooses_nothing_and_validation_that_calibrates_chooses_no_form() -> None:
    valid, apart = parts("nodes", 60, 50)
    odd = replace(apart, labels=apart.labels + 100 * np.random.default_rng(1).normal(size=50) ** 3)
    one, other = fit(valid, apart), fit(valid, odd)
    assert (one.form, one.method) == (other.form, other.method)
    for ours, theirs in zip(one.components, other.components, strict=True):
        assert ours.corrections != NONE and ours.scale < theirs.scale
        assert ours == replace(theirs, scale=ours.scale, quantile=ours.quantile)
    alone = fit(valid, None)
    assert (alone.form, alone.part, alone.graphs, alone.components[0].corrections) == (CONSTANT, "valid", 60, NONE)
    assert "are the same for all; calibrated on 60 validation graphs" in alone.sentence


def test_few_calibration_graphs_promise_nothing_and_say_so() -> None:
    valid, apart, more = parts("constant", 60, 8, 9)
    fitted = fit(valid, apart)
    assert not fitted.guaranteed and "8 graphs that chose nothing: too few to guarantee 90 %" in fitted.sentence
    one = NumberEstimate.of(EXTENSIVE, apart.members, ALONE, fitted, apart.nodes)
    # the largest error is the width
    assert ((one.lower <= apart.labels + 1e-12) & (apart.labels <= one.upper + 1e-12)).all()
    assert fit(valid, more).guaranteed


def test_items_without_a_prediction_have_no_interval() -> None:
    members = [Point(mean=torch.tensor([1.0, float("nan")], dtype=torch.float64))]
    one = NumberEstimate.of(EXTENSIVE, members, ALONE, fit(*parts("nodes", 60, 50)), np.array([5, 5]))
    assert np.isfinite(one.upper).tolist() == [True, False] and np.isfinite(one.std).tolist() == [True, False]


def test_a_factor_is_fitted_without_the_graph_that_it_is_judged_on() -> None:
    error, graph = np.array([1.0, 1.0, 2.0]), np.array([0, 0, 1])
    first = gaussian_crps(error[:2], np.zeros(2), np.full(2, 2.0)).mean()
    second = gaussian_crps(error[2:], np.zeros(1), np.ones(1)).mean()
    assert left_out_crps(error, np.ones(3), graph) == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("form", forms(extensive=True), ids=str)
def test_json_keeps_the_form(form: GrowthForm) -> None:
    variance = float(form.shared > 0)  # only where there is a spread to add to
    one, rows = rows_by_nodes("nodes", 30, 0, variance)
    scale, moments = fit_scale(rows, [form]), mixture(one.members[0].mean.numpy(), variance)
    assert scale.form == form
    fitted = fit_calibration(ENERGY, one.labels, moments, one.graph, nodes=one.nodes, scale=scale)
    assert calibration_from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


def test_factors_come_back_from_json_and_manifests_without_them_have_none() -> None:
    fitted = fit(*two_members(60), BOTH)
    written = json.loads(json.dumps(fitted.to_json()))
    assert fitted.components[0].corrections != NONE and calibration_from_json(written) == fitted
    written["components"][0].pop("corrections")
    read = calibration_from_json(written)
    assert isinstance(read, Calibration) and read.components[0].corrections == NONE


@pytest.mark.parametrize("honest", [True, False], ids=["spread of the errors", "spread by chance"])
def test_a_typical_spread_is_added_where_few_members_differ_by_chance(honest: bool) -> None:
    generator = np.random.default_rng(6)
    sigma = np.exp(generator.normal(size=400)) if honest else np.ones(400)
    spread = sigma if honest else np.abs(generator.normal(size=400))
    moments, nodes = mixture(np.zeros(400), spread**2), np.ones(400, dtype=np.int64)
    rows = labelled_rows(ENERGY, sigma * generator.normal(size=400), moments, np.arange(400), nodes)
    assert (fit_scale(rows, forms(extensive=False)).form.shared == 0.0) == honest


def test_what_is_added_to_a_spread_joins_it_as_the_root_of_the_sum_of_squares() -> None:
    component = {"scale": 2.0, "floor": 1.5, "quantile": 1.5, "reference": 3.0}
    written = {"method": "spread", "nominal": 0.9, "components": [component], "graphs": 20, "guaranteed": True}
    for form, stds in (({"shared": 1.0}, [10.0, 6.0]), ({}, [8.0, 3.0])):
        read = calibration_from_json({**written, "form": {"kind": "nodes", "growth": 0.0, **form}})
        assert isinstance(read, Calibration)
        one = of_single_nodes(ENERGY, read, mixture(np.zeros(2), np.array([16.0, 0.0])))
        assert one.std.tolist() == pytest.approx(stds)


def test_sentences_say_what_widths_grow_with_and_who_calibrated() -> None:
    assert fit(*parts("sqrt_nodes", 900, 52)).sentence == (
        "interval widths grow with the square root of the number of nodes, corrected by thirds of graphs and predictions; "
        "calibrated on 52 graphs that chose nothing"
    )
    for shared, words in ((0.0, ", with a floor"), (1.0, " beside a typical one")):
        expected = f"follow the members' spread{words} that grows with the number of nodes"
        assert GrowthForm(kind="nodes", shared=shared).words(follows=True) == expected


def test_errors_of_what_grows_are_stated_per_node_too_and_others_are_not() -> None:
    (some,) = parts("nodes", 40)
    error, trivial = np.abs(some.members[0].mean.numpy() - some.labels) / some.nodes, {"mae": 3.0, "mae_per_node": 0.1}
    for target in (EXTENSIVE, Target(field=ENERGY)):
        estimate = NumberEstimate.of(target, some.members, ALONE, None, some.nodes)
        scores = estimate.evaluation(some.labels, some.nodes, ["a"], trivial, {"ridge": trivial})
        if not target.extensive:
            assert not any("per_node" in key for one in (scores.ensemble, scores.trivial) for key in one)
            continue
        for one in (scores.ensemble, scores.members["a"]):
            assert one["mae_per_node"] == pytest.approx(error.mean(), rel=1e-12)
            assert one["rmse_per_node"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
        assert scores.trivial["mae_per_node"] == scores.baselines["ridge"]["mae_per_node"] == 0.1
