"""Layers around layers, attention within graphs and conditioning, beside their equations written as loops."""

import torch
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.layers import GPSLayer, LinearGraphAttention, MessageGraph, States
from hydragnn.layers.conditioning import FiLM

CHANNELS = 6
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order


def graph_of(batch: GraphBatch, condition: Tensor | None = None) -> MessageGraph:
    return MessageGraph(
        topology=batch.topology,
        owner=batch.owner("node"),
        nodes_per_graph=batch.counts("node"),
        condition=condition,
    )


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


class Doubled(nn.Module):
    """A layer whose states are easy to know."""

    def forward(self, states: States, graph: MessageGraph) -> States:
        return {0: 2 * states[0], 1: states[1]}


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
