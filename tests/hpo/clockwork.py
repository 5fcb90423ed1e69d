"""Campaigns of the simulator on machines that do what a test says, under laws that hold whatever happens."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hydragnn.hpo.journal import Entry, Journal
from hydragnn.hpo.scheduling import filling, health, scheduler
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Exhausted,
    Failed,
    Opened,
    Plan,
    Probe,
    Probed,
    Progressed,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
    node_of,
)
from hydragnn.hpo.scheduling.health import PATIENCE
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, MOST_PARTS, Decision, State, decide
from hydragnn.hpo.scheduling.state import Changes, Written
from hydragnn.hpo.simulation import Assumptions, Course, Scenario, VirtualCampaign
from hydragnn.hpo.simulation.courses import CourseOf
from hydragnn.hpo.simulation.world import AttemptEnd, VirtualAttempt, World
from hydragnn.hpo.status.timeline import TimelineBuilder

TROUBLE = (
    "estimate_error first_estimates startup_seconds checkpoint_seconds save_seconds node_mtbf_hours launch_failure black_holes "
    "stragglers hangs diverged out_of_memory"
)
NO_TROUBLE: dict[str, Any] = dict.fromkeys(TROUBLE.split(), 0)
CALM = Assumptions(median_node_hours=1.0, starts_per_second=1e9, probe_seconds=1, best_of=1, **NO_TROUBLE)
"""A perfect machine."""

FAILING = 20.0
"""Seconds that a launch takes to fail."""


def after(state: State, now: float, *events: Event) -> list[Action]:
    return [action for event in events for action in decide(state, event, now).actions]


def timeline_builder(events: Iterable[tuple[float, Event]]) -> TimelineBuilder:
    builder = TimelineBuilder()
    for now, event in events:
        decide(builder.state, event, now)
        builder.observe(event, builder.state, now)
    return builder


def nodes(number: int) -> tuple[str, ...]:
    return tuple(f"n{k}" for k in range(1, number + 1))


LATER_RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "nodes strike out at once, for long": lambda patch: (
        patch.setattr(health, "STRIKES", 1),
        patch.setattr(health, "QUARANTINE", 4000.0),
    )[0],
    "new trials first": lambda patch: patch.setattr(filling, "ready_trials", new_ones_first),
    "every trial gets all it can use": lambda patch: patch.setattr(
        filling, "fewest_slots", lambda _load, _s, _l, most: most
    ),
    "a first failure ends all hope": lambda patch: patch.setattr(scheduler, "HOPELESS", 1),
    "nobody is tried again": lambda patch: patch.setattr(scheduler, "MACHINE_FAULTS", frozenset()),
}


def new_ones_first(state: State, trials: Callable[[State], Any] = filling.ready_trials) -> Any:
    return sorted(trials(state), key=lambda number: -1 if number is None else number)


class Machine(World):
    """Bad nodes break attempts, launches fail in storms, and those of some trials always."""

    bad: tuple[str, ...] = ()
    passes_probe = names_suspects = True
    storms: tuple[tuple[float, float], ...] = ()
    """Times between which all launches and probes fail."""
    blind = False
    """True where probes find nothing in a storm."""
    hopeless: frozenset[int] = frozenset()
    interrupts: tuple[tuple[float, Callable[[], list[Event]]], ...] = ()
    """What happens so long after the beginning of an allocation."""
    chance: random.Random | None = None
    """For what no assumption has: probes without an answer, early stops, odd signs of progress, and ends that are reported twice."""
    doubled = 0.0
    """Chance of an end to be reported again a minute later, at which its nodes may be others'."""

    def open(self, allocation: int, start: float) -> tuple[str, ...]:
        slots = super().open(allocation, start)
        for seconds, happen in self.interrupts:
            self.call(start + seconds, happen)
        return slots

    @property
    def is_storm(self) -> bool:
        return any(begin <= self.now < end for begin, end in self.storms)

    def _failing_launch(self, attempt: VirtualAttempt) -> AttemptEnd | None:
        if self.is_storm or attempt.action.trial in self.hopeless:
            return AttemptEnd(stops=self.now, reported=self.now + FAILING, kind="launch")
        return super()._failing_launch(attempt)

    def _endings(self, attempt: VirtualAttempt) -> Iterator[AttemptEnd]:
        yield from super()._endings(attempt)
        if culprits := tuple(sorted(attempt.nodes.intersection(self.bad))):
            named = culprits if self.names_suspects else ()
            yield AttemptEnd(stops=self.now, reported=self.now + 5.0, kind="lost_node", suspects=named)

    def _on_probed(self, node: str) -> list[Event]:
        if self.chance is not None and self.chance.random() < 0.25:
            return []
        if self.bad or self.storms:
            well = (self.passes_probe or node not in self.bad) and (self.blind or not self.is_storm)
            return [Probed(node=node, healthy=well)]
        return super()._on_probed(node)

    def _on_look(self, attempt: VirtualAttempt, elapsed: float) -> list[Event]:
        shown = super()._on_look(attempt, elapsed)
        if self.chance is None:
            return shown
        number, until, odd = attempt.action.attempt, attempt.action.until, self.chance.random() < 0.2
        epochs = self.chance.choice([0.0, attempt.base, attempt.base + 0.25, until - 0.5, until + 1.0])
        return [*shown, Progressed(trial=attempt.action.trial, attempt=number - odd, epochs=epochs)]

    def _end(self, attempt: VirtualAttempt, outcome: AttemptEnd) -> list[Event]:
        events = super()._end(attempt, outcome)
        if self.doubled and (self.chance is None or self.chance.random() < self.doubled):
            self.call(self.now + 60.0, lambda: events)
        return events

    def _report_of(self, attempt: VirtualAttempt, outcome: AttemptEnd, epochs_left: float) -> Event:
        event = super()._report_of(attempt, outcome, epochs_left)
        if self.chance is not None and isinstance(event, Reached) and self.chance.random() < 0.1:
            return msgspec.structs.replace(event, over=True)
        return event


