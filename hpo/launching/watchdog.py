"""Watch on nodes and the job: the scheduler's words, and probes.

A launcher's own exit is no such sign: srun waits half a minute for a node that is gone, and then may return 0. A scheduler
is a witness, not a judge: silence, errors and ``unknown`` are no news, and a look at which everything is lost at once is
evidence about the scheduler; then heartbeats and the exits of steps decide.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from hydragnn.base.errors import InputError
from hydragnn.hpo.launching.allocation import output_of
from hydragnn.hpo.launching.sites import Evidence, NodeState, NodeStates, Site, short_name

LOOK_EVERY = 3.0  # seconds between looks at the nodes; sinfo answers from the controller's memory
LOOKED_AT = 1000.0  # nodes that may be asked for per further second, because the answer of a large machine is long
LOOK_PATIENCE = 20.0  # seconds after which a look is given up
LOOK_AT_JOB_EVERY = 15.0  # seconds between looks at the job while nothing is amiss
HOLD = 10.0  # seconds that an end without a result waits for the scheduler's word on its nodes and the allocation
AGAIN = 5.0  # seconds until a step is started again for which the scheduler did not answer
TROUBLE = 600.0  # seconds for which a scheduler in trouble excuses what it refuses
ANSWERS = 2 * LOOK_PATIENCE  # seconds since its last answer for which a scheduler counts as answering
HANDFUL = 8  # nodes that can plausibly be lost between two reads
BADNESS: dict[NodeState, int] = {"well": 0, "silent": 1, "lost": 2}


Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOutput:
    """Output of a program, or why it failed, and when it began."""

    printed: str
    failed: bool
    began: float


class PolledProgram:
    """Program that is run again and again, without waiting for it."""

    def __init__(self, command: Sequence[str] | None, every: float, clock: Clock) -> None:
        self.command = command if command is not None and shutil.which(command[0]) else None
        """None where there is no such program."""
        self._every, self._clock, self._next = every, clock, 0.0
        self._asked: tuple[Future[str], float] | None = None

    def hurry(self, seconds: float = 0.0) -> None:
        """Ask again within so many seconds, because something went wrong."""
        self._next = min(self._next, self._clock() + seconds)

    def answer(self) -> ProgramOutput | None:
        """Return a new output, if any; start the program when due."""
        answer = self._read()
        if self.command is not None and self._asked is None and self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._asked = Future(), self._clock()
            Thread(target=_run, args=(self.command, self._asked[0]), daemon=True).start()
        return answer

    def _read(self) -> ProgramOutput | None:
        if self._asked is None:
            return None
        future, began = self._asked
        if not future.done() and self._clock() - began <= LOOK_PATIENCE:
            return None
        self._asked = None
        try:
            return ProgramOutput(printed=future.result(0), failed=False, began=began)
        except (InputError, TimeoutError) as error:
            return ProgramOutput(printed=str(error), failed=True, began=began)


def _run(command: Sequence[str], future: Future[str]) -> None:
    try:
        future.set_result(output_of(command, seconds=LOOK_PATIENCE))
    except InputError as error:
        future.set_exception(error)


class SchedulerWatch:
    """Scheduler's words about an allocation and its nodes, every few seconds."""

    def __init__(self, site: Site, nodes: Sequence[str], job: str = "", *, clock: Clock = time.monotonic) -> None:
        self._site, self._nodes, self._clock = site, {short_name(node): node for node in nodes}, clock
        every = LOOK_EVERY + len(self._nodes) / LOOKED_AT
        self._of_nodes = PolledProgram(site.look(tuple(nodes)), every, clock)
        self._of_job = PolledProgram(site.look_at_job(job), LOOK_AT_JOB_EVERY, clock)
        self._answered_at = float("inf")
        self._node_times: dict[str, float] = {}
        self._trouble: dict[str, tuple[float, float]] = {}  # times of the last trouble of each node: begin and end
        self._job_time, self._suspected_at = float("-inf"), float("inf")
        self.states: NodeStates = {}
        """States of nodes; without those that were never reported."""
        self.over = ""
        """Ending of the allocation, by two reads some seconds apart; else empty."""

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
        job = self._of_job.command is None or (self._job_time >= since and not self.suspicious)
        ours = set(self._nodes.values()).intersection(nodes) if self._of_nodes.command else ()
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

        A slurmctld that has just started refuses steps. Trouble that lasts longer than ``TROUBLE`` is no excuse any more.
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
        remaining = sum(self._state(node) != "lost" for node in self._nodes.values())
        if worse and (len(worse) >= remaining or (len(worse) > HANDFUL and 2 * len(worse) > remaining)):
            return {}  # so many at once are implausible
        self.states = {**self.states, **states_now}
        self._node_times.update(dict.fromkeys(states_now, answer.began))
        return worse

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
