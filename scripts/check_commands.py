"""Commands ``check``, ``conformance`` and ``kernels compile``: models, architectures and kernels under test."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.imports import function_named
from hydragnn.base.places import check_exists
from hydragnn.base.settings import with_overrides
from hydragnn.base.terminal import PlainConsole, visible
from hydragnn.scripts.options import AsJson, Code, Device
from hydragnn.scripts.run_sources import model_folder
from hydragnn.scripts.showing import progress

if TYPE_CHECKING:
    import torch

    from hydragnn.conformance.table import PromiseOutcome
    from hydragnn.kernels.offline import Compiled


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
    from hydragnn.ensemble.checking.laws import TITLE, shown

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
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
    else:
        _show(outcomes)
    if any(outcome.verdict == "failed" for outcome in outcomes):
        raise typer.Exit(3)


def _show(outcomes: "tuple[PromiseOutcome, ...]") -> None:
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


kernels = typer.Typer(no_args_is_help=True, help="Kernels of accelerators.")

DTYPES = ("float32", "bfloat16", "float16", "float64")


@kernels.command("compile")
def compile_kernels(
    arch: Annotated[list[str], typer.Option("--arch", help="gfx90a, gfx942, gfx950, sm_80 or sm_90; repeatable.")],
    channels: Annotated[
        list[int] | None, typer.Option("--channels", min=1, help="Width of states; repeatable. Default: 64 and 128.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help=f"{', '.join(DTYPES)}; repeatable. Default: float32.")
    ] = None,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Only ops whose name contains this.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compile Triton kernels for other accelerators into Triton's cache.

    Runs on those accelerators then find them there, if the installation and TRITON_CACHE_DIR are the same; other shapes are compiled
    when they are first met. Exits with 3 where a kernel spills registers, loads less at once than it could, or adds by compare-and-swap.
    """
    from hydragnn.kernels.offline import compiled
    from hydragnn.kernels.triton.tiles import cache_folder

    kinds = [_dtype(name) for name in dtype or ["float32"]]
    rows = [one for name in arch for one in compiled(name, channels or [64, 128], kinds, only)]
    if as_json:
        print(json.dumps({"cache": str(cache_folder()), "kernels": [one.to_json() for one in rows]}))
    else:
        _print_kernels(rows)
        print(f"in {cache_folder()}")
    if any(one.faults for one in rows):
        raise typer.Exit(3)


def _print_kernels(rows: "list[Compiled]") -> None:
    print(f"{'kernel':22} {'architecture':13} {'registers':>9} {'spilled':>8} {'shared':>7} {'occupancy':>10}  loads")
    for one in rows:
        loads = ", ".join(f"{count} x {size} B" for size, count in sorted(one.loads.items()))
        numbers = f"{one.registers:9} {one.spilled:8} {one.shared:7} {one.occupancy:>10}"
        print(f"{one.kernel:22} {one.architecture:13} {numbers}  {loads}  {'; '.join(one.faults)}")
    print(f"{len(rows)} kernels, {sum(bool(one.faults) for one in rows)} with faults")


def _dtype(name: str) -> "torch.dtype":
    import torch

    if name not in DTYPES:
        raise InputError(f"unknown dtype {name}; choose among {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, name)
    return kind