class Killed(Exception):
    """The controller is gone without a word."""


class LawfulCampaign(VirtualCampaign):
    """Campaign that keeps its journal and its laws."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.laws = Laws(self.state)
        self.journal: list[tuple[float, Event, Changes]] = []

    def _decide(self, event: Event) -> Decision:
        self.laws.before(event, self.world.now)
        decision = super()._decide(event)
        if decision.changes is None:
            assert not decision.actions
            return decision
        self.journal.append((self.world.now, event, decision.changes))
        self.laws.after(event, decision.actions, self.world.now)
        if isinstance(event, Opened) and self.laws.ends < math.inf:  # a look at the clock when a budget is about to end
            self.world.call(max(self.world.now, self.laws.ends - event.plan.grace), lambda: [Tick()])
        return decision


class Clockwork(LawfulCampaign):
    """Campaign with its own configurations; names of further arguments are those of ``Machine``."""

    def __init__(
        self,
        plan: Plan,
        nodes: int,
        *,
        work: Callable[[int], float] = lambda trial: 10.0,
        course_of: CourseOf | None = None,
        values_of: Callable[[int], dict[str, Any]] | None = None,
        hours: float = 100.0,
        seed: int = 0,
        shares: int = 1,
        assume: dict[str, float] | None = None,
        **machine: Any,
    ) -> None:
        """``work``: seconds per epoch on one node; without ``hours`` it waits for ``session``."""

        def plain_course(trial: int) -> Course:
            return Course(work=work(trial), scaling=math.inf, curve=(1.0 / (1 + trial),) * plan.rungs[-1])

        scenario = Scenario(
            plan=plan,
            course_of=course_of or plain_course,
            assumptions=CALM.model_copy(update=assume or {}),
            nodes=nodes,
            shares=shares,
            seed=seed,
            hang_seconds=300.0,
        )
        super().__init__(scenario)
        self.world: Machine = Machine(scenario)
        for name, value in machine.items():
            setattr(self.world, name, value)
        self.values_of = values_of
        self.run(hours)

    @property
    def starts(self) -> list[tuple[float, Start]]:
        return self.laws.starts

    @property
    def outcomes(self) -> "Counter[str]":
        return Counter(self.settled.values())

    @property
    def disturbed(self) -> list[Start]:
        return [start for _, start in self.starts if set(self.world.bad) & set(start.slots)]

    @property
    def events(self) -> list[tuple[float, Event]]:
        return [(now, event) for now, event, _ in self.journal]

    def session(
        self, hours: float = 100.0, *, stop_after: float = math.inf, kill_after: float = math.inf, nodes: int = 0
    ) -> None:
        """Another controller; so many seconds later it is interrupted, or killed."""
        world, planned = self.world, self.world.interrupts
        world.num_nodes = nodes or world.num_nodes
        world.interrupts = (*planned, (stop_after, lambda: [Stopping(reason="SIGTERM")]), (kill_after, self._kill))
        self.settled = {trial: outcome for trial, outcome in self.settled.items() if outcome != "pruned"}
        begin = world.now + 100.0
        try:
            self._allocation(0, begin, begin + 3600 * hours)
        except Killed:
            world.close(world.now)
        world.interrupts = planned

    def _kill(self) -> list[Event]:
        raise Killed

    def _proposal(self, trial: int) -> Any:
        if self.world.chance is not None and self.world.chance.random() < 0.02:
            return Exhausted(trial=trial)
        proposal = super()._proposal(trial)
        return proposal if self.values_of is None else Proposed(trial=trial, values=self.values_of(trial))

    def write(self, path: Path) -> None:
        with Journal(path) as journal:
            journal.extend(Entry(*line) for line in self.journal)

    def check_journal(self) -> None:
        """The journal gives the state back, by its decisions and by deciding again."""
        decided, replayed = State(), State()
        for now, event, changes in self.journal:
            decide(decided, event, now)
            replayed.apply(event, msgspec.json.decode(json.dumps(changes, allow_nan=False), type=Written))
            assert replayed == decided, f"what {event} changed is not all written"
        assert replayed == self.state, "the journal does not give the state back"


class Laws:
    """What must hold in every campaign after every event; AssertionError where it does not."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.running: dict[int, Start] = {}
        self.starts: list[tuple[float, Start]] = []
        self.asked: set[int] = set()
        self.probes: dict[str, float] = {}
        """When a probe was asked for."""
        self.late: set[int] = set()
        """Trials whose attempt was cancelled for its time."""
        self.untrusted: set[str] = set()
        self.attempts: Counter[int] = Counter()
        self.faults: Counter[int] = Counter()
        self.shortages: Counter[int] = Counter()
        self.own: dict[int, str] = {}
        self.settled: dict[int, str] = {}
        self.trouble, self.forgiven = state.trouble, set[str]()
        """What spoke against the machine before the event, and nodes to trust again where it does now."""
        self.opened = self.left = 0.0
        self.bills = [0.0, 0.0]
        self.nodes: set[str] = set()
        self.ends = math.inf
        self.seen: Counter[str] = Counter()

    def before(self, event: Event, now: float) -> None:
        """Take an event to the books while the state is that before it."""
        self.trouble, self.forgiven = self.state.trouble, set()
        match event:
            case Opened():
                self._open(event, now)
            case Proposed() | Exhausted():
                self.asked.discard(event.trial)
            case Reached() | Failed() if event.trial in self.running:
                if self.running[event.trial].attempt == event.attempt:
                    self._end(event, self.running.pop(event.trial))
            case Probed() if event.node in self.nodes:
                self.probes.pop(event.node, None)
                self.untrusted -= {event.node}
                self.untrusted |= set() if event.healthy else {event.node}
                self.seen["faults"] += not event.healthy
        self.left = now

    def _open(self, event: Opened, now: float) -> None:
        spent, plan = self.left - self.opened, event.plan
        self.bills = [self.bills[0] + spent, self.bills[1] + spent * len(self.nodes)]
        self.nodes = {node_of(slot) for slot in event.slots}
        self.opened = now
        self.ends = math.inf if event.deadline is None else event.deadline
        if plan.max_seconds is not None:
            self.ends = min(self.ends, now + plan.max_seconds - self.bills[0])
        if plan.max_node_seconds is not None:
            self.ends = min(self.ends, now + (plan.max_node_seconds - self.bills[1]) / len(self.nodes))
        for known in (self.running, self.asked, self.probes, self.late):
            known.clear()
        self.untrusted &= self.nodes
        self.settled = {trial: outcome for trial, outcome in self.settled.items() if outcome != "pruned"}

    def _end(self, event: Reached | Failed, start: Start) -> None:
        number, trial = event.trial, self.state.trials[event.trial]
        late = number in self.late
        self.late.discard(number)
        if isinstance(event, Reached):
            self.faults[number] = 0
            return
        self.seen["faults"] += 1
        gained = event.epochs > trial.epochs
        if late:
            self.own[number] = "timeout"
        elif event.kind in MACHINE_FAULTS:
            self.faults[number] = self.faults[number] * (not gained) + (not trial.cancelled)
        elif event.kind == "out_of_memory":
            self.shortages[number] += 1
        else:
            self.own[number] = event.kind
        vain = not (event.suspects or gained or trial.cancelled)
        if event.kind in ("lost_node", "launch") and not (vain and self.trouble.since < math.inf):
            suspects = set(event.suspects or map(node_of, start.slots)) - self.untrusted
            self.untrusted |= suspects
            self.forgiven = suspects if vain else set()

    def after(self, event: Event, actions: Iterable[Action], now: float) -> None:
        if self.state.trouble.since < math.inf:
            self.untrusted -= self.forgiven  # it is put down to the machine
        for action in actions:
            self._obey(action, now)
        state, slots = self.state, set(self.state.slots)
        if state.closed:
            assert not self.running
            self.seen[f"ending {state.ending}"] += 1
        assert state.active == {number: start.attempt for number, start in self.running.items()}
        assert state.asked == len(self.asked)
        used = {slot for start in self.running.values() for slot in start.slots}
        out = {name for name, node in state.health.items() if node.status != "pool"}
        idle = {slot for slot in slots - used if node_of(slot) not in out}
        assert set(state.free) == idle, "a slot is neither free nor in use nor kept back, or is two of them"
        assert state.healthy == len(idle) + len(used), "healthy is not the number of slots free or in use"
        assert not self.running or now <= self.ends + 1e-6, "a budget was exceeded"
        self.seen.update(f"trial {status}" for status, count in state.counts.items() if count)
        self.seen.update(f"node {node.status}" for node in state.health.values())
        self.seen.update({"events": 1, "trouble": state.trouble.since < math.inf})

    def _obey(self, action: Action, now: float) -> None:
        match action:
            case Propose():
                assert action.trial not in self.asked
                self.asked.add(action.trial)
            case Probe():
                assert now >= self.probes.pop(action.node, -math.inf) + PATIENCE, "probed twice at once"
                self.probes[action.node] = now
            case Start():
                self._begin(action, now)
            case Cancel():
                assert self.running[action.trial].attempt == action.attempt
                self.late |= {action.trial} if action.reason == "timeout" else set()
            case Settle():
                self._settle(action)

    def _begin(self, action: Start, now: float) -> None:
        state, number, plan = self.state, action.trial, self.state.plan
        used = {slot for start in self.running.values() for slot in start.slots}
        assert number not in self.running, "run twice at once"
        assert self.settled.get(number, "pruned") == "pruned", "run after its end"
        self.attempts[number] += 1
        assert action.attempt == self.attempts[number], "two attempts with one number"
        assert min(plan.min_slots, len(state.slots)) <= len(action.slots) <= plan.max_slots
        assert set(action.slots) <= set(state.slots) and len(set(action.slots)) == len(action.slots)
        assert used.isdisjoint(action.slots), "a slot was given to two attempts at once"
        assert now <= self.ends - plan.grace, "started when time was up"
        tried = state.trouble.number == self.trouble.number and now >= self.trouble.until
        assert state.trouble.since == math.inf or tried, "started on a machine in trouble"
        assert action.micro_batches == min(MOST_PARTS, 2 ** self.shortages[number])
        assert self.untrusted.isdisjoint(map(node_of, action.slots)), "a node was used that has not been probed"
        self.running[number] = action
        self.starts.append((now, action))

    def _settle(self, action: Settle) -> None:
        number, failure = action.trial, self.state.trials[action.trial].failure
        assert number not in self.settled, "settled twice"
        self.settled[number] = action.outcome
        self.seen[f"outcome {action.outcome}"] += 1
        if action.outcome == "failed":
            assert failure is not None and failure.kind not in MACHINE_FAULTS, "a machine fault was told as a failure"
            shortage = failure.kind == "out_of_memory"
            assert shortage or failure.kind == self.own[number]
            assert not shortage or self.shortages[number] > math.log2(MOST_PARTS), "out of memory was told too early"
        if action.outcome == "lost":
            assert self.faults[number] > self.state.plan.retries, "given up with retries left"

    def check_end(self) -> None:
        """Every trial has come to an end, and the state tells the same."""
        trials, plan = self.state.trials, self.state.plan
        assert set(self.settled) == set(trials), "a trial was lost"
        assert len(trials) == plan.trials or self.state.exhausted
        for number, outcome in self.settled.items():
            assert trials[number].status == ("paused" if outcome == "pruned" else outcome)


