"""Runs within limited memory, and layouts on more devices, which follow from measured steps, the packing and a network."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.machine import bytes_of
from hydragnn.config import RunConfig
from hydragnn.datasets import Budget, Loader, MemoryStore, Sizes
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed import Ranks
from hydragnn.distributed.pipeline import stage_schedule
from hydragnn.graphs import Field, graph_from_arrays, with_contracted_levels
from hydragnn.graphs.batch import GraphBatch
from hydragnn.parallel import AXES, ParallelSettings
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.extrapolation import DEVICES, LOSSES, Extrapolation
from hydragnn.runs.memory import allocations, peak_of, size_of_state, within_memory
from hydragnn.runs.plan import plan_run
from hydragnn.runs.rank_steps import Interconnect, Steps
from hydragnn.training.data import Share
from hydragnn.training.loop import take_step
from tests.hydragnn.distributed.test_pipeline_schedule import course_of
from tests.hydragnn.training.conftest import STORE, Trained, assembled, make_config

CPU = torch.device("cpu")

SMALL = {"model__repulsion": "none"}
"""Without the tables of all pairs of elements, which are larger than the models of these tests."""


def test_allocations_are_those_of_the_tensors_that_were_made() -> None:
    changes = allocations(lambda: torch.empty(1000) + torch.empty(1000))
    assert changes[changes > 0].tolist() == [4000, 4000, 4000] and changes.sum() == 0
    assert peak_of(lambda: torch.empty(5, dtype=torch.float64), CPU) == 40


def within(config: RunConfig, store: MemoryStore = STORE) -> Assembly:
    return within_memory(assembled(config, store), plan_run(config, store), Ranks(), lambda: None)


def peaks_of(run: Assembly, graphs: int) -> list[int]:
    """Return what each step of an epoch of so many graphs takes."""

    def peak(share: Share) -> int:
        beside = size_of_state(run) + sum(part.size for part in share.parts)
        return beside + peak_of(lambda: take_step(run.state, share, run.context, 0.0), CPU)

    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == graphs
    return [peak(share) for share in shares]


@pytest.mark.parametrize(
    ("kind", "graphs", "limit"),
    [("painn", 28, 1_000_000), ("equivariant_transformer", 28, 1_500_000), ("schnet", 10, 750_000)],
)
def test_no_step_takes_more_than_the_limit(kind: str, graphs: int, limit: int) -> None:
    run = within(make_config(kind, batch__memory=str(limit), batch__max_graphs=graphs))
    assert 0.5 * limit < max(peaks_of(run, 28)) <= limit
    assert len(next(run.data.epoch(0)).parts) > 1


def test_a_measured_batch_moves_nothing(trained: Trained) -> None:
    config = make_config("painn", train__epochs=2, **SMALL)
    run = assembled(config, STORE)
    before = {name: value.clone() for name, value in run.state.model.state_dict().items()}
    states = {name: value.clone() for name, value in run.state.tensors().items()}
    random = torch.random.get_rng_state()
    limited = make_config("painn", train__epochs=2, batch__memory="1 GB", **SMALL)
    within_memory(run, plan_run(limited, STORE), Ranks(), lambda: None)
    assert torch.equal(random, torch.random.get_rng_state()) and not run.state.totals.any()
    assert all(torch.equal(value, before[name]) for name, value in run.state.model.state_dict().items())
    assert all(torch.equal(value, states[name]) for name, value in run.state.tensors().items())
    whole = trained("whole", config)
    assert trained("limited", config, memory="1 GB").curves == whole.curves  # the same bits


@pytest.mark.parametrize("number", [2, 20])
def test_processes_share_the_memory_of_a_device(number: int, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator gets a part that leaves room for as many contexts of the driver."""
    limit = Mock(side_effect=KeyError)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    with pytest.raises(KeyError):
        trained(device=torch.device("cuda"), sharing=number)
    assert number * limit.call_args.args[0] == pytest.approx(0.9)


