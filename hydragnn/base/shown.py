"""Values as tables of HTML, which notebooks show; all text is escaped."""

from collections.abc import Mapping
from html import escape
from typing import Any

LONGEST = 300
"""Letters of a value; longer ones are cut."""
ROWS = 40
"""Rows of a table; more are counted."""
DEEPEST = 3
"""Tables inside one another; what is deeper is text."""


def html_table(caption: str, rows: Mapping[str, Any]) -> str:
    """Return a table with a caption.

    >>> html_table("2 graphs", {"<x>": 1.0, "sizes": {"nodes": 3}})
    '<b>2 graphs</b><table><tr><th>&lt;x&gt;</th><td>1</td></tr><tr><th>sizes</th><td>nodes: 3</td></tr></table>'
    """
    return f"<b>{_escaped(caption)}</b>{_pairs(rows, DEEPEST)}"


class Shown:
    """Value that notebooks show: its ``str`` above its ``to_json``."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_table(str(self), self.shown())

    def shown(self) -> Mapping[str, Any]:
        """Return the rows of the table."""
        rows: Mapping[str, Any] = self.to_json()  # type: ignore[attr-defined]
        return rows


def _pairs(rows: Mapping[str, Any], depth: int) -> str:
    lines = [f"<tr><th>{_escaped(key)}</th><td>{_cell(value, depth - 1)}</td></tr>" for key, value in rows.items()]
    return f"<table>{''.join(_some(lines))}</table>"


def _cell(value: Any, depth: int) -> str:
    if isinstance(value, Mapping) and value:
        simple = not any(isinstance(one, Mapping | list | tuple) for one in value.values())
        if simple or not depth:
            return "<br>".join(_some([_escaped(f"{key}: {_text(one)}") for key, one in value.items()]))
        return _pairs(value, depth)
    if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) for one in value):
        names = [*dict.fromkeys(name for one in value for name in one)]
        head = "".join(f"<th>{_escaped(name)}</th>" for name in names)
        lines = ["".join(f"<td>{_escaped(_text(one.get(name, '')))}</td>" for name in names) for one in value]
        return f"<table><tr>{head}</tr>{''.join(_some([f'<tr>{line}</tr>' for line in lines]))}</table>"
    return _escaped(_text(value))


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= ROWS else [*lines[:ROWS], f"... and {len(lines) - ROWS} more"]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _escaped(text: object) -> str:
    whole = str(text)
    return escape(whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}...")
