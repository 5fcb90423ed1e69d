"""Our layers with the weights of networks that the public HydraGNN trained give the predictions that it wrote down, in float64.

Where it has other activations than ours inside a layer, the test puts them there; what stands around the layers is in ``public_hydragnn.py``.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.architectures import GraphSpec, egnn, mfc, painn, sage
from hydragnn.architectures import moving as movement
from hydragnn.architectures.cgcnn import CGCNNLayer
from hydragnn.architectures.egnn import EGNNLayer, EGNNSettings
from hydragnn.architectures.gatv2 import GATv2, GATv2Settings, WideLayer
from hydragnn.architectures.gin import GINLayer
from hydragnn.architectures.painn import PaiNNLayer, PaiNNMessage
from hydragnn.architectures.schnet import SchNetInteraction, SchNetLayer
from hydragnn.layers import GaussianBasis, LinearByClass, MessageGraph, RadialFeatures, mlp
from tests.parity.public_hydragnn import (
    Checkpoint,
    Convolution,
    Graphs,
    Layer,
    Weights,
    blind,
    chained,
    compared,
    filled,
    filled_up,
    message_graph,
    put,
    put_all,
    row_of,
    tanh_network,
    their_directions,
    update_of,
)
from tests.parity.rows import Bench, Pairs


class Lengths(nn.Module):
    """The length as it is, for a radial function."""

    def forward(self, lengths: Tensor) -> Tensor:
        return lengths.unsqueeze(-1)


def lengths_alone() -> RadialFeatures:
    """Edges that say their length, beside the constant of ours, and that have no end at a cutoff."""
    features = RadialFeatures(1.0, 1, "gaussian", "none", inputs=0)
    features.basis = Lengths()  # type: ignore[assignment]
    return features


class ShiftedSoftplus(nn.Module):
    """ln(exp(x) / 2 + 1 / 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x) - math.log(2)


def egnn_layer(checkpoint: Checkpoint, number: int) -> EGNNLayer:
    """Ours, as wide as its layers; what its first layer sees of nodes is filled up with zeros."""
    weights, channels = checkpoint.of_layer(number), checkpoint.settings["hidden_dim"]
    moves = "coord_mlp.0.weight" in weights
    moving: dict[str, Any] = {"moving_coordinates": True, "movement": "mean"} if moves else {}
    settings = EGNNSettings(hidden_dim=channels, residual=False, **moving)
    layer = EGNNLayer(settings, lengths_alone().width, vectors=False, moves=moves)
    layer.nodes[1] = nn.ReLU()
    first, width = weights["edge_mlp.0.weight"], (weights["edge_mlp.0.weight"].shape[1] - 1) // 2
    put(layer.from_receiver, first[:, :width], weights["edge_mlp.0.bias"])
    put(layer.from_sender, first[:, width : 2 * width])
    put(layer.from_edge, first[:, 2 * width :])
    own, received = weights["node_mlp.0.weight"].split([width, channels], dim=1)
    put(layer.nodes[0], torch.cat([filled(own, channels), received], dim=1), weights["node_mlp.0.bias"])
    put_all(weights, {"edge_mlp.2": layer.second, "node_mlp.2": layer.nodes[2]})
    if layer.shift is not None:
        put_all(weights, {"coord_mlp.0": layer.shift.first, "coord_mlp.2": layer.shift.last})
    return layer


def egnn_networks(bench: Bench, name: str) -> Pairs:
    """``residual = false`` and ``movement = "mean"``; it sees lengths as they are and has ReLU."""
    checkpoint = Checkpoint.of(bench, name)
    bench.patch.setattr(egnn, "silu", torch.relu)
    bench.patch.setattr(movement, "silu", torch.relu)

    def layer_of(number: int, width: int) -> Layer:
        layer = egnn_layer(checkpoint, number)
        return filled_up(layer, layer.from_sender.in_features)

    return compared(checkpoint, chained(partial(message_graph, receivers=0, basis=lengths_alone()), layer_of))