def test_a_run_whose_batches_filled_memory_is_not_resumed(trained: Trained, tmp_path: Path) -> None:
    trained(until=1)
    path = tmp_path / "run" / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "batch": {**table["batch"], "budget": "auto"}}))
    with pytest.raises(InputError, match=r'begun with batch\.budget = "auto", which is gone; begin a new run'):
        trained(resume=True)


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("230 kB", r"graph \d+ \(\d+ nodes, \d+ edges\) takes .* more than the limit of 230 kB"),
        ("20 kB", "weights, optimizer and validation part alone take .* of 20 kB"),
    ],
)
def test_what_does_not_fit_is_named_before_training(memory: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        within(make_config("painn", batch__memory=memory, **SMALL))


@pytest.mark.parametrize("text", ["", "4 parsecs", "-1 GB", "0", "1e9"])
def test_an_amount_of_memory_is_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(InputError, match="no amount of memory"):
        bytes_of(text)


def grid(side: int, seed: int = 0) -> GraphBatch:
    """Points of a square with their eight neighbours, and two levels of pairs of them."""
    points = np.stack(np.divmod(np.arange(side * side), side), axis=1).astype(float)
    apart = np.abs(points[:, None] - points).max(-1)
    receivers, senders = np.nonzero(apart == 1)
    graph = with_contracted_levels(graph_from_arrays(points, senders, receivers), 2)
    values = torch.randn(2, side * side, generator=torch.Generator().manual_seed(seed))
    return graph.with_fields({"load": values[0], "answer": values[1]}, fields=[LOAD, ANSWER])


LOAD, ANSWER = Field(name="load", on="node"), Field(name="answer", on="node", role="target")


@pytest.mark.parametrize(("graphs", "window"), [(24, 0), (6, 6)])
def test_no_step_of_a_model_that_pools_takes_more_than_the_limit(graphs: int, window: int) -> None:
    store = MemoryStore([grid(4 + number % 5, number) for number in range(30)])
    changes: dict[str, Any] = {
        "data__window": window,
        "data__inputs": None,
        "split__train": 0.8,
        "batch__memory": "3 MB",
    }
    changes |= {"batch__max_graphs": graphs, "model__num_layers": 5, "model__pooling": {"levels": 2}}
    config = make_config("egnn", [{"kind": "scalar", "field": "answer"}], train__precision="fp32", **changes)
    assert 1_500_000 < max(peaks_of(within(config, store), 24)) <= 3_000_000


NONE = Interconnect(latency=0.0, inside=0.0, within=1e15, between=1e15, source="test")
SLOW = Interconnect(latency=1e-3, inside=1e-3, within=1e9, between=1e9, source="test")


def steps(layout: dict[str, int], seconds: tuple[float, ...], parts: int = 1, **changes: Any) -> Steps:
    """Steps on shares of one and of two graphs of 80 edges; seconds per repeat."""
    first = tuple(0.1 for _ in seconds)
    values = {"chunks": 1, "costs": (80.0, 160.0), "repeats": (first, seconds), "memory": (1000.0, 2000.0)}
    sizes = {axis: layout.get(axis, 1) for axis in AXES}
    return Steps(sizes=sizes, parts=parts, state=4000, **(values | changes))


def extrapolation(*layouts: Steps, graphs: int = 64, **changes: Any) -> Extrapolation:
    """One device takes 100 ms a graph and nothing besides; all graphs cost the same."""
    rows = MemoryStore([graph_from_arrays(np.zeros((10, 3)), [], []) for _ in range(graphs)])
    values: dict[str, Any] = {"network": NONE, "ranks": 4, "per_node": 4, "weights": 10**6, "sent": 100.0, "layers": 4}
    values |= {"alone": steps({}, (0.2,)), "loader": Loader(rows, np.arange(graphs), Budget(max_graphs=graphs))}
    return Extrapolation(layouts=layouts, **({"accelerator": False} | values | changes))


def row_of(of: Extrapolation, ranks: int = 4, graphs: int = 64, **layout: int) -> dict[str, Any]:
    row = of.row_of(ParallelSettings.parse(layout), ranks, graphs)
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("layout", "network", "lost"),
    [
        ({}, NONE, {}),
        # 1.5 of a megabyte by 1e9 bytes/s, and 3 sums of 4 messages
        ({}, SLOW, {"communication": 1.5e-3, "latency": 3 * 4 * 1e-3}),
        # two gathers and a sum of 48 blocks each: 0.75 of a megabyte four times, 96 x 3 and 48 x 4 messages; sums of a few numbers
        ({"shard": 4}, SLOW, {"communication": 4 * 0.75e-3, "latency": 96 * 3e-3 + 48 * 4e-3 + 3 * 4e-3}),
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
    more = 2 * (63 / 64 - 3 / 4) * 1e-3 + 3 * 2 * (6 - 2) * 1e-3  # bytes, and messages of three sums
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
    rows = extrapolation(network=SLOW).curves(ParallelSettings())
    assert [row["devices"] for row in rows] == [*DEVICES] and DEVICES[-1] == 65_536
    weak = [row["weak"]["efficiency"] for row in rows]
    assert weak == sorted(weak, reverse=True) and weak[0] == 1.0
    strong = {row["devices"] for row in rows if row["strong"]}
    assert strong == {1, 2, 4, 8, 16, 32, 64}  # as many as graphs
