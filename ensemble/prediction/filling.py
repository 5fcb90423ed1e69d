"""How all ranks write one HDF5 file: one lays it out by what the indices say of the pieces, each fills segments, and one gives the file its name.

A segment is a chunk of rows of what graphs have, and the chunks of what nodes and edges have that begin with its batches. It takes
nothing but pieces and the outline, so that any rank fills it with the same bytes, also one that was thought dead.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.base.files import rename_all
from hydragnn.ensemble.prediction.entries import ENTRY, unique_name
from hydragnn.ensemble.prediction.hdf5 import (
    PLACES,
    SIZES,
    TEXTS,
    ArrayKind,
    Hdf5Sink,
    chunk_rows,
    collection_bytes,
    column_of,
    heap_collection,
    lay_out,
    number_chunks,
    text_chunk,
)
from hydragnn.ensemble.prediction.queues import SEGMENTS
from hydragnn.ensemble.prediction.records import OUTLINE, WHOLE
from hydragnn.ensemble.prediction.schedule import Late, finish_together, once
from hydragnn.ensemble.prediction.sinks import Piece
from hydragnn.ensemble.prediction.work import SECONDS, Merger, Worker

SIGNATURE = b"GCOL"
"""What a segment's last bytes begin with."""

Rows = tuple[int, int]
"""The first row and the one behind the last."""


