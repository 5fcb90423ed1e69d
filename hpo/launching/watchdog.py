"""Watch on nodes and the job: the scheduler's words, and probes.

A launcher's own exit is no such sign: srun waits half a minute for a node that is gone, and then may return 0. A scheduler
is a witness, not a judge: silence, errors and ``unknown`` are no news, and a look at which everything is lost at once is
evidence about the scheduler; then heartbeats and the exits of steps decide.
"""

import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hydragnn.hpo.launching.allocation import Allocation, Node
from hydragnn.hpo.launching.job_step import StepProcess
from hydragnn.hpo.launching.launcher import Exit, Report, Revoked, Task
from hydragnn.hpo.launching.sites import Evidence, NodeState, NodeStates, Site, Step, short_name
from hydragnn.hpo.scheduling.events import Probed, node_of

LOOK_EVERY = 3.0  # seconds between looks at the nodes; sinfo answers from the controller's memory
LOOKED_AT = 1000.0  # nodes that may be asked for per further second, because the answer of a large machine is long
LOOK_PATIENCE = 20.0  # seconds after which a look is given up
LOOK_AT_JOB_EVERY = 15.0  # seconds between looks at the job while nothing is amiss
HOLD = 10.0  # seconds that an end without a result waits for the scheduler's word on its nodes and the allocation
AGAIN = 5.0  # seconds until a step is started again for which the scheduler did not answer
TROUBLE = 600.0
"""Seconds for which a scheduler in trouble excuses what it refuses."""
ANSWERS = 2 * LOOK_PATIENCE
"""Seconds since its last answer for which a scheduler counts as answering."""
HANDFUL = 8
"""Nodes that can plausibly be lost between two reads."""
BADNESS: dict[NodeState, int] = {"well": 0, "silent": 1, "lost": 2}

