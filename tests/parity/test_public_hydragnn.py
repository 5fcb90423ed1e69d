"""Our layers with the weights of networks that the public HydraGNN trained give the predictions that it wrote down, in float64.

Where it has other activations than ours inside a layer, the test puts them there; what stands around the layers is in ``public_hydragnn.py``.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from public_hydragnn import Checkpoint, Convolution, Graphs, filled, message_graph, network, put
from torch import Tensor, nn

from hydragnn.architectures import egnn, mfc, painn, pna, pnaplus, sage
from hydragnn.architectures.cgcnn import CGCNNLayer
from hydragnn.architectures.egnn import EGNNLayer, EGNNSettings
from hydragnn.architectures.gin import GINLayer
from hydragnn.architectures.painn import Directions, PaiNNLayer, PaiNNMessage, PaiNNUpdate, directions_of
from hydragnn.architectures.pna import PNALayer
from hydragnn.architectures.pnaplus import PNAPlusLayer
from hydragnn.architectures.schnet import SchNetInteraction, SchNetLayer
from hydragnn.kernels import Topology
from hydragnn.layers import (
    MOVED,
    DegreeScalers,
    GaussianBasis,
    LinearByClass,
    MessageGraph,
    RadialFeatures,
    Scaler,
    envelope_at,
    mlp,
    movement,
    paper_statistics,
)
from hydragnn.layers.neighbour_statistics import Aggregated

HYDRAGNN: tuple[Scaler, ...] = ("identity", "amplification", "attenuation", "linear")
EXACT = 1e-10
"""Of the largest value of a batch."""


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, real_data: Path) -> Checkpoint:
    """That of the name which a test is given."""
    return Checkpoint(real_data / "hydragnn" / "ckpt" / request.param)


Network = Callable[[Graphs], Convolution]


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=EXACT * float(expected.abs().max()))


def compared(checkpoint: Checkpoint, convolutions: Network) -> None:
    """Every head's predictions and, where energies have them, forces."""
    for graphs, expected in checkpoint.batches():
        potential = "energy" in expected
        graphs = {**expected, **graphs, "pos": graphs["pos"].clone().requires_grad_(potential)}
        states = checkpoint.final_states(graphs, convolutions(graphs))
        outputs = checkpoint.outputs(graphs, states)
        assert outputs
        for name, values in outputs.items():
            assert_equal(values, expected[name])
        if potential:
            total = outputs["head0"]
            if len(total) == len(graphs["x"]):
                total = total.new_zeros(len(expected["energy"]), 1).index_add(0, graphs["batch"], total)
            assert_equal(total.flatten(), expected["energy"])
            (gradient,) = torch.autograd.grad(total.sum(), graphs["pos"])
            assert_equal(-gradient, expected["forces"])


class Lengths(nn.Module):
    """The length as it is, for a radial function."""

    def forward(self, lengths: Tensor) -> Tensor:
        """Of every edge."""
        return lengths.unsqueeze(-1)


def lengths_alone() -> RadialFeatures:
    """Edges that say their length, beside the constant of ours, and that have no end at a cutoff."""
    features = RadialFeatures(1.0, 1, "gaussian", "none", inputs=0)
    features.basis = Lengths()  # type: ignore[assignment]
    return features


class ShiftedSoftplus(nn.Module):
    """ln(exp(x) / 2 + 1 / 2)."""

    def forward(self, x: Tensor) -> Tensor:
        """Of every number."""
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
    put(layer.second, weights["edge_mlp.2.weight"], weights["edge_mlp.2.bias"])
    own, received = weights["node_mlp.0.weight"].split([width, channels], dim=1)
    put(layer.nodes[0], torch.cat([filled(own, channels), received], dim=1), weights["node_mlp.0.bias"])
    put(layer.nodes[2], weights["node_mlp.2.weight"], weights["node_mlp.2.bias"])
    if layer.shift is not None:
        put(layer.shift.first, weights["coord_mlp.0.weight"], weights["coord_mlp.0.bias"])
        put(layer.shift.last, weights["coord_mlp.2.weight"])
    return layer


