"""File systems without locks and other libraries to preload, for processes that tests start."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest


@cache
def preloaded(name: str = "nolock") -> Path:
    """A library to preload, of ``NAME.c``; under nolock, locks fail with the error ``NOLOCK_ERRNO``, or with 0 are everybody's at once."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = Path(mkdtemp(prefix=f"{name}-")) / f"{name}.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name(f"{name}.c")), "-ldl"],
        check=True,
    )
    return library


def without_locks(error: int) -> dict[str, str]:
    return {"LD_PRELOAD": str(preloaded()), "NOLOCK_ERRNO": str(error)}
