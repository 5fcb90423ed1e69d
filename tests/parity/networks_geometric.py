"""Networks of PyTorch Geometric's layers, from node inputs to energies and forces."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydragnn.architectures import architecture_of
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.models import GraphModel, degree_statistics
from tests.parity.networks import NODE_HEAD, compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, LAYERS, RADIAL, CUTOFF = 6, 3, 5, 9.0


def ours(
    kind: str, batch: GraphBatch, heads: list[dict[str, Any]], changes: dict[str, Any] | None = None
) -> GraphModel:
    keys = architecture_of(kind).Settings.model_fields
    table = {"kind": kind, "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    table |= {"radial": "gaussian", "envelope": "none"}
    known = {key: value for key, value in table.items() if key in keys}
    return network(known | (changes or {}), heads, degree_statistics([batch]))


def edge_index(batch: GraphBatch) -> Tensor:
    return torch.stack([batch.senders, batch.receivers])


def gaussians(lengths: Tensor) -> Tensor:
    """The radial functions and the constant that our edges have, from PyTorch Geometric's smearing."""
    from torch_geometric.nn.models.schnet import GaussianSmearing

    return torch.cat([GaussianSmearing(0.0, CUTOFF, RADIAL)(lengths), torch.ones(len(lengths), 1)], dim=1)


def schnet(bench: Bench) -> Pairs:
    """Their network apart from its activation, the shifted softplus, in the place of which we have SiLU.

    No edge is longer than the cutoff, beyond which their envelope rises again.
    """
    batch, module = bench.batch, pytest.importorskip("torch_geometric.nn.models.schnet")
    cutoff = 16.0
    vectors = edge_vectors(batch).requires_grad_()
    edges = edge_index(batch), vectors.norm(dim=1)
    theirs = module.SchNet(CHANNELS, CHANNELS, LAYERS, RADIAL, cutoff, interaction_graph=lambda *_: edges)
    theirs.act = nn.SiLU()
    for block in theirs.interactions:
        block.mlp[1] = block.act = nn.SiLU()
    assert float(vectors.detach().norm(dim=1).max()) < cutoff
    model = ours("schnet", batch, [energy_head(CHANNELS // 2)], {"envelope": "cosine", "cutoff": cutoff})
    table_of(model).weight[:100].copy_(theirs.embedding.weight.detach())
    for layer, block in zip(model.encoder.layers, theirs.interactions):
        weight = block.mlp[0].weight.detach()
        layer.filters[0].weight.copy_(torch.cat([weight, torch.zeros(CHANNELS, 1)], dim=1))
        layer.filters[0].bias.copy_(block.mlp[0].bias.detach())
        layer.filters[2].load_state_dict(block.mlp[2].state_dict())
        layer.interaction.before.load_state_dict(block.conv.lin1.state_dict())
        layer.interaction.after[0].load_state_dict(block.conv.lin2.state_dict())
        layer.interaction.after[2].load_state_dict(block.lin.state_dict())
    model.heads[0].network[0].load_state_dict(theirs.lin1.state_dict())
    model.heads[0].network[2].load_state_dict(theirs.lin2.state_dict())
    energy = theirs(batch.nodes[ATOMIC_NUMBERS], batch.positions, batch.owner("node")).squeeze(-1)
    (pull,) = torch.autograd.grad(energy.sum(), vectors)
    forces = torch.zeros_like(batch.positions).index_add(0, batch.receivers, pull).index_add(0, batch.senders, -pull)
    return compared(model, batch, {"energy": energy, "forces": forces})


def without_own_images(batch: GraphBatch) -> GraphBatch:
    stored = (batch.senders != batch.receivers).nonzero().squeeze(1)
    counts = torch.bincount(batch.owner("edge")[stored], minlength=batch.num_graphs)
    return replace(
        batch,
        topology=type(batch.topology).square(batch.senders[stored], batch.receivers[stored], batch.num_nodes),
        edge_shifts=batch.edge_shifts[stored],
        edge_offsets=nn.functional.pad(counts.cumsum(0), (1, 0)),
        edges={name: values[stored] for name, values in batch.edges.items()},
    )


CHAINS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gin": ("gin", "gin", {}),
    "sage": ("sage", "sage", {}),
    "mfc, degrees above the largest": ("mfc", "mfc", {"max_degree": 3}),
    "mfc, degrees below the largest": ("mfc", "mfc", {"max_degree": 9}),
    "gatv2, the authors' slope": ("gatv2", "gatv2", {"heads": 3, "negative_slope": 0.2}),
    "gatv2, another slope": ("gatv2", "gatv2", {"heads": 3, "negative_slope": 0.05}),
    "cgcnn": ("cgcnn", "cgcnn", {}),
    "pna": ("pna", "pna", {}),
    "pnaplus": ("pnaplus", "pnaplus", {}),
    "relational, sums": ("relational", "relational", {"reduce": "sum"}),
    "relational, means": ("relational", "relational", {"reduce": "mean"}),
    "global attention": ("gin", "gps", {"global_attention": {"kind": "multihead", "heads": 3}}),
}
COMPARED = {
    "relational": "convolution",
    "global attention": "network of GPS convolutions",
    "pnaplus": "network of convolutions, with filters of our own",
}


def chain(bench: Bench, case: str) -> Pairs:
    """Their layers one after the other, on our first states and before our linear head, give our predictions."""
    pytest.importorskip("torch_geometric.nn")
    from tests.parity.convolutions import CONVOLUTIONS

    kind, theirs, changes = CHAINS[case]
    # they take edges to oneself away where we have images of oneself
    batch = without_own_images(bench.batch) if kind == "gatv2" else bench.batch
    model = ours(kind, batch, [NODE_HEAD], changes)
    for name, parameter in model.encoder.named_parameters():
        if (parameter.dim() == 1 and not parameter.any()) or "norm" in name:
            parameter.normal_()  # what would be zero or one at the start
    states = table_of(model)(batch.nodes[ATOMIC_NUMBERS])
    features = gaussians(edge_vectors(batch).norm(dim=1))
    for layer in model.encoder.layers:
        states = CONVOLUTIONS[theirs](layer, batch)(states, edge_index(batch), features)
    states = getattr(model.encoder, "norm", nn.Identity())(states)
    return compared(model, batch, {"charge": model.heads[0].network(states).squeeze(-1)})


GEOMETRIC = "PyTorch Geometric"
ROWS = [
    Row("schnet", GEOMETRIC, "network: energies, forces", schnet),
    *(
        Row(kind, GEOMETRIC, COMPARED.get(kind, "network of convolutions"), chain, [(case,)])
        for kind, case in ((case.partition(",")[0], case) for case in CHAINS)
    ),
]
