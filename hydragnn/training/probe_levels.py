"""Random coarser levels of realistic size, for memory probes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import pad

from hydragnn.datasets.levels import FlatLevel
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.coarse import Level, Levels, Merging, level_of_clusters
from hydragnn.graphs.levels import known_levels, remember_levels
from hydragnn.graphs.topology import Topology
from hydragnn.kernels import pairs_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Nodes and edges of a level, relative to its graph."""

    nodes: float
    """Nodes of the level, beyond one of every graph."""
    edges: float
    kept: float
    """Edges of the next finer level that edges of this one stand for."""


def shares_of(
    levels: Iterable[FlatLevel], nodes: Int64[ndarray, " graphs"], edges: Int64[ndarray, " graphs"]
) -> tuple[Shares, ...]:
    """Return the largest shares of the levels of graphs."""

    def most(offsets: Int64[ndarray, " graphs_plus_one"], of: Int64[ndarray, " graphs"], beyond: int = 0) -> float:
        return float(((np.diff(offsets) - beyond).clip(0) / of.clip(1)).max(initial=0.0))

    return tuple(
        Shares(
            nodes=most(level.offsets["node"], nodes, beyond=1),
            edges=most(level.offsets["edge"], edges),
            kept=most(level.offsets["kept"], edges),
        )
        for level in levels
    )


def with_levels_as_in(batch: GraphBatch, like: GraphBatch, shares: Sequence[Shares]) -> GraphBatch:
    """Return the batch with random levels sized like ``like``'s.

    Clusters without a meaning would have other numbers of edges between them than those of data, which do not grow with edges.
    """
    sizes = known_levels(like)
    if sizes is None:
        return batch
    random, device = torch.Generator().manual_seed(0), batch.device
    levels: list[Level] = []
    for level, share in zip(sizes.levels, shares, strict=True):
        finer = levels[-1].topology if levels else batch.topology.mapped(Tensor.cpu)
        levels.append(_level_like(level.mapped(Tensor.cpu), share, batch, finer, random))
    moved = tuple(level.mapped(lambda tensor: tensor.to(device)) for level in levels)
    remember_levels(batch, Levels(levels=moved, fields=sizes.fields))
    return batch


def _level_like(level: Level, shares: Shares, batch: GraphBatch, finer: Topology, random: torch.Generator) -> Level:
    """A level of the batch above one with the edges ``finer``."""
    nodes = batch.counts("node").cpu()
    # rounded over all graphs together, so that what batches take stays linear in their nodes and edges
    beyond = pad((shares.nodes * nodes.cumsum(0)).round().long(), (1, 0)).diff()
    nodes_per_graph = torch.where(nodes > 0, 1 + beyond, 0)
    count, edges = int(nodes_per_graph.sum()), 2 * round(shares.edges * batch.num_edges / 2)
    kept = min(round(shares.kept * batch.num_edges), finer.num_edges) if edges else 0
    half = torch.randint(max(count, 1), (2, edges // 2), generator=random)
    senders, receivers = torch.cat([half, half.flip(0)], dim=1)
    order = receivers.argsort(stable=True)

    def drawn(values: Tensor) -> Tensor:
        return values.index_select(0, torch.randint(max(len(values), 1), (edges,), generator=random))

    vectors = None
    if level.vectors is not None:
        offsets = torch.rand(edges // 2, level.vectors.shape[1], generator=random) + 1
        other = -offsets if pairs_of(level.vectors, level.topology) is not None else 2 + offsets
        vectors = torch.cat([offsets, other])[order].to(level.vectors.dtype)
    parent = torch.arange(finer.num_rows) * count // max(finer.num_rows, 1)
    return level_of_clusters(
        parent=parent,
        order=torch.arange(finer.num_rows),
        members=torch.bincount(parent, minlength=count),
        topology=Topology.square(senders[order], receivers[order], count),
        nodes_per_graph=nodes_per_graph,
        merging=Merging(
            finer=torch.arange(kept),
            coarser=torch.randint(max(edges, 1), (kept,), generator=random).sort().values,
            num_edges=edges,
        ),
        edge_kinds={name: drawn(kinds) for name, kinds in level.edge_kinds.items()},
        vectors=vectors,
    )
