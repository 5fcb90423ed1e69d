"""The equivariant transformer of its authors, from species to energies and forces; what it gave was kept by ``make_equivariant_transformer.py``."""

from pathlib import Path

import pytest
import torch
from ase.build import bulk
from safetensors.torch import load_file
from torch import Tensor

from hydragnn.architectures import architecture_of
from hydragnn.graphs import ATOMIC_NUMBERS_FIELD
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel, build_model, parse_head

CHANNELS, LAYERS, HEADS, RADIAL, CUTOFF, SPECIES = 8, 3, 2, 6, 5.0, 17
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order
FIELDS = [
    ATOMIC_NUMBERS_FIELD,
    Field(name="energy", on="graph", role="target"),
    Field(name="forces", on="node", shape=(3,), parity="vector", role="target"),
    Field(name="dipole", on="graph", shape=(3,), parity="vector", role="target"),
]


def crystals() -> GraphBatch:
    """Two of rock salt, so large that no atom is a neighbour of its image, which their first layer leaves out; some edges are longer than the cutoff."""
    graphs = []
    for seed in range(2):
        atoms = bulk("NaCl", "rocksalt", a=6.2, cubic=True)
        atoms.rattle(0.2, seed=seed)
        graphs.append(from_ase(atoms, 5.6))
    return concatenate(graphs)


@pytest.fixture
def stored() -> dict[str, Tensor]:
    values = load_file(Path(__file__).with_name("equivariant-transformer-torchmd.safetensors"))
    return {name: value.double() for name, value in values.items()}


def of_heads(theirs: Tensor) -> list[Tensor]:
    """Their rows are heads of parts of channels, ours parts of heads of channels."""
    by_part = theirs.unflatten(0, (HEADS, 3, CHANNELS // HEADS)).transpose(0, 1).flatten(1, 2)
    scalars, of_vectors, of_directions = by_part
    return [scalars, of_directions, of_vectors]


def with_constant(stored: dict[str, Tensor], name: str) -> Tensor:
    """Their weight and bias, as the weight of a map of features that end with a constant."""
    return torch.cat([stored[f"{name}.weight"], stored[f"{name}.bias"].unsqueeze(1)], dim=1)


def take(module: torch.nn.Module, stored: dict[str, Tensor], name: str) -> None:
    module.load_state_dict({key: stored[f"{name}.{key}"] for key in ("weight", "bias")})


def ours(stored: dict[str, Tensor]) -> GraphModel:
    """Our network with their weights."""
    table = {"kind": "equivariant_transformer", "hidden_dim": CHANNELS, "num_layers": LAYERS, "heads": HEADS}
    settings = architecture_of("equivariant_transformer").Settings.parse(
        {**table, "num_radial": RADIAL, "cutoff": CUTOFF, "envelope": "cosine"}
    )
    head = parse_head({"kind": "energy", "field": "energy", "hidden_dims": [CHANNELS // 2], "forces": "forces"})
    dipole = parse_head({"kind": "vector", "field": "dipole"})
    model = build_model(settings, [head, dipole], FIELDS, inputs=[ATOMIC_NUMBERS], dim=3, seed=0).double()
    model.requires_grad_(False)
    model.node_inputs.origin.zero_()
    encoder = model.encoder
    model.node_inputs.node_tables[0].table.weight[: SPECIES + 1] = stored["weights.embedding.weight"]
    encoder.embedding.from_sender.weight.copy_(stored["map_of_neighbours"])
    encoder.embedding.filters.weight.copy_(with_constant(stored, "weights.neighbor_embedding.distance_proj"))
    take(encoder.embedding.combine, stored, "weights.neighbor_embedding.combine")
    take(encoder.norm, stored, "weights.out_norm")
    for number, layer in enumerate(encoder.layers):
        attention, name = layer.attention, f"weights.attention_layers.{number}"
        take(attention.norm, stored, f"{name}.layernorm")
        take(attention.query, stored, f"{name}.q_proj")
        take(attention.key, stored, f"{name}.k_proj")
        attention.key_filter.weight.copy_(with_constant(stored, f"{name}.dk_proj"))
        weights, biases = of_heads(stored[f"{name}.v_proj.weight"]), of_heads(stored[f"{name}.v_proj.bias"])
        for linear, weight, bias in zip(attention.values, weights, biases):
            linear.load_state_dict({"weight": weight, "bias": bias})
        for linear, weight in zip(attention.value_filters, of_heads(with_constant(stored, f"{name}.dv_proj"))):
            linear.weight.copy_(weight)
        outs = zip(*(stored[f"{name}.o_proj.{key}"].chunk(3) for key in ("weight", "bias")))
        for linear, (weight, bias) in zip(attention.outs, reversed(list(outs))):
            linear.load_state_dict({"weight": weight, "bias": bias})
        if attention.mix is not None:
            attention.mix.weight.copy_(stored[f"{name}.vec_proj.weight"])
    for place in (0, 2):
        take(model.heads[0].network[place], stored, f"head.{place}")
    return model


@pytest.mark.parity("equivariant_transformer", "torchmd-net", "network: states, vectors, energies, forces of crystals")
def test_the_equivariant_transformer_with_forces_equals_that_of_its_authors(stored: dict[str, Tensor]) -> None:
    """Three layers; some edges are longer than the cutoff."""
    batch = crystals()
    lengths = edge_vectors(batch).norm(dim=1)
    assert (lengths > CUTOFF).any() and (lengths < CUTOFF).any() and not (batch.senders == batch.receivers).any()
    actual, states = ours(stored).with_states(batch)
    torch.testing.assert_close(states[0].detach(), stored["scalars"], **EXACT)
    torch.testing.assert_close(states[1].detach(), stored["vectors"], **EXACT)
    torch.testing.assert_close(actual["energy"].mean.detach(), stored["energy"], **EXACT)
    torch.testing.assert_close(actual["forces"].mean.detach(), stored["forces"], **EXACT)
    assert stored["forces"].abs().max() > 1e-2  # there is something to compare