def play(
    plan: Plan, nodes: int, *, seed: int = 0, own: float = 0.0, machine: float = 0.0, work: float = 20.0, **more: Any
) -> Clockwork:
    """A campaign that waits for its sessions; ``own`` and ``machine`` are chances of failures.

    ``work``: seconds per epoch on one slot of the middle trial.
    """

    def values_of(trial: int) -> dict[str, Any]:
        draw = random.Random(f"values {seed} {trial}")
        return {"model.hidden_dim": int(2 ** draw.uniform(4, 7)), "train.learning_rate": 10 ** draw.uniform(-4, -2)}

    def course_of(trial: int) -> Course:
        draw, width = random.Random(f"course {seed} {trial}"), values_of(trial)["model.hidden_dim"]
        value, epochs = draw.random(), plan.rungs[-1]
        return Course(
            work=work * (width / 64) ** 1.5 * math.exp(0.1 * draw.gauss()),
            scaling=math.inf,
            curve=tuple(value + 1 / (epoch + 1) for epoch in range(epochs)),
            fails_at=draw.uniform(0, plan.rungs[0]) if draw.random() < own else math.inf,
            micro_batches=2 if draw.random() < own else 1,
        )

    assume = {"startup_seconds": 5.0, "launch_failure": machine, "preemptions": 20_000 * machine, "probe_seconds": 10.0}
    return Clockwork(plan, nodes, course_of=course_of, values_of=values_of, hours=0.0, seed=seed, assume=assume, **more)


