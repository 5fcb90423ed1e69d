"""Command ``hydragnn bench steps``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hydragnn.base.errors import InputError
from hydragnn.scripts.kernel_commands import AsJson, bench, device_of

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


@bench.command("steps")
def bench_steps(
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Architecture; repeatable. Default: painn, schnet, egnn, pna and mace."),
    ] = None,
    graphs: Annotated[
        list[int] | None,
        typer.Option("--graphs", min=2, help="Crystals of a batch; repeatable. Default: 32 and 256, on a CPU 4."),
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width. Default: 128, on a CPU 32.")] = None,
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS))] = "fp32",
    device: Annotated[str, typer.Option(help="cpu or cuda; ROCm is cuda too. Default: the accelerator, if any.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Steps per turn; times are medians of three turns.")] = 10,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also other packages, where installed; in fp32.")
    ] = True,
    dynamics: Annotated[
        bool, typer.Option("--dynamics/--no-dynamics", help="Also molecular dynamics by the calculator.")
    ] = True,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the tables into this Markdown file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time training steps and dynamics beside other packages.

    Crystals of 64 atoms, neighbours within 5 Angstrom, energies and forces, 3 layers (MACE 2). Peers are the SchNet of PyTorch Geometric,
    schnetpack and mace-torch. On a GPU also: share of the time in which it works, kernels per step and memory. Rows come one by one;
    with `--json` each is a line.
    """
    from hydragnn.architectures import architectures
    from hydragnn.scripts.step_bench import (
        KINDS,
        Row,
        StepSettings,
        about_machine,
        as_line,
        cell,
        dynamics_rows,
        step_rows,
    )
    from hydragnn.scripts.step_bench import write_page as write

    place = device_of(device)
    for name in kind or ():
        if name not in architectures():
            raise InputError(f"--kind {name}: no such architecture; choose among {', '.join(sorted(architectures()))}")
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision}: choose among {', '.join(PRECISIONS)}")
    if page is not None and not page.absolute().parent.is_dir():
        raise InputError(f"--page {page}: {page.parent} is no folder; make it first")
    fast = place != "cpu"
    settings = StepSettings(
        device=place,
        kinds=kind or KINDS,
        graphs=graphs or ((32, 256) if fast else (4,)),
        hidden=hidden or (128 if fast else 32),
        precision=precision,
        repeats=repeats if fast else min(repeats, 3),
        peers=peers,
        atoms=(64, 864, 10976) if fast else (64, 864),
    )
    about = about_machine(place)
    found: dict[str, list[Row]] = {"Steps": [], "Dynamics": []}
    print(about, file=sys.stderr if as_json else sys.stdout)
    for title, rows in (("Steps", step_rows(settings)), ("Dynamics", dynamics_rows(settings))):
        for row in rows if title == "Steps" or dynamics else ():
            found[title].append(row)
            print(
                as_line(title, row)
                if as_json
                else "  ".join(f"{key} {cell(value)}" for key, value in row.items() if value != ""),
                flush=True,
            )
    if page is not None:
        write(page, about, found)
