"""Whole networks, from node inputs to energies and forces, with the weights of independent implementations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hydragnn.architectures import ArchitectureSettings, architecture_of
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.models import GraphModel, build_model, degree_statistics, parse_head

pytest.importorskip("torch_geometric.nn")
from convolutions import CONVOLUTIONS

CHANNELS, LAYERS, RADIAL, CUTOFF = 6, 3, 5, 9.0
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="stress", on="graph", shape=(3, 3), parity="tensor", role="target"),
    Field(name="charge", on="node", role="target"),
    Field(name="flow", on="node", shape=(3,), parity="vector", role="target"),
]


def ours(
    kind: str, batch: GraphBatch, heads: list[dict[str, Any]], changes: dict[str, Any] | None = None
) -> GraphModel:
    """Our network, with ``changes`` of its settings; its first states are the rows of a table, as in theirs."""
    keys = architecture_of(kind).Settings.model_fields
    table = {"kind": kind, "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    table |= {"radial": "gaussian", "envelope": "none"}
    settings = architecture_of(kind).Settings.parse({k: v for k, v in table.items() if k in keys} | (changes or {}))
    assert isinstance(settings, ArchitectureSettings)
    statistics = degree_statistics([batch])
    parsed = [parse_head(head) for head in heads]
    model = build_model(
        settings, parsed, FIELDS, inputs=[ATOMIC_NUMBERS], dim=3, seed=0, statistics=statistics
    ).double()
    nn.init.zeros_(model.node_inputs.origin)
    return model.requires_grad_(False)


def edge_index(batch: GraphBatch) -> Tensor:
    return torch.stack([batch.senders, batch.receivers])


def gaussians(lengths: Tensor) -> Tensor:
    """The radial functions and the constant that our edges have, from PyTorch Geometric's smearing."""
    from torch_geometric.nn.models.schnet import GaussianSmearing

    return torch.cat([GaussianSmearing(0.0, CUTOFF, RADIAL)(lengths), torch.ones(len(lengths), 1)], dim=1)


def table_of(model: GraphModel) -> nn.Embedding:
    """The rows that our nodes start from; other networks start from them, too."""
    return model.node_inputs.node_tables[0].table


NODE_HEAD = [{"kind": "scalar", "field": "charge", "hidden_dims": []}]


def compared(model: GraphModel, batch: GraphBatch, kind: str) -> None:
    """Their layers one after the other, on our first states and before our linear head, give our predictions."""
    states = table_of(model)(batch.nodes[ATOMIC_NUMBERS])
    features = gaussians(edge_vectors(batch).norm(dim=1))
    for layer in model.encoder.layers:
        states = CONVOLUTIONS[kind](layer, batch)(states, edge_index(batch), features)
    expected = model.heads[0].network(states).squeeze(-1)
    torch.testing.assert_close(model(batch)["charge"].mean, expected, **EXACT)


