"""Results of a recipe beside others, printed and kept as ``results.json``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hydragnn.record import RunRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure; ``goal`` is the largest value that the recipe promises, ``beside`` what simpler predictors get."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    beside: str = ""

    @property
    def reached(self) -> bool:
        """Return True where the promise is kept, or where there is none."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def show_figures(
    name: str,
    figures: Sequence[Figure],
    records: Sequence[RunRecord],
    out: Path,
    *,
    epochs: int | None,
    complete: bool = True,
    today: date | None = None,
) -> None:
    """Print the figures as a table, and write ``out/results.json``.

    With the cost and the settings of the training.

    ``records`` are the runs whose time counts; ``epochs`` is what the caller asked for instead of the recipe's, ``complete`` is False while some figures are missing.
    """
    cpu_seconds = sum(record.cost.cpu_seconds for record in records)
    cpu_minutes = cpu_seconds / 60
    table = Table(title=f"{name}: {cpu_minutes:.1f} CPU minutes of training, one thread each")
    for column in ("figure", "value", "promise", "kept", "beside it"):
        table.add_column(column, justify="left" if column in ("figure", "beside it") else "right")
    for figure in figures:
        promise = "" if figure.goal is None else f"{'>=' if figure.at_least else '<='} {figure.goal:.4g}"
        met = "" if figure.goal is None else ("yes" if figure.reached else "no")
        table.add_row(figure.what, f"{figure.value:.4g} {figure.unit}", promise, met, figure.beside)
    Console().print(table)
    results = {
        "recipe": name,
        "complete": complete,
        "epochs": epochs,
        "seeds": sorted({record.seed for record in records}),
        "date": (today or date.today()).isoformat(),
        "cpu_seconds": cpu_seconds,
        "cpu_minutes": cpu_minutes,
        "figures": [{**asdict(figure), "reached": figure.reached} for figure in figures],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def evaluation_of(ensemble: Path) -> dict[str, Any]:
    """Return the evaluation in the folder of an ensemble."""
    evaluation: dict[str, Any] = json.loads((ensemble / "evaluation.json").read_text())
    return evaluation
