"""What tells early that something is wrong: a heartbeat that stopped, and a scheduler that has lost a node.

A launcher's own exit is no such sign: srun waits half a minute for a node that is gone, and then may return 0.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hydragnn.errors import InputError
from hydragnn.hpo.launching.sites import NodeStates, Site
from hydragnn.record import read_record

HEARTBEAT = "heartbeat"
"""The file that rank 0 touches while it takes steps."""
LINGER = 10.0  # seconds that an attempt's processes may take to end once its record is complete
LOOK_EVERY = 3.0  # seconds between looks at the nodes; sinfo answers from the controller's memory
LOOKED_AT = 1000.0  # nodes that may be asked for per further second, because the answer of a large machine is long
LOOK_PATIENCE = 20.0  # seconds after which a look is given up

Clock = Callable[[], float]


@dataclass(kw_only=True, slots=True)
class Heartbeat:
    """Whether a run still takes steps, judged by changes of its heartbeat on our own clock, whatever the file's says."""

    folder: Path
    patience: float
    every: float | None = None
    """Seconds between looks at the file; a tenth of the patience if absent."""
    clock: Clock = time.monotonic
    _changed: float = field(init=False)
    _stamp: tuple[int, int] | None = field(init=False, default=None)
    _next: float = field(init=False)
    _next_record: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._changed = self.clock()
        self._stamp = self._read()
        self._next = self._changed

    def stopped(self) -> bool:
        """Whether nothing changed for longer than the patience."""
        now = self.clock()
        if now < self._next:
            return False
        self._next = now + (self.patience / 10 if self.every is None else self.every)
        stamp = self._read()
        if stamp != self._stamp:
            self._stamp, self._changed = stamp, now
        return now - self._changed > self.patience

    def lingers(self, attempt: int) -> bool:
        """Whether the attempt has left its last record, and some of its processes do not end, for example on a lost node."""
        now = self.clock()
        if now - self._changed < LINGER or now < self._next_record:
            return False
        self._next_record = now + LINGER
        with suppress(InputError):
            record = read_record(self.folder)
            return record.attempt == attempt and record.status != "running"
        return False

    def _read(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = (self.folder / HEARTBEAT).stat()
            return found.st_mtime_ns, found.st_ino
        return None


class NodeWatch:
    """Asks the scheduler for lost nodes every few seconds, without ever waiting for its answer."""

    def __init__(self, site: Site, nodes: Sequence[str], *, clock: Clock = time.monotonic) -> None:
        self._site, self._nodes, self._clock = site, tuple(nodes), clock
        self._command = site.look(self._nodes)
        self._asked: tuple[subprocess.Popen[bytes], IO[bytes], float] | None = None
        self._next = 0.0
        self.states: NodeStates = {}
        """The unwell nodes, True for lost ones, as of the last look."""
        self.seen_at = float("-inf")
        """When the last finished look began."""

    @property
    def possible(self) -> bool:
        """Whether this scheduler can be asked."""
        return self._command is not None

    def hurry(self) -> None:
        """Look again at once, because something went wrong."""
        self._next = min(self._next, self._clock())

    def news(self) -> NodeStates:
        """Nodes that became unwell, or worse, since the last call; begins the next look when it is due."""
        if self._command is None:
            return {}
        found = self._answer()
        if self._asked is None and self._clock() >= self._next:
            self._ask(self._command)
        if found is None:
            return {}
        before, self.states = self.states, found
        return {node: gone for node, gone in found.items() if node not in before or (gone and not before[node])}

    def close(self) -> None:
        """Give up a look that is under way."""
        if self._asked is not None:
            process, file, _ = self._asked
            process.kill()
            process.wait()
            file.close()
            self._asked = None

    def _ask(self, command: list[str]) -> None:
        self._next = self._clock() + LOOK_EVERY + len(self._nodes) / LOOKED_AT
        file = tempfile.TemporaryFile()  # noqa: SIM115, closed when the answer was read
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
        except OSError:  # a machine short of processes; the next look may work
            file.close()
            return
        self._asked = process, file, self._clock()

    def _answer(self) -> NodeStates | None:
        """What a look that has just ended found; None where none has, or where it failed."""
        if self._asked is None:
            return None
        process, file, began = self._asked
        if process.poll() is None:
            if self._clock() - began > LOOK_PATIENCE:
                self.close()
            return None
        self._asked = None
        with file:
            file.seek(0)
            printed = file.read().decode(errors="replace")
        if process.returncode:
            return None
        self.seen_at = began
        own = {node.partition(".")[0]: node for node in self._nodes}
        named = {own.get(node.partition(".")[0]): gone for node, gone in self._site.unwell(printed).items()}
        return {node: gone for node, gone in named.items() if node is not None}
