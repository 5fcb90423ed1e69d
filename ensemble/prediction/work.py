"""One rank at work: it takes bundles, predicts their units and keeps account of the time; then it helps to make the pieces of the file, and one rank joins them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.plan import Chunk, Chunks, Unit
from hydragnn.ensemble.prediction.group import Group
from hydragnn.ensemble.prediction.looking import look_together
from hydragnn.ensemble.prediction.queues import MADE, PIECES, POSTS, SPREAD, Bundles, Queue
from hydragnn.ensemble.prediction.records import Parts
from hydragnn.ensemble.prediction.schedule import Late, finish_together, once
from hydragnn.ensemble.prediction.sinks import AppendingSink, Block, Piece, Sink, joined, size_of
from hydragnn.ensemble.prediction.sources import Source
from hydragnn.ensemble.screening import Screened, outcome_of, read_screened, without_screening
from hydragnn.graphs.texts import Texts

NOTE_EVERY = 0.5
"""Seconds between two times that a rank tells."""

LONG = 1.0
"""Seconds of a unit that is kept by itself as soon as it is done, and not only with the others of its bundle."""

COUNTS = ("graphs", "failed", "outside_training_domain")


class Worker:
    """What a rank needs to predict units, and what it did."""

    def __init__(
        self,
        group: Group,
        ensemble: Ensemble,
        graphs: Source,
        needed: Sequence[str],
        chunks: Chunks,
        parts: Parts,
        sink: Sink,
        check: Callable[[], None],
    ) -> None:
        """Nothing is done yet; ``check`` is called before every unit and raises where the prediction is to end."""
        self.group, self.ensemble, self.graphs, self.chunks, self.parts = group, ensemble, graphs, chunks, parts
        self.sink, self.check = sink, check
        self.needed = needed
        self.done, self._busy = 0, 0.0
        self._spent = [0.0] * len(ensemble.names)
        self._load = [0.0] * len(ensemble.names)
        self._noted_at = -NOTE_EVERY
        self.start()

    def start(self) -> None:
        """The clock of the account starts now."""
        self.began = self.ended = time.time()

    def work(self, queue: Queue, bundles: Bundles, moved: Callable[[int], None]) -> None:
        """Take bundles until there are none, telling the others now and then what was measured."""
        while (position := queue.take()) is not None:
            moved(position)
            units = bundles[position]
            self._note_progress(units)
            self.predict(units)

    def predict(self, units: Sequence[Unit]) -> dict[int, Outcome]:
        """Predict units of one chunk, apart from those that are there already; their batch is read once. Gives outcomes by member.

        What is predicted is kept, whatever ends the work: as a piece of the file if it is of all members, else unit by unit.
        """
        began, done = time.perf_counter(), dict[int, Outcome]()
        units = [unit for unit in units if not self.parts.has(unit)]
        if not units:
            return done
        chunk = units[0].chunk
        read = self.read(self.chunks[chunk])
        seconds = dict.fromkeys((unit.member for unit in units), (time.perf_counter() - began) / len(units))
        try:
            for unit in units:
                self.check()
                began = time.perf_counter()
                done[unit.member] = outcome_of(self.ensemble.members[unit.member], read)
                seconds[unit.member] += time.perf_counter() - began
                self._account(unit, seconds[unit.member])
                if seconds[unit.member] > LONG:
                    self.parts.keep(unit, done[unit.member], seconds.pop(unit.member))
        finally:
            began = time.perf_counter()
            self._keep(chunk, read, done, seconds)
            self._busy += time.perf_counter() - began
            self.ended = time.time()
        return done

    def _keep(self, chunk: int, read: Screened, done: Mapping[int, Outcome], seconds: dict[int, float]) -> None:
        """Keep outcomes by member, which took so many ``seconds``; those that are not among these are kept already."""
        if len(done) == len(self.ensemble.names):
            began = time.perf_counter()
            piece = self._piece(chunk, read, [done[member] for member in range(len(done))])
            combining = time.perf_counter() - began
            self.keep_piece(chunk, piece, [one + combining / len(seconds) for one in seconds.values()])
            return
        for member in done.keys() & seconds.keys():
            self.parts.keep(Unit(chunk=chunk, member=member), done[member], seconds[member])

    def keep_piece(self, chunk: int, piece: tuple[dict[str, int], Piece], seconds: Sequence[float]) -> None:
        """Keep counts of a chunk's graphs and what they become in the file; ``seconds`` of the units that were predicted for it."""
        self.parts.keep_piece(chunk, *piece, seconds, self.sink.sizes(piece[1]))

    def read(self, chunk: Chunk, *, sure: bool = False) -> Screened:
        """The graphs of a chunk, apart from those that are not valid; ``sure`` that there are none, they are not checked."""
        if sure:
            return without_screening(self.graphs.store.read(chunk.graphs, self.needed))
        return read_screened(self.graphs.store, chunk.graphs, self.needed, self.needed, chunk.numbers)

    def combine(self, number: int) -> tuple[dict[str, int], Piece]:
        """Counts of a chunk's graphs and what they become in the file, by what was kept of members; what is torn is predicted again."""
        chunk = self.chunks[number]
        outcomes = [] if chunk.reason else self._outcomes(number)
        # graphs that are not valid have their reason in every outcome, so that without reasons there are none
        sure = bool(outcomes) and not any(any(outcome.reasons) for outcome in outcomes)
        return self._piece(number, self.read(chunk, sure=sure) if len(chunk.graphs) else None, outcomes)

    def _outcomes(self, chunk: int) -> list[Outcome]:
        units = [Unit(chunk=chunk, member=member) for member in range(len(self.ensemble.names))]
        kept = {unit.member: self.parts.outcome(unit) for unit in units}
        found = {member: outcome for member, outcome in kept.items() if outcome is not None}
        torn = [unit for unit in units if unit.member not in found]
        every = found | (self.predict(torn) if torn else {})
        return [every[unit.member] for unit in units]

    def _piece(self, number: int, read: Screened | None, outcomes: Sequence[Outcome]) -> tuple[dict[str, int], Piece]:
        """Counts of a chunk's graphs and what they become in the file."""
        chunk = self.chunks[number]
        if chunk.reason:
            nodes, edges = (0, 0) if read is None else (read.whole.num_nodes, read.whole.num_edges)
            unbuilt = self.graphs.failures.get(int(chunk.numbers[0]))
            texts = {key: Texts([text]) for key, text in unbuilt.texts.items()} if unbuilt else {}
            predictions = self.ensemble.nothing(nodes, edges, chunk.reason)
            predictions = replace(predictions, texts=texts if read is None else read.whole.texts)
        else:
            assert read is not None
            predictions = self.ensemble.combine(read, outcomes)
        counts = len(predictions), int(np.count_nonzero(~predictions.ok)), sum(map(bool, predictions.domain))
        block = Block(numbers=chunk.numbers, predictions=predictions, graphs=read)
        return dict(zip(COUNTS, counts)), self.sink.piece(block)

    def account(self) -> dict[str, Any]:
        """What this rank did and when."""
        return {
            "rank": self.group.rank,
            "began": self.began,
            "ended": self.ended,
            "busy": self._busy,
            "units": self.done,
        }

    def _note_progress(self, next_ones: Sequence[Unit]) -> None:
        """Note what this rank has measured and begins now, if some time has passed and it is one of those that tell."""
        is_due = self.group.size > 1 and self.group.rank % max(1, self.group.size // POSTS) == 0
        if is_due and time.monotonic() - self._noted_at > NOTE_EVERY:
            (unit, *others) = next_ones
            running = [] if others else [unit.member, float(self.chunks.loads[unit.chunk]), time.time()]
            self.group.note("measured", {"seconds": self._spent, "load": self._load, "running": running})
            self._noted_at = time.monotonic()

    def _account(self, unit: Unit, seconds: float) -> None:
        self.done += 1
        self._busy += seconds
        self._spent[unit.member] += seconds
        self._load[unit.member] += float(self.chunks.loads[unit.chunk])


TURNS = 4
"""Chunks whose pieces are missing are shared out in so many turns per rank."""

SECONDS = 10.0
"""More than the pieces of a turn take."""

APPENDED = 1 << 22
"""Bytes that are appended to the file at once; whatever the number of ranks, so that the file is the same."""


class Merger:
    """What of a prediction becomes which piece of the file."""

    def __init__(self, worker: Worker) -> None:
        """All units are there."""
        self._worker, self.chunks = worker, range(len(worker.chunks))
        self._unknown: list[Callable[[], None]] = [partial(worker.parts.records.look, all_files=True)]

    def prepare(self) -> None:
        """Make pieces of chunks that units were kept of one by one, together with the other ranks, until all are there."""
        worker, group = self._worker, self._worker.group
        self._unknown = [look_together(group, worker.parts.records, SPREAD)]
        if group.hears:  # one looks into the files of all, however many
            once(group, "spread", worker.sink.path.exists, lambda: group.publish("spread", self._spread), worker.check)
        spread: dict[str, list[str]] = group.publish("spread", self._spread)
        chunks, count = list(spread.items()), min(len(spread), TURNS * group.size)
        turns = [dict(chunks[number::count]) for number in range(count)]
        queue = group.queue(PIECES, [1.0] * count)
        while (position := queue.take()) is not None:
            self._keep(turns[position])
        worker.parts.records.end()

        def missing() -> list[Late]:
            if worker.sink.path.exists():
                return []  # the others did without this rank
            worker.parts.records.look()
            absent = set(map(str, self._undone().tolist()))
            return [
                Late(number=number, claim=f"{PIECES}-{number}", seconds=SECONDS)
                for number, turn in enumerate(turns)
                if not absent.isdisjoint(turn)
            ]

        finish_together(group, "piece", missing, lambda number: self._keep(turns[number]), worker.check)
        self._unknown.append(look_together(group, worker.parts.records, MADE, later=True))

    def _spread(self) -> dict[str, list[str]]:
        """The chunks whose units were kept of ranks apart, and the indices that tell of them."""
        records = self._worker.parts.records
        self._know_all()
        undone = self._undone()
        return dict(zip(map(str, undone.tolist()), records.indices_of(undone)))

    def pieces_found(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """An entry for the piece of every chunk, and the names of the files that they tell of; a piece that is not there is made."""
        worker = self._worker
        self._know_all()
        undone = self._undone().tolist()
        for chunk in undone:
            worker.keep_piece(chunk, self.made(chunk), [])
        if undone:
            worker.parts.records.look(all_files=True)
        return worker.parts.records.pieces(len(self.chunks))

    def write(self, sink: AppendingSink) -> dict[str, int]:
        """Append all pieces to the file; gives counts of graphs. A piece that is not there, or torn, is made."""
        worker, total = self._worker, Counter[str](dict.fromkeys(COUNTS, 0))
        self._know_all()
        with sink:
            pieces, size = list[Piece](), 0
            for chunk in self.chunks:
                counts, piece = worker.parts.piece(chunk) or self.made(chunk)
                total.update(counts)
                pieces.append(piece)
                size += size_of(piece)
                if size >= APPENDED:
                    self._append(sink, pieces)
                    size = 0
            self._append(sink, pieces)
        return dict(total)

    def _append(self, sink: AppendingSink, pieces: list[Piece]) -> None:
        """Append pieces to the file, after which there are none."""
        if pieces:
            whole = joined(pieces)
            self._worker.check()
            sink.write(whole)
        pieces.clear()

    def made(self, chunk: int) -> tuple[dict[str, int], Piece]:
        """Counts of a chunk's graphs and what they become in the file, made anew."""
        self._worker.check()
        return self._worker.combine(chunk)

    def _know_all(self) -> None:
        """See what all ranks have finished by now, as far as this one does not know it."""
        while self._unknown:
            self._unknown.pop(0)()

    def _undone(self) -> Int[np.ndarray, " chunks"]:
        """The chunks that no piece is known of."""
        return np.flatnonzero(~self._worker.parts.records.combined(len(self.chunks)))

    def _keep(self, turn: Mapping[str, Sequence[str]]) -> None:
        """Make the pieces of chunks that are not there, from what these indices tell of."""
        parts = self._worker.parts
        for chunk, indices in turn.items():
            parts.records.look_at(indices)
            if parts.piece(int(chunk)) is None:
                self._worker.keep_piece(int(chunk), self.made(int(chunk)), [])
