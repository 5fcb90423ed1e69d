"""Texts of graphs: names and other labels that no model reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, overload

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from hydragnn.base.errors import InputError

NAME = "name"  # key of the names: a material's id, or file and frame
FILE, FOLDER = "file", "folder"
"""Keys of the file that a graph is from, and of its folder: a split can keep their graphs together."""

NAME_KEYS = (NAME, "id", "material_id", "mp_id", "config_id", "structure_id", "mol_id", "identifier", "uid", "sid")
"""Entries of a structure that are taken for its name, the first one that is there."""

Rows = Int64[ndarray, " rows"]
Read = Callable[[Rows], list[str]]


class Texts:
    """Text per graph, read on first use; empty where absent.

    >>> texts = Texts(["mp-1", "", "mp-3"])
    >>> list(texts.select([2, 0])), texts[1:]
    (['mp-3', 'mp-1'], Texts(['', 'mp-3']))
    """

    __slots__ = ("_read", "_rows", "_values")

    def __init__(self, values: Sequence[str], read: Read | None = None, rows: Rows | None = None) -> None:
        """Take texts, or what reads them by number and the numbers."""
        self._values = None if read else list(values)
        self._read, self._rows = read, rows

    @classmethod
    def unread(cls, read: Read, count: int) -> "Texts":
        """Return ``count`` texts that ``read`` gives by number."""
        return cls((), read, np.arange(count))

    @property
    def values(self) -> list[str]:
        """The texts, read now where they were not."""
        if self._values is None:
            assert self._read is not None and self._rows is not None
            self._values = self._read(self._rows)
            self._read = self._rows = None
        return self._values

    def select(self, rows: slice | Sequence[int] | Rows) -> "Texts":
        """Return the texts with these numbers, which are not read for it."""
        if self._rows is not None:
            own = self._rows[rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)]
            return Texts((), self._read, own)
        values = self.values
        return Texts(values[rows] if isinstance(rows, slice) else [values[row] for row in rows])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Texts": ...
    def __getitem__(self, index: int | slice) -> "str | Texts":
        if isinstance(index, slice):
            return self.select(index)
        return self.select([index]).values[0]  # and reads no other

    def __len__(self) -> int:
        return len(self.values if self._rows is None else self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        return self.values == list(other) if isinstance(other, Sequence | Texts) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({self.values!r})"

    def __reduce__(self) -> tuple[type["Texts"], tuple[list[str]]]:
        return Texts, (self.values,)


def join_texts(parts: Sequence[tuple[Mapping[str, Texts], int]]) -> dict[str, Texts]:
    """Return the texts of consecutive batches, each with its number of graphs.

    >>> join_texts([({"name": Texts(["a"])}, 1), ({}, 2)])
    {'name': Texts(['a', '', ''])}
    """
    keys = dict.fromkeys(key for texts, _ in parts for key in texts)
    count = sum(count for _, count in parts)
    return {key: Texts.unread(partial(_read_joined, parts, key), count) for key in keys}


def _read_joined(parts: Sequence[tuple[Mapping[str, Texts], int]], key: str, rows: Rows) -> list[str]:
    first = np.cumsum([0, *(count for _, count in parts)])
    owners = np.searchsorted(first, rows, side="right") - 1
    values = [""] * len(rows)
    for owner in np.unique(owners).tolist():
        column = parts[owner][0].get(key)
        if column is not None:  # one read for all rows of a part
            own = np.flatnonzero(owners == owner)
            for place, value in zip(own.tolist(), column.select(rows[own] - first[owner]).values):
                values[place] = value
    return values


def as_text(value: Any) -> str:
    """Return a text or whole number on one line; else empty.

    >>> as_text(np.int64(7)), as_text(b"mp-1"), as_text(" 010\\n"), as_text([1, 2]), as_text(None)
    ('7', 'mp-1', '010', '', '')
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if getattr(value, "size", 0) == 1 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return one_line(str(value))
    return ""


def one_line(text: str) -> str:
    """Return a text on one line, in letters of UTF-8."""
    return " ".join(text.splitlines()).strip().encode(errors="backslashreplace").decode()


def text_of(value: Any, key: str, where: str) -> str:
    """Return an entry as text, empty where missing; InputError for others.

    These are truth values, numbers with digits after the point, and lists.
    """
    text = as_text(value)
    missing = value is None or isinstance(value, str | bytes) or np.size(value) == 0
    if text or missing or (isinstance(value, float | np.floating) and np.isnan(value)):
        return text
    raise InputError(f"{where}: {key} = {value!r:.60} is no text or whole number; write it as text, or leave {key} out")


def number_in(text: str) -> Any:
    """Return the number that a text is, for fields; else the text.

    >>> number_in("12"), number_in("1e-3"), number_in("2024_01")
    (12, 0.001, '2024_01')
    """
    for kind in (int, float) if "_" not in text else ():
        with suppress(ValueError):
            return kind(text)
    return text


def name_among(values: Mapping[str, Any]) -> str:
    """Return the name among a structure's entries, else an empty text."""
    return next((text for key in NAME_KEYS if key in values and (text := as_text(values[key]))), "")


@contextmanager
def naming(texts: Mapping[str, Texts | Sequence[str]]) -> Iterator[None]:
    """Give input errors in the block the texts of their graph."""
    try:
        yield
    except InputError as error:
        error.texts = {key: values[0] for key, values in texts.items()}
        raise


def label(name: str, number: int) -> str:
    """Return what messages call a graph: its name, else its number."""
    return f"graph '{name}'" if name else f"graph {number}"
