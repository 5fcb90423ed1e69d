"""Command ``hydragnn data label``: structures labelled by any calculator."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hydragnn.base.errors import Interrupted, words_of
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.scripts.devices import Device
from hydragnn.scripts.showing import show_value
from hydragnn.scripts.simulation_commands import AsJson, Code, Rows, frames_in, tracked


def label(
    structures: Annotated[Path, typer.Argument(help="A file of structures that ASE reads.")],
    calculator: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="A function that returns a calculator of ASE; --allow-code.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Extended XYZ; the same command continues it.")],
    allow_code: Code = None,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Label structures with energy, forces and stress of any calculator.

    `hydragnn data label frames.xyz --calculator my_potentials:make --allow-code my_potentials --out labelled.xyz`

    Texts and integers beside a structure are kept, older labels are not. After Ctrl-C or a kill the same command labels only what is missing. Structures that the calculator
    refuses are left out, too, and named; it exits with 3 then.
    """
    from hydragnn.ensemble.foreign import few_refusals, new_calculator, results_of

    rows = Rows(out, "data label")
    _allow_code(allow_code or [])
    frames, content = frames_in(structures)
    potential = new_calculator(calculator, f"--calculator {calculator}")
    if not rows.state and (doubt := _doubt(calculator, partial(results_of, calculator=potential), frames)):
        print(f"note: {calculator}: {doubt}", file=sys.stderr)
    failed: dict[str, str] = dict(rows.state.get("failed", {}))
    with rows.growing({"calculator": calculator, "structures": content}):
        for number in tracked(range(rows.state["rows"] + len(failed), len(frames)), "structures", as_json):
            try:
                results = results_of(frames[number], potential)
            except Interrupted:
                raise
            except Exception as error:  # whatever that program raises
                failed[str(number)] = words_of(error)
                rows.note(failed=failed)
                continue
            rows.append(labelled(frames[number], results, f"{structures.name}#{number}"))
    value = {"labelled": rows.state["rows"], "failed": failed, "out": str(out)}
    show_value(value, as_json)
    if failed:
        refused = few_refusals({int(number): words for number, words in failed.items()})
        print(f"note: of {len(frames)}, {calculator} refuses {refused}; {out} lacks them", file=sys.stderr)
        raise typer.Exit(3)


def _doubt(name: str, results: Any, frames: list[Any]) -> str:
    """Return what a trial of the calculator left open; InputError where it fails."""
    from hydragnn.ensemble.foreign_trial import check_calculator

    return check_calculator(name, results, frames)


def labelled(atoms: Any, results: dict[str, Any], name: str) -> Any:
    """Return a structure with these labels and its own texts and integers.

    Older labels are neither.
    """
    import numpy as np
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    from hydragnn.graphs.texts import name_among

    row = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    row.info = {key: text for key, text in atoms.info.items() if isinstance(text, str | int | np.integer | np.bool_)}
    row.info["name"] = name_among(atoms.info) or name
    row.calc = SinglePointCalculator(row, **results)
    return row
