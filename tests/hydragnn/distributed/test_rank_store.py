"""Graphs in the memory of ranks are those of the disk, on one node and on several, also where a rank has died."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.settings import refuse_idle
from hydragnn.config import RunConfig
from hydragnn.distributed.rank_store import rank_groups
from hydragnn.distributed.shared_memory import SharedMemory
from hydragnn.record import read_record
from tests.benchmarks.bench_data import write
from tests.contracts.test_stores import CORNERS, written
from tests.forked import ends_of_ranks
from tests.hydragnn.training.conftest import needs_mpirun

SCRIPT = Path(__file__).with_name("keeping.py")
MPIRUN = Path(sys.executable).with_name("mpirun")
needs_linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    for name, graphs in CORNERS.items():
        written(graphs, folder / f"{name.replace(' ', '-')}.h5")
    return folder


def with_mpi(ranks: int, root: Path, *words: object) -> str:
    """Words of ranks of mpirun, which talk as if on several machines, and outlive each other."""
    # mpirun ends all ranks where it sees one die, and signals them where it notices the loss
    alone = ["bash", "-c", 'trap "" USR1; "$@"; exit 0', "rank"]
    command = [MPIRUN, "-disable-auto-cleanup", "-n", ranks, *alone, sys.executable, SCRIPT, *words]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@needs_linux
def test_memory_of_a_node_has_the_disks_bits_and_outlives_the_rank_that_filled_it(stores: Path, tmp_path: Path) -> None:
    names = set(Path("/dev/shm").iterdir())
    results = ends_of_ranks(3, SCRIPT, stores, tmp_path, 1)
    assert [code for code, _ in results] == [0, 0, -9], results
    assert not [path for path in set(Path("/dev/shm").iterdir()) - names if path.is_file() and "hydragnn" in path.name]


@needs_linux
@needs_mpirun
def test_ranks_of_nodes_read_each_others_memory_and_of_one_that_died_the_disk(
    stores: Path, root: Path, tmp_path: Path
) -> None:
    said = with_mpi(3, root, stores, tmp_path, 2)
    assert said.count("has read all") == 2 and said.count("rank 2 does not answer") == 2, said


@needs_linux
def test_a_training_from_the_memory_of_ranks_has_the_bits_of_one_from_the_disk(tmp_path: Path) -> None:
    write(tmp_path / "tiny.h5", 60)
    (tmp_path / "c.toml").write_text(
        '[data]\nstore = "tiny.h5"\n[model]\nkind = "pna"\nhidden_dim = 8\nnum_layers = 1\n[train]\nepochs = 2\n'
        '[[heads]]\nkind = "energy"\nfield = "energy"\nreferences = true\n'
    )
    best = []
    for memory in ("auto", "ranks"):
        words = ["-m", "hydragnn.scripts", "train", tmp_path / "c.toml", "--out", tmp_path / memory]
        results = ends_of_ranks(2, *words, "--set", f"data.memory={memory}")
        assert [code for code, _ in results] == [0, 0], results
        best.append(read_record(tmp_path / memory).best)
    assert best[0] == best[1]


def test_groups_are_ranks_of_a_node_or_consecutive_ones() -> None:
    assert rank_groups([5, 4, 5, 4], 0) == [((1, 3),), ((0, 2),)]
    assert rank_groups([1, 1, 2, 2, 3], 2) == [((0, 1),), ((2, 3),), ((4,),)]
    assert rank_groups([9, 9, 2, 2], 4) == [((2, 3), (0, 1))]


@needs_linux
def test_data_beyond_the_memory_of_a_node_are_one_sentence() -> None:
    with pytest.raises(InputError, match=r"GB free; set data\.group"):
        SharedMemory(2**60)


def test_settings_that_could_not_act_are_refused() -> None:
    table: dict[str, Any] = {"data": {"store": "a.h5", "memory": "ranks"}, "model": {"kind": "pna"}}
    table["heads"] = [{"kind": "scalar", "field": "energy"}]
    assert RunConfig.parse(table).data.group == 0
    for data in ({"group": 4, "memory": "auto"}, {"window": 100}):
        with pytest.raises(InputError, match=next(iter(data))):
            refuse_idle(RunConfig.parse({**table, "data": {**table["data"], **data}}), "c.toml")
