"""The members' words become one file: all ranks make pieces of it, and one joins these in the order of the source."""

from collections.abc import Mapping, Sequence

import numpy as np

from hydragnn.ensemble.plan import Chunk, Unit
from hydragnn.ensemble.prediction.queues import PIECES
from hydragnn.ensemble.prediction.sinks import Block, Piece, Sink, joined
from hydragnn.ensemble.prediction.together import Late, finish_together
from hydragnn.ensemble.prediction.work import Worker
from hydragnn.ensemble.predictions import Predictions

GRAPHS, LOAD = 2048, 524_288
"""A piece ends where it has so many graphs, or work of so many edges; the same on any number of ranks, so that the file is, too."""

SECONDS = 10.0
"""More than a piece takes."""

COUNTS = ("graphs", "failed", "outside_training_domain")


def spans_of(chunks: Sequence[Chunk]) -> list[range]:
    """Consecutive chunks whose graphs become one piece."""
    spans, start, graphs, load = [], 0, 0, 0.0
    for number, chunk in enumerate(chunks, start=1):
        graphs, load = graphs + len(chunk.numbers), load + chunk.load
        if graphs >= GRAPHS or load >= LOAD or number == len(chunks):
            spans.append(range(start, number))
            start, graphs, load = number, 0, 0.0
    return spans


class Merger:
    """What of a prediction becomes which piece of the file."""

    def __init__(self, worker: Worker, units: Sequence[Unit], sink: Sink) -> None:
        """All units are there."""
        self._worker, self._sink, self.spans = worker, sink, spans_of(worker.chunks)
        self._units: dict[int, list[Unit]] = {}
        for unit in sorted(units, key=lambda unit: unit.member):
            self._units.setdefault(unit.chunk, []).append(unit)

    def prepare(self) -> None:
        """Make pieces together with the other ranks, until all are there."""
        worker = self._worker
        queue = worker.group.queue(PIECES, [float(len(span)) for span in self.spans])
        while (number := queue.take()) is not None:
            self._keep(number)

        def missing() -> list[Late]:
            if self._sink.path.exists():
                return []  # the others did without this rank
            there = worker.parts.pieces()
            absent = [number for number in range(len(self.spans)) if number not in there]
            return [Late(number=number, claim=f"{PIECES}-{number}", seconds=SECONDS) for number in absent]

        finish_together(worker.group, "piece", missing, self._keep, worker.check)

    def write(self) -> dict[str, int]:
        """Write the file; gives counts of graphs. A piece that is not there, or torn, is made."""
        total = dict.fromkeys(COUNTS, 0)
        with self._sink:
            for number in range(len(self.spans)):
                counts, piece = self._worker.parts.piece(number) or self._make(number)
                self._sink.write(piece)
                total = {name: total[name] + counts[name] for name in COUNTS}
        return total

    def _keep(self, number: int) -> None:
        if self._worker.parts.piece(number) is None:
            self._worker.parts.write_piece(number, *self._make(number))

    def _make(self, number: int) -> tuple[Mapping[str, int], Piece]:
        """Counts of graphs, and what they become in the file."""
        total, pieces = dict.fromkeys(COUNTS, 0), []
        for chunk in self.spans[number]:
            self._worker.check()
            block = self._block(self._worker.chunks[chunk], self._units.get(chunk, []))
            said = block.predictions
            counts = len(said), int(np.count_nonzero(~said.ok)), sum(map(bool, said.domain))
            total = {name: total[name] + count for name, count in zip(COUNTS, counts)}
            pieces.append(self._sink.piece(block))
        return total, joined(pieces)

    def _block(self, chunk: Chunk, units: Sequence[Unit]) -> Block:
        worker = self._worker
        outcomes = [worker.outcome(unit) for unit in units]
        # graphs that are not valid have their reason in every outcome, so that without reasons there are none
        sure = bool(outcomes) and not any(any(outcome.reasons) for outcome in outcomes)
        read = worker.read(chunk, sure=sure) if len(chunk.graphs) else None
        predictions: Predictions
        if chunk.reason:
            nodes, edges = (0, 0) if read is None else (read.whole.num_nodes, read.whole.num_edges)
            predictions = worker.ensemble.nothing(nodes, edges, chunk.reason)
        else:
            assert read is not None
            predictions = worker.ensemble.combine(read, outcomes)
        return Block(numbers=chunk.numbers, predictions=predictions, graphs=read)
