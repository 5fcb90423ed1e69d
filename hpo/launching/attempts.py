"""Evidence of attempts: heartbeats, and the record, which alone is the verdict."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Literal

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular, read_json
from hydragnn.config import parse_config
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.objective import Objective, objective_value
from hydragnn.hpo.scheduling.events import Failed, Reached
from hydragnn.record import FailureKind, RunRecord, read_record
from hydragnn.runs.checkpoint import latest_checkpoint

HEARTBEAT = "heartbeat"
"""The file that rank 0 touches while it takes steps."""
LINGER = 10.0  # seconds that an attempt's processes may take to end once its record is complete
LOG_END = 65536  # bytes of a log that are searched for the launcher's messages
TAIL_LINES = 15

OVER = ("finished", "stopped")
"""Statuses of a record that needs no further segment."""

FENCED = 4
"""Exit code of an attempt that found ``attempt.json`` naming another one."""

OPERATIONS_A_SECOND = 45.0
"""File system operations per second for the heartbeats of a whole campaign."""
OPERATIONS_OF_A_BEAT = 10.0
"""Operations per heartbeat, with its checks and the record's part."""

FILE_PATIENCE = 10.0
"""Seconds to write a file before the file system counts as stalled."""
AT_ONCE = 0.05
"""Seconds in which a file system in order answers."""
STALLS = 5
"""Consecutive stalls that are excused although files can be written."""

Clock = Callable[[], float]


def seconds_between_beats(runs: int, patience: float) -> float:
    """Return seconds between heartbeats of each run, more for many runs.

    A run that hangs is told from one that does not within the patience by four beats at least; where nobody looks, ``patience`` is infinite.

    >>> [round(seconds_between_beats(runs, 600.0)) for runs in (4, 90, 500, 9_408)], round(seconds_between_beats(9_408, float("inf")))
    ([1, 20, 111, 150], 2091)
    """
    return max(1.0, min(runs * OPERATIONS_OF_A_BEAT / OPERATIONS_A_SECOND, patience / 4))


class LastSigns:
    """Last signs of life of thousands, the oldest first."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Return True where there was a sign of this one."""
        return name in self._times

    def __iter__(self) -> Iterator[str]:
        """Names, that of the longest silence first."""
        return iter(self._times)

    def note(self, name: str) -> None:
        """Note a sign of life."""
        self._times.pop(name, None)
        self._times[name] = self._clock()

    def num_recent(self, seconds: float) -> int:
        """Return the number of signs within the last ``seconds``."""
        earliest = self._clock() - seconds
        return sum(1 for _ in takewhile(lambda time: time >= earliest, reversed(self._times.values())))

    def __len__(self) -> int:
        """Number of names with signs."""
        return len(self._times)

    def begin_anew(self) -> None:
        """Count all silences from now on."""
        self._times = dict.fromkeys(self._times, self._clock())

    def forget(self, name: str) -> None:
        """Expect nothing more of this one."""
        self._times.pop(name, None)

    def silent(self, patience: float) -> list[str]:
        """Return the names without a sign for longer than the patience.

        >>> signs = LastSigns(iter([0.0, 1.0, 5.0, 11.5]).__next__)
        >>> for name in ("a", "b", "a"):
        ...     signs.note(name)
        >>> signs.silent(10.0)
        ['b']
        """
        earliest = self._clock() - patience
        return [name for name, _ in takewhile(lambda sign: sign[1] < earliest, self._times.items())]


Judgement = Literal["hung", "stall", "wait"]
"""Meaning of silence: the run hangs, everything stalls, or it is undecided."""


class Witness:
    """Judge of silence: no run hangs where most are silent."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._probe: _FileProbe | None = None
        self._stalls = 0
        """Stalls in a row in which files were answered for."""

    def judge(self, recent: int, watched: int, folder: Path | None) -> Judgement:
        """Return the meaning of a run's silence.

        ``recent`` of ``watched`` runs showed life in the latter half of the patience.

        ``folder`` is where a file is written to ask the file system, by a thread, which may hang; None asks nobody. After a stall all silences begin anew.
        Where files are answered for, and all stay silent for ``STALLS`` patiences in a row, they hang.
        """
        if is_plausible(recent, watched):
            self._stalls = 0
            return "hung"
        if folder is not None:
            self._probe = self._probe or _FileProbe(folder, self._clock)
            answer = self._probe.answer()
            if answer is None:
                return "wait"
            if self._probe.ended:
                self._probe = None
            if not answer:
                return "stall"
        if watched == 1 or self._stalls >= STALLS:
            return "hung"
        self._stalls += 1
        return "stall"


def is_plausible(recent: int, watched: int) -> bool:
    """Return True where at least as many runs show life as not.

    >>> is_plausible(3, 6), is_plausible(2, 6), is_plausible(0, 1)
    (True, False, False)
    """
    return 2 * recent >= watched


class _FileProbe:
    """Test of the file system by a thread, which may hang."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock, self._begun, self._ok = clock, clock(), False
        self._path = folder / f".probe-{os.getpid()}.tmp"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._thread.join(AT_ONCE)

    @property
    def ended(self) -> bool:
        """Return True where the thread is over."""
        return not self._thread.is_alive()

    def answer(self) -> bool | None:
        """Return True for an answer in time; None while it may come."""
        late = self._clock() - self._begun > FILE_PATIENCE
        if not self.ended:
            return False if late else None
        return self._ok

    def _run(self) -> None:
        with suppress(OSError):
            self._path.write_bytes(b"")
            self._path.stat()
            self._path.unlink()
            self._ok = self._clock() - self._begun <= FILE_PATIENCE


@dataclass(kw_only=True, slots=True)
class Heartbeat:
    """Heartbeat of a run: changes of its file by our clock."""

    folder: Path
    patience: float
    every: float | None = None
    """Seconds between reads; a tenth of the patience if absent."""
    runs: int = 1
    """Number of runs with heartbeats at the same time."""
    clock: Clock = time.monotonic
    _changed: float = field(init=False)
    _stamp: tuple[int, int] | None = field(init=False, default=None)
    _next: float = field(init=False)
    _next_record: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._changed = self.clock()
        self._stamp = self._read()
        self._next = self._changed

    def stopped(self) -> bool:
        """Return True where nothing changed for longer than the patience."""
        now = self.clock()
        if now < self._next:
            return False
        self._next = now + max(self._beats, self.patience / 10 if self.every is None else self.every)
        stamp = self._read()
        if stamp != self._stamp:
            self._stamp, self._changed = stamp, now
        return now - self._changed > self.patience

    @property
    def is_recent(self) -> bool:
        """Return True where something changed in the latter half of the patience."""
        return self.clock() - self._changed <= self.patience / 2

    def begin_anew(self) -> None:
        """Count silence from now on."""
        self._changed = self.clock()

    def lingers(self, attempt: int) -> bool:
        """Return True where processes outlive a complete last record."""
        now = self.clock()
        linger = max(LINGER, 2 * self._beats)
        if now - self._changed < linger or now < self._next_record:
            return False
        self._next_record = now + linger
        with suppress(InputError):
            record = read_record(self.folder)
            return record.attempt == attempt and record.status != "running"
        return False

    @property
    def _beats(self) -> float:
        return seconds_between_beats(self.runs, self.patience)

    def _read(self) -> tuple[int, int] | None:
        with suppress(OSError):
            status = (self.folder / HEARTBEAT).stat()
            return status.st_mtime_ns, status.st_ino
        return None


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
