"""Command ``hydragnn conformance``: every promise of every architecture as a table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.settings import with_overrides
from hydragnn.base.terminal import PlainConsole
from hydragnn.scripts.options import AsJson
from hydragnn.scripts.showing import progress

if TYPE_CHECKING:
    from hydragnn.conformance.table import Outcome


def conformance(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND...]", help="Architectures, also package.module:Name of yours. Default: all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A Markdown file for the table, replaced where there is one.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of [model] for all of them, e.g. `conditioning=film`."
        ),
    ] = None,
    around: Annotated[
        list[str] | None,
        typer.Option(
            "--around",
            metavar="NAME",
            help="Once more with this around the layers: multihead, linear, equivariant (attention), film, pooled (conditioning), clusters (pooling), checkpointing; or all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test on small graphs everything that architectures promise.

    All architectures take a minute of one core, as long again with each of --around, and one takes seconds. Exits with 3 where a promise is
    not kept.
    """
    from hydragnn.conformance.cases import AROUND
    from hydragnn.conformance.table import TITLE, conformance_of, conformance_page

    if out is not None:
        check_page_target(out, TITLE.encode(), "table of conformance")
    settings = with_overrides({}, assignments or [], example="conditioning=film")
    names = list(AROUND) if "all" in (around or []) else around or []
    columns = (TextColumn("promises"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress(*columns, quiet=as_json) as update:
        outcomes = conformance_of(
            kinds or (), settings, lambda count, total: update(completed=count, total=total), around=names
        )
    if out is not None:
        words = ["hydragnn conformance", *(kinds or []), *(f"--set {one}" for one in assignments or [])]
        words += [f"--around {name}" for name in around or []]
        write_atomically(out, conformance_page(outcomes, " ".join([*words, f"--out {out}"])))
    if as_json:
        print(json.dumps([outcome.to_json() for outcome in outcomes]))
    else:
        _show(outcomes)
    if any(outcome.verdict == "failed" for outcome in outcomes):
        raise typer.Exit(3)


def _show(outcomes: "tuple[Outcome, ...]") -> None:
    """Print the number of promises that each architecture keeps, and all failures."""
    table = Table("architecture", "around", "kept", "failed", "do not apply", box=None, pad_edge=False)
    for kind, around in dict.fromkeys((outcome.kind, outcome.around) for outcome in outcomes):
        verdicts = [outcome.verdict for outcome in outcomes if (outcome.kind, outcome.around) == (kind, around)]
        counts = (str(verdicts.count(verdict)) for verdict in ("passed", "failed", "does not apply"))
        table.add_row(kind, around, *counts)
    console = PlainConsole()
    console.print(table)
    for outcome in outcomes:
        if outcome.verdict == "failed":
            where = f"{outcome.kind} with {outcome.around}" if outcome.around else outcome.kind
            console.print(f"{where} fails: {outcome.promise}: {outcome.why}")
