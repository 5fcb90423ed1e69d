"""Interval widths grow with what errors grow with, and keep their promise for the large and for the small."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
    fit_calibration,
    fit_scale,
    labelled_rows,
)
from hydragnn.ensemble.estimates.estimate import Labelled
from hydragnn.ensemble.estimates.moments import MixtureMoments
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.ensemble.manifest import calibration_from_json
from hydragnn.graphs import Field
from hydragnn.models import Point, Target
from tests.ensemble.conftest import points

ENERGY = Field(name="energy", on="graph", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")
EXTENSIVE = Target(field=ENERGY, extensive=True)
DRAWS = 100


def drawn(kind: str, graphs: int, generator: np.random.Generator) -> tuple[np.ndarray, MixtureMoments, np.ndarray]:
    """Truth, a single model's prediction and nodes of graphs whose errors grow in one way."""
    nodes = generator.integers(2, 200, graphs)
    mean = np.exp(generator.normal(0.0, 1.0, graphs)) * generator.choice([-1.0, 1.0], graphs)
    sigma = {
        "constant": np.ones(graphs),
        "sqrt_nodes": np.sqrt(nodes),
        "nodes": nodes / 10,
        "magnitude": 0.1 + np.abs(mean),
    }[kind]
    moments = MixtureMoments(mean=mean, epistemic=np.zeros(graphs), aleatoric=np.zeros(graphs))
    return mean + 0.01 * sigma * generator.normal(size=graphs), moments, nodes


def labelled(kind: str, graphs: int, generator: np.random.Generator) -> Labelled:
    truth, moments, nodes = drawn(kind, graphs, generator)
    return points(truth, [moments.mean], np.arange(graphs), nodes)


def covered(calibration: Calibration, fresh: tuple[np.ndarray, MixtureMoments, np.ndarray]) -> np.ndarray:
    truth, moments, nodes = fresh
    return np.abs(truth - moments.mean) <= calibrated(ENERGY, calibration, moments, nodes).half_width


def thirds(inside: np.ndarray, by: np.ndarray) -> list[float]:
    return [float(part.mean()) for part in np.array_split(inside[np.argsort(by, kind="stable")], 3)]


@pytest.mark.parametrize("kind", GROWTH)
def test_one_model_alone_covers_small_and_large_alike(kind: str) -> None:
    whole, chosen, constant = [], [], []
    for seed in range(DRAWS):
        generator = np.random.default_rng([seed, *kind.encode()])
        valid, apart = labelled(kind, 60, generator), labelled(kind, 50, generator)
        fitted = NumberEstimate.calibration(EXTENSIVE, valid, apart, np.ones(1), 0.9)
        moments = MixtureMoments(mean=apart.members[0].mean.numpy(), epistemic=np.zeros(50), aleatoric=np.zeros(50))
        plain = fit_calibration(ENERGY, apart.labels, moments, apart.graph)
        fresh = drawn(kind, 300, generator)
        by = np.abs(fresh[1].mean) if kind == "magnitude" else fresh[2]
        inside = covered(fitted, fresh)
        whole.append(inside.mean())
        chosen.append(thirds(inside, by))
        constant.append(thirds(covered(plain, fresh), by))
    # split conformal promises 46 of 51; a draw has a standard error of 0.042 from its 50 graphs and 0.017 from the fresh ones
    assert np.mean(whole) == pytest.approx(46 / 51, abs=4 * 0.046 / DRAWS**0.5)
    # the same with 100 graphs in a third, and what remains of wrong choices among 60 graphs
    worst = np.abs(np.mean(chosen, axis=0) - 46 / 51).max()
    assert worst <= 0.05
    if kind != "constant":
        assert np.abs(np.mean(constant, axis=0) - 46 / 51).max() > 1.5 * worst


@pytest.mark.parametrize("kind", GROWTH)
def test_with_many_graphs_the_right_form_is_chosen(kind: str) -> None:
    truth, moments, nodes = drawn(kind, 2000, np.random.default_rng(1))
    rows = labelled_rows(ENERGY, truth, moments, np.arange(2000), nodes)
    assert choose_form(rows, forms(extensive=True), follows=False).kind == kind


def test_only_what_adds_up_over_nodes_grows_with_them() -> None:
    assert {form.kind for form in forms(extensive=False)} == {"constant", "magnitude"}
    assert {form.kind for form in forms(extensive=True)} == set(GROWTH)
    assert forms(extensive=True)[0] == CONSTANT


