"""Launchers of ranks, which take the steps that one rank would."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hydragnn.distributed import leave
from hydragnn.record import read_record
from tests.hydragnn.training.conftest import (
    MPIRUN,
    TORCHRUN,
    Trained,
    assert_same_curves,
    finish,
    launch,
    make_config,
    needs_mpirun,
    wait_for,
)


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=needs_mpirun), "srun"])
def test_ranks_of_every_launcher_meet_and_train_like_one_rank(
    launcher: str, request: pytest.FixtureRequest, trained: Trained, tmp_path: Path
) -> None:
    """A real Slurm has two nodes."""
    words, variables, nodes = {"torchrun": TORCHRUN, "mpirun": MPIRUN}.get(launcher), {}, 1
    if words is None:
        words = ["srun", "-N2", "-n2", "--mpi=none", "--chdir", str(tmp_path), sys.executable]
        variables, nodes = request.getfixturevalue("slurm").environment, 2
    config = make_config()
    finish(launch({tmp_path / "pair": config}, launcher=words, **variables))
    pair = read_record(tmp_path / "pair")
    assert (pair.cost.ranks, pair.cost.nodes) == (2, nodes)
    assert_same_curves(trained("alone", config), pair, absolute=1e-9)


@needs_mpirun
def test_ranks_that_mpi_does_not_see_are_refused_instead_of_training_copies(tmp_path: Path) -> None:
    output = finish(launch({tmp_path / "run": make_config()}, PMI_SIZE="4", OMPI_COMM_WORLD_SIZE="4"), code=2)
    assert "the launcher started 4 ranks, but MPI sees 1" in output
    assert not (tmp_path / "run" / "record.json").exists()


LEAVES = """
import time
from mpi4py import MPI
from hydragnn.distributed import launch

def flush():
    time.sleep(0.5)
    print("written", flush=True)

if MPI.COMM_WORLD.rank:
    launch._flush = flush
launch.leave(0)
"""


@needs_mpirun
def test_a_rank_that_leaves_well_lets_the_others_end(root: Path) -> None:
    command = [*MPIRUN, "-c", LEAVES]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


def test_one_module_reads_the_environment_of_launchers(root: Path) -> None:
    texts = {path.name: path.read_text() for path in (root / "hydragnn").rglob("*.py")}
    readers = [name for name, text in texts.items() if "environ[" in text or "os.environ" in text or "getenv" in text]
    assert readers == ["environment.py"]


def test_a_lost_rank_is_recorded_and_the_run_goes_on_from_its_checkpoint(trained: Trained, tmp_path: Path) -> None:
    config, run = make_config(train__epochs=4000), tmp_path / "run"
    process = launch({run: config}, launcher=TORCHRUN)
    wait_for(run / "checkpoints" / "latest.json", process)
    ranks = [child for child in psutil.Process(process.pid).children() if "worker.py" in " ".join(child.cmdline())]
    ranks[-1].kill()
    finish(process, code=1)
    lost = read_record(run)
    assert lost.status == "failed" and lost.failure.kind == "lost_node"
    again = trained("run", config, resume=True, until=lost.epochs + 1)
    assert again.status == "paused" and again.failure is None
    assert again.curves["valid/loss"][: lost.epochs] == pytest.approx(lost.curves["valid/loss"], rel=1e-6)


def test_a_single_process_leaves_as_any_program_does_also_where_mpi_is_loaded() -> None:
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    with pytest.raises(SystemExit) as end:
        leave(130)
    assert end.value.code == 130
