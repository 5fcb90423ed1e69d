"""Forms for a CPU: compiled loops, with plain torch as the fallback.

No array of edges x channels is made on the way to nodes. Sums run in the order of the edges: the bits of ``index_add``, on
every machine and with any number of threads (the loops use one).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu.compiled import call, serves


def row_sum(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor | None:
    """Sum weighted states of senders, edge by edge.

    Returns None without weights per channel or head, where ``embedding_bag`` is as fast.
    """
    return _weighted_sum(x, weight, topology.senders, topology.receivers, topology.pair, topology.num_rows)


def column_sum(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor | None:
    """Sum weighted states of receivers; None as in ``row_sum``."""
    return _weighted_sum(g, weight, topology.receivers, topology.senders, topology.pair, topology.num_columns)


def _weighted_sum(
    x: Tensor, weight: Tensor | None, index: Tensor, into: Tensor, pair: Tensor | None, rows: int
) -> Tensor | None:
    if weight is None or not _weighs(weight, x) or not serves(x, weight):
        return None
    out = x.new_empty(rows, *x.shape[1:])
    sizes = (index.shape[0], rows, *_axes_and_channels(x, weight.dim() - 1))
    return _run("weighted_sum", (x, weight, index, into, pair), sizes, out)


def _weighs(weight: Tensor, x: Tensor) -> bool:
    """Return True if every channel or every head has a weight."""
    retained = (x.shape[-1],) if weight.dim() == 2 else (*x.shape[-2:-1], 1)
    return x.dim() >= weight.dim() and weight.shape[1:] == retained


def _axes_and_channels(x: Tensor, last: int) -> tuple[int, int, int]:
    """Return the axes, their channels, and the channels per weight."""
    return x.shape[1:-last].numel(), x.shape[-last:].numel(), x.shape[-1] if last == 2 else 1


def edge_product(x: Tensor, g: Tensor, topology: Topology, per: str) -> Tensor | None:
    """Multiply the states of both ends, edge by edge."""
    if not serves(x, g) or x.shape[1:] != g.shape[1:] or x.dim() < 2:
        return None
    edges, ends = topology.num_edges, (x, g, topology.senders, topology.receivers)
    if per == "edge":
        out = x.new_empty(edges)
        return None if topology.pair is not None else out if call("edge_dot", ends, (edges, _width(x)), out) else None
    if per == "head" and x.dim() < 3:
        return None
    retained = (x.shape[-1],) if per == "channel" else (x.shape[-2], 1)
    out = x.new_empty(topology.num_weights, *retained)
    return _run("edge_product", (*ends, topology.pair), (edges, len(out), *_axes_and_channels(x, len(retained))), out)


def sum_gradients(
    other: Tensor, weight: Tensor, u: Tensor, topology: Topology, *, of_rows: bool
) -> tuple[Tensor, ...] | None:
    """Return both gradients of ``row_sum`` or ``column_sum`` in one pass."""
    if not _weighs(weight, other) or not serves(other, weight, u):
        return None
    ends, rows = (topology.receivers, topology.senders), topology.num_columns
    ends, rows = (ends, rows) if of_rows else (ends[::-1], topology.num_rows)
    out, products = _dense_like(other), _dense_like(weight)
    sizes = (topology.num_edges, rows, topology.num_weights, *_axes_and_channels(other, weight.dim() - 1))
    call("sum_and_product", (u, other, weight, *ends, topology.pair), sizes, products, out)
    return out, products


def edge_product_gradients(x: Tensor, g: Tensor, u: Tensor, topology: Topology) -> tuple[Tensor, ...] | None:
    """Return both gradients of ``edge_product`` in one pass."""
    if not _weighs(u, x) or not serves(x, g, u):
        return None
    sent, received = _dense_like(x), _dense_like(g)
    sizes = (topology.num_edges, topology.num_columns, topology.num_rows, *_axes_and_channels(x, u.dim() - 1))
    call("both_sums", (x, g, u, topology.senders, topology.receivers, topology.pair), sizes, sent, received)
    return sent, received


def outer_sum(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor | None:
    """Sum messages times directions, row by row, all axes at once."""
    if not serves(messages, directions) or messages.dim() != 2 or directions.dim() != 2:
        return None
    rows, dim, channels = topology.num_rows, directions.shape[1], messages.shape[1]
    out = messages.new_empty(rows, dim, channels)
    return _run("outer_sum", (messages, directions, topology.row_offsets), (rows, dim, channels), out)


def along_directions(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """Project vectors of receivers on directions, edge by edge."""
    if not serves(directions, vectors) or directions.shape[1:] != vectors.shape[1:-1]:
        return None
    edges, dim, channels = topology.num_edges, directions.shape[1], vectors.shape[2]
    out = vectors.new_empty(edges, channels)
    return _run("along_directions", (directions, vectors, topology.receivers), (edges, dim, channels), out)


def along_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """Contract vectors of receivers with messages, edge by edge."""
    if not serves(messages, vectors) or messages.shape[1:] != vectors.shape[2:]:
        return None
    edges, dim, channels = topology.num_edges, vectors.shape[1], messages.shape[1]
    out = vectors.new_empty(edges, dim)
    return _run("along_channels", (messages, vectors, topology.receivers), (edges, dim, channels), out)


def sum_along(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology) -> Tensor | None:
    """Sum weighted states of senders times directions, row by row."""
    if not serves(x, weight, directions) or x.shape[1:] != weight.shape[1:]:
        return None
    sizes = (topology.num_rows, directions.shape[1], x.shape[1])
    out = x.new_empty(sizes)
    return _run("sum_along", (x, weight, directions, topology.senders, topology.row_offsets, topology.pair), sizes, out)


def collect_along(weight: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """Sum projected, weighted vectors of receivers at senders."""
    if not serves(weight, directions, vectors) or vectors.shape[1:] != (*directions.shape[1:], *weight.shape[1:]):
        return None
    out = weight.new_empty(topology.num_columns, weight.shape[1])
    arrays = (weight, directions, vectors, topology.senders, topology.receivers, topology.pair)
    sizes = (topology.num_edges, topology.num_columns, directions.shape[1], weight.shape[1])
    return _run("collect_along", arrays, sizes, out)


def multiply_along(x: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """Multiply states of senders with projected vectors of receivers."""
    if not serves(x, directions, vectors) or vectors.shape[1:] != (*directions.shape[1:], *x.shape[1:]):
        return None
    sizes = (topology.num_edges, topology.num_weights, directions.shape[1], x.shape[1])
    arrays = (x, directions, vectors, topology.senders, topology.receivers, topology.pair)
    return _run("multiply_along", arrays, sizes, x.new_empty(sizes[1], sizes[3]))


def contract_along(x: Tensor, weight: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """Contract weighted states of senders with vectors of receivers."""
    if not serves(x, weight, vectors) or not x.shape[1:] == weight.shape[1:] == vectors.shape[2:]:
        return None
    sizes = (topology.num_edges, vectors.shape[1], x.shape[1])
    out = x.new_empty(sizes[:2])
    return _run("contract_along", (x, weight, vectors, topology.senders, topology.receivers, topology.pair), sizes, out)


def sum_along_gradients(
    x: Tensor, weight: Tensor, directions: Tensor, u: Tensor, topology: Topology
) -> tuple[Tensor, ...] | None:
    """Return all gradients of ``sum_along`` in one pass."""
    if not serves(x, weight, directions, u) or x.shape[1:] != weight.shape[1:]:
        return None
    outs = [_dense_like(tensor) for tensor in (x, weight, directions)]
    arrays = (x, weight, directions, u, topology.senders, topology.receivers, topology.pair)
    sizes = (topology.num_edges, topology.num_columns, topology.num_weights, directions.shape[1], x.shape[1])
    call("along_gradient", arrays, sizes, *outs)
    return tuple(outs)


def gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, topology: Topology) -> Tensor | None:
    """Add the states of both ends and of the edge."""
    shapes = {end.shape[1:] for end in (received, sent, edges) if end is not None}
    if not serves(received, sent, edges) or len(shapes) > 1:
        return None
    out = sent.new_empty(topology.num_edges, *sent.shape[1:])
    ends = (received, sent, edges, topology.senders, topology.receivers, topology.pair)
    return _run("gather_add", ends, (topology.num_edges, _width(sent)), out)


def sum_to_receivers(messages: Tensor, segments: tuple[Tensor, int]) -> Tensor | None:
    """Add messages to their receivers, which may be in any order."""
    receivers, num_nodes = segments
    if not serves(messages) or not _indexes(receivers, messages):
        return None
    out = messages.new_empty(num_nodes, *messages.shape[1:])
    return out if call("scatter_sum", (messages, receivers), _sizes(messages, num_nodes), out) else None


def pair_edges(vectors: Tensor, topology: Topology) -> tuple[Tensor, Tensor] | None:
    """Return each pair's first edge and each edge's pair, or None."""
    edges = topology.num_edges
    wide = topology.senders.dtype == topology.receivers.dtype == torch.int64
    if not edges or not wide or topology.num_rows != topology.num_columns or not serves(vectors):
        return None
    first, pair = (topology.senders.new_empty(count) for count in (edges + 1, edges))
    arrays = (vectors, topology.senders, topology.receivers, topology.row_offsets)
    if not call("pair_edges", arrays, (edges, vectors.shape[1]), first, pair):
        return None
    count = int(first.numpy()[edges])  # not an operation on a device, which would be waited for
    return first[:count], pair


def serves_segments(messages: Tensor, receivers: Tensor, num_nodes: int) -> bool:
    """Return True if the loops over rows accept these messages.

    Receivers must be int64, ascending and numbers of nodes.
    """
    if not serves(messages) or not _indexes(receivers, messages):
        return False
    return call("ascends", (receivers,), (receivers.shape[0], num_nodes))


def statistics(messages: Tensor, segments: tuple[Tensor, int]) -> tuple[Tensor, ...]:
    """Return mean, variance, least and largest of messages that ``serves_segments`` accepts."""
    outs = [messages.new_empty(segments[1], *messages.shape[1:]) for _ in range(4)]
    call("statistics", (messages, segments[0]), _sizes(messages, segments[1]), *outs)
    return tuple(outs)


def statistics_gradient(segments: tuple[Tensor, int], messages: Tensor, *values: Tensor | None) -> Tensor:
    """Return the gradient of messages from mean, least, largest and the gradients of their statistics."""
    out, spare = _dense_like(messages), messages.new_empty(2, _width(messages))
    sizes = _sizes(messages, segments[1])
    return _run("statistics_gradient", (messages, segments[0], *values), sizes, spare, out)


def holders(messages: Tensor, value: Tensor, segments: tuple[Tensor, int]) -> Tensor | None:
    """Return each node's first edge with ``value``, or the number of edges."""
    if not serves_segments(messages, *segments):
        return None
    out = torch.empty_like(value, dtype=torch.int64)
    return _run("holders", (messages, segments[0], value), _sizes(messages, value.shape[0]), out)