@pytest.mark.parity("egnn", "public HydraGNN", "networks, at rest and moving: predictions, energies, forces")
@pytest.mark.parametrize(
    "checkpoint",
    [
        "EGNN_multihead",
        "EGNN_nolen_atoms3",
        "EGNN_equivariance",
        "EGNN_mlip_graphhead",
        "EGNN_multibranch2",
        "EGNN_convhead",
        "EGNN_cond_film",
    ],
    indirect=True,
)
def test_egnn_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """``residual = false`` and ``movement = "mean"``; it sees lengths as they are and has ReLU."""
    monkeypatch.setattr(egnn, "silu", torch.relu)
    monkeypatch.setattr(movement, "silu", torch.relu)

    def convolutions(graphs: Graphs) -> Convolution:
        graph, moved = message_graph(graphs, receivers=0, basis=lengths_alone()), {}

        def convolution(number: int, states: Tensor) -> Tensor:
            layer = egnn_layer(checkpoint, number)
            new = layer({0: filled(states, layer.from_sender.in_features), **moved}, graph)
            moved.update({degree: values for degree, values in new.items() if degree == MOVED})
            return new[0]

        return convolution

    compared(checkpoint, convolutions)


@pytest.mark.parity("schnet", "public HydraGNN", "networks: predictions, energies, forces")
@pytest.mark.parametrize("checkpoint", ["SchNet_multihead", "SchNet_convhead", "SchNet_mlip"], indirect=True)
def test_schnet_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint) -> None:
    """Gaussians and a cosine; its layers are the sum over neighbours alone, on edges that it found itself, without periodic images."""
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
            layer = SchNetLayer(mlp([basis.width, filters, filters]), interaction, 0.0, None)
            layer.filters[1] = ShiftedSoftplus()
            put(layer.filters[0], weights["nn.0.weight"], weights["nn.0.bias"])
            put(layer.filters[2], weights["nn.2.weight"], weights["nn.2.bias"])
            put(interaction.before, weights["lin1.weight"])
            put(interaction.after[0], weights["lin2.weight"], weights["lin2.bias"])
            return interaction(filled(states, filters), layer.ended_filters(graph, graph), graph.sharing)[:, :channels]

        return convolution

    compared(checkpoint, convolutions)


