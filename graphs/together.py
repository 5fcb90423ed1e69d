"""Graphs of many structures at once, as ``from_ase`` makes each."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms
from jaxtyping import Bool, Float, Int64
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.atomic import ATOMIC_NUMBERS_FIELD, CLOSEST, REACH, labels_of, neighbour_list
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, is_labelled
from hydragnn.graphs.problems import cell_problem
from hydragnn.graphs.search import FARTHEST, completed_cell
from hydragnn.graphs.topology import Topology
from hydragnn.graphs.validate import TURNS, check_axes, field_values, into_cell

SMALL = 64
"""Atoms of a structure without periodic axes up to which all pairs are looked at, which is faster than any search."""

PAIRS_AT_ONCE = 2**18  # pairs whose distances are in memory at once
Edges = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Senders and receivers inside their graph, and shifts."""


def from_ase_together(
    structures: Sequence[Atoms],
    cutoff: float,
    *,
    fields: Iterable[Field] = (),
    keys: Mapping[str, str] | None = None,
    optional: Iterable[str] = (),
    max_neighbours: int | None = None,
) -> GraphBatch | None:
    """Return the graphs of structures as one batch, without texts.

    The arguments are those of ``from_ase``, and so is every bit. None where a structure is wrong or out of the ordinary:
    ``from_ase`` says what, or makes its graph.
    """
    try:
        return _together(structures, cutoff, tuple(fields), keys or {}, set(optional), max_neighbours)
    except InputError:
        return None


def _together(
    structures: Sequence[Atoms],
    cutoff: float,
    fields: Sequence[Field],
    keys: Mapping[str, str],
    optional: Collection[str],
    max_neighbours: int | None,
) -> GraphBatch | None:
    counts = np.array([len(atoms) for atoms in structures], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    positions = np.concatenate([np.asarray(atoms.positions, dtype=np.float64) for atoms in structures])
    cells = np.stack([np.asarray(atoms.cell.array, dtype=np.float64) for atoms in structures])
    periodic = np.stack([np.asarray(atoms.pbc, dtype=bool) for atoms in structures])
    clear = cutoff > 0 and counts.all() and np.isfinite(positions).all() and np.isfinite(cells).all()
    if not clear:
        return None
    edges = _edges(positions, offsets, cells, periodic, cutoff, max_neighbours)
    columns = _columns(structures, counts, fields, keys, optional)
    if edges is None or columns is None:
        return None
    senders, receivers, shifts = (np.concatenate(column) for column in zip(*edges))
    edge_counts = [len(one[0]) for one in edges]
    base = offsets[:-1].repeat(edge_counts)
    batch = GraphBatch(
        positions=torch.from_numpy(positions),
        topology=Topology.square(torch.from_numpy(senders + base), torch.from_numpy(receivers + base), len(positions)),
        edge_shifts=torch.from_numpy(shifts),
        cell=torch.from_numpy(cells),
        periodic=torch.from_numpy(periodic),
        node_offsets=torch.from_numpy(offsets),
        edge_offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(edge_counts, dtype=np.int64)])),
        **columns,
    )
    check_axes(batch, "structure")
    return batch


def _edges(
    positions: Float[ndarray, "nodes 3"],
    offsets: Int64[ndarray, " graphs_plus_one"],
    cells: Float[ndarray, "graphs 3 3"],
    periodic: Bool[ndarray, "graphs 3"],
    cutoff: float,
    max_neighbours: int | None,
) -> list[Edges] | None:
    """Return the edges of every structure; None in doubt.

    Positions that are far away are wrapped in place.
    """
    counts = np.diff(offsets)
    edges = dict[int, Edges]()
    if max_neighbours is None and 0.1 <= cutoff <= 1e3:
        for graphs in _sizes(counts, periodic):
            found = _open_pairs(positions[offsets[graphs, None] + np.arange(counts[graphs[0]])], cutoff)
            if found is None:
                return None
            edges.update(zip(graphs.tolist(), found))
    for graph in range(len(counts)):
        if graph not in edges:
            own = slice(offsets[graph], offsets[graph + 1])
            places, cell, axes = positions[own], cells[graph], periodic[graph]
            if cell_problem(torch.from_numpy(cell), torch.from_numpy(axes)):
                return None
            completed = completed_cell(cell, axes, "structure")
            senders, receivers, images = neighbour_list(places, completed, axes, cutoff, max_neighbours)
            shifts = np.asarray(images @ completed, dtype=np.float64)
            if axes.any() and np.abs(places).max() >= TURNS * np.abs(cell).max():
                moved = into_cell(*map(torch.from_numpy, (places.copy(), senders, receivers, shifts, cell, axes)))
                positions[own], shifts = (tensor.numpy() for tensor in moved)
            edges[graph] = senders, receivers, shifts
    return [edges[graph] for graph in range(len(counts))]


