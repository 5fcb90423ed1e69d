"""Small graphs, configurations and comparisons for the tests of training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from safetensors.torch import load_file

from hydragnn.base.files import digest
from hydragnn.base.settings import with_value
from hydragnn.config import AnyConfig, BranchedConfig, RunConfig
from hydragnn.datasets import MemoryStore, StoreWriter
from hydragnn.distributed import Ranks
from hydragnn.graphs import Field
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train
from hydragnn.runs.assembly import Assembly, assemble
from hydragnn.runs.plan import plan_run
from hydragnn.runs.progress import Progress
from hydragnn.training.data import DevicePlacement
from tests.forked import Forked
from tests.hydragnn.training.worker import clusters
from tests.once import made_once, shared

Trained = Callable[..., RunRecord]
RunOnce = Callable[..., Path]
Process = subprocess.Popen[str] | Forked

WORKER = Path(__file__).with_name("worker.py")
GEOMETRIC: dict[str, Any] = {"hidden_dim": 8, "num_layers": 2, "num_radial": 6, "cutoff": 3.0}
MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("schnet", "painn", "egnn", "pna", "pnaplus", "pnaeq", "cgcnn"), GEOMETRIC),
    **{kind: {"hidden_dim": 8, "num_layers": 2} for kind in ("gin", "relational", "sage", "mfc")},
    **{kind: {**GEOMETRIC, "heads": 2} for kind in ("equivariant_transformer", "field_tokens", "gatv2")},
    "mace": {**GEOMETRIC, "hidden_dim": 4, "max_ell": 2},
    "tensornet": {**GEOMETRIC, "hidden_dim": 4},
    "dimenet": {**GEOMETRIC, "num_radial": 4, "num_spherical": 3, "int_emb_size": 4, "out_emb_size": 8},
}
PLAIN_ENERGY = {"kind": "energy", "field": "energy", "per_node": True, "references": True, "hidden_dims": [8]}
ENERGY = {**PLAIN_ENERGY, "loss": "mse", "stage_two_factor": 1.0, "forces": "forces", "forces_weight": 10.0}
CHARGE = {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"}
HARD: dict[str, Any] = {"train__ema_decay": 0.9, "train__warmup_epochs": 1.5, "train__epochs": 4}
HARD |= {"model__dropout": 0.2, "train__precision": "fp32"}
"""A run whose bits depend on more than its weights."""
WITHOUT_FORCES = [PLAIN_ENERGY, CHARGE]
ENERGY_FIELD = Field(name="energy", on="graph", unit="eV", role="target", dtype="float64")
FORCES_FIELD = Field(name="forces", on="node", shape=(3,), unit="eV/Angstrom", parity="vector", role="target")
STORE = clusters(40)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "-n", "2", sys.executable]
needs_mpirun = pytest.mark.skipif(not Path(MPIRUN[0]).exists(), reason="no mpirun beside this Python; install mpich")


def assembled(
    config: AnyConfig, store: Any = None, dtype: torch.dtype = torch.float64, *, shared: bool = False, parts: int = 1
) -> Assembly:
    placement = DevicePlacement(device=torch.device("cpu"), dtype=dtype, micro_batches=parts)
    return assemble(plan_run(config, store), placement, Ranks(), lambda: None, shared=shared)


def written(path: Path, graphs: Any, **attributes: Any) -> Path:
    """Write a store, or graphs with attributes of a store, to a file."""
    store = MemoryStore(graphs, attributes) if isinstance(graphs, list) else graphs
    with StoreWriter(path, store.fields(), dim=store.dim, attributes=dict(store.attributes)) as writer:
        writer.write(store.read(range(len(store))))
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start_process(words: list[str], environment: dict[str, str], launcher: list[str] | None = None) -> Process:
    """Start Python with these words, alone or behind a launcher command."""
    if launcher is None:
        return Forked(words, environment)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*launcher, *words], env=environment, start_new_session=True, **pipes)


def job_step(rank: int, ranks: int = 2) -> dict[str, str]:
    """Return the variables of a rank of a job step of Slurm."""
    size = {"SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_PROCID": str(rank)}
    return {"SLURM_JOB_ID": "79", "SLURM_STEP_ID": "0", **size}


def wait_for(path: Path, process: Process) -> None:
    """Wait until a process has written a file, or has ended."""
    while process.poll() is None and not path.exists():
        time.sleep(0.01)


def finish(*processes: Process, code: int = 0) -> str:
    """Return the output of processes, which must end with this code."""
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), outputs
    return "".join(outputs)


def branched(config: RunConfig, heads: Mapping[str, list[dict[str, Any]]], /, **changes: Any) -> BranchedConfig:
    """Return the configuration of branches that differ in their heads; ``changes`` are those of ``make_config``."""
    table = config.to_json()
    own = {key: table.pop(key) for key in ("data", "split", "heads")}
    table["branches"] = [{"name": name, **own, "heads": one} for name, one in heads.items()]
    table = json.loads(json.dumps(table))
    for path, value in changes.items():
        with_value(table, path.replace("__", "."), value)
    return BranchedConfig.parse(table)


def crystal(
    seed: int | np.random.Generator, symbols: str = "Cu", *, lattice: float | None = None, rattle: float = 0.1
) -> Atoms:
    """Return a rattled cubic cell of one or two elements with labels of EMT."""
    atoms, kinds = bulk("Cu", "fcc", a=lattice, cubic=True), symbols.split("-")
    atoms.symbols[:] = [kinds[position % len(kinds)] for position in range(4)]
    atoms.rattle(rattle, rng=np.random.RandomState(seed) if isinstance(seed, int) else seed)
    atoms.calc = EMT()
    labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(), "stress": atoms.get_stress()}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    return atoms


def assert_same_curves(one: RunRecord, other: RunRecord, rel: float = 1e-6, absolute: float = 1e-12) -> None:
    assert one.curves.keys() == other.curves.keys()
    for name, curve in one.curves.items():
        assert other.curves[name] == pytest.approx(curve, rel=rel, abs=absolute), name


def assert_same_model(one: Path, other: Path) -> None:
    models = [load_file(run / "model" / "weights.safetensors") for run in (one, other)]
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        # AdamW divides by the size of a gradient, which is rounding where nothing depends on a weight
        assert (models[1][key] - value).abs().max() <= 1e-8, key


def assert_same_end(one: Path, other: Path) -> None:
    """Compare records, newest checkpoints and models of two runs bit for bit."""
    before, after = read_record(one), read_record(other)
    assert after.status == before.status and after.curves == before.curves and after.best == before.best
    assert bits(other) == bits(one)


def bits(run: Path) -> dict[str, bytes]:
    """Return the last weights, the best weights and everything else of the newest checkpoint, and the model."""
    newest = max(path for path in (run / "checkpoints").iterdir() if path.is_dir())
    tensors = load_file(newest / "tensors.safetensors")
    model = (run / "model" / "weights.safetensors").read_bytes()
    return {"model": model, **{name: value.numpy().tobytes() for name, value in tensors.items()}}


def at(moment: float, action: Callable[[], object]) -> Any:
    """Return a progress display that does something once a run has come to a moment."""
    progress, done = Mock(spec=Progress), Mock()

    def step(epochs: float, *_: Any) -> None:
        if moment <= epochs and not done.called:
            done()
            action()

    progress.step = step
    return progress


def signal_at(moment: float, number: signal.Signals) -> Any:
    """Return a progress display that sends this process a signal when a run has come to a moment."""
    return at(moment, lambda: signal.raise_signal(number))


@shared
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("stored") / "clusters.h5", STORE)


def make_config(model: str = "schnet", heads: list[dict[str, Any]] | None = None, **changes: Any) -> RunConfig:
    """Return a configuration; keyword arguments with __ for . change it (train__epochs=3)."""
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


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Trains a configuration to its end, once for all tests; gives the run's folder, for reading only."""

    def run(config: AnyConfig, graphs: MemoryStore = STORE) -> Path:
        def make() -> Path:
            train(config, folder := tmp_path_factory.mktemp("once") / "run", store=graphs)
            return folder

        return made_once(tmp_path_factory, f"run-{digest([config.to_json(), graphs.fingerprint])}", make)

    return run


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """Trains a run in a folder of this name; after that come a configuration, or the arguments of ``make_config``.

    Keyword arguments with __ change the configuration, others are those of ``train``.
    """

    def run(
        name: str = "run", model: str | AnyConfig = "schnet", heads: list[dict[str, Any]] | None = None, **options: Any
    ) -> RunRecord:
        changes = {key: options.pop(key) for key in [*options] if "__" in key}
        config = make_config(model, heads, **changes) if isinstance(model, str) else model
        return train(config, tmp_path / name, **{"store": STORE, **options})

    return run


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(WORKER.parents[3]), "OMP_NUM_THREADS": "1"}


def launch(
    runs: Mapping[Path, AnyConfig], *options: str, launcher: list[str] | None = None, **variables: str
) -> Process:
    """Start the worker for runs (folder: configuration), alone or behind a launcher command."""
    arguments: list[str] = []
    for out, config in runs.items():
        path = out.with_name(f"{out.name}.json")
        text = json.dumps(config.to_json())
        if not path.exists() or path.read_text() != text:  # another rank may be reading it
            path.write_text(text)
        arguments += [str(out), str(path)]
    return start_process([str(WORKER), *arguments, *options], {**environment(), **variables}, launcher)


def start_ranks(runs: Mapping[Path, AnyConfig], ranks: int, *options: str) -> list[Process]:
    """Start ranks of a job step, which train runs (folder: configuration) one after the other."""
    return [launch(runs, *options, **job_step(rank, ranks)) for rank in range(ranks)]
