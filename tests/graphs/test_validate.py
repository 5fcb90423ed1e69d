"""Validation: what comes in is what was given, and what is wrong is told by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.graphs import Field, GraphBatch, Topology, concatenate, graph_from_arrays, validate
from tests.refusals import refuses

MASS = Field(name="mass", on="node", unit="u")
KIND = Field(name="kind", on="node", classes=3, dtype="int64")
LENGTH = Field(name="length", on="edge", dtype="float64")
PULL = Field(name="pull", on="node", shape=(3,), parity="vector", role="target")
ENERGY = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")


def triangle(**changes: object) -> GraphBatch:
    arguments: dict[str, Any] = {
        "positions": np.eye(3),
        "senders": [0, 1, 2],
        "receivers": [2, 0, 1],
        "fields": [MASS, KIND, LENGTH, ENERGY],
        "nodes": {"mass": [1, 2, 3], "kind": [0, 1, 2]},
        "edges": {"length": [0.2, 0.0, 0.1]},
        "graphs": {"energy": -1.5},
        "name": "triangle",
        **changes,
    }
    return graph_from_arrays(**arguments)


def test_edges_are_sorted_by_receiver_and_fields_follow_in_their_declared_dtype() -> None:
    graph = triangle()
    assert graph.receivers.tolist() == [0, 1, 2]
    assert graph.senders.tolist() == [1, 2, 0]
    assert graph["length"].tolist() == [0.0, 0.1, 0.2]
    dtypes = {"mass": torch.float32, "kind": torch.int64, "length": torch.float64, "energy": torch.float64}
    assert {name: graph[name].dtype for name in graph.fields} == dtypes and graph["energy"].shape == (1,)
    assert validate(graph) is graph


def test_numpy_tensors_and_lists_make_the_same_graph() -> None:
    as_lists = triangle(positions=np.eye(3).tolist())
    as_tensors = triangle(positions=torch.eye(3), senders=torch.tensor([0, 1, 2], dtype=torch.int32))
    assert torch.equal(as_lists.positions, as_tensors.positions)
    assert torch.equal(as_lists.senders, as_tensors.senders)


def test_the_graph_does_not_share_memory_with_the_arrays_it_came_from() -> None:
    positions = np.eye(3)
    graph = triangle(positions=positions)
    positions[:] = 7.0
    assert graph.positions.max() == 1.0


ENDS = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2))))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ENDS)
def test_sorting_is_stable_and_loses_no_edge(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = case
    senders, receivers = [s for s, _ in pairs], [r for _, r in pairs]
    number = Field(name="number", on="edge", classes=100, dtype="int64")
    edges = {"number": np.arange(len(pairs))}
    graph = graph_from_arrays(np.zeros((count, 2)), senders, receivers, fields=[number], edges=edges)
    assert (graph.receivers.diff() >= 0).all()
    order = graph["number"].tolist()
    assert [pairs[i] for i in order] == list(zip(graph.senders.tolist(), graph.receivers.tolist()))
    assert all(a < b for a, b, r, q in zip(order, order[1:], graph.receivers, graph.receivers[1:]) if r == q)


LEGAL: dict[str, Callable[[], GraphBatch]] = {
    "lone node": lambda: graph_from_arrays(np.zeros((1, 3)), [], []),
    "no edges": lambda: graph_from_arrays(np.zeros((4, 2)), [], []),
    "self loop": lambda: graph_from_arrays(np.zeros((1, 2)), [0], [0]),
    "two components": lambda: graph_from_arrays(np.zeros((4, 2)), [0, 1, 2, 3], [1, 0, 3, 2]),
    "no geometry": lambda: graph_from_arrays(None, [0], [1], fields=[MASS], nodes={"mass": [1.0, 2.0]}),
    "periodic box": lambda: triangle(cell=[2.0, 2.0, 2.0], periodic=True),
    "mixed periodicity": lambda: triangle(cell=np.diag([2.0, 2.0, 0.0]), periodic=[True, True, False]),
}


@pytest.mark.parametrize("make", LEGAL.values(), ids=LEGAL)
def test_legal_corners_pass(make: Callable[[], GraphBatch]) -> None:
    assert validate(make()).num_graphs == 1


def test_a_two_dimensional_cell_has_its_area_as_volume() -> None:
    graph = graph_from_arrays(np.zeros((1, 2)), [], [], cell=[[2.0, 0.0], [1.0, 3.0]], periodic=True)
    assert graph.periodic.tolist() == [[True, True, False]]
    assert float(torch.linalg.det(graph.cell[0])) == pytest.approx(6.0)


WRONG = {
    "index too large": ({"senders": [0, 1, 3]}, "senders: node index 3 is out of range"),
    "index negative": ({"receivers": [-1, 0, 1]}, "receivers: node index -1 is out of range"),
    "index not an integer": ({"senders": [0.0, 1.0, 2.0]}, "give integers"),
    "index of two axes": ({"senders": [[0, 1, 2]]}, "one index per edge"),
    "ends of different length": ({"senders": [0, 1]}, "2 senders but 3 receivers"),
    "no nodes": ({"positions": np.zeros((0, 3))}, "has no nodes"),
    "positions of one axis": ({"positions": np.zeros(3)}, "positions: shape"),
    "positions in four dimensions": ({"positions": np.zeros((3, 4))}, "positions: shape"),
    "NaN position": ({"positions": np.full((3, 3), np.nan)}, "positions: nan in row 0"),
    "infinite position": ({"positions": np.diag([1.0, np.inf, 1.0])}, "positions: inf in row 1"),
    "complex positions": ({"positions": np.eye(3) * 1j}, "give real numbers"),
    "ragged positions": ({"positions": [[0, 0, 0], [1, 1]]}, "rectangular"),
    "words": ({"nodes": {"mass": ["a", "b", "c"], "kind": [0, 1, 2]}}, "field mass.*not numbers"),
    "NaN field": ({"nodes": {"mass": [1, np.nan, 2], "kind": [0, 1, 2]}}, "field mass: nan in row 1"),
    "overflow": ({"nodes": {"mass": [1, 1e300, 2], "kind": [0, 1, 2]}}, "field mass: inf in row 1"),
    "too few rows": ({"nodes": {"mass": [1, 2], "kind": [0, 1, 2]}}, "field mass: 2 rows for 3 nodes"),
    "wrong shape": ({"nodes": {"mass": np.ones((3, 2)), "kind": [0, 1, 2]}}, "field mass: shape"),
    "wrong graph shape": ({"graphs": {"energy": [1.0, 2.0]}}, "field energy: 2 rows for 1 graphs"),
    "class too large": ({"nodes": {"mass": [1, 2, 3], "kind": [0, 1, 3]}}, "class 3 is out of range; use 0 to 2"),
    "class negative": ({"nodes": {"mass": [1, 2, 3], "kind": [0, 1, -1]}}, "class -1 is out of range"),
    "class with a comma": ({"nodes": {"mass": [1, 2, 3], "kind": [0.0, 1.0, 2.0]}}, "give integers"),
    "bools for numbers": ({"edges": {"length": [True, False, True]}}, "field length: bool"),
    "undeclared tensor": ({"graphs": {"energy": 1.0, "enthalpy": 2.0}}, "enthalpy without a Field"),
    "missing tensor": ({"edges": {}}, "field length is declared but missing"),
    "declared twice": ({"fields": [MASS, MASS, KIND, LENGTH, ENERGY]}, "declared twice"),
    "shifts of the wrong shape": ({"edge_shifts": np.zeros((3, 2))}, "edge_shifts: shape"),
    "periodic without cell": ({"periodic": True}, "has no cell"),
    "flat cell": ({"periodic": True, "cell": np.ones((3, 3))}, "singular along its periodic axes"),
    "cell of the wrong shape": ({"cell": np.ones((2, 3))}, "cell: shape"),
    "too many flags": ({"periodic": [True] * 4}, "one flag per axis"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        triangle(**changes)
    assert "triangle" in str(caught.value) and "\n" not in str(caught.value)


def test_a_vector_has_as_many_components_as_space_has_dimensions() -> None:
    with pytest.raises(InputError, match="vector of length 3 in 2 dimensions"):
        graph_from_arrays(np.zeros((1, 2)), [], [], fields=[PULL], nodes={"pull": np.zeros((1, 3))})


SEVEN = "topology has 7 senders and 7 receivers for 6 nodes"
BROKEN: list[tuple[Callable[[GraphBatch], dict[str, Any]], str]] = [
    (lambda b: {"node_offsets": torch.tensor([0, 3, 5])}, "node_offsets do not run"),
    (lambda b: {"graphs": {"energy": torch.tensor([1.0, torch.nan]).double()}}, "graph 1, field energy"),
    (lambda b: {"nodes": {**b.nodes, "mass": b["mass"].double()}}, "float64 values but float32 declared"),
    (lambda b: {"nodes": {**b.nodes, "mass": b["mass"][:5]}}, "field mass: shape"),
    (lambda b: {"graphs": {**b.graphs, "gap": torch.zeros(2)}}, "tensor gap on graphs has no Field"),
    (lambda b: {"graphs": {}}, "field energy is declared but no tensor"),
    (lambda b: {"masks": {"gap": torch.ones(2, dtype=torch.bool)}}, "mask gap"),
    (lambda b: {"topology": replace(b.topology, senders=b.senders.int())}, "senders: int32"),
    (lambda b: {"topology": Topology.square(b.senders, b.receivers, 7)}, SEVEN),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_damaged_batch_is_named(changes: Callable[[GraphBatch], dict[str, Any]], message: str) -> None:
    batch = concatenate([triangle(), triangle()])
    refuses(message, validate, replace(batch, **changes(batch)))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_whole_numbers_over_64_bits_do_not_wrap_round(number: int) -> None:
    field = Field(name="load", on="node")
    with pytest.raises(InputError, match=f"{number} is larger than whole numbers of 64 bits"):
        graph_from_arrays(np.zeros((2, 3)), [0], [1], fields=[field], nodes={"load": np.array([1, number], np.uint64)})
