"""Every op equals a loop over edges, forward, backward and twice backward, on every case."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hydragnn.kernels import (
    Topology,
    edge_product,
    gather_multiply_sum,
    outer_sum,
    relation_topology,
    scatter_multiply_sum,
    segment_max,
    segment_mean,
    segment_min,
    segment_softmax,
    segment_statistics,
    segment_std,
    segment_sum,
    segment_variance,
)

CASES = {
    "no edges": (3, []),
    "one edge": (3, [(2, 0)]),
    "lone node": (4, [(0, 0), (1, 0), (2, 1), (0, 2)]),
    "self loop, repeated edge": (2, [(0, 0), (1, 0), (1, 0), (0, 1)]),
    "many": (6, [((7 * e + e * e) % 6, e // 4) for e in range(20)]),
}
SHAPES = {"channels": (3,), "vectors": (2, 3)}
WEIGHTS = {"none": None, "per edge": (), "per channel": (3,)}


def topology(case: str) -> Topology:
    nodes, pairs = CASES[case]
    senders = torch.tensor([s for s, _ in pairs], dtype=torch.int64)
    receivers = torch.tensor([r for _, r in pairs], dtype=torch.int64)
    return Topology(senders=senders, receivers=receivers, num_columns=nodes, num_rows=nodes)


def normal(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=random).requires_grad_()


def check_derivatives(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> None:
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def loop_sum(x: Tensor, weight: Tensor | None, sources: Tensor, targets: Tensor, rows: int) -> Tensor:
    total = torch.zeros(rows, *x.shape[1:], dtype=x.dtype)
    for edge, (source, target) in enumerate(zip(sources.tolist(), targets.tolist())):
        total[target] += x[source] * (1.0 if weight is None else weight[edge])
    return total


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_sums_and_their_transpose_equal_a_loop_over_edges(case: str, shape: str, weights: str) -> None:
    edges = topology(case)
    x = normal(edges.num_columns, *SHAPES[shape])
    of_weight = WEIGHTS[weights]
    weight = None if of_weight is None else normal(edges.num_edges, *of_weight, seed=1)
    given = (x,) if weight is None else (x, weight)
    with torch.no_grad():
        forward = loop_sum(x, weight, edges.senders, edges.receivers, edges.num_rows)
        transposed = loop_sum(x, weight, edges.receivers, edges.senders, edges.num_columns)
        torch.testing.assert_close(gather_multiply_sum(x, weight, edges), forward)
        torch.testing.assert_close(scatter_multiply_sum(x, weight, edges), transposed)
    check_derivatives(lambda x, w=None: gather_multiply_sum(x, w, edges), *given)
    check_derivatives(lambda x, w=None: scatter_multiply_sum(x, w, edges), *given)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_the_edge_product_is_what_a_weight_receives(case: str, shape: str, per_channel: bool) -> None:
    edges = topology(case)
    x, g = normal(edges.num_columns, *SHAPES[shape]), normal(edges.num_rows, *SHAPES[shape], seed=1)
    weight = torch.zeros(edges.num_edges, *((3,) if per_channel else ()), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad((gather_multiply_sum(x, weight, edges) * g).sum(), weight)
    torch.testing.assert_close(edge_product(x, g, edges, per_channel).detach(), expected)
    check_derivatives(lambda x, g: edge_product(x, g, edges, per_channel), x, g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_sums_agree_with_double(dtype: torch.dtype) -> None:
    edges = topology("many")
    x, weight = normal(6, 3).detach(), normal(20, 3, seed=1).detach()
    for given in (None, weight[:, 0].contiguous(), weight):
        expected = gather_multiply_sum(x, given, edges)
        found = gather_multiply_sum(x.to(dtype), None if given is None else given.to(dtype), edges)
        # at most ten roundings in a row of eps each
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=10 * torch.finfo(dtype).eps * 3)


def test_a_weight_in_single_precision_may_meet_states_in_half() -> None:
    edges = topology("many")
    x = normal(6, 3).detach().bfloat16().requires_grad_()
    weight = normal(20, 3, seed=1).detach().float().requires_grad_()
    gather_multiply_sum(x, weight, edges).sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "reduce",
    [segment_sum, segment_mean, segment_max, segment_min, segment_variance, segment_std, segment_statistics],
)
def test_segment_reductions_are_twice_differentiable(case: str, reduce: Callable[..., Tensor]) -> None:
    edges = topology(case)
    check_derivatives(lambda m: reduce(m, edges.receivers, edges.num_rows), normal(edges.num_edges, 2))


@pytest.mark.parametrize("case", CASES)
def test_segment_statistics_equal_those_of_each_nodes_messages(case: str) -> None:
    edges = topology(case)
    messages = normal(edges.num_edges, 2).detach()
    mean, low, high, std = segment_statistics(messages, edges.receivers, edges.num_rows)
    for node in range(edges.num_rows):
        mine = messages[edges.receivers == node]
        if len(mine):
            torch.testing.assert_close(mean[node], mine.mean(0))
            torch.testing.assert_close(low[node], mine.amin(0))
            torch.testing.assert_close(high[node], mine.amax(0))
            torch.testing.assert_close(std[node], (mine.var(0, unbiased=False) + 1e-5).sqrt())
        else:
            assert not torch.stack([mean[node], low[node], high[node]]).any()


def test_the_variance_of_large_close_values_keeps_its_digits_in_single_precision() -> None:
    random = torch.Generator().manual_seed(0)
    values = 1e3 + 1e-2 * torch.randn(400, 1, generator=random)
    found = segment_variance(values, torch.zeros(400, dtype=torch.int64), 1)
    # float32 near 1e3 has steps of 6e-5: 1e-2 is resolved to half a percent per value
    torch.testing.assert_close(found.double(), values.double().var(0, unbiased=False).unsqueeze(0), rtol=5e-3, atol=0)


@pytest.mark.parametrize("reduce", [segment_max, segment_min])
def test_the_gradient_of_an_extreme_goes_to_the_first_among_equals(reduce: Callable[..., Tensor]) -> None:
    messages = torch.tensor([[1.0], [1.0], [1.0]], requires_grad=True)
    reduce(messages, torch.tensor([0, 0, 1]), 2).sum().backward()
    assert messages.grad is not None
    assert messages.grad.squeeze(1).tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("case", CASES)
def test_softmax_shares_sum_to_one_per_receiver(case: str) -> None:
    edges = topology(case)
    scores = normal(edges.num_edges, 2)
    shares = segment_softmax(scores, edges.receivers, edges.num_rows).detach()
    for node in set(edges.receivers.tolist()):
        mine = edges.receivers == node
        torch.testing.assert_close(shares[mine], scores.detach()[mine].softmax(0))
    check_derivatives(lambda s: segment_softmax(s, edges.receivers, edges.num_rows), scores)


@pytest.mark.parametrize("case", CASES)
def test_sums_per_relation_equal_a_loop_over_edges(case: str) -> None:
    edges = topology(case)
    relation = torch.arange(edges.num_edges) * 5 % 3
    keyed = relation_topology(edges, relation, relations=3)
    x = normal(edges.num_columns, 2)
    found = gather_multiply_sum(x, None, keyed).view(edges.num_rows, 3, 2)
    expected = torch.zeros_like(found)
    for s, r, k in zip(edges.senders.tolist(), edges.receivers.tolist(), relation.tolist()):
        expected[r, k] += x[s].detach()
    torch.testing.assert_close(found.detach(), expected)
    check_derivatives(lambda x: gather_multiply_sum(x, None, keyed), x)


@pytest.mark.parametrize("case", CASES)
def test_sums_along_directions_equal_a_loop_over_edges(case: str) -> None:
    edges = topology(case)
    messages, directions = normal(edges.num_edges, 3), normal(edges.num_edges, 2, seed=1)
    expected = torch.zeros(edges.num_rows, 2, 3, dtype=torch.float64)
    for edge, receiver in enumerate(edges.receivers.tolist()):
        expected[receiver] += torch.outer(directions[edge], messages[edge]).detach()
    torch.testing.assert_close(outer_sum(messages, directions, edges).detach(), expected)
    check_derivatives(lambda m, u: outer_sum(m, u, edges), messages, directions)


def test_the_third_derivative_of_a_sum_exists_too() -> None:
    edges = topology("many")
    x, weight = normal(6, 3), normal(20, 3, seed=1)

    def second(x: Tensor, weight: Tensor) -> Tensor:
        value = gather_multiply_sum(x, weight, edges).pow(3).sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        return first.square().sum()

    check_derivatives(second, x, weight)
