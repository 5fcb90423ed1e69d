"""What a prediction says: its plan, a bar while it runs, what became of the plan; and how it is told to stop."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed, write_sealed
from hydragnn.base.machine import cores, visible_gpus
from hydragnn.base.terminal import PlainConsole
from hydragnn.ensemble.prediction.job import Job
from hydragnn.ensemble.prediction.schedule import Schedule

PLAN = {"planned", "measured"}
"""What the plan beside a prediction holds."""


def plan_line(certificate: dict[str, Any]) -> str:
    """The plan in a line; where one process leaves cores idle that workers would use, it says so."""
    ranks, threads = certificate["workers"], certificate["threads"]
    idle = 0 if ranks > 1 or visible_gpus() else cores() - threads
    return (
        f"plan: {certificate['units']:.0f} units in {certificate['bundles']} bundles on {ranks:.0f} rank{'s' * (ranks > 1)} "
        f"of {threads} thread{'s' * (threads > 1)}; makespan {certificate['ratio']:.3f} x the lower bound"
        f"{f'; idle cores: {idle} (--workers auto)' if idle > 0 else ''}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionResult:
    """A prediction that is written to a file."""

    out: Path
    graphs: int
    failed: int
    """Graphs that could not be predicted; the file has the reason of each."""
    outside_training_domain: int
    """Graphs that do not look like the training data; the file says what is foreign about each."""
    ranks_lost: int
    """Ranks that died on the way; others did their work."""
    units: int
    """Pieces of work: one batch of graphs through one member."""
    units_resumed: int
    """Units that an earlier, interrupted prediction had done."""
    ranks: int
    """Processes that predicted together."""
    planned_makespan_over_bound: float
    """Time that the plan takes over the least that so many ranks could take; 1 is perfect balance."""
    measured_makespan_over_bound: float
    """The same of what really happened."""
    busy_seconds: tuple[float, ...]
    """Time that every rank spent with units."""
    seconds: float
    """Time of the whole prediction."""
    seconds_of: Mapping[str, float]
    """Time by stage: preparing, predicting, combining (members' words become pieces of the file, on all ranks), writing."""
    graphs_per_second: float

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {**asdict(self), "out": str(self.out), "busy_seconds": list(self.busy_seconds)}

    def __str__(self) -> str:
        """What is in the file, and how fast it came."""
        foreign = (
            f", {self.outside_training_domain} outside the training domain" if self.outside_training_domain else ""
        )
        return (
            f"{self.out}: {self.graphs - self.failed} of {self.graphs} graphs predicted{foreign}; "
            f"{self.graphs_per_second:.3g} graphs/s"
        )


def prediction_result(
    job: Job,
    schedule: Schedule,
    counts: Mapping[str, int],
    accounts: Sequence[dict[str, Any]],
    entries: NDArray[Any],
    seconds_of: Mapping[str, float],
) -> PredictionResult:
    """What was predicted, the plan and what became of it by the ranks' accounts and the ``entries`` of what was kept; the latter also written beside the predictions."""
    planned, measured = schedule.certificate, measured_course(accounts, entries, schedule.ranks)
    there = len(schedule.there.units)
    try:
        write_sealed(job.plan, {"planned": planned, "measured": measured})
    except InputError as error:  # the predictions are complete
        print(f"note: {error}", file=sys.stderr, flush=True)
    seconds = sum(seconds_of.values())
    return PredictionResult(
        out=job.out,
        **counts,
        units=schedule.units,
        units_resumed=there - max(0, measured["units_done"] - (schedule.units - there)),
        ranks=schedule.ranks,
        planned_makespan_over_bound=planned["ratio"],
        measured_makespan_over_bound=measured["ratio"],
        busy_seconds=tuple(measured["busy"]),
        seconds=seconds,
        seconds_of=seconds_of,
        graphs_per_second=counts["graphs"] / seconds,
    )


@contextmanager
def moving_bar(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal; called with the units that were taken from a queue, or, negative, with all of a queue."""
    console, dry = PlainConsole(stderr=True), [0]
    with Progress(console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task("predicting", total=total)

        def moved(units: int) -> None:
            if units < 0:
                dry[0] -= units
            progress.update(task, completed=dry[0] + max(0, units))

        yield moved


def measured_course(accounts: Sequence[dict[str, Any]], entries: NDArray[Any], ranks: int) -> dict[str, Any]:
    """The makespan that was measured against the bound that these costs leave, and the busy time of every rank.

    The bound is that of the work done once, at its least cost, by the ``entries`` of what was kept. A rank that died or still
    hangs left no account.
    """
    done = entries[entries["units"] > 0]
    done = done[np.lexsort((done["seconds"], done["member"], done["chunk"]))]
    keys = np.stack([done["chunk"], done["member"]])
    once = done[(np.diff(keys, axis=1, prepend=-2) != 0).any(axis=0)]
    begin = min((account["began"] for account in accounts), default=0.0)
    makespan = max((account["ended"] for account in accounts), default=0.0) - begin
    bound = max(float(once["seconds"].sum()) / ranks, float(once["largest"].max(initial=0.0)))
    return {
        "ranks_heard": len(accounts),
        "units_done": int(once["units"].sum()),
        "units_done_again": int(done["units"].sum() - once["units"].sum()),
        "makespan": makespan,
        "lower_bound": bound,
        "ratio": makespan / bound if bound > 0 else 1.0,
        "busy": [round(account["busy"], 3) for account in sorted(accounts, key=lambda account: int(account["rank"]))],
    }


def check_plan(plan: Path) -> None:
    """Raise InputError where ``plan``, which the prediction will replace, is no plan of an earlier one."""
    if not os.path.lexists(plan):
        return
    try:
        before = read_sealed(plan)
    except InputError:
        before = None
    if not isinstance(before, dict) or before.keys() != PLAN:
        raise InputError(f"{plan} exists already and is no plan of a prediction; choose another --out or move it away")
