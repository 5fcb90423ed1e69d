"""``python -m hydragnn.scripts.recipes.results RUNS --out PAGE``: what recipes reached, as a table between two lines of a page.

The rows of a recipe are made of ``RUNS/NAME/results.json``; those of recipes that are not in the folder stay as they are in the page.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from hydragnn.base.errors import InputError
from hydragnn.scripts.recipes.__main__ import NAMES

Row = tuple[str, ...]
BEGIN, END = "<!-- python -m hydragnn.scripts.recipes.results -->", "<!-- end of results -->"
HEAD = ("recipe", "figure", "promise", "reached", "beside it", "CPU time")


def rows_of(results: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one recipe.

    Figures of one measure share a row, as those of one model and of the ensemble.
    """
    rows: list[Row] = []
    for (measure, unit), group in groupby(results["figures"], lambda figure: (_measure(figure), figure["unit"])):
        figures = list(group)
        variants = [figure["what"].removeprefix(f"{measure}, ") for figure in figures]
        what = figures[0]["what"] if len(figures) == 1 else f"{measure}: {' / '.join(variants)}"
        promises = dict.fromkeys(_promise(figure) for figure in figures if figure["goal"] is not None)
        beside = "; ".join(figure["beside"] for figure in figures if figure["beside"])
        first = not rows
        cells = (f"`{results['recipe']}`" if first else "", what, " / ".join(promises), _reached(figures, unit))
        rows.append((*cells, beside, _cost(results) if first else ""))
    return [tuple(cell.replace("|", r"\|") for cell in row) for row in rows]


def _measure(figure: Mapping[str, Any]) -> str:
    """Return a figure's name without its model."""
    measure, _, variant = figure["what"].rpartition(", ")
    return measure if variant and measure else figure["what"]


def _number(value: float) -> str:
    """Three digits.

    >>> _number(24.41), _number(1377.4), _number(0.00135)
    ('24.4', '1377', '0.00135')
    """
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _reached(figures: Sequence[Mapping[str, Any]], unit: str) -> str:
    """The values, and which of them break the promise."""
    kept = [figure["reached"] for figure in figures]
    marks = ["" if one or not any(kept) else " (not kept)" for one in kept]
    values = " / ".join(_number(figure["value"]) + mark for figure, mark in zip(figures, marks))
    return f"{values} {unit}".strip() + ("" if any(kept) else ", not kept")


def _promise(figure: Mapping[str, Any]) -> str:
    return f"{'at least ' if figure['at_least'] else ''}{_number(figure['goal'])} {figure['unit']}".strip()


def _cost(results: Mapping[str, Any]) -> str:
    """Processor time of training, and when and with which seeds it was."""
    seeds = sorted(results["seeds"])
    named = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{results['cpu_minutes']:.1f} min ({results['date']}, {named})"


def results_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results in a folder of runs, by recipe; InputError without any."""
    results_of = {
        name: json.loads(path.read_text()) for name in NAMES if (path := folder / name / "results.json").exists()
    }
    if not results_of:
        raise InputError(f"{folder} holds no NAME/results.json of a recipe; run one with --out {folder}/NAME")
    return results_of


def refusal(results: Mapping[str, Any]) -> str:
    """Return why results deviate from the recipe; empty if they do not."""
    if results.get("epochs") is not None:
        return f"it was trained with --epochs {results['epochs']}, not as the recipe says"
    return "" if results.get("complete", True) else "it is not over yet"


def merged(rows: Sequence[Row], results_of: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return a page's rows with those of ``results_of`` replaced.

    New rows come at the end.
    """
    by_recipe: dict[str, list[Row]] = {}
    for row in rows:
        name = row[0].strip("`") or next(reversed(by_recipe), "")  # a row without a name belongs to the recipe above
        by_recipe.setdefault(name, []).append(row)
    by_recipe |= {name: rows_of(results) for name, results in results_of.items() if not refusal(results)}
    return [row for block in by_recipe.values() for row in block]


def table_in(page: str, place: Path) -> tuple[str, list[Row], str]:
    """Return the text before the table, its rows, and the text after it; InputError without a table."""
    head, begin, rest = page.partition(BEGIN)
    table, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{place} has no lines {BEGIN} and {END} for the table; write them where it belongs")
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return head, [tuple(cell.strip() for cell in _cells(line)) for line in lines], tail


def _cells(line: str) -> list[str]:
    r"""The cells of a line of a table.

    >>> _cells(r"| a | b\|c |  |")
    ['a', 'b\\|c', '']
    """
    held = line.strip().removeprefix("|").removesuffix("|").replace(r"\|", "\0")
    return [cell.replace("\0", r"\|").strip() for cell in held.split("|")]


def with_table(head: str, rows: Sequence[Row], tail: str) -> str:
    """The page."""
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in (HEAD, *rows)]
    return "\n".join([head + BEGIN, "", lines[0], "|---|---|---|---|---|---|", *lines[1:], "", END]) + tail


def results(
    runs: Annotated[Path, typer.Argument(help="Folder of runs: NAME/results.json of every recipe that was run.")],
    out: Annotated[Path, typer.Option(help="A Markdown page; a new one is made where there is none.")],
) -> None:
    """Write the recipes' results into the table of a page.

    Rows of recipes that are not in RUNS stay.
    """
    results_of = results_in(runs)
    page = out.read_text(encoding="utf-8") if out.exists() else f"# What recipes reached\n\n{BEGIN}\n{END}\n"
    head, rows, tail = table_in(page, out)
    out.write_text(with_table(head, merged(rows, results_of), tail))
    for name, one in results_of.items():
        why = refusal(one)
        print(f"{name}: its rows stay, since {why}" if why else f"{name}: {len(rows_of(one))} rows")


if __name__ == "__main__":
    try:
        typer.run(results)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
