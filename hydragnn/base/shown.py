"""Texts of users in terminals, spreadsheets and notebooks: nothing in them acts."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

LONGEST = 300
"""Letters of a value; longer ones are cut."""
ROWS = 40
"""Rows of a table; more are counted."""
DEEPEST = 3
"""Tables inside one another; what is deeper is text."""

KEPT = (9, 10)  # tab and end of line
CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {*KEPT}
# which make a text read otherwise
DIRECTIONS = {0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
WRITTEN_OUT = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROLS | DIRECTIONS}
MARKS = {code: WRITTEN_OUT[code] for code in DIRECTIONS}
_FORMULA = re.compile(r"[\s'\"]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""Beginning of a text that spreadsheets compute."""
_ESCAPE = re.compile(r"\\x([01][0-9a-f]|7f|[89][0-9a-f])|\\u(20[0-9a-f]{2}|061c)")


def visible(text: str) -> str:
    r"""Return a text with its control characters and marks of direction escaped.

    >>> print(visible("\x1b[2Jgone"))
    \x1b[2Jgone
    """
    return text.translate(WRITTEN_OUT)


def csv_cell(text: str) -> str:
    r"""Return a text as a cell of CSV that no spreadsheet computes.

    >>> csv_cell("=1+1"), csv_cell("mp-1"), csv_cell("'=1"), text_in_cell(csv_cell("-\u202e1")) == "-\u202e1"
    ("'=1+1", 'mp-1', "''=1", True)
    """
    return visible(f"'{text}" if _FORMULA.match(text) else text)


def text_in_cell(cell: str) -> str:
    """Return the text of which ``csv_cell`` made a cell; others as they are."""
    cell = cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), cell)


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
        return self.to_json()  # type: ignore[attr-defined]


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
    whole = visible(str(text))
    return escape(whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}...")
