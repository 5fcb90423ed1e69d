"""Scales come from the training part, act in float64, and are undone exactly."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import (
    Budget,
    MemoryStore,
    Scale,
    fit_normalisation,
    normalisation_from_json,
    normalise,
    reference_sums,
)
from hydragnn.graphs import Field, GraphBatch, concatenate
from hydragnn.graphs.validate import graph_from_arrays
from hydragnn.models import Normal, Point, Target
from hydragnn.models.trained import denormalise
from hydragnn.training.evaluate import errors_on, trivial_predictor

TRAIN = np.arange(0, 60, 2)


KNOWN = {
    "energy": Field(name="energy", on="graph", dtype="float64", unit="eV", role="target"),
    "charge": Field(name="charge", on="node", shape=(2,), unit="e"),
    "forces": Field(name="forces", on="node", shape=(3,), parity="vector", unit="eV/Angstrom", role="target"),
    "label": Field(name="label", on="graph", classes=10, dtype="int64", role="auxiliary"),
}


def target(name: str, **options: Any) -> Target:
    return Target(field=KNOWN[name], **options)


ENERGY_AND_FORCES = (
    target("energy", extensive=True, references=True),
    target("forces", derivative="forces", source="energy"),
)


def fields(store: MemoryStore, *names: str) -> list[Field]:
    return [field for field in store.fields() if field.name in names]


def test_inputs_have_mean_zero_and_spread_one_on_the_training_part(store: MemoryStore) -> None:
    fitted = fit_normalisation(store, TRAIN, inputs=fields(store, "charge"), targets=[])
    values = normalise(store.read(TRAIN), fitted)["charge"]
    assert values.dtype == torch.float64
    torch.testing.assert_close(values.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(values.std(0, unbiased=False), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_validation_part_leaves_no_trace(store: MemoryStore) -> None:
    everything = concatenate([store.read(TRAIN), store.read(np.arange(1, 60, 2))])
    everything.nodes["charge"][store.read(TRAIN).num_nodes :] += 1e6
    spoiled = MemoryStore(everything)
    rules = [target("energy", extensive=True, references=True)]
    charge = fields(store, "charge")
    clean = fit_normalisation(store, TRAIN, inputs=charge, targets=rules)
    assert fit_normalisation(spoiled, np.arange(30), inputs=charge, targets=rules) == clean


def test_blocks_give_the_same_scales_as_one_pass(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import hydragnn.datasets.survey

    whole = fit_normalisation(store, TRAIN, inputs=fields(store, "charge"), targets=[target("forces")])
    monkeypatch.setattr(hydragnn.datasets.survey, "BLOCK", 7)
    blocks = fit_normalisation(store, TRAIN, inputs=fields(store, "charge"), targets=[target("forces")])
    for name in ("charge", "forces"):
        np.testing.assert_allclose(blocks.scales[name].mean, whole.scales[name].mean, rtol=1e-13)
        np.testing.assert_allclose(blocks.scales[name].std, whole.scales[name].std, rtol=1e-13)


def test_vectors_keep_their_direction(store: MemoryStore) -> None:
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[target("forces")])
    scale = fitted.scales["forces"]
    assert scale.mean == (0.0, 0.0, 0.0)
    assert len(set(scale.std)) == 1
    rms = store.read(TRAIN)["forces"].double().square().mean().sqrt()
    assert scale.std[0] == pytest.approx(float(rms), rel=1e-12)


def test_a_tensor_is_shifted_along_the_identity_only_so_that_turned_labels_have_the_same_scale() -> None:
    tensor = Field(name="alpha", on="graph", shape=(3, 3), parity="tensor", dtype="float64", role="target")
    generator = np.random.default_rng(0)
    halves = generator.normal(size=(20, 3, 3))
    values = 5 * np.eye(3) + halves + halves.mT + np.diag([0.0, 1.0, 2.0])
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))

    def scale_of(labels: np.ndarray) -> Scale:
        graphs = [
            graph_from_arrays(np.eye(3), [], [], fields=[tensor], graphs={"alpha": label[None]}) for label in labels
        ]
        store = MemoryStore(concatenate(graphs))
        return fit_normalisation(store, np.arange(20), inputs=[], targets=[Target(field=tensor)]).scales["alpha"]

    actual, turned = scale_of(values), scale_of(turn @ values @ turn.T)
    third = float(np.trace(values, axis1=1, axis2=2).mean() / 3)
    assert actual.mean == pytest.approx(tuple((third * np.eye(3)).ravel()))
    assert actual.std == pytest.approx((np.sqrt(np.square(values - third * np.eye(3)).mean()),) * 9)
    assert turned.mean == pytest.approx(actual.mean) and turned.std == pytest.approx(actual.std)


def test_energy_forces_and_stress_share_one_scale() -> None:
    energy = Field(name="energy", on="graph", dtype="float64", role="target")
    forces = Field(name="forces", on="node", shape=(3,), parity="vector", dtype="float64", role="target")
    stress = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target")
    graph = graph_from_arrays(
        np.eye(3),
        [0, 1],
        [1, 0],
        fields=[energy, forces, stress],
        nodes={"forces": 2.0 * np.eye(3)},
        graphs={"energy": 7.0, "stress": np.ones((3, 3))},
    )
    targets = [
        Target(field=energy, extensive=True),
        Target(field=forces, derivative="forces", source="energy"),
        Target(field=stress, derivative="stress", source="energy"),
    ]
    fitted = fit_normalisation(MemoryStore(graph), np.array([0]), inputs=[], targets=targets)
    rms = (4.0 * 3 / 9) ** 0.5
    assert len({scale.std[0] for scale in fitted.scales.values()}) == 1
    assert fitted.scales["stress"].std == pytest.approx((rms,) * 9)
    assert all(set(scale.mean) == {0.0} for scale in fitted.scales.values())
    normalised = normalise(graph, fitted)
    assert normalised["energy"].item() == pytest.approx(7.0 / rms)


def test_given_references_are_taken_off_as_they_are(store: MemoryStore) -> None:
    """Elements that the store does not hold may have one, for graphs to come; the spread is that of what is left."""
    given = ((1, 2.0), (6, 8.0), (8, 10.0), (26, 5.0))
    rule = target("energy", extensive=True, references=True, given_references=given)
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[rule])
    assert fitted.references["energy"] == dict(given)
    batch = store.read(TRAIN)
    left = batch["energy"] - reference_sums(fitted, "energy", batch)
    expected = (left / batch.counts("node")).square().mean().sqrt()
    assert fitted.scales["energy"].std == pytest.approx((float(expected),))


def test_an_element_without_given_reference_is_refused(store: MemoryStore) -> None:
    rule = target("energy", extensive=True, references=True, given_references=((1, 2.0), (6, 8.0)))
    with pytest.raises(
        InputError, match="references of energy have no energy for atomic number 8, which the store holds"
    ):
        fit_normalisation(store, TRAIN, inputs=[], targets=[rule])


def test_the_trivial_predictor_fits_composition_whatever_references_are_given(store: MemoryStore) -> None:
    rule = target("energy", extensive=True, references=True, given_references=((1, 2.0), (6, 8.0), (8, 10.0)))
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[rule])
    predict = trivial_predictor(store, TRAIN, [rule], fitted)
    errors = errors_on(predict, store, np.arange(60), [rule], Budget(max_graphs=1024))
    assert errors["energy"]["mae"] == pytest.approx(0, abs=1e-9)


def test_references_take_off_what_composition_explains(store: MemoryStore) -> None:
    rule = target("energy", extensive=True, references=True)
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[rule])
    assert fitted.references["energy"] == pytest.approx({1: 3.0, 6: 8.0, 8: 10.0})
    batch = store.read(range(60))
    torch.testing.assert_close(reference_sums(fitted, "energy", batch), batch["energy"], atol=1e-9, rtol=0)


def test_an_extensive_scale_is_per_node(store: MemoryStore) -> None:
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[target("energy", extensive=True)])
    batch = store.read(TRAIN)
    rms = (batch["energy"] / batch.counts("node")).square().mean().sqrt()
    assert fitted.scales["energy"].mean == (0.0,)
    assert fitted.scales["energy"].std[0] == pytest.approx(float(rms), rel=1e-12)


@pytest.mark.parametrize(
    "rule",
    [target("energy"), target("energy", extensive=True, references=True), target("charge"), target("forces")],
    ids=["intensive", "energy with references", "two components", "vector"],
)
def test_normalising_is_undone(store: MemoryStore, rule: Target) -> None:
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[rule])
    batch, field = store.read([3, 8, 3]), rule.field
    values = normalise(batch, fitted)[field.name]
    back = denormalise(Normal(mean=values, variance=torch.ones_like(values)), field, fitted, batch)
    torch.testing.assert_close(back.mean, batch[field.name].double(), rtol=1e-12, atol=1e-12)
    std = torch.tensor(fitted.scales[field.name].std, dtype=torch.float64).reshape(field.shape)
    torch.testing.assert_close(back.variance, (std**2).expand(values.shape))


def test_a_field_without_scale_stays_as_it_is(store: MemoryStore) -> None:
    fitted = fit_normalisation(store, TRAIN, inputs=fields(store, "atomic_numbers"), targets=[target("label")])
    assert fitted.scales == {}
    batch = store.read([0])
    assert torch.equal(normalise(batch, fitted)["atomic_numbers"], batch["atomic_numbers"])
    charge = batch.fields["charge"]
    same = denormalise(Point(mean=batch["charge"]), charge, fitted, batch)
    assert torch.equal(same.mean, batch["charge"].double())


def test_a_constant_field_is_not_blown_up() -> None:
    charge = Field(name="charge", on="node")
    graphs = [
        graph_from_arrays(np.eye(3), [], [], fields=[charge], nodes={"charge": [0.1, 0.1, 0.1]}) for _ in range(7)
    ]
    fitted = fit_normalisation(MemoryStore(graphs), np.arange(7), inputs=[charge], targets=[])
    assert fitted.scales["charge"].std == (1.0,)


def test_absent_labels_neither_count_nor_appear(graph: Callable[..., GraphBatch]) -> None:
    unlabelled = graph_from_arrays(np.eye(3), [], [])
    store = MemoryStore([graph(seed=1), unlabelled, graph(seed=2)])
    present = MemoryStore([graph(seed=1), graph(seed=2)])
    for rule in (target("forces"), target("energy"), target("energy", extensive=True)):
        actual = fit_normalisation(store, np.arange(3), inputs=[], targets=[rule])
        assert actual == fit_normalisation(present, np.arange(2), inputs=[], targets=[rule])
        values = normalise(store.read(range(3)), actual)[rule.field.name]
        owner = store.read(range(3)).owner(rule.field.on)
        assert not values[owner == 1].any()


def test_json_keeps_every_bit(store: MemoryStore) -> None:
    rules = ENERGY_AND_FORCES
    fitted = fit_normalisation(store, TRAIN, inputs=fields(store, "charge"), targets=rules)
    assert normalisation_from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


def test_what_cannot_be_fitted_is_refused(store: MemoryStore, graph: Callable[..., GraphBatch]) -> None:
    lost = Field(name="force", on="node", shape=(3,), parity="vector")
    for targets, message in (
        ([Target(field=Field(name="enthalpy", on="graph"))], "no field enthalpy"),
        ([target("forces", references=True)], "references need one value per graph"),
        (
            [target("energy", extensive=True), Target(field=lost, derivative="forces", source="energy")],
            "no field force;",
        ),
    ):
        with pytest.raises(InputError, match=message):
            fit_normalisation(store, TRAIN, inputs=[], targets=targets)
    with pytest.raises(InputError, match="is damaged"):
        normalisation_from_json({"scales": {"energy": {"mean": [0.0]}}, "references": {}})


def test_an_element_without_reference_is_named(store: MemoryStore, graph: Callable[..., GraphBatch]) -> None:
    rule = target("energy", extensive=True, references=True)
    fitted = fit_normalisation(store, TRAIN, inputs=[], targets=[rule])
    strange = concatenate([graph(), graph(species=(79,))])
    with pytest.raises(InputError, match=r"graph 1 of the batch has atomic number 79.*no reference value"):
        normalise(strange, fitted)
