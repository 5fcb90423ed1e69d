"""Command ``hydragnn kernels compile``."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn.base.errors import InputError
from hydragnn.scripts.options import AsJson

if TYPE_CHECKING:
    import torch

    from hydragnn.kernels.offline import Compiled

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
