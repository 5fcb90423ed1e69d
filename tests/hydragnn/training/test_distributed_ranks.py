"""Several ranks take the steps that one rank would."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.distributed import LaunchError, launch_from, leave
from hydragnn.record import RunRecord, read_record
from hydragnn.runs import train

BIN = Path(sys.executable).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
MPIRUN = [str(BIN / "mpirun"), "-n", "2", sys.executable]
needs_mpirun = pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="no mpirun beside this Python; install mpich")
ATTENTION = {"model__global_attention": {"kind": "multihead", "heads": 2}}
CLUSTERS = {"model__pooling": {"levels": 1}}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "dimenet": ("dimenet", {}),
    "field_tokens": ("field_tokens", {}),
    "mace": ("mace", {}),
    "pna": ("pna", {}),
    "painn with attention": ("painn", ATTENTION),
    "relational": ("relational", {"data__inputs": ["atomic_numbers", "relation"]}),
    "painn with pooling": ("painn", CLUSTERS),
    "gin with pooling": ("gin", CLUSTERS),
}
"""Names of runs: their model, and other settings. Every architecture's gradients of shares are under a promise of conformance."""
WITHOUT_FORCES = [
    {"kind": "energy", "field": "energy", "per_node": True, "references": True, "hidden_dims": [8]},
    {"kind": "scalar", "field": "charge", "hidden_dims": [8], "loss": "huber"},
]


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def assert_same_curves(one: RunRecord, other: RunRecord, tolerance: float = 1e-6) -> None:
    assert one.curves.keys() == other.curves.keys()
    for name, curve in one.curves.items():
        assert other.curves[name] == pytest.approx(curve, rel=tolerance, abs=1e-9), name


def configuration(name: str, make_config: Callable[..., RunConfig]) -> RunConfig:
    """With one graph in the last step of each epoch, which leaves the second rank without graphs; charges are missing here and there."""
    model, changes = RUNS[name]
    heads = WITHOUT_FORCES if model == "relational" or "model__pooling" in changes else None
    return make_config(model, heads, batch__max_graphs=9, train__ema_decay=0.9, **changes)


@pytest.fixture(scope="module")
def pairs(
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[RunConfig, RunRecord]]:
    """Every run trained by two ranks, one after the other in the same two processes."""
    folder = tmp_path_factory.mktemp("pairs")
    configs = {name: configuration(name, make_config) for name in RUNS}
    finish(launch({folder / name: config for name, config in configs.items()}, "--related", launcher=TORCHRUN))
    return {name: (config, read_record(folder / name)) for name, config in configs.items()}


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_take_the_steps_one_rank_would(
    name: str, pairs: dict[str, tuple[RunConfig, RunRecord]], material: ModuleType, tmp_path: Path
) -> None:
    config, pair = pairs[name]
    assert pair.cost.ranks == 2 and pair.status == "finished"
    assert_same_curves(train(config, tmp_path / "alone", store=material.clusters(40, related=True)), pair)


@needs_mpirun
def test_mpirun_meets_at_a_free_port_and_trains_like_one_rank(
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config = make_config()
    alone = train(config, tmp_path / "alone", store=store)
    finish(launch({tmp_path / "pair": config}, launcher=MPIRUN))
    assert_same_curves(alone, read_record(tmp_path / "pair"))


def test_srun_without_mpi_meets_on_its_node(
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config = make_config()
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}
    pair = [launch({tmp_path / "pair": config}, **step, SLURM_PROCID=str(rank)) for rank in range(2)]
    for process in pair:
        finish(process)
    alone = train(config, tmp_path / "alone", store=store)
    assert_same_curves(alone, read_record(tmp_path / "pair"))


def test_a_job_step_of_a_real_slurm_on_two_nodes_trains_like_one_rank(
    slurm: Any,
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config = make_config()
    srun = ["srun", "-N2", "-n2", "--mpi=none", "--chdir", str(tmp_path), sys.executable]
    finish(launch({tmp_path / "pair": config}, launcher=srun, **slurm.environment))
    pair = read_record(tmp_path / "pair")
    assert (pair.cost.ranks, pair.cost.nodes) == (2, 2)
    assert_same_curves(train(config, tmp_path / "alone", store=store), pair)


@needs_mpirun
def test_ranks_that_mpi_does_not_see_are_refused_instead_of_training_copies(
    make_config: Callable[..., RunConfig], launch: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    output = finish(launch({tmp_path / "run": make_config()}, PMI_SIZE="4", OMPI_COMM_WORLD_SIZE="4"), code=2)
    assert "the launcher started 4 ranks, but MPI sees 1" in output
    assert not (tmp_path / "run" / "record.json").exists()


def test_one_module_reads_the_environment_of_launchers(root: Path) -> None:
    texts = {path.name: path.read_text() for path in (root / "hydragnn").rglob("*.py")}
    readers = [name for name, text in texts.items() if "environ[" in text or "os.environ" in text or "getenv" in text]
    assert readers == ["environment.py"]


def test_the_launcher_is_read_from_the_environment() -> None:
    assert launch_from({"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "a", "LOCAL_RANK": "1"}).local_rank == 1
    assert launch_from({"PMI_SIZE": "2", "PMI_RANK": "1", "SLURM_STEP_NUM_TASKS": "8"}).by == "mpi"
    assert launch_from({"SLURM_NTASKS": "8"}).by == "alone"  # an allocation, but no job step
    assert launch_from({"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}).size == 1
    assert launch_from({"PMI_SIZE": "", "SLURM_LOCALID": "", "SLURM_STEP_NUM_TASKS": ""}).by == "alone"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK=x"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK=2"),
        ({"PMI_SIZE": "two"}, "PMI_SIZE=two"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK=-1"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "SLURM_PROCID="),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "7"}, "SLURM_PROCID=7"),
    ],
)
def test_variables_that_no_launcher_writes_are_named(environment: dict[str, str], name: str) -> None:
    with pytest.raises(LaunchError, match=f"^{name} is in the environment.*unset {name.partition('=')[0]}$"):
        launch_from(environment)


def test_a_lost_rank_is_recorded_as_such_and_the_run_goes_on_from_its_checkpoint(
    store: MemoryStore,
    make_config: Callable[..., RunConfig],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    config, run = make_config(train__epochs=4000), tmp_path / "run"
    process = launch({run: config}, launcher=TORCHRUN)
    while process.poll() is None and not (run / "checkpoints" / "latest.json").exists():
        time.sleep(0.05)
    ranks = [child for child in psutil.Process(process.pid).children() if "worker.py" in " ".join(child.cmdline())]
    ranks[-1].kill()
    finish(process, code=1)
    lost = read_record(run)
    assert lost.status == "failed" and lost.failure.kind == "lost_node"
    again = train(config, run, store=store, resume=True, until=lost.epochs + 1)
    assert (
        again.status == "paused"
        and again.failure is None
        and again.curves["valid/loss"][: lost.epochs] == pytest.approx(lost.curves["valid/loss"], rel=1e-6)
    )


def test_a_single_process_leaves_as_any_program_does_also_where_mpi_is_loaded() -> None:
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    with pytest.raises(SystemExit) as end:
        leave(130)
    assert end.value.code == 130
