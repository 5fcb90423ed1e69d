"""Ranks in every layout take the steps of one, and go on from each other's checkpoints."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hydragnn.config import AnyConfig, RunConfig, config_from_table
from hydragnn.datasets import MemoryStore
from hydragnn.record import read_record
from hydragnn.runs import train
from tests.hydragnn.training.conftest import (
    WITHOUT_FORCES,
    Process,
    RunOnce,
    assert_same_curves,
    assert_same_model,
    finish,
    make_config,
    start_ranks,
    wait_for,
    written,
)
from tests.hydragnn.training.worker import clusters
from tests.once import shared

GRAPHS = 20
COMMON = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": 1}
"""Batches of thirteen graphs leave one in the last step, which the second rank has not; charges are missing here and there."""
FOUR = {"model__num_layers": 4, "heads": WITHOUT_FORCES}
"""Layers for two stages of two chunks, which take no forces."""
DEEP = {"model__num_layers": 4}
"""The same, trained on forces."""
TWICE = {**DEEP, "train__epochs": 2}
"""The same over two epochs, between which a checkpoint lies."""
ROUNDING = 1e-10
"""Relative: sums in another order, over some steps in double precision."""

POOLING = {"model__pooling": {"levels": 1}, "heads": WITHOUT_FORCES}
ATTENTION = {"model__global_attention": {"kind": "multihead", "heads": 2}}
CHUNKS = {"pipeline": 2, "chunks": 2}
PARTS = {"micro_batches": 3}
Row = tuple[int, str, dict[str, int | str], dict[str, Any]]
ROWS: dict[str, Row] = {
    "copies with attention": (2, "painn", {}, ATTENTION),
    "copies with pooling": (2, "painn", {}, POOLING),
    "copies that share states": (2, "field_tokens", {"states": "shared"}, {"model__angles": 2}),
    "shards": (2, "pna", {"shard": 2, "micro_batches": 2}, {}),
    "channels": (2, "mace", {"tensor": 2}, {}),
    "copies by lamb": (2, "schnet", {}, {"train__optimizer": "lamb", "train__base_batch": 4}),
    "stages by lars": (
        2,
        "schnet",
        {"pipeline": 2, **PARTS},
        {**FOUR, "train__optimizer": "lars", "train__learning_rate": 1.0},
    ),
    "stages": (2, "mace", {"pipeline": 2, **PARTS}, FOUR),
    "chunks": (2, "field_tokens", {**CHUNKS, **PARTS}, {**FOUR, "model__angles": 2}),
    "whole graphs": (2, "schnet", {"graph": 2}, {}),
    "every graph cut": (2, "painn", {"graph": 2}, {"batch__max_graphs": 1}),
    "graphs in parts": (2, "mace", {"graph": 2, **PARTS}, {}),
    "shards of copies": (4, "mace", {"shard": 2, "states": "shared"}, {}),
    "shards of chunks": (4, "schnet", {**CHUNKS, "shard": 2, **PARTS}, DEEP),
    "channels of chunks": (4, "painn", {**CHUNKS, "tensor": 2, **PARTS}, DEEP),
    "chunks of copies": (4, "mace", {**CHUNKS, "states": "shared", "micro_batches": 5}, DEEP),
    "graphs of chunks": (4, "pna", {**CHUNKS, "graph": 2, **PARTS}, DEEP),
    "stages on forces": (2, "schnet", {"pipeline": 2, **PARTS}, {"model__checkpoint_activations": True, **DEEP}),
    "four stages": (4, "equivariant_transformer", {"pipeline": 4, **PARTS}, DEEP),
    "shards, never killed": (2, "schnet", {"shard": 2}, {"train__epochs": 4}),
}
"""Ranks, model, layout and other settings. What architectures divide themselves, channels and layers, is under ``test_channels.py`` for all."""
IN_MEMORY = {"copies": {}, "shards": {"shard": 2}, "channels": {"tensor": 2}, "graphs": {"graph": 2}}
IN_MEMORY["stages"] = {"pipeline": 2, "micro_batches": 2}


@pytest.fixture(scope="session")
def few() -> MemoryStore:
    return clusters(GRAPHS, related=True)


def start(runs: Mapping[Path, AnyConfig], ranks: int, *options: str) -> list[Process]:
    return start_ranks(runs, ranks, *options, "--graphs", str(GRAPHS), "--related")


def config_of(kind: str, layout: dict[str, Any], changes: dict[str, Any]) -> RunConfig:
    return make_config(kind, parallel=layout, **{**COMMON, **changes})


@shared
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every row by its ranks, and small models with and without limited memory, one after the other in the same processes."""
    folder = tmp_path_factory.mktemp("together")
    runs = {n: {folder / name: config_of(*row) for name, (of, *row) in ROWS.items() if of == n} for n in (2, 4)}
    for name, layout in IN_MEMORY.items():
        for memory in ("", "260 kB"):
            changes = {"model__repulsion": "none", **TWICE, **FOUR, "batch__memory": memory}
            runs[2][folder / f"{name} in {memory}"] = config_of("schnet", layout, changes)
    for ranks, configs in runs.items():
        finish(*start(configs, ranks))
    return {path.name: path for configs in runs.values() for path in configs}


@pytest.mark.parametrize("name", ROWS)
def test_ranks_of_every_layout_have_the_curves_and_the_model_of_one(
    name: str, together: dict[str, Path], few: MemoryStore, run_once: RunOnce
) -> None:
    ranks, *row = ROWS[name]
    table = {key: value for key, value in config_of(*row).to_json().items() if key != "parallel"}
    record = read_record(together[name])
    assert record.cost.ranks == ranks and record.status == "finished"
    assert_same_run(run_once(RunConfig.parse(table), few), together[name])


