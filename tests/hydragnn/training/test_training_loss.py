"""Losses and errors are sums over present labels, of numbers and of classes; parts and ranks merge without loss."""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as scikit
from torch import Tensor
from torch.nn.functional import cross_entropy

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget, MemoryStore, Normalisation
from hydragnn.graphs import Field, GraphBatch, concatenate, from_ase, graph_from_arrays
from hydragnn.models import Categorical, Normal, Point, Target
from hydragnn.training import errors_on, trivial_predictor
from hydragnn.training.class_metrics import balanced_weights, label_counts_of
from hydragnn.training.loss import label_counts, loss_sum, loss_sums, point_loss
from hydragnn.training.metrics import Errors, moments_of, target_moments
from tests.hydragnn.training.conftest import STORE, assembled, make_config

FIELDS = (
    Field(name="energy", on="graph", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target", dtype="float64"),
)

STRESS = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target", dtype="float64")


def graph(nodes: int, energy: float | None) -> GraphBatch:
    fields, graphs = (FIELDS[1:], {}) if energy is None else (FIELDS, {"energy": energy})
    forces = {"forces": torch.ones(nodes, 3, dtype=torch.float64)}
    return graph_from_arrays(torch.rand(nodes, 3).double(), [], [], fields=fields, nodes=forces, graphs=graphs)


@pytest.fixture
def batch() -> GraphBatch:
    return concatenate([graph(2, 3.0), graph(4, None), graph(5, -1.0)])


def prediction(values: list[float]) -> Point:
    return Point(mean=torch.tensor(values, dtype=torch.float64, requires_grad=True))


def normal(values: list[float], variances: list[float]) -> Normal:
    return Normal(mean=prediction(values).mean, variance=torch.tensor(variances, dtype=torch.float64))


def energy_loss(kind: str = "mse", per_node: bool = False) -> Target:
    return Target(field=FIELDS[0], loss=kind, per_node=per_node)


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        (energy_loss("mse"), [3.5, 99.0, 2.0], 0.5**2 + 3.0**2),
        (energy_loss("mae"), [3.5, 99.0, 2.0], 0.5 + 3.0),
        (energy_loss("huber"), [3.5, 99.0, 2.0], 0.5 * 0.5**2 + 3.0 - 0.5),
        (energy_loss(per_node=True), [4.0, 99.0, 4.0], (1.0 / 2) ** 2 + (5.0 / 5) ** 2),
    ],
    ids=["mse", "mae", "huber", "per node of its graph"],
)
def test_the_loss_is_the_sum_over_labels(
    target: Target, values: list[float], expected: float, batch: GraphBatch
) -> None:
    assert loss_sum(target, prediction(values), batch).item() == pytest.approx(expected)


