"""Attention within graphs: torch's on every graph alone, its derivatives, and what it keeps in memory."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hydragnn.conformance.cases import make_graph, make_model
from hydragnn.kernels.family import plain_forms, taken_for
from hydragnn.layers import GPSLayer, GraphAttention, LinearGraphAttention, MessageGraph, States
from hydragnn.layers.size_buckets import size_buckets
from tests.parity.attention import SIZES, graph_of_sizes

CHANNELS = 6
EXACT = {"rtol": 1e-12, "atol": 1e-12}  # float64 sums in another order
KINDS: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: GraphAttention(CHANNELS, 2),
    "linear": lambda: LinearGraphAttention(CHANNELS, 2),
}
pytestmark = pytest.mark.usefixtures("in_double")
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("derivatives", [0, 1, 2])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_equals_its_equation_as_a_loop(dtype: torch.dtype, derivatives: int, sizes: list[int]) -> None:
    """Torch's multi-head attention on every graph alone, in value and gradient, however many derivatives of positions are asked."""
    graph = graph_of_sizes(sizes, torch.randn(0, 3, dtype=dtype, requires_grad=derivatives > 0))
    graph = replace(graph, derived_once=derivatives == 1)
    nodes = sum(sizes)
    attention, states = GraphAttention(CHANNELS, 2).to(dtype), torch.randn(nodes, CHANNELS, dtype=dtype)
    states.requires_grad_()
    theirs = nn.MultiheadAttention(CHANNELS, 2, batch_first=True, dtype=dtype)
    theirs.in_proj_weight, theirs.in_proj_bias = attention.project.weight, attention.project.bias
    theirs.out_proj = attention.out
    parts = [part.unsqueeze(0) for part in states.split([size for size in sizes if size])]
    alone = [theirs(part, part, part, need_weights=True)[0].squeeze(0) for part in parts]
    actual, expected = attention(states, graph), torch.cat(alone)
    close = EXACT if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(actual, expected, **close)
    seed = torch.randn_like(actual)
    gradients = [torch.autograd.grad(values, states, seed, retain_graph=True)[0] for values in (actual, expected)]
    torch.testing.assert_close(*gradients, **close)


@every_kind
def test_attention_has_two_derivatives_where_weights_learn_from_forces(kind: str) -> None:
    graph = graph_of_sizes([3, 2], torch.randn(0, 3, requires_grad=True))
    assert len(size_buckets(graph.nodes_per_graph, graph.owner).buckets) == 1  # with rows of zeros
    attention, states = KINDS[kind](), torch.randn(5, CHANNELS, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda values: attention(values, graph), (states,))


@every_kind
def test_what_is_no_number_stays_in_its_graph(kind: str) -> None:
    """Also through rows of zeros, forward and backward."""
    attention, states, graph = KINDS[kind](), torch.randn(12, CHANNELS), graph_of_sizes([4, 5, 3])
    assert any(bucket.is_node is not None for bucket in size_buckets(graph.nodes_per_graph, graph.owner).buckets)
    states[4:9] = math.nan
    states.requires_grad_()
    read = attention(states, graph)
    (gradient,) = torch.autograd.grad(read, states, torch.randn_like(read))
    for values in (read, gradient):
        assert values[:4].isfinite().all() and values[9:].isfinite().all()


@every_kind
def test_attention_is_the_same_where_a_tracer_looks_on_and_on_a_device_without_a_fused_form(kind: str) -> None:
    attention, states, graph = KINDS[kind](), torch.randn(12, CHANNELS), graph_of_sizes([4, 5, 3])
    expected = attention(states, graph)
    for forms in (plain_forms(), taken_for("cpu", "another")):
        with forms:
            torch.testing.assert_close(attention(states, graph_of_sizes([4, 5, 3])), expected, rtol=1e-10, atol=1e-10)


def largest_kept(work: Callable[[], object]) -> int:
    """Numbers in the largest tensor that is kept for the backward pass."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return max(kept)


@pytest.mark.parametrize(
    ("attention", "sizes", "most"),
    [
        (lambda: GraphAttention(8, 2).float(), [1024], 1024 * 1024 // 8 - 1),
        (lambda: LinearGraphAttention(32, 2), [20] * 10, 200 * 3 * 32),
    ],
    ids=KINDS,
)
def test_attention_derived_once_makes_no_array_of_nodes_by_nodes(
    attention: Callable[[], nn.Module], sizes: list[int], most: int
) -> None:
    """A graph of 1024 nodes: 4 MB per head and array in single precision; neither without forces nor where they are predicted."""
    module = attention()
    weight = next(module.parameters())
    states = torch.randn(sum(sizes), weight.shape[-1], dtype=weight.dtype)
    training = graph_of_sizes(sizes, torch.randn(0, 3, requires_grad=True))
    for graph in (graph_of_sizes(sizes), replace(training, derived_once=True)):
        assert largest_kept(lambda graph=graph: module(states, graph)) <= most
    if isinstance(module, GraphAttention):
        assert largest_kept(lambda: module(states, training)) == 2 * 1024 * 1024


def test_attention_in_parts_is_attention_at_once_and_keeps_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without a fused form: graphs of 70 and 64 nodes side by side, of which the scores of ten queries fit."""
    monkeypatch.setattr("hydragnn.layers.attention.ROOM", 10 * 2 * 2 * 70)
    sizes, found = [70, 64], []
    attention, states = GraphAttention(8, 2), torch.randn(sum(sizes), 8, requires_grad=True)
    assert len(size_buckets(torch.tensor(sizes), torch.arange(2).repeat_interleave(torch.tensor(sizes))).buckets) == 1
    for kind in ("cpu", "another"):
        with taken_for("cpu", kind):
            value = attention(states, graph_of_sizes(sizes))
            found.append([value, *torch.autograd.grad(value.square().sum(), [states, *attention.parameters()])])
            assert largest_kept(lambda: attention(states, graph_of_sizes(sizes))) < 70 * 70
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_predicted_forces_take_attention_that_is_derived_once() -> None:
    """The same numbers as in training, without an array of nodes by nodes."""
    model, predicted = make_model("schnet", global_attention={"kind": "multihead", "heads": 2}), []
    batch = make_graph(0, 300, edges=8)
    trained = model(batch)["forces"].mean.detach()
    with torch.no_grad():
        assert 0 < largest_kept(lambda: predicted.append(model(batch)["forces"].mean)) < 300 * 300
    torch.testing.assert_close(predicted[0], trained, rtol=1e-10, atol=1e-12)


def test_a_gps_layer_leaves_what_turns_to_the_local_layer() -> None:
    class Doubled(nn.Module):
        def forward(self, states: States, graph: MessageGraph) -> States:
            return {0: 2 * states[0], 1: states[1]}

    layer, vectors = GPSLayer(Doubled(), CHANNELS, "linear", 2, dropout=0.0), torch.randn(5, 3, CHANNELS)
    assert layer({0: torch.randn(5, CHANNELS), 1: vectors}, graph_of_sizes([3, 2]))[1] is vectors
