"""DimeNet as the public HydraGNN chains it, with the weights of networks that it trained (``public_hydragnn.py``)."""

import math
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from hydragnn.architectures import GraphSpec
from hydragnn.architectures.dimenet import ChainedLayer, DimeNet, DimeNetSettings, Interaction
from hydragnn.layers import BesselBasis, MessageGraph, RadialFeatures, TripletSumsAtReceivers
from tests.parity.public_hydragnn import (
    Activation,
    Checkpoint,
    Layer,
    chained,
    compared,
    filled_up,
    message_graph,
    put,
    row_of,
)
from tests.parity.rows import Bench, Pairs

theirs = pytest.importorskip("torch_geometric.nn.models.dimenet")


class TheirBessel(nn.Module):
    """Spherical Bessel functions of PyTorch Geometric, which stores their zeros and norms in single precision."""

    def __init__(self, settings: DimeNetSettings) -> None:
        super().__init__()
        self.cutoff, self.shape = settings.cutoff, (settings.num_spherical, settings.num_radial)
        self.functions = bessel_functions(*self.shape)

    def forward(self, lengths: Tensor) -> Tensor:
        values = [function(lengths / self.cutoff) for function in self.functions]
        return torch.stack(values, dim=1).unflatten(1, self.shape)


@cache
def bessel_functions(num_spherical: int, num_radial: int) -> list[Callable[[Tensor], Tensor]]:
    """Those of x = r / c, which take seconds to make."""
    functions: list[Callable[[Tensor], Tensor]] = theirs.SphericalBasisLayer(num_spherical, num_radial).bessel_funcs
    return functions


def network_of(checkpoint: Checkpoint) -> DimeNet:
    """Ours, in the form of its settings, with its radial frequencies, which it learned."""
    names = (
        *("hidden_dim", "num_radial", "num_spherical", "int_emb_size", "basis_emb_size", "out_emb_size"),
        *("num_before_skip", "num_after_skip"),
    )
    table = {name: checkpoint.settings[name] for name in names}
    table |= {"num_layers": checkpoint.settings["num_conv_layers"], "cutoff": checkpoint.settings["radius"]}
    table |= {"envelope_exponent": checkpoint.settings["envelope_exponent"] + 1}
    settings = DimeNetSettings(**table, messages="anew", angle="at_receiver", output_layers=1)
    network = DimeNet(settings, GraphSpec(dim=3)).requires_grad_(False)
    assert isinstance(network.basis, RadialFeatures) and isinstance(network.basis.basis, BesselBasis)
    network.basis.basis.orders = checkpoint.weights["rbf.freq"] / math.pi
    for number, layer in enumerate(network.layers):
        take_layer(layer, checkpoint, number, TheirBessel(settings))
    return network


def take_layer(layer: ChainedLayer, checkpoint: Checkpoint, number: int, basis: TheirBessel) -> None:
    before, embedding, interaction, output = (checkpoint.of_layer(number, module) for module in range(4))
    amplitude = math.sqrt(2 / basis.cutoff) / basis.cutoff  # of our radial functions beside theirs

    def put_radial(linear: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
        put(linear, weight / amplitude, bias)

    put(layer.before, before["weight"], before["bias"])
    put_radial(layer.embedding.radial, embedding["lin_rbf.weight"], embedding["lin_rbf.bias"])
    receiver, sender, edge = embedding["lin.weight"].chunk(3, dim=1)
    put(layer.embedding.from_receiver, receiver)
    put(layer.embedding.from_sender, sender)
    put(layer.embedding.from_edge, edge, embedding["lin.bias"])
    take_interaction(layer.interaction, interaction)
    put_radial(layer.interaction.radial_first, interaction["lin_rbf1.weight"])
    layer.interaction.angular.basis = basis  # type: ignore[assignment]
    layer.interaction.triplets = WithoutReceivers(basis.shape[0])
    put_radial(layer.output.radial, output["lin_rbf.weight"])
    put(layer.output.up, output["lin_up.weight"])
    put(layer.output.hidden[0], output["lins.0.weight"], output["lins.0.bias"])  # type: ignore[arg-type]
    put(layer.output.last, output["lin.weight"])
    if checkpoint.settings["activation_function"] != "silu":
        layer.after[0] = Activation(checkpoint.activation)


def take_interaction(mine: Interaction, weights: dict[str, Tensor]) -> None:
    put(mine.radial_second, weights["lin_rbf2.weight"])
    degrees = weights["lin_sbf1.weight"].chunk(len(mine.angular.first), dim=1)
    for linear, weight in zip(mine.angular.first, degrees, strict=True):
        put(linear, weight)  # type: ignore[arg-type]
    put(mine.angular.second, weights["lin_sbf2.weight"])
    put(mine.down, weights["lin_down.weight"])
    put(mine.up, weights["lin_up.weight"])
    for linear, name in ((mine.own, "lin_ji"), (mine.sent, "lin_kj"), (mine.skip, "lin")):
        put(linear, weights[f"{name}.weight"], weights[f"{name}.bias"])
    for networks, name in ((mine.before, "layers_before_skip"), (mine.after, "layers_after_skip")):
        for place, residual in enumerate(networks):
            for linear, one in ((residual.first, "lin1"), (residual.second, "lin2")):
                put(linear, *(weights[f"{name}.{place}.{one}.{what}"] for what in ("weight", "bias")))


class WithoutReceivers(TripletSumsAtReceivers):
    """Ours without the triplets from which a receiver comes back as another image of itself, to which it belongs by number."""

    def of_triplets(self, graph: MessageGraph) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Both edges, and the harmonics."""
        first, second, harmonics = super().of_triplets(graph)
        other = graph.topology.senders[first] != graph.topology.receivers[second]
        return first[other], second[other], [values[other] for values in harmonics]


def dimenet_networks(bench: Bench, name: str) -> Pairs:
    """``messages = "anew"``, ``angle = "at_receiver"`` and ``output_layers = 1``; from its triplets all images of the receiver are left out."""
    checkpoint = Checkpoint.of(bench, name)
    network = network_of(checkpoint)

    def layer_of(number: int, width: int) -> Layer:
        layer = network.layers[number]
        return filled_up(layer, layer.before.in_features)  # type: ignore[union-attr,arg-type]

    graph_of = partial(message_graph, receivers=1, basis=network.basis)
    return compared(checkpoint, chained(graph_of, layer_of), activates=True)


ROWS = [
    row_of(
        "dimenet",
        "networks of networks, with its frequencies: predictions",
        dimenet_networks,
        "DimeNet_multihead DimeNet_nolen_atoms3",
    ),
]