def random_rows(seed: int, components: int = 2) -> LabelledRows:
    generator = np.random.default_rng(seed)
    shape = (40, components)
    return LabelledRows(
        error=generator.normal(size=shape),
        spread=np.abs(generator.normal(size=shape)),
        magnitude=np.abs(generator.normal(size=shape)),
        nodes=generator.integers(1, 30, 40).astype(np.float64),
        graph=np.repeat(np.arange(10), 4),
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([1e-6, 0.5, 1024.0]))
def test_neither_order_nor_numbering_nor_unit_matters(seed: int, follows: bool, unit: float) -> None:
    rows, order = random_rows(seed), np.random.default_rng(seed).permutation(40)
    renamed = np.random.default_rng(seed + 1).permutation(10)[rows.graph] + 7
    other = LabelledRows(
        error=unit * rows.error[order],
        spread=unit * rows.spread[order],
        magnitude=unit * rows.magnitude[order],
        nodes=rows.nodes[order],
        graph=renamed[order],
    )
    assert choose_form(rows, forms(True), follows) == choose_form(other, forms(True), follows)
    scales = [fit_scale(replace(one, spread=one.spread * follows), forms(True)) for one in (rows, other)]
    assert {scale.follows for scale in scales} == {follows}
    for ours, theirs in zip(*(scale.components for scale in scales)):
        assert theirs.floor == pytest.approx(unit * ours.floor, rel=1e-9)


def test_vectors_have_the_same_intervals_however_the_axes_lie() -> None:
    generator = np.random.default_rng(3)
    mean, error = generator.normal(size=(2, 60, 3)) * np.exp(generator.normal(size=(1, 60, 1)))
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    graph, nodes = np.repeat(np.arange(20), 3), np.full(60, 3)
    actual = []
    for rotation in (np.eye(3), turn):
        moments = MixtureMoments(mean=mean @ rotation, epistemic=np.zeros((60, 3)), aleatoric=np.zeros((60, 3)))
        rows = labelled_rows(FORCES, (mean + error) @ rotation, moments, graph, nodes)
        magnitudes = GrowthForm(kind="magnitude", growth=1.0)
        scale = fit_scale(rows, [magnitudes])
        fitted = fit_calibration(FORCES, (mean + error) @ rotation, moments, graph, nodes=nodes, scale=scale)
        actual.append(calibrated(FORCES, fitted, moments, nodes).std)
    np.testing.assert_allclose(actual[0], actual[1], rtol=1e-9)


def test_a_graph_without_nodes_has_a_finite_width() -> None:
    for form in forms(extensive=True):
        assert (form.relative(np.zeros(2), np.zeros((2, 1))) > 0).all()


def test_the_calibration_part_chooses_nothing() -> None:
    generator = np.random.default_rng(0)
    valid, apart = labelled("nodes", 60, generator), labelled("nodes", 50, generator)
    odd = replace(apart, labels=apart.labels + 100 * generator.normal(size=50) ** 3)
    one, other = (NumberEstimate.calibration(EXTENSIVE, valid, part, np.ones(1), 0.9) for part in (apart, odd))
    assert (one.form, one.method) == (other.form, other.method)
    assert [(c.floor, c.typical) for c in one.components] == [(c.floor, c.typical) for c in other.components]
    assert one.components[0].scale < other.components[0].scale


def test_where_validation_calibrates_it_does_not_choose_as_well() -> None:
    valid = labelled("nodes", 60, np.random.default_rng(0))
    fitted = NumberEstimate.calibration(EXTENSIVE, valid, None, np.ones(1), 0.9)
    assert (fitted.form, fitted.part, fitted.graphs) == (CONSTANT, "valid", 60)
    assert "are the same for all; calibrated on 60 validation graphs" in fitted.sentence


def test_few_calibration_graphs_promise_nothing_and_say_so() -> None:
    generator = np.random.default_rng(0)
    valid, apart = labelled("constant", 60, generator), labelled("constant", 8, generator)
    fitted = NumberEstimate.calibration(EXTENSIVE, valid, apart, np.ones(1), 0.9)
    assert not fitted.guaranteed and "8 graphs that chose nothing: too few to guarantee 90 %" in fitted.sentence
    one = NumberEstimate.of(EXTENSIVE, apart.members, np.ones(1), fitted, apart.nodes)
    assert (
        (one.lower <= apart.labels + 1e-12) & (apart.labels <= one.upper + 1e-12)
    ).all()  # the largest error is the width
    more = NumberEstimate.calibration(EXTENSIVE, valid, labelled("constant", 9, generator), np.ones(1), 0.9)
    assert more.guaranteed


def test_one_validation_graph_chooses_the_simplest_form() -> None:
    rows = random_rows(0)
    one = replace(rows, graph=np.zeros(40, dtype=np.int64))
    assert choose_form(one, forms(True), follows=False) == CONSTANT


def test_items_without_a_prediction_have_no_interval() -> None:
    generator = np.random.default_rng(0)
    fitted = NumberEstimate.calibration(
        EXTENSIVE,
        labelled("nodes", 60, generator),
        labelled("nodes", 50, generator),
        np.ones(1),
        0.9,
    )
    members = [Point(mean=torch.tensor([1.0, float("nan")], dtype=torch.float64))]
    one = NumberEstimate.of(EXTENSIVE, members, np.ones(1), fitted, np.array([5, 5]))
    assert np.isfinite(one.upper).tolist() == [True, False] and np.isfinite(one.std).tolist() == [True, False]


