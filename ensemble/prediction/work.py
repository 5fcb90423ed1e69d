"""One rank at work: it takes bundles, predicts their units, and keeps account of the time."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.plan import Chunk, Unit
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.order import POSTS, Bundle
from hydragnn.ensemble.prediction.parts import Parts
from hydragnn.ensemble.prediction.queues import Queue
from hydragnn.ensemble.prediction.sources import Source
from hydragnn.ensemble.screening import Screened, outcome_of, read_screened, without_screening

NOTE_EVERY = 0.5
"""Seconds between two times that a rank tells."""


class Worker:
    """What a rank needs to predict units, and what it did."""

    def __init__(
        self,
        group: Group,
        ensemble: Ensemble,
        graphs: Source,
        needed: Sequence[str],
        chunks: Sequence[Chunk],
        parts: Parts,
        check: Callable[[], None],
    ) -> None:
        """Nothing is done yet; ``check`` is called before every unit and raises where the prediction is to end."""
        self.group, self.ensemble, self.graphs, self.chunks, self.parts = group, ensemble, graphs, chunks, parts
        self.check = check
        self.needed = needed
        self.done: list[tuple[int, int, float]] = []
        self._spent = [0.0] * len(ensemble.names)
        self._load = [0.0] * len(ensemble.names)
        self._noted_at = -NOTE_EVERY
        self.start()

    def start(self) -> None:
        """The clock of the account starts now."""
        self.began = self.ended = time.time()

    def work(self, queue: Queue, bundles: Sequence[Bundle], moved: Callable[[int], None]) -> None:
        """Take bundles until there are none, telling the others now and then what was measured."""
        while (position := queue.take()) is not None:
            moved(position)
            self._note_progress(bundles[position].units)
            self.predict(bundles[position].units)

    def predict(self, units: Sequence[Unit]) -> None:
        """Predict units of one chunk, apart from those that are there already; their batch is read once."""
        began = time.perf_counter()
        units = [unit for unit in units if not self.parts.has(unit)]
        if not units:
            return
        batch = self.read(self.chunks[units[0].chunk])
        reading = (time.perf_counter() - began) / len(units)
        for unit in units:
            self.check()
            began = time.perf_counter()
            self.parts.write(unit, outcome_of(self.ensemble.members[unit.member], batch))
            self._account(unit, reading + time.perf_counter() - began)

    def read(self, chunk: Chunk, *, sure: bool = False) -> Screened:
        """The graphs of a chunk, apart from those that are not valid; ``sure`` that there are none, they are not checked."""
        if sure:
            return without_screening(self.graphs.store.read(chunk.graphs, self.needed))
        return read_screened(self.graphs.store, chunk.graphs, self.needed, self.needed, chunk.numbers)

    def outcome(self, unit: Unit) -> Outcome:
        """The outcome of a unit; made again where its part is torn."""
        outcome = self.parts.whole_outcome(unit)
        if outcome is None:
            self.predict([unit])
            outcome = self.parts.read(unit)
        return outcome

    def account(self) -> dict[str, Any]:
        """What this rank did and when."""
        busy = sum(seconds for _, _, seconds in self.done)
        return {"rank": self.group.rank, "began": self.began, "ended": self.ended, "busy": busy, "units": self.done}

    def _note_progress(self, next_ones: Sequence[Unit]) -> None:
        """Note what this rank has measured and begins now, if some time has passed and it is one of those that tell."""
        is_due = self.group.size > 1 and self.group.rank % max(1, self.group.size // POSTS) == 0
        if is_due and time.monotonic() - self._noted_at > NOTE_EVERY:
            (unit, *others) = next_ones
            running = [] if others else [unit.member, self.chunks[unit.chunk].load, time.time()]
            self.group.note("measured", {"seconds": self._spent, "load": self._load, "running": running})
            self._noted_at = time.monotonic()

    def _account(self, unit: Unit, seconds: float) -> None:
        self.done.append((unit.chunk, unit.member, seconds))
        self.ended = time.time()
        self._spent[unit.member] += seconds
        self._load[unit.member] += self.chunks[unit.chunk].load


def measured_course(accounts: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """The makespan that was measured against the bound that these costs leave, and the busy time of every rank.

    The bound is that of the work done once, at its least cost. A rank that died or still hangs left no account.
    """
    once: dict[tuple[int, int], float] = {}
    for account in accounts:
        for chunk, member, seconds in account["units"]:
            once[chunk, member] = min(seconds, once.get((chunk, member), seconds))
    begin = min((account["began"] for account in accounts), default=0.0)
    makespan = max((account["ended"] for account in accounts), default=0.0) - begin
    bound = max(sum(once.values()) / ranks, max(once.values(), default=0.0))
    return {
        "ranks_heard": len(accounts),
        "units_done": len(once),
        "units_done_again": sum(len(account["units"]) for account in accounts) - len(once),
        "makespan": makespan,
        "lower_bound": bound,
        "ratio": makespan / bound if bound > 0 else 1.0,
        "busy": [round(account["busy"], 3) for account in sorted(accounts, key=lambda account: int(account["rank"]))],
    }
