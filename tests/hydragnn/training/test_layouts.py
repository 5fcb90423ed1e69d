"""Ranks in every layout take the steps of one, and go on from each other's checkpoints."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.config import AnyConfig, RunConfig, config_from_table
from hydragnn.datasets import MemoryStore
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train
from hydragnn.runs.plan import plan_run
from tests.hydragnn.training.conftest import (
    WITHOUT_FORCES,
    Configs,
    Process,
    RunOnce,
    assert_same_curves,
    assert_same_model,
    finish,
    written,
)
from tests.once import shared

Start = Callable[..., list[Process]]

GRAPHS = 20
COMMON = {"batch__max_graphs": 13, "train__ema_decay": 0.9, "train__epochs": 1}
"""Batches of thirteen graphs leave one in the last step, which the second rank has not; charges are missing here and there."""
FOUR = {"model__num_layers": 4, "heads": WITHOUT_FORCES}
"""Layers for two stages of two chunks, which take no forces."""
TWICE = {**FOUR, "train__epochs": 2}
"""The same over two epochs, between which a checkpoint lies."""
ROUNDING = 1e-10
"""Relative: sums in another order, over some steps in double precision."""

KINDS = ("painn", "mace", "schnet", "equivariant_transformer", "field_tokens")
POOLING = {"model__pooling": {"levels": 1}, "heads": WITHOUT_FORCES}
RELATIONS = {"data__inputs": ["atomic_numbers", "relation"], "heads": WITHOUT_FORCES}
CHUNKS = {"pipeline": 2, "chunks": 2}
Row = tuple[str, dict[str, int | str], dict[str, Any]]
PAIRS: dict[str, Row] = {
    "copies with attention": ("painn", {}, {"model__global_attention": {"kind": "multihead", "heads": 2}}),
    "copies of relational": ("relational", {}, RELATIONS),
    "copies of painn with pooling": ("painn", {}, POOLING),
    **{f"copies of {kind} that share states": (kind, {"states": "shared"}, {}) for kind in ("dimenet", "field_tokens")},
    **{
        f"shards of {kind}": (kind, {"shard": 2, "micro_batches": 2}, {})
        for kind in ("schnet", "equivariant_transformer", "pna")
    },
    **{f"channels of {kind}": (kind, {"tensor": 2}, {}) for kind in KINDS},
    "stages": ("mace", {"pipeline": 2, "micro_batches": 3}, FOUR),
    **{f"chunks of {kind}": (kind, {**CHUNKS, "micro_batches": 3}, FOUR) for kind in ("painn", "field_tokens")},
    "whole graphs": ("schnet", {"graph": 2}, {}),
    "every graph cut": ("painn", {"graph": 2}, {"batch__max_graphs": 1}),
    "graphs in parts": ("mace", {"graph": 2, "micro_batches": 3}, {}),
}
"""Models, layouts and other settings of two ranks. That no architecture mixes graphs of a batch is under a promise of conformance.

Only layers of channels are divided by the architectures themselves; other layouts are the same code for all.
"""
FOURS: dict[str, Row] = {
    "shards of copies": ("mace", {"shard": 2, "states": "shared"}, {}),
    "shards of chunks": ("schnet", {**CHUNKS, "shard": 2, "micro_batches": 3}, FOUR),
    "channels of chunks": ("painn", {**CHUNKS, "tensor": 2, "micro_batches": 3}, FOUR),
    "chunks of copies": ("mace", {**CHUNKS, "states": "shared", "micro_batches": 5}, FOUR),
    "graphs of stages": ("egnn", {"pipeline": 2, "graph": 2, "micro_batches": 3}, FOUR),
    "graphs of chunks": ("pna", {**CHUNKS, "graph": 2, "micro_batches": 3}, FOUR),
    "four stages": ("equivariant_transformer", {"pipeline": 4, "micro_batches": 3}, FOUR),
}
"""Those of four."""


@pytest.fixture(scope="session")
def few(material: ModuleType) -> MemoryStore:
    """What the ranks train on."""
    return material.clusters(GRAPHS, related=True)


@pytest.fixture(scope="session")
def start(start_ranks: Start) -> Start:
    """Starts ranks that train runs on few graphs one after the other."""
    return lambda runs, ranks, *options: start_ranks(runs, ranks, *options, "--graphs", str(GRAPHS), "--related")


@pytest.fixture(scope="session")
def config_of(make_config: Configs) -> Configs:
    """Makes the configuration of a row."""

    def make(kind: str, layout: dict[str, Any], changes: dict[str, Any]) -> RunConfig:
        angles = {"model__angles": 2} if kind == "field_tokens" else {}
        return make_config(kind, parallel=layout, **{**COMMON, **angles, **changes})

    return make


@pytest.fixture(scope="session")
def alone(few: MemoryStore, run_once: RunOnce) -> Callable[[RunConfig], Path]:
    """Trains a configuration by one rank, once for all layouts."""

    def run(config: RunConfig) -> Path:
        table = {key: value for key, value in config.to_json().items() if key != "parallel"}
        return run_once(RunConfig.parse(table), few)

    return run


@shared
def together(config_of: Configs, start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every row by its ranks, one after the other in the same processes."""
    folder = tmp_path_factory.mktemp("together")
    for ranks, rows in ((2, PAIRS), (4, FOURS)):
        finish(*start({folder / name: config_of(*row) for name, row in rows.items()}, ranks))
    return {name: folder / name for name in [*PAIRS, *FOURS]}


