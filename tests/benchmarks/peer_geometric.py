"""PyTorch Geometric's convolutions and networks as a peer of ``bench_kinds``.

    python peer_geometric.py KIND FOLDER [network]

Convolutions, and PaiNN and EGNN as its users write them (``geometric_layers.py``), have this project's weights. ``network``: the SchNet or the DimeNet++ that it ships, with
weights of its own; the triplets of DimeNet++, which it finds anew in every step, are there before the first one.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from peer_ours import present
from peer_worker import BLIND, CUTOFF, HIDDEN, LAYERS, RADIAL, Predict, arguments, serve, serve_all, tensors, weights
from step_peers import geometric_schnet
from torch import Tensor, nn
from torch_geometric.data import Data

from hydragnn.graphs.batch import GraphBatch
from tests.benchmarks.geometric_layers import Potential, with_weights
from tests.parity.convolutions import CONVOLUTIONS, OurStd, geometric


class LastNorm(nn.Module):
    """The layer norm with which some networks end, called as layers are."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, states: Tensor, *edges: Tensor) -> Tensor:
        normed: Tensor = self.norm(states)
        return normed


class PNAEq(nn.Module):
    """PNAEq on PyTorch Geometric's statistics and sums; states are ``[nodes, 4, channels]``, the scalar, then the vector."""

    def __init__(self, mine: Any, batch: GraphBatch) -> None:
        super().__init__()
        message, histogram = mine.message, torch.bincount(batch.topology.degrees)
        self.norm, self.gates, self.filters, self.update = message.norm, message.gates, message.filters, mine.update
        parts = [message.from_receiver, message.from_sender, message.from_edge]
        self.ends = nn.Linear(sum(part.in_features for part in parts), parts[0].out_features)
        self.ends.weight.data = torch.cat([part.weight for part in parts], dim=1)
        self.ends.bias.data.copy_(message.from_receiver.bias)
        names = message.scalers.names
        self.statistics = geometric.aggr.DegreeScalerAggregation(["mean", "min", "max", OurStd()], [*names], histogram)
        self.mix = nn.Linear(parts[0].out_features * (1 + 4 * len(names)), parts[0].out_features)
        scaled = message.from_statistics.weight.chunk(len(names))
        self.mix.weight.data = torch.cat([message.from_self.weight, *scaled], dim=1)
        self.mix.bias.data.copy_(message.from_self.bias)

    def forward(self, states: Tensor, edge_index: Tensor, features: Tensor, envelope: Tensor, unit: Tensor) -> Tensor:
        senders, receivers = edge_index
        scalars, vectors = self.norm(states[:, 0]), states[:, 1:]
        joined = torch.cat([scalars[receivers], scalars[senders], features], dim=-1)
        hidden, ending = nn.functional.silu(self.ends(joined)), features * envelope
        parts = [gate(hidden) * filter_(ending) for gate, filter_ in zip(self.gates, self.filters)]
        told = parts[1].unsqueeze(1) * unit.unsqueeze(-1)  # [edges, 3, channels]
        if len(parts) == 3:  # past the first layer
            told = told + parts[2].unsqueeze(1) * vectors[senders]
        nodes = len(states)
        statistics = self.statistics(parts[0], receivers, dim_size=nodes)
        new = states[:, 0] + self.mix(torch.cat([scalars, statistics], dim=-1))
        vectors = vectors + torch.zeros_like(vectors).index_add(0, receivers, told)
        d_scalars, d_vectors = self.update(new, vectors)
        vectors = vectors if d_vectors is None else vectors + d_vectors
        return torch.cat([(new + d_scalars).unsqueeze(1), vectors], dim=1)


PEERS = {**CONVOLUTIONS, "pnaeq": PNAEq}


def with_our_weights(kind: str, folder: Path, options: list[str]) -> tuple[nn.Module, Predict]:
    """Their layers between our table of elements and our head."""
    model, batch = present(kind, folder, options)
    state = weights(folder, kind)
    model.load_state_dict(state)
    layers = [copy.deepcopy(PEERS[kind](layer, batch)) for layer in model.encoder.layers] if kind in PEERS else []
    if layers and hasattr(model.encoder, "norm"):
        layers.append(LastNorm(copy.deepcopy(model.encoder.norm)))
    potential = Potential(
        kind, channels=HIDDEN, layers=LAYERS, radial=RADIAL, cutoff=CUTOFF, given=layers, forces=kind not in BLIND
    )
    with_weights(potential, state).requires_grad_()
    data = Data(
        pos=batch.positions,
        z=batch.nodes["atomic_numbers"],
        edge_index=torch.stack([batch.senders, batch.receivers]),
        shift=batch.edge_shifts,
        batch=batch.owner("node"),
        num_graphs=batch.num_graphs,
    )
    return potential, lambda: potential(data)


def triplets(senders: Tensor, receivers: Tensor, shifts: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """Receivers and senders of edges; the nodes i, j, k of triplets, and their edges k -> j and j -> i, without the way straight back."""
    order = receivers.argsort(stable=True)
    counts = torch.bincount(receivers, minlength=num_nodes)
    starts = counts.cumsum(0) - counts
    second = torch.arange(len(senders)).repeat_interleave(counts[senders])  # [triplets]
    place = torch.arange(len(second)) - (counts[senders].cumsum(0) - counts[senders]).repeat_interleave(counts[senders])
    first = order[starts[senders[second]] + place]
    back = (senders[first] == receivers[second]) & ((shifts[first] + shifts[second]).abs().sum(1) < 1e-3)
    first, second = first[~back], second[~back]
    return receivers, senders, receivers[second], senders[second], senders[first], first, second


def of_its_own(kind: str, given: dict[str, Tensor]) -> tuple[nn.Module, Predict]:
    """A network that it ships, from elements and edges to energies and forces."""
    if kind == "schnet":
        return geometric_schnet(kind, given, hidden=HIDDEN, layers=LAYERS, radial=RADIAL, cutoff=CUTOFF)
    graph, model = given["graph"], dimenet(given)

    def predict() -> list[Tensor]:
        positions = given["positions"].detach().requires_grad_()
        energy = model(given["numbers"], positions, graph)
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=model.training)
        return [energy, -gradient]

    return model, predict


def dimenet(given: dict[str, Tensor]) -> nn.Module:
    """DimeNet++ on our edges. It knows no periodic images: of atoms beyond a boundary it has the distance to the nearest copy, at the same cost."""
    from torch_geometric.nn.models import dimenet as theirs

    ends = torch.stack([given["senders"], given["receivers"]])
    known = triplets(given["senders"], given["receivers"], given["shifts"], len(given["numbers"]))
    theirs.radius_graph = lambda *_, **__: ends
    theirs.triplets = lambda *_, **__: known
    return theirs.DimeNetPlusPlus(
        hidden_channels=HIDDEN,
        out_channels=1,
        num_blocks=LAYERS,
        int_emb_size=32,
        basis_emb_size=8,
        out_emb_channels=128,
        num_spherical=7,
        num_radial=6,
        cutoff=CUTOFF,
        output_initializer="glorot_orthogonal",
    )


def main() -> None:
    """Serve."""
    kind, folder, options = arguments()

    def serve_one(folder: Path) -> Path | None:
        model, predict = (
            of_its_own(kind, tensors(folder)) if "network" in options else with_our_weights(kind, folder, options)
        )
        return serve(model, predict, recorded=kind not in BLIND, weights_alone=True)

    serve_all(folder, serve_one)


if __name__ == "__main__":
    sys.exit(main())
