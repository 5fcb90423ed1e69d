"""What the user sees of a running search: a live table, or plain lines where the output is not a terminal."""

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo.controller import trial_folder
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Proposed, Reached, Stopping, node_of
from hydragnn.hpo.scheduling.replay import Replay, concerned
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.status.facts import duration_text, node_counts, seconds_left, values_line
from hydragnn.hpo.status.timeline import Span, TimelineBuilder, local_nodes
from hydragnn.record import RunRecord, read_record

ROWS = 12
"""Trials shown at once: those that run, then the best."""

PAUSE = 0.5
"""Seconds between two looks at the whole campaign."""


class GoodputSums(TimelineBuilder):
    """A timeline whose goodput is known at every moment, from sums that are kept, however many trials run."""

    def __init__(self) -> None:
        super().__init__()
        self._useful, self._done, self._busy = 0.0, 0.0, 0.0
        self._since, self._busy_slots = 0.0, 0

    def observe(self, before: Sequence[Trial], event: Event, after: State | Replay, now: float) -> None:
        """Note what an event changed, and how long how many slots were busy."""
        if now > self._since:
            if not isinstance(event, Opened):  # between two controllers nothing is busy
                self._busy += self._busy_slots * (now - self._since)
            self._since = now
        super().observe(before, event, after, now)
        self._busy_slots = len(after.slots) - len(after.free) - after.health.held

    def goodput(self, now: float) -> float | None:
        """The useful share up to ``now``; None before any time passed."""
        past = sum(len(session.slots) * session.seconds for session in self._sessions[:-1])
        latest = sum(len(session.slots) * (now - session.started) for session in self._sessions[-1:])
        running = self._busy + self._busy_slots * max(0.0, now - self._since) - self._done
        return (self._useful + running) / (past + latest) if past + latest > 0 else None

    def _add(self, span: Span, *, confirmed: bool) -> None:
        super()._add(span, confirmed=confirmed)
        self._done += len(span.slots) * span.seconds
        self._useful += len(span.slots) * span.useful

    def _count(self, index: int, useful: float) -> None:
        span = self._spans[index]
        super()._count(index, useful)
        self._useful += len(span.slots) * (useful - span.useful)


class CampaignView:
    """Shows a campaign as it goes; use as a context manager and pass it as ``on_event`` to ``run_search``.

    However fast events come, the table is drawn, and a line gets its summary, at most twice a second. The goodput is that
    of this controller; ``hydragnn status`` counts earlier ones too.
    """

    def __init__(self, out: Path, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._console = console or PlainConsole(work=True)
        self._clock = clock
        self._live: Live | None = None
        self._goodput_sums = GoodputSums()
        self._shown = -math.inf
        self._latest: tuple[State, float] | None = None

    def __enter__(self) -> "CampaignView":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()

    def __call__(self, state: State, event: Event, seconds: float) -> None:
        """Show what an event changed."""
        before = concerned(self._goodput_sums.campaign, event)
        self._goodput_sums.observe(before, event, state, state.session_start + seconds - state.spent)
        self._latest = (state, seconds)
        if self._live is None:
            self._print(state, event, seconds)
        elif self._is_time():
            self._draw()

    def _print(self, state: State, event: Event, seconds: float) -> None:
        line = event_line(state, event)
        if line and isinstance(event, Reached) and self._is_time():
            line = f"{line}; {summary_line(state, seconds, self._goodput(state, seconds))}"
        if line:
            self._console.print(line, soft_wrap=True)

    def _draw(self) -> None:
        if self._live is None or self._latest is None:
            return
        state, seconds = self._latest
        shown = shown_trials(state)
        table = campaign_table(state, shown, self._progress(shown), seconds, self._goodput(state, seconds))
        self._live.update(table, refresh=True)

    def _goodput(self, state: State, seconds: float) -> float | None:
        return self._goodput_sums.goodput(state.session_start + seconds - state.spent)

    def _is_time(self) -> bool:
        now = self._clock()
        if now - self._shown < PAUSE:
            return False
        self._shown = now
        return True

    def _progress(self, shown: Sequence[Trial]) -> dict[int, RunRecord]:
        """Records of the trials in view that run, as far as they have one."""
        records: dict[int, RunRecord] = {}
        for trial in shown:
            try:
                if trial.status == "running":
                    records[trial.number] = read_record(trial_folder(self._out, trial.number))
            except InputError:
                continue  # no epoch is done yet
        return records


def shown_trials(state: State) -> list[Trial]:
    """The trials that fit into the table: those that run, then the best."""
    running = heapq.nsmallest(ROWS, state.active)
    resting = (trial for trial in state.trials.values() if trial.results and trial.status != "running")
    best = heapq.nsmallest(ROWS - len(running), resting, key=lambda t: (-len(t.results), t.results[-1], t.number))
    return [*(state.trials[number] for number in running), *best]


def campaign_table(
    state: State,
    shown: Sequence[Trial],
    progress: Mapping[int, RunRecord],
    seconds: float,
    goodput: float | None = None,
) -> RenderableType:
    """The table: one row per trial in view, and a line on the campaign as a whole."""
    table = Table(expand=True)
    for heading, width in (("trial", 5), ("state", 8), ("epoch", 7), ("objective", 9), ("graphs/s", 8)):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True, min_width=width)
    table.add_column("configuration", no_wrap=True, overflow="ellipsis", ratio=1)
    best = state.best
    for trial in shown:
        style = "bold" if best is not None and trial.number == best.number else None
        table.add_row(*_row(state, trial, progress.get(trial.number)), style=style)
    return Group(table, summary_line(state, seconds, goodput))


