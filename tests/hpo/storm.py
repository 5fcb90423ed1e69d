"""A campaign under random faults, in which the invariants of tests/hpo/world.py and those of faults and budgets must hold.

The choices come from outside, so that hypothesis and a fast seeded generator drive the same storm.
"""

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from world import World

from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Close,
    Event,
    Exhausted,
    Failed,
    Launched,
    Plan,
    Probed,
    Progressed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
    node_of,
)
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, MOST_PARTS

STRIKING = ("lost_node", "launch")
CAUSES = [*STRIKING, *STRIKING, "preempted", "preempted", "out_of_memory"]
OWN = ["diverged", "timeout", "configuration", "defect"]
TOGETHER = ["storm", "nodes", "nodes"]
"""What befalls many attempts at once."""
Choose = Callable[[Sequence[Any]], Any]


def storms(faults: int, seed: int, events: int = 400) -> "Counter[str]":
    """What was seen in random campaigns with so many faults in all; AssertionError where an invariant breaks."""
    seen: Counter[str] = Counter()
    while seen["faults"] < faults:
        generator = random.Random(f"{seed}/{seen['campaigns']}")
        storm = Storm(generator.choice, *random_campaign(generator.choice))
        try:
            storm.open()
            for _ in range(2):
                storm.play(events // 2)
                calm = storm.fork()
                calm.finish()
                calm.check()
            storm = calm
            if seen["campaigns"] % 10 == 0:
                storm.check_journal()
        except AssertionError as error:
            raise AssertionError(f"campaign {seen['campaigns']} of seed {seed}: {error}") from error
        seen += storm.seen
        seen.update({"campaigns": 1, "events": len(storm.journal), "faults": storm.injected})
    return seen


def random_campaign(choose: "Choose") -> tuple[Plan, tuple[str, ...], float | None]:
    """A plan, slots, and how long an allocation lasts."""
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
    nodes = [f"n{k}" for k in range(choose([1, 2, 4, 8, 12]))]
    shares = choose([1, 1, 3]) if most == 1 else 1
    slots = tuple(f"{n}/{k}" if shares > 1 else n for n in nodes for k in range(shares))
    return plan, slots, choose([None, None, 300.0, 4000.0])


class Storm(World):
    """One campaign: ``play`` lets anything happen, ``finish`` lets nothing go wrong any more."""

    def __init__(self, choose: Choose, plan: Plan, slots: tuple[str, ...], deadline: float | None = None) -> None:
        super().__init__(plan, slots)
        self.choose = choose
        self.allowed: float | None = deadline
        """Seconds that every allocation lasts."""
        self.must_end: dict[int, float] = {}
        self.late: set[int] = set()
        self.untrusted: set[str] = set()
        self.latest: Event = Tick()
        """The latest end of an attempt that was reported."""
        self.before = self.state.trouble
        """What spoke against the machine before the latest event."""
        self.faults: Counter[int] = Counter()
        self.shortages: Counter[int] = Counter()
        self.own: dict[int, str] = {}
        self.opened = self.left = self.now
        """When the latest controller began, and when it ended or was last seen."""
        self.bills = [0.0, 0.0]
        self.nodes = 0
        self.ends = math.inf
        self.seen: Counter[str] = Counter()
        self.injected = 0

    # what a controller does

    def open(self, deadline: float | None = None) -> None:
        """A new controller, with the budgets that are left and an allocation of its own."""
        spent = self.left - self.opened
        self.bills = [self.bills[0] + spent, self.bills[1] + spent * self.nodes]
        self.must_end.clear()
        self.late.clear()
        self.untrusted &= {node_of(slot) for slot in self.slots}
        self.opened = self.left = self.now
        deadline = None if self.allowed is None else self.now + self.allowed
        self.nodes = nodes = len({node_of(slot) for slot in self.slots})
        self.ends = min(
            math.inf if deadline is None else deadline,
            math.inf if self.plan.max_seconds is None else self.now + self.plan.max_seconds - self.bills[0],
            math.inf
            if self.plan.max_node_seconds is None
            else self.now + (self.plan.max_node_seconds - self.bills[1]) / nodes,
        )
        super().open(deadline)

    def feed(self, event: Event) -> None:
        self.left = self.now
        self.latest = event if isinstance(event, Reached | Failed) else self.latest
        self.before = self.state.trouble
        super().feed(event)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look at the clock when a budget is about to end, and after."""
        until = self.now + seconds
        brink = self.ends - self.plan.grace
        if self.closed is None and self.now < brink < until:
            self.now = brink
            self.feed(Tick())
        self._end_cancelled(until)
        if self.closed is None:
            self.now = max(self.now, until)
            self.feed(Tick())

    def reach(self, number: int, value: float, over: bool = False, seconds: float = 0.0) -> None:
        self.faults[number] = 0
        super().reach(number, value, over, seconds)

    def fail(self, number: int, kind: Any, epochs: int = 0, suspects: tuple[str, ...] = ()) -> None:
        trial, before = self.state.trials[number], set(self.untrusted)
        gained = epochs > trial.epochs
        if number in self.late:
            self.own[number] = "timeout"
        elif kind in MACHINE_FAULTS:
            self.faults[number] = self.faults[number] * (not gained) + (not trial.cancelled)
        elif kind == "out_of_memory":
            self.shortages[number] += 1
        else:
            self.own[number] = kind
        vain = not (suspects or gained or trial.cancelled)
        if kind in STRIKING and not (vain and self.state.trouble.since < math.inf):
            self.untrusted |= set(suspects or (node_of(slot) for slot in self.running[number].slots))
        self.injected += 1
        super().fail(number, kind, epochs, suspects)
        if vain and self.state.trouble.since < math.inf:
            self.untrusted &= before  # it is put down to the machine

    def probe(self, healthy: bool = True) -> None:
        self._found(self.oldest_probe(), healthy)

    def propose(self, work: float | None = None, scaling: float | None = None) -> None:
        super().propose(self.choose([None, 1.0, 5.0, 30.0]), self.choose([None, None, 4.0]))

    def ended(self, number: int) -> Start:
        self.must_end.pop(number, None)
        self.late.discard(number)
        return super().ended(number)

    # what can happen to it

    def play(self, events: int) -> None:
        """So many random events; a campaign that ended before its time goes on with the next controller."""
        for _ in range(events):
            if self.closed == "finished":
                return
            if self.closed is None:
                self._happen()
            else:
                self._more_budget()
                self._other_machine()
                self.open()

    def fork(self) -> "Storm":
        """The same campaign once more, to see how it would go on."""
        other = copy.copy(self)
        other.state = copy.deepcopy(self.state)
        for name, value in vars(self).items():
            if isinstance(value, dict | list | set):
                setattr(other, name, value.copy())
        return other

    def finish(self) -> None:
        """Nothing goes wrong any more, and budgets are ample: there must be a way to the end."""
        self.allowed = None
        self.plan = replace(self.plan, max_seconds=None, max_node_seconds=None)
        if self.closed != "finished" and self.ends < math.inf:
            self.open()
        super().finish()

    def _happen(self) -> None:
        options = ["wait", "wait"]
        if self.to_propose:
            options += ["propose"] * 6
        if self.running:
            options += ["show", "reach", "reach", "fail", "fail", "fail"]
        if self.to_probe:
            options += ["probe", "probe"]
        match self.choose(options):
            case "propose":
                self._answer()
            case "show":
                self._show()
            case "reach":
                self._arrive()
            case "fail":
                self._break()
            case "probe":
                self._answer_probe()
            case "wait":
                self._pass_time()

    def _pass_time(self) -> None:
        match self.choose(
            ["short"] * 6 + ["long", "due", "kill", "kill", "stop", "stale", "found", "found", *TOGETHER]
        ):
            case "short":
                self.wait(self.choose([0.0, 0.5, 5.0]))
            case "long":
                self.wait(self.choose([61.0, 700.0]))
            case "due":
                self.wait(max(0.0, min(self.state.due, self.now + 4000.0) - self.now))
            case "kill":
                self.injected += 1
                self._end_cancelled(self.now)
                self._other_machine()
                self.open()
            case "stop":
                self.feed(Stopping(reason="SIGINT"))
            case "storm":
                self._storm()
            case "nodes":
                self._lose_nodes()
            case "stale":
                self.feed(self.latest)  # reported once more
                self.feed(Reached(trial=0, attempt=0, epochs=1, value=0.0))
                self.feed(Failed(trial=0, attempt=0, kind="defect", message=""))
                self.feed(Probed(node="never heard of", healthy=False))
            case "found":
                node = node_of(self.choose(self.slots))
                if node not in self.to_probe:
                    self._found(node, self.choose([True, False]))

    def _show(self) -> None:
        """Progress as heartbeats tell it: also none, backwards, beyond the end, or of an attempt that is over."""
        number = self._one()
        start, trial = self.running[number], self.state.trials[number]
        epochs = self.choose([0.0, float(trial.epochs), trial.epochs + 0.25, start.until - 0.5, start.until + 1.0])
        self.feed(Progressed(trial=number, attempt=start.attempt - self.choose([0, 0, 0, 1]), epochs=epochs))

    def _arrive(self) -> None:
        number = self._one()
        start, trial = self.running[number], self.state.trials[number]
        self.feed(Launched(trial=number, attempt=start.attempt, identity={"pid": number}))
        value, over, speed = (
            self.choose([0.1, 0.2, 0.5, 0.7]),
            self.choose([False] * 9 + [True]),
            self.choose([0.0, 1.0, 10.0]),
        )
        self.reach(number, value, over, speed * (start.until - trial.epochs) / len(start.slots))

    def _break(self) -> None:
        number = self._one()
        start, trial = self.running[number], self.state.trials[number]
        kind = self.choose(CAUSES + OWN[:1] if self.choose([0, 0, 1]) else CAUSES)
        kind = self.choose(OWN) if kind in OWN else kind
        nodes = sorted({node_of(slot) for slot in start.slots})
        suspects = (self.choose(nodes),) if kind in STRIKING and self.choose([True, False]) else ()
        self.fail(number, kind, self.choose([0, trial.epochs, max(trial.epochs, start.until - 1)]), suspects)

    def _storm(self) -> None:
        """Whatever runs or starts comes to nothing, for some time."""
        kind, end = self.choose(STRIKING), self.now + self.choose([30.0, 300.0, 1500.0])
        while self.now < end and self.closed is None:
            for number in sorted(self.running):
                if number in self.running and self.closed is None:
                    self.fail(number, kind)
            self.seen["trouble begun"] += self.state.trouble.since < math.inf
            self.wait(min(60.0, max(1.0, self.state.due - self.now)))

    def _lose_nodes(self) -> None:
        """Neighbouring nodes, or one, fail what runs on them, at once or after 20 minutes; then word comes late, and twice."""
        nodes = sorted({node_of(slot) for slot in self.slots})
        first, late = nodes.index(self.choose(nodes)), self.choose([False, True])
        gone = set(nodes[first:][: self.choose([1, 2, 4, 8])])
        self.seen["failed late" if late else "cabinet lost"] += 1
        self.wait(1200.0 if late else 0.0)
        hit = {n: sorted(gone.intersection(map(node_of, start.slots))) for n, start in self.running.items()}
        self.wait(600.0 if late and any(hit.values()) else 0.0)
        for number, here in sorted(hit.items()):
            if here and number in self.running and self.closed is None:
                suspects = self.choose([(), (), (here[0],), tuple(here)])
                self.fail(number, "lost_node", self.state.trials[number].epochs, suspects)
                if late:
                    self.feed(self.latest)

    def _answer(self) -> None:
        if self.choose([False] * 40 + [True]):
            self.feed(Exhausted(trial=self.to_propose.pop(0)))
        else:
            self.propose()

    def _answer_probe(self) -> None:
        match self.choose(["good", "good", "bad", "none"]):
            case "good":
                self.probe(True)
            case "bad":
                self.injected += 1
                self.probe(False)
            case "none":  # the probe hangs: its node must not be forgotten
                self.injected += 1
                self.oldest_probe()

    def _more_budget(self) -> None:
        """The user goes on with what is used up."""
        if self.closed == "hours" and self.plan.max_seconds is not None:
            self.plan = replace(self.plan, max_seconds=self.plan.max_seconds + self.choose([5.0, 2000.0]))
        if self.closed == "node_hours" and self.plan.max_node_seconds is not None:
            self.plan = replace(self.plan, max_node_seconds=self.plan.max_node_seconds + self.choose([5.0, 20000.0]))

    def _other_machine(self) -> None:
        """The next controller may have other slots, after a pause."""
        self.now += self.choose([0.0, 10.0, 5000.0])
        if self.choose([False, False, True]):
            nodes = [f"n{k}" for k in range(self.choose([1, 2, 5, 9]))]
            shares = self.choose([1, 1, 3]) if self.plan.max_slots == 1 else 1
            self.slots = tuple(f"{n}/{k}" if shares > 1 else n for n in nodes for k in range(shares))

    def _found(self, node: str, healthy: bool) -> None:
        self.injected += not healthy
        self.untrusted -= {node}
        self.untrusted |= set() if healthy else {node}
        if node in {node_of(slot) for slot in self.slots}:
            self.feed(Probed(node=node, healthy=healthy, message="found"))

    def _one(self) -> int:
        return int(self.choose(list(self.running)))

    def _end_cancelled(self, until: float) -> None:
        """Attempts that were asked to save themselves do so within the grace period."""
        for number, limit in sorted(self.must_end.items(), key=lambda item: item[1]):
            if limit <= until and number in self.running:
                self.now = max(self.now, limit)
                if self.choose([False, True]):
                    self.reach(number, 0.3)
                else:
                    self.fail(number, "preempted", self.state.trials[number].epochs)

    # what must hold

    def obey(self, action: Action) -> None:
        super().obey(action)
        match action:
            case Cancel():
                self.must_end.setdefault(action.trial, self.now + self.plan.grace)
                if action.reason == "timeout":
                    self.late.add(action.trial)
            case Close():
                self.seen[f"ending {action.ending}"] += 1

    def begin(self, action: Start) -> None:
        super().begin(action)
        assert self.now <= self.ends - self.plan.grace, "started when time was up"
        trouble, before = self.state.trouble, self.before
        tried = trouble.number == before.number and self.now >= before.until
        assert trouble.since == math.inf or tried, "started on a machine in trouble"
        assert action.micro_batches == min(MOST_PARTS, 2 ** self.shortages[action.trial])
        assert self.untrusted.isdisjoint(map(node_of, action.slots)), "a node was used that has not been probed"

    def settle(self, action: Settle) -> None:
        super().settle(action)
        number = action.trial
        self.seen[f"outcome {action.outcome}"] += 1
        if action.outcome == "failed":
            kind = self.state.trials[number].failure.kind
            shortage = kind == "out_of_memory"
            assert shortage or kind == self.own[number]
            assert not shortage or self.shortages[number] > math.log2(MOST_PARTS), "out of memory was told too early"
        if action.outcome == "lost":
            assert self.faults[number] > self.plan.retries, "given up with retries left"

    def watch(self) -> None:
        super().watch()
        assert not self.running or self.now <= self.ends, "a budget was exceeded"
        self.seen.update(f"trial {status}" for status, count in self.state.counts.items() if count)
        self.seen.update(f"node {node.status}" for node in self.state.health.values())
