"""Runs whose ranks share channels or layers have the loss curves and models of one rank."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file

from hydragnn.config import AnyConfig, RunConfig, config_from_table
from hydragnn.datasets import StoreWriter
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train
from tests.hydragnn.training.worker import clusters

TENSOR = {"tensor": 2}
PIPELINE = {"pipeline": 2, "micro_batches": 3}
CHUNKS = {"pipeline": 2, "chunks": 2, "micro_batches": 3}
WITHOUT_FORCES = [
    {"kind": "energy", "field": "energy", "per_node": True, "references": True, "hidden_dims": [8]},
    {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"},
]
KINDS = ("schnet", "painn", "mace", "equivariant_transformer", "field_tokens")
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"tensor: {kind}": (kind, TENSOR) for kind in KINDS},
    "pipeline: painn": ("painn", PIPELINE),
    "pipeline: mace": ("mace", PIPELINE),
    **{f"chunks: {kind}": (kind, CHUNKS) for kind in KINDS},
}
"""Trained on forces, but for pipelines."""


def configuration(name: str, make_config: Callable[..., RunConfig], **more: Any) -> RunConfig:
    kind, layout = RUNS[name]
    heads = WITHOUT_FORCES if "pipeline" in layout else None
    changes = {"batch__max_graphs": 9, "train__epochs": 2, "train__ema_decay": 0.9}
    changes |= {"model__num_layers": 4} if layout is CHUNKS else {}
    changes |= {"model__angles": 2} if kind == "field_tokens" else {}
    return make_config(kind, heads, **changes, **more)


@pytest.fixture(scope="module")
def pairs(
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Every run by two ranks, one after the other in the same two processes."""
    folder = tmp_path_factory.mktemp("pairs")
    configs = {folder / name: configuration(name, make_config, parallel=RUNS[name][1]) for name in RUNS}
    run_on(2, launch, configs, "--graphs", "24")
    return folder


def run_on(ranks: int, launch: Callable[..., Any], runs: Mapping[Path, AnyConfig], *options: str) -> None:
    """Train runs one after the other in the same processes."""
    step = {"SLURM_JOB_ID": "84", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(ranks)}
    for process in [launch(runs, *options, **step, SLURM_PROCID=str(rank)) for rank in range(ranks)]:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output


def assert_same(one: RunRecord, other: RunRecord, tolerance: float = 1e-10) -> None:
    assert one.curves.keys() == other.curves.keys() and one.parameters == other.parameters
    for name, curve in one.curves.items():
        assert other.curves[name] == pytest.approx(curve, rel=tolerance, abs=1e-13), name


def assert_same_model(one: Path, other: Path) -> None:
    models = [load_file(run / "model" / "weights.safetensors") for run in (one, other)]
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        # AdamW divides by the size of a gradient, which is rounding where nothing depends on a weight
        assert (models[1][key] - value).abs().max() <= 1e-8, key


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_that_share_a_model_have_the_curves_and_the_model_of_one(
    name: str, pairs: Path, make_config: Callable[..., RunConfig], material: ModuleType, tmp_path: Path
) -> None:
    alone = train(configuration(name, make_config), tmp_path / "alone", store=material.clusters(24))
    pair = read_record(pairs / name)
    assert pair.cost.ranks == 2 and pair.status == "finished"
    assert_same(alone, pair)
    assert_same_model(tmp_path / "alone", pairs / name)


TOGETHER: dict[str, dict[str, Any]] = {
    "schnet": {"pipeline": 2, "chunks": 2, "shard": 2, "micro_batches": 3},
    "painn": {"pipeline": 2, "chunks": 2, "tensor": 2, "micro_batches": 3},
    "mace": {"pipeline": 2, "chunks": 2, "states": "shared", "micro_batches": 5},
    "egnn": {"pipeline": 2, "graph": 2, "micro_batches": 3},
    "pna": {"pipeline": 2, "chunks": 2, "graph": 2, "micro_batches": 3},
    "equivariant_transformer": {"pipeline": 4, "micro_batches": 3},
    "field_tokens": {"pipeline": 2, "chunks": 2, "tensor": 2, "micro_batches": 2},
}
"""Stages beside other axes, on four ranks."""


def test_stages_of_four_ranks_have_the_curves_and_the_models_of_one(
    make_config: Callable[..., RunConfig], launch: Callable[..., Any], material: ModuleType, tmp_path: Path
) -> None:
    changes = {"batch__max_graphs": 9, "train__epochs": 2, "train__ema_decay": 0.9, "model__num_layers": 4}
    configs = {
        tmp_path / kind: make_config(kind, WITHOUT_FORCES, parallel=one, **changes) for kind, one in TOGETHER.items()
    }
    run_on(4, launch, configs, "--graphs", "24")
    for kind in TOGETHER:
        config = make_config(kind, WITHOUT_FORCES, **changes)
        assert_same(train(config, tmp_path / "alone" / kind, store=material.clusters(24)), read_record(tmp_path / kind))
        assert_same_model(tmp_path / "alone" / kind, tmp_path / kind)


@pytest.mark.parametrize("layout", [PIPELINE, CHUNKS], ids=["stages", "chunks"])
def test_stages_train_branches_and_go_on_from_a_start_as_one_rank_does(
    layout: dict[str, Any], make_config: Callable[..., RunConfig], launch: Callable[..., Any], tmp_path: Path
) -> None:
    """With earlier data replayed and two of four layers frozen, all that the first of two stages has; what was forgotten is the same, too."""
    stores = [written(tmp_path / f"{seed}.h5", seed) for seed in (0, 7)]
    changes = {"batch__max_graphs": 9, "train__epochs": 2, "train__ema_decay": 0.9, "model__num_layers": 4}
    table = make_config("painn", WITHOUT_FORCES[:1], **changes).to_json()
    own = {key: table.pop(key) for key in ("data", "split", "heads")}
    parts = [{**own, "data": {**own["data"], "store": str(store)}} for store in stores]
    train(config_from_table({**table, **parts[0]}, tmp_path, stored=True), tmp_path / "first")
    rest = {key: value for key, value in table.items() if key != "model"}
    start = {"model": str(tmp_path / "first"), "freeze": 2, "replay": 0.5}
    tables = {
        "start": {**rest, **parts[1], "start": start},
        "branches": {**table, "branches": [{"name": "a", **parts[0]}, {"name": "b", **parts[1]}]},
    }
    shared = {
        tmp_path / name: config_from_table({**one, "parallel": layout}, tmp_path, stored=True)
        for name, one in tables.items()
    }
    run_on(2, launch, shared)
    for name, one in tables.items():
        alone, run = (
            train(config_from_table(one, tmp_path, stored=True), tmp_path / "alone" / name),
            read_record(tmp_path / name),
        )
        assert_same(alone, run)
        assert_same_model(tmp_path / "alone" / name, tmp_path / name)
        errors = [record.start.get("forgetting", {}).get("errors", {}) for record in (alone, run)]
        assert bool(errors[0]) == (name == "start") and errors[0].keys() == errors[1].keys()
        for key, values in errors[0].items():
            assert errors[1][key] == pytest.approx(values, rel=1e-8), key


def written(path: Path, seed: int) -> Path:
    """Write clusters of this seed, all with the same labels, into a store."""
    store = clusters(24, seed)
    graphs = [store.read([number], ["atomic_numbers", "energy"]) for number in range(len(store))]
    with StoreWriter(path, [*graphs[0].fields.values()], dim=3, attributes=store.attributes) as writer:
        writer.write_graphs(graphs)
    return path
