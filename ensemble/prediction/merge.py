"""What was kept of chunks becomes one file: all ranks make the pieces that are not there yet, and one joins all in the order of the source."""

import numpy as np

from hydragnn.ensemble.plan import Chunks
from hydragnn.ensemble.prediction.queues import PIECES
from hydragnn.ensemble.prediction.sinks import Piece, joined
from hydragnn.ensemble.prediction.together import Late, finish_together
from hydragnn.ensemble.prediction.work import COUNTS, Worker

GRAPHS, LOAD = 2048, 524_288
"""So much is appended to the file at once: until there are so many graphs, or work of so many edges; the same on any number of ranks, so that the file is, too."""

SECONDS = 10.0
"""More than the pieces of a span take."""


def spans_of(chunks: Chunks) -> list[range]:
    """Consecutive chunks that are appended to the file at once."""
    spans, start, graphs, load = list[range](), 0, 0, 0.0
    for number, (count, one) in enumerate(zip(chunks.counts().tolist(), chunks.loads.tolist()), start=1):
        graphs, load = graphs + count, load + one
        if graphs >= GRAPHS or load >= LOAD or number == len(chunks):
            spans.append(range(start, number))
            start, graphs, load = number, 0, 0.0
    return spans


class Merger:
    """What of a prediction becomes which piece of the file."""

    def __init__(self, worker: Worker) -> None:
        """All units are there."""
        self._worker, self.spans = worker, spans_of(worker.chunks)

    def prepare(self) -> None:
        """Make pieces of chunks that units were kept of one by one, together with the other ranks, until all are there."""
        worker = self._worker
        undone: list[int] = worker.group.publish("spans", self._undone)
        queue = worker.group.queue(PIECES, [1.0] * len(undone))
        while (position := queue.take()) is not None:
            self._keep(undone[position])
        worker.parts.records.end()

        def missing() -> list[Late]:
            if worker.sink.path.exists():
                return []  # the others did without this rank
            absent = set(self._undone())
            return [
                Late(number=number, claim=f"{PIECES}-{position}", seconds=SECONDS)
                for position, number in enumerate(undone)
                if number in absent
            ]

        finish_together(worker.group, "piece", missing, self._keep, worker.check)

    def write(self) -> dict[str, int]:
        """Write the file; gives counts of graphs. A piece that is not there, or torn, is made."""
        total = dict.fromkeys(COUNTS, 0)
        worker = self._worker
        worker.parts.records.look(all_files=True)
        with worker.sink:
            for span in self.spans:
                pieces = list[Piece]()
                for chunk in span:
                    counts, piece = worker.parts.piece(chunk) or self._made(chunk)
                    pieces.append(piece)
                    total = {name: total[name] + counts[name] for name in COUNTS}
                whole = joined(pieces)
                worker.check()
                worker.sink.write(whole)
        return total

    def _made(self, chunk: int) -> tuple[dict[str, int], Piece]:
        self._worker.check()
        return self._worker.combine(chunk)

    def _undone(self) -> list[int]:
        """The spans with a chunk that no piece was kept of."""
        records, count = self._worker.parts.records, len(self._worker.chunks)
        records.look()
        starts = np.array([span.start for span in self.spans], dtype=np.int64)
        absent = np.flatnonzero(~records.combined(count))
        return np.unique(np.searchsorted(starts, absent, side="right") - 1).tolist()

    def _keep(self, number: int) -> None:
        """Make the pieces of a span that are not there."""
        parts = self._worker.parts
        parts.records.look()
        for chunk in self.spans[number]:
            if parts.piece(chunk) is None:
                parts.keep_piece(chunk, *self._made(chunk), [])
