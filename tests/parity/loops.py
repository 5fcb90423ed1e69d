"""Equations of layers, written as loops over nodes and edges with nothing but torch."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.architectures.egnn import EGNNLayer, EGNNSettings
from hydragnn.architectures.field_tokens import EdgeAngles, EdgeMixing
from hydragnn.architectures.painn import PaiNNUpdate
from hydragnn.architectures.pna import PNALayer
from hydragnn.architectures.pnaeq import PNAEqLayer, PNAEqMessage
from hydragnn.architectures.pnaplus import PNAPlusLayer
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.kernels import Topology
from hydragnn.layers import DegreeScalers, LinearGraphAttention, MessageGraph, RadialFeatures, States
from hydragnn.layers.neighbour_statistics import StatisticsForm
from hydragnn.layers.wrapping import FiLM
from tests.parity.rows import Bench, Pairs, Row

NODES, CHANNELS, RADIAL, CUTOFF = 7, 6, 5, 4.0
NAMES = ("identity", "amplification", "attenuation", "linear", "inverse_linear")
SCALERS = DegreeScalers(names=NAMES, mean_log_degree=1.2, mean_degree=2.5)


def ring(lacking: int = 0) -> Topology:
    """Every node hears three others, but for some of the last edges."""
    pairs = [(i, (i + step) % NODES) for i in range(NODES) for step in (1, 2, 4)]
    receivers, senders = torch.tensor(pairs[: len(pairs) - lacking]).T.contiguous()
    return Topology(senders=senders, receivers=receivers, num_columns=NODES, num_rows=NODES)


def linear(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def ends_of(edges: Topology) -> list[tuple[int, int, int]]:
    return [(e, s, r) for e, (s, r) in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist()))]


def ring_graph(edges: Topology, inputs: int) -> MessageGraph:
    """One graph of these edges, with random vectors and features."""
    vectors, features = torch.randn(edges.num_edges, 3), torch.randn(edges.num_edges, inputs) if inputs else None
    basis = RadialFeatures(CUTOFF, RADIAL, "gaussian", "cosine", inputs=inputs)
    nodes: Any = {"owner": torch.zeros(NODES, dtype=torch.int64), "nodes_per_graph": torch.tensor([NODES])}
    return MessageGraph(topology=edges, vectors=vectors, edge_features=features, basis=basis, **nodes)


def egnn(bench: Bench, attention: bool) -> Pairs:
    """Layer with vectors."""
    edges = ring()
    graph = ring_graph(edges, 2)
    basis, envelope = graph.basis, graph.edge_inputs[1]
    assert basis is not None and envelope is not None and graph.vectors is not None and graph.edge_features is not None
    settings = EGNNSettings(hidden_dim=CHANNELS, attention=attention)
    layer = EGNNLayer(settings, basis.width, vectors=True)
    states = torch.randn(NODES, CHANNELS)
    actual = layer({0: states}, graph)
    joined = torch.cat([linear(layer.from_receiver), linear(layer.from_sender), linear(layer.from_edge)], dim=1)
    received, vectors = torch.zeros_like(states), torch.zeros(NODES, 3, CHANNELS)
    for e, sender, receiver in ends_of(edges):
        edge = graph.vectors[e]
        features = basis(edge.norm().view(1), graph.edge_features[e : e + 1])[0][0]
        hidden = joined @ torch.cat([states[receiver], states[sender], features]) + layer.from_receiver.bias
        carried = nn.functional.silu(layer.second(nn.functional.silu(hidden)))
        if layer.gate is not None:
            carried = carried * torch.sigmoid(layer.gate(carried))
        carried = carried * envelope[e]
        received[receiver] += carried
        assert layer.coordinates is not None
        vectors[receiver] += torch.outer(edge / edge.norm(), layer.coordinates(carried) * envelope[e])
    yield actual[0], layer.nodes(torch.cat([states, received], dim=1)) + states
    yield actual[1], vectors


def summary(messages: list[Tensor]) -> list[Tensor]:
    if not messages:
        return [torch.zeros(CHANNELS)] * 3 + [torch.full((CHANNELS,), 1e-5).sqrt()]
    stacked = torch.stack(messages)
    mean = stacked.mean(0)
    return [mean, stacked.amin(0), stacked.amax(0), ((stacked - mean).square().mean(0) + 1e-5).sqrt()]


def smooth_summary(messages: list[Tensor], weights: list[Tensor]) -> tuple[list[Tensor], float, float]:
    """Weighted mean, least, largest and deviation of what a node receives, its share of the neighbours, and how many they are."""
    total = float(sum(weights))
    size = math.sqrt(1 + total**2)
    mean = sum((weight * message for weight, message in zip(weights, messages)), torch.zeros(CHANNELS)) / size
    parts: list[list[Tensor]] = [[], [], []]
    for weight, message in zip(weights, messages):
        x = message - mean
        for part, value in zip(parts, (x * x, torch.exp(4 * torch.asinh(x)), torch.exp(-4 * torch.asinh(x)))):
            part.append(weight * value)
    squares, up, down = (sum(part, torch.zeros(CHANNELS)) / size for part in parts)
    ways = [torch.sinh(torch.log((size - total) / size + part) / 4) for part in (down, up)]
    return [mean, mean - ways[0], mean + ways[1], (squares + 1).sqrt() - 1], total / size, size


def scaled(weight: Tensor, statistics: list[Tensor], size: float) -> Tensor:
    """Sum of all scalers of statistics, each with its part of the weight; attenuation of no neighbours is none."""
    logarithmic, count = math.log(size + 1) / 1.2, size / 2.5
    factors = (1.0, logarithmic, 1 / (logarithmic or 1.0), count, 1 / (count or 1.0))
    return sum(f * part for f, part in zip(factors, weight.chunk(5))) @ torch.cat(statistics)  # type: ignore[operator]


def pna(bench: Bench, filtered: bool) -> Pairs:
    """Smooth statistics of ``pna``, and of ``pnaplus``, whose messages are filtered."""
    edges = ring(lacking=4)
    states, features = torch.randn(NODES, CHANNELS), torch.randn(edges.num_edges, 3)
    envelope, filters = torch.rand(edges.num_edges, 1), torch.randn(edges.num_edges, CHANNELS)
    layer: PNALayer | PNAPlusLayer
    if filtered:
        layer = PNAPlusLayer(CHANNELS, 3, SCALERS, 0.0, "smooth")
        said = layer.from_edge(features)
        actual = layer.received(states, said, filters, envelope, edges)
    else:
        layer = PNALayer(CHANNELS, 3, SCALERS, 0.0, "smooth")
        said = features @ linear(layer.from_edge).T
        actual = layer.received(states, features, envelope, edges)
    for node in range(NODES):
        mine = [(e, sender) for e, sender, to in ends_of(edges) if to == node]
        own = layer.from_receiver(states[node])
        messages = [linear(layer.from_sender) @ states[sender] + said[e] for e, sender in mine]
        if filtered:
            messages = [(own + message) * filters[e] for (e, _), message in zip(mine, messages)]
        statistics, presence, size = smooth_summary(messages, [envelope[e, 0] for e, _ in mine])
        if not filtered:
            statistics = [own * presence + statistic for statistic in statistics[:3]] + statistics[3:]
        read = scaled(linear(layer.from_statistics), statistics, size)
        yield actual[node], layer.mix(layer.from_self(states[node]) + read)


def pnaeq(bench: Bench, first: bool, statistics: StatisticsForm) -> Pairs:
    """Statistics of scalars, sums of vectors, then PaiNN's update; degrees are 0, 2 and 3."""
    edges = ring(lacking=4)
    graph = ring_graph(edges, 2)
    (features, envelope), basis = graph.edge_inputs, graph.basis
    assert basis is not None and features is not None and envelope is not None and graph.vectors is not None
    message = PNAEqMessage(CHANNELS, basis.width, SCALERS, first=first, statistics=statistics)
    update = PaiNNUpdate(CHANNELS, last=False)
    states = {0: torch.randn(NODES, CHANNELS)}
    if not first:
        states[1] = torch.randn(NODES, 3, CHANNELS)
    actual = PNAEqLayer(message, update, dropout=0.0)(states, graph)
    normed = nn.functional.layer_norm(states[0], (CHANNELS,))
    joined = torch.cat([linear(message.from_receiver), linear(message.from_sender), linear(message.from_edge)], dim=1)
    received, ends = ([[] for _ in range(NODES)] for _ in range(2))
    scalars, vectors = torch.zeros(NODES, CHANNELS), states.get(1, torch.zeros(NODES, 3, CHANNELS)).clone()
    for e, sender, receiver in ends_of(edges):
        hidden = joined @ torch.cat([normed[receiver], normed[sender], features[e]]) + message.from_receiver.bias
        gates = [gate(nn.functional.silu(hidden)) for gate in message.gates]
        gates = [gate * (linear(w) @ features[e]) for gate, w in zip(gates, message.filters)]
        gates = [gates[0] if statistics == "smooth" else gates[0] * envelope[e], *(g * envelope[e] for g in gates[1:])]
        received[receiver].append(gates[0])
        ends[receiver].append(envelope[e, 0])
        vectors[receiver] += torch.outer(graph.vectors[e] / graph.vectors[e].norm(), gates[1])
        if not first:
            vectors[receiver] += states[1][sender] * gates[2]
    left, right = linear(update.mix).chunk(2)
    for node, mine in enumerate(received):
        if statistics == "smooth":
            four, _, size = smooth_summary(mine, ends[node])
        else:
            four, size = summary(mine), len(mine)
        read = scaled(linear(message.from_statistics), four, size)
        scalars[node] = states[0][node] + message.from_self(normed[node]) + read
        u, v = vectors[node] @ left.T, vectors[node] @ right.T
        lengths = (v.square().sum(0) + 1).sqrt() - 1
        shift, product, scale = update.gates(torch.cat([scalars[node], lengths])).chunk(3)
        yield actual[0][node], scalars[node] + shift + product * (u * v).sum(0)
        yield actual[1][node], vectors[node] + scale * u


