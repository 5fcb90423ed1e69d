"""Ranks that share states, weights and channels take the steps of one, and go on from each other's checkpoints."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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


def config_of(make_config: Callable[..., RunConfig], kind: str, layout: dict[str, Any], epochs: int = 2) -> RunConfig:
    """Batches of thirteen graphs leave one in the last step, which the second rank has not."""
    changes = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": epochs}
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


def test_a_checkpoint_of_any_layout_goes_on_in_any_other(
    alone: dict[str, RunRecord],
    make_config: Callable[..., RunConfig],
    few: MemoryStore,
    start: Start,
    tmp_path: Path,
) -> None:
    """And in its own with the same bits; an average of weights and optimizer states are in them."""
    configs = {name: config_of(make_config, "painn", layout) for name, layout in LAYOUTS.items()}
    alone_too = {**configs, "one": config_of(make_config, "painn", {})}
    finish(start({tmp_path / name: config for name, config in configs.items()}, 2, "--until", "1"))
    train(alone_too["one"], tmp_path / "one", store=few, until=1)
    pairs = {(source, target): tmp_path / f"{source} -> {target}" for source in alone_too for target in alone_too}
    for (source, _), path in pairs.items():
        shutil.copytree(tmp_path / source, path)
    moved = {path: configs[target] for (_, target), path in pairs.items() if target in configs}
    finish(start(moved, 2, "--resume"))
    finish(start({tmp_path / f"{name} to the end": config for name, config in configs.items()}, 2))
    for source in alone_too:
        train(alone_too["one"], pairs[source, "one"], store=few, resume=True)
    for pair, path in pairs.items():
        assert largest_difference(alone["painn"], read_record(path)) < ROUNDING, pair
    for name in configs:
        assert same_model(pairs[name, name], tmp_path / f"{name} to the end"), name


def same_model(one: Path, other: Path) -> bool:
    first, second = ((path / "model" / "weights.safetensors").read_bytes() for path in (one, other))
    return first == second and read_record(one).curves == read_record(other).curves


def test_shards_that_are_killed_go_on_with_the_same_bits(
    make_config: Callable[..., RunConfig], start: Start, tmp_path: Path
) -> None:
    config = config_of(make_config, "schnet", {"shard": 2}, epochs=8)
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
