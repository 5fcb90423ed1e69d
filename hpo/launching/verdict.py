"""Verdict on an attempt by its record, which alone counts."""

import os
from contextlib import suppress
from pathlib import Path
from signal import SIGABRT, SIGINT, SIGKILL, SIGTERM, SIGUSR1

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular, read_json
from hydragnn.config import parse_config
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.objective import JOULES, NO_ENERGY, Objective, goals_of, objective_value, quantity_text
from hydragnn.hpo.scheduling.events import Failed, Reached
from hydragnn.record import FailureKind, RunRecord, read_record
from hydragnn.runs.checkpoint import latest_checkpoint

LOG_END = 65536  # bytes of a log that are searched for the launcher's messages
TAIL_LINES = 15

OVER = ("finished", "stopped")  # statuses of a record that needs no further segment
FENCED = 4  # exit code of an attempt that found ``attempt.json`` naming another one


def _is_of(record: RunRecord, config_hash: str) -> bool:
    if record.config_hash == config_hash:
        return True
    with suppress(InputError):
        return parse_config(record.config).hash == config_hash
    return False


def verdict(end: Exit, config_hash: str, objective: Objective) -> Reached | Failed:
    """Return the result of an attempt by its record."""
    task = end.task
    record = _record_of(task)
    if end.interrupted and (record is None or not _is_complete(record, task)):
        return _failure(end, "preempted", end.message)
    if record is None:
        return _without_result(end, None)
    if not _is_of(record, config_hash):
        return _failure(end, "defect", f"the record in {task.folder} belongs to another configuration")
    if end.out_of_memory and record.status == "failed":
        return _without_result(end, record)  # the other ranks only saw that one was gone
    # of a peer that was lost to a crash, which SIGABRT is not: NCCL aborts ranks that have lost a peer
    crashed = end.code not in NO_CRASH and not end.suspects and not end.hung
    if record.status == "failed" and record.failure and not (record.failure.kind == "lost_node" and crashed):
        return _failure(end, record.failure.kind, record.failure.message)
    if not _is_complete(record, task):
        return _without_result(end, record)
    goals = goals_of(objective)
    value, *others = (objective_value(record, goal.of, task.until) for goal in goals)
    if value is None or None in others:
        goal = goals[0 if value is None else 1 + others.index(None)]
        if goal.of == JOULES:
            return _failure(end, "configuration", NO_ENERGY)
        name = f"objective {quantity_text(goal.of)}" if others else "objective"
        return _failure(end, "diverged", f"the {name} is not a number up to epoch {task.until}")
    return Reached(
        trial=task.trial,
        attempt=task.attempt,
        epochs=record.epochs,
        value=value,
        others=tuple(one for one in others if one is not None),
        over=record.status in OVER,
        seconds=record.cost.seconds,
        memory_mb=record.cost.peak_memory_mb,
        speed=record.cost.graphs_per_second,
    )


NO_CRASH = (None, 0, 1, 2, 3, FENCED, *(-number for number in (SIGINT, SIGABRT, SIGKILL, SIGUSR1, SIGTERM)))
"""Exit codes of ranks that ended as they should, were told to, or lost a peer."""


def is_complete(task: Task) -> bool:
    """Return True where this attempt left the record of its whole segment."""
    record = _record_of(task)
    return record is not None and _is_complete(record, task)


def log_tail(folder: Path) -> str:
    """The last lines of a run's log; empty where there is none."""
    return "\n".join(text_since(folder / "log.txt", 0).splitlines()[-TAIL_LINES:])


def _record_of(task: Task) -> RunRecord | None:
    try:
        record = read_record(task.folder)
    except InputError:
        return None
    return record if record.attempt in (0, task.attempt) else None


def _is_complete(record: RunRecord, task: Task) -> bool:
    return record.status in OVER or (record.status == "paused" and record.epochs >= task.until)


def _without_result(end: Exit, record: RunRecord | None) -> Failed:
    """Return the kind of failure of an attempt without a result."""
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
    """Return the finished epochs in the newest checkpoint; 0 without one."""
    try:
        checkpoint = latest_checkpoint(folder / "checkpoints")
        return 0 if checkpoint is None else int(read_json(checkpoint / "state.json")["epoch"])
    except (InputError, KeyError, TypeError, ValueError):
        return 0


def text_since(log: Path, begin: int) -> str:
    """Return the end of a log, from byte ``begin`` on."""
    with suppress(OSError, InputError), os.fdopen(open_regular(log), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - LOG_END))
        return file.read().decode(errors="replace")
    return ""
