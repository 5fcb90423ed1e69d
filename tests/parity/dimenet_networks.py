"""DimeNet++ of PyTorch Geometric, from species and positions of molecules to energies and forces."""

import math
from collections.abc import Mapping

import pytest
import torch
from ase.build import molecule
from torch import Tensor, nn

from hydragnn.graphs import from_ase
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.joining import concatenate
from hydragnn.layers import bessel_zeros
from hydragnn.models import GraphModel
from tests.parity.networks import compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

Weights = Mapping[str, Tensor]
CHANNELS, LAYERS, RADIAL, SPHERICAL, CUTOFF = 10, 2, 3, 3, 5.0
INNER, BASIS, OUT = 6, 5, 12
MOLECULES = ("CH3CH2OH", "C6H6", "H2O")


def put(module: nn.Module | None, weight: Tensor, bias: Tensor | None = None) -> None:
    """Weights into a linear map of ours; what the map is wider than they are is zero."""
    assert isinstance(module, nn.Linear)
    with torch.no_grad():
        module.weight.zero_()[: weight.shape[0], : weight.shape[1]] = weight
        if module.bias is not None:
            module.bias.zero_()
        if bias is not None:
            module.bias[: len(bias)] = bias


def put_all(weights: Weights, modules: Mapping[str, nn.Module | None]) -> None:
    """Give modules the weights, and biases if any, of these names."""
    for name, module in modules.items():
        put(module, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


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


ROWS = [Row("dimenet", "PyTorch Geometric", "network: energies, forces of molecules", dimenet_of_geometric)]