def silu_slope_gradient(x: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return both gradients of g silu'(x) in one pass."""
    if not serves(x, g, u) or not x.shape == g.shape == u.shape:
        return None
    for_x, for_g = _dense_like(x), _dense_like(x)
    call("silu_slope_gradient", (x, g, u), (x.numel(),), for_x, for_g)
    return for_x, for_g


def function_orders(
    name: str, sums: int, a: Tensor, w: Tensor, incoming: Sequence[Tensor], topology: Topology
) -> tuple[Tensor, ...]:
    """Return weighted sums of functions of messages, their gradients, or theirs, by what arrives."""
    rows, arrays = (topology.num_rows, a.shape[1]), (a, w, *incoming, topology.receivers)
    if not incoming:
        loop, outs = f"{name}_sum" if sums == 1 else f"{name}_sums", [a.new_empty(rows if sums == 1 else (sums, *rows))]
    else:
        loop, outs = f"{name}_gradient", [_dense_like(a), _dense_like(w)]
    if len(incoming) > 1:
        loop, outs = f"{name}_second", [*outs, _dense_like(incoming[0])]
    # the gradient of one sum needs no number of rows
    sizes = (topology.num_edges, *(rows[1:] if len(incoming) == 1 == sums else rows))
    call(loop, arrays, sizes, *outs)
    return tuple(outs)


def table_value(x: Tensor, table: Any) -> Tensor | None:
    """Return the functions of a ``Table`` at each x."""
    knots = table.knots
    if not serves(x, knots) or x.dim() != 1:
        return None
    intervals, channels = knots.shape[0] - 1, knots.shape[2]
    out = x.new_empty(x.shape[0], channels)
    return _run("table_value", (x, knots, x.new_tensor([1 / table.step])), (x.shape[0], intervals, channels), out)


def table_slope(x: Tensor, g: Tensor, table: Any) -> Tensor | None:
    """Return the sum over channels of g times the derivative at x."""
    knots = table.knots
    if not serves(x, g, knots) or x.dim() != 1 or g.shape != (x.shape[0], knots.shape[2]):
        return None
    out = _dense_like(x)
    sizes = (x.shape[0], knots.shape[0] - 1, knots.shape[2])
    return _run("table_slope", (x, g, knots, x.new_tensor([1 / table.step])), sizes, out)


def _run(name: str, arrays: Sequence[Tensor | None], sizes: Sequence[int], *outs: Tensor) -> Tensor:
    """Call a loop; return the last array that it writes."""
    call(name, arrays, sizes, *outs)
    return outs[-1]


def _dense_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _indexes(receivers: Tensor, messages: Tensor) -> bool:
    """Return True if there is an int64 receiver for every message."""
    return receivers.dtype == torch.int64 and receivers.shape == messages.shape[:1]


def _sizes(messages: Tensor, num_nodes: int) -> tuple[int, int, int]:
    return messages.shape[0], num_nodes, _width(messages)


def _width(messages: Tensor) -> int:
    return messages.shape[1:].numel()
