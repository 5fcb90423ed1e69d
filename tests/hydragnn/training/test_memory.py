"""Runs within limited memory: measured batches and parts that fit."""

import json
from pathlib import Path
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
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.memory import allocations, peak_of, size_of_state, within_memory
from hydragnn.runs.plan import plan_run
from hydragnn.training.data import Share
from hydragnn.training.loop import take_step
from tests.hydragnn.training.conftest import Configs, Trained, assembled

CPU = torch.device("cpu")

SMALL = {"model__repulsion": "none"}
"""Without the tables of all pairs of elements, which are larger than the models of these tests."""


def test_allocations_are_those_of_the_tensors_that_were_made() -> None:
    changes = allocations(lambda: torch.empty(1000) + torch.empty(1000))
    assert changes[changes > 0].tolist() == [4000, 4000, 4000] and changes.sum() == 0
    assert peak_of(lambda: torch.empty(5, dtype=torch.float64), CPU) == 40


def within(config: RunConfig, store: MemoryStore) -> Assembly:
    return within_memory(assembled(config, store), plan_run(config, store), Ranks(), lambda: None)


def peak_of_step(run: Assembly, share: Share) -> int:
    beside = size_of_state(run) + sum(part.size for part in share.parts)
    return beside + peak_of(lambda: take_step(run.state, share, run.context, 0.0), CPU)


@pytest.mark.parametrize(
    ("kind", "graphs", "limit"),
    [("painn", 28, 1_000_000), ("equivariant_transformer", 28, 1_500_000), ("schnet", 10, 750_000)],
)
def test_no_step_takes_more_than_the_limit(
    kind: str, graphs: int, limit: int, store: MemoryStore, make_config: Configs
) -> None:
    run = within(make_config(kind, batch__memory=str(limit), batch__max_graphs=graphs), store)
    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == 28
    peaks = [peak_of_step(run, share) for share in shares]
    assert 0.5 * limit < max(peaks) <= limit
    assert len(shares[0].parts) > 1


def test_a_measured_batch_moves_nothing(store: MemoryStore, make_config: Configs, trained: Trained) -> None:
    config = make_config("painn", train__epochs=2, **SMALL)
    run = assembled(config, store)
    before = {name: value.clone() for name, value in run.state.model.state_dict().items()}
    states = {name: value.clone() for name, value in run.state.tensors().items()}
    random = torch.random.get_rng_state()
    limited = make_config("painn", train__epochs=2, batch__memory="1 GB", **SMALL)
    within_memory(run, plan_run(limited, store), Ranks(), lambda: None)
    assert torch.equal(random, torch.random.get_rng_state()) and not run.state.totals.any()
    assert all(torch.equal(value, before[name]) for name, value in run.state.model.state_dict().items())
    assert all(torch.equal(value, states[name]) for name, value in run.state.tensors().items())
    whole = trained("whole", config)
    assert trained("limited", config, memory="1 GB").curves == whole.curves  # the same bits


@pytest.mark.parametrize("number", [2, 20])
def test_processes_that_share_a_device_divide_its_memory(
    number: int, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator gets a part that leaves room for as many contexts of the driver."""

    class Limited(Exception):
        pass

    def limit(fraction: float, device: torch.device) -> None:
        raise Limited(fraction)

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    with pytest.raises(Limited) as caught:
        trained(device=torch.device("cuda"), sharing=number)
    assert number * caught.value.args[0] == pytest.approx(0.9)


def test_a_run_whose_batches_filled_memory_is_not_resumed(trained: Trained, tmp_path: Path) -> None:
    trained(until=1)
    path = tmp_path / "run" / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "batch": {**table["batch"], "budget": "auto"}}))
    with pytest.raises(InputError, match=r'begun with batch\.budget = "auto", which is gone; begin a new run'):
        trained(resume=True)


A_GRAPH = r"graph \d+ \(\d+ nodes, \d+ edges\) takes .* more than the limit of 230 kB"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch__memory": "230 kB"}, A_GRAPH),
    ({"batch__memory": "20 kB"}, "weights, optimizer and validation part alone take .* of 20 kB"),
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


@pytest.mark.parametrize(("graphs", "window"), [(24, 0), (6, 6)])
def test_no_step_of_a_model_that_pools_takes_more_than_the_limit(graphs: int, window: int) -> None:
    store = MemoryStore([grid(4 + number % 5, number) for number in range(30)])
    config = RunConfig.parse(
        {
            "data": {"store": "in memory", "window": window},
            "split": {"train": 0.8, "valid": 0.2},
            "batch": {"memory": "3 MB", "max_graphs": graphs},
            "model": {"kind": "egnn", "hidden_dim": 8, "num_layers": 5, "cutoff": 3.0, "pooling": {"levels": 2}},
            "heads": [{"kind": "scalar", "field": "answer"}],
        }
    )
    run = within(config, store)
    shares = list(run.data.epoch(0))
    assert sum(part.num_graphs for share in shares for part in share.parts) == 24
    peaks = [peak_of_step(run, share) for share in shares]
    assert 1_500_000 < max(peaks) <= 3_000_000
