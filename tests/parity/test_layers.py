"""Our layers with the weights of independent implementations: PyTorch Geometric's, and the papers' equations as loops."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from hydragnn.architectures.egnn import EGNNLayer, EGNNSettings
from hydragnn.architectures.moving import MOVED, MeanMovement
from hydragnn.architectures.painn import Directions, PaiNNLayer, PaiNNMessage, PaiNNUpdate
from hydragnn.architectures.pna import PNALayer
from hydragnn.architectures.pnaeq import PNAEqLayer, PNAEqMessage
from hydragnn.architectures.pnaplus import PNAPlusLayer
from hydragnn.architectures.schnet import SchNetInteraction, SchNetLayer
from hydragnn.kernels import Topology
from hydragnn.layers import (
    DegreeScalers,
    MessageGraph,
    RadialFeatures,
    Scaler,
    StatisticsForm,
    envelope_at,
    mlp,
)

NODES, CHANNELS, RADIAL, CUTOFF = 7, 6, 5, 4.0
PAPER: tuple[Scaler, ...] = ("identity", "amplification", "attenuation")
HYDRAGNN: tuple[Scaler, ...] = (*PAPER, "linear")
SUMS = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order


@pytest.fixture
def edges() -> Topology:
    """Every node hears three others."""
    pairs = [(i, (i + step) % NODES) for i in range(NODES) for step in (1, 2, 4)]
    receivers, senders = torch.tensor(pairs).T.contiguous()
    return Topology(senders=senders, receivers=receivers, num_columns=NODES, num_rows=NODES)


def linear(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def pairs_of(edges: Topology) -> list[tuple[int, int, int]]:
    return [(e, s, r) for e, (s, r) in enumerate(zip(edges.senders.tolist(), edges.receivers.tolist()))]


def graph_with(edges: Topology, **more: Any) -> MessageGraph:
    """One graph of these edges."""
    owner, size = torch.zeros(NODES, dtype=torch.int64), torch.tensor([NODES])
    return MessageGraph(topology=edges, owner=owner, nodes_per_graph=size, **more)


@pytest.mark.parity("painn", "its equations as loops", "updates")
@pytest.mark.parametrize("norm", ["paper", "smooth"])
def test_painn_updates_equal_equations_9_and_10(norm: Literal["paper", "smooth"]) -> None:
    update = PaiNNUpdate(CHANNELS, last=False, norm=norm)
    scalars, vectors = torch.randn(NODES, CHANNELS), torch.randn(NODES, 3, CHANNELS)
    d_scalars, d_vectors = update(scalars, vectors)
    left, right = linear(update.mix)[:CHANNELS], linear(update.mix)[CHANNELS:]
    for node in range(NODES):
        u, v = vectors[node] @ left.T, vectors[node] @ right.T
        squares = torch.stack([v[:, c] @ v[:, c] for c in range(CHANNELS)])
        norms = (squares + 1).sqrt() - 1 if norm == "smooth" else (squares + 1e-8).sqrt()  # as in the authors' code
        shift, product, scale = update.gates(torch.cat([scalars[node], norms])).split(CHANNELS)
        inner = torch.stack([u[:, c] @ v[:, c] for c in range(CHANNELS)])
        torch.testing.assert_close(d_scalars[node], shift + product * inner, **SUMS)
        assert d_vectors is not None
        torch.testing.assert_close(d_vectors[node], scale * u, **SUMS)


@pytest.mark.parity("egnn", "its equations as loops", "layer, at rest and moving")
@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("moves", ["no", "sum", "mean"])
def test_egnn_equals_its_equations_written_as_a_loop(
    edges: Topology, attention: bool, moves: Literal["no", "sum", "mean"]
) -> None:
    """Moving by means without a residual is the layer of the public HydraGNN: its ``E_GCL``, but for the activation and what is seen of lengths."""
    basis = RadialFeatures(CUTOFF, RADIAL, "gaussian", "cosine", inputs=2)
    movement: Any = {} if moves == "no" else {"moving_coordinates": True, "movement": moves}
    settings = EGNNSettings(hidden_dim=CHANNELS, attention=attention, residual=moves != "mean", **movement)
    layer = EGNNLayer(settings, basis.width, vectors=True, moves=moves != "no")
    numbers = {"vectors": torch.randn(edges.num_edges, 3), "edge_features": torch.randn(edges.num_edges, 2)}
    graph = graph_with(edges, **numbers, basis=basis)
    envelope = graph.edge_inputs[1]
    assert envelope is not None and graph.vectors is not None
    states, before = torch.randn(NODES, CHANNELS), torch.randn(NODES, 3) * (moves != "no")
    actual = layer({0: states, **({MOVED: before} if moves != "no" else {})}, graph)
    joined = torch.cat([linear(layer.from_receiver), linear(layer.from_sender), linear(layer.from_edge)], dim=1)
    received, vectors, after = torch.zeros_like(states), torch.zeros(NODES, 3, CHANNELS), before.clone()
    for e, sender, receiver in pairs_of(edges):
        edge = graph.vectors[e] + before[sender] - before[receiver]
        features = basis(edge.norm().view(1), graph.edge_features[e : e + 1])[0][0]
        hidden = joined @ torch.cat([states[receiver], states[sender], features]) + layer.from_receiver.bias
        carried = nn.functional.silu(layer.second(nn.functional.silu(hidden)))
        if layer.gate is not None:
            carried = carried * torch.sigmoid(layer.gate(carried))
        if layer.shift is not None:
            pull = layer.shift.last(nn.functional.silu(layer.shift.first(carried)))
            if moves == "sum":
                after[receiver] += envelope[e] * pull * edge
            else:
                neighbours = int((edges.receivers == receiver).sum())
                after[receiver] += torch.tanh(pull) * edge / (edge.norm() + 1) / neighbours
        carried = carried * envelope[e]
        received[receiver] += carried
        assert layer.coordinates is not None
        vectors[receiver] += torch.outer(edge / edge.norm(), layer.coordinates(carried) * envelope[e])
    for node in range(NODES):
        expected = layer.nodes(torch.cat([states[node], received[node]]))
        expected = expected + states[node] if settings.residual else expected
        torch.testing.assert_close(actual[0][node], expected, **SUMS)
    torch.testing.assert_close(actual[1], vectors, **SUMS)
    torch.testing.assert_close(actual.get(MOVED, before), after, **SUMS)


def summary(messages: list[Tensor]) -> list[Tensor]:
    """Mean, least, largest and standard deviation of what a node receives."""
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


@pytest.mark.parity("pna", "its equations as loops", "layers with smooth statistics, of pnaplus too")
@pytest.mark.parametrize("filtered", [False, True], ids=["pna", "pnaplus"])
def test_smooth_statistics_equal_their_equations_written_as_a_loop(edges: Topology, filtered: bool) -> None:
    edges = Topology(senders=edges.senders[:-4], receivers=edges.receivers[:-4], num_columns=NODES, num_rows=NODES)
    scalers = DegreeScalers(names=(*HYDRAGNN, "inverse_linear"), mean_log_degree=1.2, mean_degree=2.5)
    states, features = torch.randn(NODES, CHANNELS), torch.randn(edges.num_edges, 3)
    envelope, filters = torch.rand(edges.num_edges, 1), torch.randn(edges.num_edges, CHANNELS)
    layer: PNALayer | PNAPlusLayer
    if filtered:
        layer = PNAPlusLayer(CHANNELS, 3, scalers, 0.0, "smooth")
        said = layer.from_edge(features)
        actual = layer.received(states, said, filters, envelope, edges)
    else:
        layer = PNALayer(nn.Identity(), CHANNELS, 3, scalers, 0.0, "smooth")
        said = features @ linear(layer.from_edge).T
        actual = layer.received(states, features, envelope, edges)
    matrices = linear(layer.from_statistics).chunk(5)
    for node in range(NODES):
        mine = [(e, sender) for e, sender, to in pairs_of(edges) if to == node]
        own = layer.from_receiver(states[node])
        messages = [linear(layer.from_sender) @ states[sender] + said[e] for e, sender in mine]
        if filtered:
            messages = [(own + message) * filters[e] for (e, _), message in zip(mine, messages)]
        statistics, presence, size = smooth_summary(messages, [envelope[e, 0] for e, _ in mine])
        if not filtered:
            statistics = [own * presence + statistic for statistic in statistics[:3]] + statistics[3:]
        logarithmic, count = math.log(size + 1) / 1.2, size / 2.5
        sizes = (1.0, logarithmic, 1 / logarithmic, count, 1 / count)
        matrix = sum((number * part for number, part in zip(sizes, matrices)), torch.zeros_like(matrices[0]))
        expected = layer.mix(layer.from_self(states[node]) + matrix @ torch.cat(statistics))
        torch.testing.assert_close(actual[node], expected, **SUMS)


@pytest.mark.parity("schnet", "its equations as loops", "moving as in the public HydraGNN")
def test_schnet_moves_by_means_as_the_public_hydragnn_does(edges: Topology) -> None:
    """x_i + mean_j f(W_ij) r_ij / (|r_ij| + 1): its ``CFConv.coord_model``, whose filters W end at the cutoff."""
    basis = RadialFeatures(CUTOFF, RADIAL, "gaussian", "cosine", inputs=0)
    move = MeanMovement(CHANNELS, bounded=False)
    layer = SchNetLayer(
        mlp([basis.width, CHANNELS, CHANNELS]), SchNetInteraction(CHANNELS), 0.0, move, at_rest=move is None
    )
    graph = graph_with(edges, vectors=torch.randn(edges.num_edges, 3), basis=basis)
    assert graph.vectors is not None
    actual = layer({0: torch.randn(NODES, CHANNELS)}, graph)[MOVED]
    expected = torch.zeros(NODES, 3)
    for receiver in range(NODES):
        mine = [graph.vectors[e] for e, _, to in pairs_of(edges) if to == receiver]
        for edge in mine:
            features, ending = basis(edge.norm().view(1), None)
            assert ending is not None
            pull = move.last(nn.functional.silu(move.first(layer.filters(features) * ending)))
            expected[receiver] += pull[0] * edge / (edge.norm() + 1) / len(mine)
    torch.testing.assert_close(actual, expected, **SUMS)


@pytest.mark.parity("painn", "its equations as loops", "vectors as in the public HydraGNN")
def test_vectors_over_length_are_those_of_the_public_hydragnn(edges: Topology) -> None:
    """Its PAINNStack adds (d_ij / |d_ij|) / |d_ij|, gated, to the vectors; here by hand in the first layer."""
    basis = RadialFeatures(CUTOFF, RADIAL, "sinc", "cosine", inputs=0)
    filters = [nn.Linear(basis.width, CHANNELS, bias=False) for _ in range(2)]
    update = PaiNNUpdate(CHANNELS, last=True)
    layer = PaiNNLayer(filters, PaiNNMessage(CHANNELS, 2), update, 0.0, directions="over_length")
    graph = graph_with(edges, vectors=torch.randn(edges.num_edges, 3), basis=basis)
    assert graph.vectors is not None
    scalars, expected = torch.randn(NODES, CHANNELS), torch.zeros(NODES, 3, CHANNELS)
    for e, sender, receiver in pairs_of(edges):
        length = graph.vectors[e].norm()
        features, ending = basis(length.view(1), None)
        assert ending is not None
        gate = layer.message.states(scalars[sender])[CHANNELS:] * filters[1](features * ending)[0]
        expected[receiver] += torch.outer(graph.vectors[e] / length / length, gate)
    torch.testing.assert_close(layer({0: scalars}, graph)[1], expected, **SUMS)


@pytest.mark.parity("pnaeq", "its equations as loops", "layer, with the paper's and with smooth statistics")
@pytest.mark.parametrize("statistics", ["paper", "smooth"])
@pytest.mark.parametrize("directions", ["unit", "over_length"])
@pytest.mark.parametrize("first", [True, False], ids=["first layer", "later layer"])
def test_pnaeq_equals_its_equations_written_as_a_loop(
    edges: Topology, first: bool, directions: Directions, statistics: StatisticsForm
) -> None:
    """Statistics of scalars, sums of vectors, then PaiNN's update; node by node, with nothing but torch."""
    edges = Topology(
        senders=edges.senders[:-4], receivers=edges.receivers[:-4], num_columns=NODES, num_rows=NODES
    )  # degrees 0, 2 and 3
    basis = RadialFeatures(CUTOFF, RADIAL, "gaussian", "cosine", inputs=2)
    scalers = DegreeScalers(names=(*HYDRAGNN, "inverse_linear"), mean_log_degree=1.2, mean_degree=2.5)
    message = PNAEqMessage(CHANNELS, basis.width, scalers, first=first, directions=directions, statistics=statistics)
    update = PaiNNUpdate(CHANNELS, last=False)
    numbers = {"vectors": torch.randn(edges.num_edges, 3), "edge_features": torch.randn(edges.num_edges, 2)}
    graph = graph_with(edges, **numbers, basis=basis)
    states = {0: torch.randn(NODES, CHANNELS), 1: torch.randn(NODES, 3, CHANNELS)}
    if first:
        del states[1]
    assert graph.vectors is not None
    actual = PNAEqLayer(message, update, dropout=0.0)(states, graph)
    features, envelope = graph.edge_inputs
    assert features is not None and envelope is not None
    normed = nn.functional.layer_norm(states[0], (CHANNELS,))
    joined = torch.cat([linear(message.from_receiver), linear(message.from_sender), linear(message.from_edge)], dim=1)
    received, ends = ([[] for _ in range(NODES)] for _ in range(2))
    scalars, vectors = torch.zeros(NODES, CHANNELS), states.get(1, torch.zeros(NODES, 3, CHANNELS)).clone()
    for e, sender, receiver in pairs_of(edges):
        hidden = joined @ torch.cat([normed[receiver], normed[sender], features[e]]) + message.from_receiver.bias
        gates = [gate(nn.functional.silu(hidden)) for gate in message.gates]
        gates = [gate * (linear(w) @ features[e]) for gate, w in zip(gates, message.filters)]
        gates = [gates[0] if statistics == "smooth" else gates[0] * envelope[e], *(g * envelope[e] for g in gates[1:])]
        received[receiver].append(gates[0])
        ends[receiver].append(envelope[e, 0])
        power = 1 if directions == "unit" else 2
        vectors[receiver] += torch.outer(graph.vectors[e] / graph.vectors[e].norm() ** power, gates[1])
        if not first:
            vectors[receiver] += states[1][sender] * gates[2]
    plain, amplified, attenuated, grown, shrunk = linear(message.from_statistics).chunk(5)
    left, right = linear(update.mix).chunk(2)
    for node, mine in enumerate(received):
        if statistics == "smooth":
            four, _, number = smooth_summary(mine, ends[node])
        else:
            empty = [torch.zeros(CHANNELS)] * 3 + [torch.full((CHANNELS,), 1e-5).sqrt()]
            four, number = summary(mine) if mine else empty, len(mine)
        size, count = math.log(number + 1) / 1.2, number / 2.5
        matrix = plain + size * amplified + count * grown
        matrix = matrix + attenuated / (size or 1.0) + shrunk / (count or 1.0)
        scaled = matrix @ torch.cat(four)
        scalars[node] = states[0][node] + message.from_self(normed[node]) + scaled
        u, v = vectors[node] @ left.T, vectors[node] @ right.T
        lengths = (v.square().sum(0) + 1).sqrt() - 1
        shift, product, scale = update.gates(torch.cat([scalars[node], lengths])).chunk(3)
        torch.testing.assert_close(actual[0][node], scalars[node] + shift + product * (u * v).sum(0), **SUMS)
        torch.testing.assert_close(actual[1][node], vectors[node] + scale * u, **SUMS)


