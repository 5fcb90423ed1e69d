"""How attempts are run: the protocol that local processes, Slurm, PBS and Flux share, and the judgement of what came out."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

import hydragnn
from hydragnn.errors import InputError
from hydragnn.files import open_log, read_json
from hydragnn.hpo.launching.allocation import Allocation
from hydragnn.hpo.launching.sites import Evidence, Site
from hydragnn.hpo.launching.watchdog import HOLD, SchedulerWatch, text_since
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.scheduling.events import Failed, Identity, Probed, Reached
from hydragnn.record import FailureKind, RunRecord, read_record
from hydragnn.runs.checkpoint import latest_checkpoint

TAIL_LINES = 15

OVER = ("finished", "stopped")
"""What the record of a run says that needs no further segment."""

FENCED = 4
"""Exit code of an attempt that found ``attempt.json`` naming another one."""


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

    def recover(self, identities: Iterable[Identity]) -> None:
        """Make sure that attempts of a dead controller run no more, before anything new is started."""

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


class AllocationLauncher:
    """What launchers in an allocation share: its end, the scheduler as a witness, and the ends that wait for its word."""

    def __init__(self, site: Site, allocation: Allocation, module: str, environment: Mapping[str, str] | None) -> None:
        """``module`` is what attempts run, in this process's environment with changes."""
        self._site, self._allocation, self._module = site, allocation, module
        self._environment = {**os.environ, **importable(), "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._watch = SchedulerWatch(site, allocation.nodes, allocation.job)
        self._reports: list[Report] = []
        self._revoked = ""
        """Why the allocation is over; empty as long as it lives."""

    @property
    def deadline(self) -> float | None:
        """When the allocation ends."""
        return self._allocation.deadline

    def start(self, task: Task) -> None:
        """Note an attempt in its log and begin it; where there can be none, ``poll`` reports its end."""
        if self._revoked:
            self._reports.append(Exit(task=task, code=None, interrupted=True, message=self._revoked))
            return
        note = f"--- attempt {task.attempt}: until epoch {task.until}, {time.strftime('%Y-%m-%d %H:%M:%S')}, "
        try:
            with open_log(task.folder / "log.txt") as log:
                log.write(f"{note}{' '.join(task.slots)}\n".encode())
                log.flush()
                self._begin(task, log)
        except (OSError, InputError) as error:
            self._reports.append(Exit(task=task, code=None, message=f"cannot start a step: {error}"))

    def _begin(self, task: Task, log: IO[bytes]) -> None:
        """Begin an attempt that may write into its log; OSError where the machine lacks what that takes."""
        raise NotImplementedError

    def _lose(self, node: str, why: str) -> None:
        """End what runs on a lost node."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Give up what waits, because the allocation is over, and let what runs end."""
        raise NotImplementedError

    def _hear_scheduler(self) -> None:
        """Act on what the scheduler says of nodes and the allocation; nothing that ends with it says anything."""
        for node, state in self._watch.changes().items():
            word = "the scheduler has lost it" if state == "lost" else "it does not answer the scheduler"
            self._reports.append(Probed(node=node, healthy=False, message=word))
            if state == "lost":
                self._lose(node, word)
        if self._watch.over:
            self._revoked = f"the allocation has ended (job {self._allocation.job}: {self._watch.over})"
            self._reports.append(Revoked(message=self._revoked))
            self._watch.close()
            self._leave()

    def _is_known(self, nodes: Iterable[str], since: float) -> bool:
        """Return True where looks that began later have said how these nodes and the allocation are, or it took too long."""
        late = time.monotonic() > since + HOLD and not self._watch.suspicious
        return late or self._watch.knows(nodes, since)

    def _is_excused(self, evidence: Evidence, nodes: Iterable[str], begun: float) -> bool:
        """Return True where the scheduler did not start a step for reasons of its own."""
        refused = not evidence.started and not evidence.suspects
        return evidence.unreachable or (refused and not self._watch.in_order(nodes, begun))


def importable() -> dict[str, str]:
    """What lets a process import this very package where it runs from a checkout that is not installed."""
    root = Path(hydragnn.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        return {}
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([inherited] if inherited else [])])}