def graph_of(batch: GraphBatch, **more: Any) -> MessageGraph:
    """The batch as layers see it."""
    owner, counts = batch.owner("node"), batch.counts("node")
    return MessageGraph(topology=batch.topology, owner=owner, nodes_per_graph=counts, **more)


def linear_attention(bench: Bench) -> Pairs:
    batch, heads, width = bench.batch, 2, CHANNELS // 2
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
        yield actual[node], attention.out(torch.cat(read))


class Doubled(nn.Module):
    """A layer whose states are easy to know."""

    def forward(self, states: States, graph: MessageGraph) -> States:
        return {0: 2 * states[0], 1: states[1]}


def film(bench: Bench) -> Pairs:
    """Vectors stay as they are."""
    batch, condition = bench.batch, torch.randn(2, CHANNELS)
    states, vectors = torch.randn(batch.num_nodes, CHANNELS), torch.randn(batch.num_nodes, 3, CHANNELS)
    layer = FiLM(Doubled(), CHANNELS)
    actual = layer({0: states, 1: vectors}, graph_of(batch, condition=condition))
    weights, biases = layer.modulation.weight.split(CHANNELS), layer.modulation.bias.split(CHANNELS)
    for node, owner in enumerate(batch.owner("node").tolist()):
        scale, shift = (weight @ condition[owner] + bias for weight, bias in zip(weights, biases))
        yield actual[0][node], (1 + scale.tanh()) * 2 * states[node] + shift
    yield actual[1], vectors


