"""Results of commands as tables, texts and JSON."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import typer
from rich.console import RenderableType
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hydragnn.base.terminal import PlainConsole, visible
from hydragnn.record import RunRecord

WIDTH = 120  # of what is printed elsewhere than in a terminal


def run_summary(record: RunRecord, out: Path) -> dict[str, Any]:
    """Return a run's ending and best validation errors beside the trivial predictor's."""
    errors = {name: value for name, value in record.best.items() if name.startswith("valid/")}
    return {
        "run": str(out),
        "status": record.status,
        "failure": None if record.failure is None else f"{record.failure.kind}: {record.failure.message}",
        "epochs": record.epochs,
        "parameters": record.parameters,
        **({"inputs that the model does not see": ", ".join(record.unseen_inputs)} if record.unseen_inputs else {}),
        **({"labels": missing} if (missing := missing_labels(record)) else {}),
        **({"continued": "; ".join(record.continued)} if record.continued else {}),
        **({"notes": "; ".join(record.notes)} if record.notes else {}),
        **({"errors on data of the start": worse} if (worse := forgotten(record)) else {}),
        "best epoch": record.best.get("epoch"),
        "best": errors,
        "trivial predictor": record.trivial,
        "graphs per second": record.cost.graphs_per_second,
        "seconds": record.cost.seconds,
    }


def forgotten(record: RunRecord) -> dict[str, str]:
    """Return errors on the start's test part, before and after fine-tuning."""
    errors = record.start.get("forgetting", {}).get("errors", {})
    return {
        name: f"{own['before']:.4g} before, {own['after']:.4g} after"
        for name, own in errors.items()
        if name.endswith(("/mae", "/accuracy")) and None not in own.values()
    }


def missing_labels(record: RunRecord) -> dict[str, str]:
    """Return counts of labelled graphs by part, of incompletely labelled targets."""
    missing = {}
    for target, counts in record.labels.items():
        parts = record.branches[name].parts if (name := target.partition("@")[2]) else record.parts
        if any(count < parts[part] for part, count in counts.items()):
            words = [f"{part} {count} of {parts[part]}" for part, count in counts.items() if parts[part]]
            missing[target] = ", ".join(words)
    return missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Result of a command."""

    value: Any
    """JSON, which is also the table for people unless there is another."""
    table: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    lines: Sequence[str] = ()
    """Lines for people below the table."""
    note: str = ""
    """Line on stderr for people and machines."""
    code: int = 0
    """Exit code."""


def show(result: Any, as_json: bool) -> None:
    """Print the result of a command; typer.Exit with its code."""
    if not isinstance(result, Result):
        result = Result(value=result if isinstance(result, dict) else result.to_json())
    if as_json:
        print(json.dumps(result.value, allow_nan=False))
    else:
        if value := result.value if result.table is None else result.table:
            table: RenderableType = _shown(value)
            if isinstance(value, dict):
                table = Table(show_header=False, box=None, pad_edge=False)
                for key, item in value.items():
                    table.add_row(Text(visible(key), style="bold"), _shown(item))
            PlainConsole(width=None if PlainConsole().is_terminal else WIDTH).print(table)
        for line in result.lines:
            PlainConsole().print(line, soft_wrap=True)
    if result.note:
        print(result.note, file=sys.stderr, flush=True)
    if result.code:
        raise typer.Exit(result.code)


def leave_together(value: Any, as_json: bool, code: int = 0) -> NoReturn:
    """Show the value on the first rank, and end all."""
    from hydragnn.distributed import leave, this_launch

    if this_launch().rank == 0:
        show(value, as_json)
    leave(code)


@contextmanager
def progress(*columns: ProgressColumn, quiet: bool, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a task's progress on a terminal; gives a function of updates."""
    console = PlainConsole(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield partial(bar.update, bar.add_task("", total=None, **fields))


@contextmanager
def graphs_made(quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many graphs were made, with their rate."""
    text = TextColumn("{task.completed:,.0f} graphs, {task.fields[rate]} per second")
    started = monotonic()
    with progress(SpinnerColumn(), text, TimeElapsedColumn(), quiet=quiet, rate="?") as update:

        def tell(graphs: int) -> None:
            update(completed=graphs, rate=f"{graphs / max(monotonic() - started, 1e-9):,.0f}")

        yield tell


def _shown(item: Any) -> RenderableType:
    """Return a text, or a table for a list of uniform rows."""
    rows = item if isinstance(item, list) else []
    if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        return _text(item)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in rows[0]:
        table.add_column(visible(name), overflow="fold")
    for row in rows:
        table.add_row(*(_inner(inner) for inner in row.values()))
    return table


def _inner(item: Any) -> str:
    """Return one line for a nested value."""
    if isinstance(item, list):
        return ", ".join(map(_inner, item))
    return json.dumps(item) if isinstance(item, dict) else _text(item)


def _text(item: Any) -> str:
    if item is None:
        return "none"
    if isinstance(item, float):
        return f"{item:.6g}"
    if isinstance(item, dict):
        return "\n".join(f"{key}: {_inner(inner)}" for key, inner in item.items())
    if isinstance(item, list):
        return "\n".join(_text(inner) for inner in item) or "none"
    return str(item)
