"""Scheduler on a virtual clock, with the ``decide`` of real campaigns."""

import math
import random
from array import array
from collections import deque
from dataclasses import dataclass
from time import perf_counter

from hydragnn.hpo.sampling.proposals import is_wide
from hydragnn.hpo.sampling.sampler import STARTUP
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Opened,
    Probe,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
)
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, State, decide
from hydragnn.hpo.simulation.sampler import VirtualSampler
from hydragnn.hpo.simulation.world import Scenario, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """A configuration was trained to the end."""

    seconds: float
    """Allocated seconds since the campaign began."""
    trial: int
    value: float


class VirtualCampaign:
    """Campaign with virtual launcher, clock and sampler, and real decisions."""

    def __init__(self, scenario: Scenario) -> None:
        self.plan, self.world, self.state = scenario.plan, World(scenario), State()
        self.finishes: list[Finish] = []
        self.settled: dict[int, str] = {}
        self.false_failures = 0
        """Machine faults that the sampler got as failures of a configuration."""
        self.billed = 0.0
        """Slot-seconds from the beginning of every allocation until its controller left."""
        self.decision_seconds = array("d")
        """Wall time of every decision."""
        self._offset, self._measured = 0.0, 0

    def run(self, hours: float) -> None:
        """Run until the plan is done or the hours are used up."""
        assumptions = self.world.assumptions
        whole = hours * 3600
        part = min(whole, (assumptions.walltime_hours or hours) * 3600)
        number, start, used = 0, 0.0, 0.0
        while used < whole - 1e-6:
            length = min(part, whole - used)
            self._offset = used - start
            self._allocation(number, start, start + length, used)
            if self.state.ending not in (None, "walltime"):
                break
            number, used, start = number + 1, used + length, start + length + assumptions.queue_hours * 3600
        self._check_end()

    def _allocation(self, number: int, start: float, deadline: float, used: float) -> None:
        world = self.world
        slots = world.open(number, start, used)
        self._sampler = VirtualSampler(world, self._proposal)
        self._feed(Opened(plan=self.plan, slots=slots, deadline=deadline))
        while not self.state.closed and world.next_time() < deadline:
            for event in world.advance():
                self._feed(event)
        self.billed += len(slots) * ((world.now if self.state.closed else deadline) - start)
        is_complete = self.state.closed and self.state.ending not in (None, "walltime")
        if world.attempts and self.state.closed:
            world.violations.append("attempts run although the campaign is closed")
        world.close(world.now if is_complete else deadline)

    def _feed(self, event: Event) -> None:
        """Apply an event, and act as the real controller does."""
        events = deque([event])
        while events:
            event = events.popleft()
            trial = self.state.trials.get(event.trial) if isinstance(event, Reached) else None
            if isinstance(event, Reached) and trial is not None and event.epochs > trial.passed:
                self._note(event)
            begin = perf_counter()
            _, actions = decide(self.state, event, self.world.now)
            self.decision_seconds.append(perf_counter() - begin)
            for action in actions:
                events.extend(self._act(action))

    def _act(self, action: Action) -> list[Event]:
        match action:
            case Propose():
                learns = self._measured >= STARTUP
                return self._sampler.ask(action.trial, learns=learns, wide=is_wide(self.state))
            case Start():
                self.world.start(action)
            case Cancel():
                self.world.cancel(action)
            case Probe():
                self.world.probe(action)
            case Settle():
                self._settle(action)
        return []

    def _proposal(self, trial: int) -> Proposed:
        """Return a configuration with a noisy estimate of its cost, if any."""
        assumptions, course = self.world.assumptions, self.world.population(trial)
        draw = random.Random(f"estimate {self.world.seed} {trial}")
        is_estimated = self._measured >= assumptions.first_estimates
        work = course.work * draw.lognormvariate(0, assumptions.estimate_error)
        scaling = course.scaling * draw.lognormvariate(0, assumptions.estimate_error)
        return Proposed(
            trial=trial,
            values={"simulated": trial},
            work=work if is_estimated else None,
            scaling=scaling if is_estimated else None,
        )

    def _note(self, event: Reached) -> None:
        self._measured += 1
        if event.epochs >= self.plan.rungs[-1]:
            seconds = self.world.now + self._offset
            self.finishes.append(Finish(seconds=seconds, trial=event.trial, value=event.value))

    def _settle(self, action: Settle) -> None:
        if action.trial in self.settled:
            self.world.violations.append(f"trial {action.trial} is settled twice")
        self.settled[action.trial] = action.outcome
        if action.outcome == "failed" and self.world.last_fault.get(action.trial) in MACHINE_FAULTS:
            self.false_failures += 1
        if action.outcome == "lost":
            self.world.ledger.discard(action.trial)

    def _check_end(self) -> None:
        """Invariants that hold at the end of every campaign."""
        violations, state = self.world.violations, self.state
        missing = set(range(len(state.trials))) - set(state.trials)
        violations += [f"trial {trial} is lost without a trace" for trial in sorted(missing)]
        alive = [t.number for t in state.trials.values() if t.status in ("running", "asked", "waiting")]
        if state.ending == "finished" and alive:
            violations.append(f"the campaign finished, but trials {alive[:5]} did not")
        limit = self.plan.max_node_seconds
        limit = math.inf if limit is None else limit * self.world.ledger.shares  # the budget counts nodes
        if self.billed > limit * (1 + 1e-9):
            violations.append(f"{self.billed:.0f} slot-seconds used, more than the budget of {limit:.0f}")
