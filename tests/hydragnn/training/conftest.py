"""Small graphs and configurations for the tests of training."""

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydragnn.base.settings import with_value
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import RunRecord
from hydragnn.runs import train
from tests.forked import Forked

WORKER = Path(__file__).with_name("worker.py")
GEOMETRIC: dict[str, Any] = {"hidden_dim": 8, "num_layers": 2, "num_radial": 6, "cutoff": 3.0}
MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("schnet", "painn", "egnn", "pna", "pnaplus", "pnaeq", "cgcnn"), GEOMETRIC),
    **{kind: {"hidden_dim": 8, "num_layers": 2} for kind in ("gin", "relational", "sage", "mfc")},
    **{kind: {**GEOMETRIC, "heads": 2} for kind in ("equivariant_transformer", "field_tokens", "gatv2")},
    "mace": {**GEOMETRIC, "hidden_dim": 4, "max_ell": 2},
    "tensornet": {**GEOMETRIC, "hidden_dim": 4},
    "dimenet": {**GEOMETRIC, "num_radial": 4, "num_spherical": 4, "int_emb_size": 4, "out_emb_size": 8},
}
ENERGY = {
    "kind": "energy",
    "loss": "mse",
    "stage_two_factor": 1.0,
    "field": "energy",
    "per_node": True,
    "references": True,
    "forces": "forces",
    "forces_weight": 10.0,
    "hidden_dims": [8],
}
CHARGE = {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"}


@pytest.fixture(scope="session")
def material() -> ModuleType:
    """The worker script as a module."""
    spec = importlib.util.spec_from_file_location("training_worker", WORKER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def store(material: ModuleType) -> MemoryStore:
    """Forty clusters."""
    return material.clusters(40)


@pytest.fixture(scope="session")
def make_config() -> Callable[..., RunConfig]:
    """Makes a configuration; keyword arguments with __ for . change it (train__epochs=3)."""

    def make(model: str = "schnet", heads: list[dict[str, Any]] | None = None, **changes: Any) -> RunConfig:
        table: dict[str, Any] = {
            "data": {"store": "in memory", "inputs": ["atomic_numbers"]},
            "split": {"train": 0.7, "valid": 0.2},
            "batch": {"max_graphs": 6},
            "model": {"kind": model, **MODELS[model]},
            "heads": heads or [ENERGY, CHARGE],
            "train": {"epochs": 3, "learning_rate": 0.005, "precision": "fp64", "checkpoint_seconds": 0},
        }
        table = json.loads(json.dumps(table))
        for path, value in changes.items():
            with_value(table, path.replace("__", "."), value)
        return RunConfig.parse(table)

    return make


@pytest.fixture
def trained(store: MemoryStore, make_config: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., RunRecord]:
    """Trains a run in a folder of this name; after that come a configuration, or the arguments of ``make_config``.

    Keyword arguments with __ change the configuration, others are those of ``train``.
    """

    def run(
        name: str = "run", model: str | RunConfig = "schnet", heads: list[dict[str, Any]] | None = None, **options: Any
    ) -> RunRecord:
        changes = {key: options.pop(key) for key in [*options] if "__" in key}
        config = make_config(model, heads, **changes) if isinstance(model, str) else model
        return train(config, tmp_path / name, **{"store": store, **options})

    return run


@pytest.fixture(scope="session")
def environment(root: Path) -> dict[str, str]:
    """The environment of a process that finds the checkout and runs on one thread."""
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def launch(environment: dict[str, str]) -> Callable[..., subprocess.Popen[str] | Forked]:
    """Starts the worker for runs (folder: configuration), alone or behind a launcher command."""

    def start(
        runs: dict[Path, RunConfig], *options: str, launcher: list[str] | None = None, **variables: str
    ) -> subprocess.Popen[str] | Forked:
        arguments: list[str] = []
        for out, config in runs.items():
            path = out.with_name(f"{out.name}.json")
            text = json.dumps(config.to_json())
            if not path.exists() or path.read_text() != text:  # another rank may be reading it
                path.write_text(text)
            arguments += [str(out), str(path)]
        words, variables = [str(WORKER), *arguments, *options], {**environment, **variables}
        if launcher is None:
            return Forked(words, variables)
        return subprocess.Popen(
            [*launcher, *words],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture(scope="session")
def train_on_ranks(launch: Callable[..., Forked]) -> Callable[..., None]:
    """Trains a run to the end on so many ranks of a job step."""

    def run(config: RunConfig, out: Path, ranks: int, *options: str) -> None:
        step = {"SLURM_JOB_ID": "79", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(ranks)}
        processes = [launch({out: config}, *options, **step, SLURM_PROCID=str(rank)) for rank in range(ranks)]
        for process in processes:
            output, _ = process.communicate(timeout=600)
            assert process.returncode == 0, output

    return run
