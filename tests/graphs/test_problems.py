"""Every graph of a batch that is not valid is named, and valid ones that are not what their author thinks are counted."""

import re
from collections.abc import Callable
from dataclasses import replace
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
from hydragnn.graphs.levels import CLUSTERS, clusters_field
from hydragnn.graphs.problems import cell_problem, graph_problems

MASS = Field(name="mass", on="node", unit="u", dtype="float64")
KIND = Field(name="kind", on="edge", classes=3, dtype="int64")


def ring(nodes: int) -> GraphBatch:
    own = np.arange(nodes)
    places, ends = np.random.default_rng(nodes).normal(size=(nodes, 3)), (np.roll(own, 1), own)
    values = {"fields": [MASS, KIND], "nodes": {"mass": np.ones(nodes)}, "edges": {"kind": own % 3}}
    box = {"edge_shifts": 9.0 * (own[:, None] == [1, -1, -1]), "cell": [9.0, 9.0, 9.0], "periodic": True}
    return graph_from_arrays(places, *ends, **values, **box)


@pytest.fixture
def batch() -> GraphBatch:
    return concatenate([ring(nodes) for nodes in (4, 3, 5, 6)])


def changed(batch: GraphBatch, name: str, row: int, value: float) -> GraphBatch:
    (batch[name] if name in batch.fields else getattr(batch, name))[row] = value
    return batch


NO_WHOLE = "is no whole number of periodic cell vectors; .*"
CASES = {
    "a sender in the next graph": ("senders", 4, 8, "graph 1, senders: node index 4 is out of range; the graph has 3"),
    "a sender in the graph before": ("senders", 4, 1, "graph 1, senders: node index -3 is out of range"),
    "a sender far away": ("senders", 4, 10**9, "graph 1, senders: node index 999999996 is out of range"),
    "a receiver in the next graph": ("receivers", 6, 7, "graph 1, receivers: node index 3 is out of range"),
    "receivers in disorder": ("receivers", 4, 6, "graph 1: edges are not sorted by receiver"),
    "a position that is NaN": ("positions", 5, torch.nan, "graph 1, positions: nan in row 1 "),
    "a shift that is infinite": ("edge_shifts", 6, torch.inf, "graph 1, edge_shifts: inf in row 2 "),
    "a cell that is NaN": ("cell", 1, torch.nan, "graph 1, cell: nan in row 0 "),
    "a flat periodic cell": ("cell", 1, 0.0, r"graph 1: the cell is singular along its periodic axes \(x, y, z\)"),
    "a shift beside the cell": ("edge_shifts", 6, 4.0, rf"graph 1, .*4, 4\) of edge 2 {NO_WHOLE}\(now x, y, z\)"),
    "an axis that is not periodic": ("periodic", 1, False, rf"graph 1, .*9, 0, 0\) of edge 1 {NO_WHOLE}\(now none\)"),
    "a value that is NaN": ("mass", 4, torch.nan, "graph 1, field mass: nan in row 0 "),
    "a class too large": ("kind", 5, 3, "graph 1, field kind: class 3 is out of range; use 0 to 2"),
    "a negative class": ("kind", 5, -1, "graph 1, field kind: class -1 is out of range"),
}


@pytest.mark.parametrize(("name", "row", "value", "says"), CASES.values(), ids=CASES)
def test_the_graph_with_the_fault_is_named(name: str, row: int, value: float, says: str, batch: GraphBatch) -> None:
    problems = graph_problems(changed(batch, name, row, value))
    assert list(problems) == [1]
    assert re.match(says, problems[1])


TORN = [
    ([[0, 0], [0, 1], [1, 1]], "graph 1: a cluster of level 1 lies in two clusters of level 2"),
    ([[0, 0], [0, 0], [0, 0]], "graph 1: clusters of a periodic graph reach through the boundary"),
    ([[0, 0], [-1, 0], [1, 0]], "graph 1, field clusters: class -1 is out of range"),
]


@pytest.mark.parametrize(("numbers", "says"), TORN)
def test_clusters_that_are_no_levels_name_their_graph(numbers: list[list[int]], says: str, batch: GraphBatch) -> None:
    """Trainings and predictions ask this of every graph that they read, whoever wrote the store."""
    clusters = torch.arange(18).unsqueeze(1).repeat(1, 2)
    levels = batch.with_fields({CLUSTERS: clusters}, fields=[clusters_field(2)])
    assert graph_problems(levels) == {}
    clusters[4:7] = torch.tensor(numbers)
    problems = graph_problems(levels)
    assert list(problems) == [1]
    assert problems[1].startswith(says)
    without = levels.with_fields({CLUSTERS: clusters}, masks={CLUSTERS: torch.tensor([True, False, True, True])})
    assert graph_problems(without) == {}


