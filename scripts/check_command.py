"""Command ``hydragnn check``: laws of physics and committees, as a table."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.imports import function_named
from hydragnn.base.places import check_exists
from hydragnn.base.terminal import PlainConsole, visible
from hydragnn.scripts.devices import Device
from hydragnn.scripts.options import AsJson, Code
from hydragnn.scripts.run_sources import model_folder
from hydragnn.scripts.showing import progress


def check(
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="An ensemble, run or campaign folder (its best trial).")
    ] = None,
    calculator: Annotated[
        str,
        typer.Option(metavar="MODULE:NAME", help="Instead: a function that returns a calculator of ASE; --allow-code."),
    ] = "",
    structures: Annotated[
        Path | None, typer.Option(help="A file that ASE reads; of a model: its training store if absent.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A Markdown file for the table.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which few structures are drawn.")] = 0,
    branch: Annotated[str, typer.Option(metavar="NAME", help="Which branch of a run.")] = "",
    allow_code: Code = None,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Check laws of physics and of committees that no test error shows.

    For runs, ensembles and calculators of ASE. Exits with 1 where one fails. docs/check.md has the laws and the reasons of their limits.
    """
    _allow_code(allow_code or [])
    if structures is not None:
        check_exists(structures)
    if (model is None) != bool(calculator) or (calculator and structures is None):
        raise InputError("check takes a MODEL, or --calculator MODULE:NAME with --structures FILE")
    if model is not None:
        model = model_folder(model)
    from hydragnn.ensemble.checking import calculator_subject, findings_of, findings_page, model_subject
    from hydragnn.ensemble.checking.findings import TITLE, shown

    if out is not None:
        check_page_target(out, TITLE.encode(), "table of laws")
    if model is None:
        assert structures is not None
        factory = function_named(calculator, where=f"--calculator {calculator}", noun="calculator")
        subject = calculator_subject(calculator, factory, structures, seed)
    else:
        subject = model_subject(model, structures, branch=branch, seed=seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns, quiet=as_json) as update:
        findings = findings_of(
            subject, lambda name, count, total: update(description=name, completed=count, total=total)
        )
    if out is not None:
        options = {"--calculator": calculator, "--structures": structures, "--branch": branch, "--seed": seed}
        words = [f"{option} {value}" for option, value in options.items() if value]
        command = " ".join(["hydragnn check", *([str(model)] if model else []), *words, f"--out {out}"])
        write_atomically(out, findings_page(subject.name, findings, command))
    if as_json:
        print(json.dumps([asdict(one) for one in findings], allow_nan=False))
    else:
        table = Table("law", "verdict", "figure", "limit", box=None, pad_edge=False)
        for one in findings:
            table.add_row(one.law, one.verdict, shown(one.figure), one.limit)
        console = PlainConsole()
        console.print(table)
        for one in findings:
            if one.verdict == "failed":
                console.print(f"{one.law} fails in {visible(one.where)}. {one.meaning}")
    if any(one.verdict == "failed" for one in findings):
        raise typer.Exit(1)
