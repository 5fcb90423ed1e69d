"""View of a campaign: one table, plain lines, or JSON."""

import heapq
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hydragnn.base.errors import InputError, own_code
from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo.controller import trial_folder
from hydragnn.hpo.folder import SAMPLER_LOG
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Proposed, Reached, Stopping, node_of
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.status import facts
from hydragnn.hpo.status.facts import CampaignStatus
from hydragnn.hpo.status.timeline import USES, FaultRow, TimelineBuilder, local_nodes, short
from hydragnn.record import read_record

FRONT = 8  # trials of a front that a status names
ROWS = 12  # running trials shown at once
REASONS = 5  # reasons of failed trials that are shown, of one kind of fault
PAUSE = 0.5  # seconds between two views of the campaign, at least
BUSY = 0.05  # part of the time that views may take
INTERVAL = 2.0  # seconds between two looks at the journal
NO_LOSS = 10_000  # nodes at half of the speed from which no loss is measurable

WORDS: dict[str, str] = {
    "running": "running",
    "silent": "no sign of life",
    "begun": "begun, nothing has happened yet",
    **facts.ENDINGS,
}


class CampaignView:
    """Live view of a search: context manager and ``on_event`` of ``run_search``.

    The table is drawn, and a line gets its summary, at most twice a second. As often ``callback`` gets the status after results, the last one in
    any case. Goodput, hours of nodes and faults are those of this controller; ``hydragnn status`` counts earlier ones too.
    """

    def __init__(
        self,
        out: Path,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        quiet: bool = False,
        callback: Callable[[CampaignStatus], object] | None = None,
    ) -> None:
        self._out, self._clock, self._callback = out, clock, callback
        self._console = console or PlainConsole(quiet=quiet, work=True)
        self._live = None
        if self._console.is_terminal and not quiet:
            self._live = Live(console=self._console, auto_refresh=False)
        self._builder = TimelineBuilder()
        self._next = self._next_call = -math.inf
        self._now, self._news = 0.0, False

    def __enter__(self) -> "CampaignView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._draw(self._live)
            self._live.stop()

    def __call__(self, state: State, event: Event, seconds: float) -> None:
        """Show what an event changed; InputError where the callback fails."""
        self._now = state.session_start + seconds - state.spent
        self._builder.observe(event, state, self._now)
        if self._live is not None:
            if self._clock() >= self._next:
                self._draw(self._live)
        elif not self._console.quiet and (line := event_line(state, event)):
            if isinstance(event, Reached) and self._clock() >= self._next:
                status, self._next = self._status()
                line = f"{line}; {status_line(status)}"
            self._console.print(line, soft_wrap=True)
        self._news = self._news or isinstance(event, Reached | Failed)
        if self._callback is not None and self._news and (state.closed or self._clock() >= self._next_call):
            self._news, (status, self._next_call) = False, self._status()
            with own_code("the callback of the search", "repair it, and continue with resume"):
                self._callback(status)

    def _draw(self, live: Live) -> None:
        if self._now:
            status, self._next = self._status()
            live.update(status_table(status, running_lines(self._builder.state, self._out)), refresh=True)

    def _status(self) -> tuple[CampaignStatus, float]:
        """Return the status now, and the time of the next."""
        begun = self._clock()
        status = facts.status_of(self._builder, self._out, self._now)
        return status, begun + max(PAUSE, (self._clock() - begun) / BUSY)


