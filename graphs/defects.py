"""Oddities of valid graphs: counts and an example."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.graphs.batch import GraphBatch, pairs_of_graph, volumes
from hydragnn.graphs.field import ATOMIC_NUMBERS

PLACE = 1e-8  # nodes nearer than this part of the extent of their graph lie at one place
BOND = 1.25  # atoms nearer than so many times the sum of their covalent radii are bonded
INTEGERS, REALS = (3.2767, 3.2768, 6.5535, 2.14748365), (3.40282347, 1.79769313)
DIGITS = (9.99, 9.999, 9.9999, 9.99999, 9.96920997, *INTEGERS, *REALS, 1.0, 10.0)
"""Digits of numbers that stand for missing values: -999, those of netCDF, the last of 16, 32 and 64 bits, and 1e20."""
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)
"""Odd numbers that make one of several whole numbers, so that equal rows are found by one sort."""

ADVICE = {
    "no edges": "give edges, or a larger cutoff in the unit of positions",
    "lone nodes": "no message reaches them; compare the cutoff with the unit of positions",
    "bonds without edges": "species and distances suggest bonds between atoms that no path of edges joins; raise the cutoff",
    "several components": "no message goes from one to the other; join them, or make each a graph",
    "parallel edges": "edges with the same ends and image are summed twice; list each once",
    "stress without a volume": "no stress is defined without a periodic axis or with a cell vector of length zero; give the cell, or "
    "take the label away",
    "fill values": "these are far from all other values, and often stand for missing ones; if so, say missing_value for the field in the "
    "build file, and optional = true if it is a target",
    "coincident nodes": "nodes at one place are perhaps one node, as in a mesh whose cells have points of their own; merge them",
}
"""Defects by name, and what to do about each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defect:
    """Number of graphs with a defect, and the first of them."""

    graphs: int
    first: int
    """Number of the first graph that has it."""
    detail: str
    """Finding in that graph."""

    def sentence(self, name: str, among: int, called: str) -> str:
        """Return the defect in a sentence; ``called`` is the first graph.

        >>> Defect(graphs=2, first=7, detail="4 nodes").sentence("lone nodes", 40, "mp-8")
        'lone nodes in 2 of 40 graphs, for example mp-8 (4 nodes): no message reaches them; compare the cutoff with the unit of positions'
        """
        return f"{name} in {self.graphs} of {among} graphs, for example {called} ({self.detail}): {ADVICE[name]}"


Defects = Mapping[str, Defect]  # defects that some graph has, by name


def graph_defects(batch: GraphBatch) -> dict[str, Defect]:
    """Return what is odd about the topology and geometry of valid graphs.

    Found are graphs of several nodes without edges, with nodes that no edge touches, with components that no path joins (of
    atoms only where species and distances suggest a bond between them), with two edges of the same ends, image and kinds,
    with nodes at one place, with a stress but no volume, and with values that stand for missing ones.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> graph_defects(graph_from_arrays([[0.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0], [1]))["coincident nodes"].detail
    '3 nodes at 2 places'
    """
    defects: dict[str, Defect] = {}
    for name, graphs, detail in _found(batch):
        if len(graphs):
            defects[name] = Defect(graphs=len(graphs), first=int(graphs[0]), detail=detail(int(graphs[0])))
    return {name: defects[name] for name in ADVICE if name in defects}


def joined_defects(parts: Iterable[tuple[Defects, int]]) -> dict[str, Defect]:
    """Return the defects of consecutive parts, with their first graphs' numbers."""
    total: dict[str, Defect] = {}
    for defects, start in parts:
        for name, defect in defects.items():
            earlier = total.get(name)
            shifted = replace(defect, first=start + defect.first)
            total[name] = shifted if earlier is None else replace(earlier, graphs=earlier.graphs + shifted.graphs)
    return {name: total[name] for name in ADVICE if name in total}


Found = tuple[str, Int64[ndarray, " graphs"], Callable[[int], str]]
"""A defect, the graphs that have it in ascending order, and what one of them has."""