TROUBLES: dict[str, dict[str, float]] = {
    "launches": {"launch_failure": 0.2, "black_holes": 0.2, "probe_misses": 0.3},
    "nodes": {"node_mtbf_hours": 0.5, "notice_seconds": 5.0},
    "cabinets": {"cabinet_minutes": 5, "cabinet_nodes": 4, "cabinet_back_minutes": 5},
    "storms": {"storm_minutes": 8, "storm_first_hours": 0.02, "storm_every_hours": 0.3, "storm_probes": 0.7},
    "late": {"late_failures": 0.2, "late_failure_minutes": 1.0},
    "leaving": {"preemptions": 20_000, "hangs": 4_000, "save_seconds": 2.0},
}


def storms(faults: int, seed: int) -> "Counter[str]":
    """What was seen in random campaigns with so many faults in all; AssertionError where a law breaks."""
    seen: Counter[str] = Counter()
    while seen["faults"] < faults:
        try:
            campaign = storm(f"{seed}/{seen['campaigns']}")
            if seen["campaigns"] % 10 == 0:
                campaign.check_journal()
        except AssertionError as error:
            raise AssertionError(f"campaign {seen['campaigns']} of seed {seed}: {error}") from error
        seen += campaign.laws.seen
        seen["campaigns"] += 1
    return seen


