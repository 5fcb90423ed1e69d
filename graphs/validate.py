"""Validation of arrays from outside and of whole batches."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS, MISSING_CLASS, Field, Location, is_labelled
from hydragnn.graphs.problems import cell_problem, field_problems, graph_problems, not_finite
from hydragnn.graphs.topology import Topology

ArrayLike = np.ndarray | Tensor | Sequence[Any] | float | int

TAKEN: dict[str, np.dtype[Any]] = {"g": np.dtype(np.float64), "G": np.dtype(np.complex128)}
"""Types in place of long doubles, which torch does not have."""

AGREES = 1e-3  # relative difference between lengths of one edge, since single precision and units in tables round
TURNS = 10
"""Nodes of a periodic graph are brought into its cell where one is so many times farther from the origin than the longest cell vector."""


def graph_from_arrays(
    positions: ArrayLike | None,
    senders: ArrayLike,
    receivers: ArrayLike,
    *,
    fields: Iterable[Field] = (),
    nodes: Mapping[str, Any] | None = None,
    edges: Mapping[str, Any] | None = None,
    graphs: Mapping[str, Any] | None = None,
    edge_shifts: ArrayLike | None = None,
    cell: ArrayLike | None = None,
    periodic: bool | Sequence[bool] | np.ndarray | Tensor | None = None,
    optional: Collection[str] = (),
    name: str = "graph",
) -> GraphBatch:
    """Return one checked graph from numpy arrays, tensors or lists.

    ``positions`` is [nodes, 2 or 3], or None (then every node field gives the number of nodes). Edges are sorted by
    receiver (stable) and the edge fields follow. Values of graph fields have the shape of their Field. ``cell`` holds
    the cell vectors as rows ([3, 3]; [2, 2] in two dimensions) or the edge lengths of an orthogonal box;
    ``periodic`` then says which axes repeat, and ``edge_shifts`` through which images edges run. Where a node of a
    periodic graph is more than ten cells away, all are brought into the cell, with the shifts that keep every edge.
    Labels of targets named in ``optional`` may be missing: NaN, of classes NaN or -1.

    Raises InputError, naming the graph, the field and the fix, for an index out of range, NaN or infinite values,
    wrong lengths, shapes or dtypes, classes out of range, a graph without nodes, undeclared and missing fields.

    >>> charge = Field(name="charge", on="node", unit="e", role="target")
    >>> graph = graph_from_arrays([[0, 0], [1, 0]], [0, 1], [1, 0], fields=[charge], nodes={"charge": [0.5, -0.5]})
    >>> graph.receivers, graph["charge"]
    (tensor([0, 1]), tensor([ 0.5000, -0.5000]))
    """
    raw_values: dict[Location, Mapping[str, Any]] = {"node": nodes or {}, "edge": edges or {}, "graph": graphs or {}}
    declared = _declared(fields, raw_values, name)
    points = _points(positions, raw_values["node"], name)
    count, dim = points.shape
    sender = node_indices(senders, "senders", count, name)
    receiver = node_indices(receivers, "receivers", count, name)
    if len(sender) != len(receiver):
        raise InputError(f"{name}: {len(sender)} senders but {len(receiver)} receivers; give one of each per edge")
    shifts = _shifts(edge_shifts, len(sender), dim, name)
    flags = _flags(False if periodic is None else periodic, dim, name)
    box = _box(cell, flags, dim, name)
    if periodic is None and bool(box[:dim, :dim].any()):
        raise InputError(
            f"{name} has a cell and does not say which axes repeat; give periodic (pbc in Data of torch_geometric): true, false for a box "
            "without images, or one per axis"
        )
    if edge_shifts is None:
        check_straight(points, sender, receiver, box[:dim, :dim] * flags[:dim, None], name)
    items: dict[Location, int] = {"node": count, "edge": len(sender), "graph": 1}
    values: dict[Location, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    for field in declared.values():
        raw = raw_values[field.on][field.name]
        values[field.on][field.name] = field_values(raw, field, items[field.on], name, field.name in optional)
    if bool((receiver[1:] < receiver[:-1]).any()):
        order = torch.argsort(receiver, stable=True)
        sender, receiver, shifts = sender[order], receiver[order], shifts[order]
        values["edge"] = {key: value[order] for key, value in values["edge"].items()}
    points, shifts = into_cell(points, sender, receiver, shifts, box[:dim, :dim], flags[:dim])
    batch = GraphBatch(
        positions=points,
        topology=Topology.square(sender, receiver, count),
        edge_shifts=shifts,
        cell=box[None],
        periodic=flags[None],
        node_offsets=torch.tensor([0, count]),
        edge_offsets=torch.tensor([0, len(sender)]),
        fields=declared,
        nodes=values["node"],
        edges=values["edge"],
        graphs=values["graph"],
        masks={
            field.name: torch.ones(1, dtype=torch.bool)
            for field in declared.values()
            if field.name in optional and not bool(is_labelled(values[field.on][field.name], field).all())
        },
    )
    check_axes(batch, name)
    return batch


def check_straight(points: Tensor, senders: Tensor, receivers: Tensor, rows: Tensor, name: str) -> None:
    """Raise InputError where an edge is longer than through an image."""
    if not bool(rows.any()) or not len(senders):
        return
    straight = points[receivers] - points[senders]
    nearest = (straight - (straight @ torch.linalg.pinv(rows)).round() @ rows).norm(dim=1)
    lengths = straight.norm(dim=1)
    if bool((nearest < lengths * (1 - AGREES)).any()):
        edge = int((lengths - nearest).argmax())
        raise InputError(
            f"{name}: edge {edge} is {lengths[edge]:.4g} long where an image is {nearest[edge]:.4g} away, and nothing says through which "
            "images edges run; give edge_shifts, a cutoff in place of edges, or periodic (pbc) = false on all axes for no images"
        )


def into_cell(
    positions: Tensor, senders: Tensor, receivers: Tensor, shifts: Tensor, cell: Tensor, periodic: Tensor
) -> tuple[Tensor, Tensor]:
    """Return positions inside the cell, and shifts, where nodes are far away.

    Single precision has a place of 2e-4 at 4,000 Angstrom, where trajectories that were never wrapped put atoms.

    >>> places, ends, box = torch.tensor([[4000.0], [0.5]]), torch.tensor([0]), torch.eye(1) * 4
    >>> into_cell(places, ends, ends + 1, torch.tensor([[-4000.0]]), box, torch.tensor([True]))
    (tensor([[0.0000],
            [0.5000]]), tensor([[0.]]))
    """
    if not periodic.any() or float(positions.abs().max()) < TURNS * float(cell.abs().max()):
        return positions, shifts
    rows = cell * periodic[:, None]
    inverse = torch.linalg.pinv(rows)
    turns = torch.floor(positions @ inverse)  # [nodes, dim]
    images = torch.round(shifts @ inverse)
    across = shifts - images @ rows  # nothing, unless the shifts are wrong, which is said elsewhere
    return positions - turns @ rows, (images + turns[senders] - turns[receivers]) @ rows + across


def field_values(raw: Any, field: Field, items: int, name: str = "graph", optional: bool = False) -> Tensor:
    """Return ``raw`` as the tensor of a field; InputError where impossible.

    Labels of an ``optional`` target may be missing.

    >>> field_values([1, 2], Field(name="mass", on="node"), 2)
    tensor([1., 2.])
    """
    where = f"{name}, field {field.name}"
    array = numbers_of(raw, where)
    expected = (items, *field.shape)
    if field.on == "graph" and tuple(array.shape) == field.shape:
        array = array[None]
    if tuple(array.shape) != expected:
        if array.ndim == len(expected) and array.shape[0] != items:
            raise InputError(f"{where}: {array.shape[0]} rows for {items} {field.on}s; give one per {field.on}")
        raise InputError(f"{where}: shape {tuple(array.shape)} is not {expected}; reshape it or declare another shape")
    missing = optional and field.role == "target"
    if field.classes:
        if missing and array.dtype.is_floating_point and bool((array.isnan() | (array == array.round())).all()):
            array = torch.where(array.isnan(), MISSING_CLASS, array).to(torch.int64)
        if array.dtype.is_floating_point or array.dtype.is_complex:
            raise InputError(f"{where}: {field.classes} classes but {_short(array.dtype)} values; give integers")
    elif array.dtype.is_complex or array.dtype == torch.bool:
        raise InputError(f"{where}: {_short(array.dtype)} values where {field.dtype} is declared; give real numbers")
    values = array.to(field.torch_dtype)
    for _, problem in field_problems(field, values, np.array([0, items]), missing):
        raise InputError(f"{name}{problem}")
    return values


def validate(batch: GraphBatch, first: int = 0, *, cutoff: float | None = None, angstrom: float = 0.0) -> GraphBatch:
    """Return the same batch, checked; InputError for the first fault.

    The first graph is called number ``first``; no edge may be longer than a ``cutoff``, nor nuclei too near for ``angstrom``.

    >>> validate(graph_from_arrays([[0.0, 0.0]], [], [])).num_nodes
    1
    """
    check_structure(batch)
    numbers = range(first, first + batch.num_graphs)
    for problem in graph_problems(batch, numbers, cutoff=cutoff, angstrom=angstrom).values():
        raise InputError(problem)
    return batch


def check_structure(batch: GraphBatch) -> None:
    """Raise InputError for offsets, shapes, dtypes or declarations that disagree."""
    _check_offsets(batch)
    _check_indices(batch)
    _check_geometry(batch)
    for location in LOCATIONS:
        undeclared = [n for n in batch.on(location) if n not in batch.fields or batch.fields[n].on != location]
        if undeclared:
            raise InputError(f"the tensor {undeclared[0]} on {location}s has no Field; declare it or drop it")
    for mask, present in batch.masks.items():
        if mask not in batch.fields or tuple(present.shape) != (batch.num_graphs,) or present.dtype != torch.bool:
            raise InputError(f"mask {mask} is not one bool per graph of a declared field; make it so")
    for field in batch.fields.values():
        _check_field(batch, field)
    check_axes(batch, "batch")


def check_axes(batch: GraphBatch, name: str) -> None:
    """Raise InputError for vectors of another length than positions."""
    for field in batch.fields.values():
        if field.parity != "scalar" and batch.dim and field.shape[-1] != batch.dim:
            raise InputError(
                f"{name}, field {field.name}: a {field.parity} of length {field.shape[-1]} in {batch.dim} dimensions; "
                f'give {batch.dim} components or declare parity="scalar"'
            )


def _declared(fields: Iterable[Field], raw_values: Mapping[Location, Mapping[str, Any]], name: str) -> dict[str, Field]:
    declared: dict[str, Field] = {}
    for field in fields:
        if field.name in declared:
            raise InputError(f"{name}: field {field.name} is declared twice; remove one")
        if field.name not in raw_values[field.on]:
            raise InputError(
                f"{name}: field {field.name} is declared but missing; pass {field.on}s={{'{field.name}': ...}}, or "
                f"where it has no {field.name}, leave the value out (in a BUILD.toml the field is optional = true, in Python "
                f"neither fields nor {field.on}s have it)"
            )
        declared[field.name] = field
    for location, values in raw_values.items():
        for key in values:
            if key not in declared or declared[key].on != location:
                hint = nearest(key, [n for n, f in declared.items() if f.on == location] or ["none declared"])
                problem = f"{name}: {location}s holds {key} without a Field on {location}s"
                raise InputError(f"{problem}; declare it in fields ({hint}), or leave it out of {location}s, too")
    return declared


def _points(positions: ArrayLike | None, nodes: Mapping[str, Any], name: str) -> Float[Tensor, "nodes dim"]:
    if positions is None:
        if not nodes:
            raise InputError(f"{name}: neither positions nor node fields, so no nodes; give one of them")
        key, first = next(iter(nodes.items()))
        points = torch.zeros(numbers_of(first, f"{name}, field {key}").shape[0], 0, dtype=torch.float64)
    else:
        points = _reals(positions, name, "positions")
    if points.ndim != 2 or points.shape[1] not in (0, 2, 3):
        raise InputError(f"{name}, positions: shape {tuple(points.shape)} is not [nodes, 2] or [nodes, 3]; reshape it")
    if not len(points):
        raise InputError(f"{name} has no nodes; leave empty graphs out")
    return points


def node_indices(raw: ArrayLike, which: str, count: int, name: str) -> Tensor:
    """Return ends of edges; InputError for other than numbers of ``count`` nodes."""
    index = numbers_of(raw, f"{name}, {which}")
    if index.ndim != 1:
        raise InputError(f"{name}, {which}: shape {tuple(index.shape)} is not [edges]; give one index per edge")
    if not len(index):
        return torch.zeros(0, dtype=torch.int64)
    if index.dtype.is_floating_point or index.dtype.is_complex or index.dtype == torch.bool:
        raise InputError(f"{name}, {which}: {_short(index.dtype)} values are no node indices; give integers")
    index = index.to(torch.int64)
    least, most = index.aminmax()
    if int(least) < 0 or int(most) >= count:
        outside = (index < 0) | (index >= count)
        problem = f"{name}, {which}: node index {int(index[outside][0])} is out of range"
        raise InputError(f"{problem}; there are {count} nodes, use 0 to {count - 1}")
    return index


def _shifts(raw: ArrayLike | None, edges: int, dim: int, name: str) -> Float[Tensor, "edges dim"]:
    if raw is None:
        return torch.zeros(edges, dim, dtype=torch.float64)
    shifts = _reals(raw, name, "edge_shifts")
    if tuple(shifts.shape) != (edges, dim):
        raise InputError(f"{name}, edge_shifts: shape {tuple(shifts.shape)} is not {(edges, dim)}; give one per edge")
    return shifts


def _flags(raw: Any, dim: int, name: str) -> Tensor:
    flags = torch.zeros(3, dtype=torch.bool)
    if isinstance(raw, bool | np.bool_):
        flags[: dim or 3] = bool(raw)
        return flags
    if isinstance(raw, np.ndarray) and raw.dtype == bool and raw.shape == (3,):
        return torch.from_numpy(raw.copy())
    axes = numbers_of(raw, f"{name}, periodic")
    if axes.ndim != 1 or len(axes) not in {3, dim} or bool((axes != axes.bool()).any()):
        raise InputError(f"{name}, periodic: {raw} is not one flag per axis; give {dim or 3} of True or False")
    flags[: len(axes)] = axes.bool()
    return flags


def _box(raw: ArrayLike | None, periodic: Tensor, dim: int, name: str) -> Float[Tensor, "3 3"]:
    """Return the cell; in two dimensions its third vector has length 1."""
    if raw is None:
        if bool(periodic.any()):
            raise InputError(f"{name} is periodic but has no cell; give cell=")
        return torch.zeros(3, 3, dtype=torch.float64)
    cell = _reals(raw, name, "cell")
    if cell.ndim == 1:
        cell = torch.diag(cell)
    if dim == 2 and tuple(cell.shape) == (2, 2):
        cell = torch.block_diag(cell, torch.ones(1, 1, dtype=torch.float64))
    if tuple(cell.shape) != (3, 3):
        raise InputError(f"{name}, cell: shape {tuple(cell.shape)} is not [3, 3]; give the cell vectors as rows")
    if problem := cell_problem(cell, periodic):
        raise InputError(f"{name}{problem}")
    return cell


def numbers_of(raw: Any, where: str) -> Tensor:
    """Return a dense tensor; InputError for other than numbers."""
    if isinstance(raw, Tensor):
        if raw.layout != torch.strided or raw.is_quantized or raw.is_meta:
            raise InputError(f"{where}: a sparse, quantised or meta tensor; convert it with to_dense() or dequantize()")
        return raw.detach()
    try:
        array = np.asarray(raw)
    except ValueError as error:
        raise InputError(f"{where}: rows of different lengths ({error}); give a rectangular array") from error
    if array.dtype.kind not in "biufc":
        are_texts = array.dtype.kind in "US" and array.size
        first = f"texts such as {str(array.flat[0])!r}" if are_texts else f"{array.dtype} values"
        raise InputError(f"{where}: {first} are not numbers; convert them first")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise InputError(f"{where}: {int(array.max())} is larger than whole numbers of 64 bits; give smaller ones")
    dtype = TAKEN.get(array.dtype.char, np.dtype(np.int64) if array.dtype.kind == "u" else array.dtype)
    return torch.from_numpy(np.array(array, dtype=dtype.newbyteorder("="), order="C"))


def _reals(raw: Any, name: str, what: str) -> Tensor:
    array = numbers_of(raw, f"{name}, {what}")
    if array.dtype.is_complex or array.dtype == torch.bool:
        raise InputError(f"{name}, {what}: {_short(array.dtype)} values; give real numbers")
    values = array.to(torch.float64)
    offsets = np.array([0, values.shape[0] if values.ndim else 0])
    for _, problem in not_finite(what, values, offsets, "remove the graph"):
        raise InputError(f"{name}{problem}")
    return values


def _check_offsets(batch: GraphBatch) -> None:
    for what, offsets, total in (
        ("node", batch.node_offsets, batch.num_nodes),
        ("edge", batch.edge_offsets, batch.num_edges),
    ):
        steps = offsets.diff()
        if len(offsets) < 2 or int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((steps < 0).any()):
            raise InputError(f"{what}_offsets do not run from 0 to the {total} {what}s of the batch; rebuild it")
        if len(offsets) != batch.num_graphs + 1:
            raise InputError(f"{what}_offsets describe {len(offsets) - 1} graphs, not {batch.num_graphs}; rebuild it")


def _check_indices(batch: GraphBatch) -> None:
    for which, index in (("senders", batch.senders), ("receivers", batch.receivers)):
        if index.dtype != torch.int64:
            raise InputError(f"{which}: {_short(index.dtype)} values; node indices are int64")
        if tuple(index.shape) != (batch.num_edges,):
            raise InputError(f"{which}: {len(index)} values for {batch.num_edges} edges; give one per edge")
    columns, rows = batch.topology.num_columns, batch.topology.num_rows
    if (columns, rows) != (batch.num_nodes, batch.num_nodes):
        raise InputError(
            f"the topology has {columns} senders and {rows} receivers for {batch.num_nodes} nodes; rebuild the batch"
        )


def _check_geometry(batch: GraphBatch) -> None:
    shapes: dict[str, tuple[int, ...]] = {"cell": (batch.num_graphs, 3, 3), "periodic": (batch.num_graphs, 3)}
    shapes |= {"positions": (batch.num_nodes, batch.dim), "edge_shifts": (batch.num_edges, batch.dim)}
    for what, shape in shapes.items():
        value = getattr(batch, what)
        if tuple(value.shape) != shape:
            raise InputError(f"{what}: shape {tuple(value.shape)} is not {shape}; rebuild the batch")
        if value.is_floating_point() == (what == "periodic"):
            raise InputError(f"{what}: {_short(value.dtype)}; give {'bool' if what == 'periodic' else 'float64'}")
    if batch.dim not in (0, 2, 3):
        raise InputError(f"positions have {batch.dim} columns; use 2 or 3, or none for graphs without geometry")


def _check_field(batch: GraphBatch, field: Field) -> None:
    if field.name not in batch.on(field.on):
        problem = f"field {field.name} is declared but no tensor on {field.on}s has its name"
        raise InputError(f"{problem}; add it, or take {field.name} out of the batch's fields, too")
    values = batch[field.name]
    expected = (batch.num_items(field.on), *field.shape)
    if tuple(values.shape) != expected:
        raise InputError(f"field {field.name}: shape {tuple(values.shape)} is not {expected}; reshape it")
    if values.dtype != field.torch_dtype:
        raise InputError(f"field {field.name}: {_short(values.dtype)} values but {field.dtype} declared; convert them")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