def _found(batch: GraphBatch) -> Iterator[Found]:
    nodes, edges = batch.counts("node").numpy(), batch.counts("edge").numpy()
    offsets = batch.node_offsets.numpy()
    yield "no edges", np.flatnonzero((nodes > 1) & (edges == 0)), lambda graph: f"{nodes[graph]} nodes"
    labels = _component_labels(batch)
    degrees = np.bincount(batch.senders.numpy(), minlength=batch.num_nodes)
    lone = degrees + np.bincount(batch.receivers.numpy(), minlength=batch.num_nodes) == 0
    owner = batch.owner("node").numpy()
    lone_nodes = np.bincount(owner[lone], minlength=len(nodes))
    with_edges = np.flatnonzero((lone_nodes > 0) & (edges > 0))
    yield "lone nodes", with_edges, lambda graph: f"{lone_nodes[graph]} of {nodes[graph]} nodes"
    parts = np.bincount(owner[np.unique(labels, return_index=True)[1]], minlength=len(nodes))
    if ATOMIC_NUMBERS in batch.nodes and batch.dim == 3:
        cut = [_has_cut_bond(batch, graph, labels, offsets) for graph in np.flatnonzero(parts > 1).tolist()]
        graphs = np.flatnonzero(parts > 1)[np.array(cut, dtype=np.bool_)]
        yield "bonds without edges", graphs, lambda graph: f"{parts[graph]} components"
    else:
        graphs = np.flatnonzero(parts - lone_nodes > 1)
        yield "several components", graphs, lambda graph: f"{parts[graph]} components of {nodes[graph]} nodes"
    joint = _with_common_ends(batch)
    twice = _repeated(edge_codes(batch, joint), batch.owner("edge").numpy()[joint], len(nodes))
    yield "parallel edges", np.flatnonzero(twice), lambda graph: f"{twice[graph]} of {edges[graph]} edges"
    flat = (volumes(batch) == 0).numpy()
    for name, field in batch.fields.items():
        if field.on == "graph" and field.shape == (3, 3) and "stress" in name.lower():
            graphs = np.flatnonzero(flat & batch.present(name).numpy())
            yield "stress without a volume", graphs, partial("{}".format, name)
    fills = fill_values(batch)
    yield "fill values", np.array(sorted(fills), dtype=np.int64), lambda graph: ", ".join(fills[graph])
    if batch.dim:
        same = _repeated(_place_codes(batch, offsets), owner, len(nodes))
        places = nodes - same
        yield "coincident nodes", np.flatnonzero(same), lambda graph: f"{nodes[graph]} nodes at {places[graph]} places"


def fill_values(batch: GraphBatch) -> dict[int, list[str]]:
    """Return values that probably stand for missing ones, by graph.

    They have such digits, and the others lie farther from them than from each other.
    """
    found: dict[int, list[str]] = {}
    for name, field in batch.fields.items():
        values = batch[name].numpy().reshape(-1, field.width)
        if (
            field.classes
            or not len(values)
            or not _has_digits(np.stack([np.fmin.reduce(values), np.fmax.reduce(values)])).any()
        ):
            continue
        others = np.where(marks := _has_digits(values), np.nan, values.astype(np.float64))
        low, high = np.fmin.reduce(others), np.fmax.reduce(others)
        marks &= (np.abs(values) < 1e15) | (np.abs(values) > 1e9 * np.maximum(-low, high))  # no powers of ten
        rows, columns = np.nonzero(marks & ((values < 2 * low - high) | (values > 2 * high - low)))
        owner, example = batch.owner(field.on).numpy()[rows], values[rows, columns]
        graphs, first, counts = np.unique(owner, return_index=True, return_counts=True)
        for graph, value, count in zip(graphs.tolist(), example[first].tolist(), counts.tolist()):
            found.setdefault(graph, []).append(f"{count} x {value:.6g} in {name}")
    return found


