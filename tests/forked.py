"""Python processes without their start: forked from a server that has loaded the package, used as ``subprocess.Popen`` is.

Loading torch takes seconds, and most tests of processes are about what comes after. That ``python -m``, ``mpirun``,
``torchrun`` and ``srun`` start a process well is seen where they really start one.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import getrandbits

import torch

SERVER = multiprocessing.get_context("forkserver")
LATE = "torch.fx.experimental.symbolic_shapes"  # that backward passes of stages import
SERVER.set_forkserver_preload(["hydragnn.runs.run", "hydragnn.hpo", "hydragnn.ensemble", "hydragnn.scripts.cli", LATE])


class Forked:
    """A process of ``python`` with these words, ``-m MODULE`` or a script first, that leads a session in a folder; its output is kept."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path = Path()) -> None:
        descriptor, name = tempfile.mkstemp(prefix="output-")
        os.close(descriptor)
        self._output = Path(name)
        weakref.finalize(self, self._output.unlink, missing_ok=True)
        self._process = SERVER.Process(target=_run, args=(list(words), dict(environment), name, folder.resolve()))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended; TimeoutExpired where that takes longer."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0, self._output.read_bytes())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What the process has printed, errors too, once it has ended."""
        self.wait(timeout)
        return self._output.read_text(), None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def run_forked(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in a process of its own, where shapes are not checked."""
    process = SERVER.Process(target=function, args=arguments)
    process.start()
    process.join(900)
    assert process.exitcode == 0


def ends_of_ranks(ranks: int, *words: object) -> list[tuple[int, str]]:
    """Exit codes and outputs of the ranks of a job step without MPI, as srun starts them."""
    step = {"SLURM_JOB_ID": str(getrandbits(30)), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(ranks)}
    environment = {**os.environ, **step, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    every = [Forked([*map(str, words)], {**environment, "SLURM_PROCID": str(rank)}) for rank in range(ranks)]
    outputs = [process.communicate(timeout=300)[0] for process in every]
    return [(process.wait(), output) for process, output in zip(every, outputs)]


def _run(words: list[str], environment: dict[str, str], output: str, folder: Path) -> None:
    """In the new process: what ``python WORDS`` does."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    torch.set_num_threads(1)
    tempfile.tempdir = None  # the server's
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    module = words[0] == "-m"
    sys.argv = words[1:] if module else words
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
