"""Principal neighbourhood aggregation with the weights of networks that the public HydraGNN trained (``public_hydragnn.py``)."""

import math

import torch
from torch import Tensor, nn

from hydragnn.architectures import pnaeq
from hydragnn.architectures.pna import PNALayer
from hydragnn.architectures.pnaeq import PNAEqLayer, PNAEqMessage
from hydragnn.architectures.pnaplus import PNAPlusLayer
from hydragnn.kernels import Topology
from hydragnn.layers import DegreeScalers, MessageGraph, RadialFeatures, Scaler, envelope_at, neighbour_statistics
from hydragnn.layers.neighbour_statistics import Aggregated, paper_statistics
from tests.parity.public_hydragnn import (
    Checkpoint,
    Convolution,
    Graphs,
    Layer,
    blind,
    chained,
    compared,
    filled,
    message_graph,
    put,
    row_of,
    tanh_network,
    their_directions,
    update_of,
)
from tests.parity.rows import Bench, Pairs

HYDRAGNN: tuple[Scaler, ...] = ("identity", "amplification", "attenuation", "linear")


def theirs_of_statistics(messages: Tensor, topology: Topology) -> Aggregated:
    """Ours, with their deviation: the root of the variance, of 1e-5 at least, and zero there."""
    aggregated = paper_statistics(messages, topology)
    *others, deviation = aggregated.statistics
    variance = deviation.square() - 1e-5
    deviation = torch.where(variance > 1e-5, variance, 0.0).sqrt()
    return aggregated._replace(statistics=(*others, deviation))


def put_pna(layer: PNALayer | PNAPlusLayer, weights: dict[str, Tensor]) -> Tensor:
    """The weights of a convolution of principal neighbourhood aggregation; the matrix that sees what an edge says is given back."""
    pre, post, channels = weights["pre_nns.0.0.weight"], weights["post_nns.0.0.weight"], len(weights["lin.bias"])
    width = len(pre)
    put(layer.from_receiver, pre[:, :width], weights["pre_nns.0.0.bias"])
    put(layer.from_sender, pre[:, width : 2 * width])
    own, *scaled = post.split(width, dim=1)
    put(layer.from_self, own, weights["post_nns.0.0.bias"])
    wide = [filled(each, channels) for each in scaled]  # four statistics of every scaler
    put(layer.from_statistics, torch.cat([torch.cat(wide[first : first + 4], dim=1) for first in range(0, 16, 4)]))
    put(layer.mix, weights["lin.weight"], weights["lin.bias"])
    return pre[:, 2 * width :]


def scalers_of(weights: dict[str, Tensor], names: tuple[Scaler, ...] = HYDRAGNN) -> DegreeScalers:
    log, lin = (float(weights[f"aggr_module.avg_deg_{name}"]) for name in ("log", "lin"))
    return DegreeScalers(names=names, mean_log_degree=log, mean_degree=lin)


def pna_networks(bench: Bench, name: str) -> Pairs:
    """``scalers`` with "linear", and means of degrees that it measured."""
    checkpoint = Checkpoint.of(bench, name)
    bench.patch.setattr(neighbour_statistics, "paper_statistics", theirs_of_statistics)

    def layer_of(number: int, width: int) -> Layer:
        weights = checkpoint.of_layer(number)
        channels = len(weights["lin.bias"])
        layer = PNALayer(channels, 0, scalers_of(weights), 0.0)
        put_pna(layer, weights)
        return lambda states, graph: {0: layer.received(filled(states[0], channels), None, None, graph.topology)}

    return compared(checkpoint, chained(blind, layer_of))


def pnaplus_networks(bench: Bench, name: str) -> Pairs:
    """Its exponent is ours less one; its G sees edge features beside a network of the radial functions."""
    checkpoint = Checkpoint.of(bench, name)
    bench.patch.setattr(neighbour_statistics, "paper_statistics", theirs_of_statistics)
    cutoff, exponent = checkpoint.settings["radius"], checkpoint.settings["envelope_exponent"] + 1

    def convolutions(graphs: Graphs) -> Convolution:
        graph, features = message_graph(graphs, receivers=1), graphs.get("edge_attr")
        x = (graph.lengths / cutoff).unsqueeze(-1)
        ended = envelope_at(graph.lengths, cutoff, "polynomial", exponent)
        assert ended is not None
        radial = torch.sin(checkpoint.weights["rbf.freq"] * x) * ended.unsqueeze(-1) / x  # [edges, radial]
        order = graphs["edge_index"][1].long().argsort(stable=True)

        def convolution(number: int, states: Tensor) -> Tensor:
            weights = checkpoint.of_layer(number)
            channels = len(weights["lin.bias"])
            layer = PNAPlusLayer(channels, radial.shape[1], scalers_of(weights), 0.0)
            from_edge = put_pna(layer, weights)
            seen = torch.relu(radial @ weights["rbf_emb.0.weight"].T + weights["rbf_emb.0.bias"])
            if features is not None and "edge_encoder.weight" in weights:
                joined = torch.cat([features[order], seen], dim=1)
                seen = joined @ weights["edge_encoder.weight"].T + weights["edge_encoder.bias"]
            given = states, seen @ from_edge.T, radial @ weights["rbf_lin.weight"].T
            return layer.received(*(filled(each, channels) for each in given), None, graph.topology)

        return convolution

    return compared(checkpoint, convolutions)