def test_a_factor_is_fitted_without_the_graph_that_it_is_judged_on() -> None:
    error, graph = np.array([1.0, 1.0, 2.0]), np.array([0, 0, 1])
    from hydragnn.ensemble.estimates.metrics import gaussian_crps

    by_hand = [
        gaussian_crps(error[:2], np.zeros(2), np.full(2, 2.0)).mean(),
        gaussian_crps(error[2:], np.zeros(1), np.ones(1)).mean(),
    ]
    assert left_out_crps(error, np.ones(3), graph) == pytest.approx(np.mean(by_hand))


@pytest.mark.parametrize("form", forms(extensive=True), ids=str)
def test_json_keeps_the_form(form: GrowthForm) -> None:
    truth, moments, nodes = drawn("nodes", 30, np.random.default_rng(0))
    if form.shared:  # only where there is a spread to add to
        moments = replace(moments, epistemic=np.ones(30))
    rows = labelled_rows(ENERGY, truth, moments, np.arange(30), nodes)
    scale = fit_scale(rows, [form])
    assert scale.form == form
    fitted = fit_calibration(ENERGY, truth, moments, np.arange(30), nodes=nodes, scale=scale)
    assert calibration_from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


@pytest.mark.parametrize("honest", [True, False], ids=["spread of the errors", "spread by chance"])
def test_a_typical_spread_is_added_where_few_members_differ_by_chance(honest: bool) -> None:
    generator = np.random.default_rng(6)
    sigma = np.exp(generator.normal(size=400)) if honest else np.ones(400)
    spread = sigma if honest else np.abs(generator.normal(size=400))
    moments = MixtureMoments(mean=np.zeros(400), epistemic=spread**2, aleatoric=np.zeros(400))
    graph, nodes = np.arange(400), np.ones(400, dtype=np.int64)
    rows = labelled_rows(ENERGY, sigma * generator.normal(size=400), moments, graph, nodes)
    assert (fit_scale(rows, forms(extensive=False)).form.shared == 0.0) == honest


def test_what_is_added_to_a_spread_joins_it_as_the_root_of_the_sum_of_squares() -> None:
    written = {
        "method": "spread",
        "nominal": 0.9,
        "components": [{"scale": 2.0, "floor": 1.5, "quantile": 1.5, "reference": 3.0}],
        "graphs": 20,
        "guaranteed": True,
    }
    moments = MixtureMoments(mean=np.zeros(2), epistemic=np.array([16.0, 0.0]), aleatoric=np.zeros(2))
    for form, stds in (({"shared": 1.0}, [10.0, 6.0]), ({}, [8.0, 3.0])):
        read = calibration_from_json({**written, "form": {"kind": "nodes", "growth": 0.0, **form}})
        assert isinstance(read, Calibration)
        assert calibrated(ENERGY, read, moments, np.array([1, 1])).std.tolist() == pytest.approx(stds)


def test_sentences_say_what_widths_grow_with_and_who_calibrated() -> None:
    generator = np.random.default_rng(0)
    valid, apart = labelled("sqrt_nodes", 900, generator), labelled("sqrt_nodes", 52, generator)
    assert NumberEstimate.calibration(EXTENSIVE, valid, apart, np.ones(1), 0.9).sentence == (
        "interval widths grow with the square root of the number of nodes, corrected by thirds of graphs and predictions; "
        "calibrated on 52 graphs that chose nothing"
    )
    assert GrowthForm(kind="nodes").words(follows=True) == (
        "follow the members' spread, with a floor that grows with the number of nodes"
    )
    assert GrowthForm(kind="nodes", shared=1.0).words(follows=True) == (
        "follow the members' spread beside a typical one that grows with the number of nodes"
    )


def test_errors_of_what_grows_are_stated_per_node_too_and_others_are_not() -> None:
    some = labelled("nodes", 40, np.random.default_rng(5))
    for target in (EXTENSIVE, Target(field=ENERGY)):
        estimate = NumberEstimate.of(target, some.members, np.ones(1), None, some.nodes)
        trivial = {"mae": 3.0, "mae_per_node": 0.1}
        scores = estimate.evaluation(some.labels, some.nodes, ["a"], trivial, {"ridge": trivial})
        if target.extensive:
            error = np.abs(some.members[0].mean.numpy() - some.labels) / some.nodes
            for one in (scores.ensemble, scores.members["a"]):
                assert one["mae_per_node"] == pytest.approx(error.mean(), rel=1e-12)
                assert one["rmse_per_node"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
            assert scores.trivial["mae_per_node"] == scores.baselines["ridge"]["mae_per_node"] == 0.1
        else:
            assert not any("per_node" in key for one in (scores.ensemble, scores.trivial) for key in one)
