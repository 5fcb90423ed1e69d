"""What edge, tensor and per-index heads promise, whatever the weights, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hydragnn.architectures import architecture_of
from hydragnn.base.errors import InputError
from hydragnn.base.imports import allow_named
from hydragnn.conformance.cases import INPUTS, make_graph, small_settings
from hydragnn.graphs import concatenate
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.topology import Topology
from hydragnn.models import Categorical, GraphModel, Normal, Point, build_model, parse_head, target_from_json
from tests.hydragnn.small import FIELDS


def built(kind: str, *heads: dict[str, Any]) -> GraphModel:
    names = [field.name for field in INPUTS if architecture_of(kind).reads(small_settings(kind), field)]
    fields = {**FIELDS, **{field.name: field for field in INPUTS}}
    parsed = [parse_head({"hidden_dims": [6], **head}) for head in heads]
    return build_model(small_settings(kind), parsed, fields, inputs=names, dim=3, seed=0).double()


def both_ways(seed: int, nodes: int) -> GraphBatch:
    """A periodic graph with both directions of every edge, several between some nodes, and edges of nodes to themselves."""
    one = make_graph(seed, nodes)
    first, last = one.senders, one.receivers
    receivers, order = torch.sort(torch.cat([last, first]), stable=True)
    return replace(
        one,
        topology=Topology.square(torch.cat([first, last])[order], receivers, nodes),
        edge_shifts=torch.cat([one.edge_shifts, -one.edge_shifts])[order],
        edge_offsets=torch.tensor([0, len(order)]),
        edges={name: torch.cat([values, values.flip(0)])[order] for name, values in one.edges.items()},
    )


@pytest.fixture(scope="module")
def batch() -> GraphBatch:
    return concatenate([both_ways(0, 3), both_ways(1, 6)])


def test_the_reverse_of_an_edge_runs_the_other_way_through_the_opposite_shift(batch: GraphBatch) -> None:
    back = batch.reverse_edges
    assert torch.equal(batch.senders[back], batch.receivers) and torch.equal(back[back], torch.arange(len(back)))
    torch.testing.assert_close(batch.edge_shifts[back], -batch.edge_shifts)
    assert bool((batch.senders == batch.receivers).any())  # through a shift, so none is its own reverse
    assert not bool((back == torch.arange(batch.num_edges)).any())


def test_what_flows_from_i_to_j_is_exactly_minus_what_flows_from_j_to_i(batch: GraphBatch) -> None:
    gaussian = {"distribution": "gaussian", "loss": "nll"}
    output = built("egnn", {"kind": "scalar", "field": "flux", "symmetry": "antisymmetric", **gaussian})(batch)["flux"]
    assert isinstance(output, Normal)
    back = batch.reverse_edges
    assert torch.equal(output.mean, -output.mean[back]) and torch.equal(output.variance, output.variance[back])
    assert float(output.mean.detach().abs().min()) > 0


@pytest.mark.parametrize("field", ["flux", "bond"])
def test_a_symmetric_value_alone_is_the_same_in_both_directions(batch: GraphBatch, field: str) -> None:
    kind = "classes" if field == "bond" else "scalar"
    output = built("gin", {"kind": kind, "field": field, "symmetry": "symmetric"})(batch)[field]
    values = output.logits if isinstance(output, Categorical) else output.mean  # type: ignore[attr-defined]
    assert torch.equal(values, values[batch.reverse_edges])
    free = next(iter(built("gin", {"kind": kind, "field": field})(batch)[field].tensors().values()))
    assert not torch.allclose(free, free[batch.reverse_edges])


def test_an_edge_without_its_reverse_is_named() -> None:
    model = built("gin", {"kind": "scalar", "field": "flux", "symmetry": "symmetric"})
    words = r"edge from node \d+ to \d+ .* none in the other direction.*leave symmetry out"
    with pytest.raises(InputError, match=words):
        model(make_graph(7, 3, edges=1))
    assert model(make_graph(3, 4, edges=0))["flux"].mean.shape == (0, 2)  # type: ignore[attr-defined]


def test_attention_weighs_nodes_by_a_learned_gate_and_the_weights_of_a_graph_sum_to_one(batch: GraphBatch) -> None:
    model = built("schnet", {"kind": "scalar", "field": "mean", "pool": "attention"})
    (head,) = model.heads
    states = model.with_states(batch)[1][0]
    scores, values = head.gate(states)[:, 0], head.network(states)[:, 0]  # type: ignore[operator]
    owners = map(batch.owner("node").eq, range(len(batch)))
    expected = torch.stack([(scores[of].softmax(0) * values[of]).sum() for of in owners])
    torch.testing.assert_close(model(batch)["mean"].mean.flatten(), expected, rtol=1e-12, atol=1e-12)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["painn", "egnn", "schnet"])
@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_tensors_are_symmetric_and_no_number_times_the_identity(batch: GraphBatch, kind: str, pool: str) -> None:
    tensors = built(kind, {"kind": "tensor", "field": "tensor", "pool": pool})(batch)["tensor"].mean.detach()  # type: ignore[attr-defined]
    torch.testing.assert_close(tensors, tensors.mT, rtol=1e-14, atol=1e-14)
    parts = tensors - tensors.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(3)
    assert float(parts.abs().amax(dim=(1, 2)).min()) > 1e-3


def test_tensors_of_a_cross_are_not_isotropic_although_its_vectors_vanish() -> None:
    """Four neighbours in a plane at right angles: by symmetry no vector can live at the centre, but a tensor does."""
    ends = torch.tensor([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=torch.float64)
    cross = make_graph(0, 5, edges=4)
    centre, neighbours = torch.zeros(4, dtype=torch.int64), torch.arange(1, 5)
    cross = replace(
        cross,
        positions=torch.cat([ends.new_zeros(1, 3), ends]),
        topology=Topology.square(neighbours, centre, 5),
        edge_shifts=torch.zeros_like(cross.edge_shifts),
        nodes={name: torch.ones_like(values) for name, values in cross.nodes.items()},
        edges={name: torch.ones_like(values) for name, values in cross.edges.items()},
    )
    output = built("painn", {"kind": "tensor", "field": "tensor"})(cross)["tensor"].mean[0].detach()  # type: ignore[attr-defined]
    torch.testing.assert_close(output[0, 0], output[1, 1])
    assert abs(float(output[0, 0] - output[2, 2])) > 1e-4


def test_every_node_index_has_a_network_of_its_own() -> None:
    model = built("gin", {"kind": "scalar", "field": "site", "per_index": 4})
    graphs = [make_graph(seed, 4) for seed in (1, 2)]
    together = model(concatenate(graphs))["site"].mean.detach()  # type: ignore[attr-defined]
    for number, graph in enumerate(graphs):
        alone = model(graph)["site"].mean.detach()  # type: ignore[attr-defined]
        torch.testing.assert_close(together[4 * number : 4 * number + 4], alone)
    (head,) = model.heads
    with torch.no_grad():
        head.get_submodule("biases")[-1][2] += 1.0  # type: ignore[index]
    moved = model(concatenate(graphs))["site"].mean.detach() - together  # type: ignore[attr-defined]
    torch.testing.assert_close(moved, torch.tensor([0.0, 0, 1, 0, 0, 0, 1, 0], dtype=torch.float64))
    with pytest.raises(InputError, match=r"graph 1 of the batch has 5 nodes.*give graphs of equal size and order"):
        model(concatenate([make_graph(1, 4), make_graph(2, 5)]))


TOY = '''
from typing import Literal

from torch import nn

from hydragnn.kernels import segment_sum
from hydragnn.models import HeadSettings, Point


class Charges(nn.Module):
    """The first channel of every node, without its mean over the graph."""

    def forward(self, states, graph, batch):
        owner, count = batch.owner("node"), batch.counts("node")
        values = states[0][:, 0]
        means = segment_sum(values.unsqueeze(1), owner, batch.num_graphs).squeeze(1) / count
        return Point(mean=values - means[owner])


class NeutralHead(HeadSettings):
    """Charges that add up to zero."""

    def build(self, field, context):
        return Charges()
'''


def test_a_head_of_ones_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: GraphBatch) -> None:
    (tmp_path / "toy_heads.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    kind = "toy_heads:NeutralHead"
    with pytest.raises(InputError, match=r"--allow-code toy_heads"):
        built("gin", {"kind": kind, "field": "site"})
    allow_named({"kind": kind})
    charges = built("gin", {"kind": kind, "field": "site"})(batch)["site"].mean.detach()  # type: ignore[attr-defined]
    assert charges.shape == (9,) and float(charges.abs().max()) > 0
    torch.testing.assert_close(charges[:3].sum() + charges[3:].sum(), charges.new_zeros(()), atol=1e-12, rtol=0)
    with pytest.raises(InputError, match="unknown key smoothing; "):
        parse_head({"kind": kind, "field": "site", "smoothing": 1})
    words = r"toy_heads has no head Charges; derive it from hydragnn\.models\.HeadSettings"
    with pytest.raises(InputError, match=words):
        parse_head({"kind": "toy_heads:Charges", "field": "site"})


USELESS: list[tuple[str, str, dict[str, Any], str]] = [
    ("scalar", "energy", {"forces": "forces"}, 'forces belongs to kind = "energy"'),
    ("energy", "energy", {"pool": "mean"}, 'belongs to kind = "scalar" or "vector"'),
    ("classes", "kind", {"distribution": "gaussian"}, 'not to kind = "classes"'),
    ("", "energy", {}, "a head has no kind; add one of scalar, energy"),
    ("energy", "energy", {"forcs": "forces"}, "unknown key .*forcs; did you mean forces"),
    ("scaler", "energy", {}, "unknown kind of head"),
    ("scalar", "energy", {"per_node": True}, "add extensive = true"),
    ("scalar", "charge", {"pool": "sum"}, "pool is for graph fields"),
    ("scalar", "charge", {"extensive": True}, "extensive is for graph fields"),
    ("vector", "forces", {"pool": "sum"}, "pool is for graph fields"),
    ("scalar", "energy", {"graph_scale": True}, "graph_scale = True was of version 0.2.0"),
    ("scalar", "energy", {"correction_of": "charge"}, "correction_of is for node fields"),
    ("scalar", "dipole", {}, 'use kind = "vector"'),
    ("classes", "energy", {}, "numbers, not classes"),
    ("classes", "kind", {"class_weights": [1.0]}, "1 class_weights for 2"),
]


@pytest.mark.parametrize(("kind", "field", "keys", "words"), USELESS)
def test_a_key_without_use_is_refused(kind: str, field: str, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_head({**({"kind": kind} if kind else {}), "field": field, **keys}).check(FIELDS[field])


def test_targets_say_in_one_place_how_fields_are_learned() -> None:
    heads = [
        {"kind": "energy", "field": "energy", "forces": "forces", "forces_weight": 5.0, "stress": "stress"},
        {"kind": "scalar", "field": "charge", "distribution": "gaussian", "loss": "nll"},
        {"kind": "classes", "field": "kind", "class_weights": "balanced"},
    ]
    targets = [target for head in heads for target in parse_head(head).targets(FIELDS)]
    expected = [
        ("energy", Point, True, 10.0, "mae", True),
        ("forces", Point, False, 1.0, "mae", False),
        ("stress", Point, False, 1.0, "mae", True),
        ("charge", Normal, False, 1.0, "nll", False),
        ("kind", Categorical, False, 1.0, "cross_entropy", False),
    ]
    assert [(t.name, t.distribution, t.extensive, t.stage_two_factor, t.loss, t.per_node) for t in targets] == expected
    assert [(t.derivative, t.source) for t in targets[1:3]] == [("forces", "energy"), ("stress", "energy")]
    assert targets[1].weight == 5.0 and targets[4].class_weights == "balanced"
    assert [target_from_json(json.loads(json.dumps(target.to_json()))) for target in targets] == list(targets)
