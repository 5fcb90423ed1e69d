"""Layers on coarser levels: parity with loops over clusters, and what cannot pool."""

from collections import defaultdict
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import Calculator
from torch import Tensor

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.conformance.cases import CORNERS, small_settings
from hydragnn.conformance.structures import LAWS
from hydragnn.ensemble.checking import Subject
from hydragnn.graphs import CLUSTERS, Field, GraphBatch, concatenate, from_ase, with_contracted_levels
from hydragnn.graphs.batch import edge_vectors
from hydragnn.graphs.levels import levels_of
from hydragnn.layers import GraphUNet, MessageGraph, States
from hydragnn.models import GraphModel, build_model, parse_head
from tests.graphs.geometry import cells
from tests.hydragnn.small import ENERGY, FIELDS, LEVELS, small_model
from tests.parity.loops import graph_of


def message_graph(batch: GraphBatch, kinds: tuple[str, ...] = ()) -> MessageGraph:
    features = batch.edges["area"].unsqueeze(1) if "area" in batch.edges else None
    edges = {"edge_features": features, "edge_kinds": {name: batch.edges[name] for name in kinds}}
    levels = levels_of(batch, batch[CLUSTERS].shape[1], kinds)
    return graph_of(batch, vectors=edge_vectors(batch), levels=levels, **edges)


def clusters_by_loops(batch: GraphBatch, level: int) -> list[list[int]]:
    """Nodes of every cluster, graph by graph, in the order of their numbers."""
    members = defaultdict(list)
    for node, (graph, number) in enumerate(zip(batch.owner("node").tolist(), batch[CLUSTERS][:, level].tolist())):
        members[graph, number].append(node)
    return [members[key] for key in sorted(members)]


@pytest.mark.parametrize("level", [0, 1])
def test_a_coarser_graph_has_clusters_for_nodes_and_what_joins_them_for_edges(level: int) -> None:
    batch = concatenate([with_contracted_levels(cells(40, seed=seed), 2) for seed in range(3)])
    graph = message_graph(batch)
    coarse = graph.coarser.graph if level == 0 else graph.coarser.graph.coarser.graph
    members = clusters_by_loops(batch, level)
    of_node = {node: number for number, nodes in enumerate(members) for node in nodes}
    pairs = {(of_node[r], of_node[s]) for s, r in zip(batch.senders.tolist(), batch.receivers.tolist())}
    expected = sorted((r, s) for r, s in pairs if r != s)
    assert list(zip(coarse.topology.receivers.tolist(), coarse.topology.senders.tolist())) == expected
    assert coarse.owner.tolist() == [int(batch.owner("node")[nodes[0]]) for nodes in members]
    assert coarse.nodes_per_graph.sum() == len(members)
    # of a cluster of clusters the middle is the mean of their middles, not of their nodes
    middles: list[Tensor] = [batch.positions[nodes].mean(0) for nodes in clusters_by_loops(batch, 0)]
    if level == 1:
        finer = clusters_by_loops(batch, 0)
        own = [[number for number, small in enumerate(finer) if set(small) <= set(nodes)] for nodes in members]
        middles = [torch.stack([middles[number] for number in numbers]).mean(0) for numbers in own]
    assert coarse.vectors is not None and graph.vectors is not None
    for vector, (receiver, sender) in zip(coarse.vectors, expected):
        between = middles[sender] - middles[receiver]
        torch.testing.assert_close(vector / vector.norm(), between / between.norm())
    for number in range(3):
        longest = coarse.vectors[coarse.owner[coarse.topology.receivers] == number].norm(dim=1).max()
        before = graph.vectors[graph.owner[graph.topology.receivers] == number].norm(dim=1).max()
        assert longest <= before * (1 + 1e-12)


def not_periodic(batch: GraphBatch) -> GraphBatch:
    """The same graphs, of which two clusters are joined by one edge, whatever images it leads through."""
    return replace(batch, periodic=torch.zeros_like(batch.periodic))


