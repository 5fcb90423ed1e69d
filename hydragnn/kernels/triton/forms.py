"""Launches of Triton kernels for sums over rows and products of ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.triton import launch as triton_launch
from hydragnn.kernels.triton.launch import constants_of, launch, sum_dtype


def row_sum(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum weighted states of senders per row."""
    return _sum(Summands(*_by_row(topology), topology.senders, x=x, weight=weight, numbers=topology.pair))


def column_sum(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum weighted states of receivers per column."""
    numbers = None if weight is None else _weights_by_column(topology)
    return _sum(Summands(*_by_column(topology), topology.receivers_by_sender, x=g, weight=weight, numbers=numbers))


def outer_sum(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum messages times directions per row, of one read of the messages."""
    return _sum_outer(Summands(*_by_row(topology), None, x=messages, along=directions), messages.dtype)


def sum_along(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum weighted states of senders times directions per row."""
    rows, pair = _by_row(topology), topology.pair
    inputs = Summands(*rows, topology.senders, x=x, weight=weight, numbers=pair, along=directions)
    return _sum_outer(inputs, torch.promote_types(x.dtype, weight.dtype))


def collect_along(weight: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Sum projected, weighted vectors of receivers per column."""
    inputs = Summands(
        *_by_column(topology),
        topology.receivers_by_sender,
        x=vectors,
        weight=weight,
        numbers=_weights_by_column(topology),
        along=directions,
        order=topology.by_sender,
    )
    kind = torch.promote_types(weight.dtype, vectors.dtype)
    out = weight.new_empty(topology.num_columns, weight.shape[1], dtype=kind)
    _launch_sums(inputs, out, weight.shape[1], axes=1, inner=directions.shape[1])
    return out


def edge_product(x: Tensor, g: Tensor, topology: Topology, per: str) -> Tensor:
    """Multiply the states of both ends."""
    kind = torch.promote_types(x.dtype, g.dtype)
    if per == "head":
        heads, width = x.shape[-2], x.shape[1:-2].numel() * x.shape[-1]  # a head's channels of all axes are one sum
        out = x.new_empty(topology.num_edges, heads, 1, dtype=kind)
        lhs, rhs = (end.movedim(-2, 1) for end in (x, g))
        _dot_ends(topology, lhs, rhs, None, out, width, heads, gather=True, left_axes=True)
        return out
    if per == "channel":
        channels = x.shape[-1]
        out = x.new_empty(topology.num_edges, channels, dtype=kind)
        _multiply_ends(topology, x, g, None, out, x.shape[1:-1].numel(), gather=True)
        return out
    out = x.new_empty(topology.num_edges, dtype=kind)
    _dot_ends(topology, x, g, None, out, x.shape[1:].numel(), 1, gather=True)
    return out


def along_directions(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Project vectors of receivers on directions of edges."""
    out = vectors.new_empty(topology.num_edges, vectors.shape[-1])
    _multiply_ends(topology, directions, vectors, None, out, vectors.shape[1], gather=False)
    return out


def multiply_along(x: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Multiply states of senders with projected vectors of receivers."""
    kind = torch.promote_types(x.dtype, vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[-1], dtype=kind)
    _multiply_ends(topology, directions, vectors, x, out, vectors.shape[1], gather=False)
    return out


def along_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Contract vectors of receivers with messages."""
    kind = torch.promote_types(messages.dtype, vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[1], dtype=kind)
    _dot_ends(topology, messages, vectors, None, out, vectors.shape[-1], vectors.shape[1], gather=False)
    return out


def contract_along(x: Tensor, weight: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Contract vectors of receivers with weighted states of senders."""
    kind = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[1], dtype=kind)
    _dot_ends(topology, x, vectors, weight, out, vectors.shape[-1], vectors.shape[1], gather=True)
    return out


def gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, topology: Topology) -> Tensor:
    """Add the states of both ends and of the edge."""
    kind = sent.dtype
    for tensor in (received, edges):
        kind = kind if tensor is None else torch.promote_types(kind, tensor.dtype)
    out = sent.new_empty(topology.num_edges, *sent.shape[1:], dtype=kind)
    requested = {"RECEIVED": received is not None, "CARRIED": edges is not None}
    _launch_edges("add_ends", topology, (sent, received, edges), out, sent.shape[1:].numel(), requested)
    return out


def sum_to_receivers(messages: Tensor, topology: Topology) -> Tensor:
    """Sum messages per row."""
    return _sum(Summands(*_by_row(topology), None, x=messages))


def sum_to_senders(messages: Tensor, topology: Topology) -> Tensor:
    """Sum messages per column."""
    return _sum(Summands(*_by_column(topology), topology.by_sender, x=messages))


def sum_in_order(messages: Tensor, order: Tensor, owners: Tensor, offsets: Tensor) -> Tensor:
    """Sum messages per row, where ``order`` sorts them by row."""
    return _sum(Summands(offsets, owners, order, x=messages))


@dataclass(frozen=True, slots=True)
class Summands:
    """Input of a sum over rows; None is not read.

    Offsets and owners of positions, then arrays by position and by edge.
    """

    offsets: Tensor
    owners: Tensor
    index: Tensor | None
    """The item of x at a position; the position itself where it is None."""
    _: KW_ONLY
    x: Tensor
    weight: Tensor | None = None
    numbers: Tensor | None = None
    """The number of the weight at a position; the position itself where it is None."""
    along: Tensor | None = None
    """One number per edge and axis."""
    order: Tensor | None = None
    """The edge at a position; the position itself where it is None."""


def _by_row(topology: Topology) -> tuple[Tensor, Tensor]:
    return topology.row_offsets, topology.receivers


def _by_column(topology: Topology) -> tuple[Tensor, Tensor]:
    return topology.column_offsets, topology.sorted_senders


def _weights_by_column(topology: Topology) -> Tensor:
    """Return the weight number of every edge, in the order of senders."""
    return topology.by_sender if topology.pair is None else topology.pair.index_select(0, topology.by_sender)


def _sum(inputs: Summands) -> Tensor:
    """Sum items of x with all their axes."""
    x, weight = inputs.x, inputs.weight
    last = (
        0 if weight is None else weight.dim() - 1
    )  # dimensions of x that weights have; without, axes are channels like others
    kind = torch.promote_types(x.dtype, weight.dtype) if weight is not None and last else x.dtype
    out = x.new_empty(inputs.offsets.shape[0] - 1, *x.shape[1:], dtype=kind)
    axes = x.shape[1:-last].numel() if last else 1
    _launch_sums(inputs, out, x.shape[1:].numel() // max(axes, 1), axes, x_axes=axes > 1)
    return out


def _sum_outer(inputs: Summands, kind: torch.dtype) -> Tensor:
    """Sum items of x times numbers of edges, one sum per axis."""
    assert inputs.along is not None
    axes, channels = inputs.along.shape[1], inputs.x.shape[1]
    out = inputs.x.new_empty(inputs.offsets.shape[0] - 1, axes, channels, dtype=kind)
    _launch_sums(inputs, out, channels, axes)
    return out


def _launch_sums(
    inputs: Summands, out: Tensor, channels: int, axes: int, *, inner: int = 1, x_axes: bool = False
) -> None:
    """Launch the sum of all rows, then of windows of long rows."""
    from hydragnn.kernels.triton import sums as kernels

    if not out.numel():
        return
    long = triton_launch.LONG
    offsets, edges, rows = inputs.offsets.contiguous(), inputs.owners.shape[0], out.shape[0]
    weight = inputs.weight
    group = _group(axes)
    options, tiles = constants_of("sums", (inputs.x, weight, inputs.along, out), channels, max(group, min(inner, 2)))
    constants = {
        **options,
        "SPLIT": long,
        "GATHER": inputs.index is not None,
        "ORDER": inputs.order is not None,
        "NUMBERED": inputs.numbers is not None and weight is not None,
        "WEIGHT": 0 if weight is None else weight.dim(),
        "ALONG": inputs.along is not None and inner == 1,
        "INNER": inner,
        "AXES": axes,
        "GROUP": group,
        "X_AXES": x_axes,
    }
    units, groups = channels // options["VEC"], axes // group
    arrays = inputs.index, inputs.order, inputs.numbers, weight, inputs.along, inputs.x
    read = tuple(offsets if tensor is None else tensor.contiguous() for tensor in arrays)
    width = inputs.x.shape[-1]
    launch(kernels.sum_rows, (rows, tiles, groups), (offsets, *read, out, units, width), constants)
    if edges <= long:
        return
    windows = -(-edges // long)
    partial = out.new_empty(windows, 2, channels * axes, dtype=sum_dtype(inputs.x, weight, inputs.along))
    sizes = (units, width, edges)
    launch(kernels.sum_windows, (windows, tiles, groups), (offsets, inputs.owners, *read, partial, *sizes), constants)
    join, tiles = constants_of("sums", (partial, out), channels * axes, 1)
    units = channels * axes // join["VEC"]
    launch(kernels.join_windows, (rows, tiles), (offsets, partial, out, units), {**join, "SPLIT": long})


def _group(axes: int) -> int:
    """Return the number of axes whose sums a program holds at once."""
    return next(some for some in (3, 2, 1) if axes % some == 0)


def _multiply_ends(
    topology: Topology, lhs: Tensor, rhs: Tensor, factor: Tensor | None, out: Tensor, axes: int, *, gather: bool
) -> None:
    constants = {"GATHER": gather, "FACTOR": factor is not None, "AXES": axes}
    _launch_edges("multiply_ends", topology, (lhs, rhs, factor), out, out.shape[-1], constants)


def _dot_ends(
    topology: Topology,
    lhs: Tensor,
    rhs: Tensor,
    weight: Tensor | None,
    out: Tensor,
    channels: int,
    axes: int,
    *,
    gather: bool,
    left_axes: bool = False,
) -> None:
    pair = None if weight is None else topology.pair
    constants = {
        "GATHER": gather,
        "PAIR": pair is not None,
        "WEIGHT": weight is not None,
        "LEFT_AXES": left_axes,
        "AXES": axes,
        "GROUP": 1 if left_axes else _group(axes),
    }
    _launch_edges("dot_ends", topology, (lhs, rhs, pair, weight), out, channels, constants)


def _launch_edges(
    name: str,
    topology: Topology,
    tensors: tuple[Tensor | None, ...],
    out: Tensor,
    channels: int,
    constants: Mapping[str, Any],
) -> None:
    """Launch a kernel with one result per edge."""
    from hydragnn.kernels.triton import edges as kernels

    if not out.numel():
        return
    if not channels:
        out.zero_()
        return
    group = constants.get("GROUP", 1)
    options, tiles = constants_of("edges", (*tensors, out), channels, group)
    units, edges = channels // options["VEC"], topology.num_edges
    blocks = -(-edges // options["BE"])
    first = tensors[0]
    assert first is not None
    read = tuple((first if tensor is None else tensor).contiguous() for tensor in tensors)
    inputs = (topology.senders, topology.receivers, *read, out, units, edges)
    grid = (blocks, constants["AXES"] // group if name == "dot_ends" else tiles)
    launch(getattr(kernels, name), grid, inputs, {**options, **constants})
