"""Attention: torch's on every graph or node alone, and the equations of equivariant attention as loops over nodes, images and heads."""

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.wider import wider
from hydragnn.kernels import Topology
from hydragnn.layers import CrossAttention, EquivariantAttention, FieldTokens, MessageGraph, States
from hydragnn.models.wrapping import basis_of_pairs
from tests.parity.rows import Bench, Pairs, Row

CHANNELS, HEADS, CUTOFF, RADIAL = 6, 2, 4.6, 5
WIDTH = CHANNELS // HEADS
SIZES = [[5, 5, 5], [5, 1, 7, 5], [40, 3, 0, 2, 38, 9], [0, 2, 0]]
"""Nodes of graphs: equal sizes, similar ones in one bucket, several buckets, graphs without nodes."""


def graph_of_sizes(sizes: Sequence[int], vectors: Tensor | None = None) -> MessageGraph:
    """Graphs of so many nodes, without edges."""
    counts, none = torch.tensor(sizes), torch.zeros(0, dtype=torch.int64)
    return MessageGraph(
        topology=Topology.square(none, none, sum(sizes)),
        owner=torch.arange(len(sizes)).repeat_interleave(counts),
        nodes_per_graph=counts,
        vectors=vectors,
    )


def torch_attention(ours: CrossAttention) -> nn.MultiheadAttention:
    theirs, parts = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True), (ours.queries, ours.keys, ours.values)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj = ours.out
    return theirs


FIELDS = [
    Field(name="size", on="node", shape=(2,), unit="m"),
    Field(name="load", on="graph", unit="N"),
    Field(name="species", on="node", classes=5, dtype="int64"),
    Field(name="lead", on="graph", unit="s"),
]


def fields(bench: Bench) -> Pairs:
    """Tokens of the fields that there are: each graph lacks one."""
    module, lead = FieldTokens(FIELDS, CHANNELS, HEADS, "lead"), torch.tensor([0.3, -0.7])
    batch = concatenate([make_graph(1, 3), make_graph(2, 4)]).with_fields({"lead": lead}, fields=FIELDS[-1:])
    batch = batch.with_fields(masks={"size": torch.tensor([True, False]), "species": torch.tensor([False, True])})
    actual, units = module(batch), module.unit.weight @ module.units.T
    theirs = torch_attention(module.attention)
    for node, graph in enumerate(batch.owner("node").tolist()):
        tokens, numbers = [module.origin], {1: ("load", batch["load"][graph : graph + 1])}
        if graph == 1:
            tokens.append(module.node_tables[0].table.weight[batch["species"][node]])
        else:
            numbers[0] = ("size", batch["size"][node])
        for place, (name, values) in numbers.items():
            for value, row in zip(values, module.names[f"of_{name}"]):
                slope, offset = (row + units[:, place]).chunk(2)
                tokens.append(value * slope + offset)
        rows = torch.stack(tokens).unsqueeze(0)
        read = theirs(module.query.view(1, 1, -1), rows, rows)[0].flatten()
        yield actual[node], read + module.lead(lead[graph].view(1))


def graph_of(batch: GraphBatch, cutoff: float | None) -> MessageGraph:
    settings = GlobalAttentionSettings(kind="equivariant", heads=HEADS, cutoff=cutoff, num_radial=RADIAL)
    shape = {"owner": batch.owner("node"), "nodes_per_graph": batch.counts("node")}
    pairs = wider(batch, cutoff)
    basis = basis_of_pairs(settings, None)
    seen = MessageGraph(topology=pairs.topology, vectors=edge_vectors(pairs), basis=basis, **shape)
    return MessageGraph(topology=batch.topology, wider=seen, **shape)


def radial(length: Tensor, cutoff: float | None) -> Tensor:
    """Gaussians of exp(-5 r / c), and 1; without a cutoff c is 15."""
    reach = cutoff or 15.0
    place, least = torch.exp(-5 * length / reach), math.exp(-5)
    centres = torch.tensor([least + (1 - least) * k / (RADIAL - 1) for k in range(RADIAL)])
    return torch.cat([torch.exp(-((place - centres) ** 2) / (2 / RADIAL * (1 - least)) ** 2), torch.ones(1)])


def envelope(length: Tensor, cutoff: float | None) -> Tensor:
    if cutoff is None:
        return torch.ones(())
    x = length / cutoff
    return 1 - 28 * x**6 + 48 * x**7 - 21 * x**8


def harmonics(direction: Tensor, degree: int) -> Tensor:
    x, y, z = direction
    if degree == 1:
        return math.sqrt(3) * direction
    parts = [x * z, x * y, (y * y - (x * x + z * z) / 2) / math.sqrt(3), y * z, (z * z - x * x) / 2]
    return math.sqrt(15) * torch.stack(parts)


