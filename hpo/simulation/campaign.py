"""Scheduler on a virtual clock, with the ``decide`` of real campaigns."""

import random
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from hydragnn.hpo.sampling.proposals import BATCH, PATIENCE, SLOW, is_wide
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
from hydragnn.hpo.scheduling.scheduler import Decision, State, decide
from hydragnn.hpo.simulation.world import Scenario, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """A configuration was trained to the end."""

    seconds: float
    """Allocated seconds since the campaign began."""
    trial: int
    value: float


class VirtualSampler:
    """Answers open requests together, at most ``BATCH``.

    It is asked ahead where it is slow, and random configurations stand in where it is slower.
    """

    def __init__(self, world: World, propose: Callable[[int], Proposed]) -> None:
        """``propose`` gives a trial its configuration."""
        self._world, self._propose = world, propose
        self._open: dict[int, None] = {}
        self._ready, self._met, self._last = 0, 0, 0.0
        self._thinks = False

    def ask(self, trial: int, *, learns: bool, wide: bool) -> list[Event]:
        """Take a request; gives the answers that are there at once.

        ``learns``: there are results, of which a proposal takes its time; ``wide``: others work meanwhile, and do not wait for ever.
        """
        each = self._world.assumptions.seconds_per_proposal if learns else 0.0
        if each + self._world.assumptions.proposal_seconds <= 0:
            return [self._propose(trial)]
        self._open[trial] = None
        self._met += self._thinks
        if wide:
            self._world.call(self._world.now + PATIENCE, partial(self._stand_in, trial))
        return self._serve(each, wide)

    def _serve(self, each: float, wide: bool) -> list[Event]:
        """Answer what is ready, and begin what is or will be requested."""
        events: list[Event] = []
        while self._open and self._ready:
            trial = next(iter(self._open))
            del self._open[trial]
            self._ready -= 1
            events.append(self._propose(trial))
        count = min(BATCH, self._met)
        if self._open:
            self._think(min(BATCH, len(self._open)), each, wide)
        elif wide and self._last > SLOW and self._ready <= count // 2:
            self._think(max(1, count), each, wide)
        return events

    def _think(self, count: int, each: float, wide: bool) -> None:
        if self._thinks:
            return
        self._thinks, self._met = True, 0
        self._last = self._world.assumptions.proposal_seconds + each * count
        self._world.call(self._world.now + self._last, partial(self._answer, count, each, wide))

    def _answer(self, count: int, each: float, wide: bool) -> list[Event]:
        self._thinks = False
        self._ready += count
        return self._serve(each, wide)

    def _stand_in(self, trial: int) -> list[Event]:
        if trial not in self._open:
            return []
        del self._open[trial]
        return [self._propose(trial)]


class VirtualCampaign:
    """Campaign with virtual launcher, clock and sampler, and real decisions."""

    def __init__(self, scenario: Scenario) -> None:
        self.plan, self.world, self.state = scenario.plan, World(scenario), State()
        self.finishes: list[Finish] = []
        self.settled: dict[int, str] = {}
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

    def _allocation(self, number: int, start: float, deadline: float, used: float) -> None:
        world = self.world
        slots = world.open(number, start, used)
        self._sampler = VirtualSampler(world, self._proposal)
        self._feed(Opened(plan=self.plan, slots=slots, deadline=deadline))
        while not self.state.closed and world.next_time() < deadline:
            for event in world.advance():
                self._feed(event)
        is_complete = self.state.closed and self.state.ending not in (None, "walltime")
        world.close(world.now if is_complete else deadline)

    def _feed(self, event: Event) -> None:
        """Apply an event, and act as the real controller does."""
        events = deque([event])
        while events:
            event = events.popleft()
            trial = self.state.trials.get(event.trial) if isinstance(event, Reached) else None
            if isinstance(event, Reached) and trial is not None and event.epochs > trial.passed:
                self._note(event)
            for action in self._decide(event).actions:
                events.extend(self._act(action))

    def _decide(self, event: Event) -> Decision:
        begin = perf_counter()
        decision = decide(self.state, event, self.world.now)
        self.decision_seconds.append(perf_counter() - begin)
        return decision

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
        assumptions, course = self.world.assumptions, self.world.course_of(trial)
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
        self.settled[action.trial] = action.outcome
        if action.outcome == "lost":
            self.world.ledger.discard(action.trial)
