"""Scales come from the training part, act in float64, and are undone exactly."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.datasets import Budget, MemoryStore, fit_normalisation
from hydragnn.datasets.normalisation import Normalisation, Scale, normalisation_from_json, normalise, reference_sums
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import Normal, Point, Target
from hydragnn.models.trained import denormalise
from hydragnn.training.evaluate import errors_on, trivial_predictor
from tests.refusals import refuses

TRAIN = np.arange(0, 60, 2)


ENERGY = Field(name="energy", on="graph", dtype="float64", unit="eV", role="target")
FORCES = Field(name="forces", on="node", shape=(3,), parity="vector", unit="eV/Angstrom", role="target")
KNOWN = {
    "energy": ENERGY,
    "charge": Field(name="charge", on="node", shape=(2,), unit="e"),
    "forces": FORCES,
    "label": Field(name="label", on="graph", classes=10, dtype="int64", role="auxiliary"),
}


def target(name: str, **options: Any) -> Target:
    return Target(field=KNOWN[name], **options)


TOTAL = target("energy", extensive=True, references=True)


def fit(store: MemoryStore, *targets: Target, inputs: Sequence[str] = (), graphs: np.ndarray = TRAIN) -> Normalisation:
    own = [field for field in store.fields() if field.name in inputs]
    return fit_normalisation(store, graphs, inputs=own, targets=targets)


def test_inputs_have_mean_zero_and_spread_one_on_the_training_part(store: MemoryStore) -> None:
    values = normalise(store.read(TRAIN), fit(store, inputs=["charge"]))["charge"]
    assert values.dtype == torch.float64
    torch.testing.assert_close(values.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(values.std(0, unbiased=False), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_validation_part_leaves_no_trace(store: MemoryStore) -> None:
    everything = concatenate([store.read(TRAIN), store.read(np.arange(1, 60, 2))])
    everything.nodes["charge"][store.read(TRAIN).num_nodes :] += 1e6
    spoiled = fit(MemoryStore(everything), TOTAL, inputs=["charge"], graphs=np.arange(30))
    assert spoiled == fit(store, TOTAL, inputs=["charge"])


def test_blocks_give_the_same_scales_as_one_pass(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(store, target("forces"), inputs=["charge"])
    monkeypatch.setattr("hydragnn.datasets.survey.BLOCK", 7)
    blocks = fit(store, target("forces"), inputs=["charge"])
    for name in ("charge", "forces"):
        np.testing.assert_allclose(blocks.scales[name].mean, whole.scales[name].mean, rtol=1e-13)
        np.testing.assert_allclose(blocks.scales[name].std, whole.scales[name].std, rtol=1e-13)


def test_vectors_keep_their_direction_and_an_extensive_scale_is_per_node(store: MemoryStore) -> None:
    batch, scale = store.read(TRAIN), fit(store, target("forces")).scales["forces"]
    assert scale.mean == (0.0, 0.0, 0.0)
    assert scale.std == pytest.approx((float(batch["forces"].double().square().mean().sqrt()),) * 3, rel=1e-12)
    scale = fit(store, target("energy", extensive=True)).scales["energy"]
    rms = (batch["energy"] / batch.counts("node")).square().mean().sqrt()
    assert scale.mean == (0.0,)
    assert scale.std[0] == pytest.approx(float(rms), rel=1e-12)


def test_a_tensor_is_shifted_along_the_identity_only_so_that_turned_labels_have_the_same_scale() -> None:
    tensor = Field(name="alpha", on="graph", shape=(3, 3), parity="tensor", dtype="float64", role="target")
    generator = np.random.default_rng(0)
    halves = generator.normal(size=(20, 3, 3))
    values = 5 * np.eye(3) + halves + halves.mT + np.diag([0.0, 1.0, 2.0])
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))

    def scale_of(labels: np.ndarray) -> Scale:
        known = {"fields": [tensor]}
        graphs = [graph_from_arrays(np.eye(3), [], [], **known, graphs={"alpha": label[None]}) for label in labels]
        return fit(MemoryStore(graphs), Target(field=tensor), graphs=np.arange(20)).scales["alpha"]

    actual, turned = scale_of(values), scale_of(turn @ values @ turn.T)
    third = float(np.trace(values, axis1=1, axis2=2).mean() / 3)
    assert actual.mean == pytest.approx(tuple((third * np.eye(3)).ravel()))
    assert actual.std == pytest.approx((np.sqrt(np.square(values - third * np.eye(3)).mean()),) * 9)
    assert turned.mean == pytest.approx(actual.mean) and turned.std == pytest.approx(actual.std)


def test_energy_forces_and_stress_share_one_scale() -> None:
    energy, forces = replace(ENERGY, unit=""), replace(FORCES, unit="", dtype="float64")
    stress = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target")
    values = {"nodes": {"forces": 2.0 * np.eye(3)}, "graphs": {"energy": 7.0, "stress": np.ones((3, 3))}}
    graph = graph_from_arrays(np.eye(3), [0, 1], [1, 0], fields=[energy, forces, stress], **values)
    derived = (Target(field=one, derivative=one.name, source="energy") for one in (forces, stress))
    fitted = fit(MemoryStore(graph), Target(field=energy, extensive=True), *derived, graphs=np.array([0]))
    rms = (4.0 * 3 / 9) ** 0.5
    assert len({scale.std[0] for scale in fitted.scales.values()}) == 1
    assert fitted.scales["stress"].std == pytest.approx((rms,) * 9)
    assert all(set(scale.mean) == {0.0} for scale in fitted.scales.values())
    assert normalise(graph, fitted)["energy"].item() == pytest.approx(7.0 / rms)


def referred(*energies: tuple[int, float]) -> Target:
    return target("energy", extensive=True, references=True, given_references=energies)


def test_given_references_are_taken_off_as_they_are(store: MemoryStore) -> None:
    """Elements that the store does not hold may have one, for graphs to come; the spread is that of what is left."""
    given = ((1, 2.0), (6, 8.0), (8, 10.0), (26, 5.0))
    fitted = fit(store, referred(*given))
    assert fitted.references["energy"] == dict(given)
    batch = store.read(TRAIN)
    left = batch["energy"] - reference_sums(fitted, "energy", batch)
    expected = (left / batch.counts("node")).square().mean().sqrt()
    assert fitted.scales["energy"].std == pytest.approx((float(expected),))
    predict = trivial_predictor(store, TRAIN, [referred(*given)], fitted)  # fits composition all the same
    errors = errors_on(predict, store, np.arange(60), [referred(*given)], Budget(max_graphs=1024))
    assert errors["energy"]["mae"] == pytest.approx(0, abs=1e-9)


def test_references_take_off_what_composition_explains(store: MemoryStore) -> None:
    fitted = fit(store, TOTAL)
    assert fitted.references["energy"] == pytest.approx({1: 3.0, 6: 8.0, 8: 10.0})
    batch = store.read(range(60))
    torch.testing.assert_close(reference_sums(fitted, "energy", batch), batch["energy"], atol=1e-9, rtol=0)


@pytest.mark.parametrize("rule", [target("energy"), TOTAL, target("charge"), target("forces")])
def test_normalising_is_undone(store: MemoryStore, rule: Target) -> None:
    fitted = fit(store, rule)
    batch, field = store.read([3, 8, 3]), rule.field
    values = normalise(batch, fitted)[field.name]
    back = denormalise(Normal(mean=values, variance=torch.ones_like(values)), field, fitted, batch)
    torch.testing.assert_close(back.mean, batch[field.name].double(), rtol=1e-12, atol=1e-12)
    std = torch.tensor(fitted.scales[field.name].std, dtype=torch.float64).reshape(field.shape)
    torch.testing.assert_close(back.variance, (std**2).expand(values.shape))


def test_a_field_without_scale_stays_as_it_is_and_a_constant_one_is_not_blown_up(store: MemoryStore) -> None:
    fitted = fit(store, target("label"), inputs=["atomic_numbers"])
    assert fitted.scales == {}
    batch = store.read([0])
    assert torch.equal(normalise(batch, fitted)["atomic_numbers"], batch["atomic_numbers"])
    same = denormalise(Point(mean=batch["charge"]), batch.fields["charge"], fitted, batch)
    assert torch.equal(same.mean, batch["charge"].double())
    field = {"fields": [Field(name="charge", on="node")], "nodes": {"charge": [0.1, 0.1, 0.1]}}
    constant = MemoryStore([graph_from_arrays(np.eye(3), [], [], **field) for _ in range(7)])
    assert fit(constant, inputs=["charge"], graphs=np.arange(7)).scales["charge"].std == (1.0,)


def test_absent_labels_neither_count_nor_appear(graph: Callable[..., GraphBatch]) -> None:
    store = MemoryStore([graph(seed=1), graph_from_arrays(np.eye(3), [], []), graph(seed=2)])
    present = MemoryStore([graph(seed=1), graph(seed=2)])
    for rule in (target("forces"), target("energy"), target("energy", extensive=True)):
        actual = fit(store, rule, graphs=np.arange(3))
        assert actual == fit(present, rule, graphs=np.arange(2))
        batch = store.read(range(3))
        assert not normalise(batch, actual)[rule.field.name][batch.owner(rule.field.on) == 1].any()


def test_json_keeps_every_bit(store: MemoryStore) -> None:
    fitted = fit(store, TOTAL, target("forces", derivative="forces", source="energy"), inputs=["charge"])
    assert normalisation_from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    refuses("is damaged", normalisation_from_json, {"scales": {"energy": {"mean": [0.0]}}, "references": {}})


LOST = Target(field=replace(FORCES, name="force"), derivative="forces", source="energy")
NO_FIT = [
    ([referred((1, 2.0), (6, 8.0))], "references of energy have no energy for atomic number 8, which the store holds"),
    ([Target(field=Field(name="enthalpy", on="graph"))], "no field enthalpy"),
    ([target("forces", references=True)], "references need one value per graph"),
    ([target("energy", extensive=True), LOST], "no field force;"),
]


@pytest.mark.parametrize(("targets", "message"), NO_FIT, ids=[message for _, message in NO_FIT])
def test_what_cannot_be_fitted_is_refused(targets: list[Target], message: str, store: MemoryStore) -> None:
    refuses(message, fit, store, *targets)


def test_an_element_without_reference_is_named(store: MemoryStore, graph: Callable[..., GraphBatch]) -> None:
    strange = concatenate([graph(), graph(species=(79,))])
    refuses(r"graph 1 of the batch has atomic number 79.*no reference value", normalise, strange, fit(store, TOTAL))
