"""SchNet, PaiNN and EGNN as PyTorch Geometric's users write them: one ``MessagePassing`` per layer, weights named as ours.

They compute what ``hydragnn.architectures`` computes with Bessel functions and a cosine envelope, from the same weights.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, global_add_pool


def network(*widths: int, last_bias: bool = True) -> nn.Sequential:
    """Linear maps with SiLU between them."""
    maps: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        last = number == len(widths) - 2
        maps += [nn.Linear(before, after, bias=last_bias or not last), *([] if last else [nn.SiLU()])]
    return nn.Sequential(*maps)


class SchNetLayer(MessagePassing):
    """A continuous-filter convolution."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(aggr="add")
        self.filters = network(width, channels, channels)
        self.before = nn.Linear(channels, channels, bias=False)
        self.after = network(channels, channels, channels)

    def forward(self, states: Tensor, edge_index: Tensor, basis: Tensor, envelope: Tensor, unit: Tensor) -> Tensor:
        """New states."""
        received = self.propagate(edge_index, x=self.before(states), filters=self.filters(basis) * envelope)
        return states + self.after(received)

    def message(self, x_j: Tensor, filters: Tensor) -> Tensor:
        """Of one edge."""
        return x_j * filters


class EGNNLayer(MessagePassing):
    """Messages of both ends and the length, positions at rest."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(aggr="add")
        self.edge = network(2 * channels + width, channels, channels)
        self.nodes = network(2 * channels, channels, channels)

    def forward(self, states: Tensor, edge_index: Tensor, basis: Tensor, envelope: Tensor, unit: Tensor) -> Tensor:
        """New states."""
        received = self.propagate(edge_index, x=states, basis=basis, envelope=envelope)
        return states + self.nodes(torch.cat([states, received], dim=-1))

    def message(self, x_i: Tensor, x_j: Tensor, basis: Tensor, envelope: Tensor) -> Tensor:
        """Of one edge."""
        return nn.functional.silu(self.edge(torch.cat([x_i, x_j, basis], dim=-1))) * envelope


class PaiNNLayer(MessagePassing):
    """A message and an update of scalars and vectors; the first layer's vectors are zero, the last one's are not read."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.channels = channels
        self.filter = nn.Linear(width, 3 * channels, bias=False)
        self.states = network(channels, channels, 3 * channels)
        self.mix = nn.Linear(channels, 2 * channels, bias=False)
        self.gates = network(2 * channels, channels, 3 * channels)

    def forward(self, states: Tensor, edge_index: Tensor, basis: Tensor, envelope: Tensor, unit: Tensor) -> Tensor:
        """New states ``[nodes, 4, channels]``: the scalar, then the vector."""
        filters = self.filter(basis * envelope)
        states = states + self.propagate(
            edge_index, x=states, phi=self.states(states[:, 0]), filters=filters, unit=unit
        )
        scalars, vectors = states[:, 0], states[:, 1:]
        left, right = self.mix(vectors).split(self.channels, dim=-1)
        norms = (right.square().sum(1) + 1e-8).sqrt()
        a, b, c = self.gates(torch.cat([scalars, norms], dim=-1)).split(self.channels, dim=-1)
        change = torch.cat([(a + b * (left * right).sum(1)).unsqueeze(1), c.unsqueeze(1) * left], dim=1)
        return states + change

    def message(self, x_j: Tensor, phi_j: Tensor, filters: Tensor, unit: Tensor) -> Tensor:
        """Of one edge."""
        scalar, along, kept = (phi_j * filters).split(self.channels, dim=-1)
        vectors = along.unsqueeze(1) * unit.unsqueeze(-1) + kept.unsqueeze(1) * x_j[:, 1:]
        return torch.cat([scalar.unsqueeze(1), vectors], dim=1)


LAYERS = {"schnet": SchNetLayer, "painn": PaiNNLayer, "egnn": EGNNLayer}
VECTORS = {"painn", "pnaeq"}
"""Networks whose states are ``[nodes, 4, channels]``."""


