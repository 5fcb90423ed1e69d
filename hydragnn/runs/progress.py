"""Progress on screen: a bar in terminals, lines elsewhere."""

import time
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from hydragnn.base.terminal import PlainConsole

SECONDS_BETWEEN_LINES = 10.0


@runtime_checkable
class Progress(Protocol):
    """Shows the progress of a run."""

    def begin(self, epochs: float, total: int) -> None:
        """The run stands at ``epochs`` (with fraction) of ``total``."""

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        """Show ``epochs`` and the loss of the last step."""

    def epoch(self, number: int, values: dict[str, float | None]) -> None:
        """Epoch ``number`` (from 1) ended with these values of the curves."""

    def end(self, sentence: str) -> None:
        """The run ended."""


def console_progress(console: Console | None = None) -> Progress:
    """A bar where the console (default: stderr) is a terminal, lines otherwise."""
    console = console or PlainConsole(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)


class Bar:
    """A live bar: epoch, loss, graphs per second, time left."""

    def __init__(self, console: Console) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[speed]:,.0f} graphs/s"),
            TimeRemainingColumn(),
            console=console,
        )
        self.total = 0
        self.valid = ""

    def begin(self, epochs: float, total: int) -> None:
        """Show the bar."""
        self.total = total
        self.task = self.bars.add_task("training", total=total, speed=0.0)
        self.bars.update(self.task, completed=epochs)
        self.bars.start()

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        """Move the bar."""
        text = f"epoch {min(int(epochs) + 1, self.total)}/{self.total}  loss {_short(loss)}{self.valid}"
        self.bars.update(self.task, completed=epochs, description=text, speed=graphs_per_second)

    def epoch(self, number: int, values: dict[str, float | None]) -> None:
        """Remember the validation loss for the text beside the bar."""
        self.valid = f"  valid {_short(values.get('valid/loss'))}"

    def end(self, sentence: str) -> None:
        """Take the bar down and say how it ended."""
        self.bars.stop()
        self.bars.console.print(sentence)


class Lines:
    """One line every some seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total = 0
        self.last = -SECONDS_BETWEEN_LINES
        self.speed = 0.0

    def begin(self, epochs: float, total: int) -> None:
        """Say nothing yet."""
        self.total = total
        self.started, self.start = time.monotonic(), epochs

    def step(self, epochs: float, loss: float | None, graphs_per_second: float) -> None:
        """Remember the speed for the next line."""
        self.speed = graphs_per_second

    def epoch(self, number: int, values: dict[str, float | None]) -> None:
        """Write a line unless the last one is young."""
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and number < self.total:
            return
        self.last = now
        remaining = (now - self.started) / max(number - self.start, 1e-9) * (self.total - number)
        self._say(
            f"epoch {number}/{self.total}  train {_short(values.get('train/loss'))}  valid {_short(values.get('valid/loss'))}"
            f"  {self.speed:,.0f} graphs/s  {remaining:,.0f} s left"
        )

    def end(self, sentence: str) -> None:
        """Say how it ended."""
        self._say(sentence)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
