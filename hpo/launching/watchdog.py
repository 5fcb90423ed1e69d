"""What tells early that something is wrong: a heartbeat that stopped, and a scheduler that has lost a node or ended the job.

A launcher's own exit is no such sign: srun waits half a minute for a node that is gone, and then may return 0. A scheduler
is a witness, not a judge: silence, errors and ``unknown`` are no news, and a look at which everything is lost at once is
evidence about the scheduler; then heartbeats and the exits of steps decide.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hydragnn.errors import InputError
from hydragnn.files import open_regular
from hydragnn.hpo.launching.sites import NodeState, NodeStates, Site, short_name
from hydragnn.record import read_record

HEARTBEAT = "heartbeat"
"""The file that rank 0 touches while it takes steps."""
LINGER = 10.0  # seconds that an attempt's processes may take to end once its record is complete
LOOK_EVERY = 3.0  # seconds between looks at the nodes; sinfo answers from the controller's memory
LOOKED_AT = 1000.0  # nodes that may be asked for per further second, because the answer of a large machine is long
LOOK_PATIENCE = 20.0  # seconds after which a look is given up
LOOK_AT_JOB_EVERY = 15.0  # seconds between looks at the job while nothing is amiss
HOLD = 10.0  # seconds that an end without a result waits for the scheduler's word on its nodes and the allocation
AGAIN = 5.0  # seconds until a step is started again for which the scheduler did not answer
TROUBLE = 600.0
"""Seconds for which a scheduler in trouble excuses what it refuses."""
LOG_END = 65536  # bytes of a log that are searched for the launcher's messages
ANSWERS = 2 * LOOK_PATIENCE
"""Seconds since its last answer for which a scheduler counts as answering."""
HANDFUL = 8
"""So many nodes can be lost between two looks however few there are; of more, not the larger part."""
BADNESS: dict[NodeState, int] = {"well": 0, "silent": 1, "lost": 2}

OPERATIONS_A_SECOND = 45.0
"""Of the file system, for the signs of life of all runs of a campaign together: of fifty, some are left for what happens."""
OPERATIONS_OF_A_BEAT = 10.0
"""A look at ``attempt.json``, the heartbeat, the watchdog's look at it, and those of a record between checkpoints, which is written no more often."""

Clock = Callable[[], float]


def seconds_between_beats(runs: int, patience: float) -> float:
    """How far apart the heartbeats of each of so many runs are, and the looks at them: a second, or more where the file system would feel it.

    A run that hangs is told from one that does not within the patience by four beats at least; where nobody looks, ``patience`` is infinite.

    >>> [round(seconds_between_beats(runs, 600.0)) for runs in (4, 90, 500, 9_408)], round(seconds_between_beats(9_408, float("inf")))
    ([1, 20, 111, 150], 2091)
    """
    return max(1.0, min(runs * OPERATIONS_OF_A_BEAT / OPERATIONS_A_SECOND, patience / 4))


@dataclass(kw_only=True, slots=True)
class Beats:
    """Signs that a run still takes steps, as they come through a pipe."""

    patience: float
    clock: Clock = time.monotonic
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    def beat(self) -> None:
        """Note a sign of life."""
        self._at = self.clock()

    def stopped(self) -> bool:
        """Return True where there was none for longer than the patience."""
        return self.clock() - self._at > self.patience


@dataclass(kw_only=True, slots=True)
class Heartbeat:
    """Signs that a run still takes steps: changes of its heartbeat on our own clock, whatever that of the file says."""

    folder: Path
    patience: float
    every: float | None = None
    """Seconds between looks at the file; a tenth of the patience if absent."""
    runs: int = 1
    """How many beat at the same time; looks are as far apart as their beats, or farther."""
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

    def lingers(self, attempt: int) -> bool:
        """Return True where the attempt has left its last record, and some of its processes do not end, for example on a lost node."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a program printed that was asked at a certain time."""

    printed: str
    failed: bool
    began: float


class Question:
    """A program that is asked again and again, without ever waiting for its answer."""

    def __init__(self, command: Sequence[str] | None, every: float, *, errors: bool = False, clock: Clock) -> None:
        """``errors``: what it prints as errors is part of the answer."""
        self._command = command if command is not None and shutil.which(command[0]) else None
        self._every, self._clock = every, clock
        self._errors = subprocess.STDOUT if errors else subprocess.DEVNULL
        self._asked: tuple[subprocess.Popen[bytes], IO[bytes], float] | None = None
        self._next = 0.0

    @property
    def possible(self) -> bool:
        """Return True where there is such a program."""
        return self._command is not None

    def hurry(self, seconds: float = 0.0) -> None:
        """Ask again within so many seconds, because something went wrong."""
        self._next = min(self._next, self._clock() + seconds)

    def answer(self) -> Answer | None:
        """The answer, where one has come since the last call; asks again when it is time."""
        answer = self._read()
        if self._command is not None and self._asked is None and self._clock() >= self._next:
            self._ask(self._command)
        return answer

    def close(self) -> None:
        """Do not wait for an answer any more."""
        if self._asked is not None:
            process, file, _ = self._asked
            process.kill()
            process.wait()
            file.close()
            self._asked = None

    def _ask(self, command: Sequence[str]) -> None:
        self._next = self._clock() + self._every
        file = tempfile.TemporaryFile()  # noqa: SIM115, closed when the answer was read
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=self._errors)
        except OSError:  # a machine short of processes; the next look may work
            file.close()
            return
        self._asked = process, file, self._clock()

    def _read(self) -> Answer | None:
        if self._asked is None:
            return None
        process, file, began = self._asked
        if process.poll() is None:
            if self._clock() - began <= LOOK_PATIENCE:
                return None
            self.close()
            return Answer(printed="", failed=True, began=began)
        self._asked = None
        with file:
            file.seek(0)
            printed = file.read().decode(errors="replace")
        return Answer(printed=printed, failed=process.returncode != 0, began=began)


