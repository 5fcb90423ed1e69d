"""A store that several processes build is the one that a single process builds, or there is none; also without locks."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import ase.build
import ase.db
import numpy as np
import psutil
import pytest
from ase import Atoms
from ase.io import write

from hydragnn.base.errors import Busy, InputError
from hydragnn.base.files import alone_in_folder, knows_locks, lock_file, unlock_file
from hydragnn.datasets import StoreWriter, build_store, check_store, open_store, read_build_settings
from hydragnn.datasets.build import fields_of, makers_of
from hydragnn.datasets.sources.base import BuildSettings
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.distributed import building
from hydragnn.distributed.building import LARGEST, blocks_for, build_with_workers
from hydragnn.distributed.group import sigint_blocked
from tests.forked import SERVER
from tests.nolock import without_locks
from tests.refusals import refuses

GRAPHS = 200


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> BuildSettings:
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    for file in range(2):
        structures = [Atoms("CO2", positions=rng.random((3, 3)) + 2 * np.eye(3)) for _ in range(GRAPHS // 2)]
        for number, atoms in enumerate(structures):
            atoms.info |= {"label": float(file * GRAPHS + number), "config_type": ("liquid", "gas")[number % 2]}
        structures[3].info["material_id"] = "mp-3"
        write(folder / f"{file}.xyz", structures)
    fields = [{"name": "label", "on": "graph", "dtype": "float64", "role": "target"}]
    table = {"kind": "ase", "files": ["*.xyz"], "cutoff": 3.0, "texts": ["config_type"], "fields": fields}
    return read_build_settings(table, folder / "BUILD.toml")


def test_several_processes_build_the_store_of_one(settings: BuildSettings, tmp_path: Path) -> None:
    build_store(settings, tmp_path / "one.h5")
    heard: list[int] = []
    build_with_workers(settings, tmp_path / "several.h5", 2, heard.append)
    one, several = (open_store(tmp_path / f"{name}.h5") for name in ("one", "several"))
    assert one.fingerprint == several.fingerprint  # of every bit of every graph, in their order
    assert (one.attributes, one.fields()) == (several.attributes, several.fields())
    np.testing.assert_array_equal(one.column("label").values, several.column("label").values)
    names = [f"{file}.xyz#{number}" for file in range(2) for number in range(GRAPHS // 2)]
    names[3] = names[GRAPHS // 2 + 3] = "mp-3"
    assert list(one.texts["name"]) == list(several.texts["name"]) == names
    assert list(several.texts["config_type"]) == list(one.texts["config_type"]) == ["liquid", "gas"] * (GRAPHS // 2)
    assert check_store(tmp_path / "several.h5") == []
    assert heard[-1] == GRAPHS
    assert all(re.fullmatch(r"manifest.json|part-\d{5}.h5(.texts.gz)?", file.name) for file in several.path.iterdir())


def test_a_structure_that_cannot_be_read_leaves_no_store(settings: BuildSettings, tmp_path: Path) -> None:
    for source in Path(settings.files[0]).parent.glob("*.xyz"):
        (tmp_path / source.name).write_text(source.read_text().replace("label=250.0", "other=250.0"))
    broken = settings.model_copy(update={"files": [str(tmp_path / "*.xyz")]})
    refuses(r"1.xyz, structure 50.*label", build_with_workers, broken, tmp_path / "store.bp", 2)
    assert not (tmp_path / "store.bp").exists()
    absent = FieldSettings(name="charge", on="graph", optional=True)
    with pytest.raises(InputError, match="no graph has the field charge"):
        build_with_workers(settings.model_copy(update={"fields": [absent]}), tmp_path / "store.h5", 1)
    assert not (tmp_path / "store.h5").exists()


def test_what_a_killed_build_left_is_no_store_and_gives_way(tmp_path: Path) -> None:
    table = {"kind": "ase", "files": ["*.xyz"], "cutoff": 3.0}
    write(tmp_path / "many.xyz", [Atoms("CO2", positions=np.eye(3) * 2)] * 5_000)
    out, settings = tmp_path / "store.h5", read_build_settings(table, tmp_path / "BUILD.toml")
    process = SERVER.Process(target=build_with_workers, args=(settings, out, 2))
    process.start()
    end = time.monotonic() + 300
    while not [*out.glob("*part*")] and process.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    assert len(workers) >= 1
    assert psutil.wait_procs(workers, timeout=60)[1] == []  # they end with the process that began them
    refuses("the writer did not finish", open_store, out)
    settings = read_build_settings({**table, "index": ":100"}, tmp_path / "BUILD.toml")
    build_store(settings, out)
    assert check_store(out) == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also in tests that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_for_the_process_that_began_and_not_for_those_that_it_starts() -> None:
    with sigint_blocked():
        process = subprocess.Popen(["sleep", "60"])
    os.kill(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.kill()
    process.wait()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_early_ctrl_c_leaves_nothing(settings: BuildSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "makers_of", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build_with_workers(settings, tmp_path / "store.h5", 2)
    assert not (tmp_path / "store.h5").exists()


def test_blocks_follow_each_other_and_grow_with_what_lies_before() -> None:
    blocks = [*islice(blocks_for(8), 2000)]
    ends = [block.stop for block in blocks]
    assert [block.start for block in blocks[1:]] == ends[:-1]
    assert all(len(block) <= max(64, block.start // 32) for block in blocks)
    assert len(blocks[-1]) == LARGEST


def test_nobody_else_makes_a_store_where_one_is_being_made(settings: BuildSettings, tmp_path: Path) -> None:
    out = tmp_path / "frames.h5"
    first = next(makers_of(settings))()
    with StoreWriter(out, fields_of(settings, first), dim=first.dim) as writer:
        writer.write(first)
        for build in (build_store, partial(build_with_workers, workers=2)):
            with pytest.raises(Busy, match="another process makes"):
                build(settings, out)
    assert len(open_store(out)) == 1
    for build in (build_store, partial(build_with_workers, workers=2)):
        refuses("is a store already", build, settings, out)
    assert len(open_store(out)) == 1


def test_a_place_is_free_again_once_its_writer_has_given_up(settings: BuildSettings, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "frames.h5"
    with pytest.raises(InputError), StoreWriter(out, [], dim=3):
        raise InputError("given up")
    assert not out.parent.exists()
    build_store(settings, out)
    assert len(open_store(out)) > 1


def test_a_program_whose_calls_every_worker_would_repeat_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(4 * "2\n\nC 0 0 0\nC 0 0 1.2\n")
    table = {"kind": "ase", "files": ["a.xyz"], "cutoff": 3.0, "fields": []}
    (tmp_path / "program.py").write_text(f"import hydragnn\nhydragnn.build_store({table}, 'a.h5', workers=2)\n")
    words = [sys.executable, "program.py"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert 'workers = 2 read the program again; put this call under if __name__ == "__main__":' in result.stderr
    assert not (tmp_path / "a.h5").exists()


BUILD = """
import sqlite3, sys
from pathlib import Path
from hydragnn.base.errors import InputError
from hydragnn.datasets import build_store, open_store, read_build_settings
from tests.charged_rings import write_rings
folder = Path(sys.argv[1])
write_rings(folder / "s.h5", 8)
print(len(open_store(folder / "s.h5")))
connect = sqlite3.connect  # which ASE lets wait for a lock, twenty seconds
sqlite3.connect = lambda name, **more: connect(name, **more | {"timeout": 0.1})
settings = read_build_settings({"kind": "ase", "files": ["d.db"], "cutoff": 5.0}, folder / "BUILD.toml")
try:
    build_store(settings, folder / "d.h5")
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_no_locks_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refused(descriptor: int, kind: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refused)
    locks = [lock_file(tmp_path / "lock") for _ in range(2)]
    assert None not in locks and not knows_locks(tmp_path)
    for lock in locks:
        unlock_file(tmp_path / "lock", lock or -1)
    with alone_in_folder(tmp_path, "makes"), alone_in_folder(tmp_path, "makes"):
        pass


def test_a_store_is_made_and_read_without_locks_and_a_database_says_that_it_needs_them(tmp_path: Path) -> None:
    ase.db.connect(tmp_path / "d.db").write(ase.build.molecule("H2O"))
    root = Path(__file__).parents[2]
    environment = {**os.environ, **without_locks(37), "PYTHONPATH": str(root)}
    words = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=root)
    assert done.stdout.startswith("8\n"), done.stderr
    assert "SQLite needs locks, which this file system does not know; copy the file to another one" in done.stdout
