"""What the user sees of a running search: a live table, or plain lines where the output is not a terminal."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hydragnn.errors import InputError
from hydragnn.hpo.campaign import trial_folder
from hydragnn.hpo.events import Event, Failed, Opened, Proposed, Reached, Stopping
from hydragnn.hpo.scheduler import State, Trial
from hydragnn.record import RunRecord, read_record

ROWS = 12
"""Trials shown at once: those that run, then the best."""


class CampaignView:
    """Shows a campaign as it goes; use as a context manager and pass it as ``on_event`` to ``run_campaign``."""

    def __init__(self, out: Path, console: Console | None = None) -> None:
        self._out = out
        self._console = console or Console()
        self._live: Live | None = None

    def __enter__(self) -> "CampaignView":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, state: State, event: Event, seconds: float) -> None:
        """Show what an event changed."""
        if self._live is not None:
            self._live.update(campaign_table(state, self._progress(state), seconds), refresh=True)
            return
        line = event_line(state, event, seconds)
        if line:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _progress(self, state: State) -> dict[int, RunRecord]:
        """Records of the trials that run, as far as they have one."""
        found: dict[int, RunRecord] = {}
        for trial in state.running:
            try:
                found[trial.number] = read_record(trial_folder(self._out, trial.number))
            except InputError:
                continue  # no epoch is done yet
        return found


def campaign_table(state: State, progress: Mapping[int, RunRecord], seconds: float) -> RenderableType:
    """The table: one row per trial that runs, then the best ones, and a line on the campaign as a whole."""
    table = Table(expand=True)
    for heading, width in (("trial", 5), ("state", 8), ("epoch", 7), ("objective", 9), ("graphs/s", 8)):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True, min_width=width)
    table.add_column("configuration", no_wrap=True, overflow="ellipsis", ratio=1)
    running = sorted(state.running, key=lambda trial: trial.number)
    resting = [trial for trial in state.trials.values() if trial.results and trial.status != "running"]
    resting.sort(key=lambda trial: (-len(trial.results), trial.value, trial.number))
    best = state.best
    for trial in [*running, *resting][:ROWS]:
        style = "bold" if best is not None and trial.number == best.number else None
        table.add_row(*_row(state, trial, progress.get(trial.number)), style=style)
    return Group(table, Text(summary_line(state, seconds)))


def event_line(state: State, event: Event, seconds: float) -> str:
    """One plain line for an event that is news; empty for the others."""
    match event:
        case Opened():
            known = f", {len(state.trials)} trials known" if event.plan.trials and state.spent else ""
            return f"{event.plan.trials} trials on {len(event.places)} worker(s), rungs {_rungs(state)}{known}"
        case Proposed():
            return f"trial {event.trial}: {values_text(state.trials[event.trial])}"
        case Reached():
            trial = state.trials[event.trial]
            word = "finished" if trial.status == "finished" else "reached a rung"
            return (
                f"trial {event.trial} {word} at epoch {event.epochs}: {event.value:.4g}; {summary_line(state, seconds)}"
            )
        case Failed():
            trial = state.trials[event.trial]
            fate = {"waiting": "tried again", "running": "tried again"}.get(trial.status, "given up")
            return f"trial {event.trial}: {event.kind}, {fate}: {short(event.message)}"
        case Stopping() if state.running:
            return f"{event.reason}: {len(state.running)} trial(s) save their state; continue with --resume"
        case _:
            return ""


def summary_line(state: State, seconds: float) -> str:
    """Trials, best so far, and time left in one line."""
    count = {status: sum(t.status == status for t in state.trials.values()) for status in ("finished", "paused")}
    failed = sum(trial.status in ("failed", "lost") for trial in state.trials.values())
    best = state.best
    parts = [
        f"{sum(bool(trial.values) for trial in state.trials.values())}/{state.plan.trials} trials",
        f"{count['finished']} finished, {count['paused']} at a rung" + (f", {failed} failed" if failed else ""),
        "no result yet" if best is None or best.value is None else f"best {best.value:.4g} (trial {best.number})",
        f"{_duration(seconds)} so far",
    ]
    left = seconds_left(state, seconds)
    return ", ".join([*parts, *([] if left is None or state.closed else [f"about {_duration(left)} left"])])


def seconds_left(state: State, seconds: float) -> float | None:
    """A forecast: epochs that the rungs will ask for, at the pace of campaign so far; None before the first result."""
    done = sum(trial.epochs for trial in state.trials.values())
    if not done or not state.plan.rungs:
        return None
    before, total, reaching = 0, 0.0, float(state.plan.trials)
    for rung in state.plan.rungs:
        total += reaching * (rung - before)
        floor = min(state.plan.finalists, state.plan.trials)
        before, reaching = rung, max(reaching / state.plan.reduction, float(floor))
    return max(0.0, (total - done) * seconds / done)


def short(message: str) -> str:
    """The first and the last line of a message.

    >>> short("exit code 1 without a result\\nTraceback ...\\nImportError: no torch")
    'exit code 1 without a result: ImportError: no torch'
    """
    lines = message.splitlines()
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


def values_text(trial: Trial) -> str:
    """A trial's sampled values, short: the last word of each path.

    >>> values_text(Trial(number=0, values={"model.hidden_dim": 64, "train.learning_rate": 0.00123456}))
    'hidden_dim=64 learning_rate=0.00123'
    """
    return " ".join(
        f"{path.rpartition('.')[2]}={f'{value:.3g}' if isinstance(value, float) else value}"
        for path, value in trial.values.items()
    )


def _row(state: State, trial: Trial, record: RunRecord | None) -> tuple[str, ...]:
    running = trial.status == "running"
    until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
    epochs = max(trial.epochs, record.epochs if record else 0)
    speed = f"{record.cost.graphs_per_second:.0f}" if record and record.cost.graphs_per_second else ""
    value = "" if trial.value is None else f"{trial.value:.4g}"
    return (
        str(trial.number),
        trial.status,
        f"{epochs}/{until}" if running else str(trial.epochs),
        value,
        speed,
        values_text(trial),
    )


def _rungs(state: State) -> str:
    return ", ".join(str(rung) for rung in state.plan.rungs)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
