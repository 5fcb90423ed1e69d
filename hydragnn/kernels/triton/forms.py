"""Launches of Triton kernels for sums over rows and products of ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.segment_order import SegmentOrder
from hydragnn.kernels.triton import launch as triton_launch
from hydragnn.kernels.triton.launch import by_axes, constants_of, launch, sum_dtype
from hydragnn.kernels.triton.tiles import WIDEST

Tangents = Sequence[Tensor | None]
"""Directions of an op's tensors, for the derivative of its value along them; None where a tensor stays as it is."""
NONE: Tangents = (None, None, None)


def row_sum(x: Tensor, weight: Tensor | None, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Sum weighted states of senders per row."""
    d_x, d_weight = along[:2]
    inputs = by_row(topology, topology.senders, x=x, weight=weight, numbers=topology.pair, d_x=d_x, d_weight=d_weight)
    return _sum(inputs)


def column_sum(g: Tensor, weight: Tensor | None, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Sum weighted states of receivers per column."""
    numbers, (d_x, d_weight) = None if weight is None else _weights_by_column(topology), along[:2]
    index = topology.receivers_by_sender
    return _sum(by_column(topology, index, x=g, weight=weight, numbers=numbers, d_x=d_x, d_weight=d_weight))


def outer_sum(messages: Tensor, directions: Tensor, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Sum messages times directions per row, of one read of the messages."""
    inputs = by_row(topology, None, x=messages, along=directions, d_x=along[0], d_along=along[1])
    return _sum_outer(inputs, messages.dtype)


def sum_along(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Sum weighted states of senders times directions per row."""
    arrays = dict(zip(("d_x", "d_weight", "d_along"), along), weight=weight, numbers=topology.pair, along=directions)
    inputs = by_row(topology, topology.senders, x=x, **arrays)
    return _sum_outer(inputs, torch.promote_types(x.dtype, weight.dtype))


def collect_along(
    weight: Tensor, directions: Tensor, vectors: Tensor, topology: Topology, along: Tangents = NONE
) -> Tensor:
    """Sum projected, weighted vectors of receivers per column."""
    arrays = dict(zip(("d_weight", "d_along", "d_x"), along), weight=weight, along=directions, order=topology.by_sender)
    index, numbers = topology.receivers_by_sender, _weights_by_column(topology)
    inputs = by_column(topology, index, x=vectors, numbers=numbers, **arrays)
    kind = torch.promote_types(weight.dtype, vectors.dtype)
    out = weight.new_empty(topology.num_columns, weight.shape[1], dtype=kind)
    _launch_sums(inputs, out, weight.shape[1], axes=1, inner=directions.shape[1])
    return out


def edge_product(x: Tensor, g: Tensor, topology: Topology, per: str, along: Tangents = NONE) -> Tensor:
    """Multiply the states of both ends."""
    kind = torch.promote_types(x.dtype, g.dtype)
    if per == "head":
        heads, width = x.shape[-2], x.shape[1:-2].numel() * x.shape[-1]  # a head's channels of all axes are one sum
        out = x.new_empty(topology.num_edges, heads, 1, dtype=kind)
        ends = x.movedim(-2, 1), g.movedim(-2, 1), None
        changes = [None if one is None else one.movedim(-2, 1) for one in along]
        _dot_ends(topology, ends, out, width, heads, changes, gather=True, left_axes=True)
        return out
    if per == "channel":
        channels = x.shape[-1]
        out = x.new_empty(topology.num_edges, channels, dtype=kind)
        _multiply_ends(topology, (x, g, None), out, x.shape[1:-1].numel(), along, gather=True)
        return out
    out = x.new_empty(topology.num_edges, dtype=kind)
    _dot_ends(topology, (x, g, None), out, x.shape[1:].numel(), 1, along, gather=True)
    return out


def along_directions(directions: Tensor, vectors: Tensor, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Project vectors of receivers on directions of edges."""
    out = vectors.new_empty(topology.num_edges, vectors.shape[-1])
    _multiply_ends(topology, (directions, vectors, None), out, vectors.shape[1], along, gather=False)
    return out


def multiply_along(
    x: Tensor, directions: Tensor, vectors: Tensor, topology: Topology, along: Tangents = NONE
) -> Tensor:
    """Multiply states of senders with projected vectors of receivers."""
    kind = torch.promote_types(x.dtype, vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[-1], dtype=kind)
    changes = along[1], along[2], along[0]
    _multiply_ends(topology, (directions, vectors, x), out, vectors.shape[1], changes, gather=False)
    return out


def along_channels(messages: Tensor, vectors: Tensor, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Contract vectors of receivers with messages."""
    kind = torch.promote_types(messages.dtype, vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[1], dtype=kind)
    _dot_ends(topology, (messages, vectors, None), out, vectors.shape[-1], vectors.shape[1], along, gather=False)
    return out


def contract_along(x: Tensor, weight: Tensor, vectors: Tensor, topology: Topology, along: Tangents = NONE) -> Tensor:
    """Contract vectors of receivers with weighted states of senders."""
    kind = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), vectors.dtype)
    out = vectors.new_empty(topology.num_edges, vectors.shape[1], dtype=kind)
    changes = along[0], along[2], along[1]
    _dot_ends(topology, (x, vectors, weight), out, vectors.shape[-1], vectors.shape[1], changes, gather=True)
    return out


def gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, topology: Topology) -> Tensor:
    """Add the states of both ends and of the edge."""
    return _add_ends(topology.senders, topology.receivers, received, sent, edges)