@pytest.mark.parametrize("names", [("relation", "level"), ()], ids=["kinds", "no kinds"])
@pytest.mark.parametrize("corner", CORNERS)
def test_between_two_clusters_is_an_edge_of_every_kind_between_their_nodes(corner: str, names: tuple[str, ...]) -> None:
    """Its features are the means of what was merged."""
    batch = not_periodic(CORNERS[corner]())
    far = Field(name="level", on="edge", classes=8, dtype="int64")
    batch = batch.with_fields({"level": (batch.edges["area"] > 0.5).long() * 7}, fields=[far])
    kinds = {name: batch.edges[name] for name in names}
    coarse, of_node = message_graph(batch, tuple(kinds)).coarser.graph, {}
    for number, nodes in enumerate(clusters_by_loops(batch, 0)):
        of_node |= dict.fromkeys(nodes, number)
    areas = defaultdict(list)
    for edge, (sender, receiver) in enumerate(zip(batch.senders.tolist(), batch.receivers.tolist())):
        if of_node[sender] != of_node[receiver]:
            kind = tuple(int(values[edge]) for values in kinds.values())
            areas[of_node[receiver], of_node[sender], *kind].append(float(batch.edges["area"][edge]))
    edges, columns = coarse.topology, (values.tolist() for values in coarse.edge_kinds.values())
    found = list(zip(edges.receivers.tolist(), edges.senders.tolist(), *columns))
    assert found == sorted(areas)
    expected = torch.tensor([np.mean(areas[edge]) for edge in found], dtype=torch.float64)
    assert coarse.edge_features is not None
    torch.testing.assert_close(coarse.edge_features.squeeze(1), expected)


def test_a_field_of_the_same_name_is_an_input_like_any_other() -> None:
    labels = Field(name=CLUSTERS, on="node", classes=4, dtype="int64")
    fields, head = [FIELDS["energy"], FIELDS["species"], labels], parse_head(ENERGY)
    model = build_model(small_settings("painn"), [head], fields, inputs=LEVELS, dim=3, seed=0)
    assert [field.name for field in model.description.input_fields] == ["species", CLUSTERS]
    with pytest.raises(InputError, match="needs the node field clusters of levels"):
        build_model(small_settings("painn", pooling={"levels": 1}), [head], fields, inputs=LEVELS, dim=3, seed=0)


def test_every_architecture_says_whether_it_pools() -> None:
    unable = {kind for kind, a in architectures().items() if a.limit(a.Settings(kind=kind), "pooling")}
    assert unable <= {"mace"}  # by its transformed lengths, which may be turned off


def test_after_every_layer_a_node_hears_what_its_cluster_knows() -> None:
    """Five layers on the levels 0, 1, 2, 1, 0, against loops over clusters; the last one hears all that comes back."""
    batch = concatenate([with_contracted_levels(cells(40, seed=seed), 2) for seed in range(2)])

    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, states: States, graph: MessageGraph) -> States:
            assert states[0].shape[0] == graph.num_nodes
            return {degree: (value + self.number).sin() for degree, value in states.items()}

    net = GraphUNet([Layer(number) for number in range(5)], 2, 3, {0}).double()
    first = torch.randn(batch.num_nodes, 3, dtype=torch.float64)
    graph = message_graph(batch)
    found = [states[0] for states in net.of_every_layer({0: first}, graph)]
    finest, coarser = (clusters_by_loops(batch, level) for level in (0, 1))
    one = (first + 0).sin()
    two = (torch.stack([one[nodes].mean(0) for nodes in finest]) + 1).sin()  # of clusters
    inside = [[number for number, small in enumerate(finest) if set(small) <= set(nodes)] for nodes in coarser]
    three = (torch.stack([two[numbers].mean(0) for numbers in inside]) + 2).sin()
    of_node = {node: number for number, nodes in enumerate(finest) for node in nodes}
    of_cluster = {number: number_of for number_of, numbers in enumerate(inside) for number in numbers}
    rows = torch.tensor([of_node[node] for node in range(batch.num_nodes)])
    above = torch.tensor([of_cluster[number] for number in range(len(finest))])
    w = [way.maps["0"] for way in net.ways_back]
    four = (two + w[1](three)[above] + 3).sin()
    five = (one + w[0](four)[rows] + 4).sin()
    for own, expected in zip(found, [one, two[rows], three[above][rows], four[rows], five], strict=True):
        torch.testing.assert_close(own, expected)
    torch.testing.assert_close(net({0: first}, graph)[0], five)


