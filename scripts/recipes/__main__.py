"""``python -m hydragnn.scripts.recipes NAME``: raw data to a table of measured errors."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from hydragnn.base.allocator import keep_memory
from hydragnn.base.errors import InputError, nearest

NAMES = ("acac", "cantilever", "darcy", "fept", "mlearn", "qm9", "terfenol")


def recipe(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}; see docs/recipes.md.")],
    data: Annotated[Path, typer.Option(help="Folder that holds the raw data, one subfolder per recipe.")] = Path(
        "../shared/data"
    ),
    out: Annotated[Path | None, typer.Option(help="Result folder; runs/NAME if absent. A second call resumes.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Train shorter or longer than the recipe's budget.")] = None,
) -> None:
    """Build the stores, train, evaluate on held-out data, and print what was reached beside the baselines."""
    if name not in NAMES:
        raise InputError(f"there is no recipe {name}; {nearest(name, list(NAMES))}")
    if not (data / name).is_dir():
        raise InputError(f"the raw data of {name} are not at {data / name}; give their folder with --data")
    import_module(f"hydragnn.scripts.recipes.{name}").run(data / name, out or Path("runs") / name, epochs)


if __name__ == "__main__":
    keep_memory()
    try:
        typer.run(recipe)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
