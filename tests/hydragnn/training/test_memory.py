"""What a batch takes of memory is known before it is computed, and no step takes more than it may."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.conformance.cases import loss_of, make_graph, make_model, small_settings
from hydragnn.conformance.smoothness import atoms_graph, energy_model
from hydragnn.datasets import Budget, MemoryStore, Sizes, pack
from hydragnn.datasets.footprint import Footprint, MemoryLimit, bytes_of, footprint_from_json
from hydragnn.datasets.levels import pieces_of
from hydragnn.distributed import Ranks
from hydragnn.graphs import CLUSTERS, Field, clusters_field, graph_from_arrays, with_contracted_levels
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.levels import known_levels, levels_of
from hydragnn.models import build_model, parse_head
from hydragnn.record import read_record
from hydragnn.runs import train
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.memory import memory_of, size_of_state, within_memory
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import DevicePlacement, Share
from hydragnn.training.loop import take_step
from hydragnn.training.memory import allocations, footprint_of, probe_batch
from hydragnn.training.probe_levels import shares_of

Configs = Callable[..., RunConfig]
CPU = torch.device("cpu")
CURVE = Footprint(forms=((10.0, 1.0, 2.0, 3.0, 0.0), (0.0, 5.0, 0.0, 1.0, 0.5)), kept=(0.0, 1.0, 1.0, 1.0, 0.0))

SMALL = {"model__repulsion": "none"}
"""Without the tables of all pairs of elements, which are larger than the models of these tests."""


def peak(compute: Callable[[], object]) -> int:
    return int(np.concatenate([[0], allocations(compute, CPU)]).cumsum().max())


def test_allocations_are_those_of_the_tensors_that_were_made() -> None:
    changes = allocations(lambda: torch.empty(1000) + torch.empty(1000), CPU)
    assert changes[changes > 0].tolist() == [4000, 4000, 4000]
    assert changes.sum() == 0 and peak(lambda: torch.empty(5, dtype=torch.float64)) == 40


@pytest.mark.parametrize(
    ("kind", "more", "most"),
    [
        ("painn", {}, 1.1),
        # foretold are graphs of different sizes, which are padded, as those of the sample are
        ("schnet", {"global_attention": {"kind": "multihead", "heads": 2}}, 1.15),
        ("pna", {"checkpoint_activations": True}, 1.1),
    ],
    ids=["double backward", "attention, quadratic in nodes", "activations computed twice"],
)
def test_the_peak_of_a_step_is_known_for_batches_of_every_size(kind: str, more: dict[str, Any], most: float) -> None:
    model = make_model(kind, dtype=torch.float32, **more)
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)

    def step(batch: GraphBatch) -> None:
        loss_of(model(batch)).backward(inputs=weights)

    like = concatenate([probe_batch(make_graph(seed, 3 + seed), (1, 3 + seed, 20)) for seed in range(4)])
    like = like.to(dtype=torch.float32)
    footprint = footprint_of(step, like)
    mixed = concatenate([probe_batch(like, (1, nodes, 2 * nodes)) for nodes in (3, 50, 3, 1)])
    for batch in (probe_batch(like, (40, 2, 2)), probe_batch(like, (1, 120, 3000)), mixed):
        measured = batch.size + peak(partial(step, replace(batch)))
        sizes = Sizes(nodes=batch.counts("node").numpy(), edges=batch.counts("edge").numpy())
        assert 0.98 * measured <= footprint.bytes(sizes, np.arange(len(sizes))) <= most * measured


def test_batches_whose_graphs_are_padded_take_no_more_than_foretold() -> None:
    """Attention among all nodes computes graphs of similar sizes together, with rows of zeros; equal probes foretell .93 of the last batch."""
    model = make_model("schnet", dtype=torch.float32, global_attention={"kind": "multihead", "heads": 2})
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)

    def step(batch: GraphBatch) -> None:
        loss_of(model(batch)).backward(inputs=weights)

    like = concatenate([probe_batch(make_graph(seed, 3 + seed), (1, 3 + seed, 20)) for seed in range(4)])
    like = like.to(dtype=torch.float32)
    footprint = footprint_of(step, like)
    for nodes in ([8, 9, 10, 11, 20, 22, 24] * 4, [3, 4, 5, 6] * 10, [50, 52, 54, 56, 60]):
        batch = concatenate([probe_batch(like, (1, size, 4 * size)) for size in nodes])
        measured = batch.size + peak(partial(step, replace(batch)))
        sizes = Sizes(nodes=batch.counts("node").numpy(), edges=batch.counts("edge").numpy())
        foretold = footprint.bytes(sizes, np.arange(len(sizes)))
        assert 0.97 * measured <= foretold <= 1.1 * measured  # orders of padded rows are not in the fit


def test_the_peak_of_attention_through_images_grows_with_edges() -> None:
    """Cells of three sizes foretell larger ones: a squared number of nodes would be 15 times too much of the last."""
    attention = {"kind": "equivariant", "heads": 2, "cutoff": 6.0}
    model = energy_model("painn", cutoff=4.0, global_attention=attention).float()
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)

    def step(batch: GraphBatch) -> None:
        model(batch)["energy"].mean.square().sum().backward(inputs=weights)

    def crystal(*repeats: int) -> GraphBatch:
        return atoms_graph(bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat(repeats), 4.0).to(dtype=torch.float32)

    footprint = footprint_of(step, concatenate([crystal(1, 1, 1), crystal(2, 1, 1), crystal(2, 2, 1)]))
    for batch in (concatenate([crystal(1, 1, 1)] * 8), crystal(4, 3, 3)):
        measured = batch.size + peak(partial(step, replace(batch)))
        sizes = Sizes(nodes=batch.counts("node").numpy(), edges=batch.counts("edge").numpy())
        assert 0.98 * measured <= footprint.bytes(sizes, np.arange(len(sizes))) <= 1.1 * measured


def within(config: RunConfig, store: MemoryStore) -> Assembly:
    plan = plan_run(config, store)
    run = assemble(plan, DevicePlacement(device=CPU, dtype=torch.float64), Ranks(), lambda: None)
    return within_memory(run, plan, Ranks(), {}, lambda: None)


def peak_of_step(run: Assembly, share: Share) -> int:
    beside = size_of_state(run) + sum(part.size for part in share.parts)
    return beside + peak(lambda: take_step(run.state, share, run.context, 0.0))


@pytest.mark.parametrize("budget", [{"max_graphs": 28}, {"budget": "auto"}], ids=["parts", "batches that fill"])
def test_no_step_takes_more_than_the_limit(budget: dict[str, Any], store: MemoryStore, make_config: Configs) -> None:
    config = make_config("painn", **{f"batch__{key}": value for key, value in budget.items()})
    run = within(config.model_copy(update={"batch": config.batch.model_copy(update={"memory": "1 MB"})}), store)
    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == 28
    peaks = [peak_of_step(run, share) for share in shares]
    assert max(peaks) <= 1_000_000
    if "budget" in budget:
        assert all(len(share.parts) == 1 for share in shares) and len(shares) > 1
    else:
        assert len(shares) == 1 and len(shares[0].parts) > 1


@pytest.mark.parametrize("number", [2, 3, 8, 20])
def test_processes_that_share_a_device_divide_its_memory(
    number: int, store: MemoryStore, make_config: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator gets a part that leaves room for as many contexts of the driver; batches fill less than that."""

    class Limited(Exception):
        pass

    def limit(fraction: float, device: torch.device) -> None:
        raise Limited(fraction)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    config = make_config("schnet", batch__budget="auto", **SMALL)
    plan, cuda = plan_run(config, store), torch.device("cuda")
    with pytest.raises(Limited) as caught:
        train(config, tmp_path / "run", store=store, device=cuda, sharing=number)
    (fraction,) = caught.value.args
    filled = memory_of(plan, cuda, number)
    assert filled is not None
    assert 0.8 * 80 * 10**9 < number * filled < number * fraction * 80 * 10**9 < 0.91 * 80 * 10**9
    assert memory_of(plan, cuda, 1) == 72 * 10**9


