"""Models under check, with the structures and graphs they are checked on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.base.places import absent_store
from hydragnn.conformance.law import DoesNotApply, Values
from hydragnn.datasets import open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.predictions import Predictions
from hydragnn.ensemble.prediction.rules import structures_in
from hydragnn.ensemble.reading.module import atoms_of
from hydragnn.ensemble.uses.calculator import EnsembleCalculator
from hydragnn.ensemble.uses.foreign import results_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate, unbatch

FEW = 3
"""Structures of a store or a file; a law takes its worst."""
SMALL = 64
"""Nodes of the largest graph drawn, if there are so small ones: force constants of six atoms take 72 predictions."""
FARTHEST = 12.0
"""Angstrom, the cutoff of calculators, which do not say theirs; published potentials have shorter ones."""


class Results(dict[str, Any]):
    """Results of a structure by name."""

    def __missing__(self, name: str) -> Any:
        """Raise DoesNotApply for a result that is not predicted."""
        raise DoesNotApply(f"there is no prediction of {name}")


def values_of(predictions: Predictions) -> dict[str, Values]:
    """Return members and uncertainties of all fields."""
    values = {}
    for name, one in predictions.fields.items():
        values[name] = Values(np.moveaxis(one.members, 0, 1), one.field.on, one.field.parity, 1e-9)
        values[f"uncertainty of {name}"] = Values(one.doubt, one.field.on, "scalar", 1e-9)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """Anything that predicts, and what it is asked for."""

    name: str
    new_calculator: Callable[[], Any] | None
    """A calculator of ASE without a past; None for a model without energies of atoms."""
    frames: Sequence[Atoms] = ()
    cutoff: float = FARTHEST
    ensemble: Ensemble | None = None
    """A model of ours in double precision."""
    single: Ensemble | None = None
    """The same in its own precision."""
    graphs: GraphBatch | None = None

    @cached_property
    def calculator(self) -> Any:
        """Return a calculator that is used again."""
        return self.fresh()

    def fresh(self) -> Any:
        """Return a calculator without a past; DoesNotApply without energies."""
        if self.new_calculator is None:
            raise DoesNotApply("the model predicts no energies of atoms")
        return self.new_calculator()

    @property
    def computes_atoms(self) -> bool:
        """Return True where it has energies of atoms."""
        return self.new_calculator is not None

    def alone(self, atoms: Atoms, calculator: Any = None) -> Results:
        """Return results of one structure, by default without a past."""
        return Results(results_of(atoms, self.fresh() if calculator is None else calculator))

    def predicted(self, graphs: GraphBatch) -> dict[str, Values]:
        """Return members and uncertainties of all fields."""
        return values_of(self.ours[0].predict(graphs))

    @property
    def ours(self) -> tuple[Ensemble, GraphBatch]:
        """Return model and graphs; DoesNotApply for a calculator of others."""
        if self.ensemble is None or self.graphs is None:
            raise DoesNotApply("it is about fields and members of a model of this program")
        return self.ensemble, self.graphs

    def structures(self, rattle: float = 0.0) -> Iterator[tuple[str, Atoms]]:
        """Yield the structures by name, displaced at random; DoesNotApply without energies."""
        _ = self.calculator
        for number, frame in enumerate(self.frames):
            atoms = frame.copy()
            if rattle:
                atoms.rattle(rattle, seed=1)
            yield f"structure {number} ({atoms.symbols})", atoms

    def results(self, frames: Sequence[Atoms]) -> list[Results]:
        """Return energy, forces and stress; our models compute one batch."""
        calculator = self.calculator
        if self.ensemble is None:
            return [self.alone(self._in_a_cell(atoms), calculator) for atoms in frames]
        predictions, results = self.ensemble.predict(frames), [Results() for _ in frames]
        rows = np.cumsum(predictions.nodes_per_graph)[:-1]
        for name, field in calculator.names.items():
            means = predictions[field]["mean"] * calculator.factors[name]
            for result, own in zip(results, np.split(means, rows) if name == "forces" else means):
                if np.isfinite(own).any() or name != "stress":
                    result[name] = own.item() if name == "energy" else own
        return results

    @cached_property
    def only_periodic(self) -> bool:
        """Return True if a calculator needs a cell, as many of crystals."""
        pair = Atoms(self.frames[0].numbers[[0, 0]], [[0, 0, 0], [2, 0, 0]])
        try:
            self.alone(pair, self.calculator)
        except Exception:  # whatever that program raises
            return True
        return False

    def _in_a_cell(self, atoms: Atoms) -> Atoms:
        """Return a molecule in vacuum, if the calculator needs a cell."""
        if atoms.pbc.any() or not self.only_periodic:
            return atoms
        atoms = atoms.copy()
        atoms.center(vacuum=self.cutoff)
        atoms.pbc = True
        return atoms


def calculator_subject(name: str, factory: Callable[[], Any], structures: Path, seed: int = 0) -> Subject:
    """Return a calculator of ASE with structures of a file."""
    return Subject(name=name, new_calculator=factory, frames=_of_file(structures, seed))


def model_subject(folder: Path, structures: Path | None = None, *, branch: str = "", seed: int = 0) -> Subject:
    """Return a model with structures of a file or its store.

    Laws are checked in double precision, where a broken one is not hidden by rounding.
    """
    ensemble, single = (Ensemble.load(folder, dtype=dtype, branch=branch) for dtype in (torch.float64, None))
    frames = None if structures is None else _of_file(structures, seed)
    if frames is not None:
        graphs = [ensemble.structures.graph(atoms, f"structure {number}") for number, atoms in enumerate(frames)]
        for status in ensemble.predict(frames).status:
            if status != "ok":
                raise InputError(f"{structures} has a structure that cannot be predicted: {status}; give others")
    else:
        path = ensemble.members[0].config.data.store
        if (absent := absent_store(path)) is not None:
            raise InputError(f"the training store {absent} is not there; give --structures FILE, or put it back")
        store = open_store(path)
        graphs = unbatch(store.read(_drawn(store.sizes().nodes, seed), ensemble.needed(store)))
    facts: Mapping[str, Any] = {"ensemble": ensemble, "single": single, "graphs": concatenate(graphs)}
    try:
        rule = EnsembleCalculator(ensemble).structures
    except InputError:  # no energy, or no atoms: laws of fields remain
        return Subject(name=str(folder), new_calculator=None, **facts)
    frames = [atoms_of(graph) for graph in graphs] if frames is None else frames
    return Subject(
        name=str(folder),
        new_calculator=lambda: EnsembleCalculator(ensemble, outside="record"),
        frames=frames,
        cutoff=rule.cutoff,
        **facts,
    )


def _of_file(path: Path, seed: int) -> list[Atoms]:
    frames = structures_in(path)
    return [frames[number] for number in _drawn(np.array([len(one) for one in frames]), seed)]


def _drawn(nodes: Int[Array, " graphs"], seed: int) -> Int[Array, " few"]:
    """Return numbers of a few graphs, no large one if possible."""
    small = np.flatnonzero((nodes <= max(SMALL, nodes.min())) & (nodes > 0))
    return np.sort(np.random.default_rng(seed).choice(small, min(FEW, len(small)), replace=False))