def show_status(
    folder: Path,
    *,
    watch: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print the status of a campaign; with ``watch``, until its end."""
    console = console or PlainConsole()
    follower = facts.Follower(folder)
    brief, live = False, watch and not as_json and console.is_terminal
    with Live(console=console, auto_refresh=False) if live else nullcontext() as screen:
        while True:
            status = follower.status()
            if as_json:
                console.file.write(json.dumps(status.to_json(), allow_nan=False) + "\n")
                console.file.flush()
            elif brief and screen is None:
                console.print(status_line(status), soft_wrap=True)
            else:
                table = status_table(status, running_lines(follower.builder.state, folder))
                console.print(table) if screen is None else screen.update(table, refresh=True)
            if not watch or status.status in facts.ENDINGS:
                return
            brief = True
            sleep(INTERVAL)
            while not follower.update() and screen is None:
                sleep(INTERVAL)


def status_table(status: CampaignStatus, running: Sequence[str] = ()) -> Table:
    """Return the status, one line of the table for every question."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, lines in {**status_rows(status), **({"running": running} if running else {})}.items():
        table.add_row(Text(key, style="bold"), "\n".join(lines))
    return table


def running_lines(state: State, folder: Path) -> list[str]:
    """Return the progress of the first running trials, one per line."""
    lines = []
    for trial in (state.trials[number] for number in heapq.nsmallest(ROWS, state.active)):
        epochs, speed = trial.epochs, ""
        try:
            record = read_record(trial_folder(folder, trial.number))
        except InputError:
            pass  # no epoch is done yet
        else:
            epochs = max(epochs, record.epochs)
            speed = f", {record.cost.graphs_per_second:.0f} graphs/s" if record.cost.graphs_per_second else ""
            speed += "" if record.usage.busy is None else f", {100 * record.usage.busy:.0f} % busy"
        until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
        lines.append(f"trial {trial.number}: epoch {epochs} of {until}{speed}; {facts.values_line(trial.values)}")
    return lines


def status_rows(status: CampaignStatus) -> dict[str, list[str]]:
    """Return the lines of a status by question."""
    best, nodes, sampler = status.best, status.nodes, [status.sampler] if status.sampler else []
    if status.stand_ins:
        log = Path(status.campaign) / SAMPLER_LOG
        sampler.append(
            f"had no configuration in time for {status.stand_ins} trial(s), which were drawn at random; if it failed, {log} says why"
        )
    state = f"{WORDS[status.status]}, {facts.duration(status.seconds)} of campaign"
    if status.status == "silent":
        silence = facts.duration(status.silence)
        state += f"; nothing since {silence}: if its controller is gone, continue with --resume"
    out = _first(nodes.quarantined)
    rows = {
        "campaign": [status.campaign],
        "status": [state],
        "trials": [_trials_text(status)],
        "best": [_trial_text(best) if best is not None else "no result yet"],
        "front": [
            f"{', '.join(status.objectives)}: "
            + (
                f"{len(status.front)} trial(s)"
                if status.front or not status.trials["finished"]
                else "no finished trial meets all bounds; the best is nearest"
            ),
            *map(_trial_text, status.front[:FRONT]),
            *([f"and {len(status.front) - FRONT} more (hydragnn report)"] if len(status.front) > FRONT else []),
        ]
        if status.objectives
        else [],
        "sampler": sampler,
        "rungs": [
            f"epoch {rung.epochs}: {rung.reached} reached it"
            + ("" if rung.best is None else f", best {rung.best:.6g} (trial {rung.trial})")
            for rung in status.rungs
        ],
        "nodes": [nodes.text + (f" ({out})" if out else "")] if status.status in ("running", "silent") else [],
        "goodput": [_goodput_text(status)] if status.goodput is not None else [],
        "faults": [line for row in status.faults for line in _fault_lines(row, nodes.noun)] or ["none"],
        "machine": [_trouble_text(status.trouble)] if status.trouble is not None else [],
        "costs": [_costs_text(status.costs)] if status.costs.measured else [],
        "budget": [f"{budget.name}: {budget.used:.3g} of {budget.limit:.3g}" for budget in status.budgets],
        "forecast": [_forecast_text(status)],
    }
    return {key: lines for key, lines in rows.items() if any(lines)}


def status_line(status: CampaignStatus) -> str:
    """Return the status in one line."""
    parts = [
        f"{facts.duration(status.seconds)}: {WORDS[status.status]}",
        f"trials {_trials_text(status)}",
        "no result yet"
        if status.best is None
        else f"best {_numbers(status.best.value, status.best.others)} (trial {status.best.trial})",
        status.nodes.text,
        "" if status.goodput is None else f"goodput {100 * status.goodput:.0f} %",
        _forecast_text(status),
    ]
    return "; ".join(part for part in parts if part)


def _trial_text(best: facts.Best) -> str:
    return f"trial {best.trial}: {_numbers(best.value, best.others)} ({facts.values_line(best.values)})"


def _numbers(value: float, others: Sequence[float]) -> str:
    return ", ".join(f"{one:.6g}" for one in (value, *others))


def _trials_text(status: CampaignStatus) -> str:
    count = sum(status.trials.values()) - status.trials["asked"]
    counts = facts.counts_text(status.trials)
    return f"{count} of {status.planned}" + (f": {counts}" if counts else "")


def _goodput_text(status: CampaignStatus) -> str:
    hours, noun = status.node_hours, status.nodes.noun
    rest = [f"{word} {100 * one / hours.allocated:.1f} %" for word, one in hours.uses.items() if word != USES["useful"]]
    amount = _amount(hours.allocated, noun)
    return f"{100 * (status.goodput or 0):.1f} % of {amount}" + (f" ({', '.join(rest)})" if rest else "")


def _amount(hours: float, noun: str) -> str:
    return f"{hours:.3g} {noun}-hours" if hours >= 1 else f"{facts.duration(3600 * hours)} of {noun} time"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _fault_lines(row: FaultRow, noun: str) -> list[str]:
    where = f" on {row.nodes} node(s)" if row.nodes and noun == "node" else ""
    effect = "never told to the sampler" if not row.to_sampler else f"{row.to_sampler} told to the sampler"
    lost = f", {_amount(row.node_hours, noun)} lost" if row.node_hours else ""
    which = [f"  trial {_first(list(map(str, trials)))}: {reason}" for reason, trials in row.reasons.items()]
    rest = [f"  and {len(which) - REASONS} reasons more (hydragnn report)"] if len(which) > REASONS else []
    return [f"{row.count} x {row.what} in {row.trials} trial(s){where}{lost}; {effect}", *which[:REASONS], *rest]


def _trouble_text(trouble: Mapping[str, int | float | None]) -> str:
    times, since, until = f"{trouble['number']} time(s) so far", trouble["since"], trouble["until"]
    if since is None:
        return f"in order; in trouble {times}, for which no trial and no node was blamed"
    pause = "" if until is None else f"; no start before {_moment(until)}, then a few attempts try it"
    return f"in trouble since {_moment(since)} ({times}){pause}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _costs_text(costs: facts.Costs) -> str:
    if costs.error is None:
        return f"{costs.measured} trial(s) measured, too few to predict others"
    text = f"seconds per epoch predicted within {100 * costs.error:.0f} % on average, from {costs.measured} trials"
    if costs.scaling is None:
        return text
    if costs.scaling >= NO_LOSS:
        return f"{text}; more nodes lose no speed"
    return f"{text}; half of the speed is lost at {costs.scaling:.3g} nodes"


def _forecast_text(status: CampaignStatus) -> str:
    if status.forecast is None:
        return ""
    rest = facts.duration(status.forecast.seconds)
    if status.forecast.by == "finished":
        return f"about {rest} left"
    return f"{status.forecast.by.replace('_', '-')} end it in {rest}, before all trials are done"


def event_line(state: State, event: Event) -> str:
    """Return a line for an event with news; empty for others."""
    match event:
        case Opened():
            note = f", {len(state.trials)} trials known" if event.plan.trials and state.spent else ""
            rungs = ", ".join(map(str, state.plan.rungs))
            return f"{event.plan.trials} trials on {slots_text(event.slots)}, rungs {rungs}{note}"
        case Proposed():
            return f"trial {event.trial}: {facts.values_line(state.trials[event.trial].values)}"
        case Reached():
            trial = state.trials[event.trial]
            word = "finished" if trial.status == "finished" else "reached a rung"
            return f"trial {event.trial} {word} at epoch {event.epochs}: {_numbers(event.value, event.others)}"
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
