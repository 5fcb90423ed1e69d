"""What launchers are asked and tell: the protocol that local processes, job steps and packs share.

A launcher creates an attempt's process, which waits; once the journal knows it, ``go`` lets it work. What it came to is judged
in ``attempts.py``.
"""

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import psutil

import hydragnn
from hydragnn.base.environment import environment
from hydragnn.base.imports import allowed_code
from hydragnn.hpo.scheduling.events import Identity, Probed


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One attempt at one segment: train the run in ``folder`` until ``until`` epochs are done."""

    trial: int
    attempt: int
    until: int
    folder: Path
    slots: tuple[str, ...]
    micro_batches: int = 1
    """Parts in which every batch is computed."""

    @property
    def arguments(self) -> list[str]:
        """What the program that trains is told."""
        options = ["--until", self.until, "--attempt", self.attempt, "--micro-batches", self.micro_batches]
        for module in allowed_code():
            options += ["--allow-code", module]
        return [str(self.folder), *map(str, options)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """An attempt's process exists and waits for ``go``."""

    task: Task
    identity: Identity


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """An attempt's processes are gone; ``code`` is a hint, never the verdict. None: they never started."""

    task: Task
    code: int | None
    out_of_memory: bool = False
    """The system killed a process for want of memory."""
    hung: bool = False
    """It was killed because its heartbeat had stopped."""
    suspects: tuple[str, ...] = ()
    """Nodes that are known to be at fault."""
    interrupted: bool = False
    """It ended with its allocation: whatever it left, it has not failed."""
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """The allocation is over, and all that ran in it; its nodes are not to blame."""

    message: str


Report = Begun | Exit | Probed | Revoked
"""What a launcher has to tell."""


@runtime_checkable
class Launcher(Protocol):
    """Starts attempts on slots and sees them end; it neither decides nor judges."""

    @property
    def slots(self) -> tuple[str, ...]:
        """What attempts can run on: whole nodes of an allocation, or shares ``node/number``."""

    @property
    def deadline(self) -> float | None:
        """When the allocation ends, in seconds since 1970; None where it does not."""

    @property
    def beat_seconds(self) -> float:
        """How far apart the heartbeats of each run may be on the file system that all share."""

    def recover(self, campaign: str, identities: Iterable[Identity]) -> None:
        """Make sure that attempts of a dead controller of the campaign run no more, before anything new is started under its name."""

    def start(self, task: Task) -> None:
        """Create the attempt's process; ``poll`` reports that it begun, or its exit where it never started. Never blocks long."""

    def go(self, task: Task) -> None:
        """Let an attempt that has begun do its work: the journal knows it now."""

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        """What happened, after waiting up to so many seconds for the first, or until the descriptor ``bell`` can be read."""

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's attempt to save itself; after ``grace`` seconds it is killed."""

    def probe(self, node: str) -> None:
        """Begin to probe a node; ``poll`` reports what was found."""

    def close(self) -> None:
        """Kill whatever still runs."""


def note_of(task: Task) -> bytes:
    """What stands in the log where an attempt begins now."""
    begin = f"--- attempt {task.attempt}: until epoch {task.until}, {time.strftime('%Y-%m-%d %H:%M:%S')}"
    return f"{begin}, {' '.join(task.slots)}\n".encode()


def importable() -> dict[str, str]:
    """What lets a process import this very package where it runs from a checkout that is not installed."""
    root = Path(hydragnn.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return {}
    inherited = environment().get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([inherited] if inherited else [])])}


MARK = "HYDRAGNN_CAMPAIGN"
"""The environment variable that says of every process of a campaign whose it is; names of job steps begin with its value."""


def is_ours(identity: Identity, campaign: str) -> bool:
    """Return True where the very process exists on this machine and was started for that campaign: what a file says alone ends nothing."""
    try:
        mark = psutil.Process(int(identity["pid"])).environ().get(MARK)
    except (psutil.Error, OSError, KeyError, ValueError, TypeError, OverflowError):
        return False
    return bool(campaign) and mark == campaign and identity.get("host") == socket.gethostname() and is_alive(identity)


def is_alive(identity: Identity) -> bool:
    """Return True where the very process exists on this machine and is no zombie, which is nobody's to collect where the controller has died.

    Another process that got its number later has another start time.
    """
    try:
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - float(identity["created"])) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError, ValueError, TypeError, OverflowError):
        return False