def schnet_networks(bench: Bench, name: str) -> Pairs:
    """Gaussians and a cosine; its layers are the sum over neighbours alone, on edges that it found itself, without periodic images."""
    checkpoint = Checkpoint.of(bench, name)
    cutoff, radial = checkpoint.settings["radius"], checkpoint.settings["num_gaussians"]

    def convolutions(graphs: Graphs) -> Convolution:
        basis = RadialFeatures(cutoff, radial, "gaussian", "cosine", inputs=0)
        gaussians = basis.basis
        assert isinstance(gaussians, GaussianBasis)
        gaussians.orders = (
            checkpoint.weights["distance_expansion.offset"] / gaussians.step
        )  # it rounded them to float32
        graph = message_graph(graphs, receivers=1, edges=graphs["model_built_edge_index"], basis=basis)

        def convolution(number: int, states: Tensor) -> Tensor:
            weights = checkpoint.of_layer(number, module=2)
            # states are filled up with zeros to the width of filters
            filters, channels = len(weights["nn.2.bias"]), len(weights["lin2.bias"])
            interaction = SchNetInteraction(filters)
            interaction.after = nn.Sequential(nn.Linear(filters, filters))
            layer = SchNetLayer(mlp([basis.width, filters, filters]), interaction, 0.0, None, at_rest=True)
            layer.filters[1] = ShiftedSoftplus()
            put_all(weights, {"nn.0": layer.filters[0], "nn.2": layer.filters[2]})
            put_all(weights, {"lin1": interaction.before, "lin2": interaction.after[0]})
            return interaction(filled(states, filters), layer.ended_filters(graph, graph), graph.sharing)[:, :channels]

        return convolution

    return compared(checkpoint, convolutions)


def painn_networks(bench: Bench, name: str) -> Pairs:
    """Sines and a cosine, ``directions = "over_length"``, ``tanh_networks`` and ``edge_network``; lengths of vectors are as they are."""
    checkpoint = Checkpoint.of(bench, name)
    bench.patch.setattr(painn, "directions_of", their_directions)
    cutoff, radial = checkpoint.settings["radius"], checkpoint.settings["num_radial"]

    def graph_of(graphs: Graphs) -> MessageGraph:
        own = graphs["edge_attr"] if checkpoint.settings.get("edge_dim") else None
        order = graphs["edge_index"][0].long().argsort(stable=True)
        basis = RadialFeatures(cutoff, radial, "bessel", "cosine", inputs=0 if own is None else own.shape[1])
        features = None if own is None else own[order]
        return message_graph(graphs, receivers=0, basis=basis, edge_features=features)

    def layer_of(number: int, width: int) -> Layer:
        return lambda states, graph: painn_layer(checkpoint, number, graph.basis)(states, graph)  # type: ignore[arg-type]

    return compared(checkpoint, chained(graph_of, layer_of))


def painn_layer(checkpoint: Checkpoint, number: int, basis: RadialFeatures) -> PaiNNLayer:
    """Ours, of the width of what comes into theirs; its parts are in another order, and its radial functions have no amplitude."""
    message, change = checkpoint.of_layer(number, 0), checkpoint.of_layer(number, 1)
    channels = len(message["scalar_message_mlp.0.bias"])
    radial = message["filter_layer.weight"].shape[1] + 1
    filters = [nn.Linear(radial, channels, bias=False) for _ in range(2 if number == 0 else 3)]
    update, after = update_of(change), tanh_network(checkpoint, number)
    edges = mlp([basis.width - radial, channels, len(filters) * channels]) if basis.width > radial else None
    layer = PaiNNLayer(filters, PaiNNMessage(channels, len(filters)), update, 0.0, "over_length", edges, after)

    def parts(weight: Tensor) -> list[Tensor]:  # theirs: of vectors, of directions, of scalars
        return [*reversed(weight.split(channels))][: len(filters)]

    for mine, weight, bias in zip(filters, parts(message["filter_layer.weight"]), parts(message["filter_layer.bias"])):
        put(mine, torch.cat([weight / math.sqrt(2 / basis.cutoff), bias.unsqueeze(1)], dim=1))
    for network, name in ((layer.message.states, "scalar_message_mlp"), (edges, "edge_filter")):
        if isinstance(network, nn.Sequential):
            put(network[0], message[f"{name}.0.weight"], message[f"{name}.0.bias"])
            put(network[2], *(torch.cat(parts(message[f"{name}.2.{what}"])) for what in ("weight", "bias")))
    return layer


def gin_layer(checkpoint: Checkpoint, weights: Weights, width: int) -> nn.Module:
    """Ours with ReLU in its network, and an epsilon near 100."""
    assert 90 < float(weights["eps"]) < 110
    layer = GINLayer(len(weights["nn.2.bias"]), float(weights["eps"]))
    layer.network = nn.Sequential(nn.Linear(width, len(weights["nn.0.bias"])), nn.ReLU(), layer.network[2])
    put_all(weights, {"nn.0": layer.network[0], "nn.2": layer.network[2]})
    return layer


def sage_layer(checkpoint: Checkpoint, weights: Weights, width: int) -> nn.Module:
    layer, channels = sage.SAGELayer(1), len(weights["lin_l.bias"])
    layer.from_self, layer.from_mean = nn.Linear(width, channels, bias=False), nn.Linear(width, channels)
    put_all(weights, {"lin_r": layer.from_self, "lin_l": layer.from_mean})
    return layer


