"""Relative errors: each graph counts once, whatever the size of its label."""

import pytest
import torch

from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays
from hydragnn.models import Point, Target
from hydragnn.training.loss import label_counts, loss_sums

FIELD = Field(name="displacement", on="node", shape=(2,), role="target")
LOSS = (Target(field=FIELD, loss="relative"),)


def _graph(values: list[list[float]]) -> GraphBatch:
    return graph_from_arrays(
        torch.arange(2.0 * len(values)).reshape(-1, 2), [0], [1], fields=[FIELD], nodes={"displacement": values}
    )


def test_a_graph_counts_by_the_ratio_of_norms_and_not_by_its_size() -> None:
    batch = concatenate([_graph([[3.0, 4.0], [0.0, 0.0]]), _graph([[300.0, 400.0], [0.0, 0.0], [0.0, 0.0]])])
    prediction = Point(mean=batch["displacement"] * 1.1)
    assert label_counts(LOSS, batch).tolist() == [2.0]
    assert loss_sums(LOSS, {"displacement": prediction}, batch).item() == pytest.approx(0.2, rel=1e-5)


def test_a_graph_whose_label_is_zero_has_no_relative_error() -> None:
    batch = concatenate([_graph([[0.0, 0.0], [0.0, 0.0]]), _graph([[1.0, 0.0], [0.0, 0.0]])])
    mean = (batch["displacement"] * 2.0 + 1.0).requires_grad_()
    total = loss_sums(LOSS, {"displacement": Point(mean=mean)}, batch)
    (gradient,) = torch.autograd.grad(total.sum(), mean)
    assert label_counts(LOSS, batch).tolist() == [1.0]
    assert torch.isfinite(gradient).all()
    assert gradient[:2].abs().max() == 0


def test_a_share_without_graphs_adds_nothing() -> None:
    whole = concatenate([_graph([[3.0, 4.0], [0.0, 0.0]]), _graph([[1.0, 0.0], [0.0, 0.0]])])
    empty = whole.select(torch.zeros(0, dtype=torch.int64))
    assert label_counts(LOSS, empty).tolist() == [0.0]
    assert loss_sums(LOSS, {"displacement": Point(mean=empty["displacement"])}, empty).tolist() == [0.0]
