"""File systems without locks, for processes that tests start."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest


@cache
def shim() -> Path:
    """A library to preload, under which locks fail with the error ``NOLOCK_ERRNO``, or with 0 are everybody's at once."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = Path(mkdtemp(prefix="nolock-")) / "nolock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_suffix(".c")), "-ldl"], check=True
    )
    return library


def without_locks(error: int) -> dict[str, str]:
    """The environment of such a process."""
    return {"LD_PRELOAD": str(shim()), "NOLOCK_ERRNO": str(error)}