def test_parts_that_fit_take_the_same_steps(store: MemoryStore, make_config: Configs, tmp_path: Path) -> None:
    config = make_config("schnet", batch__max_graphs=28, train__epochs=2, **SMALL)
    whole = train(config, tmp_path / "whole", store=store)
    parts = train(config, tmp_path / "parts", store=store, memory="400 kB")
    assert parts.config == whole.config
    np.testing.assert_allclose(parts.curves["train/loss"], whole.curves["train/loss"], rtol=1e-9)
    assert parts.curves != whole.curves  # the order of sums is another: they were parts


def test_batches_that_fill_memory_stay_when_a_run_resumes_with_less(
    store: MemoryStore, make_config: Configs, tmp_path: Path
) -> None:
    config = make_config("schnet", batch__budget="auto", batch__memory="900 kB", **SMALL)
    whole = train(config, tmp_path / "whole", store=store)
    train(config, tmp_path / "cut", store=store, until=1)
    begun = read_record(tmp_path / "cut").memory_budget
    again = train(config, tmp_path / "cut", store=store, until=2, resume=True)
    assert again.curves["train/loss"] == whole.curves["train/loss"][:2]  # the same bits
    less = train(config, tmp_path / "cut", store=store, resume=True, memory="450 kB")
    assert less.memory_budget == begun == whole.memory_budget and less.memory_budget[""]["size"] == 900_000
    np.testing.assert_allclose(less.curves["train/loss"], whole.curves["train/loss"], rtol=1e-9)


def test_a_graph_that_does_not_fit_is_named_before_training(store: MemoryStore, make_config: Configs) -> None:
    for batch in ({"batch__memory": "230 kB"}, {"batch__memory": "230 kB", "batch__budget": "auto"}):
        with pytest.raises(
            InputError, match=r"graph \d+ \(\d+ nodes, \d+ edges\) takes .* more than the limit of 230 kB"
        ):
            within(make_config("painn", **batch, **SMALL), store)