def storm(seed: str) -> Clockwork:
    """A random campaign on a bad machine, with controllers that are killed and stopped; then all is well, and it ends."""
    generator = random.Random(seed)
    choose = generator.choice
    least, most = choose([(1, 1), (1, 1), (1, 1), (1, 3), (1, 6), (2, 2), (2, 5)])
    plan = Plan(
        trials=choose([1, 2, 5, 9, 14, 30]),
        rungs=choose([(3,), (1, 3), (1, 3, 9), (1, 2, 4, 8)]),
        reduction=choose([1, 2, 3, 4]),
        finalists=choose([0, 1, 4]),
        retries=choose([0, 1, 2, 3]),
        max_seconds=choose([None, None, 500.0, 5000.0]),
        max_node_seconds=choose([None, None, 3000.0]),
        timeout=choose([None, None, 50.0]),
        min_slots=least,
        max_slots=most,
        grace=choose([1.0, 10.0]),
    )
    troubles = [trouble for trouble in TROUBLES.values() if choose([True, False])]
    assume = {key: value for trouble in troubles for key, value in trouble.items()} | {"startup_seconds": 2.0}
    campaign = Clockwork(
        plan,
        1,
        course_of=partial(stormy_course, seed, plan.rungs[-1]),
        hours=0.0,
        seed=generator.randrange(10**6),
        shares=choose([1, 1, 3]) if most == 1 else 1,
        assume=assume,
        chance=generator,
        doubled=choose([0.0, 0.3]),
        interrupts=((choose([10.0, 300.0]), lambda: [Probed(node="n0", healthy=choose([True, False]))]),),
    )
    for _ in range(choose([1, 2, 4, 8])):
        sizes, later = choose([1, 2, 4, 8, 12]), choose([20.0, 100.0, 400.0])
        match choose(["end", "deadline", "kill", "stop"]):
            case "end":
                campaign.session(1.0, nodes=sizes)
            case "deadline":
                campaign.session(later / 3600, nodes=sizes)
            case "kill":
                campaign.session(1.0, kill_after=later, nodes=choose([sizes, campaign.world.num_nodes]))
                campaign.laws.seen["faults"] += 1
            case "stop":
                campaign.session(1.0, stop_after=later, nodes=sizes)
        more = {"hours": "max_seconds", "node_hours": "max_node_seconds"}.get(campaign.state.ending or "")
        if more:  # the user goes on with what is used up
            campaign.plan = replace(
                campaign.plan, **{more: getattr(campaign.plan, more) + choose([5.0, 2000.0, 20_000.0])}
            )
    world = campaign.world
    world.assumptions, world.chance, world.interrupts = CALM, None, ()
    world.course_of = lambda trial: Course(work=1.0, scaling=math.inf, curve=(0.5,) * plan.rungs[-1])
    campaign.plan = replace(campaign.plan, max_seconds=None, max_node_seconds=None, timeout=None)
    campaign.session(1000.0)
    assert campaign.state.ending == "finished", f"no way to the end: {campaign.state.ending}"
    campaign.laws.check_end()
    return campaign


def stormy_course(seed: str, epochs: int, trial: int) -> Course:
    """A configuration that may fail by itself, or need its batches in parts."""
    draw = random.Random(f"{seed} {trial}")
    return Course(
        work=draw.choice([2.0, 10.0, 30.0]),
        scaling=draw.choice([math.inf, 4.0]),
        curve=tuple(draw.choice([0.1, 0.2, 0.5, 0.7]) for _ in range(epochs)),
        fails_at=draw.choice([math.inf, math.inf, math.inf, epochs * draw.random()]),
        failure=draw.choice(["diverged", "configuration", "defect"]),
        micro_batches=draw.choice([1] * 8 + [2, 4, 16, 32]),
    )
