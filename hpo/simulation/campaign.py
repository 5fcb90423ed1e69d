"""Scheduler on a virtual clock, with the ``decide`` of real campaigns."""

import random
from collections import deque
from dataclasses import dataclass

from hydragnn.hpo.scheduling import events
from hydragnn.hpo.scheduling.events import Action, Cancel, Event, Probe, Propose, Settle, Start
from hydragnn.hpo.scheduling.scheduler import Decision, State, decide
from hydragnn.hpo.simulation.world import Scenario, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """A configuration was trained to the end."""

    seconds: float
    """Allocated seconds since the campaign began."""
    trial: int
    value: float


class VirtualCampaign:
    """Campaign with virtual launcher and clock, and real decisions."""

    def __init__(self, scenario: Scenario) -> None:
        self.plan, self.world, self.state = scenario.plan, World(scenario), State()
        self.finishes: list[Finish] = []
        self.settled: dict[int, str] = {}
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
            self._allocation(number, start, start + length)
            if self.state.ending not in (None, "walltime"):
                break
            number, used, start = number + 1, used + length, start + length + assumptions.queue_hours * 3600

    def _allocation(self, number: int, start: float, deadline: float) -> None:
        world = self.world
        slots = world.open(number, start)
        self._feed(events.Opened(plan=self.plan, slots=slots, deadline=deadline))
        while not self.state.closed and world.next_time() < deadline:
            for event in world.advance():
                self._feed(event)
        is_complete = self.state.closed and self.state.ending not in (None, "walltime")
        world.close(world.now if is_complete else deadline)

    def _feed(self, event: Event) -> None:
        """Apply an event, and act as the real controller does."""
        queue = deque([event])
        while queue:
            event = queue.popleft()
            trial = self.state.trials.get(event.trial) if isinstance(event, events.Reached) else None
            if isinstance(event, events.Reached) and trial is not None and event.epochs > trial.passed:
                self._note(event)
            for action in self._decide(event).actions:
                queue.extend(self._act(action))

    def _decide(self, event: Event) -> Decision:
        return decide(self.state, event, self.world.now)

    def _act(self, action: Action) -> list[Event]:
        match action:
            case Propose():
                return [self._proposal(action.trial)]
            case Start():
                self.world.start(action)
            case Cancel():
                self.world.cancel(action)
            case Probe():
                self.world.probe(action)
            case Settle():
                self._settle(action)
        return []

    def _proposal(self, trial: int) -> events.Proposed:
        """Return a configuration with a noisy estimate of its cost, if any."""
        assumptions, course = self.world.assumptions, self.world.course_of(trial)
        draw = random.Random(f"estimate {self.world.seed} {trial}")
        is_estimated = self._measured >= assumptions.first_estimates
        work = course.work * draw.lognormvariate(0, assumptions.estimate_error)
        scaling = course.scaling * draw.lognormvariate(0, assumptions.estimate_error)
        return events.Proposed(
            trial=trial,
            values={"simulated": trial},
            work=work if is_estimated else None,
            scaling=scaling if is_estimated else None,
        )

    def _note(self, event: events.Reached) -> None:
        self._measured += 1
        if event.epochs >= self.plan.rungs[-1]:
            seconds = self.world.now + self._offset
            self.finishes.append(Finish(seconds=seconds, trial=event.trial, value=event.value))

    def _settle(self, action: Settle) -> None:
        self.settled[action.trial] = action.outcome
        if action.outcome == "lost":
            self.world.ledger.discard(action.trial)