def _columns(
    structures: Sequence[Atoms],
    counts: Int64[ndarray, " graphs"],
    fields: Sequence[Field],
    keys: Mapping[str, str],
    optional: Collection[str],
) -> dict[str, Any] | None:
    """Return fields of a batch with values and masks; None in doubt."""
    columns = {
        ATOMIC_NUMBERS: (ATOMIC_NUMBERS_FIELD, {k: np.asarray(atoms.numbers) for k, atoms in enumerate(structures)})
    }
    for graph, atoms in enumerate(structures):
        for field, value in labels_of(atoms, fields, keys, optional, "structure"):
            columns.setdefault(field.name, (field, {}))[1][graph] = value
    tensors: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    masks = {}
    for name, (field, values) in columns.items():
        tensor = _joined(field, values, counts, name in optional)
        if tensor is None:
            return None
        tensors[field.on][name] = tensor
        if len(values) < len(structures) or not bool(is_labelled(tensor, field).all()):
            masks[name] = torch.tensor([graph in values for graph in range(len(structures))])
    own = {name: field for name, (field, _) in columns.items()}
    return {"fields": own, "nodes": tensors["node"], "graphs": tensors["graph"], "masks": masks}


def _sizes(counts: Int64[ndarray, " graphs"], periodic: Bool[ndarray, "graphs 3"]) -> Iterator[NDArray[np.int64]]:
    """Yield small structures without periodic axes, grouped by number of atoms."""
    small = np.flatnonzero((counts <= SMALL) & ~periodic.any(axis=1))
    for count in np.unique(counts[small]).tolist():
        graphs = small[counts[small] == count]
        step = max(1, PAIRS_AT_ONCE // count**2)
        yield from (graphs[first : first + step] for first in range(0, len(graphs), step))


def _open_pairs(positions: Float[ndarray, "graphs nodes 3"], cutoff: float) -> list[Edges] | None:
    """Return sorted edges of structures of one size; None in doubt."""
    graphs, nodes, _ = positions.shape
    if np.abs(positions).max() > FARTHEST * cutoff * REACH:
        return None
    squares = np.zeros((graphs, nodes, nodes))
    for axis in range(3):
        between = positions[:, None, :, axis] - positions[:, :, None, axis]  # [graphs, receivers, senders]
        squares += between * between
    squares[:, np.arange(nodes), np.arange(nodes)] = np.inf
    if squares.min() < 2 * min(CLOSEST, 1e-3 * cutoff) ** 2:
        return None
    graph, receivers, senders = np.nonzero(squares < (cutoff * REACH) ** 2)
    stops = np.cumsum(np.bincount(graph, minlength=graphs)).tolist()
    shifts = np.zeros((len(graph), 3))
    return [(senders[a:b], receivers[a:b], shifts[a:b]) for a, b in zip([0, *stops], stops)]


def _joined(
    field: Field, values: Mapping[int, Any], counts: Int64[ndarray, " graphs"], optional: bool
) -> Tensor | None:
    """Return a field's values of all graphs; None or InputError in doubt."""
    items = counts if field.on == "node" else np.ones_like(counts)
    shapes = [(count, *field.shape) for count in items.tolist()]
    arrays = {graph: np.asarray(value) for graph, value in values.items()}
    own = [array[None] if field.on == "graph" and array.shape == field.shape else array for array in arrays.values()]
    if len({array.dtype for array in own}) > 1 or [shapes[graph] for graph in arrays] != [array.shape for array in own]:
        return None
    rows = [np.zeros(shape, dtype=own[0].dtype) for shape in shapes]
    for graph, array in zip(arrays, own):
        rows[graph] = array
    return field_values(np.concatenate(rows), field, int(items.sum()), "structure", optional)
