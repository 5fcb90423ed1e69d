"""Base of launchers in an allocation: reports, its end, lost nodes."""

import itertools
import os
import selectors
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import IO, Any, ClassVar

import hydragnn
from hydragnn.base.environment import environment
from hydragnn.base.errors import InputError
from hydragnn.base.files import open_log
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.launching.allocation import Allocation, Node
from hydragnn.hpo.launching.attempts import Attempts
from hydragnn.hpo.launching.job_step import BURST, ENDING, STEP_RATE, STEPS_AT_ONCE, TokenBucket, end_process, end_steps
from hydragnn.hpo.launching.launcher import MARK, Exit, Report, Task, is_ours
from hydragnn.hpo.launching.sites import Site
from hydragnn.hpo.launching.watchdog import SchedulerWatch
from hydragnn.hpo.scheduling.events import Identity, Probed, Stopping, node_of

PAUSE = 0.05  # seconds between looks at steps
LEAVE = 15.0  # seconds that steps of an allocation that is over may take to end
NAMED = 8  # idle nodes that a note names


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Patience of a launcher, and load on the scheduler."""

    at_once: int = STEPS_AT_ONCE
    """Job steps at once; packs are fewer in any case."""
    rate: float = STEP_RATE
    """Job steps that begin per second."""
    hang_seconds: float = 600.0
    probe_seconds: float = 120.0
    """Python and torch may come from a cold file system."""


class Launcher(ABC):
    """Starts attempts on slots and reports their ends; decides nothing.

    An attempt's process waits; once the journal knows it, ``go`` lets it work. What it came to is judged in ``verdict.py``.
    """

    module: ClassVar[str] = "hydragnn.runs.run"
    """Program of attempts."""

    variables: ClassVar[Mapping[str, str]] = {}
    """Variables of its environment besides those of this process."""

    ending: ClassVar[Sequence[tuple[Signals, float]]] = ENDING
    """Signals that end a process of an earlier controller, with seconds to wait after each."""

    def __init__(self, site: Site, allocation: Allocation, limits: Limits) -> None:
        """Start nothing yet."""
        self._site, self._allocation, self._limits = site, allocation, limits
        self._environment = {**environment_alone(), **importable(), "PYTHONUNBUFFERED": "1", **self.variables}
        self._watch = SchedulerWatch(site, allocation.names, allocation.job)
        self._attempts = Attempts(self._limits.hang_seconds)
        self._bucket, self._numbers = TokenBucket(self._limits.rate, BURST), itertools.count()
        self._pipes = PipeSelector()
        self._reports: list[Report] = []
        self._revoked = ""  # why the allocation is over; empty while it runs
        self._leave_by = float("inf")

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Slots for attempts: whole nodes of an allocation, or shares ``node/number``."""

    @property
    @abstractmethod
    def beat_seconds(self) -> float:
        """Seconds between heartbeats of each run on a shared file system."""

    @abstractmethod
    def go(self, task: Task) -> None:
        """Let an attempt work that the journal has."""

    @abstractmethod
    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's attempt to save itself; kill it after ``grace`` seconds."""

    @abstractmethod
    def probe(self, node: str) -> None:
        """Begin to probe a node; ``poll`` reports what was found."""

    @abstractmethod
    def close(self) -> None:
        """Kill whatever still runs."""

    @abstractmethod
    def size_of(self, slots: int, node: Node) -> float:
        """Return the speed of a node's slot, in GPUs or cores."""

    @property
    def sizes(self) -> dict[str, float]:
        """Relative speed of each node's slots; empty where all are alike."""
        counts = Counter(map(node_of, self.slots))
        sizes = {node.name: self.size_of(counts[node.name], node) for node in self._allocation.nodes}
        largest = max(sizes.values())
        return {} if len(set(sizes.values())) == 1 else {name: round(size / largest, 3) for name, size in sizes.items()}

    @property
    def note(self) -> str:
        """Note for the user about nodes that differ; empty without any."""
        allocation, unused = self._allocation, self._allocation.unused
        more = ", ..." if len(unused) > NAMED else ""
        idle = f"; idle, having no GPU: {', '.join(unused[:NAMED])}{more}" if unused else ""
        if len({(node.cores, node.gpus) for node in allocation.nodes}) == 1 and not idle:
            return ""
        return f"nodes differ: {allocation}{idle}; {len(self.slots)} slots for trials"

    @property
    def deadline(self) -> float | None:
        """End of the allocation."""
        return self._allocation.deadline

    def recover(self, campaign: str, identities: Iterable[Identity]) -> None:
        """End the steps of a dead controller of the campaign.

        Those on lost nodes cannot answer, and are fenced. Steps that are not named for the campaign are nobody's to end.
        """
        self._environment[MARK] = campaign
        jobs: dict[str, set[str]] = {}
        for one in {(one.get("job"), one.get("step"), one.get("pid")): one for one in identities}.values():
            if is_ours(one, campaign):
                end_process(one, self.ending)
            if one.get("job") and campaign and str(one.get("step")).startswith(f"{campaign}-"):
                jobs.setdefault(str(one["job"]), set()).add(str(one["step"]))
        for job, names in jobs.items():
            end_steps(self._site, job, names)

    def start(self, task: Task) -> None:
        """Create the attempt's process; ``poll`` reports a failure."""
        why = self._revoked
        try:
            if not why:
                with open_log(task.folder / "log.txt") as log:
                    at = time.strftime("%Y-%m-%d %H:%M:%S")
                    line = f"--- attempt {task.attempt}: until epoch {task.until}, {at}, {' '.join(task.slots)}\n"
                    log.write(line.encode())
                    log.flush()
                    self._begin(task, log)
        except (OSError, InputError) as error:
            why = f"cannot start a step: {error}"
        if why:
            self._reports.append(Exit(task=task, code=None, interrupted=bool(self._revoked), message=why))

    def wake(self) -> None:
        """End the wait for reports, from any thread."""
        self._pipes.wake()

    def poll(self, seconds: float) -> list[Report]:
        """Return reports, after waiting up to ``seconds`` or for ``wake``."""
        deadline = time.monotonic() + seconds
        while True:
            self._open_gates(time.monotonic())
            wait = 0.0 if self._reports else max(0.0, min(PAUSE, deadline - time.monotonic()))
            readers, woken = self._pipes.wait(wait)
            for read in readers:
                read()
            if not self._revoked:
                self._read_scheduler()
            self._look(time.monotonic())
            if self._reports or woken or time.monotonic() >= deadline:
                reports, self._reports = self._reports, []
                return reports

    @abstractmethod
    def _begin(self, task: Task, log: IO[bytes]) -> None:
        """Create the attempt's process, which writes to the log."""

    @abstractmethod
    def _open_gates(self, now: float) -> None:
        """Let steps begin whose turn it is."""

    @abstractmethod
    def _look(self, now: float) -> None:
        """Report what has ended, is late or hangs."""

    @abstractmethod
    def _lose(self, node: str, why: str) -> None:
        """End what runs on a lost node."""

    @abstractmethod
    def _leave(self) -> None:
        """End all attempts, since the allocation is over."""

    def _read_scheduler(self) -> None:
        """Act on the scheduler's words about nodes and the allocation."""
        for node, state in self._watch.changes().items():
            word = "the scheduler has lost it" if state == "lost" else "it does not answer the scheduler"
            self._reports.append(Probed(node=node, healthy=False, message=word))
            if state == "lost":
                self._lose(node, word)
        if self._watch.over:
            self._revoked = f"the allocation has ended (job {self._allocation.job}: {self._watch.over})"
            self._reports.append(Stopping(reason=self._revoked, ending="walltime"))
            self._leave_by = time.monotonic() + LEAVE
            self._leave()


def importable() -> dict[str, str]:
    """Return variables that let a process import this package from a checkout."""
    root = Path(hydragnn.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return {}
    inherited = environment().get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([inherited] if inherited else [])])}


class PipeSelector:
    """Pipes, each registered once; ``wake`` ends ``wait`` from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self.open(self._reading, None)

    def open(self, descriptor: int, owner: object) -> None:
        """Wait for a pipe from now on."""
        self._selector.register(descriptor, selectors.EVENT_READ, owner)

    def close(self, descriptor: int) -> None:
        """Stop to wait for a pipe, before it is closed."""
        self._selector.unregister(descriptor)

    def wake(self) -> None:
        """End a wait, or the next one; calls before it are one."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def wait(self, seconds: float) -> tuple[list[Any], bool]:
        """Return the owners of readable pipes, and True after ``wake``.

        Waits up to ``seconds`` for the first.
        """
        ready = [key.data for key, _ in self._selector.select(seconds)]
        with suppress(BlockingIOError):
            os.read(self._reading, 65536)
        return [owner for owner in ready if owner is not None], None in ready

    def end(self) -> None:
        """Close the selector."""
        if self._selector.get_map() is not None:
            self._selector.close()
            os.close(self._reading)
            os.close(self._writing)