def event_line(state: State, event: Event) -> str:
    """One plain line for an event that is news; empty for the others."""
    match event:
        case Opened():
            known = f", {len(state.trials)} trials known" if event.plan.trials and state.spent else ""
            return f"{event.plan.trials} trials on {slots_text(event.slots)}, rungs {_rungs(state)}{known}"
        case Proposed():
            return f"trial {event.trial}: {values_line(state.trials[event.trial].values)}"
        case Reached():
            trial = state.trials[event.trial]
            word = "finished" if trial.status == "finished" else "reached a rung"
            return f"trial {event.trial} {word} at epoch {event.epochs}: {event.value:.4g}"
        case Failed():
            trial = state.trials[event.trial]
            if state.ending and event.kind == "preempted" and trial.status == "waiting":
                return f"trial {event.trial}: stopped with the search, goes on after epoch {event.epochs}"
            fate = {"waiting": "tried again", "running": "tried again"}.get(trial.status, "given up")
            return f"trial {event.trial}: {event.kind}, {fate}: {short(event.message)}"
        case Stopping():
            running = len(state.running)
            return f"{event.reason}: " + (f"{running} trial(s) save their state" if running else "no trial is running")
        case _:
            return ""


def summary_line(state: State, seconds: float, goodput: float | None = None) -> str:
    """Trials, best so far, nodes where there are any beside this machine, and time left in one line."""
    failed, best = state.count("failed", "lost"), state.best
    parts = [
        f"{len(state.trials) - state.count('asked')}/{state.plan.trials} trials",
        f"{state.count('finished')} finished, {state.count('paused')} at a rung"
        + (f", {failed} failed" if failed else ""),
        "no result yet" if best is None or best.value is None else f"best {best.value:.4g} (trial {best.number})",
    ]
    nodes = node_counts(state)
    if not nodes.local:
        parts += [nodes.text, *([] if goodput is None else [f"goodput {100 * goodput:.0f} %"])]
    left = seconds_left(state, seconds)
    coming = [] if left is None or state.closed else [f"about {duration_text(left)} left"]
    return ", ".join([*parts, f"{duration_text(seconds)} so far", *coming])


def slots_text(slots: Sequence[str]) -> str:
    """What there is to run on.

    >>> slots_text(["worker-0"]), slots_text(["n1", "n2"]), slots_text(["n1/0", "n1/1"])
    ('1 worker(s)', '2 node(s)', '2 slots on 1 node(s)')
    """
    nodes = set(map(node_of, slots))
    if local_nodes(nodes):
        return f"{len(slots)} worker(s)"
    return f"{len(nodes)} node(s)" if len(nodes) == len(slots) else f"{len(slots)} slots on {len(nodes)} node(s)"


def short(message: str) -> str:
    """The first and the last line of a message.

    >>> short("exit code 1 without a result\\nTraceback ...\\nImportError: no torch")
    'exit code 1 without a result: ImportError: no torch'
    """
    lines = message.splitlines()
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


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
        values_line(trial.values),
    )


def _rungs(state: State) -> str:
    return ", ".join(str(rung) for rung in state.plan.rungs)
