"""Layers around layers, attention within graphs and conditioning, beside their equations written as loops."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hydragnn.conformance_cases import make_graph
from hydragnn.graphs.batch import GraphBatch, concatenate
from hydragnn.layers import GPSLayer, GraphAttention, LinearGraphAttention, MessageGraph, States
from hydragnn.layers.conditioning import FiLM
from hydragnn.layers.top_k import TopK

CHANNELS = 6
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order


def graph_of(batch: GraphBatch, condition: Tensor | None = None) -> MessageGraph:
    return MessageGraph(
        topology=batch.topology,
        owner=batch.owner("node"),
        nodes_per_graph=batch.counts("node"),
        condition=condition,
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("differentiated", [False, True])
def test_attention_equals_its_equation_as_a_loop(dtype: torch.dtype, differentiated: bool) -> None:
    """Torch's multi-head attention on every graph alone, in value and gradient, whether derivatives of positions are asked or not."""
    batch = concatenate([make_graph(seed, nodes) for seed, nodes in enumerate([5, 1, 7, 5])])
    vectors = torch.randn(batch.num_edges, 3, dtype=dtype, requires_grad=differentiated)
    graph = replace(graph_of(batch), vectors=vectors)
    attention, states = GraphAttention(CHANNELS, 2).to(dtype), torch.randn(batch.num_nodes, CHANNELS, dtype=dtype)
    states.requires_grad_()
    theirs = nn.MultiheadAttention(CHANNELS, 2, batch_first=True, dtype=dtype)
    theirs.in_proj_weight, theirs.in_proj_bias = attention.project.weight, attention.project.bias
    theirs.out_proj = attention.out
    alone = [theirs(*(part.unsqueeze(0),) * 3, need_weights=True)[0].squeeze(0) for part in states.split([5, 1, 7, 5])]
    actual, expected = attention(states, graph), torch.cat(alone)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(actual, expected, **close)
    seed = torch.randn_like(actual)
    gradients = [torch.autograd.grad(values, states, seed, retain_graph=True)[0] for values in (actual, expected)]
    torch.testing.assert_close(*gradients, **close)


def test_attention_has_two_derivatives_where_forces_are_asked() -> None:
    batch = concatenate([make_graph(0, 3), make_graph(1, 2)])
    attention = GraphAttention(2, 1)

    def read(states: Tensor, vectors: Tensor) -> Tensor:
        result: Tensor = attention(states, replace(graph_of(batch), vectors=vectors))
        return result + 0 * vectors.sum()

    given = torch.randn(5, 2, requires_grad=True), torch.randn(batch.num_edges, 3, requires_grad=True)
    assert torch.autograd.gradgradcheck(read, given)


def test_attention_without_forces_makes_no_array_of_nodes_by_nodes() -> None:
    """A graph of 1024 nodes: 4 MB per head and array in single precision, and no tensor of the backward pass is as large."""
    nodes = 1024
    batch = make_graph(0, nodes, edges=8)
    attention, states = GraphAttention(8, 2).float(), torch.randn(nodes, 8, dtype=torch.float32)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    def largest(vectors: Tensor | None) -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            attention(states, replace(graph_of(batch), vectors=vectors))
        return max(kept)

    assert largest(None) < nodes * nodes / 8
    assert largest(torch.randn(8, 3, requires_grad=True)) == 2 * nodes * nodes


def test_scores_choose_and_gate_as_those_of_pytorch_geometric(batch: GraphBatch) -> None:
    """Cangea et al. 2018; theirs lists nodes from the highest score down."""
    pool = pytest.importorskip("torch_geometric.nn").TopKPooling(CHANNELS, ratio=0.5)
    ours, states = TopK(CHANNELS, 0.5), torch.randn(batch.num_nodes, CHANNELS)
    with torch.no_grad():
        ours.direction.copy_(pool.select.weight[0])
    coarser = ours(states, graph_of(batch))
    theirs, edges, _, owner, kept, _ = pool(
        states, torch.stack([batch.senders, batch.receivers]), batch=batch.owner("node")
    )
    order = kept.argsort()
    torch.testing.assert_close(coarser.joining.senders, kept[order])
    torch.testing.assert_close(coarser.pooled(states), theirs[order], **EXACT)
    torch.testing.assert_close(coarser.graph.owner, owner[order])
    place = order.argsort()
    topology = coarser.graph.topology
    assert sorted(zip(topology.senders.tolist(), topology.receivers.tolist())) == sorted(
        zip(*(place[end].tolist() for end in edges))
    )


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
