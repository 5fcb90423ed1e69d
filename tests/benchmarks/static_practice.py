"""Static practice of public scripts, simulated on the same machine with the same configurations.

Every trial gets the same number of nodes from a first-in first-out queue, after a random sleep. Nothing is saved, nothing
is repeated, nothing is stopped early; a failed trial is told to the optimiser as minus infinity whatever the cause, and its
nodes go back to the queue at once, bad ones too.
"""

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.campaign import Finish
from hydragnn.hpo.simulation.courses import Course, CourseOf
from hydragnn.hpo.simulation.figures import Figures, best_of, common_figures, final_scenario
from hydragnn.hpo.simulation.machine import (
    Fate,
    Pace,
    bad_nodes,
    fate_of,
    is_storm,
    node_faults,
)
from hydragnn.hpo.simulation.world import Ledger, Scenario

MACHINE, OWN = "lost to machine faults", "own failures"

COLLECTIVE_TIMEOUT = 1800.0
"""Seconds to the end of a hang without a watchdog: the default of torch.distributed with gloo."""

WIDTH = 128
"""Nodes of every trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One trial on its nodes, and how it will end."""

    trial: int
    nodes: tuple[int, ...]
    assigned: float
    starts: float
    trains: float
    """When its first step is; infinite where it fails at launch."""
    stops: float
    reported: float
    cause: str | None
    """Why it failed; None: it is trained to the end."""


