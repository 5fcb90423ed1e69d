"""Commands ``check``, ``conformance`` and ``kernels compile``: models, architectures and kernels under test."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_page_target, write_atomically
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.base.imports import function_named
from hydragnn.base.places import check_exists
from hydragnn.base.settings import with_overrides
from hydragnn.base.terminal import visible
from hydragnn.scripts.options import AllowCode, Branch
from hydragnn.scripts.run_sources import model_folder
from hydragnn.scripts.showing import Result, progress

DTYPES = ("float32", "bfloat16", "float16", "float64")


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
    branch: Branch = "",
    allow_code: AllowCode = (),
    quiet: bool = False,
) -> Result:
    """Check laws of physics and of committees that no test error shows.

    For runs, ensembles and calculators of ASE. Exits with 1 where one fails. docs/check.md has the laws and the reasons of their limits.
    """
    _allow_code(allow_code)
    if structures is not None:
        check_exists(structures)
    if (model is None) != bool(calculator) or (calculator and structures is None):
        raise InputError("check takes a MODEL, or --calculator MODULE:NAME with --structures FILE")
    if model is not None:
        model = model_folder(model)
    from hydragnn.ensemble.checking import TITLE, calculator_subject, findings_of, findings_page, model_subject, shown

    if out is not None:
        check_page_target(out, TITLE.encode(), "table of laws")
    if model is None:
        assert structures is not None
        factory = function_named(calculator, where=f"--calculator {calculator}", noun="calculator")
        subject = calculator_subject(calculator, factory, structures, seed)
    else:
        subject = model_subject(model, structures, branch=branch, seed=seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns, quiet=quiet) as update:
        findings = findings_of(
            subject, lambda name, count, total: update(description=name, completed=count, total=total)
        )
    if out is not None:
        options = {"--calculator": calculator, "--structures": structures, "--branch": branch, "--seed": seed}
        words = [f"{option} {value}" for option, value in options.items() if value]
        command = " ".join(["hydragnn check", *([str(model)] if model else []), *words, f"--out {out}"])
        write_atomically(out, findings_page(subject.name, findings, command))
    failed = [one for one in findings if one.verdict == "failed"]
    return Result(
        value=[asdict(one) for one in findings],
        table=[
            {"law": one.law, "verdict": one.verdict, "figure": shown(one.figure), "limit": one.limit}
            for one in findings
        ],
        lines=[f"{one.law} fails in {visible(one.where)}. {one.meaning}" for one in failed],
        code=1 if failed else 0,
    )


def conformance(
    kinds: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Argument(metavar="[KIND...]", help="Architectures, also package.module:Name of yours. Default: all."),
    ] = (),
    out: Annotated[
        Path | None, typer.Option("--out", help="A Markdown file for the table, replaced where there is one.")
    ] = None,
    assignments: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of [model] for all of them, e.g. `conditioning=film`."
        ),
    ] = (),
    extras: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option(
            "--around",
            metavar="NAME",
            help="Once more with this around the layers: multihead, linear, equivariant (attention), film, pooled (conditioning), clusters (pooling), checkpointing; or all.",
        ),
    ] = (),
    quiet: bool = False,
) -> Result:
    """Test on small graphs everything that architectures promise.

    All architectures take a minute of one core, as long again with each of --around, and one takes seconds. Exits with 3 where a promise is
    not kept.
    """
    from hydragnn.conformance.cases import AROUND
    from hydragnn.conformance.table import TITLE, conformance_of, conformance_page

    if out is not None:
        check_page_target(out, TITLE.encode(), "table of conformance")
    settings = with_overrides({}, assignments, example="conditioning=film")
    names = list(AROUND) if "all" in extras else extras
    columns = (TextColumn("promises"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress(*columns, quiet=quiet) as update:
        outcomes = conformance_of(
            kinds, settings, lambda count, total: update(completed=count, total=total), around=names
        )
    if out is not None:
        words = ["hydragnn conformance", *kinds, *(f"--set {one}" for one in assignments)]
        words += [f"--around {name}" for name in extras]
        write_atomically(out, conformance_page(outcomes, " ".join([*words, f"--out {out}"])))
    rows = []
    for kind, name in dict.fromkeys((outcome.kind, outcome.around) for outcome in outcomes):
        verdicts: list[str] = [one.verdict for one in outcomes if (one.kind, one.around) == (kind, name)]
        counts = {"kept": "passed", "failed": "failed", "do not apply": "does not apply"}
        counted = {word: verdicts.count(verdict) for word, verdict in counts.items()}
        rows.append({"architecture": kind, "around": name, **counted})
    failed = [one for one in outcomes if one.verdict == "failed"]
    lines = [f"{one.kind}{f' with {one.around}' * bool(one.around)} fails: {one.promise}: {one.why}" for one in failed]
    return Result(value=[asdict(one) for one in outcomes], table=rows, lines=lines, code=3 if lines else 0)


def compile_kernels(
    arch: Annotated[
        Sequence[str], list[str], typer.Option("--arch", help="gfx90a, gfx942, gfx950, sm_80 or sm_90; repeatable.")
    ],
    channels: Annotated[
        Sequence[int],
        list[int] | None,
        typer.Option("--channels", min=1, help="Width of states; repeatable. Default: 64 and 128."),
    ] = (),
    dtype: Annotated[
        Sequence[str],
        list[str] | None,
        typer.Option("--dtype", help=f"{', '.join(DTYPES)}; repeatable. Default: float32."),
    ] = (),
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Only ops whose name contains this.")] = "",
) -> Result:
    """Compile Triton kernels for other accelerators into Triton's cache.

    Runs on those accelerators then find them there, if the installation and TRITON_CACHE_DIR are the same; other shapes are compiled
    when they are first met.
    """
    import torch

    from hydragnn.kernels import offline
    from hydragnn.kernels.triton.tiles import cache_folder

    for name in dtype:
        if name not in DTYPES:
            raise InputError(f"unknown dtype {name}; choose among {', '.join(DTYPES)}")
    kinds = [getattr(torch, name) for name in dtype or ["float32"]]
    names = [name for one in arch for name in offline.compile_kernels(one, channels or [64, 128], kinds, only)]
    counts = {name: names.count(name) for name in sorted({*names})}
    return Result(
        value={"cache": str(cache_folder()), "kernels": counts},
        table=[{"kernel": name, "variants": count} for name, count in counts.items()],
        lines=[f"{len(names)} kernels in {cache_folder()}"],
    )
