"""HDF5 files of predictions, which many processes write at once: one lays a file out, all write whole chunks of rows at their places.

HDF5 itself lays out, in a file that keeps its places free. What is written there are bytes of its format: chunks of numbers, each
with the checksum that HDF5 compares as it reads (Fletcher-32), and texts in global heap collections (HDF5 File Format Specification
Version 3.0, III.E; what an array holds of a text is a length, the address of its collection and its number there, IV.A.2.d).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from hydragnn.datasets.formats.hdf5 import VERSIONS, NotedFile
from hydragnn.datasets.formats.reservation import SLACK_BYTES, engine_errors
from hydragnn.ensemble.prediction.arrays import ArraySink
from hydragnn.ensemble.prediction.sinks import Column, Heading, Piece

ROWS = 4096
"""Rows of a chunk, of graphs at the most."""

ITEMS = 1 << 17
"""Nodes or edges whose graphs are a chunk of rows, or so."""

TEXTS = ("status", "domain", "name")
"""The arrays of texts."""

PLACES = ("graph", "node", "edge")
"""What the rows of an array are about."""

SIZES = ("graphs", "nodes", "edges", "failed", "outside", *(f"{text}{of}" for text in TEXTS for of in ("", "_longest")))
"""What has to be known of a piece: rows, counts, and of texts the bytes that all and the longest take in a heap."""

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")])
"""What an array holds of a text; zeros of an empty one."""

COLLECTION, OBJECT, LEAST = 16, 16, 4096
"""Bytes of the heads of a collection and of an object in it, and the least that a collection has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayKind:
    """An array of the file."""

    name: str
    dtype: str
    """Of numpy; empty for texts."""
    row: tuple[int, ...]
    """Shape of a row."""
    on: int
    """What rows are about, as a number in ``PLACES``."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file."""
        itemsize = np.dtype(self.dtype).itemsize if self.dtype else REFERENCE.itemsize
        return itemsize * int(np.prod(self.row, dtype=np.int64))

    def chunk_bytes(self, rows: int) -> int:
        """Bytes of a chunk, its checksum included, which references to texts do not have."""
        return self.row_bytes * rows + (4 if self.dtype else 0)


class Hdf5Sink(ArraySink):
    """HDF5."""

    def sizes(self, piece: Piece) -> tuple[int, ...]:
        """The ``SIZES`` of a piece."""
        rows = [0, 0, 0]
        for kind in self.kinds(piece):
            rows[kind.on] = len(piece[kind.name])
        failed = sum(status != "ok" for status in piece["status"])
        outside = sum(map(bool, piece.get("domain", [])))
        return (*rows, failed, outside, *(size for name in TEXTS for size in heap_sizes(list(piece.get(name, [])))))

    def kinds(self, piece: Piece) -> list[ArrayKind]:
        """The arrays of the file, by one of its pieces."""
        places = {f"fields/{target.name}": target.field.on for target in self.heading.targets}
        places |= {"senders": "edge", "receivers": "edge"}
        return [
            ArrayKind(
                name=name,
                dtype="" if isinstance(values, list) else values.dtype.str,
                row=() if isinstance(values, list) else values.shape[1:],
                on=PLACES.index(places.get(name.rpartition("/")[0] or name, "graph")),
            )
            for name, values in piece.items()
        ]