def verdict(end: Exit, config_hash: str, objective: Objective) -> Reached | Failed:
    """What an attempt came to, judged by the record that it left; success is a complete record, never an exit code."""
    task = end.task
    record = _record_of(task)
    if end.interrupted and (record is None or not _is_complete(record, task)):
        return _failure(end, "preempted", end.message)
    if record is None:
        return _without_result(end, None)
    if record.config_hash != config_hash:
        return _failure(end, "defect", f"the record in {task.folder} belongs to another configuration")
    if end.out_of_memory and record.status == "failed":
        return _without_result(end, record)  # the other ranks only saw that one was gone
    if record.status == "failed" and record.failure is not None:
        return _failure(end, record.failure.kind, record.failure.message)
    if not _is_complete(record, task):
        return _without_result(end, record)
    value = objective_value(record, objective, task.until)
    if value is None:
        return _failure(end, "diverged", f"the objective is not a number up to epoch {task.until}")
    return Reached(
        trial=task.trial,
        attempt=task.attempt,
        epochs=record.epochs,
        value=value,
        over=record.status in OVER,
        seconds=record.cost.seconds,
        memory_mb=record.cost.peak_memory_mb,
    )


def is_complete(task: Task) -> bool:
    """Return True where this very attempt left the record of its whole segment."""
    record = _record_of(task)
    return record is not None and _is_complete(record, task)


def log_tail(folder: Path) -> str:
    """The last lines of a run's log; empty where there is none."""
    return "\n".join(text_since(folder / "log.txt", 0).splitlines()[-TAIL_LINES:])


def _record_of(task: Task) -> RunRecord | None:
    """The record that this very attempt left; None where it left none. Records from before attempts were counted are its own."""
    try:
        record = read_record(task.folder)
    except InputError:
        return None
    return record if record.attempt in (0, task.attempt) else None


def _is_complete(record: RunRecord, task: Task) -> bool:
    return record.status in OVER or (record.status == "paused" and record.epochs >= task.until)


def _without_result(end: Exit, record: RunRecord | None) -> Failed:
    """The kind of failure of an attempt that left no result, from its exit and how far it came."""
    task, code = end.task, end.code
    if end.out_of_memory:
        return _failure(end, "out_of_memory", "the system ran out of memory and killed the process")
    if code is None:
        return _failure(end, "launch", end.message)
    if end.hung or end.suspects:
        return _failure(end, "lost_node", end.message or "its heartbeat stopped")
    if code == FENCED:
        return _failure(end, "preempted", "left, because another attempt has taken over")
    if code in (-2, -9, -10, -15) or (record is not None and record.status == "paused"):
        how = f"by signal {-code}" if code < 0 else "before the segment's end"
        return _failure(end, "preempted", end.message or f"ended from outside {how}")
    if code < 0:
        return _failure(end, "defect", f"crashed with signal {-code}\n{log_tail(task.folder)}")
    kind: FailureKind = "launch" if record is None else "defect"
    return _failure(end, kind, f"exit code {code} without a result\n{log_tail(task.folder)}")


def _failure(end: Exit, kind: FailureKind, message: str) -> Failed:
    task = end.task
    return Failed(
        trial=task.trial,
        attempt=task.attempt,
        kind=kind,
        message=message.strip(),
        epochs=saved_epochs(task.folder),
        suspects=end.suspects,
    )


def saved_epochs(folder: Path) -> int:
    """Finished epochs that the newest complete checkpoint of a run holds; 0 where there is none."""
    try:
        checkpoint = latest_checkpoint(folder / "checkpoints")
        return 0 if checkpoint is None else int(read_json(checkpoint / "state.json")["epoch"])
    except (InputError, KeyError, TypeError, ValueError):
        return 0
