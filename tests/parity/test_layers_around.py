"""Layers around layers, attention within graphs and conditioning, beside their equations written as loops."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hydragnn.conformance.cases import make_graph, make_model
from hydragnn.graphs.batch import GraphBatch
from hydragnn.kernels import Topology
from hydragnn.kernels.family import plain_forms, taken_for
from hydragnn.layers import GPSLayer, GraphAttention, LatentAttention, LinearGraphAttention, MessageGraph, States
from hydragnn.layers.size_buckets import size_buckets
from hydragnn.layers.wrapping import FiLM

CHANNELS = 6
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order


def graph_of(batch: GraphBatch, condition: Tensor | None = None) -> MessageGraph:
    return MessageGraph(
        topology=batch.topology, owner=batch.owner("node"), nodes_per_graph=batch.counts("node"), condition=condition
    )


def graph_of_sizes(sizes: list[int], vectors: Tensor | None = None) -> MessageGraph:
    """Graphs of so many nodes, without edges."""
    counts, none = torch.tensor(sizes), torch.zeros(0, dtype=torch.int64)
    return MessageGraph(
        topology=Topology.square(none, none, sum(sizes)),
        owner=torch.arange(len(sizes)).repeat_interleave(counts),
        nodes_per_graph=counts,
        vectors=vectors,
    )


@pytest.mark.parity("global attention", "its equations as loops", "linear attention")
def test_linear_attention_equals_its_equation_as_a_loop(batch: GraphBatch) -> None:
    heads, width = 2, CHANNELS // 2
    attention, states = LinearGraphAttention(CHANNELS, heads), torch.randn(batch.num_nodes, CHANNELS)
    actual, owner = attention(states, graph_of(batch)), batch.owner("node").tolist()
    queries, keys, values = attention.project(states).chunk(3, dim=1)
    for node in range(batch.num_nodes):
        read = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            total, weight = torch.zeros(width), torch.zeros(())
            for other in range(batch.num_nodes):
                if owner[other] == owner[node]:
                    feature = nn.functional.elu(queries[node, part]) + 1
                    share = feature @ (nn.functional.elu(keys[other, part]) + 1)
                    total, weight = total + share * values[other, part], weight + share
            read.append(total / weight)
        torch.testing.assert_close(actual[node], attention.out(torch.cat(read)), **EXACT)


# equal sizes, similar ones in one bucket, several buckets, graphs without nodes
SIZES = [[5, 5, 5], [5, 1, 7, 5], [40, 3, 0, 2, 38, 9], [0, 2, 0]]


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
    alone = [
        theirs(*(part.unsqueeze(0),) * 3, need_weights=True)[0].squeeze(0)
        for part in states.split([size for size in sizes if size])
    ]
    actual, expected = attention(states, graph), torch.cat(alone)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(actual, expected, **close)
    seed = torch.randn_like(actual)
    gradients = [torch.autograd.grad(values, states, seed, retain_graph=True)[0] for values in (actual, expected)]
    torch.testing.assert_close(*gradients, **close)


@pytest.mark.parametrize("kind", [GraphAttention, LinearGraphAttention])
def test_attention_has_two_derivatives_where_weights_learn_from_forces(
    kind: type[GraphAttention] | type[LinearGraphAttention],
) -> None:
    attention, vectors = kind(2, 1), torch.randn(0, 3, requires_grad=True)

    def read(states: Tensor) -> Tensor:
        result: Tensor = attention(states, graph_of_sizes([3, 2], vectors))
        return result

    assert len(size_buckets(torch.tensor([3, 2]), torch.tensor([0, 0, 0, 1, 1])).buckets) == 1  # with rows of zeros
    assert torch.autograd.gradgradcheck(read, (torch.randn(5, 2, requires_grad=True),))


ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: GraphAttention(CHANNELS, 2),
    "linear": lambda: LinearGraphAttention(CHANNELS, 2),
    "latents": lambda: LatentAttention(CHANNELS, 2, 3),
}


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_what_is_no_number_stays_in_its_graph(kind: str) -> None:
    """Also through rows of zeros, forward and backward."""
    attention, states, graph = ATTENTIONS[kind](), torch.randn(12, CHANNELS), graph_of_sizes([4, 5, 3])
    assert any(bucket.is_node is not None for bucket in size_buckets(graph.nodes_per_graph, graph.owner).buckets)
    states[4:9] = math.nan
    states.requires_grad_()
    read = attention(states, graph)
    (gradient,) = torch.autograd.grad(read, states, torch.randn_like(read))
    for values in (read, gradient):
        assert values[:4].isfinite().all() and values[9:].isfinite().all()


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attention_is_the_same_where_a_tracer_looks_on_and_on_a_device_without_a_fused_form(kind: str) -> None:
    attention, states, graph = ATTENTIONS[kind](), torch.randn(12, CHANNELS), graph_of_sizes([4, 5, 3])
    for forms in (plain_forms(), taken_for("cpu", "another")):
        expected = attention(states, graph)
        with forms:
            torch.testing.assert_close(attention(states, graph_of_sizes([4, 5, 3])), expected, **EXACT)


def largest_kept(attention: nn.Module, states: Tensor, graph: MessageGraph) -> int:
    """Numbers in the largest tensor that is kept for the backward pass."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention(states, graph)
    return max(kept)


