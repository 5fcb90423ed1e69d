"""DimeNet++ of PyTorch Geometric, from species and positions of molecules to energies and forces, with its weights."""

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

CHANNELS, LAYERS, RADIAL, SPHERICAL, CUTOFF = 10, 2, 4, 4, 5.0
INNER, BASIS, OUT = 6, 5, 12
MOLECULES = ("CH3CH2OH", "C6H6", "H2O")


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
    return dimenet.DimeNetPlusPlus(
        hidden_channels=CHANNELS,
        out_channels=CHANNELS,
        num_blocks=LAYERS,
        int_emb_size=INNER,
        basis_emb_size=BASIS,
        out_emb_channels=OUT,
        num_spherical=SPHERICAL,
        num_radial=RADIAL,
        cutoff=CUTOFF,
        output_initializer="glorot_orthogonal",
    )


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


def radial(weight: Tensor) -> Tensor:
    """Weights of u sin(n pi x) / x as weights of sqrt(2 / c) u sin(n pi x) / r and of a constant."""
    return torch.cat([weight * CUTOFF / (2 / CUTOFF) ** 0.5, torch.zeros(len(weight), 1)], dim=1)


def copy_output(ours: nn.Module, block: nn.Module) -> None:
    ours.radial.weight.copy_(radial(block.lin_rbf.weight))
    ours.up.load_state_dict(block.lin_up.state_dict())
    ours.last.load_state_dict(block.lin.state_dict())
    for mine, linear in zip(ours.hidden, block.lins, strict=True):
        mine.load_state_dict(linear.state_dict())


def copy_interaction(ours: nn.Module, block: nn.Module) -> None:
    ours.radial_first.weight.copy_(radial(block.lin_rbf1.weight))
    for mine, weight in zip(ours.angular.first, block.lin_sbf1.weight.split(RADIAL, dim=1), strict=True):
        mine.weight.copy_(weight)
    names = {"own": "ji", "sent": "kj", "down": "down", "up": "up", "radial_second": "rbf2"}
    pairs = [(getattr(ours, mine), getattr(block, f"lin_{name}")) for mine, name in names.items()]
    pairs += [(ours.angular.second, block.lin_sbf2), (ours.skip, block.lin)]
    for mine, other in (("before", block.layers_before_skip), ("after", block.layers_after_skip)):
        for residual, layer in zip(getattr(ours, mine), other, strict=True):
            pairs += [(residual.first, layer.lin1), (residual.second, layer.lin2)]
    for linear, given in pairs:
        linear.load_state_dict(given.state_dict())


def copy_weights(model: GraphModel, theirs: nn.Module) -> None:
    encoder, embedding = model.encoder, theirs.emb
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # theirs are zero
    table_of(model).weight[:95].copy_(embedding.emb.weight)
    encoder.first.radial.weight.copy_(radial(embedding.lin_rbf.weight))
    encoder.first.radial.bias.copy_(embedding.lin_rbf.bias)
    ends = (encoder.first.from_receiver, encoder.first.from_sender, encoder.first.from_edge)
    for linear, weight in zip(ends, embedding.lin.weight.chunk(3, dim=1)):
        linear.weight.copy_(weight)
    encoder.first.from_edge.bias.copy_(embedding.lin.bias)
    copy_output(encoder.output, theirs.output_blocks[0])
    for layer, block, output in zip(encoder.layers, theirs.interaction_blocks, theirs.output_blocks[1:], strict=True):
        copy_interaction(layer.interaction, block)
        copy_output(layer.output, output)


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