def far_graph(batch: GraphBatch) -> MessageGraph:
    """The batch with a few radial functions."""
    basis = RadialFeatures(9.0, 4, "gaussian", "polynomial", inputs=0)
    return graph_of(batch, vectors=edge_vectors(batch), basis=basis)


def angles(bench: Bench) -> Pairs:
    """Sums over pairs of edges."""
    graph = far_graph(bench.batch)
    assert graph.basis is not None
    module = EdgeAngles(graph.basis.width, 3)
    features, envelope = graph.basis(graph.lengths, None, None)
    ended, receivers, actual = features * envelope, bench.batch.receivers.tolist(), module(graph)
    for edge, receiver in enumerate(receivers):
        sums = torch.zeros(4, module.SUMS)
        for other in (number for number, one in enumerate(receivers) if one == receiver):
            cosine = graph.directions[edge] @ graph.directions[other]
            for power, weights in enumerate(module.sums(ended[other]).chunk(4)):
                sums[power] += weights * cosine**power
        inputs = module.inputs(torch.cat([ended[edge], sums.flatten()]))
        yield actual[edge], nn.functional.silu(inputs) * envelope[edge]


def messages(bench: Bench, angles: int) -> Pairs:
    batch, graph = bench.batch, far_graph(bench.batch)
    assert graph.basis is not None and graph.vectors is not None
    module = EdgeMixing(CHANNELS, graph.basis.width, directed=True, angles=angles)
    states = torch.randn(batch.num_nodes, CHANNELS)
    sums, along, sides = (torch.zeros(batch.num_nodes, axes, CHANNELS) for axes in (1, 3, 3))
    features, envelope = graph.basis(graph.lengths, None, None)
    inputs = features * envelope if module.angles is None else module.angles(graph)
    for edge, j, i in ends_of(batch.topology):
        joined = module.sent(states[j]) - module.sent(states[i]) + module.own(states[i])
        sums[i, 0] += joined * module.filters(inputs[edge])
        direction = graph.vectors[edge] / graph.vectors[edge].norm()
        along[i] += torch.outer(direction, joined * module.along(inputs[edge]))
        sides[i] += torch.outer(direction, module.sides(inputs[edge]))
    yield module(states, graph), module.out(torch.cat([sums[:, 0], (module.mix(along) * sides).sum(1)], dim=-1))


PNAEQ = [(n, s) for n in (True, False) for s in ("paper", "smooth")]
LOOPS = "its equations as loops"
ROWS = [
    Row("egnn", LOOPS, "layer with vectors", egnn, [(True,), (False,)]),
    Row("pna", LOOPS, "layers with smooth statistics, of pnaplus too", pna, [(False,), (True,)]),
    Row("pnaeq", LOOPS, "layer, with the paper's and with smooth statistics", pnaeq, PNAEQ),
    Row("global attention", LOOPS, "linear attention", linear_attention),
    Row("conditioning", LOOPS, "FiLM", film),
    Row("field_tokens", LOOPS, "angles between edges", angles),
    Row("field_tokens", LOOPS, "messages along edges", messages, [(0,), (2,)]),
]