@pytest.mark.parity("schnet", "PyTorch Geometric", "network: energies, forces")
def test_schnet_with_forces_equals_that_of_pytorch_geometric(batch: GraphBatch) -> None:
    """Their network apart from its activation, the shifted softplus, in the place of which we have SiLU.

    No edge is longer than the cutoff, beyond which their envelope rises again.
    """
    from torch_geometric.nn.models.schnet import SchNet

    cutoff = 16.0

    vectors = edge_vectors(batch).requires_grad_()
    theirs = SchNet(
        CHANNELS,
        CHANNELS,
        LAYERS,
        RADIAL,
        cutoff,
        interaction_graph=lambda *_: (edge_index(batch), vectors.norm(dim=1)),
    )
    theirs.act = nn.SiLU()
    for block in theirs.interactions:
        block.mlp[1] = block.act = nn.SiLU()
    heads = [{"kind": "energy", "field": "energy", "hidden_dims": [CHANNELS // 2], "forces": "forces"}]
    assert float(vectors.detach().norm(dim=1).max()) < cutoff
    model = ours("schnet", batch, heads, {"envelope": "cosine", "cutoff": cutoff})
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
    actual = model(batch)
    torch.testing.assert_close(actual["energy"].mean, energy.detach(), **EXACT)
    torch.testing.assert_close(actual["forces"].mean, forces, **EXACT)


def under(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}


def painn_of_schnetpack() -> dict[str, Tensor]:
    """Weights and outputs that ``make_schnetpack.py`` has kept in a file."""
    return load_file(Path(__file__).with_name("painn-schnetpack.safetensors"))


def our_painn(batch: GraphBatch, stored: dict[str, Tensor], heads: list[dict[str, Any]]) -> GraphModel:
    """Our network with their weights, but for heads."""
    model = ours("painn", batch, heads, {"envelope": "cosine", "norm": "paper"})
    table_of(model).weight[:100].copy_(stored["weights.embedding.weight"])
    filters = torch.cat([stored["weights.filter_net.weight"], stored["weights.filter_net.bias"].unsqueeze(1)], dim=1)
    for number, (layer, of_layer) in enumerate(zip(model.encoder.layers, filters.chunk(LAYERS))):
        parts = of_layer.chunk(3)  # of scalars, of directions, of vectors; the last meets zeros in the first layer
        for linear, part in zip(layer.filters, parts):
            linear.weight.copy_(part)
        take, mixing = under(stored, f"weights.interactions.{number}."), under(stored, f"weights.mixing.{number}.")
        rows = CHANNELS * len(layer.filters)
        message = layer.message.states
        message[0].weight.copy_(take["interatomic_context_net.0.weight"])
        message[0].bias.copy_(take["interatomic_context_net.0.bias"])
        message[2].weight.copy_(take["interatomic_context_net.1.weight"][:rows])
        message[2].bias.copy_(take["interatomic_context_net.1.bias"][:rows])
        v, w = mixing["mu_channel_mix.weight"].chunk(2)  # they measure the first half, we the second
        layer.update.mix.weight.copy_(torch.cat([w, v]))
        layer.update.gates[0].weight.copy_(mixing["intraatomic_context_net.0.weight"])
        layer.update.gates[0].bias.copy_(mixing["intraatomic_context_net.0.bias"])
        for key in ("weight", "bias"):
            scalar, vector, product = mixing[f"intraatomic_context_net.1.{key}"].chunk(3)
            getattr(layer.update.gates[2], key).copy_(torch.cat([scalar, product, vector]))
    return model


@pytest.mark.parity("painn", "schnetpack", "representation: scalars, vectors, their gradient")
def test_painn_with_vectors_equals_that_of_its_authors(batch: GraphBatch) -> None:
    stored = painn_of_schnetpack()
    model = our_painn(batch, stored, [*NODE_HEAD, {"kind": "vector", "field": "flow", "hidden_dims": []}])
    torch.testing.assert_close(edge_vectors(batch), stored["edge_vectors"])
    vectors = edge_vectors(batch).requires_grad_()
    graph = model.message_graph(batch, vectors)
    states = model.encode(batch, graph)
    torch.testing.assert_close(states[0], stored["scalars"], **EXACT)
    torch.testing.assert_close(states[1], stored["vectors"], **EXACT)
    (gradient,) = torch.autograd.grad(states[0].sum() + states[1].square().sum(), vectors)
    torch.testing.assert_close(gradient, stored["gradient"], **EXACT)


@pytest.mark.parity("painn", "schnetpack", "network: energies, forces, stress")
def test_energies_forces_and_stress_of_painn_equal_those_of_its_authors(batch: GraphBatch) -> None:
    """As schnetpack's head, its forces and its strain give them."""
    stored, energy = painn_of_schnetpack(), {"kind": "energy", "field": "energy", "hidden_dims": [CHANNELS // 2]}
    model = our_painn(
        batch, stored, [{**energy, "forces": "forces", "stress": "stress"}, {"kind": "vector", "field": "flow"}]
    )
    for number, place in enumerate((0, 2)):
        model.heads[0].network[place].load_state_dict(under(stored, f"head.{number}."))
    actual = model(batch)
    for name in ("energy", "forces", "stress"):
        torch.testing.assert_close(actual[name].mean, stored[name], **EXACT)
        assert stored[name].abs().max() > 1e-3  # there is something to compare


@pytest.mark.parity("gin", "PyTorch Geometric", "network of convolutions")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 100.0], ids=["the paper's start", "another", "HydraGNN's"])
def test_gin_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch, epsilon: float) -> None:
    compared(ours("gin", batch, NODE_HEAD, {"epsilon": epsilon}), batch, "gin")


@pytest.mark.parity("sage", "PyTorch Geometric", "network of convolutions")
def test_sage_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch) -> None:
    compared(ours("sage", batch, NODE_HEAD), batch, "sage")


@pytest.mark.parity("mfc", "PyTorch Geometric", "network of convolutions")
@pytest.mark.parametrize("max_degree", [3, 9], ids=["degrees above the largest", "degrees below the largest"])
def test_mfc_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch, max_degree: int) -> None:
    assert len(batch.topology.degrees.clamp_max(max_degree).unique()) > 1
    compared(ours("mfc", batch, NODE_HEAD, {"max_degree": max_degree}), batch, "mfc")


