"""Lines of a journal: format, checksums, and which of them count.

A session, one controller's time with the campaign, begins with a claim and signs all of its lines. A line counts where its
number is the next one and its session is the latest that claimed the journal. So two sessions that both append, where locks do
not reach, damage nothing: whichever line comes first in the file counts, and the lines of an older session after a newer
claim are void. A line that a kill cut off stays in the file, closed by ``TORN``.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hydragnn.base.errors import InputError
from hydragnn.hpo.scheduling.state import Written

FORMAT = 3

CLAIM = "claim"  # the event of a line by which a session takes the journal; nothing happens to the campaign
TORN = b" (torn)\n"  # mark that a session writes behind a line that an earlier one left incomplete


class Line(Struct, frozen=True, kw_only=True, gc=False):
    """Content of a line besides its event, in the order of files."""

    event: str
    format: int = FORMAT
    line: int
    program: str = ""
    session: str = ""
    then: Written = {}
    time: float
    crc: int


LINE = msgspec.json.Decoder(Line)


class Counted(NamedTuple):
    """A line that counts, with its number in the file (from 1)."""

    data: bytes
    line: Line
    number: int


class LineChain:
    """Reader of the lines that count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.length = self.count = self.void = 0
        """Bytes that were read, lines that count, and lines since the latest claim that do not: of sessions that it replaced, or that never began."""
        self.session = self.campaign = ""
        """The latest session, and the first."""
        self.claim = b""
        """The latest claim."""
        self._number = 0
        self._over: set[str] = set()

    def read(self, file: Iterable[bytes]) -> Iterator[Counted]:
        """Yield every further line that counts, claims left out.

        A torn last line waits. InputError where lines are damaged or missing.
        """
        length, number, void, broken = self.length, self._number, self.void, (0, b"")
        for data in file:
            number, length = number + 1, length + len(data)
            line = decode_line(data)
            if line is not None and line.line == self.count + 1 and line.session == self.session and not broken[0]:
                self.length, self._number, self.count, self.void = length, number, self.count + 1, void
                yield Counted(data, line, number)
                continue
            if line is None:
                piece, data, line = cut_apart(data)
                broken = broken if broken[0] and not is_torn(broken[1]) else (number, piece)
                if line is None:
                    continue
            if self._is_void(line):
                void += 1
            else:
                self._check(line, number, broken[0])
                self.count, broken = self.count + 1, (0, b"")
                if line.event == CLAIM:
                    check_format(line, self._path, number)
                    self._begin(line.session, data)
                    void = 0
            if not broken[0]:
                self.length, self._number, self.void = length, number, void
                if line.session not in self._over and line.event != CLAIM:
                    yield Counted(data, line, number)
        if broken[0] and not is_torn(broken[1]):
            raise damage(self._path, broken[0])

    def advance(self, data: bytes, count: int) -> None:
        """Count so many lines that this session has just written."""
        self.length, self.count, self._number = self.length + len(data), self.count + count, self._number + count

    def _is_void(self, line: Line) -> bool:
        """Return True for a line of a session that was replaced."""
        if line.event == CLAIM and line.session != self.session and line.line <= self.count:
            self._over.add(line.session)
        return line.session in self._over

    def _check(self, line: Line, number: int, broken: int) -> None:
        """Raise InputError where a line does not follow the last one.

        A line before it that is ``broken`` is then at fault.
        """
        ours = line.session == self.session or line.event == CLAIM
        if ours and line.line == self.count + 1:
            return
        if broken or line.line == number:
            raise damage(self._path, broken or number)
        problem = f"{self._path}: line {number} was number {line.line} when it was written"
        raise InputError(f"{problem}; lines are missing, restore the file from a copy")

    def _begin(self, session: str, claim: bytes) -> None:
        self._over.add(self.session)
        self.session, self.campaign, self.claim = session, self.campaign or session, claim


def is_torn(line: bytes) -> bool:
    """Return True for a last line left by a kill.

    A line that is whole but for bytes that changed says something that had consequences, and is not to be dropped.
    """
    if b"\0\0" in line or line.endswith(tuple(TORN[:length] for length in range(1, len(TORN) + 1))):
        return True
    if not line.endswith(b"\n"):
        flipped = (line[-1] ^ ord("\n")).bit_count() == 1
        return not (flipped and decode_line(line[:-1] + b"\n"))
    return not line.startswith(b"{") and decode_line(b"{" + line[1:]) is None


def cut_apart(data: bytes) -> tuple[bytes, bytes, Line | None]:
    """Split a damaged line from the line appended to it.

    >>> cut_apart(b'{"a": 1, {"a": 2}\\n')
    (b'{"a": 1, {"a": 2}\\n', b'', None)
    """
    is_end = re.search(rb', "crc": \d+\}\n$', data[-40:])
    for begin in (place.start() for place in (re.finditer(rb'(?<!^)\{"', data) if is_end else ())):
        try:
            LINE.decode(memoryview(data)[begin:])  # stops where it is none, whatever follows
        except (ValueError, RecursionError):
            continue
        if (line := decode_line(data[begin:])) is not None:
            return data[:begin], data[begin:], line
    return data, b"", None


def damage(path: Path, number: int) -> InputError:
    """Return the error for a damaged line."""
    return InputError(f"{path} is damaged in line {number}; restore the file from a copy, or begin a new campaign")


def check_format(line: Line, path: Path, number: int) -> None:
    """Raise InputError where another version wrote a line."""
    if line.format != FORMAT:
        raise InputError(
            f"{path}: line {number} was written by another version ({line.program}); read it with that one"
        )


def encode_line(value: dict[str, Any]) -> bytes:
    """A line with its checksum."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def decode_line(data: bytes) -> Line | None:
    """Return the content of a line; None where it is damaged.

    The checksum is that of the bytes before it.
    """
    if not data.endswith(b"\n"):
        return None
    try:
        line = LINE.decode(data)
    except (ValueError, RecursionError):
        return None
    return line if line.crc == zlib.crc32(b"}", zlib.crc32(data[: data.rfind(b', "crc": ')])) else None
