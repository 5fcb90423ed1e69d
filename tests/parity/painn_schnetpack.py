"""PaiNN of its authors; weights and outputs of schnetpack 2.1.1 are kept in a file."""

from typing import Any

import torch

from hydragnn.graphs.batch import edge_vectors
from hydragnn.models import GraphModel
from tests.parity.networks import FLOW, NODE_HEAD, Stored, compared, energy_head, network, table_of
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, LAYERS, RADIAL, CUTOFF = 6, 3, 5, 9.0


def ours(stored: Stored, heads: list[dict[str, Any]]) -> GraphModel:
    table = {"kind": "painn", "hidden_dim": CHANNELS, "num_layers": LAYERS, "num_radial": RADIAL, "cutoff": CUTOFF}
    model = network({**table, "radial": "gaussian", "envelope": "cosine", "norm": "paper"}, heads)
    table_of(model).weight[:100].copy_(stored["weights.embedding.weight"])
    filters = stored.with_constant("weights.filter_net").chunk(LAYERS)
    for number, (layer, of_layer) in enumerate(zip(model.encoder.layers, filters)):
        parts = of_layer.chunk(3)  # of scalars, of directions, of vectors; the last meets zeros in the first layer
        for linear, part in zip(layer.filters, parts):
            linear.weight.copy_(part)
        take, mixing = stored.under(f"weights.interactions.{number}."), stored.under(f"weights.mixing.{number}.")
        rows = CHANNELS * len(layer.filters)
        message = layer.message.states
        take.take(message[0], "interatomic_context_net.0")
        message[2].weight.copy_(take["interatomic_context_net.1.weight"][:rows])
        message[2].bias.copy_(take["interatomic_context_net.1.bias"][:rows])
        v, w = mixing["mu_channel_mix.weight"].chunk(2)  # they measure the first half, we the second
        layer.update.mix.weight.copy_(torch.cat([w, v]))
        mixing.take(layer.update.gates[0], "intraatomic_context_net.0")
        for key in ("weight", "bias"):
            scalar, vector, product = mixing[f"intraatomic_context_net.1.{key}"].chunk(3)
            getattr(layer.update.gates[2], key).copy_(torch.cat([scalar, product, vector]))
    return model


def representation(bench: Bench) -> Pairs:
    stored = Stored.read("painn-schnetpack")
    model = ours(stored, [NODE_HEAD, FLOW])
    vectors = edge_vectors(bench.batch).requires_grad_()
    states = model.encode(bench.batch, model.message_graph(bench.batch, vectors))
    (gradient,) = torch.autograd.grad(states[0].sum() + states[1].square().sum(), vectors)
    yield from zip((vectors, states[0], states[1], gradient), stored.outputs("edge_vectors", *OUTPUTS).values())


def energies(bench: Bench) -> Pairs:
    """As schnetpack's head, its forces and its strain give them."""
    stored = Stored.read("painn-schnetpack")
    model = ours(stored, [energy_head(CHANNELS // 2, stress="stress"), FLOW])
    for number, place in enumerate((0, 2)):
        stored.take(model.heads[0].network[place], f"head.{number}")
    return compared(model, bench.batch, stored.outputs("energy", "forces", "stress"))


OUTPUTS = ("scalars", "vectors", "gradient")
ROWS = [
    Row("painn", "schnetpack", "representation: scalars, vectors, their gradient", representation),
    Row("painn", "schnetpack", "network: energies, forces, stress", energies),
]
