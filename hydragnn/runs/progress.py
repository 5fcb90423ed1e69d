"""Progress on screen and in telemetry."""

import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from hydragnn.base.environment import environment
from hydragnn.base.errors import as_note
from hydragnn.base.terminal import PlainConsole

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Progress on a console: a live bar, or lines now and then."""

    def __init__(self, console: Console | None = None) -> None:
        """Show the bar or the lines on this console, or on stderr."""
        console = console or PlainConsole(stderr=True)
        self.console, self.total, self.valid = console, 0, ""
        self.last, self.speed = -SECONDS_BETWEEN_LINES, 0.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]:,.0f} graphs/s"),
            TimeRemainingColumn(),
        )
        self.bars = Bars(*columns, console=console) if console.is_terminal else None

    def begin(self, epochs: float, total: int) -> None:
        """Begin at ``epochs`` (with fraction) of ``total``."""
        self.total = total
        self.started, self.start = time.monotonic(), epochs
        if self.bars:
            self.task = self.bars.add_task("training", total=total, completed=epochs, speed=0.0)  # type: ignore[arg-type]
            self.bars.start()

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        """Show ``epochs`` and the loss of the last step in the bar."""
        self.speed = graphs_per_second
        if self.bars:
            text = f"epoch {min(int(epochs) + 1, self.total)}/{self.total}  loss {_short(loss)}{self.valid}"
            self.bars.update(self.task, completed=epochs, description=text, speed=graphs_per_second)

    def epoch(self, number: int, values: dict[str, float | None]) -> None:
        """Show the losses of epoch ``number`` (from 1)."""
        self.valid, now = f"  valid {_short(values.get('valid/loss'))}", time.monotonic()
        if self.bars or (now - self.last < SECONDS_BETWEEN_LINES and number < self.total):
            return
        self.last = now
        remaining = (now - self.started) / max(number - self.start, 1e-9) * (self.total - number)
        line = f"epoch {number}/{self.total}  train {_short(values.get('train/loss'))}{self.valid}"
        self.console.print(f"{line}  {self.speed:,.0f} graphs/s  {remaining:,.0f} s left", soft_wrap=True)

    def end(self, sentence: str) -> None:
        """Take the bar down and say how the run ended."""
        if self.bars:
            self.bars.stop()
        self.console.print(sentence, soft_wrap=True)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def annotate(*words: str) -> None:
    """Mark a moment for Omnistat, if ``OMNISTAT_DIR`` names its folder.

    It keeps one mark per user and node: that of the run that began last.
    """
    if folder := environment().get("OMNISTAT_DIR"):
        with as_note("omnistat-annotate"):
            command = [str(Path(folder) / "omnistat-annotate"), "--mode", *words]
            nothing = subprocess.DEVNULL  # or a process that it leaves is waited for
            subprocess.run(command, check=True, stdin=nothing, stdout=nothing, stderr=nothing, timeout=10)
