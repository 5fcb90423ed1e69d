"""Batches with other edges: all pairs, or all within a cutoff."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch, pairs_of_graph
from hydragnn.graphs.field import Location
from hydragnn.graphs.search import edge_order
from hydragnn.graphs.topology import Topology

WITHIN = "pairs within "  # before the cutoff, what pairs are kept under


def wider(batch: GraphBatch, cutoff: float | None) -> GraphBatch:
    """Return the graphs with pairs as edges, and without their fields.

    Pairs are those within ``cutoff`` in the unit of positions, or all. Images of a node through periodic boundaries are
    neighbours of their own, also of the node itself. Edge vectors are differentiable in positions and cells; who is
    whose neighbour follows from their values, is searched on the host and kept with the batch.

    InputError where graphs are periodic and there is no cutoff, since their pairs have no end, and where ``pairs_within`` says so.

    >>> from hydragnn.graphs.validate import graph_from_arrays
    >>> chain = graph_from_arrays([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [], [])
    >>> wider(chain, 2.5).num_edges, wider(chain, None).num_edges
    (4, 6)
    """
    table = pairs_of_nodes(batch, cutoff)
    receivers, senders, images = table[0], table[1], table[2:]
    topology = Topology.square(senders, receivers, batch.num_nodes)
    owner = batch.owner("node").index_select(0, receivers)
    cells = batch.cell.to(batch.positions.dtype).index_select(0, owner)[:, :, : batch.dim]  # [pairs, 3, dim]
    return replace(
        batch,
        topology=topology,
        edge_shifts=(images.T.to(cells.dtype).unsqueeze(2) * cells).sum(1),
        edge_offsets=topology.row_offsets.index_select(0, batch.node_offsets),
        fields={},
        nodes={},
        edges={},
        graphs={},
        masks={},
    )


def pairs_key(cutoff: float | None) -> tuple[str, Location]:
    """Return where a batch keeps its pairs."""
    return "all pairs" if cutoff is None else f"{WITHIN}{cutoff}", "edge"


def pairs_of_nodes(batch: GraphBatch, cutoff: float | None) -> Int[Tensor, "5 pairs"]:
    """Return receiver, sender and the sender's image in cell vectors."""
    table: Tensor = batch._derive(
        *pairs_key(cutoff), lambda: _all_pairs(batch) if cutoff is None else _pairs_within(batch, cutoff)
    )
    return table


def _all_pairs(batch: GraphBatch) -> Int[Tensor, "5 pairs"]:
    """Every node receives from all others of its graph."""
    if batch.periodic.any():
        number = int(batch.periodic.any(1).nonzero()[0])
        problem = f"graph {number} of the batch is periodic, and all pairs of its nodes and their images have no end"
        raise InputError(f"{problem}; give a cutoff (model.global_attention.cutoff)")
    owner, counts = batch.owner("node"), batch.counts("node")
    sent = counts.index_select(0, owner)  # [nodes]: as many as its graph has, itself among them
    receivers = torch.arange(batch.num_nodes, device=batch.device).repeat_interleave(sent)
    place = torch.arange(len(receivers), device=batch.device) - (sent.cumsum(0) - sent).index_select(0, receivers)
    senders = batch.node_offsets[:-1].index_select(0, owner).index_select(0, receivers) + place
    distinct = senders != receivers
    ends = torch.stack([receivers[distinct], senders[distinct]])
    return torch.cat([ends, ends.new_zeros(3, ends.shape[1])])


def _pairs_within(batch: GraphBatch, cutoff: float) -> Int[Tensor, "5 pairs"]:
    """Graph by graph, by the search that makes the edges of stores."""
    bounds, tables = batch.node_offsets.tolist(), [np.zeros((5, 0), dtype=np.int64)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        if first == end:
            continue
        receivers, senders, images, _ = pairs_of_graph(batch, number, cutoff, f"graph {number} of the batch")
        order = edge_order(receivers, senders, images, end - first)
        tables.append(np.stack([receivers + first, senders + first, *images.T])[:, order])
    return torch.from_numpy(np.concatenate(tables, axis=1)).to(batch.device)