def pnaeq_networks(bench: Bench, name: str) -> Pairs:
    """``tanh_networks``; tanh in the first layer of the network of messages, SiLU in a second one; radial functions that end before they are seen."""
    checkpoint = Checkpoint.of(bench, name)
    bench.patch.setattr(neighbour_statistics, "paper_statistics", theirs_of_statistics)
    bench.patch.setattr(pnaeq, "directions_of", their_directions)
    bench.patch.setattr(pnaeq, "silu", torch.tanh)
    cutoff, count = checkpoint.settings["radius"], checkpoint.settings["num_radial"]
    basis = RadialFeatures(cutoff, count, "bessel", "cosine", inputs=1)

    def graph_of(graphs: Graphs) -> MessageGraph:
        features = graphs["edge_attr"][graphs["edge_index"][0].long().argsort(stable=True)]
        return message_graph(graphs, receivers=0, basis=basis, edge_features=features)

    def layer_of(number: int, width: int) -> Layer:
        return lambda states, graph: pnaeq_layer(checkpoint, number, graph)(states, graph)

    return compared(checkpoint, chained(graph_of, layer_of))


class EdgeNetwork(nn.Module):
    """What their first linear map makes of an edge: of its ended radial functions by a network, and of its feature."""

    def __init__(self, weights: dict[str, Tensor], matrix: Tensor, graph: MessageGraph) -> None:
        super().__init__()
        self.weights, self.matrix, self.envelope, self.basis = weights, matrix, graph.envelope, graph.basis

    def forward(self, features: Tensor) -> Tensor:
        """Of features as ours: radial functions, a constant, the feature."""
        assert self.envelope is not None and self.basis is not None
        radial, _, given = features.split([features.shape[1] - 2, 1, 1], dim=1)
        radial = radial * self.envelope / math.sqrt(2 / self.basis.cutoff)
        seen = [torch.tanh(radial @ self.weights["rbf_emb.0.weight"].T + self.weights["rbf_emb.0.bias"])]
        if "edge_encoder.weight" in self.weights:
            seen.append(given @ self.weights["edge_encoder.weight"].T + self.weights["edge_encoder.bias"])
        return torch.cat(seen, dim=1) @ self.matrix.T


def pnaeq_layer(checkpoint: Checkpoint, number: int, graph: MessageGraph) -> PNAEqLayer:
    """Ours, of the width of what comes into theirs, whose first two linear maps are one."""
    weights, basis = checkpoint.of_layer(number, 0), graph.basis
    assert basis is not None
    channels, first = len(weights["pre_nns.0.0.bias"]), number == 0
    scalers = scalers_of(weights, (*HYDRAGNN, "inverse_linear"))
    message = PNAEqMessage(channels, basis.width, scalers, first=first)
    message.norm = nn.Identity()  # type: ignore[assignment]
    matrix, bias = weights["scalar_message_mlp.0.weight"], weights["scalar_message_mlp.0.bias"]
    joined = matrix @ weights["pre_nns.0.0.weight"]
    put(message.from_receiver, joined[:, :channels], bias + matrix @ weights["pre_nns.0.0.bias"])
    put(message.from_sender, joined[:, channels : 2 * channels])
    message.from_edge = EdgeNetwork(weights, joined[:, 2 * channels :], graph)  # type: ignore[assignment]
    names = ("scalar_message_mlp.4.weight", "scalar_message_mlp.4.bias", "rbf_lin.weight")
    parts = zip(*(reversed(weights[name].split(channels)) for name in names))  # theirs: of vectors, directions, scalars
    for place, (last, last_bias, radial) in zip(range(len(message.gates)), parts):
        second, third = nn.Linear(channels, channels), nn.Linear(channels, channels)
        put(second, weights["scalar_message_mlp.2.weight"], weights["scalar_message_mlp.2.bias"])
        put(third, last, last_bias)
        message.gates[place] = nn.Sequential(second, nn.SiLU(), third)
        put(message.filters[place], radial / math.sqrt(2 / basis.cutoff))
    own, *scaled = weights["post_nns.0.0.weight"].split([channels, *[4 * channels] * 5], dim=1)
    put(message.from_self, own, weights["post_nns.0.0.bias"])
    put(message.from_statistics, torch.cat(scaled))
    return PNAEqLayer(message, update_of(checkpoint.of_layer(number, 1)), 0.0, tanh_network(checkpoint, number))


LEARNED = "networks, with its deviation and learned frequencies: predictions"
MESSAGES = "networks, with its deviation and network of messages: predictions"
ROWS = [
    row_of("pna", "networks, with its deviation: predictions", pna_networks, "PNA", "multihead convhead"),
    row_of("pnaplus", LEARNED, pnaplus_networks, "PNAPlus", "nolen_atoms3 lengths3"),
    row_of("pnaeq", MESSAGES, pnaeq_networks, "PNAEq", "lengths3 convhead"),
]
