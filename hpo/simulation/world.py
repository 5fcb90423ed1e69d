"""Virtual launcher and machine on a virtual clock."""

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from hydragnn.hpo.launching.progress import FIRST_LOOK, next_look
from hydragnn.hpo.scheduling import events
from hydragnn.hpo.scheduling.events import Cancel, Event, Plan, Probe, Start, node_of
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS
from hydragnn.hpo.simulation.assumptions import Assumptions
from hydragnn.hpo.simulation.courses import Course, CourseOf
from hydragnn.hpo.simulation.machine import Fate, NodeFault, Pace, bad_nodes, fate_of, is_storm, node_faults
from hydragnn.record import FailureKind

TICK = 1.0  # seconds between looks at the clock; the real controller looks twice a second
OOM_SECONDS = 5.0  # of training, until the first batches did not fit


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Scenario of a simulation."""

    plan: Plan
    course_of: CourseOf
    assumptions: Assumptions
    nodes: int
    shares: int
    """Slots per node."""
    seed: int
    hang_seconds: float

    @property
    def slots(self) -> int:
        """Slots of the whole machine."""
        return self.nodes * self.shares


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """End of an attempt, unless something happens before."""

    stops: float
    """End of training."""
    reported: float
    """Time at which the launcher notices."""
    kind: FailureKind | None = None
    """None: the segment is done."""
    saved: bool = False
    """The step is saved; otherwise the last whole epoch remains."""
    suspects: tuple[str, ...] = ()


@dataclass(slots=True)
class VirtualAttempt:
    """One attempt at one segment, on its slots."""

    action: Start
    course: Course
    fate: Fate
    pace: Pace
    assigned: float
    base: float
    """Epochs, with a fraction, from which it continues."""
    began: float = math.inf
    """Time at which its processes exist."""
    trains: float = math.inf
    """Time of its first step."""
    epoch_seconds: float = 0.0
    outcome: AttemptEnd | None = None
    asked: bool = False
    """True where the scheduler wanted it to leave."""
    over: bool = False

    @property
    def nodes(self) -> set[str]:
        """The nodes it runs on."""
        return {node_of(slot) for slot in self.action.slots}

    def trained(self, until: float) -> float:
        """Seconds of training up to a time, without what delayed it."""
        return self.pace.trained(self.trains, until) if self.trains < until else 0.0

    def done(self, seconds: float) -> float:
        """Return the end of so many seconds of training."""
        return self.pace.end(self.trains, seconds)

    def progress(self, outcome: AttemptEnd) -> float:
        """Epochs that the checkpoint holds after ``outcome``."""
        trained = self.trained(outcome.stops)
        if outcome.kind is None:
            return float(self.action.until)
        reached = min(self.base + trained / self.epoch_seconds, self.action.until) if trained else self.base
        return reached if outcome.saved else max(self.base, float(math.floor(reached + 1e-9)))


@dataclass(slots=True)
class Ledger:
    """Slot-seconds by trial; useful until the trial is discarded."""

    shares: int = 1
    """Slots per node."""
    useful: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    wasted: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    trained: float = 0.0
    """Slot-seconds of training."""
    allocated: float = 0.0

    def waste(self, cause: str, slot_seconds: float) -> None:
        """Book time that brought nothing."""
        self.wasted[cause] += max(0.0, slot_seconds)

    def discard(self, trial: int) -> None:
        """Count the work of a trial as not kept."""
        self.wasted["not kept"] += self.useful.pop(trial, 0.0)

    def balance(self) -> dict[str, float]:
        """Node-hours by cause, ``useful`` first; their sum is what was allocated.

        ``idle`` includes dead nodes, probes and quarantine.
        """
        hours = {"useful": sum(self.useful.values()), **self.wasted}
        hours["idle"] = self.allocated - sum(hours.values())
        return {cause: value / (3600.0 * self.shares) for cause, value in hours.items()}


class World:
    """Nodes with their faults, attempts with their fates, reports with their times."""

    prefix = "n"
    """First letters of nodes' names."""

    def __init__(self, scenario: Scenario) -> None:
        self.assumptions, self.course_of = scenario.assumptions, scenario.course_of
        self.seed, self.num_nodes, self.hang_seconds = scenario.seed, scenario.nodes, scenario.hang_seconds
        self.grace, self.ledger = scenario.plan.grace, Ledger(shares=scenario.shares)
        self.now = 0.0
        self.attempts: dict[int, VirtualAttempt] = {}
        """The attempt of every trial that has one."""
        self.faults: dict[str, int] = defaultdict(int)
        """Faults of the machine so far, by kind."""
        self._saved: dict[int, float] = defaultdict(float)
        self._seconds: dict[int, float] = defaultdict(float)
        self._heap: list[tuple[float, int, Callable[[], list[Event]]]] = []
        self._count = 0
        self._on_node: dict[str, set[int]] = defaultdict(set)

    # Allocations

    def open(self, allocation: int, start: float) -> tuple[str, ...]:
        """Begin an allocation with other nodes, and return its slots."""
        self.now = self._begin = self._next_start = start
        self._prefix = f"{self.prefix}{allocation}-" if allocation else self.prefix
        names = [f"{self._prefix}{i}" for i in range(self.num_nodes)]
        machine = (self.assumptions, self.num_nodes, self.seed, allocation)
        bad = bad_nodes(*machine)
        self._holes, self._late, self._slow = (frozenset(names[i] for i in some) for some in bad)
        self._dead, self._heap = set[str](), []
        turn = start + 3600 * self.assumptions.slow_after_hours
        self._slow_pace = Pace(factor=self.assumptions.slow_factor, turn=turn)
        self._node_faults = node_faults(*machine)
        self._push_next_fault()
        self.call(start + TICK, self._on_tick)
        shares = self.ledger.shares
        return tuple(names) if shares == 1 else tuple(f"{name}/{i}" for name in names for i in range(shares))

    def close(self, end: float) -> None:
        """End the allocation: attempts are killed, and keep their last checkpoints."""
        self.now = end
        for attempt in list(self.attempts.values()):
            stops = min(end, attempt.outcome.stops) if attempt.outcome else end
            attempt.asked, attempt.outcome = True, AttemptEnd(stops=stops, reported=end, kind="preempted")
            self._on_end(attempt, attempt.outcome)
        self.ledger.allocated += self.num_nodes * self.ledger.shares * (end - self._begin)

    # What the scheduler asks for

    def start(self, action: Start) -> None:
        """Put an attempt into the launcher's queue."""
        nodes = {node_of(slot) for slot in action.slots}
        attempt = VirtualAttempt(
            action=action,
            course=self.course_of(action.trial),
            fate=fate_of(self.assumptions, self.seed, action.trial, action.attempt),
            pace=Pace() if self._slow.isdisjoint(nodes) else self._slow_pace,
            assigned=self.now,
            base=self._saved[action.trial],
        )
        self.attempts[action.trial] = attempt
        for node in nodes:
            self._on_node[node].add(action.trial)
        at = max(self.now, self._next_start)
        self._next_start = at + 1 / self.assumptions.starts_per_second
        self.call(at, partial(self._on_begin, attempt))

    def cancel(self, action: Cancel) -> None:
        """Ask an attempt to save itself within the grace period."""
        attempt = self.attempts.get(action.trial)
        if attempt is None or attempt.action.attempt != action.attempt:
            return
        attempt.asked = True
        planned = attempt.outcome
        if planned is None or self.now < attempt.trains:
            self._plan(attempt, AttemptEnd(stops=self.now, reported=self.now + 0.1, kind="preempted"))
        elif planned.stops > self.now:
            leaves = self.now + min(attempt.fate.save, self.grace)
            self._plan(attempt, AttemptEnd(stops=self.now, reported=leaves, kind="preempted", saved=True))
        elif planned.reported > self.now + self.grace:
            self._plan(attempt, AttemptEnd(stops=planned.stops, reported=self.now + self.grace, kind="preempted"))

    def probe(self, action: Probe) -> None:
        """Begin to probe a node."""
        self.call(self.now + self.assumptions.probe_seconds, partial(self._on_probed, action.node))

    # Time

    def next_time(self) -> float:
        """Return the time of the next event."""
        return self._heap[0][0]

    def advance(self) -> list[Event]:
        """Let the next thing happen, and return what is reported of it."""
        self.now, _, happen = heapq.heappop(self._heap)
        return happen()

    def call(self, time: float, happen: Callable[[], list[Event]]) -> None:
        """Let something happen at a time; it returns its reports."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, happen))

    def _on_tick(self) -> list[Event]:
        self.call(self.now + TICK, self._on_tick)
        return [events.Tick()]

    def _push_next_fault(self) -> None:
        fault = next(self._node_faults, None)
        if fault is not None:
            self.call(self._begin + fault.time, partial(self._on_fault, fault))

    def _plan(self, attempt: VirtualAttempt, outcome: AttemptEnd) -> None:
        attempt.outcome = outcome
        self.call(outcome.reported, partial(self._on_end, attempt, outcome))

    def _on_probed(self, node: str) -> list[Event]:
        assumptions, elapsed = self.assumptions, self.now - self._begin
        draw = random.Random(f"probe {self.seed} {node} {self.now}")
        chance = draw.random()
        fails = node in self._dead or (is_storm(assumptions, elapsed) and draw.random() < assumptions.storm_probes)
        healthy = not fails and (node not in self._holes or chance < assumptions.probe_misses)
        slow = node in self._slow and elapsed >= 3600 * assumptions.slow_after_hours
        return [events.Probed(node=node, healthy=healthy, seconds=assumptions.slow_factor if slow else 1.0)]

    # Attempts

    def _on_begin(self, attempt: VirtualAttempt) -> list[Event]:
        if attempt.over or attempt.outcome is not None:
            return []
        attempt.began = self.now
        failing = self._failing_launch(attempt)
        if failing is not None:
            self._plan(attempt, failing)
        else:
            attempt.trains = self.now + attempt.fate.startup
            seconds = attempt.course.epoch_seconds(len(attempt.action.slots)) * attempt.fate.slowness
            attempt.epoch_seconds = seconds + self.assumptions.checkpoint_seconds
            outcome = min(self._endings(attempt), key=lambda outcome: outcome.stops)
            self._plan(attempt, outcome)
            self.call(self.now + FIRST_LOOK, partial(self._on_look, attempt, FIRST_LOOK))
        identity = {"simulated": attempt.action.trial}
        return [events.Launched(trial=attempt.action.trial, attempt=attempt.action.attempt, identity=identity)]

    def _on_look(self, attempt: VirtualAttempt, elapsed: float) -> list[Event]:
        """Return the progress in a heartbeat, and schedule the next read."""
        if attempt.over:
            return []
        later = next_look(elapsed, len(self.attempts))
        self.call(attempt.began + later, partial(self._on_look, attempt, later))
        if self.now < attempt.trains or attempt.outcome is None or attempt.outcome.stops < self.now:
            return []
        epochs = attempt.base + attempt.trained(self.now) / attempt.epoch_seconds
        return [events.Progressed(trial=attempt.action.trial, attempt=attempt.action.attempt, epochs=epochs)]

    def _failing_launch(self, attempt: VirtualAttempt) -> AttemptEnd | None:
        dead = tuple(sorted(attempt.nodes & self._dead))
        storm = is_storm(self.assumptions, self.now - self._begin)
        if not (storm or dead or attempt.nodes & self._holes or attempt.fate.launch_fails):
            return None
        noticed = self.now + self.assumptions.launch_failure_seconds
        named = dead if attempt.fate.suspect_known else ()
        return AttemptEnd(stops=self.now, reported=noticed, kind="launch", suspects=named)

    def _endings(self, attempt: VirtualAttempt) -> Iterator[AttemptEnd]:
        """Return all ends of an attempt by its own fate."""
        epoch, fate, course = attempt.epoch_seconds, attempt.fate, attempt.course
        nodes = len(attempt.action.slots) / self.ledger.shares
        finish = attempt.done(max(0.0, attempt.action.until - attempt.base) * epoch)
        yield AttemptEnd(stops=finish, reported=finish)
        if attempt.action.micro_batches < course.micro_batches:
            at = attempt.done(min(OOM_SECONDS, epoch))
            yield AttemptEnd(stops=at, reported=at, kind="out_of_memory")
        if course.fails_at <= attempt.action.until:
            at = attempt.done(max(0.0, course.fails_at - attempt.base) * epoch)
            yield AttemptEnd(stops=at, reported=at, kind=course.failure)
        hang = attempt.done(fate.hangs_after / nodes)
        yield AttemptEnd(stops=hang, reported=hang + self.hang_seconds, kind="lost_node")
        if late := tuple(sorted(attempt.nodes & self._late)):
            at = attempt.began + 60 * self.assumptions.late_failure_minutes
            noticed, named = at + self.assumptions.notice_seconds, late if fate.suspect_known else ()
            yield AttemptEnd(stops=at, reported=noticed, kind="lost_node", suspects=named)
        leave = attempt.done(fate.preempted_after / nodes)
        yield AttemptEnd(stops=leave, reported=leave + fate.save, kind="preempted", saved=True)

    def _on_fault(self, fault: NodeFault) -> list[Event]:
        self._push_next_fault()
        nodes = {f"{self._prefix}{number}" for number in fault.nodes}
        self.faults["node"] += len(nodes)
        if fault.seconds > 0:
            self._dead |= nodes
        if 0 < fault.seconds < math.inf:
            self.call(self.now + fault.seconds, partial(self._on_return, nodes))
        for trial in sorted({trial for node in nodes for trial in self._on_node[node]}):
            attempt = self.attempts[trial]
            if attempt.outcome is not None and attempt.outcome.stops > self.now:
                named = tuple(sorted(nodes & attempt.nodes)) if attempt.fate.suspect_known else ()
                noticed = self.now + self.assumptions.notice_seconds
                self._plan(attempt, AttemptEnd(stops=self.now, reported=noticed, kind="lost_node", suspects=named))
        return []

    def _on_return(self, nodes: set[str]) -> list[Event]:
        self._dead -= nodes
        return []

    def _on_end(self, attempt: VirtualAttempt, outcome: AttemptEnd) -> list[Event]:
        """Free what an attempt held, keep what it saved, and report it."""
        if attempt.outcome is not outcome or attempt.over:
            return []
        attempt.over = True
        trial = attempt.action.trial
        del self.attempts[trial]
        for node in attempt.nodes:
            self._on_node[node].discard(trial)
        epochs_left = attempt.progress(outcome)
        self._book(attempt, outcome, epochs_left)
        trained = attempt.trained(outcome.stops)
        delays = max(0.0, outcome.stops - attempt.trains - trained) if trained else 0.0
        self._seconds[trial] += (epochs_left - attempt.base) * attempt.epoch_seconds + delays
        self._saved[trial] = epochs_left
        return [self._report_of(attempt, outcome, epochs_left)]

    def _report_of(self, attempt: VirtualAttempt, outcome: AttemptEnd, epochs_left: float) -> Event:
        trial, number = attempt.action.trial, attempt.action.attempt
        if outcome.kind is None:
            value, epochs = attempt.course.curve[attempt.action.until - 1], attempt.action.until
            return events.Reached(trial=trial, attempt=number, epochs=epochs, value=value, seconds=self._seconds[trial])
        if outcome.kind in MACHINE_FAULTS and not attempt.asked:
            self.faults[outcome.kind] += 1
        return events.Failed(
            trial=trial,
            attempt=number,
            kind=outcome.kind,
            message="simulated",
            epochs=math.floor(epochs_left + 1e-9),
            suspects=outcome.suspects,
        )

    def _book(self, attempt: VirtualAttempt, outcome: AttemptEnd, epochs_left: float) -> None:
        """Write an attempt's slot-seconds into the ledger."""
        ledger, course, slots = self.ledger, attempt.course, len(attempt.action.slots)
        useful = (epochs_left - attempt.base) * course.work
        spread = useful * (slots - 1) / course.scaling
        ledger.useful[attempt.action.trial] += useful
        ledger.waste("more slots than one", spread)
        cause = "start-up and saving" if outcome.kind in (None, "preempted") else "lost in failures"
        ledger.waste(cause, slots * (self.now - attempt.assigned) - useful - spread)
        trains = min(attempt.trains, self.now)
        ledger.trained += slots * (max(outcome.stops, trains) - trains)
