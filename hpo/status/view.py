"""View of a campaign: live table, plain lines, or JSON."""

import heapq
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hydragnn.base.errors import InputError
from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo.controller import trial_folder
from hydragnn.hpo.folder import SAMPLER_LOG
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Proposed, Reached, Stopping, node_of
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.status.endings import ENDINGS, ending_text
from hydragnn.hpo.status.facts import CampaignStatus, Follower, duration_text, status_of, values_line
from hydragnn.hpo.status.timeline import TimelineBuilder, local_nodes
from hydragnn.record import RunRecord, read_record

ROWS = 12
"""Trials shown at once: running ones, then the best."""

PAUSE = 0.5
"""Seconds between two views of the campaign, at least."""

BUSY = 0.05
"""Part of the time that views may take."""

INTERVAL = 2.0
"""Seconds between two looks at the journal."""

NO_LOSS = 10_000
"""Nodes at half of the speed from which no loss is measurable."""

WORDS: dict[str, str] = {
    "running": "running",
    "silent": "no sign of life",
    "begun": "begun, nothing has happened yet",
    **{ending: ending_text(ending) for ending in ENDINGS},
}
TRIALS = {
    "running": "running",
    "waiting": "waiting",
    "paused": "at a rung",
    "finished": "trained to the end",
    "failed": "failed",
    "lost": "lost to the machine",
}
USES = {
    "useful": "counts",
    "overhead": "start-up and saving",
    "faults": "faults",
    "out": "out of service",
    "idle": "idle",
}


