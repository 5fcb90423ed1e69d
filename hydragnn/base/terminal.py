"""Printing; control sequences in user data are escaped."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.text import Text

from hydragnn.base.errors import InputError
from hydragnn.base.shown import MARKS
from hydragnn.base.shown import visible as visible


class PlainConsole(Console):
    """Console without markup, whose strings are ``visible``; styles are ``rich.text.Text``."""

    def __init__(self, *, work: bool = False, **settings: Any) -> None:
        """Show progress of ``work``, which continues after the reader has gone."""
        super().__init__(markup=False, emoji=False, highlight=False, **settings)
        self.work = work

    def on_broken_pipe(self) -> None:
        """Handle a closed pipe; SystemExit where only printing is done."""
        if not self.work:
            super().on_broken_pipe()
        self.quiet = True

    def render_str(self, text: str, **settings: Any) -> Text:
        """As rich renders a string, once it is visible."""
        return super().render_str(visible(text), **settings)


class Printed:
    """Stream without marks of direction, whose failures end no work."""

    def __init__(self, stream: Any, raised: tuple[type[OSError], ...] = ()) -> None:
        """Escape what the stream cannot encode; let ``raised`` pass."""
        self.stream, self.raised = stream, raised
        self.failure: OSError | None = None
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """As of any stream."""
        try:
            self.stream.write(text if text.isascii() else text.translate(MARKS))
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
    """Let printing in the block fail without ending work.

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
