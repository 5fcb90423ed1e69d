"""Training steps against PyTorch Geometric's layers on the same batches, alternating, on one thread.

    python tests/benchmarks/bench_models.py [--rounds 20]

Same widths, layers, radial functions and edges; the time of a step is forward, backward (through forces where named)
and AdamW. Figures are CPU times, so that a busy machine disturbs them less; the least of all rounds.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import PNAConv, RGCNConv, SchNet, global_add_pool

from hydragnn.architectures.egnn import EGNNSettings
from hydragnn.architectures.painn import PaiNNSettings
from hydragnn.architectures.pna import PNASettings
from hydragnn.architectures.relational import RelationalSettings
from hydragnn.architectures.schnet import SchNetSettings
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.topology import Topology
from hydragnn.models import HeadSettings, build_model, degree_statistics, parse_head
from tests.benchmarks.harness import Figures, in_turns, parser

Step = Callable[[], None]
HIDDEN, LAYERS, RADIAL, CUTOFF = 64, 3, 20, 6.0
FIELDS = [
    Field(name="atomic_numbers", on="node", classes=119, dtype="int64"),
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="relation", on="edge", classes=8, dtype="int64"),
    Field(name="load", on="node", shape=(2,)),
    Field(name="displacement", on="node", shape=(2,), role="target"),
]


def molecule(nodes: int, seed: int) -> GraphBatch:
    """Atoms in a ball at the density of a small molecule, all pairs within the cutoff."""
    random = torch.Generator().manual_seed(seed)
    positions = torch.rand(nodes, 3, generator=random) * 1.5 * nodes ** (1 / 3)
    near = (torch.cdist(positions, positions) < CUTOFF) & ~torch.eye(nodes, dtype=torch.bool)
    receivers, senders = near.nonzero().T.contiguous()
    return graph(positions, senders, receivers, {"atomic_numbers": torch.randint(1, 9, (nodes,), generator=random)}, {})


def grid(side: int, hops: int) -> GraphBatch:
    """A square grid with periodic sides, 8 neighbours on each of ``hops`` levels."""
    steps = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    own = (rows * side + columns).flatten()
    senders, receivers, relation = [], [], []
    for hop in range(1, hops + 1):
        for number, (a, b) in enumerate(steps):
            senders.append((((rows + a * hop) % side) * side + (columns + b * hop) % side).flatten())
            receivers.append(own)
            relation.append(torch.full_like(own, number))
    receiver, order = torch.cat(receivers).sort(stable=True)
    positions = torch.stack([rows.flatten(), columns.flatten()], dim=1).float()
    load = torch.randn(side * side, 2, generator=torch.Generator().manual_seed(0))
    return graph(
        positions, torch.cat(senders)[order], receiver, {"load": load}, {"relation": torch.cat(relation)[order]}
    )


def graph(
    positions: Tensor, senders: Tensor, receivers: Tensor, nodes: dict[str, Tensor], edges: dict[str, Tensor]
) -> GraphBatch:
    names = {*nodes, *edges}
    return GraphBatch(
        positions=positions,
        topology=Topology.square(senders, receivers, len(positions)),
        edge_shifts=torch.zeros(len(senders), positions.shape[1]),
        cell=torch.zeros(1, 3, 3),
        periodic=torch.zeros(1, 3, dtype=torch.bool),
        node_offsets=torch.tensor([0, len(positions)]),
        edge_offsets=torch.tensor([0, len(senders)]),
        fields={field.name: field for field in FIELDS if field.name in names},
        nodes=nodes,
        edges=edges,
    )


def training_step(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    parameters = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss().backward(inputs=parameters)
        optimizer.step()

    return step


def our_step(settings: object, head: HeadSettings, batch: GraphBatch, inputs: list[str]) -> Step:
    model = build_model(
        settings, [head], FIELDS, inputs=inputs, dim=batch.dim, seed=0, statistics=degree_statistics([batch])
    )
    return training_step(model, lambda: torch.stack([p.mean.square().mean() for p in model(batch).values()]).sum())


def schnet_step(batch: GraphBatch) -> Step:
    edge_index = torch.stack([batch.senders, batch.receivers])

    def lengths(positions: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return edge_index, (positions[edge_index[0]] - positions[edge_index[1]]).norm(dim=-1)

    model = SchNet(HIDDEN, HIDDEN, LAYERS, RADIAL, CUTOFF, interaction_graph=lengths)

    def loss() -> Tensor:
        positions = batch.positions.clone().requires_grad_()
        energy = model(batch.nodes["atomic_numbers"], positions, batch.owner("node"))
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return energy.square().mean() + gradient.square().mean()

    return training_step(model, loss)


class TheirPNA(nn.Module):
    """PNAConv on Gaussian lengths, with our residuals."""

    def __init__(self, batch: GraphBatch) -> None:
        super().__init__()
        aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
        histogram = torch.bincount(batch.topology.degrees)
        self.embed, self.edge_index = nn.Embedding(119, HIDDEN), torch.stack([batch.senders, batch.receivers])
        self.layers = nn.ModuleList(
            PNAConv(HIDDEN, HIDDEN, aggregators, scalers, histogram, edge_dim=RADIAL) for _ in range(LAYERS)
        )
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
        self.register_buffer("centres", torch.linspace(0, CUTOFF, RADIAL))

    def forward(self, batch: GraphBatch) -> Tensor:
        sender, receiver = batch.positions[self.edge_index[0]], batch.positions[self.edge_index[1]]
        features = torch.exp(-((sender - receiver).norm(dim=-1, keepdim=True) - self.centres).square())
        states = self.embed(batch.nodes["atomic_numbers"])
        for layer in self.layers:
            states = states + nn.functional.silu(layer(states, self.edge_index, features))
        return global_add_pool(self.head(states), batch.owner("node"), batch.num_graphs)


class TheirRelational(nn.Module):
    """RGCNConv with layer norm and residuals."""

    def __init__(self, batch: GraphBatch) -> None:
        super().__init__()
        self.embed, self.edge_index = nn.Linear(2, HIDDEN), torch.stack([batch.senders, batch.receivers])
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS))
        self.layers = nn.ModuleList(RGCNConv(HIDDEN, HIDDEN, 8, aggr="add") for _ in range(LAYERS))
        self.outs = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2))

    def forward(self, batch: GraphBatch) -> Tensor:
        states = self.embed(batch.nodes["load"])
        for norm, layer, out in zip(self.norms, self.layers, self.outs):
            convolved = layer(norm(states), self.edge_index, batch.edges["relation"])
            states = states + out(nn.functional.silu(convolved))
        return self.head(states)


def their_step(model: nn.Module, batch: GraphBatch) -> Step:
    return training_step(model, lambda: model(batch).square().mean())


def main() -> None:
    """Print the table."""
    options = parser(__doc__, rounds=20).parse_args()
    torch.set_num_threads(1)
    common = {"hidden_dim": HIDDEN, "num_layers": LAYERS}
    radial = {**common, "num_radial": RADIAL, "cutoff": CUTOFF}
    forces = parse_head({"kind": "energy", "field": "energy", "forces": "forces"})
    energy, nodal = (
        parse_head({"kind": "energy", "field": "energy"}),
        parse_head({"kind": "scalar", "field": "displacement"}),
    )
    molecules = concatenate([molecule(15, seed) for seed in range(8)]).to(dtype=torch.float32)
    bulk = concatenate([molecule(60, seed) for seed in range(8)]).to(dtype=torch.float32)
    mesh = grid(64, hops=3)
    atoms = ["atomic_numbers"]
    rows: list[tuple[str, GraphBatch, Step, Step]] = []
    for name, batch in (("8 x 15 atoms", molecules), ("8 x 60 atoms", bulk)):
        baseline = schnet_step(batch)
        for settings in (SchNetSettings(**radial), PaiNNSettings(**radial), EGNNSettings(**radial)):
            step = our_step(settings, forces, batch, atoms)
            rows.append((f"{settings.kind}, energy + forces, {name}, against PyG SchNet", batch, step, baseline))
        step = our_step(PNASettings(**radial), energy, batch, atoms)
        rows.append((f"pna, energy, {name}, against PyG PNAConv", batch, step, their_step(TheirPNA(batch), batch)))
    step = our_step(RelationalSettings(**common, reduce="sum"), nodal, mesh, ["load", "relation"])
    rows.append(("relational, 64 x 64 grid, against PyG RGCNConv", mesh, step, their_step(TheirRelational(mesh), mesh)))
    columns = {"step": "62", "edges": "7d", "ours ms": "8.1f", "PyG ms": "8.1f", "ratio": "6.2f"}
    figures = Figures(columns, options.json)
    for title, batch, ours, theirs in rows:
        turns = in_turns({"ours": ours, "PyG": theirs}, options.rounds, warm_up=2)
        mine, other = turns.least("ours"), turns.least("PyG")
        figures.add(title, batch.num_edges, mine, other, other / mine)


if __name__ == "__main__":
    main()
