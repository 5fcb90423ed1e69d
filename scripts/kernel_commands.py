"""Commands ``hydragnn kernels`` and ``hydragnn bench kernels``."""

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn.base.errors import InputError

if TYPE_CHECKING:
    import torch

    from hydragnn.kernels.bench import BenchSettings
    from hydragnn.kernels.offline import Compiled

kernels = typer.Typer(no_args_is_help=True, help="Kernels of accelerators.")


bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")

DTYPES = ("float32", "bfloat16", "float16", "float64")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Only = Annotated[str, typer.Option("--only", metavar="TEXT", help="Only ops whose name contains this.")]


@kernels.command("compile")
def compile_kernels(
    arch: Annotated[list[str], typer.Option("--arch", help="gfx90a, gfx942, gfx950, sm_80 or sm_90; repeatable.")],
    channels: Annotated[
        list[int] | None, typer.Option("--channels", min=1, help="Width of states; repeatable. Default: 64 and 128.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help=f"{', '.join(DTYPES)}; repeatable. Default: float32.")
    ] = None,
    only: Only = "",
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


@bench.command("kernels")
def bench_kernels(
    device: Annotated[str, typer.Option(help="cpu or cuda; ROCm is cuda too. Default: the accelerator, if any.")] = "",
    nodes: Annotated[int | None, typer.Option(min=1, help="Default: 2000, on accelerators 50000.")] = None,
    degree: Annotated[int, typer.Option(min=1, help="Edges per node.")] = 20,
    channels: Annotated[int, typer.Option(min=1)] = 64,
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Times are medians of so many.")] = 10,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Also torch's scatters, eager and compiled, which takes minutes. Default: no.",
        ),
    ] = False,
    only: Only = "",
    as_json: AsJson = False,
) -> None:
    """Time every gather and scatter with its derivatives.

    Also as a share of the bytes per second of a copy. Kernels are compiled first, in processes; rows are printed as they are measured, with --json
    as one line each after a line about the machine.
    """
    import torch

    from hydragnn.kernels.bench import BenchSettings, bench_rows, copy_bandwidth

    place = device_of(device)
    fast = place != "cpu"
    settings = BenchSettings(
        device=place,
        nodes=nodes or (50000 if fast else 2000),
        degree=degree,
        channels=channels,
        dtype=_dtype(dtype),
        repeats=repeats,
        only=only,
        baselines=baselines,
    )
    if place == "cuda":
        _compile_early(settings)
    bandwidth = copy_bandwidth(settings)
    rows = bench_rows(settings, bandwidth)
    name = torch.cuda.get_device_name() if place == "cuda" else f"{place}, {torch.get_num_threads()} threads"
    if as_json:
        print(json.dumps({"device": name, "copy_bytes_per_second": bandwidth}), flush=True)
        for row in rows:
            print(json.dumps(asdict(row)), flush=True)
        return
    print(f"{name}: a copy moves {bandwidth / 1e9:.1f} GB/s")
    print(f"{settings.nodes} nodes, {settings.nodes * degree} edges, {channels} channels, {dtype}; milliseconds")
    print(f"{'op, variant':50} {'forward':>9} {'gradient':>9} {'twice':>9} {'of a copy':>10}")
    for row in rows:
        times = f"{row.forward:9.3f} {row.with_gradient:9.3f} {row.twice:9.3f} {row.copy_share:10.0%}"
        others = "".join(f"  {key} {value:.3f}" for key, value in row.baselines.items())
        print(f"{row.op + ', ' + row.variant:50} {times}{others}", flush=True)


def device_of(option: str) -> str:
    """Return the device of ``--device``; the accelerator where it is empty."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    best = accelerator.type if accelerator else "cpu"
    if option not in ("", "cpu", best):
        has = accelerator.type if accelerator else "no accelerator"
        raise InputError(f"--device {option}: this machine has {has}; leave --device out, or give cpu")
    return option or best


def _compile_early(settings: "BenchSettings") -> None:
    """Compile kernels in processes; where that fails, the first launch compiles them."""
    import torch

    from hydragnn.kernels.offline import compile_in_processes
    from hydragnn.kernels.triton.tiles import architecture_of

    began, architecture = time.perf_counter(), architecture_of(torch.device(settings.device))
    try:
        count = compile_in_processes(architecture, settings.channels, settings.dtype, settings.only)
    except (InputError, OSError, RuntimeError) as error:
        print(f"note: kernels are compiled one after the other: {error}", file=sys.stderr, flush=True)
        return
    print(f"{count} kernels in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def _dtype(name: str) -> "torch.dtype":
    import torch

    if name not in DTYPES:
        raise InputError(f"unknown dtype {name}; choose among {', '.join(DTYPES)}")
    kind: torch.dtype = getattr(torch, name)
    return kind
