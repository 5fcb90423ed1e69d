"""Chapters of the page, and their tables: rows of ready texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn.scripts.report.canvas import Figure

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of ready texts; without rows the page shows no table."""

    header: tuple[str, ...]
    rows: Rows
    caption: str
    strong: frozenset[int] = frozenset()
    prose: frozenset[int] = frozenset()
    bars: Sequence[float] = ()
    """By row, the length of a bar in its third cell: 1 is the whole cell."""

    @property
    def title(self) -> str:
        """Return the first sentence of the caption."""
        return self.caption.split(". ")[0].rstrip(".")

    def __bool__(self) -> bool:
        """Return True where there are rows to show."""
        return bool(self.rows)

    def css(self, column: int) -> str:
        """Return the class of the cells of a column."""
        if column in self.prose:
            return "prose"
        cells = [row[column] for row in self.rows]
        numeric = any(cell != "–" for cell in cells) and all(cell[:1] in "0123456789−–" for cell in cells)
        numeric &= not any(" to " in cell for cell in cells)
        return "number" if numeric and column else ""


def table_of(items: Iterable[Any], columns: Mapping[str, Callable[[Any], str]], caption: str, **looks: Any) -> Table:
    """Return a table with a row per item; ``columns`` has headers and cells.

    >>> table_of([1, 2], {"number": str, "twice": lambda number: str(2 * number)}, "").rows
    [('1', '2'), ('2', '4')]
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(header=tuple(columns), rows=rows, caption=caption, **looks)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return all plain values of a nested table by dotted path.

    >>> leaves({"heads": [{"weight": 1.0}], "seed": 0})
    [('heads.0.weight', 1.0), ('seed', 0)]
    """
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in leaves(item, f"{path}.{number}")]
    return [(path, value)]


@dataclass(frozen=True, slots=True)
class Section:
    """Chapter of the page; figures that are None and tables without rows are not shown."""

    anchor: str
    title: str
    lead: str
    figures: Sequence[Figure | None] = ()
    tables: Sequence[Table | None] = ()
    folded: Sequence[Table] = ()
