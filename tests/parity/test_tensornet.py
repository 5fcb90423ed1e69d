"""The network of TensorNet's authors, from species to energies and forces; its weights and outputs were kept by ``make_tensornet.py``."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, build_model, parse_head

CHANNELS, LAYERS, RADIAL, CUTOFF, SPECIES = 4, 2, 6, 5.0, 5
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
]


@pytest.fixture
def batch() -> GraphBatch:
    graphs = concatenate([make_graph(1, 5), make_graph(2, 7)])
    graphs = replace(graphs, **{name: getattr(graphs, name) / 2 for name in ("positions", "edge_shifts", "cell")})
    return graphs.with_fields({ATOMIC_NUMBERS: graphs.nodes["species"] + 1}, fields=FIELDS[:1])


@pytest.fixture
def stored() -> dict[str, Tensor]:
    values = load_file(Path(__file__).with_name("tensornet-torchmd.safetensors"))
    return {name: value.double() for name, value in values.items()}


def ours(stored: dict[str, Tensor]) -> GraphModel:
    """Our network with their weights."""
    table = {"kind": "tensornet", "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL}
    settings = architecture_of("tensornet").Settings.parse({**table, "cutoff": CUTOFF, "envelope": "cosine"})
    head = parse_head({"kind": "energy", "field": "energy", "hidden_dims": [CHANNELS // 2], "forces": "forces"})
    model = build_model(settings, [head], FIELDS, inputs=[ATOMIC_NUMBERS], dim=3, seed=0).double()
    model.requires_grad_(False)
    model.node_inputs.origin.zero_()
    take_embedding(model, stored)
    for number, layer in enumerate(model.encoder.layers):
        theirs = under(stored, f"weights.layers.{number}.")
        layer.filters.first.weight.copy_(with_constant(theirs, "linears_scalar.0"))
        take(layer.filters.second, theirs, "linears_scalar.1")
        for degree, linear in enumerate(layer.filters.of_parts):
            rows = slice(degree * CHANNELS, (degree + 1) * CHANNELS)
            linear.weight.copy_(theirs["linears_scalar.2.weight"][rows])
            linear.bias.copy_(theirs["linears_scalar.2.bias"][rows])
            layer.before.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree}.weight"])
            layer.after.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree + 3}.weight"])
    take(model.encoder.norm, stored, "weights.out_norm")
    take(model.encoder.linear, stored, "weights.linear")
    for place in (0, 2):
        take(model.heads[0].network[place], stored, f"head.{place}")
    return model


def take_embedding(model: GraphModel, stored: dict[str, Tensor]) -> None:
    embedding, theirs = model.encoder.embedding, under(stored, "weights.tensor_embedding.")
    model.node_inputs.node_tables[0].table.weight[: SPECIES + 1] = theirs["emb.weight"]
    of_receiver, of_sender = theirs["emb2.weight"].chunk(2, dim=1)
    embedding.from_receiver.weight.copy_(of_receiver)
    embedding.from_receiver.bias.copy_(theirs["emb2.bias"])
    embedding.from_sender.weight.copy_(of_sender)
    for degree, linear in enumerate(embedding.filters):
        linear.weight.copy_(with_constant(theirs, f"distance_proj{degree + 1}"))
        embedding.mix.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree}.weight"])
    take(embedding.norm, theirs, "init_norm")
    take(embedding.first, theirs, "linears_scalar.0")
    take(embedding.gates, theirs, "linears_scalar.1")


def under(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}


def with_constant(theirs: dict[str, Tensor], name: str) -> Tensor:
    """Their weight and bias, as the weight of a map of features that end with a constant."""
    return torch.cat([theirs[f"{name}.weight"], theirs[f"{name}.bias"].unsqueeze(1)], dim=1)


def take(module: torch.nn.Module, theirs: dict[str, Tensor], name: str) -> None:
    module.load_state_dict({key: theirs[f"{name}.{key}"] for key in ("weight", "bias")})


@pytest.mark.parity("tensornet", "torchmd-net", "network: states, vectors, energies, forces")
def test_tensornet_with_forces_equals_that_of_its_authors(batch: GraphBatch, stored: dict[str, Tensor]) -> None:
    """Two interactions; some edges are longer than the cutoff."""
    assert (edge_vectors(batch).norm(dim=1) > CUTOFF).any()
    model = ours(stored)
    actual, states = model.with_states(batch)
    torch.testing.assert_close(states[0].detach(), stored["scalars"], **EXACT)
    torch.testing.assert_close(states[1].detach(), stored["vectors"], **EXACT)
    torch.testing.assert_close(actual["energy"].mean.detach(), stored["energy"], **EXACT)
    torch.testing.assert_close(actual["forces"].mean.detach(), stored["forces"], **EXACT)
    assert stored["forces"].abs().max() > 1e-2  # there is something to compare