class Pieces:
    """Where the pieces of all batches are, and what rows of the file they make; the same on all ranks."""

    def __init__(self, entries: NDArray[Any], works: NDArray[Any]) -> None:
        """An entry per batch, in order, and the names of the files that they are in."""
        self.entries, self.works = entries, works

    @cached_property
    def stops(self) -> list[Int[np.ndarray, " batches"]]:
        """By place, one past the last row of every batch."""
        return [self.entries["sizes"][:, SIZES.index(f"{place}s")].cumsum() for place in PLACES]

    @cached_property
    def totals(self) -> list[int]:
        """Rows by place."""
        return [int(stops[-1]) if len(stops) else 0 for stops in self.stops]

    @cached_property
    def rows(self) -> list[int]:
        """Rows of a chunk by place."""
        return chunk_rows(self.totals)

    @cached_property
    def bounds(self) -> list[Int[np.ndarray, " segments_and_one"]]:
        """By place, the first chunk of every segment, and one past the last."""
        segments = -(-self.totals[0] // self.rows[0])
        begins = np.concatenate([[0], self.stops[0][:-1]])
        first = np.searchsorted(begins, np.arange(segments) * self.rows[0])  # batch that begins in the segment
        bounds = [np.arange(segments + 1)]
        for stops, rows, total in zip(self.stops[1:], self.rows[1:], self.totals[1:]):
            start = np.concatenate([[0], stops])[first]
            bounds.append(np.append(-(-start // rows), -(-total // rows)))
        return bounds

    @cached_property
    def heaps(self) -> Int[np.ndarray, "segments texts"]:
        """Bytes of the collection of every segment and array of texts."""
        segments, graphs = len(self.bounds[0]) - 1, self.rows[0]
        starts = np.arange(segments) * graphs
        rows = np.minimum(starts + graphs, self.totals[0]) - starts
        first, last = self._batches(0, starts), self._batches(0, starts + rows - 1)
        heaps = np.zeros((segments, len(TEXTS)), dtype=np.int64)
        for number, name in enumerate(TEXTS):
            sizes, longest = (self.entries["sizes"][:, SIZES.index(f"{name}{of}")] for of in ("", "_longest"))
            reached, most = np.concatenate([[0], sizes.cumsum()]), int(longest.max(initial=0))
            texts = np.minimum(reached[last + 1] - reached[first], rows * most)
            heaps[:, number] = collection_bytes(texts)
        return heaps

    def span(self, segment: int, on: int) -> Rows:
        """The rows of a segment at a place."""
        first, last = self.bounds[on][segment : segment + 2].tolist()
        return first * self.rows[on], min(last * self.rows[on], self.totals[on])

    def batches(self, segment: int) -> range:
        """The batches that a segment has rows of."""
        spans = [(on, *self.span(segment, on)) for on in range(len(PLACES))]
        ends = [self._batches(on, np.array([start, stop - 1])) for on, start, stop in spans if stop > start]
        return range(min(int(first) for first, _ in ends), max(int(last) for _, last in ends) + 1)

    def before(self, batch: int, on: int) -> int:
        """Rows at a place before a batch."""
        return int(self.stops[on][batch - 1]) if batch else 0

    def _batches(self, on: int, rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
        """The batches that hold these rows."""
        return np.searchsorted(self.stops[on], rows, side="right")


class Filler:
    """What a rank needs to fill segments of the file."""

    def __init__(self, worker: Worker, merger: Merger, sink: Hdf5Sink) -> None:
        """All pieces are there."""
        self._worker, self._merger, self._sink = worker, merger, sink
        self._folder = worker.parts.folder

    def fill(self) -> None:
        """Lay the file out, or wait until another rank has, and fill it together with the others."""
        worker, group, made = self._worker, self._worker.group, list[Any]()
        once(
            group,
            "outline",
            self._sink.path.exists,
            lambda: made.append(group.publish("outline", self._laid_out)),
            worker.check,
        )
        self._read_outline(made[0] if made else group.publish("outline", self._laid_out))
        segments = len(self._pieces.bounds[0]) - 1
        queue = group.queue(SEGMENTS, [1.0] * segments)
        while (segment := queue.take()) is not None:
            self._fill(segment)
        self._flush()  # before anybody hears that all is there: what is only in this node's memory would be lost with it

        def missing() -> list[Late]:
            if self._sink.path.exists():
                return []  # the others did without this rank
            unfilled = [segment for segment in range(segments) if not self._is_filled(segment)]
            return [Late(number=one, claim=f"{SEGMENTS}-{one}", seconds=SECONDS) for one in unfilled]

        finish_together(group, "segment", missing, self._fill, worker.check)
        self._flush()  # what it did for others
        os.close(self._file)

    def _flush(self) -> None:
        """Have on disk what is written of the file, by all processes of this machine."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._sink.refusal(error) from error

    def finish(self) -> dict[str, int]:
        """Give the file its name; gives counts of graphs."""
        sizes = self._pieces.entries["sizes"].sum(axis=0).tolist()
        try:
            rename_all({self._whole: self._sink.path})
        except OSError as error:
            raise self._sink.refusal(error) from error
        counted = dict(zip(SIZES, sizes))
        return {"graphs": counted["graphs"], "failed": counted["failed"], "outside_training_domain": counted["outside"]}

    def _laid_out(self) -> dict[str, Any]:
        """Lay the file out; gives the name of the outline and what is in it."""
        pieces = Pieces(*self._merger.pieces_found())
        name = f"{unique_name()}-{time.time_ns():x}"
        whole = self._folder / f"{name}{WHOLE}"
        try:
            first = self._piece(pieces, 0) if len(pieces.entries) else {}
            kinds = self._sink.kinds(first)
            places, texts = lay_out(
                whole, self._sink.heading, kinds, pieces.totals, pieces.bounds, pieces.rows, int(pieces.heaps.sum())
            )
            sections = {"entries": pieces.entries, "works": pieces.works, **places}
            described, content, start = dict[str, Any](), list[bytes](), 0
            for key, values in sections.items():
                described[key] = [start, len(values), values.dtype.str if values.dtype.names is None else ""]
                content.append(values.tobytes())
                start += len(content[-1])
            (self._folder / f"{name}{OUTLINE}").write_bytes(b"".join(content))
        except OSError as error:
            with suppress(OSError):
                whole.unlink(missing_ok=True)
            raise self._sink.refusal(error) from error
        listed = [[kind.name, kind.dtype, list(kind.row), kind.on] for kind in kinds]
        return {"name": name, "kinds": listed, "sections": described, "texts": texts}

    def _read_outline(self, outline: dict[str, Any]) -> None:
        """What another rank laid out, of which only what is needed is read."""
        name, sections = outline["name"], outline["sections"]
        path = self._folder / f"{name}{OUTLINE}"

        def section(key: str) -> NDArray[Any]:
            start, count, dtype = sections[key]
            if not count:
                return np.zeros(0, dtype=dtype or ENTRY)
            mapped = np.memmap(path, mode="r", dtype=dtype or ENTRY, offset=start, shape=(count,))
            return mapped.view(np.ndarray)

        self._kinds = [
            ArrayKind(name=key, dtype=dtype, row=tuple(row), on=on) for key, dtype, row, on in outline["kinds"]
        ]
        self._pieces = Pieces(section("entries"), section("works"))
        self._places = {kind.name: section(kind.name) for kind in self._kinds}
        heaps = self._pieces.heaps
        self._heaps = outline["texts"] + heaps.ravel().cumsum().reshape(heaps.shape) - heaps
        self._whole = self._folder / f"{name}{WHOLE}"
        self._file = os.open(self._whole, os.O_RDWR | os.O_CLOEXEC)

    def _is_filled(self, segment: int) -> bool:
        """Return True where the bytes are there that are written last."""
        return os.pread(self._file, len(SIGNATURE), int(self._heaps[segment, 0])) == SIGNATURE

    def _fill(self, segment: int) -> None:
        """Write a segment."""
        self._worker.check()
        batches = self._pieces.batches(segment)
        pieces = [self._piece(self._pieces, batch) for batch in batches]
        contents = [
            (place, content)
            for kind in self._kinds
            for place, content in self._contents(segment, kind, batches, pieces)
        ]
        try:
            for place, content in sorted_runs(contents, last=int(self._heaps[segment, 0])):
                write_at(self._file, content, place)
        except OSError as error:
            raise self._sink.refusal(error) from error

    def _contents(
        self, segment: int, kind: ArrayKind, batches: range, pieces: Sequence[Piece]
    ) -> list[tuple[int, bytes]]:
        """What of an array is in a segment, and where it is to lie."""
        start, stop = self._pieces.span(segment, kind.on)
        if stop <= start or not kind.row_bytes:
            return []
        rows, before = self._pieces.rows[kind.on], self._pieces.before(batches[0], kind.on)
        column = column_of(pieces, kind, start - before, stop - before)
        places = self._places[kind.name][start // rows : -(-stop // rows)]
        if isinstance(column, list):
            number = TEXTS.index(kind.name)
            size, address = int(self._pieces.heaps[segment, number]), int(self._heaps[segment, number])
            collection, references = heap_collection(column, size, address)
            return [(int(places[0]), text_chunk(references, rows)), (address, collection)]
        content, size = number_chunks(kind, column, rows), kind.chunk_bytes(rows)
        return [(int(place), content[one * size : (one + 1) * size]) for one, place in enumerate(places)]

    def _piece(self, pieces: Pieces, batch: int) -> Piece:
        """The piece of a batch, made anew where it is torn; InputError where it then is another one."""
        entry = pieces.entries[batch]
        found = self._worker.parts.piece_at(pieces.works[int(entry["work"])].decode(), entry)
        if found is None:
            if self._sink.path.exists():
                raise FileNotFoundError(f"{self._folder}: the others did without this rank")
            _, found = self._merger.made(batch)
            if self._sink.sizes(found) != tuple(entry["sizes"].tolist()):
                raise InputError(
                    f"{self._folder} is damaged: batch {batch} was kept with other sizes; delete the folder and predict again"
                )
        return found


def sorted_runs(contents: Sequence[tuple[int, bytes]], last: int) -> list[tuple[int, bytes]]:
    """What is to lie end to end as one; what begins at ``last`` comes last, alone.

    >>> sorted_runs([(6, b"c"), (0, b"aa"), (2, b"b"), (3, b"d")], last=2)
    [(0, b'aa'), (3, b'd'), (6, b'c'), (2, b'b')]
    """
    runs = list[tuple[int, list[bytes]]]()
    end = -1
    for place, content in sorted((one for one in contents if one[0] != last), key=lambda one: one[0]):
        if place != end:
            runs.append((place, []))
        runs[-1][1].append(content)
        end = place + len(content)
    return [*((place, b"".join(parts)) for place, parts in runs), *(one for one in contents if one[0] == last)]


def write_at(file: int, content: bytes, place: int) -> None:
    """Write all bytes at a place of a file; OSError where that is impossible."""
    rest = memoryview(content)
    while len(rest):
        written = os.pwrite(file, rest, place)
        rest, place = rest[written:], place + written
