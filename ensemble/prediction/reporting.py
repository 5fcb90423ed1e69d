"""Plan, progress bar and result of a prediction."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from hydragnn.base.errors import InputError, print_note
from hydragnn.base.files import read_sealed, write_sealed
from hydragnn.base.machine import cores, visible_gpus
from hydragnn.base.shown import Shown
from hydragnn.base.terminal import PlainConsole
from hydragnn.ensemble.prediction.job import PredictionJob
from hydragnn.ensemble.prediction.parts import COUNTS
from hydragnn.ensemble.prediction.schedule import Schedule
from hydragnn.record import Usage

PLAN = {"planned", "measured"}
"""Keys of the plan beside a prediction."""


def plan_line(plan: Mapping[str, int]) -> str:
    """Return the plan in a line."""
    ranks, threads = plan["ranks"], plan["threads"]
    idle = 0 if ranks > 1 or visible_gpus() else cores() - threads
    return (
        f"plan: {plan['units']} units in {plan['tasks']} tasks on {ranks} rank{'s' * (ranks > 1)} of {threads} thread"
        f"{'s' * (threads > 1)}{f'; idle cores: {idle} (--workers auto)' if idle > 0 else ''}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionResult(Shown):
    """A prediction that is written to a file."""

    out: Path
    graphs: int
    failed: int
    """Graphs that could not be predicted; the file has the reason of each."""
    outside_training_domain: int | None
    """Graphs that do not look like the training data, as the file says; None where the model has no training domain."""
    reasons: Mapping[str, int]
    """Graphs by reason of failure or of doubt, without numbers; the commonest."""
    ranks_lost: int
    """Ranks that died on the way; others did their work."""
    units: int
    """Batches of graphs that were to be predicted."""
    units_resumed: int
    """Units that an earlier, interrupted prediction had done."""
    ranks: int
    """Processes that predicted together."""
    busy_seconds: tuple[float, ...]
    """Time that every rank spent with units."""
    seconds: float
    """Time of the whole prediction."""
    seconds_of: Mapping[str, float]
    """Time by stage: preparing, predicting, writing what was not joined before."""
    usage: Usage
    """Seconds of all ranks while they predict, by phase (read, compute, write, wait), the share without waits, and energy."""
    graphs_per_second: float
    """Graphs of this call per second; those of resumed units are left out, as if units were alike."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return {**asdict(self), "out": str(self.out), "busy_seconds": list(self.busy_seconds)}

    def table(self) -> dict[str, Any]:
        """Return what people want to know at the end."""
        phases = self.usage.phases
        shares = [f"{name} {100 * seconds / sum(phases.values()):.0f} %" for name, seconds in phases.items() if seconds]
        return {
            "predictions": str(self.out),
            "graphs": self.graphs,
            "failed": self.failed,
            **({} if (foreign := self.outside_training_domain) is None else {"outside the training domain": foreign}),
            **({"because": dict(self.reasons)} if self.reasons else {}),
            **({"ranks lost": self.ranks_lost} if self.ranks_lost else {}),
            "seconds": self.seconds,
            "graphs per second": self.graphs_per_second,
            "time of ranks": ", ".join(shares),
        }

    def __str__(self) -> str:
        """Return counts of graphs and the speed."""
        words = f", {foreign} outside the training domain" if (foreign := self.outside_training_domain) else ""
        return (
            f"{self.out}: {self.graphs - self.failed} of {self.graphs} graphs predicted{words}; "
            f"{self.graphs_per_second:.3g} graphs/s"
        )


def prediction_result(
    job: PredictionJob,
    schedule: Schedule,
    counts: Mapping[str, int],
    accounts: Sequence[dict[str, Any]],
    seconds_of: Mapping[str, float],
) -> PredictionResult:
    """Return the result, and write plan and measurements beside the predictions."""
    measured = measured_course(accounts, schedule)
    usage = usage_of(accounts, measured["makespan"], job.graph_ranks)
    try:
        write_sealed(job.plan, {"planned": schedule.plan, "measured": {**measured, "usage": asdict(usage)}})
    except InputError as error:  # the predictions are complete
        print_note(str(error))
    seconds, own = sum(seconds_of.values()), (*COUNTS, "ranks_lost")
    reasons = Counter({name: count for name, count in counts.items() if name not in own})
    return PredictionResult(
        out=job.out,
        **{name: counts[name] for name in own},
        reasons=dict(sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:5]),  # ranks count in any order
        units=schedule.units,
        units_resumed=schedule.resumed,
        ranks=schedule.ranks,
        busy_seconds=tuple(measured["busy"]),
        seconds=seconds,
        seconds_of=seconds_of,
        usage=usage,
        graphs_per_second=counts["graphs"] * (1 - schedule.resumed / (schedule.units or 1)) / seconds,
    )


@contextmanager
def moving_bar(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that moves a progress bar."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task("predicting", total=total)
        yield lambda units: progress.update(task, completed=units)


def measured_course(accounts: Sequence[dict[str, Any]], schedule: Schedule) -> dict[str, Any]:
    """Return measured makespan, and busy seconds of ranks.

    A rank that died or still hangs left no account.
    """
    begin = min((account["began"] for account in accounts), default=0.0)
    makespan = max((account["ended"] for account in accounts), default=0.0) - begin
    return {
        "ranks_heard": len(accounts),
        "units_done": schedule.units - schedule.resumed,
        "makespan": makespan,
        "largest": max((account["largest"] for account in accounts), default=0.0),
        "busy": [round(account["busy"], 3) for account in sorted(accounts, key=lambda account: int(account["rank"]))],
    }


def usage_of(accounts: Sequence[dict[str, Any]], makespan: float, graph_ranks: int = 1) -> Usage:
    """Return how ranks spent the time until the last of them ended, and their work.

    Energy is unknown where one rank does not know its own; energy and work are where ranks share batches.
    """
    every = [account["phases"] for account in accounts]
    phases = {name: sum((own[name] for own in every), 0.0) for name in ("read", "compute", "write")}
    work, total = sum(phases.values()), makespan * len(accounts)
    usage = Usage(phases={**phases, "wait": max(0.0, total - work)}, busy=min(1.0, work / total) if total else None)
    if graph_ranks > 1:
        return usage
    flops, moved = map(sum, zip((0.0, 0.0), *(account["work"] for account in accounts)))
    peak_flops, peak_bytes = map(max, zip((0.0, 0.0), *(account["peaks"] for account in accounts)))
    usage = replace(usage, flops=flops, bytes=moved, peak_flops=peak_flops, peak_bytes=peak_bytes)
    sources = dict.fromkeys(account["energy_source"] for account in accounts)
    if None in sources or not sources:
        return usage
    return replace(usage, joules=sum(account["joules"] for account in accounts), energy_source="; ".join(sources))


def check_plan(plan: Path) -> None:
    """Raise InputError where ``plan`` is no plan of a prediction."""
    if not os.path.lexists(plan):
        return
    try:
        earlier = read_sealed(plan)
    except InputError:
        earlier = None
    if not isinstance(earlier, dict) or earlier.keys() != PLAN:
        raise InputError(f"{plan} exists already and is no plan of a prediction; choose another --out or move it away")
