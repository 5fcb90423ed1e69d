"""Work of one rank: predictions, segments, and the output."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hydragnn.base.machine import visible_gpus
from hydragnn.base.peaks import Peaks, peaks_of
from hydragnn.distributed import this_launch
from hydragnn.distributed.group import Group
from hydragnn.ensemble.ensemble import UNKNOWN, Ensemble
from hydragnn.ensemble.members.member import MemberOutcome
from hydragnn.ensemble.members.plan import Chunk, Chunks
from hydragnn.ensemble.members.screening import outcome_of, read_screened
from hydragnn.ensemble.prediction.formats.sink import Block, Piece, Sink, joined, size_of
from hydragnn.ensemble.prediction.parts import COUNTS, Parts
from hydragnn.ensemble.prediction.schedule import PredictionTask
from hydragnn.ensemble.prediction.sources import Source
from hydragnn.graphs.texts import Texts, one_line
from hydragnn.kernels.counting import Counter as Operations
from hydragnn.runs.energy import Meter
from hydragnn.runs.session import UNHURRIED

KEEP_SECONDS = 5.0
"""Seconds of work after which it is kept, although its task is not finished."""

KEEP_BYTES = 1 << 24
"""Bytes of a segment after which it is kept."""

LOOK_SECONDS = 1.0
"""Seconds between two looks for new segments of the rank that joins them."""

REASONS = 8
"""Commonest reasons of failures and doubts that a segment counts."""

LONGEST = 200
"""Characters of a reason that is counted."""

_OWN = re.compile(
    r" \([^()]*\d[^()]*\)|, [\d.e+-]+ of .*|^.*?(?:structure|frame|molecule|graph) \d+: "
    r"|(?<=node|atom|edge) \d+|(?<=nodes|atoms|edges|graph) \d+( and \d+)*"
)
"""Numbers of one graph in a reason."""


class PredictionWorker:
    """A rank that predicts batches, and the account of its work."""

    def __init__(
        self,
        group: Group,
        ensemble: Ensemble,
        graphs: Source,
        chunks: Chunks,
        parts: Parts,
        sink: Sink,
        check: Callable[[], None],
    ) -> None:
        """Begin an empty account.

        ``check`` is called before every unit and raises where the prediction is to end.
        """
        self.group, self.ensemble, self.graphs, self.chunks, self.parts = group, ensemble, graphs, chunks, parts
        self.sink, self.check, self.needed = sink, check, ensemble.needed(graphs.store)
        self.done, self.largest, self.busy, self.load = 0, 0.0, 0.0, 0.0
        self.rates = tuple[float, ...]()  # operations and bytes per load, of the second batch: the first makes tables
        self.seconds = dict.fromkeys(("read", "keep", "join"), 0.0)
        sharing = -(-group.size // max(1, visible_gpus())) if this_launch().by == "alone" else 1
        self.meter = Meter(torch.device("cuda" if torch.cuda.is_available() else "cpu"), sharing)
        self.start()

    def start(self) -> None:
        """Start the clock of the account."""
        self.began = self.ended = time.time()

    @contextmanager
    def timed(self, work: str) -> Iterator[None]:
        """Add the time of the block to its kind of work."""
        began = time.perf_counter()
        yield
        self.seconds[work] += time.perf_counter() - began

    def do(self, task: PredictionTask) -> None:
        """Predict the batches of a task and keep what is finished."""
        began = time.perf_counter()
        pieces = list[tuple[int, dict[str, int], Piece]]()
        self._kept_at = time.monotonic()
        try:
            for chunk in range(task.first, task.stop):
                if self.parts.has(chunk):
                    continue
                pieces.append((chunk, *self._predicted(self.chunks[chunk])))
                large = sum(size_of(piece) for *_, piece in pieces) > KEEP_BYTES
                if large or time.monotonic() - self._kept_at > KEEP_SECONDS:
                    self._keep(pieces)
        finally:
            self._keep(pieces)
            self.busy += time.perf_counter() - began
            self.ended = time.time()

    def _keep(self, pieces: list[tuple[int, dict[str, int], Piece]]) -> None:
        """Write what is finished."""
        while pieces:
            count = next((n for n in range(1, len(pieces)) if pieces[n][0] != pieces[0][0] + n), len(pieces))
            some, pieces[:] = pieces[:count], pieces[count:]
            counted = sum((Counter(counts) for _, counts, _ in some), Counter[str]())
            counts = {name: counted.pop(name) for name in COUNTS if name in counted}
            counts |= dict(counted.most_common(REASONS))
            first = some[0][0]
            self.meter.sample()
            with self.timed("keep"):
                self.parts.keep_segment(first, first + count, counts, joined([piece for *_, piece in some]))
        self._kept_at = time.monotonic()

    def _predicted(self, chunk: Chunk) -> tuple[dict[str, int], Piece]:
        """Return counts of a batch's graphs and their output."""
        began, read, outcomes = time.perf_counter(), None, list[MemberOutcome]()
        self.check()
        if len(chunk.graphs):
            store, needed, optional = self.graphs.store, self.needed, self.ensemble.optional
            with self.timed("read"):
                read = read_screened(store, chunk.graphs, needed, needed, chunk.numbers, optional)
        if read is not None and not chunk.reason:
            with nullcontext() if self.done > 1 else self._counted(chunk.load):
                for member in self.ensemble.members:
                    self.check()
                    outcomes.append(outcome_of(member, read))
            self.done += 1
            self.load += chunk.load
            predictions = self.ensemble.combine(read, outcomes)
        else:
            nodes, edges = (0, 0) if read is None else (read.whole.num_nodes, read.whole.num_edges)
            unbuilt = self.graphs.failures.get(int(chunk.numbers[0]))
            texts = {key: Texts([text]) for key, text in unbuilt.texts.items()} if unbuilt else {}
            predictions = self.ensemble.nothing(nodes, edges, chunk.reason)
            predictions = replace(predictions, texts=texts if read is None else read.whole.texts)
        counts = len(predictions), int(np.count_nonzero(~predictions.ok)), sum(map(bool, predictions.domain))
        said = [text for text in predictions.status if text != "ok"]
        said += [one for text in predictions.domain if text for one in text.split("; ") if one != UNKNOWN]
        reasons = Counter(one_line(_OWN.sub("", text))[:LONGEST] or "no reason" for text in said)
        piece = self.sink.piece(Block(numbers=chunk.numbers, predictions=predictions, graphs=read))
        if outcomes:
            self.largest = max(self.largest, time.perf_counter() - began)
        return {**dict(zip(COUNTS, counts)), **reasons}, piece

    @contextmanager
    def _counted(self, load: float) -> Iterator[None]:
        """Count the members' work on a batch, which stands for others by their loads."""
        with Operations() as counter:
            yield
        self.rates = tuple(0.0 if math.isnan(one) else one / load for one in counter.totals)

    def _peaks(self) -> Peaks:
        """Return the peaks of the device; unknown after a short time on a CPU."""
        models = [one.model for one in self.ensemble.members]
        device, doubles = models[0].device, any(one.dtype == torch.float64 for one in models)
        hurried = device.type != "cuda" and self.busy < UNHURRIED
        return Peaks() if hurried else peaks_of(device, "fp64" if doubles else "fp32")

    def account(self) -> dict[str, Any]:
        """Return what this rank did and when."""
        (joules, _), (read, keep, join) = self.meter.values(), self.seconds.values()
        return {
            "rank": self.group.rank,
            "began": self.began,
            "ended": self.ended,
            "busy": self.busy,
            "largest": self.largest,
            "phases": {"read": read, "compute": self.busy - read - keep, "write": keep + join},
            "work": [one * self.load for one in self.rates or (0.0, 0.0)],
            "peaks": self._peaks()[:2],
            "joules": joules,
            "energy_source": self.meter.counter.source if self.meter.counter else None,
        }

    def seconds_of(self, loads: float) -> float:
        """Return the expected seconds of a load, by this rank's own work."""
        return self.busy / self.load * loads if self.load else float("inf")