@pytest.mark.parametrize("name", [*PAIRS, *FOURS])
def test_ranks_of_every_layout_have_the_curves_and_the_model_of_one(
    name: str, together: dict[str, Path], alone: Callable[[RunConfig], Path], config_of: Configs
) -> None:
    run, one = together[name], alone(config_of(*{**PAIRS, **FOURS}[name]))
    assert read_record(run).cost.ranks == (2 if name in PAIRS else 4) and read_record(run).status == "finished"
    assert_same_run(one, run)


def assert_same_run(one: Path, other: Path) -> None:
    first, second = read_record(one), read_record(other)
    assert first.epochs == second.epochs and first.parameters == second.parameters
    assert_same_curves(first, second, ROUNDING, 1e-13)
    assert_same_model(one, other)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("dimenet", {}, "model dimenet reads pairs of consecutive edges"),
        (
            "schnet",
            {"model__global_attention": {"kind": "equivariant", "heads": 2, "cutoff": 2.0}},
            "looks at all pairs of nodes",
        ),
        ("schnet", {"heads": [{"kind": "scalar", "field": "charge", "loss": "relative"}]}, 'loss = "relative"'),
    ],
)
def test_a_model_whose_graphs_cannot_be_cut_is_refused_in_one_sentence(
    store: MemoryStore, make_config: Configs, model: str, changes: dict[str, Any], words: str
) -> None:
    plan_run(make_config(model, **changes), store)
    with pytest.raises(InputError, match=words):
        plan_run(make_config(model, parallel__graph=2, **changes), store)


IN_MEMORY: dict[str, dict[str, Any]] = {
    "copies": {},
    "shards": {"shard": 2},
    "channels": {"tensor": 2},
    "stages": {"pipeline": 2, "micro_batches": 2},
    "graphs": {"graph": 2},
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_ranks_of_every_layout_compute_as_many_parts_as_memory_asks_for(
    name: str, make_config: Configs, start_ranks: Start, tmp_path: Path
) -> None:
    changes = {"batch__max_graphs": 13, "train__epochs": 3, "model__repulsion": "none", **FOUR}
    configs = {
        tmp_path / what: make_config("schnet", parallel=IN_MEMORY[name], **changes, batch__memory=memory)
        for what, memory in (("whole", ""), ("parts", "260 kB"))
    }
    finish(*start_ranks(configs, 2, "--graphs", str(GRAPHS)))
    whole, parts = map(read_record, configs)
    assert_same_curves(whole, parts, ROUNDING)
    assert parts.curves != whole.curves  # the order of sums is another


MOVED: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "copies that share states": (2, {"states": "shared"}),
    "shards": (2, {"shard": 2, "micro_batches": 2}),
    "channels": (2, {"tensor": 2}),
    "stages": (2, {"pipeline": 2, "micro_batches": 3}),
    "chunks": (2, {**CHUNKS, "micro_batches": 3}),
    "graphs": (2, {"graph": 2, "micro_batches": 3}),
    "shards of channels": (4, {"tensor": 2, "shard": 2}),
}
"""Ranks and layouts between which checkpoints move."""
MOVES = [(source, [*MOVED][(at + far) % len(MOVED)]) for at, source in enumerate(MOVED) for far in (0, 1, 3)]
"""Every layout goes on in itself and in two others, and from two others."""


