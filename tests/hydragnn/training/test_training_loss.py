"""Losses are sums over present labels; what is missing contributes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms

from hydragnn.graphs import Field, GraphBatch, concatenate, from_ase, graph_from_arrays
from hydragnn.models import Normal, Point, Target
from hydragnn.models.target import Loss
from hydragnn.training.loss import label_counts, loss_sum, loss_sums

FIELDS = (
    Field(name="energy", on="graph", role="target", dtype="float64"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target", dtype="float64"),
)

STRESS = Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target", dtype="float64")


def graph(nodes: int, energy: float | None) -> GraphBatch:
    fields = FIELDS if energy is not None else FIELDS[1:]
    return graph_from_arrays(
        torch.rand(nodes, 3, dtype=torch.float64),
        [],
        [],
        fields=fields,
        nodes={"forces": torch.ones(nodes, 3, dtype=torch.float64)},
        graphs={} if energy is None else {"energy": energy},
    )


@pytest.fixture
def batch() -> GraphBatch:
    return concatenate([graph(2, 3.0), graph(4, None), graph(5, -1.0)])


def prediction(values: list[float]) -> Point:
    return Point(mean=torch.tensor(values, dtype=torch.float64, requires_grad=True))


def normal(values: list[float], variances: list[float]) -> Normal:
    return Normal(mean=prediction(values).mean, variance=torch.tensor(variances, dtype=torch.float64))


def energy_loss(kind: Loss = "mse", per_node: bool = False) -> Target:
    return Target(field=FIELDS[0], loss=kind, per_node=per_node)


@pytest.mark.parametrize(
    "kind, expected",
    [("mse", 0.5**2 + 3.0**2), ("mae", 0.5 + 3.0), ("huber", 0.5 * 0.5**2 + 3.0 - 0.5)],
)
def test_the_loss_is_the_sum_over_graphs_that_have_the_label(batch: GraphBatch, kind: str, expected: float) -> None:
    assert loss_sum(energy_loss(kind), prediction([3.5, 99.0, 2.0]), batch).item() == pytest.approx(expected)


@pytest.mark.parametrize("value", [99.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["mse", "mae", "huber", "nll"])
def test_a_missing_label_contributes_neither_value_nor_gradient(batch: GraphBatch, kind: str, value: float) -> None:
    given = replace(batch, graphs={"energy": torch.tensor([3.0, value, -1.0], dtype=torch.float64)})
    predicted = prediction([3.5, 7.0, 2.0])
    loss = loss_sum(energy_loss(kind), predicted, given)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(predicted.mean.grad).all()
    assert predicted.mean.grad[1] == 0 and (predicted.mean.grad[[0, 2]] != 0).all()


def test_per_node_errors_are_divided_by_the_nodes_of_their_graph(batch: GraphBatch) -> None:
    loss = loss_sum(energy_loss(per_node=True), prediction([4.0, 99.0, 4.0]), batch)
    assert loss.item() == pytest.approx((1.0 / 2) ** 2 + (5.0 / 5) ** 2)


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
    scaled = torch.distributions.Normal(
        torch.tensor([3.5 / 2, 2.0 / 5], dtype=torch.float64), torch.tensor([0.5 / 2, 2.0 / 5], dtype=torch.float64)
    )
    expected = -scaled.log_prob(torch.tensor([3.0 / 2, -1.0 / 5], dtype=torch.float64)).sum()
    assert loss.item() == pytest.approx((expected - torch.log(torch.tensor(2 * torch.pi))).item())


def test_vectors_count_by_component_and_missing_labels_do_not_count(batch: GraphBatch) -> None:
    losses = (energy_loss(), Target(field=FIELDS[1]))
    assert label_counts(losses, batch).tolist() == [2.0, 33.0]
    forces = Point(mean=torch.full((11, 3), 3.0, dtype=torch.float64))
    sums = loss_sums(losses, {"energy": prediction([3.0, 0.0, -1.0]), "forces": forces}, batch)
    assert sums.tolist() == [0.0, 4.0 * 33]


def test_shares_of_a_batch_add_up_to_the_loss_of_the_whole(batch: GraphBatch) -> None:
    parts = [concatenate([graph(2, 3.0), graph(4, None)]), graph(5, -1.0)]
    whole = loss_sum(energy_loss(), prediction([1.0, 2.0, 3.0]), batch)
    shares = [loss_sum(energy_loss(), prediction(of), part) for of, part in zip(([1.0, 2.0], [3.0]), parts)]
    assert whole.item() == pytest.approx(sum(shares).item())


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


def test_a_graph_whose_label_is_zero_has_no_relative_error() -> None:
    batch = concatenate([displaced([[0.0, 0.0], [0.0, 0.0]]), displaced([[1.0, 0.0], [0.0, 0.0]])])
    mean = (batch["displacement"] * 2.0 + 1.0).requires_grad_()
    total = loss_sums(RELATIVE, {"displacement": Point(mean=mean)}, batch)
    (gradient,) = torch.autograd.grad(total.sum(), mean)
    assert label_counts(RELATIVE, batch).tolist() == [1.0]
    assert torch.isfinite(gradient).all()
    assert gradient[:2].abs().max() == 0


def test_a_share_without_graphs_adds_nothing() -> None:
    whole = concatenate([displaced([[3.0, 4.0], [0.0, 0.0]]), displaced([[1.0, 0.0], [0.0, 0.0]])])
    empty = whole.select(torch.zeros(0, dtype=torch.int64))
    assert label_counts(RELATIVE, empty).tolist() == [0.0]
    assert loss_sums(RELATIVE, {"displacement": Point(mean=empty["displacement"])}, empty).tolist() == [0.0]