def test_edges_beyond_the_cutoff_that_made_them_are_problems_of_their_graph(batch: GraphBatch) -> None:
    lengths = edge_vectors(batch).norm(dim=1)
    longest = [float(own.max()) for own in lengths.split(batch.counts("edge").tolist())]
    assert graph_problems(batch, cutoff=max(longest)) == {}
    second = sorted(longest)[-2]
    problems = graph_problems(batch, cutoff=second)
    assert list(problems) == [longest.index(max(longest))]
    assert f"is {max(longest):.4g} long, beyond the cutoff of {second:.12g}" in next(iter(problems.values()))


def test_shifts_of_single_precision_and_along_axes_without_a_cell_vector_are_judged_as_they_are_meant() -> None:
    cell = np.array([[4.1, 0.0, 0.3], [0.2, 3.7, 0.0], [0.0, 0.0, 0.0]])
    images = np.array([[-3, 2, 0], [50, -70, 0]])

    def graph(shifts: np.ndarray) -> GraphBatch:
        box = {"cell": cell, "periodic": [True, True, False]}
        return graph_from_arrays(np.eye(2, 3), [0, 1], [0, 1], edge_shifts=shifts, **box)

    assert graph_problems(graph((images @ cell).astype(np.float32))) == {}
    assert list(graph_problems(graph(images @ cell + [0.0, 0.0, 0.1]))) == [0]


def test_valid_graphs_have_no_problems(batch: GraphBatch) -> None:
    assert graph_problems(batch) == {}
    assert graph_problems(concatenate([graph_from_arrays(np.eye(3), [], []) for _ in range(3)])) == {}


def test_graphs_are_called_by_their_numbers_and_all_of_them(batch: GraphBatch) -> None:
    both = changed(changed(batch, "mass", 0, torch.nan), "positions", 17, torch.inf)
    problems = graph_problems(both, [40, 50, 60, 70])
    assert list(problems) == [0, 3]
    assert problems[0].startswith("graph 40, field mass")
    assert problems[3].startswith("graph 70, positions: inf in row 5")


def test_a_graph_without_nodes_takes_no_neighbour_with_it(batch: GraphBatch) -> None:
    offsets = {name: getattr(batch, name)[[0, 1, 1, 2, 3, 4]] for name in ("node_offsets", "edge_offsets")}
    more = {name: torch.cat([getattr(batch, name), getattr(batch, name)[:1]]) for name in ("cell", "periodic")}
    assert graph_problems(replace(batch, **offsets, **more)) == {1: "graph 1 has no nodes; leave empty graphs out"}


def test_what_a_mask_leaves_out_may_be_anything_unless_it_is_needed(batch: GraphBatch) -> None:
    masked = replace(changed(batch, "mass", 0, torch.nan), masks={"mass": torch.tensor([False, True, True, True])})
    assert graph_problems(masked) == {}
    assert graph_problems(masked, needed=["mass"])[0].startswith("graph 0 has no mass, which the model reads")


def test_sums_that_overflow_are_no_fault(batch: GraphBatch) -> None:
    assert graph_problems(replace(batch, nodes={"mass": torch.full((18,), 1e308, dtype=torch.float64)})) == {}


def test_the_shortcut_for_cells_decides_as_singular_values_do() -> None:
    generator = torch.Generator().manual_seed(0)
    cells = torch.randn(2000, 3, 3, generator=generator, dtype=torch.float64)
    shares = 10.0 ** -(16 * torch.rand(2000, 1, generator=generator, dtype=torch.float64))
    cells[:, 2] = cells[:, 1] + shares * cells[:, 2]
    flags = torch.rand(2000, 3, generator=generator) < 0.8
    lone = graph_from_arrays(np.zeros((1, 3)), [], [])
    batch = replace(concatenate([lone] * 2000), cell=cells, periodic=flags)
    expected = [graph for graph in range(2000) if cell_problem(cells[graph], flags[graph])]
    assert list(graph_problems(batch)) == expected
    assert 200 < len(expected) < 1800


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