@shared
def moved(config_of: Configs, few: MemoryStore, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all layouts, to the end and to the middle, and from there to the end in every layout."""
    folder = tmp_path_factory.mktemp("moved")
    configs = {name: config_of("painn", layout, TWICE) for name, (_, layout) in MOVED.items()}

    def train_all(runs: dict[Path, str], *options: str, **arguments: Any) -> None:
        """Train each in its layout, those of equally many ranks in the same processes."""
        for ranks in (2, 4):
            own = {path: configs[name] for path, name in runs.items() if MOVED[name][0] == ranks}
            finish(*start(own, ranks, *options))
        for path in (path for path, name in runs.items() if MOVED[name][0] == 1):
            train(configs["one"], path, store=few, **arguments)

    train_all({folder / name: name for name in MOVED})
    train_all({folder / f"{name} half": name for name in MOVED}, "--until", "1", until=1)
    for source, target in MOVES:
        shutil.copytree(folder / f"{source} half", folder / f"{source} to {target}")
    train_all({folder / f"{source} to {target}": target for source, target in MOVES}, "--resume", resume=True)
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


@pytest.mark.parametrize(
    ("layout", "heads"),
    [({"shard": 2}, None), ({**CHUNKS, "micro_batches": 3}, WITHOUT_FORCES)],
    ids=["shards", "chunks"],
)
def test_ranks_that_are_killed_go_on_with_the_same_bits(
    layout: dict[str, Any], heads: Any, config_of: Configs, start: Start, tmp_path: Path
) -> None:
    config = config_of("schnet", layout, {"train__epochs": 8, "model__num_layers": 4, "heads": heads})
    finish(*start({tmp_path / "whole": config}, 2))
    latest = tmp_path / "cut" / "checkpoints" / "latest.json"
    processes = start({tmp_path / "cut": config}, 2)
    while not latest.exists() and processes[0].poll() is None:
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.wait(60)
    finish(*start({tmp_path / "cut": config}, 2, "--resume"))
    assert same_bits(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("layout", [{}, {"pipeline": 2}, CHUNKS], ids=["copies", "stages", "chunks"])
def test_ranks_train_branches_and_go_on_from_a_start_as_one_rank_does(
    layout: dict[str, Any], config_of: Configs, start_ranks: Start, material: ModuleType, tmp_path: Path
) -> None:
    """With earlier data replayed and two of four layers frozen, all that the first of two stages has; what was forgotten is the same, too."""
    table = config_of("painn", {}, {**TWICE, "heads": WITHOUT_FORCES[:1]}).to_json()
    own = {key: table.pop(key) for key in ("data", "split", "heads")}
    parts = []
    for seed in (0, 7):
        clusters = material.clusters(24, seed)  # all with the same labels
        graphs = [clusters.read([number], ["atomic_numbers", "energy"]) for number in range(len(clusters))]
        path = written(tmp_path / f"{seed}.h5", graphs, **clusters.attributes)
        parts.append({**own, "data": {**own["data"], "store": str(path)}})

    def parsed(one: dict[str, Any]) -> AnyConfig:
        return config_from_table(one, tmp_path, stored=True)

    train(parsed({**table, **parts[0]}), tmp_path / "first")
    rest = {key: value for key, value in table.items() if key != "model"}
    start = {"model": str(tmp_path / "first"), "freeze": 2, "replay": 0.5, "encoder_rate": 0.5}
    tables = {
        "start": {**rest, **parts[1], "start": start},
        "branches": {**table, "branches": [{"name": "a", **parts[0]}, {"name": "b", **parts[1]}]},
    }
    shared = {**layout, "micro_batches": 3}
    finish(*start_ranks({tmp_path / name: parsed({**one, "parallel": shared}) for name, one in tables.items()}, 2))
    for name, one in tables.items():
        alone, run = train(parsed(one), tmp_path / "alone" / name), read_record(tmp_path / name)
        assert_same_run(tmp_path / "alone" / name, tmp_path / name)
        before, after = errors_of(alone), errors_of(run)
        assert bool(before) == (name == "start") and before.keys() == after.keys()
        for key, values in before.items():
            assert after[key] == pytest.approx(values, rel=1e-8), key


def errors_of(record: RunRecord) -> dict[str, Any]:
    errors: dict[str, Any] = record.start.get("forgetting", {}).get("errors", {})
    return errors
