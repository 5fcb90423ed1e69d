"""One harness for measurements: work timed in turns, processes that take steps when asked, and figures as lines and as data.

Times are CPU seconds, so that other programs on the machine disturb them less. Whatever is compared takes turns in one run.
"""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Work = Callable[[], object]
NOT_MEASURED = "not measured yet"
"""Cell of a measured page for an architecture that the last measurement lacked."""

KEPT = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:glibc.malloc.top_pad=67108864"
"""GLIBC_TUNABLES with which a process keeps freed memory, as commands that train do."""


def seconds(work: Work, repeats: int = 1, at_least: float = 0.0) -> float:
    """Return the CPU seconds of a call: the median of ``repeats``, each the mean of calls that fill ``at_least`` seconds."""
    means = []
    for _ in range(repeats):
        begin, calls = time.process_time(), 0
        while calls == 0 or time.process_time() - begin < at_least:
            work()
            calls += 1
        means.append((time.process_time() - begin) / calls)
    return median(means)


@dataclass(frozen=True, slots=True)
class Turns:
    """CPU seconds of a call in every round, by the name of the work."""

    seconds: Mapping[str, Sequence[float]]

    def milliseconds(self, name: str) -> float:
        """Return the median over the rounds."""
        return 1e3 * median(self.seconds[name])

    def least(self, name: str) -> float:
        """Return the least milliseconds of all rounds."""
        return 1e3 * min(self.seconds[name])

    def ratio(self, name: str, over: str) -> float:
        """Return the median over the rounds of the time of one over that of another."""
        return median(one / max(other, 1e-9) for one, other in zip(self.seconds[name], self.seconds[over], strict=True))


def in_turns(works: Mapping[str, Work], rounds: int, *, warm_up: int = 1, at_least: float = 0.0) -> Turns:
    """Time all works in every round, forwards and backwards in turn; rounds of the warm-up do not count."""
    spent: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-warm_up, rounds):
        for name in works if number % 2 else reversed(works):
            took = seconds(works[name], at_least=at_least)
            if number >= 0:
                spent[name].append(took)
    return Turns(spent)


def ratio_in_turns(one: Work, other: Work, rounds: int) -> float:
    """Return how many times the CPU time of ``other`` the work ``one`` takes."""
    return in_turns({"one": one, "other": other}, rounds).ratio("one", "other")


class Figures:
    """Rows of figures: printed as lines when they come, and written to ``options.json`` when all are there.

    ``columns`` maps names to formats, such as ``{"kind": "12", "ms": "9.1f"}``.
    """

    def __init__(self, columns: Mapping[str, str], path: Path | None = None) -> None:
        self.columns, self.path = columns, path
        self.rows: list[dict[str, Any]] = []
        print("  ".join(self._cell(name, name) for name in columns), flush=True)

    def add(self, *values: Any) -> None:
        """Print a row and keep it; text where a number could not be had."""
        self.rows.append(dict(zip(self.columns, values, strict=True)))
        print("  ".join(self._cell(name, value) for name, value in self.rows[-1].items()), flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1))

    def _cell(self, name: str, value: Any) -> str:
        form = self.columns[name]
        width = max(len(name), int(form.partition(".")[0].rstrip("d") or 0))
        if isinstance(value, str):
            return f"{value:{'<' if form.isdigit() else '>'}{width}}"
        return f"{f'{value:{form}}':>{width}}"


def parser(text: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the text of a module, ``--rounds`` and ``--json``."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of everything (default {rounds})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to a file")
    return parser


class Server:
    """A process that answers lines on its stdin with one line of JSON each.

    Other lines that it prints are passed over. With HYDRAGNN_PEERS_LOUD in the environment its errors are printed, else kept.
    """

    def __init__(self, command: Sequence[object], environment: Mapping[str, str], folder: Path | None = None) -> None:
        clean = {key: value for key, value in os.environ.items() if key not in {"GLIBC_TUNABLES", "PYTHONPATH"}}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors if "HYDRAGNN_PEERS_LOUD" not in os.environ else None,
            text=True,
            cwd=folder,
            env={**clean, "OMP_NUM_THREADS": "1", **environment},
        )

    def send(self, request: object = "") -> None:
        """Send a line; ``answer`` raises where the process has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(request, file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the next line of JSON; RuntimeError with the last words of a process that has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        words = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        raise RuntimeError(f"it ended with {code}{f' ({words[-1].strip()})' if words else ''}")

    def ask(self, request: object = "") -> Any:
        """Return the answer to a line."""
        self.send(request)
        return self.answer()

    def end(self) -> None:
        """Close its stdin and wait until it has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
