"""DimeNet++ of PyTorch Geometric, from species and positions of molecules to energies and forces, and as the public HydraGNN chains it."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from ase.build import molecule
from scipy.special import spherical_jn
from torch import Tensor, nn

from hydragnn.architectures import GraphSpec
from hydragnn.architectures.dimenet import ChainedLayer, DimeNet, DimeNetSettings
from hydragnn.graphs import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import concatenate
from hydragnn.layers import BesselBasis, MessageGraph, RadialFeatures, TripletSumsAtReceivers, bessel_zeros
from hydragnn.models import GraphModel
from tests.parity.networks import compared, energy_head, network, table_of
from tests.parity.public_hydragnn import (
    Activation,
    Checkpoint,
    Layer,
    Weights,
    chained,
    filled_up,
    message_graph,
    put,
    put_all,
    row_of,
)
from tests.parity.public_hydragnn import compared as compared_with_checkpoint
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, LAYERS, RADIAL, SPHERICAL, CUTOFF = 10, 2, 3, 3, 5.0
INNER, BASIS, OUT = 6, 5, 12
MOLECULES = ("CH3CH2OH", "C6H6", "H2O")


def put_radial(linear: nn.Module, weights: Weights, name: str, cutoff: float) -> None:
    """Weights of u sin(n pi x) / x as weights of sqrt(2 / c) u sin(n pi x) / r, and of a constant."""
    put(linear, weights[f"{name}.weight"] * cutoff / math.sqrt(2 / cutoff), weights.get(f"{name}.bias"))


def take_embedding(mine: nn.Module, weights: Weights, cutoff: float) -> None:
    put_radial(mine.radial, weights, "lin_rbf", cutoff)
    receiver, sender, edge = weights["lin.weight"].chunk(3, dim=1)
    put(mine.from_receiver, receiver)
    put(mine.from_sender, sender)
    put(mine.from_edge, edge, weights["lin.bias"])


def take_output(mine: nn.Module, weights: Weights, cutoff: float) -> None:
    put_radial(mine.radial, weights, "lin_rbf", cutoff)
    put_all(weights, {"lin_up": mine.up, "lin": mine.last, **{f"lins.{n}": one for n, one in enumerate(mine.hidden)}})


def take_interaction(mine: nn.Module, weights: Weights, cutoff: float) -> None:
    put_radial(mine.radial_first, weights, "lin_rbf1", cutoff)
    degrees = weights["lin_sbf1.weight"].chunk(len(mine.angular.first), dim=1)
    for linear, weight in zip(mine.angular.first, degrees, strict=True):
        put(linear, weight)
    names = {"lin_rbf2": mine.radial_second, "lin_sbf2": mine.angular.second, "lin_down": mine.down, "lin_up": mine.up}
    names |= {"lin_ji": mine.own, "lin_kj": mine.sent, "lin": mine.skip}
    for networks, name in ((mine.before, "layers_before_skip"), (mine.after, "layers_after_skip")):
        for place, residual in enumerate(networks):
            names |= {f"{name}.{place}.lin1": residual.first, f"{name}.{place}.lin2": residual.second}
    put_all(weights, names)


def molecules() -> GraphBatch:
    """Molecules at rest and bent a little: their derivative of an angle is not finite in a straight line."""
    random, graphs = torch.Generator().manual_seed(0), []
    for name in MOLECULES:
        atoms = molecule(name)
        atoms.positions += 0.1 * torch.randn(len(atoms), 3, generator=random).numpy()
        graphs.append(from_ase(atoms, CUTOFF).to(dtype=torch.float64))
    batch = concatenate(graphs)
    assert int(batch.topology.degrees.max()) >= 8
    return batch


def their_network(batch: GraphBatch, patch: pytest.MonkeyPatch) -> nn.Module:
    """Their network on our edges, whose triplets are found by comparing all with all.

    They store zeros of Bessel functions in float32; here these have all digits. Their search for neighbours needs another library.
    """
    dimenet = pytest.importorskip("torch_geometric.nn.models.dimenet")
    utilities = pytest.importorskip("torch_geometric.nn.models.dimenet_utils")
    patch.setattr(utilities, "Jn_zeros", lambda n, k: bessel_zeros(n - 1, k))
    patch.setattr(dimenet, "radius_graph", lambda *_, **__: torch.stack([batch.senders, batch.receivers]))
    patch.setattr(dimenet, "triplets", triplets)
    sizes = {"num_blocks": LAYERS, "int_emb_size": INNER, "basis_emb_size": BASIS, "out_emb_channels": OUT}
    sizes |= {"hidden_channels": CHANNELS, "out_channels": CHANNELS, "num_spherical": SPHERICAL, "num_radial": RADIAL}
    return dimenet.DimeNetPlusPlus(**sizes, cutoff=CUTOFF, output_initializer="glorot_orthogonal")


def triplets(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """Receivers and senders of edges; the nodes i, j, k of triplets, and their edges k -> j and j -> i."""
    senders, receivers = edge_index
    follows = (receivers.unsqueeze(1) == senders) & (senders.unsqueeze(1) != receivers)
    first, second = follows.nonzero().unbind(1)
    return receivers, senders, receivers[second], senders[second], senders[first], first, second


def our_network() -> GraphModel:
    table = {"kind": "dimenet", "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    table |= {"num_spherical": SPHERICAL, "int_emb_size": INNER, "basis_emb_size": BASIS, "out_emb_size": OUT}
    return network(table, [energy_head()])


def copy_weights(model: GraphModel, theirs: nn.Module) -> None:
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # theirs are zero
    encoder, blocks = model.encoder, [block.state_dict() for block in theirs.output_blocks]
    table_of(model).weight[:95].copy_(theirs.emb.emb.weight)
    take_embedding(encoder.first, theirs.emb.state_dict(), CUTOFF)
    take_output(encoder.output, blocks[0], CUTOFF)
    for layer, block, output in zip(encoder.layers, theirs.interaction_blocks, blocks[1:], strict=True):
        take_interaction(layer.interaction, block.state_dict(), CUTOFF)
        take_output(layer.output, output, CUTOFF)


def dimenet_of_geometric(bench: Bench) -> Pairs:
    """But for our node inputs, which are in our sum over blocks beside what nodes read, and a linear head after it."""
    batch = molecules()
    theirs, model = their_network(batch, bench.patch), our_network()
    with torch.no_grad():
        copy_weights(model, theirs)
    positions = batch.positions.clone().requires_grad_()
    states = theirs(batch.nodes[ATOMIC_NUMBERS], positions, batch.owner("node"))  # [graphs, channels]
    inputs = model.node_inputs(batch)
    states = states + torch.zeros_like(states).index_add(0, batch.owner("node"), inputs)
    (linear,) = [module for module in model.heads[0].modules() if isinstance(module, nn.Linear)]
    counts = batch.counts("node").double()
    energies = (states @ linear.weight.T).squeeze(1) + counts * linear.bias
    (gradient,) = torch.autograd.grad(energies.sum(), positions)
    return compared(model, batch, {"energy": energies, "forces": -gradient})


class TheirBessel(nn.Module):
    """Spherical Bessel functions of PyTorch Geometric, which stores their zeros and norms in single precision."""

    def __init__(self, settings: DimeNetSettings) -> None:
        super().__init__()
        theirs = pytest.importorskip("torch_geometric.nn.models.dimenet_utils")
        self.cutoff, self.shape = settings.cutoff, (settings.num_spherical, settings.num_radial)
        self.zeros = theirs.Jn_zeros(*self.shape)
        self.norms = [1 / (0.5 * theirs.Jn(row, ell + 1) ** 2) ** 0.5 for ell, row in enumerate(self.zeros)]

    def forward(self, lengths: Tensor) -> Tensor:
        x, zeros = lengths.numpy() / self.cutoff, self.zeros.astype(float)
        values = [spherical_jn(ell, np.outer(x, row)) * norm for ell, (row, norm) in enumerate(zip(zeros, self.norms))]
        return torch.from_numpy(np.stack(values, axis=1))


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
    put(layer.before, before["weight"], before["bias"])
    take_embedding(layer.embedding, embedding, basis.cutoff)
    take_interaction(layer.interaction, interaction, basis.cutoff)
    layer.interaction.angular.basis = basis  # type: ignore[assignment]
    layer.interaction.triplets = WithoutReceivers(basis.shape[0])
    take_output(layer.output, output, basis.cutoff)
    if checkpoint.settings["activation_function"] != "silu":
        layer.after[0] = Activation(checkpoint.activation)


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
    return compared_with_checkpoint(checkpoint, chained(graph_of, layer_of), activates=True)


LINE = "networks of networks, with its frequencies: predictions"
ROWS = [
    Row("dimenet", "PyTorch Geometric", "network: energies, forces of molecules", dimenet_of_geometric),
    row_of("dimenet", LINE, dimenet_networks, "DimeNet", "multihead nolen_atoms3"),
]
