"""Equivariant attention beside its equations written as loops over nodes, images and heads."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from hydragnn.architectures import GlobalAttentionSettings
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.wider import wider
from hydragnn.layers import EquivariantAttention, MessageGraph, States
from hydragnn.models.wrapping import basis_of_pairs

CHANNELS, HEADS, CUTOFF, RADIAL = 6, 2, 4.6, 5
WIDTH = CHANNELS // HEADS
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums in another order


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


def neighbours(batch: GraphBatch, node: int, cutoff: float | None) -> list[tuple[int, Tensor]]:
    """Senders and vectors, image by image."""
    owner = batch.owner("node").tolist()
    found = []
    for other in range(batch.num_nodes):
        if owner[other] != owner[node]:
            continue
        for image in product(range(-3, 4), repeat=3) if cutoff else [(0, 0, 0)]:
            shift = torch.tensor(image, dtype=torch.float64) @ batch.cell[owner[node]]
            vector = batch.positions[other] + shift - batch.positions[node]
            if (other != node or any(image)) and (cutoff is None or vector.norm() < cutoff):
                found.append((other, vector))
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

    for node, head in product(range(batch.num_nodes), range(HEADS)):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        own = score(node, node, part, layer.itself[head])
        total = own.clone()
        sums = {0: own * values[0][node, part].unsqueeze(0)}
        sums |= {degree: torch.zeros(2 * degree + 1, WIDTH) for degree in layer.outputs}
        for degree in layer.common:
            sums[degree] = own * moved[degree][node, :, part]
        for other, vector in neighbours(batch, node, cutoff):
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


@pytest.mark.parity("global attention", "its equations as loops", "equivariant attention, degrees 0 to 2, images")
@pytest.mark.parametrize("cutoff", [CUTOFF, None])
@pytest.mark.parametrize("taken, given", [({0, 1, 2}, {0, 1, 2}), ({0}, {0, 1}), ({0, 1}, {0}), ({0, 2}, {0, 1, 2})])
def test_equivariant_attention_equals_its_equations_as_loops(
    batch: GraphBatch, cutoff: float | None, taken: set[int], given: set[int]
) -> None:
    if cutoff is None:
        batch.periodic.fill_(False)
    layer = EquivariantAttention(CHANNELS, HEADS, RADIAL + 1, inputs=taken, outputs=given)
    torch.nn.init.normal_(layer.itself)
    states = {0: torch.randn(batch.num_nodes, CHANNELS)}
    states |= {degree: 3 * torch.randn(batch.num_nodes, 2 * degree + 1, CHANNELS) for degree in taken - {0}}
    with torch.no_grad():
        layer.keys["0"].weight.mul_(20)  # scores that are capped, too
        actual, expected = layer(states, graph_of(batch, cutoff)), by_loops(layer, states, batch, cutoff)
    assert actual.keys() == given
    for degree in sorted(given):
        torch.testing.assert_close(actual[degree], expected[degree], **EXACT)