def _has_digits(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return True for large numbers with the digits of fill values."""
    signed = values.astype(np.float64)
    size = np.abs(signed)
    digits = size / 10.0 ** np.floor(np.log10(np.maximum(size, 1.0)))
    known = [np.isclose(digits, one, rtol=2e-7, atol=0) & (size > (1e15 if one in (1, 10) else 99)) for one in DIGITS]
    return np.any(known, axis=0) & ((signed < 0) | (size > 900))


def _component_labels(batch: GraphBatch) -> NDArray[np.int32]:
    """Return every node's component, in ascending order of first nodes."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    senders, offsets = batch.senders.numpy().astype(np.int32), batch.topology.row_offsets.numpy().astype(np.int32)
    weights = np.ones(len(senders), dtype=np.int8)
    matrix = csr_matrix((weights, senders, offsets), shape=(batch.num_nodes, batch.num_nodes))
    labels: NDArray[np.int32] = connected_components(matrix, directed=False)[1]
    return labels


def _has_cut_bond(batch: GraphBatch, graph: int, labels: NDArray[np.int32], offsets: NDArray[np.int64]) -> bool:
    """Return True where different components hold atoms at bonding distance."""
    from ase.data import covalent_radii

    own = slice(int(offsets[graph]), int(offsets[graph + 1]))
    radii = covalent_radii[np.minimum(batch.nodes[ATOMIC_NUMBERS][own].numpy(), len(covalent_radii) - 1)]
    first, second, _, lengths = pairs_of_graph(batch, graph, BOND * 2 * float(radii.max()))
    bonded = lengths < BOND * (radii[first] + radii[second])
    return bool((labels[own][first[bonded]] != labels[own][second[bonded]]).any())


def _with_common_ends(batch: GraphBatch) -> NDArray[np.int64] | slice:
    """Return edges with the ends of a neighbour; all if unsorted."""
    pairs = batch.receivers.numpy() * batch.num_nodes + batch.senders.numpy()
    if (pairs[1:] < pairs[:-1]).any():
        return slice(None)
    same = np.zeros(len(pairs) + 1, dtype=np.bool_)  # between an edge and the one before it
    same[1:-1] = pairs[1:] == pairs[:-1]
    return np.flatnonzero(same[1:] | same[:-1])


def edge_codes(batch: GraphBatch, edges: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.uint64]:
    """One number per edge, equal where ends, image and kinds are."""
    codes = (batch.receivers.numpy()[edges] * batch.num_nodes + batch.senders.numpy()[edges]).view(np.uint64)
    least, most = (float(end) for end in batch.edge_shifts.aminmax()) if batch.dim and len(codes) else (0.0, 0.0)
    if least or most:
        steps = np.rint(batch.edge_shifts.numpy()[edges] * (2**40 / max(-least, most))).astype(np.int64)
        codes = codes * _MIX[3] + (steps.view(np.uint64) * _MIX[: batch.dim]).sum(axis=1)
    for field in batch.fields.values():
        if field.on == "edge" and field.classes:
            kinds = batch[field.name].numpy()[edges].reshape(len(codes), math.prod(field.shape))
            for column in kinds.T:
                codes = codes * _MIX[0] + column.astype(np.uint64)
    return codes


def _place_codes(batch: GraphBatch, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One number per node, equal where graph and place are."""
    positions, owner = batch.positions.numpy(), batch.owner("node").numpy()
    least = np.minimum.reduceat(positions, offsets[:-1])
    extent = (np.maximum.reduceat(positions, offsets[:-1]) - least).max(axis=1)
    step = np.where(extent > 0, extent * PLACE, 1.0)[owner, None]
    steps = np.rint((positions - least[owner]) / step).astype(np.int64)
    return (steps.view(np.uint64) * _MIX[: batch.dim]).sum(axis=1) + owner.astype(np.uint64) * _MIX[3]


def _repeated(codes: NDArray[np.uint64], owner: NDArray[np.int64], graphs: int) -> NDArray[np.int64]:
    """Return each graph's number of items that repeat an earlier one."""
    ascending = np.sort(codes)
    if not (ascending[1:] == ascending[:-1]).any():
        return np.zeros(graphs, dtype=np.int64)
    repeats = np.ones(len(codes), dtype=np.bool_)
    repeats[np.unique(codes, return_index=True)[1]] = False
    return np.bincount(owner[repeats], minlength=graphs)