def test_only_attention_that_is_derived_twice_makes_an_array_of_nodes_by_nodes() -> None:
    """A graph of 1024 nodes: 4 MB per head and array in single precision; neither without forces nor where they are predicted."""
    nodes = 1024
    attention, states = GraphAttention(8, 2).float(), torch.randn(nodes, 8, dtype=torch.float32)
    training = graph_of_sizes([nodes], torch.randn(0, 3, requires_grad=True))
    for graph in (graph_of_sizes([nodes]), replace(training, derived_once=True)):
        assert largest_kept(attention, states, graph) < nodes * nodes / 8
    assert largest_kept(attention, states, training) == 2 * nodes * nodes


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
            assert largest_kept(attention, states, graph_of_sizes(sizes)) < 70 * 70
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_predicted_forces_take_attention_that_is_derived_once() -> None:
    """The same numbers as in training, without an array of nodes by nodes."""
    nodes = 300
    model = make_model("schnet", global_attention={"kind": "multihead", "heads": 2})
    batch, kept = make_graph(0, nodes, edges=8), []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    trained = model(batch)["forces"].mean.detach()
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predicted = model(batch)["forces"].mean
    torch.testing.assert_close(predicted, trained, rtol=1e-10, atol=1e-12)
    assert 0 < max(kept) < nodes * nodes


def test_attention_that_is_linear_in_nodes_keeps_no_array_of_nodes_by_more_than_channels() -> None:
    linear, latents = LinearGraphAttention(32, 2), LatentAttention(CHANNELS, 2, 3)
    assert largest_kept(linear, torch.randn(200, 32), graph_of_sizes([20] * 10)) <= 200 * 3 * 32
    assert largest_kept(latents, torch.randn(3000, CHANNELS), graph_of_sizes([3000])) <= 3000 * 3 * CHANNELS


class Doubled(nn.Module):
    """A layer whose states are easy to know."""

    def forward(self, states: States, graph: MessageGraph) -> States:
        return {0: 2 * states[0], 1: states[1]}


@pytest.mark.parity("conditioning", "its equations as loops", "FiLM")
def test_film_equals_its_equation_as_a_loop(batch: GraphBatch) -> None:
    condition, states = torch.randn(2, CHANNELS), torch.randn(batch.num_nodes, CHANNELS)
    film, vectors = FiLM(Doubled(), CHANNELS), torch.randn(batch.num_nodes, 3, CHANNELS)
    actual = film({0: states, 1: vectors}, graph_of(batch, condition))
    for node, owner in enumerate(batch.owner("node").tolist()):
        scale = film.modulation.weight[:CHANNELS] @ condition[owner] + film.modulation.bias[:CHANNELS]
        shift = film.modulation.weight[CHANNELS:] @ condition[owner] + film.modulation.bias[CHANNELS:]
        torch.testing.assert_close(actual[0][node], (1 + scale.tanh()) * 2 * states[node] + shift, **EXACT)
    assert actual[1] is vectors


def test_a_gps_layer_leaves_what_turns_to_the_local_layer(batch: GraphBatch) -> None:
    layer, vectors = GPSLayer(Doubled(), CHANNELS, "linear", 2, dropout=0.0), torch.randn(batch.num_nodes, 3, CHANNELS)
    assert layer({0: torch.randn(batch.num_nodes, CHANNELS), 1: vectors}, graph_of(batch))[1] is vectors
