"""Runs within limited memory: measured batches, parts that fit and batches that fill."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.machine import bytes_of
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import Ranks
from hydragnn.graphs import Field, graph_from_arrays, with_contracted_levels
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.levels import known_levels
from hydragnn.record import write_record
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.memory import allocations, memory_of, peak_of, size_of_state, within_memory
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import Share
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import Configs, Trained, assembled

CPU = torch.device("cpu")

SMALL = {"model__repulsion": "none"}
"""Without the tables of all pairs of elements, which are larger than the models of these tests."""


def test_allocations_are_those_of_the_tensors_that_were_made() -> None:
    changes = allocations(lambda: torch.empty(1000) + torch.empty(1000), CPU)
    assert changes[changes > 0].tolist() == [4000, 4000, 4000] and changes.sum() == 0
    assert peak_of(lambda: torch.empty(5, dtype=torch.float64), CPU) == 40


def within(config: RunConfig, store: MemoryStore) -> Assembly:
    return within_memory(assembled(config, store), plan_run(config, store), Ranks(), {}, lambda: None)


def peak_of_step(run: Assembly, share: Share) -> int:
    beside = size_of_state(run) + sum(part.size for part in share.parts)
    return beside + peak_of(lambda: take_step(run.state, share, run.context, 0.0), CPU)


@pytest.mark.parametrize(
    ("kind", "changes", "limit", "parts"),
    [
        ("painn", {"max_graphs": 28}, 1_000_000, True),
        ("painn", {"budget": "auto"}, 1_000_000, False),
        ("equivariant_transformer", {"budget": "auto"}, 1_500_000, False),
        ("schnet", {"max_graphs": 10}, 750_000, True),
    ],
)
def test_no_step_takes_more_than_the_limit(
    kind: str, changes: dict[str, Any], limit: int, parts: bool, store: MemoryStore, make_config: Configs
) -> None:
    batch = {f"batch__{key}": value for key, value in changes.items()}
    run = within(make_config(kind, batch__memory=str(limit), **batch), store)
    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == 28
    peaks = [peak_of_step(run, share) for share in shares]
    assert 0.5 * limit < max(peaks) <= limit
    assert len(shares) > 1 or parts
    assert (len(shares[0].parts) > 1) == parts


def test_a_measured_batch_moves_nothing(store: MemoryStore, make_config: Configs, trained: Trained) -> None:
    config = make_config("painn", train__epochs=2, **SMALL)
    run = assembled(config, store)
    before = {name: value.clone() for name, value in run.state.model.state_dict().items()}
    states = {name: value.clone() for name, value in run.state.tensors().items()}
    random = torch.random.get_rng_state()
    limited = make_config("painn", train__epochs=2, batch__memory="1 GB", **SMALL)
    within_memory(run, plan_run(limited, store), Ranks(), {}, lambda: None)
    assert torch.equal(random, torch.random.get_rng_state()) and not run.state.totals.any()
    assert all(torch.equal(value, before[name]) for name, value in run.state.model.state_dict().items())
    assert all(torch.equal(value, states[name]) for name, value in run.state.tensors().items())
    whole = trained("whole", config)
    assert trained("limited", config, memory="1 GB").curves == whole.curves  # the same bits


@pytest.mark.parametrize("number", [2, 3, 8, 20])
def test_processes_that_share_a_device_divide_its_memory(
    number: int, store: MemoryStore, make_config: Configs, trained: Trained, monkeypatch: pytest.MonkeyPatch
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
        trained("run", config, device=cuda, sharing=number)
    (fraction,) = caught.value.args
    filled = memory_of(plan, cuda, number)
    assert filled is not None
    assert 0.8 * 80 * 10**9 < number * filled < number * fraction * 80 * 10**9 < 0.91 * 80 * 10**9
    assert memory_of(plan, cuda, 1) == 72 * 10**9


def test_parts_that_fit_take_the_same_steps(trained: Trained, make_config: Configs) -> None:
    config = make_config("schnet", batch__max_graphs=28, train__epochs=2, **SMALL)
    whole, parts = trained("whole", config), trained("parts", config, memory="400 kB")
    assert parts.config == whole.config
    np.testing.assert_allclose(parts.curves["train/loss"], whole.curves["train/loss"], rtol=1e-9)
    assert parts.curves != whole.curves  # the order of sums is another: they were parts


def test_batches_that_fill_memory_stay_when_a_run_resumes_with_less_and_those_of_an_earlier_version_are_refused(
    trained: Trained, make_config: Configs, tmp_path: Path
) -> None:
    config = make_config("schnet", batch__budget="auto", batch__memory="900 kB", **SMALL)
    whole, begun = trained("whole", config), trained("cut", config, until=1)
    earlier = {"": {"size": 900_000, "forms": [[1.0] * 5], "kept": [0.0] * 5}}
    write_record(replace(begun, memory_budget=earlier), tmp_path / "cut")
    with pytest.raises(InputError, match=r"version 0\.2\.0 counted in another way"):
        trained("cut", config, resume=True)
    write_record(begun, tmp_path / "cut")
    again = trained("cut", config, until=2, resume=True)
    assert again.curves["train/loss"] == whole.curves["train/loss"][:2]  # the same bits
    less = trained("cut", config, resume=True, memory="500 kB")
    assert less.memory_budget == begun.memory_budget == whole.memory_budget
    assert less.memory_budget[""].keys() == {"max_nodes", "max_edges"}
    np.testing.assert_allclose(less.curves["train/loss"], whole.curves["train/loss"], rtol=1e-9)


A_GRAPH = r"graph \d+ \(\d+ nodes, \d+ edges\) takes .* more than the limit of 230 kB"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch__memory": "230 kB"}, A_GRAPH),
    ({"batch__memory": "230 kB", "batch__budget": "auto"}, A_GRAPH),
    ({"batch__memory": "20 kB"}, "weights, optimizer and validation part alone take .* of 20 kB"),
    ({"batch__budget": "auto"}, r"set batch\.memory"),  # no limit on a CPU
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_does_not_fit_is_named_before_training(
    changes: dict[str, Any], words: str, store: MemoryStore, make_config: Configs
) -> None:
    with pytest.raises(InputError, match=words):
        within(make_config("painn", **changes, **SMALL), store)


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
