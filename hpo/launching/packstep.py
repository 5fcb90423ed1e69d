"""One job step that carries resident workers, the pipes to and from it, and the attempts that its workers were asked for."""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.stepprocess import StepProcess
from hydragnn.hpo.launching.watchdog import Heartbeat
from hydragnn.hpo.scheduling.events import Identity


@dataclass(kw_only=True, slots=True)
class PackAttempt:
    """What a worker of a pack was asked to train, and how far that has come."""

    task: Task
    request: str
    asked: float
    """When its worker was asked for it."""
    identity: Identity | None = None
    heartbeat: Heartbeat | None = None
    asked_to_leave: bool = False
    kill_at: float = float("inf")
    killed: float | None = None
    hung: bool = False


@dataclass(kw_only=True, slots=True)
class Pack:
    """One job step and the pipe from it."""

    step: StepProcess
    nodes: tuple[str, ...]
    reports: IO[bytes]
    log_from: int
    """Where in the packs' log its own messages begin; those of others can lie between them."""
    begun: float = field(default_factory=time.monotonic)
    unread: bytes = b""
    unsent: bytearray = field(default_factory=bytearray)

    def send(self, slot: str, words: str) -> None:
        """Put a line on its way; it leaves as soon as the pipe has room."""
        self.unsent += f"{slot} {words}\n".encode()
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes without waiting."""
        with suppress(BlockingIOError, BrokenPipeError, ValueError):
            while self.unsent:
                del self.unsent[: os.write(self.step.input.fileno(), self.unsent[: select.PIPE_BUF])]


def start_pack(site: Site, step: Step, environment: Mapping[str, str], log: Path) -> Pack:
    """Start the job step of a pack, whose messages go to ``log``; OSError where the step cannot be started."""
    with log.open("ab") as file:
        log_from = file.tell()
        process = StepProcess(site, step, subprocess.PIPE, environment, file)
    process.go()
    os.set_blocking(process.input.fileno(), False)
    reports = process.process.stdout
    assert reports is not None
    return Pack(step=process, nodes=step.nodes, reports=reports, log_from=log_from)


def request_of(task: Task) -> str:
    """The line that asks a worker for an attempt; the worker fills in its threads."""
    arguments = [str(task.folder), "--until", str(task.until), "--attempt", str(task.attempt)]
    arguments += ["--micro-batches", str(task.micro_batches), "--ranks", "1", "--threads", "{threads}"]
    return json.dumps({"arguments": arguments, "log": str(task.folder / "log.txt")})