def gather(items: Tensor, index: Tensor) -> Tensor:
    """Return the item of every index; narrow ones and numbers other than floats by ``index_select``."""
    if items.shape[1:].numel() < NARROW or not items.is_floating_point():
        return items.index_select(0, index)
    return _add_ends(index, index, None, items, None)


NARROW = 4
"""Items of fewer numbers are no vector load."""


def _add_ends(
    senders: Tensor, receivers: Tensor, received: Tensor | None, sent: Tensor, edges: Tensor | None
) -> Tensor:
    from hydragnn.kernels.triton import edges as kernels

    kind = sent.dtype
    for tensor in (received, edges):
        kind = kind if tensor is None else torch.promote_types(kind, tensor.dtype)
    out, channels = sent.new_empty(len(senders), *sent.shape[1:], dtype=kind), sent.shape[1:].numel()
    if not out.numel():
        return out
    inputs = [by_axes(sent if tensor is None else tensor, 1, channels) for tensor in (sent, received, edges)]
    rows = [row for _, row, _ in inputs]
    options, tiles = constants_of("edges", (sent, received, edges, out), channels, 1, rows)
    vector, grid = options["VEC"], (-(-len(senders) // options["BE"]), tiles)
    sizes = (channels // vector, len(senders), *(row // vector for row in rows))
    arguments = (senders.contiguous(), receivers.contiguous(), *(tensor for tensor, _, _ in inputs), out, *sizes)
    requested = {"RECEIVED": received is not None, "CARRIED": edges is not None}
    launch(kernels.add_ends, grid, arguments, {**options, **requested})
    return out


def function_sum(x: Tensor, weight: Tensor, topology: Topology, function: int, along: Tangents = NONE) -> Tensor:
    """Sum weighted functions of messages per row; one sum for each where there are three."""
    d_weight = None if along[1] is None else along[1].reshape(-1)
    arrays = {"weight": weight.reshape(-1), "d_x": along[0], "d_weight": d_weight, "function": function}
    inputs = by_row(topology, None, x=x, **arrays)
    axes = FUNCTIONS[function]
    out = x.new_empty(topology.num_rows, axes, x.shape[1])
    _launch_sums(inputs, out, x.shape[1], axes)
    return out.squeeze(1) if axes == 1 else out.transpose(0, 1)


SILU, POWERS = 1, 2
FUNCTIONS: Mapping[int, int] = {SILU: 1, POWERS: 3}
"""Results of every function."""


def function_gradient(
    x: Tensor, weight: Tensor, g: Tensor, topology: Topology, function: int, along: Tangents = NONE
) -> tuple[Tensor, Tensor]:
    """Return the gradients of messages and weights, or theirs along two directions."""
    from hydragnn.kernels.triton import edges as kernels

    x, weight, channels, edges = x.contiguous(), weight.contiguous(), x.shape[1], topology.num_edges
    out, out_weight = torch.empty_like(x), torch.empty_like(weight)
    if not channels or not edges:
        return out, out_weight.zero_()
    g = g if g.stride(-1) == 1 else g.contiguous()
    strides = g.stride(-2), g.stride(0) if g.dim() == 3 else channels
    options, _ = constants_of("edges", (x, weight, g), channels, 1, strides)
    units = (channels // options["VEC"], edges, *(stride // options["VEC"] for stride in strides))
    changes = tuple(x if tensor is None else tensor.contiguous() for tensor in along[:2])
    inputs = (topology.receivers, x, weight, g, *changes, out, out_weight, *units)
    constants = {**options, "FUNCTION": function, "TANGENTS": along[0] is not None}
    launch(kernels.function_gradient, (-(-edges // options["BE"]),), inputs, constants)
    return out, out_weight


def silu_slope_gradients(x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return g u silu''(x) and u silu'(x), element by element."""
    from hydragnn.kernels.triton import edges as kernels

    x, g, u = x.contiguous(), g.contiguous(), u.contiguous()
    of_x, of_g = torch.empty_like(x), torch.empty_like(g)
    count = x.numel()
    if count:
        options, _ = constants_of("edges", (x, g, u), WIDEST, 1, (count,))
        blocks = -(-count // (options["BE"] * options["BF"]))
        launch(kernels.silu_slope_gradients, (blocks,), (x, g, u, of_x, of_g, count // options["VEC"]), options)
    return of_x, of_g


def sum_to_receivers(messages: Tensor, topology: Topology) -> Tensor:
    """Sum messages per row."""
    return _sum(by_row(topology, None, x=messages))


def sum_to_senders(messages: Tensor, topology: Topology) -> Tensor:
    """Sum messages per column."""
    return _sum(by_column(topology, topology.by_sender, x=messages))


def sum_in_order(messages: Tensor, order: SegmentOrder) -> Tensor:
    """Sum messages per row, where ``order`` sorts them by row."""
    return _sum(Summands(order.offsets, order.owners if may_be_long(order) else None, order.order, x=messages))


def may_be_long(order: SegmentOrder) -> bool:
    """Return True unless no row has more edges than one program sums."""
    longest = order.owners.shape[0] if order.longest is None else order.longest
    return longest > triton_launch.LONG


def launch_rows(
    name: str, tensors: Sequence[Tensor | None], channels: int, constants: Mapping[str, Any], *, whole: bool
) -> None:
    """Launch a kernel of ``pointwise``; with ``whole`` a program has all channels of its rows."""
    from hydragnn.kernels.triton import pointwise as kernels

    first = tensors[0]
    assert first is not None
    rows = first.shape[0]
    if not rows:
        return
    options, tiles = constants_of("edges", tensors, channels, 3)  # some tiles are held at once
    if whole and tiles > 1:
        wide = 1 << (channels - 1).bit_length()
        options |= {"BE": max(2, options["BE"] * options["BF"] // wide), "BF": wide}
    read = tuple((first if tensor is None else tensor).contiguous() for tensor in tensors)
    grid = (-(-rows // options["BE"]), 1 if whole else tiles)
    launch(
        getattr(kernels, f"{name}_orders"), grid, (*read, channels // options["VEC"], rows), {**options, **constants}
    )


@dataclass(frozen=True, slots=True)
class Summands:
    """Input of a sum over rows; None is not read.

    Offsets and owners of positions, then arrays by position and by edge.
    """

    offsets: Tensor
    owners: Tensor | None
    """None where no row is long."""
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
    d_x: Tensor | None = None
    d_weight: Tensor | None = None
    d_along: Tensor | None = None
    """Directions: with any, the sum is that of derivatives of the products."""
    function: int = 0


def by_row(topology: Topology, index: Tensor | None, **arrays: Any) -> Summands:
    """Return the input of a sum per row; owners if one may be long."""
    owners = topology.receivers if topology.long_ends(triton_launch.LONG)[0] else None
    return Summands(topology.row_offsets, owners, index, **arrays)


def by_column(topology: Topology, index: Tensor | None, **arrays: Any) -> Summands:
    """Return the same of columns."""
    owners = topology.sorted_senders if topology.long_ends(triton_launch.LONG)[1] else None
    return Summands(topology.column_offsets, owners, index, **arrays)


def _weights_by_column(topology: Topology) -> Tensor:
    return topology.by_sender if topology.pair is None else topology.pair.index_select(0, topology.by_sender)


def _sum(inputs: Summands) -> Tensor:
    """Sum items of x with all their axes."""
    x, weight = inputs.x, inputs.weight
    # dimensions of x that weights have; without, axes are channels like others
    last = 0 if weight is None else weight.dim() - 1
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
    long, group = triton_launch.LONG, _group(axes)
    offsets, rows = inputs.offsets.contiguous(), out.shape[0]
    read, strides = _read_by(inputs, offsets, channels, max(inner, axes if x_axes else 1), x_axes or inner > 1)
    tensors = (inputs.x, inputs.weight, inputs.along, out)
    options, tiles = constants_of("sums", tensors, channels, max(group, min(inner, 2)), strides)
    constants = {**options, **_constants_of_sum(inputs, axes, group, inner, x_axes), "SPLIT": long}
    groups = axes // group
    sizes = (channels // options["VEC"], inputs.x.shape[-1], *(stride // options["VEC"] for stride in strides))
    arrays = (offsets, offsets, *read, out, *sizes, 0)
    launch(kernels.sum_rows, (rows, tiles, groups), arrays, {**constants, "WINDOWS": False})
    if inputs.owners is None or inputs.owners.shape[0] <= long:
        return
    edges = inputs.owners.shape[0]
    windows = -(-edges // long)
    partial = out.new_empty(windows, 2, channels * axes, dtype=sum_dtype(inputs.x, inputs.weight, inputs.along))
    arrays = (offsets, inputs.owners, *read, partial, *sizes, edges)
    launch(kernels.sum_rows, (2 * windows, tiles, groups), arrays, {**constants, "WINDOWS": True})
    join, tiles = constants_of("sums", (partial, out), channels * axes, 1)
    units = channels * axes // join["VEC"]
    launch(kernels.join_windows, (rows, tiles), (offsets, partial, out, units), {**join, "SPLIT": long})


def _read_by(
    inputs: Summands, absent: Tensor, channels: int, axes: int, by_axis: bool
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return the arrays that sums read, and the strides of those that may be strided."""
    items = [(None, 0, 0) if one is None else by_axes(one, axes, channels) for one in (inputs.x, inputs.d_x)]
    wide = inputs.weight is not None and inputs.weight.dim() == 2
    weights = [
        (None, 0, 0) if one is None else by_axes(one, 1, channels) if wide else (one.contiguous(), 0, 0)
        for one in (inputs.weight, inputs.d_weight)
    ]
    (x, x_row, x_axis), (d_x, d_row, d_axis) = items
    (weight, w_row, _), (d_weight, dw_row, _) = weights
    x_axis, d_axis = (x_axis, d_axis) if by_axis else (0, 0)

    def plain(tensor: Tensor | None) -> Tensor:
        return absent if tensor is None else tensor.contiguous()

    indices = plain(inputs.index), plain(inputs.order), plain(inputs.numbers)
    tensors = (weight, plain(inputs.along), x, d_weight, plain(inputs.d_along), d_x)
    read = (*indices, *(absent if one is None else one for one in tensors))
    return read, (x_row, x_axis, w_row, d_row, d_axis, dw_row)


def _constants_of_sum(inputs: Summands, axes: int, group: int, inner: int, x_axes: bool) -> dict[str, Any]:
    weight = inputs.weight
    return {
        "GATHER": inputs.index is not None,
        "ORDER": inputs.order is not None,
        "NUMBERED": inputs.numbers is not None and weight is not None,
        "WEIGHT": 0 if weight is None else weight.dim(),
        "ALONG": inputs.along is not None and inner == 1,
        "INNER": inner,
        "AXES": axes,
        "GROUP": group,
        "X_AXES": x_axes,
        "FUNCTION": inputs.function,
        "TANGENTS": _bits(inputs.d_x, inputs.d_weight, inputs.d_along),
    }


def _bits(*tangents: Tensor | None) -> int:
    return sum(1 << place for place, tensor in enumerate(tangents) if tensor is not None)


def _group(axes: int) -> int:
    """Return the number of axes whose sums a program holds at once."""
    return next(some for some in (3, 2, 1) if axes % some == 0)


Ends = tuple[Tensor, Tensor, Tensor | None]
"""Tensors of both ends, and a factor or weight."""


def _multiply_ends(topology: Topology, ends: Ends, out: Tensor, axes: int, along: Tangents, *, gather: bool) -> None:
    constants = {"GATHER": gather, "FACTOR": ends[2] is not None, "AXES": axes}
    _launch_edges("multiply_ends", topology, ends, along, out, out.shape[-1], constants)


def _dot_ends(
    topology: Topology,
    ends: Ends,
    out: Tensor,
    channels: int,
    axes: int,
    along: Tangents,
    *,
    gather: bool,
    left_axes: bool = False,
) -> None:
    has_weight, group = ends[2] is not None, 1 if left_axes else _group(axes)
    constants: dict[str, int] = {"GATHER": gather, "PAIR": has_weight and topology.pair is not None}
    constants |= {"WEIGHT": has_weight, "LEFT_AXES": left_axes, "AXES": axes, "GROUP": group}
    _launch_edges("dot_ends", topology, ends, along, out, channels, constants)


def _launch_edges(
    name: str,
    topology: Topology,
    tensors: Ends,
    along: Tangents,
    out: Tensor,
    channels: int,
    constants: Mapping[str, Any],
) -> None:
    from hydragnn.kernels.triton import edges as kernels

    if not out.numel():
        return
    if not channels:
        out.zero_()
        return
    axes, dots = constants["AXES"], name == "dot_ends"
    sizes_of = (axes if constants["LEFT_AXES" if dots else "GATHER"] else 1, axes, 1)
    per_axis = not dots and not constants["GATHER"]  # lhs has one number per edge and axis
    arrays: list[Tensor] = []
    strides: list[int] = []
    for number, (tensor, parts) in enumerate(zip((*tensors, *(*along, None)[:3]), 2 * sizes_of)):
        if tensor is None or (per_axis and number % 3 == 0):
            held = (out if tensor is None else tensor.contiguous()), 0, 0
        else:
            held = by_axes(tensor, parts, channels)
        arrays.append(held[0])
        strides += held[1:] if number % 3 < 2 else held[1:2]
    group = constants.get("GROUP", 1)
    options, tiles = constants_of("edges", (*tensors, out), channels, group, strides)
    units, edges, vector = channels // options["VEC"], topology.num_edges, options["VEC"]
    blocks = -(-edges // options["BE"])
    if dots:
        pair = topology.pair if constants["PAIR"] else topology.receivers
        assert pair is not None
        arrays.insert(2, pair)
    inputs = (topology.senders, topology.receivers, *arrays, out, units, edges, *(one // vector for one in strides))
    requested = {**constants, "TANGENTS": _bits(*(*along, None)[:3])}
    launch(getattr(kernels, name), (blocks, axes // group if dots else tiles), inputs, {**options, **requested})