class SchedulerWatch:
    """What the scheduler says about an allocation and its nodes, asked every few seconds."""

    def __init__(self, site: Site, nodes: Sequence[str], job: str = "", *, clock: Clock = time.monotonic) -> None:
        self._site, self._nodes, self._clock = site, {short_name(node): node for node in nodes}, clock
        every = LOOK_EVERY + len(self._nodes) / LOOKED_AT
        self._of_nodes = Question(site.look(tuple(nodes)), every, clock=clock)
        self._of_job = Question(site.look_at_job(job), LOOK_AT_JOB_EVERY, errors=True, clock=clock)
        self._answered_at = float("inf")
        self._node_times: dict[str, float] = {}
        self._trouble: dict[str, tuple[float, float]] = {}
        """From when to when looks failed or said nothing of a node, the last time."""
        self._job_time, self._suspected_at = float("-inf"), float("inf")
        self.states: NodeStates = {}
        """What is known of the nodes; one that was never spoken of is missing."""
        self.over = ""
        """What became of the allocation; empty as long as it lives. Two looks must say so, some seconds apart."""

    @property
    def answering(self) -> bool:
        """Return True where the scheduler answers at the moment; one that never answered is not to blame for anything."""
        return self._clock() - self._answered_at <= ANSWERS

    @property
    def suspicious(self) -> bool:
        """Return True where the last word on the allocation was that it is over."""
        return self._suspected_at < float("inf")

    def knows(self, nodes: Iterable[str], since: float) -> bool:
        """Return True where looks that began later have said how these nodes and the allocation are, as far as they can be asked."""
        job = not self._of_job.possible or (self._job_time >= since and not self.suspicious)
        ours = set(self._nodes.values()).intersection(nodes) if self._of_nodes.possible else ()
        return job and all(self._node_times.get(node, float("-inf")) >= since for node in ours)

    def in_order(self, nodes: Iterable[str], at: float) -> bool:
        """Return True where the scheduler answered and knew these nodes at that time; a slurmctld that has just started refuses steps on them.

        Trouble that lasts longer than ``TROUBLE`` is no excuse any more.
        """
        now = self._clock()
        troubles = [self._trouble[node] for node in nodes if node in self._trouble]
        return all(until <= at or now - begin > TROUBLE for begin, until in troubles)

    def hurry(self) -> None:
        """Look again at once, because something went wrong."""
        self._of_nodes.hurry()
        self._of_job.hurry(LOOK_EVERY if self.suspicious else 0.0)

    def changes(self) -> NodeStates:
        """Nodes that became unwell, or worse, since the last call; ``over`` is up to date then, too."""
        self._look_at_job()
        answer = self._of_nodes.answer()
        if answer is None:
            return {}
        states = {} if answer.failed else self._site.states(answer.printed, tuple(self._nodes.values()))
        known = {self._nodes[node]: state for node, state in states.items() if node in self._nodes}
        self._note_trouble(known, answer.began)
        if answer.failed:
            return {}
        self._answered_at = self._clock()
        worse = {node: state for node, state in known.items() if BADNESS[state] > BADNESS[self._state(node)]}
        if self._is_implausible(len(worse)):
            return {}
        self.states = {**self.states, **known}
        self._node_times.update(dict.fromkeys(known, answer.began))
        return worse

    def close(self) -> None:
        """Give up looks that are under way."""
        self._of_nodes.close()
        self._of_job.close()

    def _state(self, node: str) -> NodeState:
        return self.states.get(node, "well")

    def _note_trouble(self, known: NodeStates, at: float) -> None:
        """Begin and end troubles; of a node that was never spoken of, silence says nothing about the scheduler."""
        for node in self._node_times:
            begin, until = self._trouble.get(node, (at, at))
            if node not in known:
                self._trouble[node] = (at if until <= at else begin), float("inf")
            elif until > at:
                self._trouble[node] = begin, at

    def _is_implausible(self, worse: int) -> bool:
        """Return True where so much bad news at once is evidence about the witness: all that is left, or the larger part of many."""
        left = sum(self._state(node) != "lost" for node in self._nodes.values())
        return worse > 0 and (worse >= left or (worse > HANDFUL and 2 * worse > left))

    def _look_at_job(self) -> None:
        answer = self._of_job.answer()
        if answer is None:
            return
        word = self._site.job_over(answer.printed)
        if word is not None:
            self._answered_at, self._job_time = self._clock(), answer.began
            self.over = word if answer.began >= self._suspected_at + LOOK_EVERY else ""
            self._suspected_at = min(self._suspected_at, answer.began) if word else float("inf")
        if self.suspicious:
            self._of_job.hurry(LOOK_EVERY)


def text_since(log: Path, begin: int) -> str:
    """The end of what was written into a log from byte ``begin`` on."""
    with suppress(OSError, InputError), os.fdopen(open_regular(log), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - LOG_END))
        return file.read().decode(errors="replace")
    return ""