@pytest.mark.parity("gatv2", "PyTorch Geometric", "network of convolutions")
@pytest.mark.parametrize("slope", [0.2, 0.05], ids=["the authors' slope", "HydraGNN's"])
def test_gatv2_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch, slope: float) -> None:
    """On graphs without edges to oneself, since they take these away where we have images of oneself."""
    batch = without_own_images(batch)
    model = ours("gatv2", batch, NODE_HEAD, {"heads": 3, "negative_slope": slope})
    for layer in model.encoder.layers:
        layer.layer.bias.normal_()
    compared(model, batch, "gatv2")


def without_own_images(batch: GraphBatch) -> GraphBatch:
    from dataclasses import replace

    stored = (batch.senders != batch.receivers).nonzero().squeeze(1)
    counts = torch.bincount(batch.owner("edge")[stored], minlength=batch.num_graphs)
    return replace(
        batch,
        topology=type(batch.topology).square(batch.senders[stored], batch.receivers[stored], batch.num_nodes),
        edge_shifts=batch.edge_shifts[stored],
        edge_offsets=nn.functional.pad(counts.cumsum(0), (1, 0)),
        edges={name: values[stored] for name, values in batch.edges.items()},
    )


@pytest.mark.parity("cgcnn", "PyTorch Geometric", "network of convolutions")
def test_cgcnn_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch) -> None:
    compared(ours("cgcnn", batch, NODE_HEAD), batch, "cgcnn")


@pytest.mark.parity("pna", "PyTorch Geometric", "network of convolutions")
def test_pna_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch) -> None:
    compared(ours("pna", batch, NODE_HEAD), batch, "pna")


@pytest.mark.parity("pnaplus", "PyTorch Geometric", "network of convolutions, with filters of our own")
def test_pnaplus_equals_a_network_of_pytorch_geometrics_convolutions_with_filters(batch: GraphBatch) -> None:
    compared(ours("pnaplus", batch, NODE_HEAD), batch, "pnaplus")


@pytest.mark.parity("global attention", "PyTorch Geometric", "network of GPS convolutions")
def test_gps_equals_a_network_of_pytorch_geometrics_convolutions(batch: GraphBatch) -> None:
    """Multi-head attention inside two graphs of different size; layer norms per node, SiLU."""
    model = ours("gin", batch, NODE_HEAD, {"global_attention": {"kind": "multihead", "heads": 3}})
    for layer in model.encoder.layers:
        for parameter in (layer.attention.project.bias, *(p for norm in layer.norms for p in norm.parameters())):
            parameter.normal_()
    compared(model, batch, "gps")