class CampaignView:
    """Live view of a search: context manager and ``on_event`` of ``run_search``.

    The table is drawn, and a line gets its summary, at most twice a second. The goodput is that
    of this controller; ``hydragnn status`` counts earlier ones too.
    """

    def __init__(self, out: Path, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._console = console or PlainConsole(work=True)
        self._clock = clock
        self._live: Live | None = None
        self._builder = TimelineBuilder()
        self._next = -math.inf
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
        now = state.session_start + seconds - state.spent
        self._builder.observe(event, state, now)
        self._latest = (state, now)
        if self._live is None:
            self._print(state, event)
        elif self._clock() >= self._next:
            self._draw()

    def _print(self, state: State, event: Event) -> None:
        line = event_line(state, event)
        if line and isinstance(event, Reached) and self._clock() >= self._next:
            line = f"{line}; {status_line(self._status())}"
        if line:
            self._console.print(line, soft_wrap=True)

    def _draw(self) -> None:
        if self._live is None or self._latest is None:
            return
        state, _ = self._latest
        shown = shown_trials(state)
        table = trial_table(state, shown, self._progress(shown))
        self._live.update(Group(table, status_line(self._status())), refresh=True)

    def _status(self) -> CampaignStatus:
        """Return the status now, and delay the next if this took long."""
        assert self._latest is not None
        state, now = self._latest
        begun = self._clock()
        status = status_of(state, self._builder, self._out, now)
        self._next = begun + max(PAUSE, (self._clock() - begun) / BUSY)
        return status

    def _progress(self, shown: Sequence[Trial]) -> dict[int, RunRecord]:
        """Return records of running trials, as far as they have one."""
        records: dict[int, RunRecord] = {}
        for trial in shown:
            try:
                if trial.status == "running":
                    records[trial.number] = read_record(trial_folder(self._out, trial.number))
            except InputError:
                continue  # no epoch is done yet
        return records


@contextmanager
def _journal_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("journal"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("journal", total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)


def show_status(
    folder: Path,
    *,
    watch: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the status of a campaign; with ``watch``, until its end.

    InputError where the folder holds no campaign.
    """
    console = console or PlainConsole()
    follower = Follower(folder)
    with _journal_progress(console) as show:
        follower.update(show)
    if watch and not as_json and console.is_terminal:
        _watch_live(follower, console, sleep)
        return
    status = follower.status()
    _print(status, console, as_json=as_json, brief=False)
    while watch and status.status not in ENDINGS:
        sleep(INTERVAL)
        if follower.update():
            status = follower.status()
            _print(status, console, as_json=as_json, brief=True)


def _watch_live(follower: Follower, console: Console, sleep: Callable[[float], None]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = follower.status()
            live.update(status_table(status), refresh=True)
            if status.status in ENDINGS:
                return
            sleep(INTERVAL)
            follower.update()


def _print(status: CampaignStatus, console: Console, *, as_json: bool, brief: bool) -> None:
    if as_json:
        console.file.write(json.dumps(status.to_json(), allow_nan=False) + "\n")
        console.file.flush()
    elif brief:
        console.print(status_line(status), soft_wrap=True)
    else:
        console.print(status_table(status))


def status_table(status: CampaignStatus) -> Table:
    """The status, one line of the table for every question."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, lines in status_rows(status).items():
        table.add_row(Text(key, style="bold"), "\n".join(lines))
    return table


def status_rows(status: CampaignStatus) -> dict[str, list[str]]:
    """Return the lines of a status by question."""
    rows = {
        "campaign": [status.campaign],
        "status": [_status_text(status)],
        "trials": [_trials_text(status)],
        "best": [_best_text(status)],
        "sampler": [status.sampler, *([_stand_ins_text(status)] if status.stand_ins else [])],
        "rungs": [
            f"epoch {rung.epochs}: {rung.reached} reached it"
            + ("" if rung.best is None else f", best {rung.best:.4g} (trial {rung.trial})")
            for rung in status.rungs
        ],
        "nodes": [_nodes_text(status)] if status.status in ("running", "silent") else [],
        "goodput": [_goodput_text(status)] if status.goodput is not None else [],
        "faults": [_fault_text(status, number) for number in range(len(status.faults))] or ["none"],
        "machine": [_trouble_text(status)] if status.trouble is not None else [],
        "together": [status.together] if status.together else [],
        "costs": [_costs_text(status)],
        "budget": [f"{budget.name}: {budget.used:.3g} of {budget.limit:.3g}" for budget in status.budgets],
        "forecast": [_forecast_text(status)] if status.forecast is not None else [],
    }
    return {key: lines for key, lines in rows.items() if lines}


def status_line(status: CampaignStatus) -> str:
    """The status in one line."""
    parts = [
        f"{duration_text(status.seconds)}: {WORDS[status.status]}",
        f"trials {_trials_text(status)}",
        "no result yet" if status.best is None else f"best {status.best.value:.4g} (trial {status.best.trial})",
        status.nodes.text,
        "" if status.goodput is None else f"goodput {100 * status.goodput:.0f} %",
        "" if status.forecast is None else _forecast_text(status),
    ]
    return "; ".join(part for part in parts if part)


def _status_text(status: CampaignStatus) -> str:
    text = f"{WORDS[status.status]}, {duration_text(status.seconds)} of campaign"
    if status.status == "silent":
        return (
            f"{text}; nothing since {duration_text(status.silence)}: if its controller is gone, continue with --resume"
        )
    return text


def _trials_text(status: CampaignStatus) -> str:
    count = sum(status.trials.values()) - status.trials["asked"]
    counts = [f"{status.trials[key]} {word}" for key, word in TRIALS.items() if status.trials[key]]
    return f"{count} of {status.planned}" + (f": {', '.join(counts)}" if counts else "")


def _best_text(status: CampaignStatus) -> str:
    if status.best is None:
        return "no result yet"
    return f"trial {status.best.trial}: {status.best.value:.4g} ({values_line(status.best.values)})"


def _stand_ins_text(status: CampaignStatus) -> str:
    log = Path(status.campaign) / SAMPLER_LOG
    return f"had no configuration in time for {status.stand_ins} trial(s), which were drawn at random; if it failed, {log} says why"


def _nodes_text(status: CampaignStatus) -> str:
    names = status.nodes.quarantined
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return status.nodes.text + (f" ({shown})" if names else "")


def _goodput_text(status: CampaignStatus) -> str:
    hours = status.node_hours
    shares = {word: getattr(hours, key) / hours.allocated for key, word in USES.items() if key != "useful"}
    rest = ", ".join(f"{word} {100 * share:.1f} %" for word, share in shares.items() if share >= 5e-4)
    amount = _amount(hours.allocated, status.nodes.local)
    return f"{100 * (status.goodput or 0):.1f} % of {amount}" + (f" ({rest})" if rest else "")


def _amount(hours: float, local: bool) -> str:
    noun = "worker" if local else "node"
    return f"{hours:.3g} {noun}-hours" if hours >= 1 else f"{duration_text(3600 * hours)} of {noun} time"


def _fault_text(status: CampaignStatus, number: int) -> str:
    row = status.faults[number]
    where = f" on {row.nodes} node(s)" if row.nodes and not status.nodes.local else ""
    effect = "never told to the sampler" if not row.to_sampler else f"{row.to_sampler} told to the sampler"
    lost = f", {_amount(row.node_hours, status.nodes.local)} lost" if row.node_hours else ""
    kind = "cut off with the controller" if row.kind == "cut" else row.kind.replace("_", " ")
    return f"{row.count} x {kind} in {row.trials} trial(s){where}{lost}; {effect}"


def _trouble_text(status: CampaignStatus) -> str:
    """Return outages of the machine in words."""
    trouble = status.trouble
    assert trouble is not None
    times = f"{trouble.number} time(s) so far"
    if trouble.since is None:
        return f"in order; in trouble {times}, for which no trial and no node was blamed"
    row = f", {trouble.spells} in a row" if trouble.spells > 1 else ""
    pause = "" if trouble.until is None else f"; no start before {_moment(trouble.until)}, then a few attempts try it"
    return f"in trouble since {_moment(trouble.since)} ({times}{row}){pause}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _costs_text(status: CampaignStatus) -> str:
    costs = status.costs
    if costs.error is None:
        return f"{costs.measured} trial(s) measured, too few to predict others"
    text = f"seconds per epoch predicted within {100 * costs.error:.0f} % on average, from {costs.measured} trials"
    if costs.scaling is None:
        return text
    return f"{text}; " + (
        "more nodes lose no speed"
        if costs.scaling >= NO_LOSS
        else f"half of the speed is lost at {costs.scaling:.3g} nodes"
    )


def _forecast_text(status: CampaignStatus) -> str:
    assert status.forecast is not None
    duration = duration_text(status.forecast.seconds)
    if status.forecast.by == "finished":
        return f"about {duration} left"
    return f"{status.forecast.by.replace('_', '-')} end it in {duration}, before all trials are done"


def shown_trials(state: State) -> list[Trial]:
    """Return trials for the table: running ones, then the best."""
    running = heapq.nsmallest(ROWS, state.active)
    resting = (trial for trial in state.trials.values() if trial.results and trial.status != "running")
    best = heapq.nsmallest(ROWS - len(running), resting, key=lambda t: (-len(t.results), t.results[-1], t.number))
    return [*(state.trials[number] for number in running), *best]


def trial_table(
    state: State,
    shown: Sequence[Trial],
    progress: Mapping[int, RunRecord],
) -> Table:
    """Return a table with one row per trial."""
    table = Table(expand=True)
    for heading, width in (("trial", 5), ("state", 8), ("epoch", 7), ("objective", 9), ("graphs/s", 8)):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True, min_width=width)
    table.add_column("configuration", no_wrap=True, overflow="ellipsis", ratio=1)
    best = state.best
    for trial in shown:
        style = "bold" if best is not None and trial.number == best.number else None
        table.add_row(*_row(state, trial, progress.get(trial.number)), style=style)
    return table


def event_line(state: State, event: Event) -> str:
    """Return a line for an event with news; empty for others."""
    match event:
        case Opened():
            note = f", {len(state.trials)} trials known" if event.plan.trials and state.spent else ""
            return f"{event.plan.trials} trials on {slots_text(event.slots)}, rungs {_rungs(state)}{note}"
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


def slots_text(slots: Sequence[str]) -> str:
    """Return slots in words.

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
