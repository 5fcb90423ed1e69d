"""Positions of parameters in the vectors of a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import prod

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Settings
from hydragnn.runs.tensor_files import Count, TensorFiles
from hydragnn.training.parameters import Span
from hydragnn.training.pieces import Piece


class SavedPart(Settings):
    """Consecutive numbers of a parameter, of rows that one rank had."""

    at: Count
    """Position in the vectors."""
    first: Count
    last: Count
    """Half-open range of the flat rows."""
    dim: Count = 0
    rows: tuple[tuple[Count, Count], ...]

    def piece(self, shape: tuple[int, ...]) -> Piece:
        """Return the rows as a piece of a parameter."""
        return Piece(shape=shape, dim=self.dim, rows=self.rows)


SavedLayout = dict[str, tuple[SavedPart, ...]]
"""Parts of every parameter, by name."""


def layout_of_spans(spans: Sequence[Span]) -> SavedLayout:
    """Return where the parts lie in the vectors of one rank."""
    return {
        span.name: (SavedPart(at=span.at, first=span.first, last=span.last, dim=span.piece.dim, rows=span.piece.rows),)
        for span in spans
    }


def merged(layouts: Sequence[SavedLayout], lengths: Sequence[int]) -> SavedLayout:
    """Return the layout of several ranks' vectors, end to end."""
    whole: dict[str, list[SavedPart]] = {}
    for layout, start in zip(layouts, accumulate(lengths, initial=0)):
        for name, parts in layout.items():
            moved = [part.model_copy(update={"at": start + part.at}) for part in parts]
            whole.setdefault(name, []).extend(moved)
    return {name: tuple(parts) for name, parts in whole.items()}


def read_vector(files: TensorFiles, name: str, layout: SavedLayout, spans: Sequence[Span], like: Tensor) -> Tensor:
    """Return the vector of a rank's spans; nothing else is read.

    At most one parameter is in memory beside it.
    """
    vector = torch.zeros(like.shape, dtype=like.dtype)
    for span in spans:
        out = vector[span.at : span.at + span.last - span.first]
        parts = layout[span.name]
        rows = span.piece.dim, span.piece.rows
        own = [part for part in parts if (part.dim, part.rows) == rows]
        if not _read(files, name, own, span.first, out):
            out.copy_(span.piece.of(_whole(files, name, span, parts, out.dtype)).flatten()[span.first : span.last])
    return vector


def _read(files: TensorFiles, name: str, parts: Sequence[SavedPart], first: int, out: Tensor) -> bool:
    """Read flat rows from ``first`` on; return False where parts lack some."""
    position, last = first, first + len(out)
    for part in sorted(parts, key=lambda part: part.first):
        if part.first <= position < part.last:
            end = min(last, part.last)
            start = part.at + position - part.first
            files.read_range(name, start, start + end - position, out[position - first : end - first])
            position = end
    return position == last


def _whole(files: TensorFiles, name: str, span: Span, parts: Sequence[SavedPart], dtype: torch.dtype) -> Tensor:
    """Return a whole parameter from the rows of several ranks."""
    whole = torch.empty(span.piece.shape, dtype=dtype)
    missing = torch.ones(span.piece.shape, dtype=torch.bool)
    for piece, own in _by_rows(parts, span.piece.shape):
        local = torch.empty(prod(piece.local_shape), dtype=dtype)
        if _read(files, name, own, 0, local):
            piece.put(local, whole)
            piece.put(torch.zeros_like(local, dtype=torch.bool), missing)
    if missing.any():
        raise InputError(f"{files.folder}: {name} does not have all of {span.name}; use another copy")
    return whole


def _by_rows(parts: Sequence[SavedPart], shape: tuple[int, ...]) -> Iterator[tuple[Piece, list[SavedPart]]]:
    """Yield parts by their rows, without damaged ones."""

    def rows(part: SavedPart) -> tuple[int, tuple[tuple[int, int], ...]]:
        return part.dim, part.rows

    for (dim, ranges), own in groupby(sorted(parts, key=rows), rows):
        if dim < len(shape) and all(first < last <= shape[dim] for first, last in ranges):
            yield Piece(shape=shape, dim=dim, rows=ranges), list(own)


def layout_of_vectors(old: Sequence[tuple[str, Sequence[int], int]]) -> tuple[dict[str, list[int]], SavedLayout]:
    """Return shapes and layout of version 2, whose vectors hold whole parameters."""
    shapes = {name: list(shape) for name, shape, _ in old}
    layout: Mapping[str, tuple[SavedPart, ...]] = {
        name: (SavedPart(at=start, first=0, last=prod(shape), rows=((0, shape[0] if shape else 1),)),)
        for name, shape, start in old
    }
    return shapes, dict(layout)
