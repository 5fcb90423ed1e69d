"""Attempts as processes of this machine, one thread each; the embedded default.

No attempt outlives its controller: each holds the reading end of a pipe whose writing end only the controller has, waits
for one byte before it works (sent once the journal knows the process), and kills its group when the pipe closes.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

import hydragnn
from hydragnn.errors import InputError
from hydragnn.hpo.events import Identity
from hydragnn.hpo.launcher import Exit, Task

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
MODULE = "hydragnn.training.run"
CHILD = Path(__file__).with_name("child.py")
"""Run by its path, because ``-m`` would load the whole room, Optuna included, into every attempt."""
PAUSE = 0.02  # seconds between looks at the processes
LAST_WAIT = 5.0  # seconds that a killed process may take to vanish


@dataclass(kw_only=True, slots=True)
class _Attempt:
    task: Task
    process: subprocess.Popen[bytes]
    lifeline: int
    kills_before: int
    killed_at: float | None = None
    """When the patience with a cancelled attempt ends."""
    killed: bool = False


class LocalLauncher:
    """Runs ``python -m hydragnn.training.run FOLDER --until N`` for each attempt, at most ``workers`` at once."""

    def __init__(self, workers: int, *, module: str = MODULE, environment: Mapping[str, str] | None = None) -> None:
        self._places = tuple(f"local/{number}" for number in range(workers))
        self._module = module
        self._environment = {**os.environ, **_importable(), **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
        self._environment.update(environment or {})
        self._attempts: dict[int, _Attempt] = {}
        self._never_started: list[Exit] = []

    @property
    def places(self) -> tuple[str, ...]:
        """One slot per worker."""
        return self._places

    def recover(self, identities: Iterable[Identity]) -> None:
        """Kill processes that an earlier controller started on this machine and that still exist, and wait for their end."""
        for identity in identities:
            if identity.get("host") == socket.gethostname() and _is_alive(identity):
                _kill_group(int(identity["pid"]))
                _wait_until_gone(identity)

    def start(self, task: Task, announce: Callable[[Identity], None]) -> None:
        """Create the process, announce its identity, let it work; a process that cannot be made ends as ``launch``."""
        reading, writing = os.pipe()
        command = [sys.executable, "-P", str(CHILD), str(reading), self._module]
        command += [str(task.folder), "--until", str(task.until)]
        kills = _kills_for_memory()
        try:
            with _log(task) as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                    start_new_session=True,
                    env=self._environment,
                )
        except OSError as error:
            os.close(writing)
            self._never_started.append(Exit(task=task, code=None, message=f"cannot start a process: {error}"))
            return
        finally:
            os.close(reading)
        self._attempts[task.trial] = _Attempt(task=task, process=process, lifeline=writing, kills_before=kills)
        announce({"host": socket.gethostname(), "pid": process.pid, "created": _created(process.pid)})
        try:
            os.write(writing, b"g")
        except BrokenPipeError:
            return  # it is dead already; poll reports it

    def poll(self, seconds: float) -> list[Exit]:
        """Attempts that ended, in the order of their trials; returns as soon as there is one."""
        deadline = time.monotonic() + seconds
        while True:
            ended = [self._end(trial) for trial in sorted(self._attempts) if self._is_over(trial)]
            ended, self._never_started = [*self._never_started, *ended], []
            if ended or time.monotonic() >= deadline:
                return ended
            time.sleep(PAUSE)

    def cancel(self, trial: int, grace: float) -> None:
        """Send SIGTERM to the attempt's process, and SIGKILL to its group once ``grace`` seconds have passed."""
        attempt = self._attempts.get(trial)
        if attempt is not None and attempt.killed_at is None:
            attempt.killed_at = time.monotonic() + grace
            os.kill(attempt.process.pid, signal.SIGTERM)  # at worst a zombie: we alone reap it, and not here

    def close(self) -> None:
        """Kill every process that is still there and wait for its end."""
        for trial in sorted(self._attempts):
            _kill_group(self._attempts[trial].process.pid)
            self._end(trial)

    def _is_over(self, trial: int) -> bool:
        attempt = self._attempts[trial]
        if attempt.killed_at is not None and not attempt.killed and time.monotonic() >= attempt.killed_at:
            attempt.killed = True
            _kill_group(attempt.process.pid)
        # WNOWAIT: the process stays a zombie, so that its group id cannot be given to another before we kill the group
        return os.waitid(os.P_PID, attempt.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end(self, trial: int) -> Exit:
        attempt = self._attempts.pop(trial)
        pid = attempt.process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        _kill_group(pid)  # what the attempt started itself
        code = attempt.process.wait()
        os.close(attempt.lifeline)
        starved = code == -signal.SIGKILL and not attempt.killed and _kills_for_memory() > attempt.kills_before
        return Exit(task=attempt.task, code=code, out_of_memory=starved)


def _log(task: Task) -> IO[bytes]:
    log = (task.folder / "log.txt").open("ab")
    log.write(f"--- attempt {task.attempt}: until epoch {task.until}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    log.flush()
    return log


def _importable() -> dict[str, str]:
    """What lets a child import this very package where it runs from a checkout that is not installed."""
    root = Path(hydragnn.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return {}
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([inherited] if inherited else [])])}


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _is_alive(identity: Identity) -> bool:
    """Whether the very process exists; another one that got its number later has another start time."""
    try:
        process = psutil.Process(int(identity["pid"]))
        return (
            abs(process.create_time() - float(identity["created"])) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.NoSuchProcess, KeyError, ValueError):
        return False


def _wait_until_gone(identity: Identity) -> None:
    deadline = time.monotonic() + LAST_WAIT
    while _is_alive(identity):
        if time.monotonic() > deadline:
            raise InputError(f"process {identity['pid']} of the interrupted search does not end; kill it, then resume")
        time.sleep(PAUSE)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left; macOS says PermissionError for a group of zombies


def _kills_for_memory() -> int:
    """How many processes this machine has killed for want of memory so far; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
