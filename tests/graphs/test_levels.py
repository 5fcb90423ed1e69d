"""Levels of graphs: nested clusters by voxels, by contraction and by hand, and what cannot be one."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.datasets import CoarseningSettings
from hydragnn.graphs import (
    CLUSTERS,
    Field,
    GraphBatch,
    concatenate,
    from_ase,
    from_voronoi,
    graph_from_arrays,
    unbatch,
    validate,
    with_clusters,
    with_contracted_levels,
    with_mesh_levels,
    with_voxel_levels,
)
from hydragnn.graphs.batch import edge_vectors
from hydragnn.graphs.levels import levels_of


def cells(count: int, periodic: bool = False) -> GraphBatch:
    return from_voronoi(np.random.default_rng(count).random((count, 2)), [1.0, 1.0], periodic)


def grid(side: int) -> GraphBatch:
    """Unit squares, joined along their sides."""
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side), ordering="sorted")
    here, there = np.array(graph.edges).T
    points = np.stack(np.divmod(np.arange(side * side), side), axis=1).astype(float)
    return graph_from_arrays(points, np.concatenate([here, there]), np.concatenate([there, here]))


def without_positions(graph: GraphBatch) -> GraphBatch:
    return graph_from_arrays(np.zeros((graph.num_nodes, 0)), graph.senders, graph.receivers)


def sizes(graph: GraphBatch, level: int) -> list[int]:
    return sorted(torch.bincount(graph[CLUSTERS][:, level]).tolist())


def test_voxels_join_squares_of_a_grid_and_squares_of_squares() -> None:
    graph = with_voxel_levels(grid(8), 3)  # the side is twice the length of the edges
    assert [sizes(graph, level) for level in range(3)] == [[4] * 16, [16] * 4, [64]]
    first = graph[CLUSTERS][:, 0].reshape(8, 8)
    assert (first[::2, ::2] == first[1::2, 1::2]).all()


@pytest.mark.parametrize("side", [0.1, 0.25, 3.0])
def test_no_voxel_is_wider_than_its_side(side: float) -> None:
    graph = with_voxel_levels(cells(50), 2, side=side)
    for level in range(2):
        for cluster in graph[CLUSTERS][:, level].unique():
            points = graph.positions[graph[CLUSTERS][:, level] == cluster]
            assert (points.amax(0) - points.amin(0)).max() <= side * 2**level * (1 + 1e-9)


def test_voxels_do_not_depend_on_where_a_graph_is_nor_on_what_is_beside_it() -> None:
    both = concatenate([grid(6), cells(30)])
    moved = with_voxel_levels(
        graph_from_arrays(grid(6).positions + 1e3 * torch.rand(2), grid(6).senders, grid(6).receivers), 2
    )
    expected = [with_voxel_levels(graph, 2)[CLUSTERS] for graph in unbatch(both)]
    assert torch.equal(with_voxel_levels(both, 2)[CLUSTERS], torch.cat(expected))
    assert torch.equal(moved[CLUSTERS], expected[0])


@pytest.mark.parametrize(
    "graph",
    [cells(60), without_positions(cells(60)), grid(9), cells(60, periodic=True)],
    ids=["cells", "contacts", "grid", "periodic"],
)
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


@pytest.mark.parametrize("graph", [cells(60), grid(9), without_positions(cells(60))], ids=["cells", "grid", "no place"])
def test_mesh_levels_keep_as_many_nodes_as_can_be_without_neighbours(graph: GraphBatch) -> None:
    """Of every cluster one node is kept, all others are its neighbours, and no two that are kept are neighbours."""
    numbers = with_mesh_levels(graph, 1)[CLUSTERS][:, 0].tolist()
    mesh = nx.Graph(zip(graph.senders.tolist(), graph.receivers.tolist()))
    members = [[node for node, own in enumerate(numbers) if own == cluster] for cluster in sorted(set(numbers))]
    kept: set[int] = set()
    for node in range(graph.num_nodes):  # in the order of the nodes: who is free is kept
        if not kept & set(mesh[node]):
            kept.add(node)
    assert [len(kept & set(nodes)) for nodes in members] == [1] * len(kept)
    for nodes in members:
        (middle,) = kept & set(nodes)
        for node in set(nodes) - {middle}:
            lengths = {
                other: float((graph.positions[node] - graph.positions[other]).norm())
                for other in kept & set(mesh[node])
            }
            assert lengths[middle] == pytest.approx(min(lengths.values()))


def test_mesh_levels_of_triangles_have_about_a_quarter_of_the_nodes() -> None:
    graph = with_mesh_levels(cells(400), 3)
    counts = [400, *(len(sizes(graph, level)) for level in range(3))]
    assert all(3 <= finer / coarser <= 6 for finer, coarser in pairwise(counts))
    both = with_mesh_levels(concatenate([cells(30), cells(400)]), 3)
    assert torch.equal(unbatch(both)[1][CLUSTERS], graph[CLUSTERS])
    assert torch.equal(CoarseningSettings(by="mesh levels", levels=3).applied(cells(400))[CLUSTERS], graph[CLUSTERS])


@pytest.mark.parametrize("nodes", [1, 3])
def test_graphs_without_edges_have_levels_in_which_everything_stays_apart(nodes: int) -> None:
    alone = graph_from_arrays(np.zeros((nodes, 2)), [], [])
    for made in (with_voxel_levels(alone, 2), with_contracted_levels(alone, 2), with_mesh_levels(alone, 2)):
        assert made[CLUSTERS].tolist() == [[number, number] for number in range(nodes)]


def test_coincident_nodes_share_a_voxel_and_are_joined_first() -> None:
    graph = graph_from_arrays([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]], [0, 1, 2], [1, 2, 0])
    assert with_voxel_levels(graph, 1, side=1.0)[CLUSTERS].ravel().tolist() == [0, 1, 0]
    assert with_contracted_levels(graph, 1)[CLUSTERS].ravel().tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "clusters, words",
    [
        (np.zeros((4, 1)), "float64"),
        (np.zeros((3, 1), dtype=int), "4 nodes"),
        (np.zeros(4, dtype=int), "shape [4]"),
        (np.zeros((4, 0), dtype=int), "levels"),
        (np.full((4, 1), -1), "numbered from 0"),
        (np.full((4, 1), 2**31), "numbered from 0"),
        (np.array([[0, 0], [0, 1], [1, 2], [2, 2]]), "a cluster of level 1 lies in two clusters of level 2"),
    ],
)
def test_clusters_that_are_none_are_refused(clusters: np.ndarray, words: str) -> None:
    with pytest.raises(InputError) as caught:
        with_clusters(grid(2), clusters)
    assert words in str(caught.value)


def test_levels_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(InputError, match="make its levels by contraction"):
        with_voxel_levels(cells(30, periodic=True), 1)
    with pytest.raises(InputError, match="only pairs of neighbours have a middle"):
        with_mesh_levels(cells(30, periodic=True), 1)
    with pytest.raises(InputError, match="voxels need positions"):
        with_voxel_levels(without_positions(cells(30)), 1)
    with pytest.raises(InputError, match="give a positive length"):
        with_voxel_levels(cells(30), 1, side=0.0)
    with pytest.raises(InputError, match="0 levels"):
        with_contracted_levels(cells(30), 0)
    with pytest.raises(InputError, match="already has the field clusters"):
        with_voxel_levels(with_voxel_levels(cells(30), 1), 1)


def test_a_field_of_the_same_name_that_holds_no_levels_may_be_anything() -> None:
    graph = cells(8, periodic=True)
    phases = Field(name=CLUSTERS, on="node", classes=3, dtype="int64")
    validate(graph.with_fields({CLUSTERS: torch.arange(8) % 3}, fields=[phases]))
    with pytest.raises(InputError, match="only pairs of neighbours have a middle"):
        with_clusters(graph, np.zeros((8, 1), dtype=np.int64))
    far = crystal(0)
    distances = far.get_all_distances(mic=True)
    pair = np.where(np.isin(np.arange(32), [0, distances[0].argmax()]), 0, np.arange(32))
    with pytest.raises(InputError, match="only pairs of neighbours have a middle"):
        with_clusters(from_ase(far, cutoff=3.2), pair[:, None])


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
    np.testing.assert_allclose(
        sorted(np.round(found, 5).tolist()), sorted(np.round([*expected], 5).tolist()), atol=2e-5
    )


def test_a_supercell_is_contracted_as_its_cell() -> None:
    one, two = (
        with_contracted_levels(from_ase(atoms, cutoff=3.2), 2) for atoms in (crystal(2), crystal(2).repeat((1, 2, 1)))
    )
    for finer, coarser in zip(levels_of(one, 2), levels_of(two, 2), strict=True):
        assert coarser.topology.num_rows == 2 * finer.topology.num_rows
        assert finer.vectors is not None and coarser.vectors is not None
        lengths, twice = (each.vectors.norm(dim=1).sort().values for each in (finer, coarser))
        torch.testing.assert_close(twice, lengths.repeat_interleave(2))
