"""What is printed for people, much of which came from files of others: no string styles, hides or steers anything."""

from typing import Any

from rich.console import Console
from rich.text import Text

KEPT = (9, 10)  # tab and end of line
CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {*KEPT}
DIRECTIONS = {
    0x200E,
    0x200F,
    0x061C,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
}  # which make a text read otherwise
WRITTEN_OUT = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROLS | DIRECTIONS}


def visible(text: str) -> str:
    r"""The text with what steers a terminal (escape sequences, bells, carriage returns, directions of writing) written out.

    >>> print(visible("\x1b[2Jgone"))
    \x1b[2Jgone
    """
    return text.translate(WRITTEN_OUT)


class PlainConsole(Console):
    """A console on which ``[brackets]`` are brackets, not markup, and strings are ``visible``; our own styles are ``rich.text.Text``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """As rich renders a string, once it is visible."""
        return super().render_str(visible(text), **settings)
