"""Forms for a CPU: the compiled loops where they serve, else the form in plain torch.

No array of edges x channels is made on the way to nodes. Sums run in the order of the edges: the bits of ``index_add``, on
every machine and with any number of threads (the loops use one).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.compiled import call, serves
from hydragnn.kernels.family import Form


def or_plain(compiled: Callable[..., Tensor | None], plain: Form) -> Form:
    """The compiled form, and the plain one where that gives None."""

    def form(*given: Any, **options: Any) -> Tensor:
        value = compiled(*given, **options)
        return plain(*given, **options) if value is None else value

    return form


def sum_to_rows(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor | None:
    """A: row by row; None without weights per channel, where ``embedding_bag`` is as fast."""
    if not _per_channel(x, weight):
        return None
    index, offsets = topology.senders, topology.row_offsets
    return _sum_rows(x, weight, index, offsets, None)


def sum_to_columns(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor | None:
    """B: column by column, the weights read where they lie; None without weights per channel, as in A."""
    if not _per_channel(g, weight):
        return None
    index, offsets = topology.receivers_by_sender, topology.column_offsets
    return _sum_rows(g, weight, index, offsets, topology.by_sender)


def _per_channel(x: Tensor, weight: Tensor | None) -> bool:
    return weight is not None and weight.dim() == 2 and weight.shape[-1] == x.shape[-1] and serves(x, weight)


def _sum_rows(x: Tensor, weight: Tensor | None, index: Tensor, offsets: Tensor, order: Tensor | None) -> Tensor:
    rows, dim, channels = offsets.shape[0] - 1, x.shape[1:-1].numel(), x.shape[-1]
    out = x.new_empty(rows, *x.shape[1:])
    call("sum_rows", (x, weight, index, offsets, order), (rows, dim, channels), out)
    return out


def product_of_ends(x: Tensor, g: Tensor, topology: Topology, per_channel: bool) -> Tensor | None:
    """C: edge by edge."""
    if not serves(x, g) or x.shape[1:] != g.shape[1:] or x.dim() < 2:
        return None
    edges, dim, channels = topology.num_edges, x.shape[1:-1].numel(), x.shape[-1]
    ends = (x, g, topology.senders, topology.receivers)
    if per_channel:
        out = x.new_empty(edges, channels)
        call("edge_product", ends, (edges, dim, channels), out)
    else:
        out = x.new_empty(edges)
        call("edge_dot", ends, (edges, dim * channels), out)
    return out


def sum_of_outer_products(messages: Tensor, directions: Tensor, topology: Topology) -> Tensor | None:
    """S: row by row, all axes at once."""
    if not serves(messages, directions):
        return None
    rows, dim, channels = topology.num_rows, directions.shape[1], messages.shape[1]
    out = messages.new_empty(rows, dim, channels)
    call("outer_sum", (messages, directions, topology.row_offsets), (rows, dim, channels), out)
    return out


def sum_over_axes(directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """T: edge by edge."""
    if not serves(directions, vectors):
        return None
    edges, dim, channels = topology.num_edges, directions.shape[1], vectors.shape[2]
    out = vectors.new_empty(edges, channels)
    call("along_directions", (directions, vectors, topology.receivers), (edges, dim, channels), out)
    return out


def sum_over_channels(messages: Tensor, vectors: Tensor, topology: Topology) -> Tensor | None:
    """R: edge by edge."""
    if not serves(messages, vectors):
        return None
    edges, dim, channels = topology.num_edges, vectors.shape[1], messages.shape[1]
    out = vectors.new_empty(edges, dim)
    call("along_channels", (messages, vectors, topology.receivers), (edges, dim, channels), out)
    return out


def sum_to_receivers(messages: Tensor, segments: tuple[Tensor, int]) -> Tensor | None:
    """Messages added one by one to their receivers, which come in any order."""
    if not serves(messages):
        return None
    receivers, num_nodes = segments
    out = messages.new_empty(num_nodes, *messages.shape[1:])
    sizes = (receivers.shape[0], num_nodes, messages.shape[1:].numel())
    return out if call("scatter_sum", (messages, receivers), sizes, out) else None