@pytest.mark.parametrize("corner", CORNERS)
def test_messages_of_edges_pool_to_means_and_change_as_those_of_coarser_edges_do(corner: str) -> None:
    """Three layers on the levels 0, 1, 0 that hand on messages, against a loop over edges; those that no coarser edge stands for stay."""
    batch = not_periodic(CORNERS[corner]())
    graph = message_graph(batch)

    class Layer(torch.nn.Module):
        def forward(self, states: States, graph: MessageGraph) -> States:
            assert states[-1].shape[0] == graph.topology.num_edges
            return {0: states[0].cos(), -1: (states[-1] + 1).sin()}

    net = GraphUNet([Layer() for _ in range(3)], 1, 3, {0}).double()
    first = torch.randn(batch.num_nodes, 3, dtype=torch.float64)
    messages = torch.randn(batch.num_edges, 2, dtype=torch.float64)
    merged = defaultdict(list)
    of_node = {node: number for number, nodes in enumerate(clusters_by_loops(batch, 0)) for node in nodes}
    for edge, ends in enumerate(zip(batch.senders.tolist(), batch.receivers.tolist())):
        sender, receiver = (of_node[end] for end in ends)
        if sender != receiver:
            merged[receiver, sender].append(edge)
    expected = (messages + 1).sin()
    for edges in merged.values():
        mean = (messages[edges] + 1).sin().mean(0)
        expected[edges] += (mean + 1).sin() - mean
    found = net({0: first, -1: messages}, graph)[-1]
    torch.testing.assert_close(found, (expected + 1).sin())


class OfLevels(Calculator):
    """A model that pools, with levels that are made for every structure; a vector of every atom stands for its force."""

    implemented_properties: ClassVar = ["energy", "forces"]

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def calculate(self, atoms: Atoms, properties: Any = (), system_changes: Any = ()) -> None:
        graph = with_contracted_levels(from_ase(atoms, cutoff=3.2), 2)
        kinds = torch.from_numpy(atoms.arrays["species"])
        with torch.no_grad():
            output = self.model(graph.with_fields({"species": kinds}, fields=[FIELDS["species"]]))
        vectors = output["forces"].mean.numpy() if "forces" in output else np.zeros((len(atoms), 3))
        self.results = {"energy": float(output["energy"].mean), "forces": vectors}


@pytest.mark.parametrize("law", ["rotation", "translation", "permutation", "extensivity"])
@pytest.mark.parametrize("kind", ["painn", "dimenet"])
def test_laws_hold_of_a_crystal_whose_levels_are_made_anew(kind: str, law: str) -> None:
    crystal = bulk("Cu", cubic=True).repeat(2)
    crystal.arrays["species"] = np.arange(len(crystal)) % 5
    atoms = crystal.copy()
    atoms.rattle(0.15, seed=3)
    heads = [ENERGY, *([{"kind": "vector", "field": "forces"}] if kind == "painn" else [])]
    model = small_model(kind, *heads, inputs=LEVELS, num_layers=3, pooling={"levels": 2}, cutoff=3.2).double()
    subject = Subject(name=kind, new_calculator=lambda: OfLevels(model), frames=[atoms])
    verdict, figure, where = LAWS[law].judgement(subject)
    assert verdict == "passed" and figure is not None and figure < 1e-11, where
    own, other = subject.results([atoms, crystal])
    assert abs(other["energy"] / own["energy"] - 1) > 1e-6
    assert kind != "painn" or np.linalg.norm(own["forces"], axis=1).max() > 1e-5