def assert_same_run(one: Path, other: Path) -> None:
    first, second = read_record(one), read_record(other)
    assert first.epochs == second.epochs and first.parameters == second.parameters
    assert_same_curves(first, second, ROUNDING, 1e-13)
    assert_same_model(one, other)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_ranks_of_every_layout_compute_as_many_parts_as_memory_asks_for(name: str, together: dict[str, Path]) -> None:
    whole, parts = (read_record(together[f"{name} in {memory}"]) for memory in ("", "260 kB"))
    assert_same_curves(whole, parts, ROUNDING)
    assert parts.curves != whole.curves  # the order of sums is another


MOVED: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "copies that share states": (2, {"states": "shared"}),
    "shards": (2, {"shard": 2, "micro_batches": 2}),
    "channels": (2, {"tensor": 2}),
    "stages": (2, {"pipeline": 2, **PARTS}),
    "chunks": (2, {**CHUNKS, **PARTS}),
    "graphs": (2, {"graph": 2, **PARTS}),
    "shards of channels": (4, {"tensor": 2, "shard": 2}),
}
"""Ranks and layouts between which checkpoints move."""
MOVES = [(source, [*MOVED][(at + far) % len(MOVED)]) for at, source in enumerate(MOVED) for far in (0, 3)]
"""Every layout goes on in itself and in another, and from another."""


@shared
def moved(few: MemoryStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all layouts, to the end and to the middle, and from there to the end in every layout."""
    folder = tmp_path_factory.mktemp("moved")
    configs = {name: config_of("schnet", layout, TWICE) for name, (_, layout) in MOVED.items()}

    def train_all(runs: dict[Path, str], *options: str, **arguments: Any) -> None:
        for ranks in (2, 4):
            own = {path: configs[name] for path, name in runs.items() if MOVED[name][0] == ranks}
            finish(*start(own, ranks, *options))
        for path in (path for path, name in runs.items() if MOVED[name][0] == 1):
            train(configs["one"], path, store=few, resume=path.exists(), **arguments)

    train_all({folder / f"{name} half": name for name in MOVED}, "--until", "1", until=1)
    for source, target in MOVES:
        shutil.copytree(folder / f"{source} half", folder / f"{source} to {target}")
    runs = {folder / name: name for name in MOVED}
    train_all({**runs, **{folder / f"{source} to {target}": target for source, target in MOVES}}, "--resume")
    return folder


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_a_checkpoint_of_any_layout_goes_on_in_any_other(source: str, target: str, moved: Path) -> None:
    """With averaged weights and states of the optimizer; in its own with the same bits."""
    path = moved / f"{source} to {target}"
    assert_same_run(moved / "one", path)
    assert source != target or same_bits(path, moved / source)


def same_bits(one: Path, other: Path) -> bool:
    first, second = ((path / "model" / "weights.safetensors").read_bytes() for path in (one, other))
    return first == second and read_record(one).curves == read_record(other).curves


def test_ranks_that_are_killed_go_on_with_the_same_bits(together: dict[str, Path], tmp_path: Path) -> None:
    """Pieces of weights that lie on both ranks, and states of the optimizer."""
    config = config_of(*ROWS["shards, never killed"][1:])
    processes = start({tmp_path / "cut": config}, 2)
    wait_for(tmp_path / "cut" / "checkpoints" / "latest.json", processes[0])
    for process in processes:
        process.kill()
        process.wait(60)
    assert read_record(tmp_path / "cut").status != "finished"
    finish(*start({tmp_path / "cut": config}, 2, "--resume"))
    assert same_bits(tmp_path / "cut", together["shards, never killed"])


def test_ranks_train_branches_and_go_on_from_a_start_as_one_rank_does(tmp_path: Path) -> None:
    """With earlier data replayed and two of four layers frozen, all that the first of two stages has; what was forgotten is the same, too."""
    table = config_of("painn", {}, {**TWICE, "heads": WITHOUT_FORCES[:1]}).to_json()
    own = {key: table.pop(key) for key in ("data", "split", "heads")}
    parts = []
    for seed in (0, 7):
        labelled = clusters(24, seed)
        graphs = [labelled.read([number], ["atomic_numbers", "energy"]) for number in range(len(labelled))]
        path = written(tmp_path / f"{seed}.h5", graphs, **labelled.attributes)
        parts.append({**own, "data": {**own["data"], "store": str(path)}})

    def parsed(one: dict[str, Any]) -> AnyConfig:
        return config_from_table(one, tmp_path, stored=True)

    train(parsed({**table, **parts[0]}), tmp_path / "first")
    rest = {key: value for key, value in table.items() if key != "model"}
    begin = {"model": str(tmp_path / "first"), "freeze": 2, "replay": 0.5, "encoder_rate": 0.5}
    tables = {
        "start": {**rest, **parts[1], "start": begin},
        "branches": {**table, "branches": [{"name": "a", **parts[0]}, {"name": "b", **parts[1]}]},
    }
    layouts = {"copies": PARTS, "chunks": {**CHUNKS, **PARTS}}
    runs = {tmp_path / way / name: {**tables[name], "parallel": layouts[way]} for way in layouts for name in tables}
    for path in runs:
        path.parent.mkdir(exist_ok=True)
    finish(*start_ranks({path: parsed(one) for path, one in runs.items()}, 2))
    alone = {name: train(parsed(one), tmp_path / "alone" / name) for name, one in tables.items()}
    for path in runs:
        assert_same_run(tmp_path / "alone" / path.name, path)
        records = alone[path.name], read_record(path)
        before, after = (record.start.get("forgetting", {}).get("errors", {}) for record in records)
        assert bool(before) == (path.name == "start") and before.keys() == after.keys()
        for key, values in before.items():
            assert after[key] == pytest.approx(values, rel=1e-8), key
