"""Command ``hydragnn data label``: structures labelled by any calculator."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hydragnn.base.errors import as_note, print_note
from hydragnn.base.imports import allow_code as _allow_code
from hydragnn.scripts.devices import Device
from hydragnn.scripts.options import AsJson, Code
from hydragnn.scripts.showing import show_value
from hydragnn.scripts.simulation_commands import Rows, frames_in, tracked


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
    from hydragnn.ensemble.foreign_trial import check_calculator

    rows = Rows(out, "data label")
    _allow_code(allow_code or [])
    frames, content = frames_in(structures)
    potential = new_calculator(calculator, f"--calculator {calculator}")
    if not rows.state and (doubt := check_calculator(calculator, partial(results_of, calculator=potential), frames)):
        print_note(f"{calculator}: {doubt}")
    failed: dict[str, str] = dict(rows.state.get("failed", {}))
    with rows.growing({"calculator": calculator, "structures": content}):
        for number in tracked(range(rows.state["rows"] + len(failed), len(frames)), "structures", as_json):
            results: dict[str, Any] = {}
            with as_note("", partial(failed.__setitem__, str(number))):  # whatever that program raises
                results = results_of(frames[number], potential)
            if results:
                rows.append(labelled(frames[number], results, f"{structures.name}#{number}"))
            else:
                rows.note(failed=failed)
    value = {"labelled": rows.state["rows"], "failed": failed, "out": str(out)}
    show_value(value, as_json)
    if failed:
        print_note(f"of {len(frames)}, {calculator} {few_refusals(failed)}")
        raise typer.Exit(3)


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
