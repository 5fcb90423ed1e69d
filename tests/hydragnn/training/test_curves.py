"""Curves of scaling: every loss against an independent count, and what has no curve."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.datasets import Budget, Loader, MemoryStore, Sizes
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.graphs import graph_from_arrays
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.extrapolation import Extrapolation, check_curves
from hydragnn.runs.rank_steps import Interconnect
from hydragnn.training.buckets import BYTES, blocks_of
from tests.hydragnn.training.test_memory import NONE, SLOW, extrapolation, row_of, steps

COPIES = ParallelSettings()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_bytes_of_a_sum_are_those_of_a_ring_that_sums(ranks: int) -> None:
    """Every rank sends one chunk in each of 2 (n - 1) rounds, and all end with the total."""
    own = np.random.default_rng(0).random((ranks, ranks))  # [rank, chunk]
    total, sent = own.sum(0), 0
    for turn in range(2 * (ranks - 1)):
        chunks = [(rank, (rank - turn) % ranks) for rank in range(ranks)]
        values = [own[at] for at in chunks]
        sent += values[0].nbytes
        for (rank, chunk), value in zip(chunks, values):
            own[(rank + 1) % ranks, chunk] = value + (own[(rank + 1) % ranks, chunk] if turn < ranks - 1 else 0.0)
    np.testing.assert_allclose(own, np.tile(total, (ranks, 1)))
    network = Interconnect(latency=0.0, inside=0.0, within=1.0, between=1.0, source="")
    assert network.sums(ranks, 1, ranks, float(total.nbytes))[0] == pytest.approx(sent)


@pytest.mark.parametrize("ranks", [2, 4, 32, 1024])
def test_latency_of_a_sum_is_that_of_halving_and_doubling(ranks: int) -> None:
    """Partners exchange what they have until each has the values of all, there and back."""
    rounds, known = 0, np.eye(ranks, dtype=bool)
    while not known.all():
        known |= known[np.arange(ranks) ^ 2**rounds]
        rounds += 1
    network = Interconnect(latency=1.0, inside=1.0, within=1.0, between=1.0, source="")
    assert network.sums(ranks, 1, ranks, 8.0)[1] == 2 * rounds


@pytest.mark.parametrize(("within", "between", "seconds"), [(4.0, 100.0, 2.0), (100.0, 8.0, 8.0)])
def test_devices_of_a_node_share_its_cards(within: float, between: float, seconds: float) -> None:
    """Eight nodes of eight devices sum eight shards at once; a ring moves 8 bytes of each."""
    network = Interconnect(latency=0.0, inside=0.0, within=within, between=between, source="")
    assert network.sums(8, 8, 8, 8 / (2 * 7 / 8))[0] == pytest.approx(seconds)


@pytest.mark.parametrize(("ranks", "stride", "per_node"), [(8, 1, 8), (8, 1, 4), (16, 2, 8), (4, 8, 8), (12, 1, 8)])
def test_rings_go_inside_nodes_and_from_node_to_node(ranks: int, stride: int, per_node: int) -> None:
    between = int((np.diff(np.arange(ranks) * stride // per_node) > 0).sum())
    network = Interconnect(latency=100.0, inside=1.0, within=1.0, between=1.0, source="")
    assert network.sums(ranks, stride, per_node, 8.0, ways=1)[1] == 100 * between + ranks - 1 - between


@pytest.mark.parametrize("per_node", [4, 2])
def test_stages_of_forces_send_in_four_sweeps(per_node: int) -> None:
    """Messages are of 4 graphs of 10 nodes of 100 bytes."""
    network = Interconnect(latency=1e-3, inside=1e-4, within=1e6, between=1e5, source="")
    row = row_of(extrapolation(network=network, derives=True, per_node=per_node), pipeline=4)
    slow = per_node < 4  # a link between nodes, which no other stages take
    sums = 3 * 2 * (1e-4 + 1e-3 if slow else 2e-4)
    assert row["seconds"]["latency"] == pytest.approx(4 * 19 * (1e-3 if slow else 1e-4) + sums)
    assert row["seconds"]["communication"] == pytest.approx(4 * 19 * 4000 / (1e5 if slow else 1e6))


@pytest.mark.parametrize(("weights", "hidden"), [(2**20, 1.0), (2**23, 0.5)])
def test_weights_of_shared_states_are_gathered_when_the_backward_pass_is_over(weights: int, hidden: float) -> None:
    network = Interconnect(latency=0.0, inside=0.0, within=1e9, between=1e9, source="")
    row = row_of(extrapolation(network=network, accelerator=True, weights=weights))
    assert row["seconds"]["communication"] == pytest.approx((1 - hidden) * 2 * 3 / 4 * weights / 1e9)


@pytest.mark.parametrize("layers", [3, 20, 100])
def test_every_block_of_gradients_has_its_latency(layers: int) -> None:
    blocks, _ = blocks_of([512 * 512] * layers, BYTES / 4, 16, 1)  # of 1 MiB each
    row = row_of(extrapolation(network=SLOW, weights=layers * 2**20))
    assert row["seconds"]["latency"] == pytest.approx((len(blocks) + 2) * 4 * 1e-3)


def with_nodes(nodes: list[int]) -> Extrapolation:
    rows = MemoryStore([graph_from_arrays(np.zeros((count, 3)), [], []) for count in nodes])
    return replace(extrapolation(), loader=Loader(rows, np.arange(len(nodes)), Budget(max_graphs=len(nodes))))


def test_imbalance_is_that_of_64_ranks_that_read_their_shares() -> None:
    nodes = np.random.default_rng(1).integers(1, 60, 200).tolist()
    own = with_nodes(nodes)
    shares = [next(iter(replace(own.loader, rank=rank, ranks=64).epoch(0)))[1].num_nodes for rank in range(64)]
    assert sum(shares) == sum(nodes) and max(shares) > 1.02 * np.mean(shares)
    lost = row_of(own, 64, 200)["losses"]["imbalance"]
    assert lost == pytest.approx(1 - np.mean(shares) / max(shares))


@pytest.mark.parametrize("each", [1, 2, 3, 16])
def test_imbalance_of_many_ranks_is_near_that_of_all(each: int) -> None:
    """Of 1,024 ranks 64 are looked at."""
    own, graphs = extrapolation(), 1024 * each
    nodes = np.random.default_rng(2).integers(1, 60, graphs)
    own.loader.sizes, own.loader.indices = Sizes(nodes=nodes, edges=0 * nodes), np.arange(graphs)
    own.loader.budget = Budget(max_graphs=graphs)
    costs, batch = costs_of(own.loader.sizes, own.loader.node_cost), own.loader.batches(0)[0]
    largest = max(int(costs[share_of(batch, costs, 1024, rank)].sum()) for rank in range(1024))
    assert 0.99 * largest <= own.shares_of(graphs, 1024)[1] <= largest


@pytest.mark.parametrize("graphs", [1, 2, 5, 16])
def test_fixed_work_is_what_no_device_shares(graphs: int) -> None:
    """A step takes 30 ms, and 100 ms a graph; measured by one, two and four graphs."""
    repeats = tuple((0.03 + 0.1 * count,) for count in (1, 2, 4))
    alone = steps({}, (0.0,), costs=(80.0, 160.0, 320.0), repeats=repeats, memory=(0.0, 0.0, 0.0))
    row = row_of(extrapolation(alone=alone, graphs=4 * graphs), graphs=4 * graphs)
    whole, own = 0.03 + 0.4 * graphs, 0.03 + 0.1 * graphs
    assert row["losses"]["fixed work"] == pytest.approx((own - whole / 4) / own)
    assert row["efficiency"] == pytest.approx(whole / 4 / own)


LAYOUTS = [{}, {"shard": 4}, {"pipeline": 2}, {"pipeline": 2, "chunks": 2}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("noise", "seconds", "latency"), [(0.0, 0.15, 1e-3), (0.5, 0.15, 1e-3), (0.0, 0.15, 10.0), (0.0, 3.0, 0.0)]
)
def test_losses_and_efficiency_are_the_whole_step(
    layout: dict[str, int], noise: float, seconds: float, latency: float
) -> None:
    """Also where times and network contradict each other."""
    slow, near = steps({}, (0.2 + noise,)), steps({"replicate": 64, **layout}, (seconds,))
    network = Interconnect(latency=latency, inside=latency, within=1e15, between=1e15, source="")
    own = replace(with_nodes([1, 9, 4, 16] * 16), network=network, alone=slow, layouts=[near], derives=latency > 0)
    curves = own.curves(ParallelSettings.parse(layout))
    least = layout.get("shard", layout.get("pipeline", 1))
    assert [row["devices"] for row in curves] == [2**power for power in range(17) if 2**power >= least]
    end = 64 * layout.get("pipeline", 1)  # as many shares as graphs
    assert all((row["strong"] is not None) == (row["devices"] <= end) for row in curves)
    for one in (row[scaling] for row in curves for scaling in ("strong", "weak") if row[scaling]):
        assert one["efficiency"] + sum(one["losses"].values()) == pytest.approx(1.0)
        assert one["seconds"]["step"] > 0.01
        assert all(share >= 0 for name, share in one["losses"].items() if name != "fixed work")


@pytest.mark.parametrize(
    ("layout", "batch", "graphs", "words"),
    [
        ({"shard": 3}, 64, 64, "shard = 3 takes 3 ranks, which do not divide powers of 2 up to 65,536 devices"),
        ({"shard": 2**17}, 2**20, 2**20, "takes 131,072 ranks, which do not divide powers of 2"),
        ({"tensor": 2}, 64, 64, "would share channels between nodes, which have 1 ranks each"),
        ({"graph": 2}, 64, 64, "graph = 2 takes is only known where ranks measure it; start 2 ranks or a multiple"),
        ({"shard": 16}, 8, 64, "batches of 8 of 64 training graphs are too few for 16 devices"),
        ({}, 64, 1, "batches of 64 of 1 training graphs are too few for 2 devices; use a store of more graphs"),
    ],
)
def test_layouts_without_curves_are_refused(layout: dict[str, int], batch: int, graphs: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_curves(ParallelSettings.parse(layout), [], 1, batch, graphs)


def test_curves_need_measured_times() -> None:
    own: Any = extrapolation(alone=steps({}, (0.0,)), network=NONE)
    with pytest.raises(InputError, match="no time was measured"):
        own.curves(COPIES)
