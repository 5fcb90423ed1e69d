"""What a CPU counts and derives of edges before they move to a GPU."""

from dataclasses import replace

import numpy as np
import torch

from hydragnn.graphs.topology import LONG, Topology, ascending

RANDOM = np.random.default_rng(7)


def random_edges(rows: int, edges: int) -> Topology:
    receivers = torch.from_numpy(np.sort(RANDOM.integers(0, rows, edges)))
    return Topology.square(torch.from_numpy(RANDOM.integers(0, rows, edges)), receivers, rows)


def test_the_longest_row_and_column_are_counted_and_the_count_moves_with_the_edges_and_not_with_others() -> None:
    for rows, edges in ((1, 0), (4, 1), (9, 200)):
        topology = random_edges(rows, edges)
        ends = topology.receivers, topology.senders
        assert topology.longest == tuple(int(torch.bincount(end, minlength=1).max()) for end in ends)
    topology = random_edges(3, 60)
    assert topology.longest is not None
    moved = topology.mapped(torch.clone)
    assert moved._longest == topology.longest and topology.sharing(topology.edge_numbers, 60)._longest
    assert replace(topology, senders=topology.senders[:0], receivers=topology.receivers[:0])._longest is None


def test_what_no_cpu_has_seen_may_be_long() -> None:
    edges = torch.empty(LONG + 1, dtype=torch.int64, device="meta")
    assert Topology.square(edges, edges, 5).long_ends() == (True, True)
    assert Topology.square(edges[1:], edges[1:], 5).long_ends() == (False, False)
    hub = torch.zeros(LONG + 1, dtype=torch.int64)
    others = torch.arange(LONG + 1)
    assert Topology.square(others, hub, LONG + 1).long_ends() == (True, False)
    assert Topology.square(hub, others, LONG + 1).long_ends() == (False, True)


def test_a_prepared_topology_has_what_sorting_gives_and_is_known_to_ascend() -> None:
    for rows, edges in ((3, 0), (1, 1), (7, 90)):
        topology = random_edges(rows, edges)
        topology.prepare()
        fresh = replace(topology)
        for name in ("by_sender", "receivers_by_sender", "column_offsets", "row_offsets", "sorted_senders"):
            assert torch.equal(getattr(topology, name), getattr(fresh, name)), name
        for one in (topology, topology.mapped(torch.clone)):
            noted = ascending(one.receivers, rows)
            assert noted is not None and torch.equal(noted.offsets, one.row_offsets)
        assert ascending(topology.receivers, rows + 1) is None
        topology.receivers.add_(0)  # another version of the same tensor
        assert ascending(topology.receivers, rows) is None


def test_pairs_move_to_a_device_where_the_edges_are_already() -> None:
    edges = torch.zeros(4, dtype=torch.int64, device="meta")
    shared = Topology.square(edges, edges, 2).sharing(torch.zeros(4, dtype=torch.int64), 1)
    moved = shared.to("meta")
    assert moved.pair is not None and moved.pair.is_meta