@dataclass(slots=True)
class StaticPractice:
    """Trials of ``width`` nodes each, one after the other."""

    assumptions: Assumptions
    course_of: CourseOf
    ledger: Ledger
    nodes: int
    seed: int
    width: int = WIDTH
    longest_sleep: float = 670.0
    trials: int = 0
    """Trials started so far."""
    failed: int = 0
    """Trials that failed by their own fault."""
    false_failures: int = 0
    """Trials that failed through the machine, which the optimiser was told as failures of the configuration."""
    cut: int = 0
    """Trials that were running when an allocation ended."""
    faults: dict[str, int] = field(default_factory=dict)
    finishes: list[Finish] = field(default_factory=list)
    _queue: deque[int] = field(default_factory=deque)
    _heap: list[tuple[float, int, Job]] = field(default_factory=list)
    _died: dict[int, float] = field(default_factory=dict)
    _holes: frozenset[int] = frozenset()
    _late: frozenset[int] = frozenset()
    _slow: frozenset[int] = frozenset()
    _faulty: list[tuple[float, int]] = field(default_factory=list)
    """(time, node) of every node failure of the allocation."""

    @property
    def slots(self) -> int:
        """Slots of one trial."""
        return self.width * self.ledger.shares

    def run(self, hours: float) -> None:
        """Use up so many hours of allocations."""
        whole, used, number = hours * 3600, 0.0, 0
        part = min(whole, (self.assumptions.walltime_hours or hours) * 3600)
        while used < whole - 1e-6:
            self._allocation(number, min(part, whole - used), used)
            number, used = number + 1, used + min(part, whole - used)

    def _allocation(self, number: int, length: float, offset: float) -> None:
        self._queue, self._heap, self._died = deque(range(self.nodes)), [], {}
        self._holes, self._late, self._slow = bad_nodes(self.assumptions, self.nodes, self.seed, number)
        self._draw_node_faults(number, length)
        self._launch(0.0)
        while self._heap and self._heap[0][0] < length:
            now, _, job = heapq.heappop(self._heap)
            self._end(job, now, offset)
            self._queue.extend(job.nodes)
            self._launch(now)
        for _, _, job in self._heap:
            self.cut += 1
            self._book(job, length, "not kept", offset)
        self.ledger.allocated += self.nodes * self.ledger.shares * length

    def _draw_node_faults(self, number: int, length: float) -> None:
        self._faulty = []
        for fault in node_faults(self.assumptions, self.nodes, self.seed, number):
            if fault.time > length:
                return
            for node in fault.nodes:
                self._faulty.append((fault.time, node))
                self._count("node")
                if fault.seconds == math.inf:  # those that come back do so at once, in favour of this practice
                    self._died.setdefault(node, fault.time)

    def _launch(self, now: float) -> None:
        while len(self._queue) >= self.width:
            nodes = tuple(self._queue.popleft() for _ in range(self.width))
            job = self._job(self.trials, nodes, now)
            heapq.heappush(self._heap, (job.reported, self.trials, job))
            self.trials += 1

    def _job(self, trial: int, nodes: tuple[int, ...], now: float) -> Job:
        a, fate, course = self.assumptions, fate_of(self.assumptions, self.seed, trial, 1), self.course_of(trial)
        starts = now + random.Random(f"sleep {self.seed} {trial}").uniform(0, self.longest_sleep)
        trains = starts + fate.startup
        dead = any(self._died.get(node, math.inf) <= starts for node in nodes)
        held = set(nodes)
        pace = self._pace(nodes)
        stops, reported, cause = self._ending(course, fate, trains, pace)
        lost = next((time for time, node in self._faulty if node in held and starts < time < stops), None)
        if held & self._late:
            lost = min(starts + 60 * a.late_failure_minutes, math.inf if lost is None else lost)
            lost = lost if lost < stops else None
        if dead or fate.launch_fails or held & self._holes or is_storm(a, starts):
            trains, stops, reported, cause = math.inf, starts, starts + a.launch_failure_seconds, "launch"
        elif lost is not None:
            stops, reported, cause = lost, lost + a.notice_seconds, "lost_node"
        return Job(
            trial=trial,
            nodes=nodes,
            assigned=now,
            starts=starts,
            trains=trains,
            stops=stops,
            reported=reported,
            cause=cause,
        )

    def _ending(self, course: Course, fate: Fate, trains: float, pace: Pace) -> tuple[float, float, str | None]:
        """(when it stops, when that is noticed, why) as far as the trial's own fate goes."""
        epoch = course.epoch_seconds(self.slots) * fate.slowness
        done = pace.end(trains, len(course.curve) * epoch)
        hang, leave = (
            pace.end(trains, fate.hangs_after / self.width),
            pace.end(trains, fate.preempted_after / self.width),
        )
        endings: list[tuple[float, float, str | None]] = [(done, done, None)]
        endings.append((hang, hang + COLLECTIVE_TIMEOUT, "lost_node"))
        endings.append((leave, leave, "preempted"))
        if course.micro_batches > 1:
            endings.append((trains, trains, "out_of_memory"))
        if course.fails_at < len(course.curve):
            at = pace.end(trains, course.fails_at * epoch)
            endings.append((at, at, course.failure))
        return min(endings, key=lambda ending: ending[0])

    def _end(self, job: Job, now: float, offset: float) -> None:
        course = self.course_of(job.trial)
        if job.cause is None:
            self.finishes.append(Finish(seconds=now + offset, trial=job.trial, value=course.final))
        elif job.cause in ("lost_node", "launch", "preempted"):
            self.false_failures += 1
            self._count(job.cause)
        else:
            self.failed += 1
        own = job.cause not in ("lost_node", "launch", "preempted")
        self._book(job, now, OWN if own else MACHINE, offset)

    def _book(self, job: Job, now: float, lost: str, offset: float) -> None:
        """Write a job's node-seconds into the ledger; useful is a trial that came to its end, finished or failed by itself."""
        ledger, width, course = self.ledger, self.slots, self.course_of(job.trial)
        trains = min(now, job.trains)
        stops = max(trains, min(job.stops, now))
        epoch = course.epoch_seconds(width) * fate_of(self.assumptions, self.seed, job.trial, 1).slowness
        counts = (job.cause is None or lost == OWN) and now >= job.reported
        epochs = math.floor(self._pace(job.nodes).trained(trains, stops) / epoch + 1e-9) if counts else 0
        useful = epochs * course.work
        spread = useful * (width - 1) / course.scaling
        ledger.useful[job.trial] += useful
        ledger.waste("more slots than one", spread)
        ledger.waste(
            lost if job.cause or now < job.reported else "start-up and saving",
            width * (now - job.assigned) - useful - spread,
        )
        ledger.trained += width * (stops - trains)

    def _pace(self, nodes: tuple[int, ...]) -> Pace:
        a = self.assumptions
        return Pace() if self._slow.isdisjoint(nodes) else Pace(factor=a.slow_factor, turn=3600 * a.slow_after_hours)

    def _count(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1


def static_practice(scenario: Scenario, hours: float) -> Figures:
    """Return the figures of equal trials from a queue; a small machine is given to one trial as a whole."""
    practice = StaticPractice(
        assumptions=scenario.assumptions,
        course_of=scenario.course_of,
        ledger=Ledger(shares=scenario.shares),
        nodes=scenario.nodes,
        seed=scenario.seed,
        width=min(WIDTH, scenario.nodes),
    )
    practice.run(hours)
    return _result(practice, best_of(scenario.course_of, scenario.assumptions.best_of))


def equal_final_training(scenario: Scenario, members: int) -> Figures:
    """Return the figures of a final training by equal jobs side by side."""
    scenario = final_scenario(scenario, members)
    return _result(equal_jobs(scenario, members), best_of(scenario.course_of, members))


def equal_jobs(scenario: Scenario, members: int) -> StaticPractice:
    """One job of equal size per member, as many at once as fit; without faults, in favour of this practice."""
    width = min(WIDTH, scenario.nodes)
    slots, ledger = width * scenario.shares, Ledger(shares=scenario.shares)
    practice = StaticPractice(
        assumptions=scenario.assumptions,
        course_of=scenario.course_of,
        ledger=ledger,
        nodes=scenario.nodes,
        seed=scenario.seed,
        width=width,
        trials=members,
    )
    free_at = [0.0] * (scenario.nodes // width)
    for trial in range(members):
        course, begin = scenario.course_of(trial), heapq.heappop(free_at)
        trains = begin + scenario.assumptions.startup_seconds
        end = trains + len(course.curve) * course.epoch_seconds(slots)
        heapq.heappush(free_at, end)
        ledger.useful[trial] = len(course.curve) * course.work
        ledger.waste("start-up and saving", slots * (trains - begin))
        ledger.waste("more slots than one", len(course.curve) * (course.work * (slots - 1) / course.scaling))
        ledger.trained += slots * (end - trains)
        practice.finishes.append(Finish(seconds=end, trial=trial, value=course.final))
    ledger.allocated = max(free_at) * scenario.nodes * scenario.shares
    return practice


def _result(practice: StaticPractice, target: float) -> Figures:
    """The figures of the static practice."""
    return Figures(
        **common_figures(practice.ledger, practice.nodes, practice.finishes, target),
        trials=practice.trials,
        finished=len(practice.finishes),
        pruned=0,
        failed=practice.failed,
        lost=practice.false_failures + practice.cut,
        faults=dict(sorted(practice.faults.items())),
    )