def chunk_rows(totals: Sequence[int]) -> list[int]:
    """Rows of a chunk by place, where there are so many rows: of graphs so few that their nodes and edges fit into memory.

    >>> chunk_rows([10_000, 160_000, 0]), chunk_rows([100, 1_000_000, 0]), chunk_rows([7, 7, 9])
    ([4096, 4096, 1], [16, 4096, 1], [7, 7, 9])
    """
    graphs, *items = totals
    few = max(16, ITEMS * graphs // max(1, *items))
    return [max(1, min(ROWS, few, graphs)), *(max(1, min(ROWS, count)) for count in items)]


class Outline(NotedFile):
    """The file in which HDF5 lays out: what it writes into a place that is to stay free is noted and not written."""

    def __init__(self, path: Path) -> None:
        """A new file."""
        super().__init__(path, "x+")
        self._filler, self._noted = b"", -1

    def place_of(self, array: Any, row: tuple[int, ...], filler: bytes) -> int:
        """The place of the chunk that begins at ``row``, which takes as many bytes as ``filler``."""
        self._filler, self._noted = filler, -1
        array.write_direct_chunk(row, filler)
        self._filler = b""
        assert self._noted >= 0
        return self._noted

    def write(self, data: Any) -> int:
        """Write, unless it is the filler."""
        size = len(data)
        if self._filler and size == len(self._filler) and bytes(data[:16]) == self._filler[:16]:
            self._noted = self.tell()
            self.seek(size, os.SEEK_CUR)
            return size
        return super().write(data)


def lay_out(
    path: Path,
    heading: Heading,
    kinds: Sequence[ArrayKind],
    totals: Sequence[int],
    bounds: Sequence[Int[np.ndarray, " segments_and_one"]],
    rows: Sequence[int],
    heap: int,
) -> tuple[dict[str, Int[np.ndarray, " chunks"]], int]:
    """A new file of arrays with so many rows in ``totals``, per place, in chunks of so many ``rows``; gives where the chunks of every array lie, and where ``heap`` bytes for texts.

    What belongs to a segment lies together: at every place the chunks between two of its ``bounds``. OSError where there is no space.
    """
    import h5py

    chunks = {kind.name: int(bounds[kind.on][-1]) for kind in kinds}
    need = heap + sum(chunks[kind.name] * (kind.chunk_bytes(rows[kind.on]) + 64) for kind in kinds) + SLACK_BYTES
    places = {name: np.zeros(count, dtype=np.int64) for name, count in chunks.items()}
    with Outline(path) as outline, engine_errors("HDF5"):
        with h5py.File(outline, "w", libver=VERSIONS) as file:
            os.posix_fallocate(outline.fileno(), 0, need)  # HDF5 gives back what it has not used
            file.attrs["heading"] = json.dumps(heading.to_json())
            texts = _space(file, heap)
            arrays = {kind.name: _array(file, kind, totals[kind.on], rows[kind.on]) for kind in kinds}
            for target in heading.targets:
                file[f"fields/{target.name}"].attrs["unit"] = target.field.unit
            fillers = {kind.name: b"\xa5" * kind.chunk_bytes(rows[kind.on]) for kind in kinds}
            for segment in range(len(bounds[0]) - 1):
                for kind in kinds:
                    for chunk in range(*bounds[kind.on][segment : segment + 2].tolist()):
                        corner = (chunk * rows[kind.on], *(0 for _ in kind.row))
                        places[kind.name][chunk] = outline.place_of(arrays[kind.name], corner, fillers[kind.name])
            del file[HEAP]  # its name; nothing else comes to lie there, since nothing is added any more
        outline.check()
    return places, texts


HEAP = "heap of texts"
"""The name of the space for texts while a file is laid out."""


def _space(file: Any, size: int) -> int:
    """Where so many bytes lie that the file keeps free."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((max(1, size),))
    return int(h5py.h5d.create(file.id, HEAP.encode(), h5py.h5t.STD_U8LE, space, properties).get_offset())


def _array(file: Any, kind: ArrayKind, total: int, rows: int) -> Any:
    """A new array whose chunks have no places yet; whoever reads numbers with a changed bit is told by HDF5."""
    import h5py

    options = {"chunks": (rows, *kind.row), "fletcher32": bool(kind.dtype)} if total and kind.row_bytes else {}
    dtype = np.dtype(kind.dtype) if kind.dtype else h5py.string_dtype()
    return file.create_dataset(kind.name, shape=(total, *kind.row), dtype=dtype, **options).id


def number_chunks(kind: ArrayKind, values: NDArray[Any], rows: int) -> bytes:
    """Rows from the beginning of a chunk on as whole chunks, each with its checksum; what is missing at the end is zero."""
    count = -(-len(values) // rows)
    padded = np.zeros((count * rows, *kind.row), dtype=kind.dtype)
    padded[: len(values)] = values
    letters = padded.reshape(-1).view(np.uint8).reshape(count, -1)
    return np.concatenate(
        [letters, checksums(letters).astype("<u4").view(np.uint8).reshape(count, 4)], axis=1
    ).tobytes()


def checksums(chunks: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The Fletcher-32 checksum of every row of bytes, as HDF5 has it: of big-endian words, sums folded and not reduced.

    >>> [hex(one) for one in checksums(np.frombuffer(b"abcdefgh", dtype=np.uint8).reshape(2, 4)).tolist()]
    ['0x2629c4c6', '0x3235ccce']
    """
    even = np.pad(chunks, ((0, 0), (0, chunks.shape[1] % 2)))
    words = even.view(">u2").astype(np.float64)  # sums stay below 2**53 and so are exact
    ramp = np.stack([np.ones(words.shape[1]), np.arange(words.shape[1], 0, -1)], axis=1)
    sums = (words @ ramp).astype(np.uint64)
    folded = np.where(sums == 0, 0, (sums - np.uint64(1)) % np.uint64(0xFFFF) + np.uint64(1))
    return (folded[:, 1] << np.uint64(16) | folded[:, 0]).astype(np.uint32)


def heap_sizes(texts: Sequence[str]) -> tuple[int, int]:
    """Bytes that the texts take in a heap, and those of the longest."""
    sizes = [_object_bytes(len(text.encode())) for text in texts]
    return sum(sizes), max(sizes, default=0)


def _object_bytes(length: int) -> int:
    """Bytes of a text of so many letters in a heap, where empty ones have no place."""
    return OBJECT + -(-length // 8) * 8 if length else 0


def collection_bytes(texts: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Bytes of collections for texts that take so many; texts are numbered in 16 bits, so that those of a chunk fit."""
    return np.maximum(LEAST, COLLECTION + texts)


def heap_collection(texts: Sequence[str], size: int, address: int) -> tuple[bytes, NDArray[Any]]:
    """A collection of ``size`` bytes with these texts, which are numbered from 1, and what refers to them; it is to lie at ``address``."""
    encoded = [text.encode() for text in texts]
    parts = [b"GCOL\1\0\0\0", size.to_bytes(8, "little")]
    for number, text in enumerate(encoded, start=1):
        if text:
            head = number.to_bytes(2, "little") + b"\1\0\0\0\0\0" + len(text).to_bytes(8, "little")
            parts += [head, text, bytes(-len(text) % 8)]
    free = size - sum(map(len, parts))
    assert free >= 0 and len(texts) < 1 << 16
    if free >= OBJECT:
        parts.append(bytes(8) + free.to_bytes(8, "little"))
    references = np.zeros(len(texts), dtype=REFERENCE)
    references["length"] = list(map(len, encoded))
    references["address"], references["number"] = address, np.arange(1, len(texts) + 1)
    references[references["length"] == 0] = 0
    content = b"".join(parts)
    return content + bytes(size - len(content)), references


def text_chunk(references: NDArray[Any], rows: int) -> bytes:
    """A chunk of what refers to texts."""
    return references.tobytes() + bytes((rows - len(references)) * REFERENCE.itemsize)


def column_of(pieces: Sequence[Mapping[str, Column]], kind: ArrayKind, start: int, stop: int) -> Column:
    """Rows of an array, counted from the first of the pieces."""
    columns: list[Any] = [piece[kind.name] for piece in pieces]
    if not kind.dtype:
        return [text for column in columns for text in column][start:stop]
    return np.concatenate(columns)[start:stop]
