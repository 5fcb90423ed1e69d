"""A process that predicts with compiled members; started by the tests, since shapes are not checked in it: sizes are symbols there.

``python compiling.py RUN [--traced]`` takes the run, and the run with other weights, as members. It prints, as JSON, how far predictions and states of
the compiled ensemble and results of its calculator are from those of the ensemble itself, relative to their size; edges of the structures of the
calculator; how many functions the members have. ``--traced`` leaves the compiler out, which takes most of a minute, and calls the functions as they
were traced.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk

from hydragnn.ensemble.calculator import EnsembleCalculator
from hydragnn.ensemble.ensemble import Ensemble, ensemble_of
from hydragnn.ensemble.members import load_run
from hydragnn.models import compiled_prediction


def members(run: Path) -> Ensemble:
    """The run, and one that differs from it in its weights."""
    first, second = (load_run(run, weight=0.5) for _ in range(2))
    with torch.no_grad():
        for parameter in second.model.model.parameters():
            parameter.mul_(1.1)
    return ensemble_of([first, second])


def structures() -> dict[str, list[Atoms]]:
    """Cells side by side, one alone, and those that have hardly anything to compute."""
    cell = bulk("Cu", cubic=True)
    cell.rattle(0.1, seed=5)
    double, wide = cell.repeat((2, 1, 1)), cell.copy()
    wide.set_cell(1.3 * cell.cell.array, scale_atoms=True)  # less than half as many neighbours
    return {
        "several": [cell, double, wide],
        "two": [wide, double],
        "one": [double],
        "one atom": [Atoms("Cu")],
        "no edges": [Atoms("Cu2", positions=[[0, 0, 0], [0, 0, 50.0]])],
    }


def error(ours: Any, theirs: Any) -> float:
    """The size of the difference over that of the second, or the difference where that is nothing."""
    size = float(np.linalg.norm(theirs))
    return float(np.linalg.norm(np.asarray(ours) - theirs)) / (size if size > 1e-9 else 1.0)


def of_predictions(fast: Ensemble, slow: Ensemble) -> dict[str, float]:
    """The largest error of means and standard deviations, by structures and target."""
    errors = {}
    for name, frames in structures().items():
        ours, theirs = fast.predict(frames), slow.predict(frames)
        for field in theirs.fields:
            errors[f"{name}, {field}"] = max(error(ours[field][w], theirs[field][w]) for w in ("mean", "std"))
    return errors


def of_calculators(fast: Ensemble, slow: Ensemble) -> tuple[dict[str, float], list[int]]:
    """Errors of all results while atoms walk about, and the edges that they have."""
    atoms, random, edges = structures()["one"][0], np.random.default_rng(0), []
    errors: dict[str, float] = {}
    ours, theirs = EnsembleCalculator(fast), EnsembleCalculator(slow)
    for _ in range(6):
        atoms.positions += 0.15 * random.normal(size=atoms.positions.shape)
        edges.append(slow.structures.graph(atoms, "cell").num_edges)
        for one in (ours, theirs):
            one.calculate(atoms)
        for name in ("energy", "forces", "stress", "energy_std", "forces_std"):
            errors[name] = max(errors.get(name, 0.0), error(ours.results[name], theirs.results[name]))
    return errors, edges


def main() -> None:
    """Print one JSON value."""
    torch.set_num_threads(1)
    if "--traced" in sys.argv:
        compiled_prediction.compiled_function = lambda module: module
    slow = members(Path(sys.argv[1]))
    fast = slow.compiled()
    errors, edges = of_calculators(fast, slow)
    graph = slow.structures.graph(structures()["one"][0], "cell")
    states = [one.members[0].model.predict_with_states(graph)[1].numpy() for one in (fast, slow)]
    functions = {id(member.model.function.function) for member in fast.members if member.model.function}
    result = {
        "errors": {**of_predictions(fast, slow), **errors, "states": error(*states)},
        "edges": edges,
        "functions": len(functions),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
