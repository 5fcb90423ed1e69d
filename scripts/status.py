"""How a campaign stands, for people: a table that refreshes on a terminal, plain lines elsewhere, JSON for machines."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hydragnn.base.terminal import PlainConsole
from hydragnn.hpo.folder import SAMPLER_LOG
from hydragnn.hpo.status.facts import CampaignStatus, Follower, duration_text, values_line
from hydragnn.scripts.showing import journal_read

INTERVAL = 2.0
"""Seconds between two looks at the journal."""

NO_LOSS = 10_000
"""From so many nodes on at which half of the speed is lost, nothing is lost that could be measured."""

WORDS = {
    "running": "running",
    "silent": "no sign of life",
    "begun": "begun, nothing has happened yet",
    "finished": "all trials done",
    "hours": "max_hours spent; raise it and continue with --resume",
    "node_hours": "max_node_hours spent; raise it and continue with --resume",
    "walltime": "the allocation ended; continue with --resume",
    "stopped": "interrupted; continue with --resume",
    "hopeless": "every trial failed",
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
OVER = frozenset(WORDS) - {"running", "silent", "begun"}


def show_status(
    folder: Path,
    *,
    watch: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print how the campaign in ``folder`` stands; with ``watch`` again whenever it changed, until the campaign ends.

    InputError where the folder holds no campaign.
    """
    console = console or PlainConsole()
    follower = Follower(folder)
    with journal_read(console) as show:
        follower.update(show)
    if watch and not as_json and console.is_terminal:
        _watch_live(follower, console, sleep)
        return
    status = follower.status()
    _print(status, console, as_json=as_json, brief=False)
    while watch and status.status not in OVER:
        sleep(INTERVAL)
        if follower.update():
            status = follower.status()
            _print(status, console, as_json=as_json, brief=True)


def _watch_live(follower: Follower, console: Console, sleep: Callable[[float], None]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = follower.status()
            live.update(status_table(status), refresh=True)
            if status.status in OVER:
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
    """Every question that a status answers; those that do not apply are left out."""
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
    known = sum(status.trials.values()) - status.trials["asked"]
    counts = [f"{status.trials[key]} {word}" for key, word in TRIALS.items() if status.trials[key]]
    return f"{known} of {status.planned}" + (f": {', '.join(counts)}" if counts else "")


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
    """An amount of nodes' time; below one hour in a smaller unit."""
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
    """Whether the machine is in trouble, since when, and how often it was."""
    trouble = status.trouble
    assert trouble is not None
    times = f"{trouble.number} time(s) so far"
    if trouble.since is None:
        return f"in order; in trouble {times}, for which no trial and no node was blamed"
    row = f", {trouble.spells} in a row" if trouble.spells > 1 else ""
    pause = "" if trouble.until is None else f"; no start before {_moment(trouble.until)}, then a few attempts try it"
    return f"in trouble since {_moment(trouble.since)} ({times}{row}){pause}"


def _moment(seconds: float) -> str:
    """A time of the journal as local date and time."""
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
    left = duration_text(status.forecast.seconds)
    if status.forecast.by == "finished":
        return f"about {left} left"
    return f"{status.forecast.by.replace('_', '-')} end it in {left}, before all trials are done"
