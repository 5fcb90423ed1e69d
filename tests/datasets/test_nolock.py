"""Stores on file systems without locks, in processes whose locks fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nolock import without_locks

BUILD = """
import sys
from pathlib import Path
from hydragnn.datasets import open_store
from hydragnn.datasets.shared import load_into_memory
sys.path.append("tests/hpo")
from rings import write_rings
write_rings(Path(sys.argv[1]), 8)
store = open_store(sys.argv[1])
print(len(store), len(load_into_memory(store, shared_by_node=True)))
"""


@pytest.mark.parametrize("error", [37, 38, 95], ids=["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_store_is_made_and_read_where_the_file_system_knows_no_locks(tmp_path: Path, error: int) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, **without_locks(error), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path / "s.h5")], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.stdout == "8 8\n", done.stderr
