"""Tasks of launchers, what they report, and processes that are theirs."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hydragnn.base.imports import allowed_code
from hydragnn.hpo.scheduling.events import Identity, Probed, Start, Stopping


class Task(Start, frozen=True, kw_only=True):
    """Attempt at a segment: train the run in ``folder`` to epoch ``until``."""

    folder: Path

    @property
    def arguments(self) -> list[str]:
        """Arguments of the program that trains."""
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
    """End of an attempt's processes.

    ``code`` is a hint, never the verdict; None: they never started.
    """

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


Report = Begun | Exit | Probed | Stopping
"""Report of a launcher; ``Stopping``: the allocation has ended."""


MARK = "HYDRAGNN_CAMPAIGN"  # variable that marks processes of a campaign, and begins names of steps


def identity_of(pid: int) -> Identity:
    """Return what identifies a process of this machine."""
    created = 0.0
    with suppress(psutil.NoSuchProcess):  # it ended at once
        created = psutil.Process(pid).create_time()
    return {"host": socket.gethostname(), "pid": pid, "created": created}


def is_ours(identity: Identity, campaign: str) -> bool:
    """Return True for the very process of that very campaign."""
    try:
        mark = psutil.Process(int(identity["pid"])).environ().get(MARK)
    except (psutil.Error, OSError, KeyError, ValueError, TypeError, OverflowError):
        return False
    return bool(campaign) and mark == campaign and identity.get("host") == socket.gethostname() and is_alive(identity)


def is_alive(identity: Identity) -> bool:
    """Return True where the very process runs here, and is no zombie.

    Another process that got its number later has another start time.
    """
    try:
        process = psutil.Process(int(identity["pid"]))
        same = abs(process.create_time() - float(identity["created"])) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError, ValueError, TypeError, OverflowError):
        return False