def neighbours(batch: GraphBatch, cutoff: float | None) -> list[list[tuple[int, Tensor]]]:
    """Others, and images, of every node, with the vectors to them."""
    images = torch.tensor([*product(range(-3, 4), repeat=3)] if cutoff else [(0, 0, 0)]).double()
    owner, found = batch.owner("node").tolist(), list[list[tuple[int, Tensor]]]()
    for node in range(batch.num_nodes):
        found.append([])
        for other in (other for other in range(batch.num_nodes) if owner[other] == owner[node]):
            vectors = batch.positions[other] - batch.positions[node] + images @ batch.cell[owner[node]]
            near = vectors.norm(dim=1) < (cutoff or math.inf)
            itself = (images == 0).all(1) & (other == node)
            found[node] += [(other, vector) for vector in vectors[near & ~itself]]
    return found


def by_loops(layer: EquivariantAttention, states: States, batch: GraphBatch, cutoff: float | None) -> States:
    inputs = {0: layer.norm(states[0]).unsqueeze(1)}
    for degree in layer.inputs[1:]:
        square = states[degree].pow(2).sum(1).mean(-1)  # [nodes]
        inputs[degree] = states[degree] / torch.sqrt(square + 1).view(-1, 1, 1)
    queries = {degree: inputs[degree] @ layer.queries[str(degree)].weight.T for degree in layer.inputs}
    keys = {degree: inputs[degree] @ layer.keys[str(degree)].weight.T for degree in layer.inputs}
    values = (inputs[0].squeeze(1) @ layer.values.weight.T + layer.values.bias).split(CHANNELS, dim=-1)
    moved = {degree: inputs[degree] @ layer.moved[str(degree)].weight.T for degree in layer.common}
    terms = WIDTH * sum(inputs[degree].shape[1] for degree in layer.inputs)
    read = {0: torch.zeros(batch.num_nodes, 1, CHANNELS)}
    read |= {degree: torch.zeros(batch.num_nodes, 2 * degree + 1, CHANNELS) for degree in layer.outputs}

    def score(node: int, other: int, part: slice, bias: Tensor) -> Tensor:
        parts = [(queries[degree][node, :, part] * keys[degree][other, :, part]).sum() for degree in layer.inputs]
        raw = torch.stack(parts).sum() / math.sqrt(terms) + bias
        return torch.exp(30 * torch.tanh(raw / 30))

    images = neighbours(batch, cutoff)
    for node, head in product(range(batch.num_nodes), range(HEADS)):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        own = score(node, node, part, layer.itself[head])
        total = own.clone()
        sums = {0: own * values[0][node, part].unsqueeze(0)}
        sums |= {degree: torch.zeros(2 * degree + 1, WIDTH) for degree in layer.outputs}
        for degree in layer.common:
            sums[degree] = own * moved[degree][node, :, part]
        for other, vector in images[node]:
            length = vector.norm()
            numbers = (layer.radial.weight @ radial(length, cutoff)).view(-1, HEADS)[:, head].tolist()
            weight = envelope(length, cutoff) * score(node, other, part, torch.tensor(numbers[0]))
            total = total + weight
            sums[0] = sums[0] + weight * numbers[1] * values[0][other, part].unsqueeze(0)
            for number, degree in enumerate(layer.outputs):
                along = torch.outer(harmonics(vector / length, degree), values[1 + number][other, part])
                sums[degree] = sums[degree] + weight * numbers[2 + number] * along
            for number, degree in enumerate(layer.common):
                factor = numbers[2 + len(layer.outputs) + number]
                sums[degree] = sums[degree] + weight * factor * moved[degree][other, :, part]
        for degree, summed in sums.items():
            read[degree][node, :, part] = summed / total
    first, _, last = layer.network
    inner = read[0].squeeze(1) @ first.weight.T + first.bias
    result = {0: inner * torch.sigmoid(inner) @ last.weight.T + last.bias}
    return result | {degree: read[degree] @ layer.outs[str(degree)].weight.T for degree in layer.outputs}


def equivariant(bench: Bench, cutoff: float | None, taken: set[int], degrees: set[int]) -> Pairs:
    """Degrees that come in and go out; scores are capped, too."""
    batch = bench.batch
    if cutoff is None:
        batch.periodic.fill_(False)
    layer = EquivariantAttention(CHANNELS, HEADS, RADIAL + 1, inputs=taken, outputs=degrees)
    nn.init.normal_(layer.itself)
    states = {0: torch.randn(batch.num_nodes, CHANNELS)}
    states |= {degree: 3 * torch.randn(batch.num_nodes, 2 * degree + 1, CHANNELS) for degree in taken - {0}}
    with torch.no_grad():
        layer.keys["0"].weight.mul_(20)
        actual, expected = layer(states, graph_of(batch, cutoff)), by_loops(layer, states, batch, cutoff)
    assert actual.keys() == degrees
    yield from ((actual[degree], expected[degree]) for degree in sorted(degrees))


DEGREES = [({0, 1, 2}, {0, 1, 2}), ({0}, {0, 1}), ({0, 1}, {0}), ({0, 2}, {0, 1, 2})]
CASES = [(cutoff, *degrees) for cutoff in (CUTOFF, None) for degrees in DEGREES]
EQUIVARIANT, THEIRS = "equivariant attention, degrees 0 to 2, images", "torch.nn.MultiheadAttention"
ROWS = [
    Row("field_tokens", THEIRS, "aggregation over fields, some of them missing", fields, tolerance=1e-12),
    Row("global attention", "its equations as loops", EQUIVARIANT, equivariant, CASES),
]
