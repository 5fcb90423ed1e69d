"""Levels of graphs by contraction and by hand, and structural encodings beside dense linear algebra."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.datasets import CoarseningSettings
from hydragnn.graphs import Field, concatenate, from_ase, graph_from_arrays, validate
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.encodings import ENCODINGS, with_encodings
from hydragnn.graphs.levels import CLUSTERS, levels_of, with_clusters, with_contracted_levels
from tests.graphs.geometry import cells
from tests.graphs.test_cutting import grid
from tests.refusals import refuses

CONTACTS = graph_from_arrays(np.zeros((60, 0)), cells(60).senders, cells(60).receivers)
GRAPHS = {"cells": cells(60), "contacts": CONTACTS, "grid": grid(9), "periodic": cells(60, True)}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_contraction_is_a_maximal_matching_of_neighbours(graph: GraphBatch) -> None:
    numbers = with_contracted_levels(graph, 1)[CLUSTERS][:, 0].numpy()
    edges = np.stack([graph.senders.numpy(), graph.receivers.numpy()], axis=1)
    matching = {tuple(sorted(pair)) for pair in edges.tolist() if numbers[pair[0]] == numbers[pair[1]]}
    assert nx.is_maximal_matching(nx.Graph(edges.tolist()), matching)
    assert len(matching) == graph.num_nodes - len(np.unique(numbers))


def test_the_closest_neighbours_are_joined_first() -> None:
    graph = cells(60)
    numbers = with_contracted_levels(graph, 1)[CLUSTERS][:, 0]
    lengths = (graph.positions[graph.senders] - graph.positions[graph.receivers]).norm(dim=1)
    closest = int(lengths.argmin())
    assert numbers[graph.senders[closest]] == numbers[graph.receivers[closest]]


def test_every_level_of_contraction_halves_a_graph_about() -> None:
    graph = with_contracted_levels(grid(16), 4)
    counts = [len(graph[CLUSTERS][:, level].unique()) for level in range(4)]
    assert all(0.5 <= after / before <= 0.7 for before, after in zip([256, *counts], counts))
    validate(graph)


@pytest.mark.parametrize("nodes", [1, 3])
def test_graphs_without_edges_have_levels_in_which_everything_stays_apart(nodes: int) -> None:
    alone = graph_from_arrays(np.zeros((nodes, 2)), [], [])
    assert with_contracted_levels(alone, 2)[CLUSTERS].tolist() == [[number, number] for number in range(nodes)]


def test_coincident_nodes_are_joined_first() -> None:
    graph = graph_from_arrays([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]], [0, 1, 2], [1, 2, 0])
    assert with_contracted_levels(graph, 1)[CLUSTERS].ravel().tolist() == [0, 1, 0]


WRONG = [
    (with_clusters, grid(2), np.zeros((4, 1)), "float64"),
    (with_clusters, grid(2), np.zeros((3, 1), dtype=int), "4 nodes"),
    (with_clusters, grid(2), np.zeros(4, dtype=int), "shape .4."),
    (with_clusters, grid(2), np.zeros((4, 0), dtype=int), "levels"),
    (with_clusters, grid(2), np.full((4, 1), -1), "numbered from 0"),
    (with_clusters, grid(2), np.full((4, 1), 2**31), "numbered from 0"),
    (with_clusters, grid(2), np.array([[0, 0], [0, 1], [1, 2], [2, 2]]), "a cluster of level 1 lies in two clusters"),
    (with_contracted_levels, cells(30), 0, "0 levels"),
    (with_contracted_levels, with_contracted_levels(cells(30), 1), 1, "already has the field clusters"),
]


@pytest.mark.parametrize(("make", "graph", "levels", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_impossible_levels_are_refused(make: Callable[..., Any], graph: GraphBatch, levels: Any, words: str) -> None:
    refuses(words, make, graph, levels)


@pytest.mark.parametrize("by", ["voxels", "mesh levels"])
def test_former_rules_are_refused_with_what_to_use(by: str) -> None:
    refuses(
        f"by = '{by}' was of version 0.2.0, and is gone",
        CoarseningSettings.parse,
        {"by": by, "levels": 2, "side": None},
    )
    assert CoarseningSettings.parse({"levels": 2, "side": None}).applied(cells(9))[CLUSTERS].shape == (9, 2)


def test_a_field_of_the_same_name_that_holds_no_levels_may_be_anything() -> None:
    graph = cells(8, periodic=True)
    phases = Field(name=CLUSTERS, on="node", classes=3, dtype="int64")
    validate(graph.with_fields({CLUSTERS: torch.arange(8) % 3}, fields=[phases]))
    refuses("only pairs of neighbours have a middle", with_clusters, graph, np.zeros((8, 1), dtype=np.int64))
    far = crystal(0)
    distances = far.get_all_distances(mic=True)
    pair = np.where(np.isin(np.arange(32), [0, distances[0].argmax()]), 0, np.arange(32))
    refuses("only pairs of neighbours have a middle", with_clusters, from_ase(far, cutoff=3.2), pair[:, None])


def crystal(seed: int) -> Atoms:
    """32 atoms of copper, each somewhere else than where it should be."""
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.rattle(0.15, seed=seed)
    return atoms


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_of_a_crystal_are_contracted_to_the_middle_of_their_closest_images(seed: int) -> None:
    """Against loops over all edges, with the closest images as ASE finds them; every image of a cluster is an edge of its own."""
    atoms = crystal(seed)
    graph = with_contracted_levels(from_ase(atoms, cutoff=3.2), 1)
    (level,) = levels_of(graph, 1)
    parent = level.parent.tolist()
    aside = np.zeros((32, 3))  # of every atom from the middle of its pair
    for atom in range(32):
        for other in range(32):
            if other != atom and parent[other] == parent[atom]:
                aside[atom] = -atoms.get_distance(atom, other, mic=True, vector=True) / 2
    vectors = edge_vectors(graph).numpy()
    expected = set()
    for sender, receiver, vector in zip(graph.senders.tolist(), graph.receivers.tolist(), vectors):
        between = vector - aside[sender] + aside[receiver]
        if parent[sender] != parent[receiver] or np.linalg.norm(between) > 1e-9:
            expected.add((parent[receiver], parent[sender], *(between + 1e-12).round(6).tolist()))
    longest = max(np.linalg.norm(edge[2:]) for edge in expected)
    scale = min(1.0, np.linalg.norm(vectors, axis=1).max() / longest)
    ends = zip(level.topology.receivers.tolist(), level.topology.senders.tolist())
    assert level.vectors is not None
    found = [(*pair, *vector) for pair, vector in zip(ends, (level.vectors / scale).tolist())]
    assert len(found) == len(expected)
    ours, theirs = (sorted(np.round([*edges], 5).tolist()) for edges in (found, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_a_supercell_is_contracted_as_its_cell() -> None:
    structures = crystal(2), crystal(2).repeat((1, 2, 1))
    one, two = (with_contracted_levels(from_ase(atoms, cutoff=3.2), 2) for atoms in structures)
    for finer, coarser in zip(levels_of(one, 2), levels_of(two, 2), strict=True):
        assert coarser.topology.num_rows == 2 * finer.topology.num_rows
        assert finer.vectors is not None and coarser.vectors is not None
        lengths, twice = (each.vectors.norm(dim=1).sort().values for each in (finer, coarser))
        torch.testing.assert_close(twice, lengths.repeat_interleave(2))


def test_topologies_of_a_level_know_what_follows_from_their_edges() -> None:
    (level,) = levels_of(with_contracted_levels(cells(30), 1), 1)
    for edges in (level.joining, level.leaving):
        anew = replace(edges)
        assert not anew.index_arrays
        for name in ("row_offsets", "degrees", "by_sender", "sorted_senders", "column_offsets", "receivers_by_sender"):
            assert torch.equal(getattr(edges, name), getattr(anew, name)), name


def test_levels_go_with_the_batch_and_never_outlive_their_clusters() -> None:
    batch = concatenate([with_contracted_levels(cells(20, seed=seed), 2) for seed in range(2)])
    first = levels_of(batch, 2)[0]
    changed = batch.with_fields({"volume": 2 * batch["volume"]})
    assert levels_of(changed, 1)[0] is first
    single = levels_of(batch.to(dtype=torch.float32), 2)
    for one, level in zip(single, levels_of(batch, 2), strict=True):
        assert one.vectors is not None and level.vectors is not None
        assert torch.equal(one.vectors, level.vectors.float()) and torch.equal(one.parent, level.parent)
    apart = batch.with_fields({CLUSTERS: torch.arange(40).unsqueeze(1).expand(40, 2)})
    assert levels_of(apart, 2)[0].topology.num_rows == 40
    moved = replace(batch, positions=batch.positions * torch.tensor([2.0, 1.0]))
    assert not torch.equal(levels_of(moved, 1)[0].vectors, first.vectors)


def encoded(name: str, graph: GraphBatch, width: int) -> torch.Tensor:
    return with_encodings(graph, {name: width})[name]


def adjacency(graph: GraphBatch) -> np.ndarray:
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    matrix[graph.senders.numpy(), graph.receivers.numpy()] = 1.0
    return matrix


@pytest.mark.parametrize("count", [3, 30, 150], ids=["fewer nodes than columns", "dense", "sparse"])
def test_laplacian_columns_are_eigenvectors_in_ascending_order(count: int) -> None:
    graph = cells(count)
    k = 5
    vectors = encoded("laplacian_encoding", graph, k).double().numpy()
    matrix = adjacency(graph)
    root = 1 / np.sqrt(matrix.sum(axis=1))
    laplacian = np.eye(count) - root[:, None] * matrix * root
    values = np.linalg.eigvalsh(laplacian)
    known = min(k, count - 1)
    # float32 storage
    np.testing.assert_allclose(laplacian @ vectors[:, :known], vectors[:, :known] * values[1 : known + 1], atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors[:, :known], axis=0), 1.0, atol=1e-6)
    assert not vectors[:, known:].any()


@pytest.mark.parametrize("count", [30, 150])
def test_signs_are_the_same_on_every_call_and_leave_the_random_state_alone(count: int) -> None:
    graph = cells(count)
    before = torch.get_rng_state()
    first, second = (encoded("laplacian_encoding", graph, 4) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    assert (first.gather(0, first.abs().argmax(dim=0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("periodic", [True, False])
def test_random_walks_return_with_the_probability_of_the_matrix_power(periodic: bool) -> None:
    graph = cells(6, periodic)
    encoding = encoded("random_walk_encoding", graph, 4)
    matrix = adjacency(graph)
    step = matrix / matrix.sum(axis=1, keepdims=True)
    expected = np.stack([np.diag(np.linalg.matrix_power(step, n)) for n in (1, 2, 3, 4)], axis=1)
    np.testing.assert_allclose(encoding, expected, atol=1e-6)


def test_every_graph_of_a_batch_is_encoded_on_its_own() -> None:
    graphs = [cells(5), cells(8)]
    batch = validate(with_encodings(concatenate(graphs), {"random_walk_encoding": 3}))
    alone = torch.cat([encoded("random_walk_encoding", graph, 3) for graph in graphs])
    assert torch.equal(batch["random_walk_encoding"], alone)
    assert set(batch.fields) == {*graphs[0].fields, "random_walk_encoding"}


@pytest.mark.parametrize("name", ENCODINGS)
def test_lone_nodes_have_zeros(name: str) -> None:
    """Encodings of no width and repeated ones are refused."""
    assert encoded(name, graph_from_arrays(np.zeros((1, 2)), [], []), 3).tolist() == [[0.0, 0.0, 0.0]]
    refuses("at least 1", encoded, name, cells(3), -1)
    refuses("already has", encoded, name, with_encodings(cells(3), {name: 1}), 1)


SHAPES = {
    "no two nodes are alike": np.stack([cells(12).senders, cells(12).receivers]),
    "ring": np.stack([np.arange(12), (np.arange(12) + 1) % 12]),
    "chain": np.stack([np.arange(11), np.arange(1, 12)]),
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_encodings_follow_nodes_but_for_eigenvectors_of_graphs_with_a_symmetry(name: str, shape: str) -> None:
    pairs = SHAPES[shape]
    senders, receivers = np.concatenate([pairs, pairs[::-1]], axis=1)
    place = np.random.default_rng(0).permutation(12)  # where each node of the first listing stands in the second
    one, other = (
        encoded(name, graph_from_arrays(np.zeros((12, 2)), *edges), 4)
        for edges in ((senders, receivers), (place[senders], place[receivers]))
    )
    same = torch.allclose(one, other[torch.from_numpy(place)], atol=1e-5)
    assert same == (name == "random_walk_encoding" or shape == "no two nodes are alike")