PROBE = Path(__file__).with_name("probe.py")
HEALTHY = "healthy"
LAST_WORDS = 300  # characters of what a failed probe printed

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Output of a program, with the time of its start."""

    printed: str
    failed: bool
    began: float


class Question:
    """Program that is run again and again, without waiting for it."""

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
        """Return a new output, if any; start the program when due."""
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
    """Scheduler's words about an allocation and its nodes, every few seconds."""

    def __init__(self, site: Site, nodes: Sequence[str], job: str = "", *, clock: Clock = time.monotonic) -> None:
        self._site, self._nodes, self._clock = site, {short_name(node): node for node in nodes}, clock
        every = LOOK_EVERY + len(self._nodes) / LOOKED_AT
        self._of_nodes = Question(site.look(tuple(nodes)), every, clock=clock)
        self._of_job = Question(site.look_at_job(job), LOOK_AT_JOB_EVERY, errors=True, clock=clock)
        self._answered_at = float("inf")
        self._node_times: dict[str, float] = {}
        self._trouble: dict[str, tuple[float, float]] = {}
        """Times of the last trouble of each node: begin and end."""
        self._job_time, self._suspected_at = float("-inf"), float("inf")
        self.states: NodeStates = {}
        """States of nodes; without those that were never reported."""
        self.over = ""
        """Ending of the allocation; empty while it runs.

        Two reads must agree, some seconds apart.
        """

    @property
    def answering(self) -> bool:
        """Return True where the scheduler answers, or never did."""
        return self._clock() - self._answered_at <= ANSWERS

    @property
    def suspicious(self) -> bool:
        """Return True where the last read said that the allocation is over."""
        return self._suspected_at < float("inf")

    def knows(self, nodes: Iterable[str], since: float) -> bool:
        """Return True where later reads covered these nodes and the allocation."""
        job = not self._of_job.possible or (self._job_time >= since and not self.suspicious)
        ours = set(self._nodes.values()).intersection(nodes) if self._of_nodes.possible else ()
        return job and all(self._node_times.get(node, float("-inf")) >= since for node in ours)

    def has_spoken(self, nodes: Iterable[str], since: float) -> bool:
        """Return True where it ``knows`` them, or took too long."""
        late = self._clock() > since + HOLD and not self.suspicious
        return late or self.knows(nodes, since)

    def excuses(self, evidence: Evidence, nodes: Iterable[str], begun: float) -> bool:
        """Return True where the scheduler itself prevented a step."""
        refused = not evidence.started and not evidence.suspects
        return evidence.unreachable or (refused and not self.in_order(nodes, begun))

    def in_order(self, nodes: Iterable[str], at: float) -> bool:
        """Return True where the scheduler worked for these nodes at that time.

        A slurmctld that has just started refuses steps.

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
        """Return nodes that became worse since the last call."""
        self._look_at_job()
        answer = self._of_nodes.answer()
        if answer is None:
            return {}
        states = {} if answer.failed else self._site.states(answer.printed, tuple(self._nodes.values()))
        states_now = {self._nodes[node]: state for node, state in states.items() if node in self._nodes}
        self._note_trouble(states_now, answer.began)
        if answer.failed:
            return {}
        self._answered_at = self._clock()
        worse = {node: state for node, state in states_now.items() if BADNESS[state] > BADNESS[self._state(node)]}
        if self._is_implausible(len(worse)):
            return {}
        self.states = {**self.states, **states_now}
        self._node_times.update(dict.fromkeys(states_now, answer.began))
        return worse

    def close(self) -> None:
        """Give up looks that are under way."""
        self._of_nodes.close()
        self._of_job.close()

    def _state(self, node: str) -> NodeState:
        return self.states.get(node, "well")

    def _note_trouble(self, states: NodeStates, at: float) -> None:
        """Begin and end troubles of nodes that were reported before."""
        for node in self._node_times:
            begin, until = self._trouble.get(node, (at, at))
            if node not in states:
                self._trouble[node] = (at if until <= at else begin), float("inf")
            elif until > at:
                self._trouble[node] = begin, at

    def _is_implausible(self, worse: int) -> bool:
        remaining = sum(self._state(node) != "lost" for node in self._nodes.values())
        return worse > 0 and (worse >= remaining or (worse > HANDFUL and 2 * worse > remaining))

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


@dataclass(kw_only=True, slots=True)
class _Probe:
    step: StepProcess
    printed: IO[bytes]
    deadline: float
    begun: float
    given_up: bool = False


class Probes:
    """Probes that run."""

    def __init__(
        self,
        site: Site,
        step_on: Callable[..., Step],
        ranks_of: Callable[[Collection[str]], int],
        environment: Mapping[str, str],
        patience: float,
        watch: SchedulerWatch,
    ) -> None:
        """Start nothing yet.

        ``step_on`` makes a step of a name, nodes and a program, with ``ranks_of`` ranks.

        ``watch`` tells whether the scheduler answers; while it does not, no node is to blame for a probe that fails.
        """
        self._watch, self._step_on, self._ranks_of = watch, step_on, ranks_of
        self._site, self._environment, self._patience = site, environment, patience
        self._numbers = itertools.count()
        self._probes: dict[str, _Probe] = {}
        self._again: dict[str, float] = {}
        """When probes are begun again."""
        self._reports: list[Probed] = []

    def start(self, node: str) -> None:
        """Begin to probe a node, unless it is being probed."""
        if node in self._probes or node in self._again:
            return
        name = f"probe-{os.getpid()}-{next(self._numbers)}"
        program = ["-P", str(PROBE), "--rank", "{part}", "--ranks", str(self._ranks_of([node]))]
        step = self._step_on(name, (node,), [*program, "--meet", name, "--threads", "{threads}"])
        printed = tempfile.TemporaryFile()  # noqa: SIM115, closed when the answer was read
        try:
            process = StepProcess(self._site, step, printed, self._environment)
        except OSError as error:
            printed.close()
            self._reports.append(Probed(node=node, healthy=False, message=f"cannot start a probe: {error}"))
            return
        process.go()
        now = time.monotonic()
        self._probes[node] = _Probe(step=process, printed=printed, begun=now, deadline=now + self._patience)

    def results(self) -> list[Probed]:
        """Return results of probes that ended or took too long."""
        now = time.monotonic()
        for node in [node for node, when in self._again.items() if now >= when]:
            del self._again[node]
            self.start(node)
        results, self._reports = self._reports, []
        for node, probe in list(self._probes.items()):
            if not self._watch.answering and not probe.given_up:
                probe.deadline = now + self._patience
            late = now > probe.deadline
            if late:
                probe.step.kill()
            if probe.step.poll() is not None:
                del self._probes[node]
                results += self._result(node, probe, late)
        return results

    def give_up(self, node: str) -> None:
        """End the probe of a node that is known to be lost."""
        if self._again.pop(node, None) is not None:
            self._reports.append(Probed(node=node, healthy=False, message="it was lost before it could be probed"))
        if node in self._probes:
            self._probes[node].given_up, self._probes[node].deadline = True, 0.0

    def close(self) -> None:
        """End all probes."""
        self._again.clear()
        for probe in self._probes.values():
            probe.step.kill()
        for probe in self._probes.values():
            probe.step.wait()
            probe.printed.close()
        self._probes.clear()

    def _result(self, node: str, probe: _Probe, late: bool) -> list[Probed]:
        """Return a probe's result; none where it has to be repeated."""
        with probe.printed as file:
            file.seek(0)
            printed = file.read().decode(errors="replace")
        lines = printed.strip().splitlines()
        if HEALTHY in lines:
            return [Probed(node=node, healthy=True, seconds=seconds_in(lines))]
        if not late and self._watch.excuses(self._site.evidence(printed), [node], probe.begun):
            self._again[node] = time.monotonic() + AGAIN
            return []
        output = "\n".join(lines)[-LAST_WORDS:] or "nothing"
        message = f"no answer within {self._patience:.0f} s" if late else f"the probe failed; it said: {output}"
        return [Probed(node=node, healthy=False, message=message)]


def seconds_in(lines: Iterable[str]) -> float:
    """Return the seconds that a probe printed; 0 without them.

    >>> seconds_in(["a warning", "seconds 0.25", "healthy"]), seconds_in(["healthy"])
    (0.25, 0.0)
    """
    with suppress(ValueError):
        return next((float(line.split()[1]) for line in lines if re.fullmatch(r"seconds [0-9.]+", line)), 0.0)
    return 0.0


class AllocationLauncher(ABC):
    """Base of launchers in an allocation: its end, and lost nodes."""

    def __init__(self, site: Site, allocation: Allocation) -> None:
        self._site, self._allocation = site, allocation
        self._watch = SchedulerWatch(site, allocation.names, allocation.job)
        self._reports: list[Report] = []
        self._revoked = ""
        """Why the allocation is over; empty as long as it lives."""

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Slots for attempts."""

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
        more = ", ..." if len(unused) > HANDFUL else ""
        idle = f"; idle, having no GPU: {', '.join(unused[:HANDFUL])}{more}" if unused else ""
        if len({(node.cores, node.gpus) for node in allocation.nodes}) == 1 and not idle:
            return ""
        return f"nodes differ: {allocation}{idle}; {len(self.slots)} slots for trials"

    @property
    def deadline(self) -> float | None:
        """End of the allocation."""
        return self._allocation.deadline

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
            self._reports.append(Revoked(message=self._revoked))
            self._watch.close()
            self._leave()

    def _never_started(self, task: Task, why: str) -> Exit:
        return Exit(task=task, code=None, interrupted=bool(self._revoked), message=why)