@pytest.mark.parity("radial basis", "PyTorch Geometric", "envelopes of several exponents")
@pytest.mark.parametrize("exponent", [3, 5, 6])
def test_envelopes_are_those_of_dimenet_in_pytorch_geometric(exponent: int) -> None:
    dimenet = pytest.importorskip("torch_geometric.nn.models.dimenet")
    lengths = 0.1 + 4.5 * torch.rand(20)  # some beyond the cutoff
    ours = envelope_at(lengths, CUTOFF, "polynomial", exponent)
    assert ours is not None
    expected = dimenet.Envelope(exponent - 1)(lengths / CUTOFF) * lengths / CUTOFF  # theirs is over the length
    torch.testing.assert_close(ours, expected, **SUMS)


@pytest.mark.parity("radial basis", "e3nn", "bessel functions")
def test_the_bessel_basis_equals_that_of_e3nn() -> None:
    soft = pytest.importorskip("e3nn.math")
    radial = RadialFeatures(CUTOFF, RADIAL, "bessel", "none", inputs=0)
    lengths = torch.linspace(0.3, CUTOFF - 0.1, 20)
    theirs = soft.soft_one_hot_linspace(lengths, 0.0, CUTOFF, RADIAL, basis="bessel", cutoff=False)
    features, _ = radial(lengths, None)
    # theirs differs by one constant factor; every function at every length must have the same one
    ratio = features[:, :RADIAL] / theirs
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), **SUMS)
    assert math.isfinite(float(ratio[0, 0]))
