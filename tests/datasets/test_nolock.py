"""Stores on file systems without locks, in processes whose locks fail."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import ase.build
import ase.db
import pytest

from hydragnn.base.files import alone_in_folder, knows_locks, lock_file, unlock_file
from tests.nolock import without_locks

BUILD = """
import sqlite3, sys
from pathlib import Path
from hydragnn.base.errors import InputError
from hydragnn.datasets import build_store, open_store, read_build_settings
sys.path.append("tests/hpo")
from rings import write_rings
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
