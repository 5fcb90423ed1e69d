"""The table of ``hydragnn bench`` as it is printed, and what is at work on a terminal until then."""

from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hydragnn.base.files import write_json
from hydragnn.scripts.bench.table import Effort, as_json, bench_table

WIDTH = 140
"""Of the table in files and pipes."""


def show_table(effort: Effort, only: str, out: Path | None) -> None:
    """Measure, print one table and write it to ``out``, if given; InputError where there is no section ``only``."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        rows = [*bench_table(effort, only, lambda what: progress.update(task, description=what))]
    table = Table("what", "measured", "", "asked", "device")
    for row in rows:
        table.add_row(row.what, "" if row.measured is None else f"{row.measured:.3g}", row.unit, row.asked, row.device)
    paper = Console()
    Console(width=None if paper.is_terminal else WIDTH).print(table)
    if out is not None:
        write_json(out, as_json(rows))
