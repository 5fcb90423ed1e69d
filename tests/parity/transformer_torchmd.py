"""The equivariant transformer of its authors, from species to energies and forces; what torchmd-net 3.1.0 gave is kept in a file."""

from ase.build import bulk
from torch import Tensor

from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.joining import concatenate
from hydragnn.models import GraphModel
from tests.parity.networks import FLOW, Stored, compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, LAYERS, HEADS, RADIAL, CUTOFF, SPECIES = 8, 3, 2, 6, 5.0, 17


def crystals() -> GraphBatch:
    """Two of rock salt, so large that no atom is a neighbour of its image, which their first layer leaves out; some edges are longer than the cutoff."""
    graphs = []
    for seed in range(2):
        atoms = bulk("NaCl", "rocksalt", a=6.2, cubic=True)
        atoms.rattle(0.2, seed=seed)
        graphs.append(from_ase(atoms, 5.6))
    return concatenate(graphs)


def of_heads(theirs: Tensor) -> list[Tensor]:
    """Their rows are heads of parts of channels, ours parts of heads of channels."""
    by_part = theirs.unflatten(0, (HEADS, 3, CHANNELS // HEADS)).transpose(0, 1).flatten(1, 2)
    scalars, of_vectors, of_directions = by_part
    return [scalars, of_directions, of_vectors]


def ours(stored: Stored) -> GraphModel:
    """Our network with their weights; it gives vectors, too."""
    table = {"kind": "equivariant_transformer", "hidden_dim": CHANNELS, "num_layers": LAYERS, "heads": HEADS}
    table |= {"num_radial": RADIAL, "cutoff": CUTOFF, "envelope": "cosine"}
    model = network(table, [energy_head(CHANNELS // 2), FLOW])
    encoder = model.encoder
    table_of(model).weight[: SPECIES + 1] = stored["weights.embedding.weight"]
    encoder.embedding.from_sender.weight.copy_(stored["map_of_neighbours"])
    encoder.embedding.filters.weight.copy_(stored.with_constant("weights.neighbor_embedding.distance_proj"))
    stored.take(encoder.embedding.combine, "weights.neighbor_embedding.combine")
    stored.take(encoder.norm, "weights.out_norm")
    for number, layer in enumerate(encoder.layers):
        attention, name = layer.attention, f"weights.attention_layers.{number}"
        stored.take(attention.norm, f"{name}.layernorm")
        stored.take(attention.query, f"{name}.q_proj")
        stored.take(attention.key, f"{name}.k_proj")
        attention.key_filter.weight.copy_(stored.with_constant(f"{name}.dk_proj"))
        weights, biases = of_heads(stored[f"{name}.v_proj.weight"]), of_heads(stored[f"{name}.v_proj.bias"])
        for linear, weight, bias in zip(attention.values, weights, biases):
            linear.load_state_dict({"weight": weight, "bias": bias})
        for linear, weight in zip(attention.value_filters, of_heads(stored.with_constant(f"{name}.dv_proj"))):
            linear.weight.copy_(weight)
        outs = zip(*(stored[f"{name}.o_proj.{key}"].chunk(3) for key in ("weight", "bias")))
        for linear, (weight, bias) in zip(attention.outs, reversed(list(outs))):
            linear.load_state_dict({"weight": weight, "bias": bias})
        if attention.mix is not None:
            attention.mix.weight.copy_(stored[f"{name}.vec_proj.weight"])
    for place in (0, 2):
        stored.take(model.heads[0].network[place], f"head.{place}")
    return model


def transformer(bench: Bench) -> Pairs:
    """Three layers; some edges are longer than the cutoff."""
    batch, stored = crystals(), Stored.read("equivariant-transformer-torchmd")
    lengths = edge_vectors(batch).norm(dim=1)
    assert (lengths > CUTOFF).any() and (lengths < CUTOFF).any() and not (batch.senders == batch.receivers).any()
    return compared(ours(stored), batch, stored.outputs("scalars", "vectors", "energy", "forces"))


LINE = "network: states, vectors, energies, forces of crystals"
ROWS = [Row("equivariant_transformer", "torchmd-net", LINE, transformer)]
