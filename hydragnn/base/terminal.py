"""What is printed for people, much of which came from files of others: no string styles, hides or steers anything."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.text import Text

from hydragnn.base.errors import InputError

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

    def __init__(self, *, work: bool = False, **settings: Any) -> None:
        """``work`` goes on while this console shows how far it is, also where the reader has gone."""
        super().__init__(markup=False, emoji=False, highlight=False, **settings)
        self.work = work

    def on_broken_pipe(self) -> None:
        """What rich calls where the reader has gone; SystemExit where nothing but printing is done."""
        if not self.work:
            super().on_broken_pipe()
        self.quiet = True

    def render_str(self, text: str, **settings: Any) -> Text:
        """As rich renders a string, once it is visible."""
        return super().render_str(visible(text), **settings)


class Printed:
    """A stream whose failures end no work: what cannot be written is lost, and the first ``failure`` is remembered."""

    def __init__(self, stream: Any, raised: tuple[type[OSError], ...] = ()) -> None:
        """``raised`` are raised all the same; characters that the stream cannot encode are written out."""
        self.stream, self.raised = stream, raised
        self.failure: OSError | None = None
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """As of any stream."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self._note(error)
        return len(text)

    def flush(self) -> None:
        """As of any stream."""
        try:
            self.stream.flush()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if isinstance(error, self.raised):
            raise error
        self.failure = self.failure or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printing() -> Iterator[None]:
    """For the length of the block, printing ends no work where a log is on a full disk or its reader has gone.

    InputError at the end where results went to stdout and were lost. BrokenPipeError where the reader of stdout has gone.
    """
    out, err = sys.stdout, sys.stderr
    printed = None if out is None else Printed(out, raised=(BrokenPipeError,))
    sys.stdout = printed or out
    sys.stderr = None if err is None else Printed(err)
    try:
        try:
            yield
        except SystemExit as end:
            if end.code:
                raise
        if printed is not None:
            printed.flush()
        if printed is not None and printed.failure is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # the end of Python would try again
            raise InputError(f"cannot print the result: {printed.failure.strerror}; everything else was done")
    finally:
        sys.stdout, sys.stderr = out, err
