"""How attempts are run: the protocol that local processes, Slurm, PBS and Flux share, and the judgement of what came out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from hydragnn.errors import InputError
from hydragnn.hpo.events import Failed, Identity, Reached
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.record import FailureKind, RunRecord, read_record

TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One attempt at one segment: train the run in ``folder`` until ``until`` epochs are done."""

    trial: int
    attempt: int
    until: int
    folder: Path
    places: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """An attempt's processes are gone; ``code`` is a hint, never the verdict. None: they never started."""

    task: Task
    code: int | None
    out_of_memory: bool = False
    """The system killed the process for want of memory."""
    message: str = ""


@runtime_checkable
class Launcher(Protocol):
    """Starts attempts on places and sees them end; it neither decides nor judges."""

    @property
    def places(self) -> tuple[str, ...]:
        """What attempts can run on: worker slots, or the nodes of an allocation."""

    def recover(self, identities: Iterable[Identity]) -> None:
        """Make sure that attempts of a dead controller run no more, before anything new is started."""

    def start(self, task: Task, announce: Callable[[Identity], None]) -> None:
        """Create the attempt's process; ``announce`` what names it, here or in ``poll``, and only then let it work."""

    def poll(self, seconds: float) -> list[Exit]:
        """Attempts that ended, after waiting up to so many seconds for the first."""

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's attempt to save itself; after ``grace`` seconds it is killed."""

    def close(self) -> None:
        """Kill whatever still runs."""


def verdict(end: Exit, config_hash: str, objective: Objective) -> Reached | Failed:
    """What an attempt came to, judged by the record that it left; success is a complete record, never an exit code."""
    task = end.task
    try:
        record = read_record(task.folder)
    except InputError:
        return _without_result(end, None)
    if record.config_hash != config_hash:
        return _failure(task, "defect", f"the record in {task.folder} belongs to another configuration")
    if record.status == "failed" and record.failure is not None:
        return _failure(task, record.failure.kind, record.failure.message)
    over = record.status in ("finished", "stopped")
    if not over and (record.status != "paused" or record.epochs < task.until):
        return _without_result(end, record)
    value = objective_value(record, objective, task.until)
    if value is None:
        return _failure(task, "diverged", f"the objective is not a number up to epoch {task.until}")
    return Reached(
        trial=task.trial,
        attempt=task.attempt,
        epochs=record.epochs,
        value=value,
        over=over,
        seconds=record.cost.seconds,
    )


def log_tail(folder: Path) -> str:
    """The last lines of a run's log; empty where there is none."""
    try:
        data = (folder / "log.txt").read_bytes()[-8192:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").splitlines()[-TAIL_LINES:])


def _without_result(end: Exit, record: RunRecord | None) -> Failed:
    """The kind of failure of an attempt that left no result, from its exit and how far it came."""
    task, code = end.task, end.code
    if end.out_of_memory:
        return _failure(task, "out_of_memory", "the system ran out of memory and killed the process")
    if code is None:
        return _failure(task, "launch", end.message)
    if code in (-2, -9, -15) or (record is not None and record.status == "paused"):
        how = f"by signal {-code}" if code < 0 else "before the segment's end"
        return _failure(task, "preempted", f"ended from outside {how}")
    if code < 0:
        return _failure(task, "defect", f"crashed with signal {-code}\n{log_tail(task.folder)}")
    kind: FailureKind = "launch" if record is None else "defect"
    return _failure(task, kind, f"exit code {code} without a result\n{log_tail(task.folder)}")


def _failure(task: Task, kind: FailureKind, message: str) -> Failed:
    return Failed(trial=task.trial, attempt=task.attempt, kind=kind, message=message.strip())
