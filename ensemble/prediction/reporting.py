"""What a prediction says: its plan, a bar while it runs, what became of the plan; and how it is told to stop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress

from hydragnn.ensemble.prediction.job import Job
from hydragnn.ensemble.prediction.schedule import Schedule
from hydragnn.ensemble.prediction.work import happened
from hydragnn.files import write_json


def plan_line(certificate: dict[str, Any]) -> str:
    """The plan in a line."""
    return (
        f"plan: {certificate['units']:.0f} units in {certificate['bundles']} bundles on {certificate['workers']:.0f} ranks; "
        f"makespan {certificate['ratio']:.3f} x the lower bound"
    )


def summary(
    job: Job, schedule: Schedule, counts: Mapping[str, int], accounts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """What was predicted, the plan and what became of it by the ranks' accounts; also written beside the predictions."""
    planned, measured = schedule.certificate(), happened(accounts, schedule.ranks)
    redone = {(chunk, member) for account in accounts for chunk, member, _ in account["units"]}
    there = [unit for bundle in schedule.there for unit in bundle.units]
    write_json(job.plan, {"planned": planned, "measured": measured})
    return {
        "out": str(job.out),
        **counts,
        "units": len(schedule.units),
        "units_resumed": sum((unit.chunk, unit.member) not in redone for unit in there),
        "ranks": schedule.ranks,
        "planned_makespan_over_bound": planned["ratio"],
        "measured_makespan_over_bound": measured["ratio"],
        "busy_seconds": measured["busy"],
    }


@contextmanager
def moving_bar(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal; called with the units that were taken from a queue, or, negative, with all of a queue."""
    console, dry = Console(stderr=True), [0]
    with Progress(console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task("predicting", total=total)

        def moved(units: int) -> None:
            if units < 0:
                dry[0] -= units
            progress.update(task, completed=dry[0] + max(0, units))

        yield moved