@pytest.mark.parity("painn", "public HydraGNN", "networks: energies, forces")
@pytest.mark.parametrize("checkpoint", ["PAINN_mlip", "PAINN_mlip_fp64", "PAINN_mlip_multibranch2"], indirect=True)
def test_painn_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sines and a cosine, ``directions = "over_length"``, lengths of vectors as they are; after each layer it maps all states.

    Unit vectors are r / (|r| + 1e-9) there.
    """

    def directions(graph: MessageGraph, form: Directions) -> Tensor:
        lengths = graph.lengths.unsqueeze(-1)
        return directions_of(graph, form) * lengths / (lengths + 1e-9)

    monkeypatch.setattr(painn, "directions_of", directions)
    cutoff, radial = checkpoint.settings["radius"], checkpoint.settings["num_radial"]

    def convolutions(graphs: Graphs) -> Convolution:
        basis = RadialFeatures(cutoff, radial, "bessel", "cosine", inputs=0)
        graph, vectors = message_graph(graphs, receivers=0, basis=basis), {}

        def convolution(number: int, states: Tensor) -> Tensor:
            layer = painn_layer(checkpoint, number, basis)
            new = layer({0: states, **vectors}, graph)
            after, turned = checkpoint.of_layer(number, 2), checkpoint.of_layer(number, 3)
            if turned:
                vectors[1] = new[1] @ turned["weight"].T
            return network(after, new[0], torch.tanh)

        return convolution

    compared(checkpoint, convolutions)


def painn_layer(checkpoint: Checkpoint, number: int, basis: RadialFeatures) -> PaiNNLayer:
    """Ours, of the width of what comes into theirs; its parts are in another order, and its radial functions have no amplitude."""
    message, change = checkpoint.of_layer(number, 0), checkpoint.of_layer(number, 1)
    channels = len(message["scalar_message_mlp.0.bias"])
    filters = [nn.Linear(basis.width, channels, bias=False) for _ in range(2 if number == 0 else 3)]
    last = len(change["update_mlp.2.bias"]) == 2 * channels
    update = PaiNNUpdate(channels, last=last)
    update.norm = torch.sqrt
    layer = PaiNNLayer(filters, PaiNNMessage(channels, len(filters)), update, 0.0, directions="over_length")

    def parts(weight: Tensor) -> list[Tensor]:  # theirs: of vectors, of directions, of scalars
        return [*reversed(weight.split(channels))][: len(filters)]

    for mine, weight, bias in zip(filters, parts(message["filter_layer.weight"]), parts(message["filter_layer.bias"])):
        put(mine, torch.cat([weight / math.sqrt(2 / basis.cutoff), bias.unsqueeze(1)], dim=1))
    put(layer.message.states[0], message["scalar_message_mlp.0.weight"], message["scalar_message_mlp.0.bias"])
    second = [torch.cat(parts(message[f"scalar_message_mlp.2.{name}"])) for name in ("weight", "bias")]
    put(layer.message.states[2], *second)
    put(update.mix, torch.cat([change["update_U.weight"], change["update_V.weight"]]))
    norms, scalars = change["update_mlp.0.weight"].chunk(2, dim=1)
    put(update.gates[0], torch.cat([scalars, norms], dim=1), change["update_mlp.0.bias"])
    # theirs: of vectors, unless it is the last, of the product, of scalars
    gates = [torch.cat([*reversed(change[f"update_mlp.2.{name}"].split(channels))]) for name in ("weight", "bias")]
    put(update.gates[2], *gates)
    return layer


@pytest.mark.parity("gin", "public HydraGNN", "networks: predictions")
@pytest.mark.parametrize("checkpoint", ["GIN_multihead"], indirect=True)
def test_gin_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint) -> None:
    """An epsilon near 100, and ReLU in its network."""

    def layer_of(number: int, width: int) -> nn.Module:
        weights = checkpoint.of_layer(number)
        assert 90 < float(weights["eps"]) < 110
        layer = GINLayer(len(weights["nn.2.bias"]), float(weights["eps"]))
        layer.network = nn.Sequential(nn.Linear(width, len(weights["nn.0.bias"])), nn.ReLU(), layer.network[2])
        put(layer.network[0], weights["nn.0.weight"], weights["nn.0.bias"])
        put(layer.network[2], weights["nn.2.weight"], weights["nn.2.bias"])
        return layer

    compared(checkpoint, blind(layer_of))


@pytest.mark.parity("sage", "public HydraGNN", "networks: predictions")
@pytest.mark.parametrize("checkpoint", ["SAGE_atoms3", "SAGE_convhead"], indirect=True)
def test_sage_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its activation comes after the batch norm."""
    monkeypatch.setattr(sage, "silu", lambda x: x)

    def layer_of(number: int, width: int) -> nn.Module:
        weights = checkpoint.of_layer(number)
        layer, channels = sage.SAGELayer(1), len(weights["lin_l.bias"])
        layer.from_self, layer.from_mean = nn.Linear(width, channels, bias=False), nn.Linear(width, channels)
        put(layer.from_self, weights["lin_r.weight"])
        put(layer.from_mean, weights["lin_l.weight"], weights["lin_l.bias"])
        return layer

    compared(checkpoint, blind(layer_of))


