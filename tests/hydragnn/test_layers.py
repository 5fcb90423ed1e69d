"""Radial features, envelopes, edge geometry and pooling; graphs of similar sizes in buckets."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hydragnn.architectures.relational import keyed_edges
from hydragnn.kernels import Topology, gather_multiply_sum
from hydragnn.kernels.family import plain_forms
from hydragnn.layers import (
    BesselBasis,
    GaussianBasis,
    LinearByClass,
    RadialFeatures,
    classes_of,
    envelope_at,
    lengths_and_directions,
    pool_nodes,
    smooth_statistics,
)
from hydragnn.layers.radial import LEAST
from hydragnn.layers.size_buckets import MORE, MORE_PER_NODE, MOST, SizeBuckets, bucket_sizes, size_buckets


def test_the_bessel_basis_is_orthonormal_on_the_ball() -> None:
    basis, cutoff = BesselBasis(cutoff=4.0, num_radial=5).double(), 4.0
    r = (torch.arange(20000, dtype=torch.float64) + 0.5) * cutoff / 20000
    values = basis(r) * r.unsqueeze(-1)  # the measure r^2 dr, one r on each side
    gram = values.T @ values * (cutoff / 20000)
    torch.testing.assert_close(gram, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_tails_of_gaussians_hold_no_number_that_processors_compute_slowly() -> None:
    """Forty functions reach from 1 to exp(-760); values and derivatives to the second order are zero or normal, and right."""
    basis = GaussianBasis(cutoff=6.0, num_radial=40)
    lengths = torch.linspace(0.5, 6.0, 1001, requires_grad=True)
    values = basis(lengths)
    (first,) = torch.autograd.grad(values.square().sum(), lengths, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), lengths)
    least = torch.finfo(torch.float32).tiny
    for numbers in (values, first, second):
        assert ((numbers == 0) | (numbers.abs() >= least)).all()
    x = lengths.detach().double().unsqueeze(-1) / basis.step - basis.orders.double()
    torch.testing.assert_close(values.double(), torch.exp(-0.5 * x.square()), rtol=1e-4, atol=2 * LEAST)
    assert (torch.exp(-0.5 * x.float().square()) < least).any()  # which there would be


@pytest.mark.parametrize(("kind", "smooth"), [("polynomial", 2), ("cosine", 1)])
def test_an_envelope_ends_at_the_cutoff_with_its_derivatives(kind: str, smooth: int) -> None:
    r = torch.tensor([5.0 - 1e-9], dtype=torch.float64, requires_grad=True)
    value = envelope_at(r, 5.0, kind)
    assert value is not None
    for order in range(smooth + 1):
        assert abs(float(value.detach())) < 1e-6, f"derivative {order}"
        (value,) = torch.autograd.grad(value.sum(), r, create_graph=True)


@pytest.mark.parametrize(
    ("radial", "envelope", "inputs", "end"),
    [("bessel", "none", [], None), ("gaussian", "cosine", [7.0, 8.0], 0.5)],
)
def test_radial_features_are_basis_constant_and_inputs(
    radial: Any, envelope: Any, inputs: list[float], end: float | None
) -> None:
    module = RadialFeatures(5.0, 3, radial, envelope, inputs=len(inputs))
    features, ending = module(torch.tensor([2.5]), torch.tensor([inputs]) if inputs else None)
    assert features.shape == (1, module.width) and features[0, 3:].tolist() == [1.0, *inputs]
    assert (None if ending is None else pytest.approx(ending.item())) == end


def test_an_edge_of_length_zero_is_finite_to_the_second_derivative() -> None:
    vectors = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    lengths, directions = lengths_and_directions(vectors)
    basis = BesselBasis(5.0, 4).double()(lengths)
    (first,) = torch.autograd.grad(basis.sum() + directions.sum(), vectors, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), vectors)
    for value in (basis, directions, first, second):
        assert value.isfinite().all()
    assert float(lengths[1].detach()) == 3.0
    # the limit of sin(n pi r / c) / r
    expected = math.sqrt(2 / 5) * math.pi / 5 * torch.arange(1.0, 5.0, dtype=torch.float64)
    torch.testing.assert_close(basis[0].detach(), expected)


@pytest.mark.parametrize(("pool", "expected"), [("sum", 4.0), ("mean", 2.0), ("max", 3.0)])
def test_pooling_stays_inside_its_graph(pool: str, expected: float) -> None:
    values, owners = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 0, 2])
    actual = pool_nodes(values, owners, 3, pool)
    assert actual.squeeze(1).tolist() == [expected, 0.0, 9.0]


def test_the_root_of_their_number_divides_the_sum_of_neighbours_of_one_kind() -> None:
    edges = Topology.square(torch.tensor([1, 2, 3, 0]), torch.tensor([0, 0, 0, 1]), 4)
    relation = torch.tensor([1, 0, 1, 1])
    plain, rooted, averaged = (keyed_edges(edges, relation, 2, how, torch.float64) for how in ("sum", "sqrt", "mean"))
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([1.0, 2, 1, 1, 1, 1, 1, 1], dtype=torch.float64).unsqueeze(1)
    total = gather_multiply_sum(x, plain.weight, plain.topology)
    torch.testing.assert_close(gather_multiply_sum(x, rooted.weight, rooted.topology), total / counts.sqrt())
    torch.testing.assert_close(gather_multiply_sum(x, averaged.weight, averaged.topology), total / counts)


@pytest.mark.parametrize("of_rows", [[], [2, 2, 2], [3, 0, 1, 3, 0], [1, 0]], ids=str)
def test_rows_get_the_weights_of_their_class_whether_or_not_classes_are_counted(of_rows: list[int]) -> None:
    torch.manual_seed(0)
    layer = LinearByClass(3, 2, classes=4).double()
    numbers = torch.tensor(of_rows, dtype=torch.int64)
    values = torch.randn(len(of_rows), 3, dtype=torch.float64, requires_grad=True)
    weights, biases = layer.weight.view(4, 2, 3), layer.bias.view(4, 2)
    rows = [weights[c] @ row + biases[c] for c, row in zip(of_rows, values)]
    expected = torch.stack(rows) if rows else torch.zeros(0, 2)

    counted = layer(values, classes_of(numbers, 4))
    with plain_forms():
        candidates = layer(values, classes_of(numbers, 4))

    for found in (counted, candidates):
        assert torch.allclose(found, expected.to(found), atol=1e-12)
        if of_rows:
            for mine, theirs in zip(gradients(found, layer, values), gradients(expected, layer, values)):
                assert torch.allclose(mine, theirs, atol=1e-12)


def gradients(found: Tensor, layer: LinearByClass, values: Tensor) -> tuple[Tensor, ...]:
    """Those of a function of all outputs, by weights, biases and rows."""
    return torch.autograd.grad(found.square().sum(), [layer.weight, layer.bias, values], retain_graph=True)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("weighted", [True, False])
def test_smooth_statistics_of_any_size_are_finite_with_their_gradients_in_float32(size: float, weighted: bool) -> None:
    """That they are their equations is in ``tests/parity``; the second node has no neighbours."""
    edges = Topology.square(torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64), 2)
    messages = (size * torch.randn(6, 3, generator=torch.Generator().manual_seed(6))).requires_grad_()
    weights = torch.tensor([[1.0], [0.5], [1e-30], [0.0], [1.0], [0.3]], requires_grad=True)
    inputs = (messages, weights) if weighted else (messages,)
    statistics = smooth_statistics(messages, weights if weighted else None, edges).statistics
    gradients = torch.autograd.grad(sum(s.sum() for s in statistics), inputs)  # type: ignore[arg-type]
    assert all(tensor.isfinite().all() for tensor in (*statistics, *gradients))


def buckets_of(sizes: list[int]) -> SizeBuckets:
    counts = torch.tensor(sizes, dtype=torch.int64)
    return size_buckets(counts, torch.arange(len(sizes)).repeat_interleave(counts))


@given(st.lists(st.integers(0, 60), max_size=40))
def test_every_graph_lies_whole_in_one_bucket(sizes: list[int]) -> None:
    graph = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64)) + 1.0
    values = torch.stack([graph, torch.arange(sum(sizes)) + 1.0], dim=1)
    buckets = buckets_of(sizes)
    parts = buckets.spread(values)
    assert torch.equal(buckets.collect(parts), values)
    found = []
    for part, bucket in zip(parts, buckets.buckets, strict=True):
        assert part.shape == (bucket.graphs, bucket.size, 2)
        for row, graph_rows in enumerate(part):
            size = bucket.size if bucket.is_node is None else int(bucket.is_node[row].sum())
            number = int(graph_rows[0, 0])
            found.append((number, size))
            assert (graph_rows[:size, 0] == number).all() and not graph_rows[size:].any()
            assert (graph_rows[:size, 1].diff() == 1).all()
    assert sorted(found) == [(number + 1, size) for number, size in enumerate(sizes) if size]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_what_is_added_is_bounded_in_every_bucket(sizes: list[int]) -> None:
    distinct = sorted(set(sizes))
    ends = bucket_sizes(distinct, [sizes.count(size) for size in distinct])
    assert ends == sorted(set(ends)) and set(ends) <= set(sizes) and ends[-1] == max(sizes)
    for low, end in zip([0, *ends], ends):
        mine = [size for size in sizes if low < size <= end]
        pairs = sum(size**2 for size in mine)
        assert len(mine) * end**2 - pairs <= min(MORE * pairs + MORE_PER_NODE * sum(mine), MOST)


def test_similar_sizes_need_few_buckets() -> None:
    assert len(buckets_of([*range(1, 65)]).buckets) <= 10
    assert len(buckets_of([*range(20, 30)]).buckets) <= 2


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1], []], ids=str)
def test_graphs_of_one_size_lie_as_they_are(sizes: list[int]) -> None:
    buckets = buckets_of(sizes)
    assert len(buckets.buckets) == 1 and buckets.buckets[0].is_node is None
    values = torch.randn(sum(sizes), 3)
    assert buckets.spread(values)[0].data_ptr() == values.data_ptr()
