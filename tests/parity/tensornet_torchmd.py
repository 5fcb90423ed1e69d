"""The network of TensorNet's authors, from species to energies and forces; weights and outputs of torchmd-net 3.1.0 are kept in a file."""

from dataclasses import replace

from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.models import GraphModel
from tests.parity.networks import Stored, compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, LAYERS, RADIAL, CUTOFF, SPECIES = 4, 2, 6, 5.0, 5


def smaller(batch: GraphBatch) -> GraphBatch:
    """The graphs at half their size: the centres of their radial basis are ours at a cutoff of 5 alone, and most edges shall be shorter."""
    return replace(batch, **{name: getattr(batch, name) / 2 for name in ("positions", "edge_shifts", "cell")})


def ours(stored: Stored) -> GraphModel:
    table = {"kind": "tensornet", "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL}
    model = network({**table, "cutoff": CUTOFF, "envelope": "cosine"}, [energy_head(CHANNELS // 2)])
    take_embedding(model, stored)
    for number, layer in enumerate(model.encoder.layers):
        theirs = stored.under(f"weights.layers.{number}.")
        layer.filters.first.weight.copy_(theirs.with_constant("linears_scalar.0"))
        theirs.take(layer.filters.second, "linears_scalar.1")
        for degree, linear in enumerate(layer.filters.of_parts):
            rows = slice(degree * CHANNELS, (degree + 1) * CHANNELS)
            linear.weight.copy_(theirs["linears_scalar.2.weight"][rows])
            linear.bias.copy_(theirs["linears_scalar.2.bias"][rows])
            layer.before.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree}.weight"])
            layer.after.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree + 3}.weight"])
    stored.take(model.encoder.norm, "weights.out_norm")
    stored.take(model.encoder.linear, "weights.linear")
    for place in (0, 2):
        stored.take(model.heads[0].network[place], f"head.{place}")
    return model


def take_embedding(model: GraphModel, stored: Stored) -> None:
    embedding, theirs = model.encoder.embedding, stored.under("weights.tensor_embedding.")
    table_of(model).weight[: SPECIES + 1] = theirs["emb.weight"]
    of_receiver, of_sender = theirs["emb2.weight"].chunk(2, dim=1)
    embedding.from_receiver.weight.copy_(of_receiver)
    embedding.from_receiver.bias.copy_(theirs["emb2.bias"])
    embedding.from_sender.weight.copy_(of_sender)
    for degree, linear in enumerate(embedding.filters):
        linear.weight.copy_(theirs.with_constant(f"distance_proj{degree + 1}"))
        embedding.mix.linears[degree].weight.copy_(theirs[f"linears_tensor.{degree}.weight"])
    theirs.take(embedding.norm, "init_norm")
    theirs.take(embedding.first, "linears_scalar.0")
    theirs.take(embedding.gates, "linears_scalar.1")


def tensornet(bench: Bench) -> Pairs:
    """Two interactions; some edges are longer than the cutoff."""
    batch, stored = smaller(bench.batch), Stored.read("tensornet-torchmd")
    assert (edge_vectors(batch).norm(dim=1) > CUTOFF).any()
    return compared(ours(stored), batch, stored.outputs("scalars", "vectors", "energy", "forces"))


ROWS = [Row("tensornet", "torchmd-net", "network: states, vectors, energies, forces", tensornet)]
