"""Field tokens and attention through latents, beside torch's attention on every node or graph alone."""

import pytest
import torch
from test_layers_around import SIZES, graph_of_sizes
from torch import Tensor, nn

from hydragnn.architectures.field_tokens import EdgeAngles, EdgeMixing
from hydragnn.conformance.cases import make_graph
from hydragnn.graphs import Field, concatenate
from hydragnn.graphs.batch import GraphBatch
from hydragnn.layers import CrossAttention, FieldTokens, LatentAttention, MessageGraph, RadialFeatures

CHANNELS, HEADS = 6, 2
EXACT = {"rtol": 1e-12, "atol": 1e-12}  # float64 sums in another order


def torch_attention(ours: CrossAttention) -> nn.MultiheadAttention:
    """Torch's layer with the weights of ours."""
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
]


@pytest.mark.parity("field_tokens", "torch.nn.MultiheadAttention", "aggregation over fields, some of them missing")
def test_the_aggregation_over_fields_is_torchs_attention_over_the_tokens_that_there_are() -> None:
    module = FieldTokens([*FIELDS, Field(name="lead", on="graph", unit="s")], CHANNELS, HEADS, "lead")
    graphs = concatenate([make_graph(1, 3), make_graph(2, 4)])
    lead = torch.tensor([0.3, -0.7])
    graphs = graphs.with_fields({"lead": lead}, fields=[Field(name="lead", on="graph", unit="s")])
    batch = graphs.with_fields(masks={"size": torch.tensor([True, False]), "species": torch.tensor([False, True])})
    actual, owner, units = module(batch), batch.owner("node").tolist(), module.unit.weight @ module.units.T
    theirs, numbers = torch_attention(module.attention), {"size": 0, "load": 1}
    for node, graph in enumerate(owner):
        tokens = [module.origin]
        if graph == 1:
            tokens.append(module.node_tables[0].table.weight[batch["species"][node]])
        for name, number in numbers.items():
            values = batch[name][node] if name == "size" else batch[name][graph : graph + 1]
            if name == "size" and graph == 1:
                continue
            for value, row in zip(values, module.names[f"of_{name}"]):
                slope, offset = (row + units[:, number]).chunk(2)
                tokens.append(value * slope + offset)
        rows = torch.stack(tokens).unsqueeze(0)
        read = theirs(module.query.view(1, 1, -1), rows, rows)[0].flatten()
        torch.testing.assert_close(actual[node], read + module.lead(lead[graph].view(1)), **EXACT)


def alone(module: LatentAttention, states: Tensor) -> Tensor:
    """Both attentions of one graph by torch's layers."""
    latents = module.latents.unsqueeze(0)
    latents = latents + torch_attention(module.read)(latents, states.unsqueeze(0), states.unsqueeze(0))[0]
    latents = module.norms[1](latents + module.network(module.norms[0](latents)))
    return torch_attention(module.write)(states.unsqueeze(0), latents, latents)[0].squeeze(0)


@pytest.mark.parity("field_tokens", "torch.nn.MultiheadAttention", "attention of nodes through latents")
@pytest.mark.parametrize("derivatives", [0, 1, 2])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention_through_latents_is_torchs_on_every_graph_alone(derivatives: int, sizes: list[int]) -> None:
    graph = graph_of_sizes(sizes, torch.randn(0, 3, requires_grad=derivatives == 2))
    module, states = LatentAttention(CHANNELS, HEADS, 3), torch.randn(sum(sizes), CHANNELS, requires_grad=True)
    actual = module(states, graph)
    expected = torch.cat([alone(module, part) for part in states.split([size for size in sizes if size])])
    torch.testing.assert_close(actual, expected, **EXACT)
    if derivatives:
        seed = torch.randn_like(actual)
        ours, theirs = (
            torch.autograd.grad(values, states, seed, retain_graph=True)[0] for values in (actual, expected)
        )
        torch.testing.assert_close(ours, theirs, **EXACT)


def message_graph(batch: GraphBatch) -> MessageGraph:
    """The batch as layers see it, with a few radial functions."""
    return MessageGraph(
        topology=batch.topology,
        owner=batch.owner("node"),
        nodes_per_graph=batch.counts("node"),
        vectors=batch.positions[batch.senders] + batch.edge_shifts - batch.positions[batch.receivers],
        basis=RadialFeatures(9.0, 4, "gaussian", "polynomial", inputs=0),
    )


@pytest.mark.parity("field_tokens", "its equations as loops", "angles between edges")
def test_angles_are_sums_over_pairs_of_edges(batch: GraphBatch) -> None:
    graph = message_graph(batch)
    module = EdgeAngles(graph.basis.width, 3)
    features, envelope = graph.basis(graph.lengths, None, None)
    ended, receivers, actual = features * envelope, batch.receivers.tolist(), module(graph)
    for edge, receiver in enumerate(receivers):
        sums = torch.zeros(4, module.SUMS)
        for other in (number for number, one in enumerate(receivers) if one == receiver):
            cosine = graph.directions[edge] @ graph.directions[other]
            for power, weights in enumerate(module.sums(ended[other]).chunk(4)):
                sums[power] += weights * cosine**power
        inputs = module.inputs(torch.cat([ended[edge], sums.flatten()]))
        torch.testing.assert_close(actual[edge], nn.functional.silu(inputs) * envelope[edge], **EXACT)


@pytest.mark.parity("field_tokens", "its equations as loops", "messages along edges")
@pytest.mark.parametrize("angles", [0, 2])
def test_messages_along_edges_are_their_equations_as_loops(batch: GraphBatch, angles: int) -> None:
    graph = message_graph(batch)
    vectors, basis = graph.vectors, graph.basis
    module, states = (
        EdgeMixing(CHANNELS, basis.width, directed=True, angles=angles),
        torch.randn(batch.num_nodes, CHANNELS),
    )
    actual = module(states, graph)
    sums, along, sides = (torch.zeros(batch.num_nodes, axes, CHANNELS) for axes in (1, 3, 3))
    features, envelope = basis(vectors.norm(dim=1), None, None)
    inputs = features * envelope if module.angles is None else module.angles(graph)
    for edge, (j, i) in enumerate(zip(batch.senders.tolist(), batch.receivers.tolist())):
        joined = module.sent(states[j]) - module.sent(states[i]) + module.own(states[i])
        ended = inputs[edge]
        sums[i, 0] += joined * module.filters(ended)
        direction = vectors[edge] / vectors[edge].norm()
        along[i] += torch.outer(direction, joined * module.along(ended))
        sides[i] += torch.outer(direction, module.sides(ended))
    expected = module.out(torch.cat([sums[:, 0], (module.mix(along) * sides).sum(1)], dim=-1))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