def test_batches_that_fill_memory_need_to_know_how_much_there_is(store: MemoryStore, make_config: Configs) -> None:
    with pytest.raises(InputError, match=r"set batch.memory"):
        within(make_config(batch__budget="auto"), store)


@pytest.mark.parametrize("text", ["", "4 parsecs", "-1 GB", "0", "1e9"])
def test_an_amount_of_memory_is_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(InputError, match="no amount of memory"):
        bytes_of(text)


@settings(max_examples=60, deadline=None)
@given(
    graphs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), max_size=30),
    limit=st.integers(700, 3000),
)
def test_batches_within_memory_are_as_full_as_it_allows(graphs: list[tuple[int, int]], limit: int) -> None:
    nodes, edges = (np.array([graph[side] for graph in graphs], dtype=np.int64) for side in (0, 1))
    sizes, memory = Sizes(nodes=nodes, edges=edges), MemoryLimit(footprint=CURVE, size=limit)
    batches = pack(sizes, np.arange(len(graphs)), Budget(memory=memory))
    assert [graph for batch in batches for graph in batch.tolist()] == list(range(len(graphs)))
    for number, batch in enumerate(batches):
        assert CURVE.bytes(sizes, batch) <= limit
        if number + 1 < len(batches):
            assert CURVE.bytes(sizes, np.append(batch, batches[number + 1][0])) > limit * (1 - 1e-5)


def test_a_footprint_survives_being_written() -> None:
    assert footprint_from_json(CURVE.to_json()) == CURVE


def grid(side: int, seed: int = 0) -> GraphBatch:
    """Points of a square with their eight neighbours, and two levels of pairs of them."""
    points = np.stack(np.divmod(np.arange(side * side), side), axis=1).astype(float)
    apart = np.abs(points[:, None] - points).max(-1)
    receivers, senders = np.nonzero(apart == 1)
    graph = with_contracted_levels(graph_from_arrays(points, senders, receivers), 2)
    values = torch.randn(2, side * side, generator=torch.Generator().manual_seed(seed))
    return graph.with_fields({"load": values[0], "answer": values[1]}, fields=[LOAD, ANSWER])


LOAD, ANSWER = Field(name="load", on="node"), Field(name="answer", on="node", role="target")


@pytest.mark.parametrize("kind", ["gin", "dimenet"])
def test_the_peak_of_a_model_that_pools_is_known_for_larger_graphs(kind: str) -> None:
    """Levels of random clusters, which values that are drawn would give, have other edges than those of a grid."""
    model = build_model(
        small_settings(kind, num_layers=5, pooling={"levels": 2}),
        [parse_head({"kind": "scalar", "field": "answer"})],
        [LOAD, ANSWER, clusters_field(2)],
        inputs=["load", CLUSTERS],
        dim=2,
        seed=0,
    )
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)

    def step(batch: GraphBatch) -> None:
        model(batch)["answer"].mean.square().sum().backward(inputs=weights)

    every = concatenate([grid(side) for side in (4, 6, 8, 12, 16)]).to(dtype=torch.float32)
    sizes = every.counts("node").numpy(), every.counts("edge").numpy()
    shares = shares_of(pieces_of(every, levels_of(every, 2)), *sizes)
    footprint = footprint_of(step, every.select(slice(0, 3)), shares)
    for graphs in (grid(16), concatenate([grid(6), grid(12)] * 4), concatenate([grid(4)] * 20)):
        batch = graphs.to(dtype=torch.float32)
        measured = batch.size + peak(partial(step, replace(batch)))
        here = Sizes(nodes=batch.counts("node").numpy(), edges=batch.counts("edge").numpy())
        assert measured <= footprint.bytes(here, np.arange(len(here))) <= 1.25 * measured


@pytest.mark.parametrize(
    ("budget", "window"),
    [({"max_graphs": 24}, 0), ({"budget": "auto"}, 0), ({"budget": "auto"}, 6)],
    ids=["parts", "batches that fill", "levels made in every step"],
)
def test_no_step_of_a_model_that_pools_takes_more_than_the_limit(budget: dict[str, Any], window: int) -> None:
    store = MemoryStore([grid(4 + number % 5, number) for number in range(30)])
    config = RunConfig.parse(
        {
            "data": {"store": "in memory", "window": window},
            "split": {"train": 0.8, "valid": 0.2},
            "batch": {"memory": "3 MB", **budget},
            "model": {"kind": "egnn", "hidden_dim": 8, "num_layers": 5, "cutoff": 3.0, "pooling": {"levels": 2}},
            "heads": [{"kind": "scalar", "field": "answer"}],
        }
    )
    run = within(config, store)
    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == 24
    known = [[known_levels(part) for part in share.parts] for share in shares]
    given = [sum(levels.size for levels in of_parts if levels) for of_parts in known]
    peaks = [peak_of_step(run, share) + size for share, size in zip(shares, given)]
    assert 1_500_000 < max(peaks) <= 3_000_000
    assert any(given) == (not window and "budget" in budget)
