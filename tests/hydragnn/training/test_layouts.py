"""Ranks that share states, weights and channels take the steps of one, and go on from each other's checkpoints."""

import shutil
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train
from tests.forked import Forked

KINDS = ("painn", "mace", "schnet", "equivariant_transformer", "field_tokens")
LAYOUTS: dict[str, dict[str, Any]] = {
    "copies that share states": {"states": "shared"},
    "shards": {"shard": 2, "micro_batches": 2},
    "channels": {"tensor": 2},
}
"""Layouts of two ranks."""
MOVED: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "copies that share states": (2, {"states": "shared"}),
    "shards": (2, {"shard": 2, "micro_batches": 2}),
    "channels": (2, {"tensor": 2}),
    "stages": (2, {"pipeline": 2, "micro_batches": 3}),
    "chunks": (2, {"pipeline": 2, "chunks": 2, "micro_batches": 3}),
    "graphs": (2, {"graph": 2, "micro_batches": 3}),
    "shards of channels": (4, {"tensor": 2, "shard": 2}),
}
"""Ranks and layouts between which checkpoints move."""
PAIRS = list(product(MOVED, MOVED))
WITHOUT_FORCES = [
    {"kind": "energy", "field": "energy", "per_node": True, "references": True, "hidden_dims": [8]},
    {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"},
]
GRAPHS = 20
ROUNDING = 1e-10
"""Sums in another order, over 15 steps in double precision: the largest seen was 5e-14."""

Start = Callable[..., list[Forked]]


@pytest.fixture(scope="session")
def start(launch: Callable[..., Forked]) -> Start:
    """Starts ranks that train runs one after the other."""

    def begin(runs: dict[Path, RunConfig], ranks: int, *options: str) -> list[Forked]:
        options = (*options, "--graphs", str(GRAPHS))
        step = {"SLURM_JOB_ID": "80", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(ranks)}
        return [launch(runs, *options, **step, SLURM_PROCID=str(rank)) for rank in range(ranks)]

    return begin


def finish(processes: list[Forked]) -> None:
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output


@pytest.fixture(scope="module")
def few(material: ModuleType) -> MemoryStore:
    """What the ranks train on."""
    return material.clusters(GRAPHS)


def config_of(make_config: Callable[..., RunConfig], kind: str, layout: dict[str, Any]) -> RunConfig:
    """Batches of thirteen graphs leave one in the last step, which the second rank has not."""
    changes = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": 2}
    changes |= {"model__angles": 2} if kind == "field_tokens" else {}
    return make_config(kind, parallel=layout, **changes)


def largest_difference(one: RunRecord, other: RunRecord) -> float:
    assert one.curves.keys() == other.curves.keys() and one.epochs == other.epochs
    pairs = [pair for name, curve in one.curves.items() for pair in zip(curve, other.curves[name])]
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs if a is not None and b is not None)


@pytest.fixture(scope="module")
def alone(
    make_config: Callable[..., RunConfig], few: MemoryStore, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunRecord]:
    """Every model trained by one rank."""
    folder = tmp_path_factory.mktemp("alone")
    return {kind: train(config_of(make_config, kind, {}), folder / kind, store=few) for kind in KINDS}


@pytest.mark.parametrize("name", ["copies that share states", "shards"])
def test_every_layout_takes_the_steps_of_one_rank(
    name: str, alone: dict[str, RunRecord], make_config: Callable[..., RunConfig], start: Start, tmp_path: Path
) -> None:
    finish(start({tmp_path / kind: config_of(make_config, kind, LAYOUTS[name]) for kind in KINDS}, 2))
    for kind in KINDS:
        assert largest_difference(alone[kind], read_record(tmp_path / kind)) < ROUNDING, kind


def test_shards_of_copies_of_four_ranks_take_the_steps_of_one(
    alone: dict[str, RunRecord], make_config: Callable[..., RunConfig], start: Start, tmp_path: Path
) -> None:
    runs = {
        tmp_path / kind: config_of(make_config, kind, {"shard": 2, "states": "shared"}) for kind in ("painn", "mace")
    }
    finish(start(runs, 4))
    for path in runs:
        assert largest_difference(alone[path.name], read_record(path)) < ROUNDING


