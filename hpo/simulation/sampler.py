"""Sampler of a simulated campaign, whose answers take time."""

from collections.abc import Callable
from functools import partial

from hydragnn.hpo.sampling.proposals import BATCH, PATIENCE, SLOW
from hydragnn.hpo.scheduling.events import Event, Proposed
from hydragnn.hpo.simulation.world import World


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
