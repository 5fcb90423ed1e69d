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
import sys
from pathlib import Path
from hydragnn.datasets import open_store
sys.path.append("tests/hpo")
from rings import write_rings
write_rings(Path(sys.argv[1]), 8)
print(len(open_store(sys.argv[1])))
"""


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(descriptor: int, kind: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refused)
    locks = [lock_file(tmp_path / "lock") for _ in range(2)]
    assert None not in locks and not knows_locks(tmp_path)
    for lock in locks:
        unlock_file(tmp_path / "lock", lock or -1)
    with alone_in_folder(tmp_path, "makes"), alone_in_folder(tmp_path, "makes"):
        pass


def test_a_store_is_made_and_read_where_the_file_system_knows_no_locks(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, **without_locks(37), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path / "s.h5")], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.stdout == "8\n", done.stderr


def test_a_database_that_needs_locks_says_so(tmp_path: Path) -> None:
    ase.db.connect(tmp_path / "d.db").write(ase.build.molecule("H2O"))
    (tmp_path / "b.toml").write_text(f'kind = "ase"\nfiles = ["{tmp_path / "d.db"}"]\ncutoff = 5.0\n')
    words = [
        sys.executable,
        "-m",
        "hydragnn.scripts",
        "data",
        "build",
        str(tmp_path / "b.toml"),
        "--out",
        str(tmp_path / "s.h5"),
    ]
    environment = {**os.environ, **without_locks(37), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "SQLite needs locks, which this file system does not know; copy the file to another one" in done.stderr