IN_MEMORY: dict[str, dict[str, Any]] = {
    "copies": {},
    "shards": {"shard": 2},
    "channels": {"tensor": 2},
    "stages": {"pipeline": 2, "micro_batches": 2},
    "graphs": {"graph": 2},
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_ranks_of_every_layout_compute_as_many_parts_as_memory_asks_for(
    name: str, few: MemoryStore, make_config: Callable[..., RunConfig], start: Start, tmp_path: Path
) -> None:
    changes = {"batch__max_graphs": 13, "train__epochs": 3, "model__num_layers": 4, "model__repulsion": "none"}
    configs = {
        tmp_path / what: make_config("schnet", WITHOUT_FORCES, parallel=IN_MEMORY[name], **changes, **own)
        for what, own in {"whole": {}, "parts": {"batch__memory": "210 kB"}, "filled": FILLED}.items()
    }
    finish(start(configs, 2))
    whole, parts, filled = map(read_record, configs)
    assert largest_difference(whole, parts) < ROUNDING
    assert parts.curves != whole.curves  # the order of sums is another
    assert filled.memory_budget[""]["max_nodes"] > 0


FILLED = {"batch__memory": "210 kB", "batch__budget": "auto"}


@pytest.fixture(scope="module")
def moved(
    make_config: Callable[..., RunConfig], few: MemoryStore, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Runs of all layouts, to the end and to the middle, and from there to the end in every layout."""
    folder = tmp_path_factory.mktemp("moved")
    changes = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": 2, "model__num_layers": 4}
    configs = {
        name: make_config("painn", WITHOUT_FORCES, parallel=layout, **changes) for name, (_, layout) in MOVED.items()
    }

    def train_all(runs: dict[Path, str], *options: str, **arguments: Any) -> None:
        """Train each in its layout, those of equally many ranks in the same processes."""
        for ranks in (2, 4):
            own = {path: configs[name] for path, name in runs.items() if MOVED[name][0] == ranks}
            finish(start(own, ranks, *options))
        for path in (path for path, name in runs.items() if MOVED[name][0] == 1):
            train(configs["one"], path, store=few, **arguments)

    train_all({folder / name: name for name in MOVED})
    train_all({folder / f"{name} half": name for name in MOVED}, "--until", "1", until=1)
    for source, target in PAIRS:
        shutil.copytree(folder / f"{source} half", folder / f"{source} to {target}")
    train_all({folder / f"{source} to {target}": target for source, target in PAIRS}, "--resume", resume=True)
    return folder


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_checkpoint_of_any_layout_goes_on_in_any_other(source: str, target: str, moved: Path) -> None:
    """With averaged weights and states of the optimizer; in its own with the same bits."""
    path = moved / f"{source} to {target}"
    assert (
        read_record(path).epochs == 2 and largest_difference(read_record(moved / "one"), read_record(path)) < ROUNDING
    )
    models = [load_file(run / "model" / "weights.safetensors") for run in (moved / "one", path)]
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        # AdamW divides by the size of a gradient, which is rounding where nothing depends on a weight
        assert (models[1][key] - value).abs().max() <= 1e-8, key
    assert source != target or same_model(path, moved / source)


def same_model(one: Path, other: Path) -> bool:
    first, second = ((path / "model" / "weights.safetensors").read_bytes() for path in (one, other))
    return first == second and read_record(one).curves == read_record(other).curves


@pytest.mark.parametrize(
    ("layout", "heads"),
    [({"shard": 2}, None), ({"pipeline": 2, "chunks": 2, "micro_batches": 3}, WITHOUT_FORCES)],
    ids=["shards", "chunks"],
)
def test_ranks_that_are_killed_go_on_with_the_same_bits(
    layout: dict[str, Any], heads: Any, make_config: Callable[..., RunConfig], start: Start, tmp_path: Path
) -> None:
    changes = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": 8, "model__num_layers": 4}
    config = make_config("schnet", heads, parallel=layout, **changes)
    finish(start({tmp_path / "whole": config}, 2))
    latest = tmp_path / "cut" / "checkpoints" / "latest.json"
    processes = start({tmp_path / "cut": config}, 2)
    while not latest.exists() and processes[0].poll() is None:
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.wait(60)
    finish(start({tmp_path / "cut": config}, 2, "--resume"))
    assert same_model(tmp_path / "cut", tmp_path / "whole")