@pytest.mark.parametrize("value", [99.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["mse", "mae", "huber", "nll"])
def test_a_missing_label_contributes_neither_value_nor_gradient(batch: GraphBatch, kind: str, value: float) -> None:
    given = replace(batch, graphs={"energy": torch.tensor([3.0, value, -1.0], dtype=torch.float64)})
    predicted = prediction([3.5, 7.0, 2.0])
    loss = loss_sum(energy_loss(kind), predicted, given)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(predicted.mean.grad).all()
    assert predicted.mean.grad[1] == 0 and (predicted.mean.grad[[0, 2]] != 0).all()


@pytest.mark.parametrize("copies", [1, 3])
def test_the_error_of_a_stress_per_node_is_that_of_the_virial_per_atom_in_a_cell_of_any_size(copies: int) -> None:
    cell = Atoms("Cu2", positions=[[0, 0, 0], [1.8, 1.8, 1.8]], cell=[3.6, 3.6, 4.0], pbc=True)
    crystal = cell.repeat((copies, 1, 1))
    crystal.info["stress"] = np.diag([0.01, 0.02, 0.03])
    nothing, batch = Point(mean=torch.zeros(1, 3, 3)), from_ase(crystal, 3.0, fields=[STRESS])
    for per_node, expected in ((True, 0.06 * 3.6 * 3.6 * 4.0 / 2), (False, 0.06)):
        target = Target(field=STRESS, loss="mae", derivative="stress", per_node=per_node)
        assert loss_sum(target, nothing, batch).item() == pytest.approx(expected)


def test_the_likelihood_per_node_is_that_of_the_scaled_quantity(batch: GraphBatch) -> None:
    loss = loss_sum(energy_loss("nll", per_node=True), normal([3.5, 99.0, 2.0], [0.25, 1.0, 4.0]), batch)
    mean, deviation, labels = torch.tensor([[3.5, 2.0], [0.5, 2.0], [3.0, -1.0]]).double() / torch.tensor([2, 5])
    expected = -torch.distributions.Normal(mean, deviation).log_prob(labels).sum() - math.log(2 * math.pi)
    assert loss.item() == pytest.approx(expected.item())


def test_vectors_count_by_component_and_missing_labels_do_not_count(batch: GraphBatch) -> None:
    losses = (energy_loss(), Target(field=FIELDS[1]))
    assert label_counts(losses, batch).tolist() == [2.0, 33.0]
    forces = Point(mean=torch.full((11, 3), 3.0, dtype=torch.float64))
    sums = loss_sums(losses, {"energy": prediction([3.0, 0.0, -1.0]), "forces": forces}, batch)
    assert sums.tolist() == [0.0, 4.0 * 33]


DISPLACEMENT = Field(name="displacement", on="node", shape=(2,), role="target")
RELATIVE = (Target(field=DISPLACEMENT, loss="relative"),)


def displaced(values: list[list[float]]) -> GraphBatch:
    places = torch.arange(2.0 * len(values)).reshape(-1, 2)
    return graph_from_arrays(places, [0], [1], fields=[DISPLACEMENT], nodes={"displacement": values})


def test_relative_errors_count_a_graph_by_the_ratio_of_norms_and_not_by_its_size() -> None:
    batch = concatenate([displaced([[3.0, 4.0], [0.0, 0.0]]), displaced([[300.0, 400.0], [0.0, 0.0], [0.0, 0.0]])])
    prediction = Point(mean=batch["displacement"] * 1.1)
    assert label_counts(RELATIVE, batch).tolist() == [2.0]
    assert loss_sums(RELATIVE, {"displacement": prediction}, batch).item() == pytest.approx(0.2, rel=1e-5)


def test_a_graph_whose_label_is_zero_and_a_share_without_graphs_have_no_relative_error() -> None:
    batch = concatenate([displaced([[0.0, 0.0], [0.0, 0.0]]), displaced([[1.0, 0.0], [0.0, 0.0]])])
    mean = (batch["displacement"] * 2.0 + 1.0).requires_grad_()
    total = loss_sums(RELATIVE, {"displacement": Point(mean=mean)}, batch)
    (gradient,) = torch.autograd.grad(total.sum(), mean)
    assert label_counts(RELATIVE, batch).tolist() == [1.0]
    assert torch.isfinite(gradient).all() and gradient[:2].abs().max() == 0
    empty = batch.select(torch.zeros(0, dtype=torch.int64))
    assert label_counts(RELATIVE, empty).tolist() == [0.0]
    assert loss_sums(RELATIVE, {"displacement": Point(mean=empty["displacement"])}, empty).tolist() == [0.0]


PHASE = Field(name="phase", on="graph", classes=3, dtype="int64", role="target")
TARGET = Target(field=PHASE, loss="cross_entropy", distribution=Categorical)


LABELS: list[dict[str, Any]] = [{"phase": max(0, n % 5 - 2)} if n % 7 != 6 else {} for n in range(70)]
"""Phases 0, 0, 0, 1, 2 in turn; every seventh graph has none."""
PHASES = MemoryStore([graph_from_arrays(np.eye(3), [], [], fields=[PHASE] * bool(one), graphs=one) for one in LABELS])


def output(batch: GraphBatch) -> Categorical:
    generator = torch.Generator().manual_seed(batch.num_graphs)
    logits = torch.randn(batch.num_graphs, 3, generator=generator, dtype=torch.float64)
    return Categorical(logits=logits.requires_grad_())


def test_the_loss_is_the_weighted_cross_entropy_of_the_labels_that_are_there() -> None:
    batch = PHASES.read(range(20))
    prediction, present = output(batch), batch.present("phase")
    logits, labels = prediction.logits[present], batch["phase"][present]
    for weights in (None, (0.5, 2.0, 3.0)):
        loss = loss_sum(replace(TARGET, class_weights=weights), prediction, batch)
        weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        assert loss.item() == pytest.approx(cross_entropy(logits, labels, weight=weight, reduction="sum").item())
    (gradient,) = torch.autograd.grad(loss, prediction.logits)
    assert not gradient[~present].any() and gradient[present].any(dim=1).all()
    assert [float(count) for count in label_counts([TARGET], batch)] == [float(present.sum())]


def test_balanced_weights_give_every_class_the_same_say() -> None:
    train = np.arange(70)
    weights = np.array(balanced_weights(replace(TARGET, class_weights="balanced"), PHASES, train).class_weights)
    batch = PHASES.read(train)
    counts = np.bincount(batch["phase"][batch.present("phase")], minlength=3)
    assert weights * counts == pytest.approx([counts.sum() / 3] * 3)


def test_metrics_agree_with_scikit_learn_and_those_of_parts_add_up() -> None:
    batch = PHASES.read(range(70))
    prediction, present = output(batch).detach(), batch.present("phase").numpy()
    truth, p = batch["phase"].numpy()[present], prediction.probabilities.numpy()[present]
    whole, parts = Errors([TARGET]), Errors([TARGET])
    whole.add(TARGET, prediction, batch)
    for rows in (range(25), range(25, 70)):
        parts.add(TARGET, prediction.rows(torch.tensor(rows)), PHASES.read(rows))
    torch.testing.assert_close(whole.sums, parts.sums)
    actual = whole.values({})["phase"]
    expected = {
        "count": len(truth),
        "accuracy": scikit.accuracy_score(truth, p.argmax(1)),
        "balanced_accuracy": scikit.balanced_accuracy_score(truth, p.argmax(1)),
        "nll": scikit.log_loss(truth, p),
        "brier": ((p - np.eye(3)[truth]) ** 2).sum(1).mean(),
    }
    assert {name: actual[name] for name in expected} == pytest.approx(expected)


def test_the_trivial_predictor_knows_the_frequencies_of_the_training_part() -> None:
    train = np.arange(35)
    predict = trivial_predictor(PHASES, train, [TARGET], Normalisation())
    counts = label_counts_of(PHASE, PHASES, train) + 1.0
    prediction = predict(PHASES.read(range(4)))["phase"]
    assert isinstance(prediction, Categorical)
    np.testing.assert_allclose(prediction.probabilities.numpy(), np.tile(counts / counts.sum(), (4, 1)))
    metrics = errors_on(predict, PHASES, np.arange(35, 70), [TARGET], Budget(max_graphs=8))["phase"]
    assert metrics["balanced_accuracy"] == pytest.approx(1 / 3)


def test_a_confident_and_right_prediction_is_calibrated_and_a_wrong_one_is_not() -> None:
    batch = PHASES.read([0, 3, 4])
    right = Categorical(logits=50.0 * torch.nn.functional.one_hot(batch["phase"], 3).double())
    for prediction, gap in ((right, 0.0), (Categorical(logits=right.logits.roll(1, dims=1)), 1.0)):
        errors = Errors([TARGET])
        errors.add(TARGET, prediction, batch)
        assert errors.values({})["phase"]["ece"] == pytest.approx(gap, abs=1e-9)


NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)