class Potential(nn.Module):
    """Energies and forces of a batch of structures; ``given`` are layers of somebody else."""

    def __init__(
        self,
        kind: str,
        *,
        channels: int,
        layers: int,
        radial: int,
        cutoff: float,
        given: Sequence[nn.Module] = (),
        forces: bool = True,
    ) -> None:
        super().__init__()
        self.kind, self.cutoff, self.forces, self.given = kind, cutoff, forces, bool(given)
        self.embedding = nn.Embedding(119, channels)
        self.layers = nn.ModuleList(given or (LAYERS[kind](radial + 1, channels) for _ in range(layers)))
        self.readout = network(channels, channels, 1)
        self.register_buffer("orders", torch.arange(1.0, radial + 1), persistent=False)

    def forward(self, data: Data) -> tuple[Tensor, ...]:
        """Energies ``[graphs]`` and forces ``[nodes, 3]``, if there are any."""
        if not self.forces:
            return (self.energies(data, (data.edge_index, data.pos.new_zeros(0))),)
        with torch.enable_grad():
            positions = data.pos.requires_grad_()
            senders, receivers = data.edge_index
            vectors = positions[senders] + data.shift - positions[receivers]
            lengths = vectors.norm(dim=-1, keepdim=True)
            x = lengths / self.cutoff
            basis = math.sqrt(2 / self.cutoff) * torch.sin(math.pi * x * self.orders) / lengths
            basis = torch.cat([basis, torch.ones_like(lengths)], dim=-1)
            edges = (data.edge_index, basis)
            if self.kind in LAYERS or self.kind in VECTORS:
                edges += (0.5 * (torch.cos(math.pi * x.clamp_max(1.0)) + 1), vectors / lengths)
            energies = self.energies(data, edges)
            (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=self.training)
        return energies, -gradient

    def energies(self, data: Data, edges: tuple[Tensor, ...]) -> Tensor:
        """``[graphs]`` from what layers see of edges."""
        states = self.embedding(data.z)
        if self.kind in VECTORS:
            states = torch.cat([states.unsqueeze(1), states.new_zeros(len(states), 3, states.shape[1])], dim=1)
        for layer in self.layers:
            states = layer(states, *edges)
        per_atom = self.readout(states[:, 0] if self.kind in VECTORS else states)
        summed: Tensor = global_add_pool(per_atom, data.batch, size=data.num_graphs).squeeze(-1)
        return summed


def renamed_schnet(ours: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Our interaction is a module of its own."""
    start = f"{layer}interaction."
    return {name.removeprefix(start): value for name, value in ours.items() if name.startswith(start)}


def renamed_egnn(ours: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Our first map of [receiver, sender, edge] is three maps."""
    maps = [ours[f"{layer}from_{end}.weight"] for end in ("receiver", "sender", "edge")]
    second = {f"edge.2.{part}": ours[f"{layer}second.{part}"] for part in ("weight", "bias")}
    return {"edge.0.weight": torch.cat(maps, dim=1), "edge.0.bias": ours[f"{layer}from_receiver.bias"], **second}


def renamed_painn(ours: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """What our first layer (no vectors come in) and our last one (none go out) leave out is zero."""
    filters = torch.cat([value for name, value in ours.items() if name.startswith(f"{layer}filters.")])
    mix = ours[f"{layer}update.mix.weight"]
    channels = mix.shape[1]
    new = {"filter.weight": filled(filters, channels), "mix.weight": mix}
    for network, module in (("states", "message"), ("gates", "update")):
        for part in ("weight", "bias"):
            first, last = ours[f"{layer}{module}.{network}.0.{part}"], ours[f"{layer}{module}.{network}.2.{part}"]
            new |= {f"{network}.0.{part}": first, f"{network}.2.{part}": filled(last, channels)}
    return new


def filled(rows: Tensor, channels: int) -> Tensor:
    """Two or three blocks of so many rows, as three."""
    return torch.cat([rows, rows.new_zeros(3 * channels - len(rows), *rows.shape[1:])])


RENAMED = {"schnet": renamed_schnet, "egnn": renamed_egnn, "painn": renamed_painn}


def with_weights(potential: Potential, ours: Mapping[str, Tensor]) -> Potential:
    """The potential with the weights of our model of its kind; given layers have them."""
    own = {"embedding.weight": ours["node_inputs.node_tables.0.table.weight"] + ours["node_inputs.origin"]}
    for name in potential.state_dict():
        given = name.replace("readout.", "heads.0.network.") if name.startswith("readout.") else f"encoder.{name}"
        own |= {name: ours[given]} if given in ours else {}
    own |= {name: value for name, value in potential.state_dict().items() if potential.given and "layers." in name}
    for number in range(0 if potential.given else len(potential.layers)):
        mine, theirs = f"encoder.layers.{number}.", f"layers.{number}."
        own.update({theirs + name: value for name, value in RENAMED[potential.kind](ours, mine).items()})
    potential.load_state_dict(own)
    return potential
