"""Valid graphs that are not what their author thinks are counted, and one is named."""

from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.neighborlist import neighbor_list

from hydragnn.graphs import Field, GraphBatch, concatenate, edge_vectors, from_ase, graph_from_arrays
from hydragnn.graphs.defects import graph_defects, joined_defects
from hydragnn.graphs.problems import graph_problems

KIND = Field(name="kind", on="edge", classes=2, dtype="int64")
AREA = Field(name="area", on="edge")
FLOW = Field(name="flow", on="edge", role="target")


def random_graph(seed: int) -> GraphBatch:
    """Few edges among many nodes, some of them twice, some nodes at one place."""
    rng = np.random.default_rng(seed)
    nodes, edges = int(rng.integers(2, 30)), int(rng.integers(0, 30))
    positions = rng.integers(0, 6, (nodes, 2)).astype(float)
    shifts = rng.integers(-1, 2, (edges, 2)) * 6.0
    ends = rng.integers(0, nodes, (2, edges))
    return graph_from_arrays(positions, *ends, edge_shifts=shifts, cell=[6.0, 6.0], periodic=True)


def test_counts_are_those_of_networkx_and_of_sets() -> None:
    graphs = [random_graph(seed) for seed in range(60)]
    expected: dict[str, list[int]] = {}
    for number, graph in enumerate(graphs):
        pairs = list(zip(graph.senders.tolist(), graph.receivers.tolist()))
        net = networkx.MultiGraph(pairs)
        net.add_nodes_from(range(graph.num_nodes))
        parts = list(networkx.connected_components(net))
        lone = [node for node in net if net.degree(node) == 0]
        images = {(*pair, *shift) for pair, shift in zip(pairs, graph.edge_shifts.tolist())}
        places = {tuple(place) for place in graph.positions.tolist()}
        has = {
            "no edges": not pairs,
            "lone nodes": bool(pairs) and bool(lone),
            "several components": len(parts) - len(lone) > 1,
            "parallel edges": len(images) < len(pairs),
            "coincident nodes": len(places) < graph.num_nodes,
        }
        for name in (name for name, there in has.items() if there):
            expected.setdefault(name, []).append(number)
    whole = graph_defects(concatenate(graphs))
    assert {name: (one.graphs, one.first) for name, one in whole.items()} == {
        name: (len(numbers), numbers[0]) for name, numbers in expected.items()
    }
    assert set(expected) == {"no edges", "lone nodes", "several components", "parallel edges", "coincident nodes"}
    parts = [(graph_defects(concatenate(graphs[start : start + 7])), start) for start in range(0, 60, 7)]
    assert joined_defects(parts) == whole


WATER, KINDS = molecule("H2O"), {"fields": [KIND], "edges": {"kind": [0, 1, 0, 1]}}
ORDINARY: dict[str, Callable[[], GraphBatch]] = {
    "crystal": lambda: from_ase(bulk("Cu", cubic=True), 3.0),
    "one atom per cell": lambda: from_ase(bulk("Fe"), 4.0),
    "molecule": lambda: from_ase(molecule("CH3CH2OH"), 5.0),
    "lone atom": lambda: from_ase(Atoms("Cu"), 5.0),
    "slab": lambda: from_ase(fcc111("Cu", (2, 2, 3), vacuum=8.0), 3.0),
    "two molecules far apart": lambda: from_ase(WATER + Atoms(WATER.numbers, WATER.positions + 20), 4.0),
    "relations": lambda: graph_from_arrays(np.eye(2), [0, 0, 1, 1], [1, 1, 0, 0], **KINDS),
}


@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_graphs_have_no_defects(case: str) -> None:
    assert graph_defects(ORDINARY[case]()) == {}


def test_bonds_that_the_cutoff_cuts_are_seen_and_those_of_other_molecules_are_not_expected() -> None:
    ethanol = from_ase(molecule("CH3CH2OH"), 1.2)
    bonds = neighbor_list("d", molecule("CH3CH2OH"), 1.6)
    assert bonds.max() > 1.4  # C-C and C-O, which 1.2 cuts
    assert list(graph_defects(ethanol)) == ["bonds without edges"]
    in_nanometres = from_ase(bulk("Cu", cubic=True), 0.5)
    assert list(graph_defects(in_nanometres)) == ["no edges", "bonds without edges"]


def test_atoms_of_a_trajectory_that_was_never_wrapped_keep_their_digits() -> None:
    near = bulk("Cu", cubic=True)
    near.rattle(0.1, seed=0)
    far = near.copy()
    far.positions += np.array([[1000, -2000, 0], [0, 0, 3000], [0, 0, 0], [-5000, 1, 1]]) @ near.cell.array
    i, j, vectors = neighbor_list("ijD", near, 3.6)
    graph = from_ase(far, 3.6).to(dtype=torch.float32)
    ours = sorted(zip(graph.receivers.tolist(), graph.senders.tolist(), *edge_vectors(graph).T.tolist()))
    np.testing.assert_allclose(ours, sorted(zip(i, j, *vectors.T)), atol=2e-6)
    assert graph_problems(graph) == {}


def contact(flow: list[float], area: list[float], **more: Any) -> GraphBatch:
    return graph_from_arrays(np.eye(2), [0, 0], [1, 1], fields=[AREA, FLOW], edges={"area": area, "flow": flow}, **more)


def test_edges_that_no_model_can_tell_apart_may_not_have_different_targets() -> None:
    assert graph_problems(contact([1.0, 1.0], [2.0, 2.0])) == {}
    assert graph_problems(contact([1.0, -1.0], [2.0, 3.0])) == {}
    apart = contact([1.0, -1.0], [2.0, 2.0], edge_shifts=[[0, 0], [4, 0]], cell=[4.0, 4.0], periodic=True)
    assert graph_problems(apart) == {}
    both = concatenate([contact([1.0, 1.0], [2.0, 2.0]), contact([1.0, -1.0], [2.0, 2.0])])
    problems = graph_problems(both)
    assert list(problems) == [1]
    assert problems[1].startswith("graph 1: edges 0 and 1 have the same ends, image and inputs, and different flow")


def test_atoms_at_one_place_are_refused_and_nodes_of_meshes_are_not() -> None:
    numbers = Field(name="atomic_numbers", on="node", classes=119, dtype="int64")
    points, ends = [[0.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0]], ([0, 1, 1, 2], [1, 0, 2, 1])
    mesh = graph_from_arrays(points, *ends)
    atoms = graph_from_arrays(points, *ends, fields=[numbers], nodes={"atomic_numbers": [1, 1, 1]})
    assert graph_problems(mesh) == {}
    assert graph_problems(concatenate([mesh.with_fields({}), mesh])) == {}
    assert graph_problems(atoms) == {0: "graph 0: atoms 1 and 2 (H-H) are 0 apart; remove the duplicate"}
    assert graph_defects(mesh)["coincident nodes"].detail == "3 nodes at 2 places"
