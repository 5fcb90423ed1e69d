"""Filters of length from tables, for fixed weights."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import FunctionTable, Topology, interpolated, tables_of_functions
from hydragnn.layers.message_graph import MessageGraph
from hydragnn.layers.radial import RadialFeatures


class RadialFilters(nn.Module):
    """Filters of a layer: functions of length that end at the cutoff.

    They are computed, or read from ``tables``; weights must not change afterwards.
    """

    tables: tuple[FunctionTable, ...] = ()
    """One for each filter; none: filters are computed."""

    def computed_filters(self, graph: MessageGraph) -> Sequence[Float[Tensor, "items channels"]]:
        """All filters, from ``graph.paired_inputs`` alone."""
        raise NotImplementedError

    def filters_of(self, graph: MessageGraph) -> Sequence[Float[Tensor, "items channels"]]:
        """All filters, for kernels that weigh the edges of ``graph.sharing``."""
        if not self.tables:
            return self.computed_filters(graph)
        return [interpolated(graph.paired_lengths, table) for table in self.tables]


def tables_of(part: RadialFilters, basis: RadialFeatures, dtype: torch.dtype) -> tuple[FunctionTable, ...]:
    """Return a table for each filter, in double precision.

    There is none if any would be too large.

    The basis has an envelope and sees no edge features, so that the cutoff is where tables end.
    """
    return tables_of_functions(lambda lengths: part.computed_filters(edges_of(lengths, basis)), basis.cutoff, dtype)


def edges_of(lengths: Float[Tensor, " edges"], basis: RadialFeatures) -> MessageGraph:
    """Return edges of these lengths between two nodes."""
    ends = torch.zeros(len(lengths), dtype=torch.int64)
    topology = Topology(senders=ends + 1, receivers=ends, num_columns=2, num_rows=2)
    owner = torch.zeros(2, dtype=torch.int64)
    return MessageGraph(
        topology=topology, owner=owner, nodes_per_graph=torch.tensor([2]), vectors=lengths.unsqueeze(-1), basis=basis
    )
