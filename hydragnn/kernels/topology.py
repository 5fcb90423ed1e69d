"""Who sends to whom: the index structures that all ops of one batch share."""

from dataclasses import dataclass
from dataclasses import field as member

import torch
from jaxtyping import Int
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Topology:
    """A sparse matrix without values: row ``receivers[e]`` of ``num_rows``, column ``senders[e]`` of ``num_columns``.

    ``receivers`` is sorted. ``cache`` keeps what is derived on first use, so that layers share it.
    """

    senders: Int[Tensor, " edges"]
    receivers: Int[Tensor, " edges"]
    num_columns: int
    num_rows: int
    cache: dict[str, Tensor] = member(default_factory=dict, repr=False)

    @property
    def num_edges(self) -> int:
        """Entries of the matrix."""
        return self.senders.shape[0]

    @property
    def row_offsets(self) -> Int[Tensor, " rows_plus_one"]:
        """Row pointer: row i owns the edges ``row_offsets[i]`` to ``row_offsets[i + 1]``."""
        if "receiver_offsets" not in self.cache:
            self.cache["receiver_offsets"] = _row_pointer(self.receivers, self.num_rows)
        return self.cache["receiver_offsets"]

    @property
    def by_sender(self) -> Int[Tensor, " edges"]:
        """The stable permutation of edges that sorts them by sender."""
        if "by_sender" not in self.cache:
            self.cache["by_sender"] = torch.argsort(self.senders, stable=True)
        return self.cache["by_sender"]

    @property
    def column_offsets(self) -> Int[Tensor, " columns_plus_one"]:
        """Row pointer of the transposed matrix, whose entries come in the order ``by_sender``."""
        if "sender_offsets" not in self.cache:
            self.cache["sender_offsets"] = _row_pointer(self.senders, self.num_columns)
        return self.cache["sender_offsets"]

    @property
    def receivers_by_sender(self) -> Int[Tensor, " edges"]:
        """Receivers in the order ``by_sender``: the column indices of the transposed matrix."""
        if "receivers_by_sender" not in self.cache:
            self.cache["receivers_by_sender"] = self.receivers.index_select(0, self.by_sender)
        return self.cache["receivers_by_sender"]

    @property
    def edge_numbers(self) -> Int[Tensor, " edges"]:
        """0 to num_edges - 1."""
        if "edge_numbers" not in self.cache:
            self.cache["edge_numbers"] = torch.arange(self.num_edges, device=self.senders.device)
        return self.cache["edge_numbers"]

    @property
    def degrees(self) -> Int[Tensor, " rows"]:
        """Incoming edges of every row."""
        return self.row_offsets.diff()


def topology_of(batch: GraphBatch) -> Topology:
    """The edges of a batch; what either derives on first use, both keep under the names of ``GraphBatch``."""
    return Topology(
        senders=batch.senders,
        receivers=batch.receivers,
        num_columns=batch.num_nodes,
        num_rows=batch.num_nodes,
        cache=batch.cache,
    )


def relation_topology(topology: Topology, relation: Int[Tensor, " edges"], relations: int) -> Topology:
    """One row per (receiver, relation), at receiver * relations + relation; the order of edges changes.

    >>> edges = Topology(senders=torch.tensor([1, 2]), receivers=torch.tensor([0, 0]), num_columns=3, num_rows=3)
    >>> keyed = relation_topology(edges, torch.tensor([1, 0]), relations=2)
    >>> keyed.senders.tolist(), keyed.receivers.tolist(), keyed.num_rows
    ([2, 1], [0, 1], 6)
    """
    key = topology.receivers * relations + relation
    key, order = torch.sort(key, stable=True)
    return Topology(
        senders=topology.senders.index_select(0, order),
        receivers=key,
        num_columns=topology.num_columns,
        num_rows=topology.num_rows * relations,
    )


def _row_pointer(index: Tensor, rows: int) -> Tensor:
    counts = torch.bincount(index, minlength=rows)
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))