def target_of(store: MemoryStore, name: str, **options: Any) -> Target:
    return Target(field=next(field for field in store.fields() if field.name == name), **options)


@given(NUMBERS, NUMBERS, st.floats(-1e9, 1e9))
def test_merged_moments_are_those_of_the_whole(first: list[float], second: list[float], offset: float) -> None:
    one, other = (torch.tensor(values, dtype=torch.float64).unsqueeze(1) + offset for values in (first, second))
    whole, merged = moments_of(torch.cat([one, other])), moments_of(one).merged(moments_of(other))
    assert merged.count == whole.count
    torch.testing.assert_close(merged.mean, whole.mean)
    torch.testing.assert_close(merged.squares, whole.squares, rtol=1e-9, atol=1e-6 + 1e-12 * abs(offset) * 1e3)


def test_merging_with_nothing_changes_nothing() -> None:
    nothing, some = moments_of(torch.zeros(0, 2)), moments_of(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    for merged in (nothing.merged(some), some.merged(nothing)):
        assert merged.count == 2 and merged.mean.tolist() == [2.0, 3.5]


def test_metrics_agree_with_scikit_learn_and_pass_over_missing_labels() -> None:
    targets, part = [target_of(STORE, "forces"), target_of(STORE, "charge")], np.arange(28)

    def predict(batch: GraphBatch) -> dict[str, Point]:
        return {one.name: Point(mean=batch[one.name] + (1e3 * batch[one.name]).sin()) for one in targets}

    metrics, batch = errors_on(predict, STORE, part, targets, Budget(max_graphs=5)), STORE.read(part)
    for target in targets:
        present = batch.present(target.name)[batch.owner("node")]
        values = (batch[target.name], predict(batch)[target.name].mean)
        truth, guess = (one[present].reshape(-1, target.field.width).numpy() for one in values)
        actual = metrics[target.name]
        assert actual["count"] == truth.size
        assert actual["mae"] == pytest.approx(scikit.mean_absolute_error(truth, guess))
        assert actual["rmse"] == pytest.approx(scikit.root_mean_squared_error(truth.ravel(), guess.ravel()))
        assert actual["r2"] == pytest.approx(scikit.r2_score(truth, guess, multioutput="variance_weighted"))


def test_extensive_fields_have_errors_per_node() -> None:
    target = target_of(STORE, "energy", extensive=True)
    batch = STORE.read([0, 1])
    errors = Errors([target])
    errors.add(target, Point(mean=batch["energy"] + torch.tensor([1.0, -2.0])), batch)
    actual = errors.values(target_moments([target], batch))["energy"]
    per_node = np.array([1.0, 2.0]) / batch.counts("node").numpy()
    assert actual["mae"] == 1.5 and actual["rmse"] == pytest.approx(math.sqrt(2.5))
    assert actual["mae_per_node"] == pytest.approx(per_node.mean())
    assert actual["rmse_per_node"] == pytest.approx(math.sqrt(np.square(per_node).mean()))


def test_a_field_without_labels_or_spread_has_no_r2() -> None:
    target = target_of(STORE, "energy")
    batch = STORE.read([0])
    errors = Errors([target])
    nothing = {"mae": None, "rmse": None, "r2": None, "count": 0.0}
    assert errors.values({"energy": moments_of(torch.zeros(0, 1))})["energy"] == nothing
    errors.add(target, Point(mean=batch["energy"] + 1.0), batch)
    assert errors.values(target_moments([target], batch))["energy"]["r2"] is None


@pytest.mark.parametrize("references", [False, True, {"H": -1.0, "O": 2.0}], ids=["none", "fitted", "given"])
def test_the_trivial_predictor_is_the_best_constant_of_the_training_part(references: bool | dict[str, float]) -> None:
    energy_head = {"kind": "energy", "field": "energy", "references": references, "forces": "forces"}
    config = make_config(heads=[energy_head, {"kind": "scalar", "field": "charge"}])
    (data,) = assembled(config, STORE).data.branches
    predict = trivial_predictor(STORE, data.split.train, data.targets, data.normalisation)
    on_training = errors_on(predict, STORE, data.split.train, data.targets, Budget(max_graphs=1024))
    assert on_training["charge"]["r2"] == pytest.approx(0.0, abs=1e-12)
    batch = STORE.read(data.split.valid)
    assert predict(batch)["forces"].mean.abs().max() == 0
    energy, nodes = predict(batch)["energy"].mean, batch.counts("node")
    if references:  # one value per species
        owners, species = batch.owner("node"), batch["atomic_numbers"]
        kinds = torch.stack([torch.bincount(owners[species == one], minlength=8) for one in (1, 8)])
        fitted = torch.linalg.lstsq(kinds.T.double(), energy.unsqueeze(1)).solution
        torch.testing.assert_close((kinds.T.double() @ fitted).squeeze(1), energy)
    else:  # one value per node
        torch.testing.assert_close(energy / nodes, (energy / nodes)[:1].expand(len(nodes)))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda error: -error.abs(), "must be least at 0"),
        (lambda error: error.mean(), r"gives shape \(\) for errors of shape \(7,\); return a loss for each"),
        (lambda error: error.detach(), "without a slope"),
        (lambda error: error.sqrt(), "no finite slope"),
        (lambda error: sys.exit(0), r"for errors of shape \(7,\), failed: SystemExit: 0; repair it"),
        (lambda error: torch.relu(error.abs() - 1), ""),
    ],
)
def test_a_loss_of_ones_own_is_least_without_an_error(
    loss: Callable[[Tensor], Tensor], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydragnn.training.loss.function_of_kind", lambda *_, **__: loss)
    with pytest.raises(InputError, match=words) if words else nullcontext():
        point_loss.__wrapped__("acme:loss")


def test_a_loss_of_ones_own_is_checked_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {2: lambda error: error.mean(), 3: lambda error: None, 4: lambda error: error.outer(error)}
    loss = lambda error: late.get(len(error), torch.square)(error)  # noqa: E731
    monkeypatch.setattr("hydragnn.training.loss.function_of_kind", lambda *_, **__: loss)
    with torch.no_grad():  # where validation is the first to ask
        checked = point_loss.__wrapped__("acme:loss")
    for length in late:
        with pytest.raises(InputError, match=r"heads.loss = 'acme:loss' gives .*; return a loss for each"):
            checked(torch.ones(length))
