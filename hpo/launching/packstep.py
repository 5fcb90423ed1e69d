"""One job step that carries resident workers, the pipes to and from it, and the attempts that its workers were asked for."""

import json
import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hydragnn.files import open_log
from hydragnn.hpo.launching.attempts import Beats, is_complete
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.stepprocess import BURST, StepProcess, TokenBucket
from hydragnn.hpo.scheduling.events import Identity

FILES = 16  # records read side by side, because those of a shared file system take their time


@dataclass(kw_only=True, slots=True)
class PackAttempt:
    """What a worker of a pack was asked to train, and how far that has come."""

    task: Task
    request: str
    asked: float
    """When its worker was asked for it."""
    identity: Identity | None = None
    heartbeat: Beats | None = None
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
    begun: float = float("-inf")
    """When the scheduler was asked for the step; until then its launcher waits at its gate."""
    unread: bytes = b""
    unsent: bytearray = field(default_factory=bytearray)

    def send(self, slot: str, words: str) -> None:
        """Put a line on its way; it leaves as soon as the pipe has room."""
        self.unsent += f"{slot} {words}\n".encode()
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes without waiting."""
        if not self.step.started:
            return  # the gate reads the first line
        with suppress(BlockingIOError, BrokenPipeError, ValueError):
            while self.unsent:
                del self.unsent[: os.write(self.step.input.fileno(), self.unsent[: select.PIPE_BUF])]

    def go(self, log: Path) -> None:
        """Open the gate; what was to be sent leaves."""
        self.log_from, self.begun = log.stat().st_size, time.monotonic()
        self.step.go()
        os.set_blocking(self.step.input.fileno(), False)
        self.flush()

    def end(self) -> None:
        """Make sure that the step runs no more."""
        if self.step.poll() is None:
            self.step.kill()
            self.step.wait()
        self.reports.close()


class PackQueue:
    """Packs at their gates, which open at the rate that a scheduler can bear."""

    def __init__(self, rate: float) -> None:
        self._bucket, self._waiting = TokenBucket(rate, BURST), deque[Pack]()

    def open(self, log: Path, *more: Pack) -> None:
        """Start those whose turn it is; ``more`` wait from now on."""
        self._waiting.extend(more)
        while self._waiting and self._bucket.take(time.monotonic()):
            pack = self._waiting.popleft()
            if pack.step.poll() is None:
                pack.go(log)

    def nodes(self) -> set[str]:
        """Those whose packs wait."""
        return {node for pack in self._waiting for node in pack.nodes}

    def clear(self) -> None:
        """Let those that wait end at their gates."""
        while self._waiting:
            self._waiting.popleft().step.input.close()


class GoodEnds:
    """Ends of attempts that found no fault, while their records are read side by side, beside the controller's loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """``ring`` is called, in another thread, when a record was read."""
        self._ring, self._files = ring, ThreadPoolExecutor(FILES, "packs")
        self._reading: list[tuple[Exit, Future[bool]]] = []

    def add(self, end: Exit) -> None:
        """Begin to read the record of one."""
        complete = self._files.submit(is_complete, end.task)
        self._reading.append((end, complete))
        complete.add_done_callback(lambda _: self._ring())

    def read(self) -> tuple[list[Exit], list[Exit]]:
        """Those whose records were found to be complete since the last call, and those whose were not."""
        found: tuple[list[Exit], list[Exit]] = ([], [])
        reading, self._reading = self._reading, []
        for end, complete in reading:
            if complete.done():
                found[0 if complete.result() else 1].append(end)
            else:
                self._reading.append((end, complete))
        return found

    def close(self) -> None:
        """Forget those that are left."""
        self._files.shutdown(cancel_futures=True)


def pack_at_gate(site: Site, step: Step, environment: Mapping[str, str], log: Path) -> Pack:
    """The launcher of a pack's job step at its gate; its messages will go to ``log``. OSError where there can be none."""
    with open_log(log) as file:
        log_from = file.tell()
        process = StepProcess(site, step, subprocess.PIPE, environment, file)
    reports = process.process.stdout
    assert reports is not None
    return Pack(step=process, nodes=step.nodes, reports=reports, log_from=log_from)


def request_of(task: Task) -> str:
    """The line that asks a worker for an attempt; its node fills in its threads, and the file that shows there that the run lives."""
    arguments = [str(task.folder), "--until", str(task.until), "--attempt", str(task.attempt)]
    arguments += ["--micro-batches", str(task.micro_batches), "--ranks", "1", "--threads", "{threads}"]
    arguments += ["--beats", "{beats}"]
    return json.dumps({"arguments": arguments, "log": str(task.folder / "log.txt"), "beats": "{beats}"})