@pytest.mark.parity("mfc", "public HydraGNN", "networks: predictions")
@pytest.mark.parametrize("checkpoint", ["MFC_atoms3"], indirect=True)
def test_mfc_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """``max_degree`` is its ``max_neighbours``; its activation comes after the batch norm."""
    monkeypatch.setattr(mfc, "silu", lambda x: x)

    def layer_of(number: int, width: int) -> nn.Module:
        weights, most = checkpoint.of_layer(number), checkpoint.settings["max_neighbours"]
        channels = len(weights["lins_l.0.bias"])
        layer = mfc.MFCLayer(1, most)
        layer.by_degree = LinearByClass(2 * width, channels, most + 1)
        own, received, bias = (
            [weights[f"lins_{name}"] for name in (f"{side}.{degree}.{what}" for degree in range(most + 1))]
            for side, what in (("r", "weight"), ("l", "weight"), ("l", "bias"))
        )
        put(layer.by_degree, torch.cat([torch.cat(own), torch.cat(received)], dim=1), torch.cat(bias))
        return layer

    compared(checkpoint, blind(layer_of))


@pytest.mark.parity("cgcnn", "public HydraGNN", "networks: predictions")
@pytest.mark.parametrize("checkpoint", ["CGCNN_multihead"], indirect=True)
def test_cgcnn_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint) -> None:
    """Without edge features."""

    def layer_of(number: int, width: int) -> nn.Module:
        weights = checkpoint.of_layer(number)
        layer = CGCNNLayer(width, 0, 0.0)
        both = torch.cat([weights["lin_f.weight"], weights["lin_s.weight"]])
        put(layer.from_receiver, both[:, :width], torch.cat([weights["lin_f.bias"], weights["lin_s.bias"]]))
        put(layer.from_sender, both[:, width:])
        return layer

    compared(checkpoint, blind(layer_of))


def blind(layer_of: Callable[[int, int], nn.Module]) -> Network:
    """Layers, by number and width of what comes into them, that see edges and nothing of geometry."""

    def convolutions(graphs: Graphs) -> Convolution:
        graph = replace(message_graph(graphs, receivers=1), vectors=None)

        def convolution(number: int, states: Tensor) -> Tensor:
            values: Tensor = layer_of(number, states.shape[1])({0: states}, graph)[0]
            return values

        return convolution

    return convolutions


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


def scalers_of(weights: dict[str, Tensor]) -> DegreeScalers:
    means = (float(weights[f"aggr_module.avg_deg_{name}"]) for name in ("log", "lin"))
    return DegreeScalers(names=HYDRAGNN, mean_log_degree=next(means), mean_degree=next(means))


@pytest.mark.parity("pna", "public HydraGNN", "networks, with its deviation: predictions")
@pytest.mark.parametrize("checkpoint", ["PNA_multihead", "PNA_convhead"], indirect=True)
def test_pna_predicts_what_the_public_hydragnn_does(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """``scalers`` with "linear", and means of degrees that it measured."""
    monkeypatch.setattr(pna, "paper_statistics", theirs_of_statistics)

    def convolutions(graphs: Graphs) -> Convolution:
        graph = message_graph(graphs, receivers=1)

        def convolution(number: int, states: Tensor) -> Tensor:
            weights = checkpoint.of_layer(number)
            channels = len(weights["lin.bias"])
            layer = PNALayer(nn.Identity(), channels, 0, scalers_of(weights), 0.0)
            put_pna(layer, weights)
            return layer.received(filled(states, channels), None, None, graph.topology)

        return convolution

    compared(checkpoint, convolutions)


@pytest.mark.parity("pnaplus", "public HydraGNN", "networks, with its deviation and learned frequencies: predictions")
@pytest.mark.parametrize("checkpoint", ["PNAPlus_nolen_atoms3", "PNAPlus_lengths3"], indirect=True)
def test_pnaplus_predicts_what_the_public_hydragnn_does(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exponent is ours less one; its G sees edge features beside a network of the radial functions."""
    monkeypatch.setattr(pnaplus, "paper_statistics", theirs_of_statistics)
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

    compared(checkpoint, convolutions)