class Joiner:
    """Joins finished segments into the output."""

    def __init__(self, worker: PredictionWorker) -> None:
        """Begin at the first batch; nothing is written before ``advance``."""
        self._worker, self._next, self._looked_at = worker, 0, 0.0
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.names: list[str] = []
        self._is_open = False

    def advance(self) -> None:
        """Append the finished segments that follow; InputError without space."""
        worker = self._worker
        while self._next < len(worker.chunks):
            segment = worker.parts.segment_at(self._next)
            if segment is None and worker.group.size > 1 and time.monotonic() - self._looked_at >= LOOK_SECONDS:
                worker.parts.look()
                self._looked_at = time.monotonic()
                segment = worker.parts.segment_at(self._next)
            if segment is None:
                return
            self._append(*segment)

    def finish(self) -> dict[str, int]:
        """Complete the output, and make what is missing; return counts of graphs."""
        worker = self._worker
        worker.parts.look()
        while self._next < len(worker.chunks):
            worker.check()
            segment = worker.parts.segment_at(self._next)
            if segment is None:
                worker.do(PredictionTask(first=self._next, stop=self._next + 1))
            else:
                self._append(*segment)
        self._begin()
        worker.sink.complete()
        self._is_open = False
        return dict(self._counts)

    def close(self) -> None:
        """Discard an output that is not complete."""
        if self._is_open:
            self._worker.sink.discard()

    def _append(self, stop: int, name: str) -> None:
        """Append a segment; a damaged one is forgotten, and made again."""
        worker, segment = self._worker, self._worker.parts.segment(name)
        if segment is None:
            return
        counts, piece = segment
        self._begin()
        worker.check()
        with worker.timed("join"):
            worker.sink.append(piece, worker.parts.folder / name)
        self._counts.update(counts)
        self.names.append(name)
        self._next = stop

    def _begin(self) -> None:
        if not self._is_open:
            self._worker.sink.begin()
            self._is_open = True
