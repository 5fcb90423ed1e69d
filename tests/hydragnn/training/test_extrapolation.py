"""Layouts on more devices follow from measured steps, the packing of the run and a network."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hydragnn.datasets import Budget, Loader, MemoryStore, Sizes
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.pipeline import stage_schedule
from hydragnn.graphs import graph_from_arrays
from hydragnn.parallel import AXES, ParallelSettings
from hydragnn.runs.extrapolation import DEVICES, LOSSES, Extrapolation
from hydragnn.runs.rank_steps import Interconnect, Steps
from tests.hydragnn.distributed.virtual_clock import course_of

NONE = Interconnect(latency=0.0, within=1e15, between=1e15, source="test")
SLOW = Interconnect(latency=1e-3, within=1e9, between=1e9, source="test")


def steps(layout: dict[str, int], seconds: tuple[float, ...], parts: int = 1, **changes: Any) -> Steps:
    """Steps on shares of one and of two graphs of 80 edges; seconds per repeat."""
    first = tuple(0.1 for _ in seconds)
    values = {"chunks": 1, "costs": (80.0, 160.0), "repeats": (first, seconds), "memory": (1000.0, 2000.0)}
    sizes = {axis: layout.get(axis, 1) for axis in AXES}
    return Steps(sizes=sizes, parts=parts, state=4000, **(values | changes))


def extrapolation(*layouts: Steps, graphs: int = 64, **changes: Any) -> Extrapolation:
    """One device takes 100 ms a graph and nothing besides; all graphs cost the same."""
    rows = MemoryStore([graph_from_arrays(np.zeros((10, 3)), [], []) for _ in range(graphs)])
    values = {"network": NONE, "ranks": 4, "per_node": 4, "weights": 10**6, "sent": 100.0, "layers": 4}
    alone = steps({}, (0.2,))
    loader = Loader(rows, np.arange(graphs), Budget(max_graphs=graphs))
    return Extrapolation(loader=loader, alone=alone, layouts=layouts, accelerator=False, **(values | changes))


def row_of(of: Extrapolation, ranks: int = 4, graphs: int = 64, **layout: int) -> dict[str, Any]:
    row = of.row_of(ParallelSettings.parse(layout), ranks, graphs)
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("layout", "network", "lost"),
    [
        ({}, NONE, {}),
        # 1.5 of a megabyte by 1e9 bytes/s, and 4 sums of 4 messages
        ({}, SLOW, {"bytes": 1.5e-3, "latency": 4 * 4 * 1e-3}),
        # three of 48 blocks each: 0.75 of a megabyte three times, and 144 x 2 messages; sums of a few numbers
        ({"shard": 4}, SLOW, {"bytes": 3 * 0.75e-3, "latency": 144 * 2e-3 + 3 * 4e-3}),
        ({"pipeline": 4}, NONE, {"bubble": 1.6 * 3 / 16}),
    ],
    ids=["nothing", "copies", "shards", "stages"],
)
def test_every_loss_is_named(layout: dict[str, int], network: Interconnect, lost: dict[str, float]) -> None:
    row = row_of(extrapolation(network=network), **layout)
    seconds = {name: row["seconds"][name] for name in LOSSES[1:]}
    expected = {name: lost.get(name, 0.0) for name in seconds}
    assert seconds == pytest.approx(expected, abs=1e-6)
    assert row["seconds"]["step"] == pytest.approx(1.6 + sum(expected.values()), abs=1e-6)
    assert row["efficiency"] + sum(row["losses"].values()) == pytest.approx(1.0)
    assert not row["measured"]


@pytest.mark.parametrize(("stages", "chunks", "parts"), [(2, 1, 8), (4, 1, 16), (2, 2, 8)])
def test_bubbles_are_those_of_the_schedule(stages: int, chunks: int, parts: int) -> None:
    row = row_of(extrapolation(), ranks=stages, pipeline=stages, chunks=chunks)
    course = course_of([stage_schedule(stage, stages, chunks, parts) for stage in range(stages)], chunks, 1.0, 2.0)
    assert row["parallel"]["micro_batches"] == parts
    assert row["losses"]["bubble"] == pytest.approx(course.idle / course.seconds, abs=1e-6)


def test_imbalance_is_that_of_the_shares_that_the_run_packs() -> None:
    own = extrapolation()
    nodes = np.random.default_rng(0).integers(1, 40, 64)
    own.loader.sizes = Sizes(nodes=nodes, edges=np.zeros(64, dtype=np.int64))
    costs = costs_of(own.loader.sizes, own.loader.node_cost)
    largest = max(costs[share_of(own.loader.batches(0)[0], costs, 16, rank)].sum() for rank in range(16))
    row = row_of(own, ranks=16)
    assert row["seconds"]["imbalance"] == pytest.approx((largest - costs.sum() / 16) * 0.1 / 80)
    assert row["losses"]["imbalance"] == pytest.approx(1 - costs.sum() / 16 / largest)


def test_of_more_ranks_than_graphs_one_has_a_graph() -> None:
    row = row_of(extrapolation(graphs=8), ranks=32_768, graphs=8)
    assert row["seconds"]["compute"] + row["seconds"]["imbalance"] == pytest.approx(0.1)


SHARDS = steps({"shard": 4}, (0.9, 0.95))
COPIES = steps({"replicate": 4}, (0.4, 0.42))


def test_measured_layouts_stand_in_the_order_of_measured_times() -> None:
    """However little the network says that shards take."""
    rows = extrapolation(SHARDS, COPIES).best_first(4, 8)
    assert [(row["measured"], row["parallel"]["shard"]) for row in rows[:2]] == [(True, 1), (True, 4)]
    assert [row["seconds"]["step"] for row in rows[:2]] == pytest.approx([0.4, 0.9])
    assert not any(row["measured"] for row in rows[2:])


def test_a_measured_layout_is_extrapolated_with_what_larger_groups_take_more() -> None:
    row = row_of(extrapolation(COPIES, network=SLOW), ranks=64, graphs=128)
    more = 2 * (63 / 64 - 3 / 4) * 1e-3 + 4 * 2 * (6 - 2) * 1e-3  # bytes, and messages of four sums
    assert row["seconds"]["step"] == pytest.approx(0.4 + more, rel=1e-6)


@pytest.mark.parametrize(
    ("memory", "parts", "limit"), [(1e9, 1, "latency"), (13e3, 2, "latency"), (4.5e3, 16, "memory")]
)
def test_a_layout_takes_as_many_parts_as_memory_asks_for(memory: float, parts: int, limit: str) -> None:
    row = row_of(extrapolation(memory=memory, network=SLOW))
    assert (row["parallel"]["micro_batches"], row["limited_by"]) == (parts, limit)
    assert row["fits"] == (limit != "memory")


@pytest.mark.parametrize(("repeats", "words"), [((0.2, 0.24), None), ((0.2, 0.2, 0.3), "differ by 50%, more than 25%")])
def test_repeats_that_differ_are_a_busy_machine(repeats: tuple[float, ...], words: str | None) -> None:
    warning = extrapolation(replace(COPIES, repeats=((0.1, 0.1), repeats))).warning
    assert (warning is None) == (words is None)
    assert words is None or (words in str(warning) and "do not trust the order of layouts" in str(warning))


def test_channels_and_graphs_are_not_extrapolated_from_others() -> None:
    assert extrapolation(COPIES).row_of(ParallelSettings(tensor=2), 4, 8) is None


def test_curves_go_to_the_most_devices() -> None:
    rows = extrapolation(COPIES, network=SLOW).curves()
    assert [row["devices"] for row in rows] == [*DEVICES] and DEVICES[-1] == 65_536
    weak = [row["weak"]["efficiency"] for row in rows]
    assert weak == sorted(weak, reverse=True) and weak[0] > 0.7
    lost = rows[-1]["strong"]["losses"]
    assert lost["imbalance"] + lost["latency"] + lost["bubble"] > 0.9
