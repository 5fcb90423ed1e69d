"""Ends of runs: all ranks leave together, also hanging ones."""

import atexit
import os
import sys
import threading
import time
from typing import Any, NoReturn

from hydragnn.distributed.launch import this_launch

SECONDS_FOR_THE_FIRST = 5.0
"""How long a failing rank stays, so that rank 0 can write down why before the launcher ends it."""

SECONDS_TO_BE_READ = 1.0
"""How long the launcher is given to pass on what was said; when a rank ends the job, it drops what it has not read."""

_abandoned = threading.Event()


def leave(code: int, seconds: float = SECONDS_FOR_THE_FIRST) -> NoReturn:
    """End the process with ``code``.

    With several ranks it skips the interpreter's shutdown, which can abort under gloo.
    A failing rank other than the first stays for so many ``seconds``.
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    mpi_runs, launch = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized(), this_launch()
    if launch.size == 1 and (not mpi_runs or mpi.COMM_WORLD.size == 1):
        sys.exit(code)
    if code and launch.rank:
        time.sleep(seconds)
    if mpi_runs and code == 0 and not _abandoned.is_set():
        mpi.Finalize()
    elif mpi_runs:
        end_job(code)
    _flush()
    os._exit(code)


def abandon() -> None:
    """Stop waiting for other ranks, and end the job on leaving."""
    _abandoned.set()
    atexit.register(lambda: end_job(1 if hasattr(sys, "last_value") else 0))


def end_job(code: int) -> None:
    """End all MPI ranks after the launcher printed this one's output."""
    _flush()
    time.sleep(SECONDS_TO_BE_READ)
    if code == 0:  # a success, of which MPI would say "Abort(0)"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    mpi: Any = sys.modules["mpi4py.MPI"]
    mpi.COMM_WORLD.Abort(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
