"""Cuts of batches over ranks: every node has one owner, and parts have what their owners need."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydragnn.conformance.cases import make_graph
from hydragnn.distributed.graph_ranks import metis
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.cutting import UNEVEN, crossing, cut_nodes, part_of_rank
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.validate import graph_from_arrays


@dataclass(frozen=True, kw_only=True, slots=True)
class Nobody:
    rank: int
    size: int

    def swap(self, rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        raise AssertionError

    def total(self, values: Tensor) -> Tensor:
        raise AssertionError


def grid(side: int) -> GraphBatch:
    """Squares, each joined with its neighbours in both directions."""
    number = np.arange(side * side).reshape(side, side)
    one = np.concatenate([number[:-1].reshape(-1), number[:, :-1].reshape(-1)])
    other = np.concatenate([number[1:].reshape(-1), number[:, 1:].reshape(-1)])
    places = np.stack(np.divmod(np.arange(side * side), side), axis=1)
    return graph_from_arrays(places, np.concatenate([one, other]), np.concatenate([other, one]))


Sizes = list[tuple[int, int, int]]
sizes = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=5)


def batch_of(graphs: Sizes) -> GraphBatch:
    return concatenate([make_graph(seed, nodes, edges=edges) for seed, nodes, edges in graphs])


@settings(deadline=None, max_examples=20)
@given(graphs=sizes, size=st.integers(1, 5), seed=st.integers(0, 99))
def test_every_node_and_edge_has_one_owner_and_copies_come_from_it(graphs: Sizes, size: int, seed: int) -> None:
    batch = batch_of(graphs)
    cut = torch.randint(size, (batch.num_nodes,), generator=torch.Generator().manual_seed(seed))
    parts = [part_of_rank(batch, cut, Nobody(rank=rank, size=size)) for rank in range(size)]
    halos = [part.halo for part in parts if part.halo is not None]
    owned = torch.cat([halo.numbers[halo.owned] for halo in halos])
    assert owned.sort().values.tolist() == list(range(batch.num_nodes))
    assert sum(part.num_edges for part in parts) == batch.num_edges
    for part, halo in zip(parts, halos):
        assert bool(halo.owned[part.receivers].all())
        assert (part.receivers.diff() >= 0).all()
        assert torch.equal(batch.owner("node")[halo.numbers], part.owner("node"))
        for rank, other in enumerate(halos):  # what one sends is what the other expects
            sent = halo.numbers[halo.sent.split(list(halo.sent_to))[rank]]
            mine = other.numbers[other.rows.split(list(other.copies_from))[halo.peers.rank]]
            assert torch.equal(sent, mine)
    vectors = torch.cat([edge_vectors(part) for part in parts])
    assert torch.equal(vectors.sort(0).values, edge_vectors(batch).sort(0).values)
    assert sum(len(halo.sent) for halo in halos) == len(crossing(batch, cut)[1])


@settings(deadline=None, max_examples=20)
@given(graphs=sizes, size=st.integers(1, 4))
def test_a_cut_is_balanced_up_to_one_node_and_the_same_again(graphs: Sizes, size: int) -> None:
    batch = batch_of(graphs)
    cut = cut_nodes(batch, size)
    assert torch.equal(cut, cut_nodes(batch, size))
    costs = batch.topology.degrees + 8
    loads = torch.zeros(size, dtype=torch.int64).index_add_(0, cut, costs)
    mean = float(costs.sum()) / size
    assert float(loads.max()) <= max(UNEVEN * mean, mean + float(costs.max()))


def test_many_small_graphs_stay_whole() -> None:
    batch = concatenate([make_graph(seed, 6) for seed in range(20)])
    edges, rows, _ = crossing(batch, cut_nodes(batch, 4))
    assert edges == len(rows) == 0


@pytest.mark.parametrize("partition", [None, *([metis] if find_spec("pymetis") else [])])
def test_a_grid_is_cut_along_short_lines(partition: Any) -> None:
    batch = grid(32)
    cut = cut_nodes(batch, 4, partition=partition)
    loads = torch.zeros(4, dtype=torch.int64).index_add_(0, cut, batch.topology.degrees + 8)
    # two lines through the middle cut 2 * 32 pairs, each of two edges; boxes are straight here, and METIS may do a little worse
    assert crossing(batch, cut)[0] <= 1.25 * 4 * 32
    assert 4 * int(loads.max()) <= UNEVEN * int(loads.sum())


def test_graphs_without_positions_are_cut_in_breadth_first_order() -> None:
    field = Field(name="x", on="node")
    line = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    ends = torch.cat([line[:-1], line[1:]]), torch.cat([line[1:], line[:-1]])
    batch = graph_from_arrays(torch.zeros(40, 0), *ends, fields=[field], nodes={"x": torch.zeros(40)})
    assert len(crossing(batch, cut_nodes(batch, 2))[1]) == 2  # one node on each side