def mfc_layer(checkpoint: Checkpoint, weights: Weights, width: int) -> nn.Module:
    """Ours; ``max_degree`` is its ``max_neighbours``."""
    most = checkpoint.settings["max_neighbours"]
    layer = mfc.MFCLayer(1, most)
    layer.by_degree = LinearByClass(2 * width, len(weights["lins_l.0.bias"]), most + 1)
    own, received, bias = (
        torch.cat([weights[f"lins_{side}.{degree}.{what}"] for degree in range(most + 1)])
        for side, what in (("r", "weight"), ("l", "weight"), ("l", "bias"))
    )
    put(layer.by_degree, torch.cat([own, received], dim=1), bias)
    return layer


def cgcnn_layer(checkpoint: Checkpoint, weights: Weights, width: int) -> nn.Module:
    """Ours without edge features."""
    layer = CGCNNLayer(width, 0, 0.0)
    weight, bias = (torch.cat([weights[f"lin_{name}.{what}"] for name in "fs"]) for what in ("weight", "bias"))
    put(layer.from_receiver, weight[:, :width], bias)
    put(layer.from_sender, weight[:, width:])
    return layer


BLIND = {"gin": gin_layer, "sage": sage_layer, "mfc": mfc_layer, "cgcnn": cgcnn_layer}


def blind_networks(bench: Bench, name: str, kind: str) -> Pairs:
    """Their activation comes after the batch norm."""
    checkpoint = Checkpoint.of(bench, name)
    for module in (sage, mfc):
        bench.patch.setattr(module, "silu", lambda x: x)

    def layer_of(number: int, width: int) -> Layer:
        return BLIND[kind](checkpoint, checkpoint.of_layer(number), width)

    return compared(checkpoint, chained(blind, layer_of))


def take_gatv2(layer: WideLayer, weights: dict[str, Tensor]) -> None:
    """Their weights; batch norm and activation come after it, from the checkpoint."""
    put_all(weights, {"lin_l": layer.from_sender, "lin_r": layer.from_receiver, "lin_edge": layer.from_edge})
    layer.attention.copy_(weights["att"].squeeze(0))
    layer.bias.copy_(weights["bias"])
    layer.after = nn.Sequential()


def gatv2_networks(bench: Bench, name: str) -> Pairs:
    """``wide_heads``, ``own_edge = "mean"``, 6 heads and a slope of .05; of images of a node itself, which it does not see, there are no edges."""
    checkpoint = Checkpoint.of(bench, name)
    sizes = {"hidden_dim": checkpoint.settings["hidden_dim"], "num_layers": checkpoint.settings["num_conv_layers"]}
    settings = GATv2Settings(**sizes, heads=6, negative_slope=0.05, wide_heads=True, own_edge="mean")
    network = GATv2(settings, GraphSpec(dim=0, edge_width=1)).requires_grad_(False)
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, WideLayer)
        take_gatv2(layer, checkpoint.of_layer(number))

    def graph_of(graphs: Graphs) -> MessageGraph:
        others = graphs["edge_index"][0] != graphs["edge_index"][1]
        edges, features = graphs["edge_index"][:, others].long(), graphs["edge_attr"][others]
        order = edges[1].argsort(stable=True)
        graph = message_graph(graphs, receivers=1, edges=edges, edge_features=features[order])
        return replace(graph, vectors=None)

    def layer_of(number: int, width: int) -> Layer:
        layer = network.layers[number]
        return filled_up(layer, layer.from_sender.in_features)  # type: ignore[union-attr,arg-type]

    return compared(checkpoint, chained(graph_of, layer_of))


EGNN = "multihead nolen_atoms3 equivariance mlip_graphhead multibranch2 convhead cond_film"
SCHNET, PAINN = "multihead convhead mlip cond_concat_node", "mlip mlip_fp64 mlip_multibranch2 lengths3"
EDGES = "networks, with and without edge features: predictions, energies, forces"
ROWS = [
    row_of("egnn", "networks, at rest and moving: predictions, energies, forces", egnn_networks, "EGNN", EGNN),
    row_of("schnet", "networks: predictions, energies, forces", schnet_networks, "SchNet", SCHNET),
    row_of("painn", EDGES, painn_networks, "PAINN", PAINN),
    *(
        row_of(kind, "networks: predictions", partial(blind_networks, kind=kind), kind.upper(), names)
        for kind, names in {"gin": "multihead gaussian_nll", "sage": "atoms3 convhead", "mfc": "atoms3"}.items()
    ),
    row_of("cgcnn", "networks: predictions", partial(blind_networks, kind="cgcnn"), "CGCNN", "multihead"),
    row_of("gatv2", "network with wide heads: predictions", gatv2_networks, "GAT", "lengths3"),
]
