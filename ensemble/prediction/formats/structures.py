"""Extended XYZ files of predictions, written by ASE."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import StringIO
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from ase.io.extxyz import write_xyz
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.atoms_text import ATOMS, one_line, restore_atoms
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.prediction.formats.sink import Block, Piece, Sink, lines_array, texts
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location
from hydragnn.graphs.units import in_ase_units
from hydragnn.models import Target

Shape = tuple[Location, tuple[int, ...]]
RESULTS: Mapping[str, Shape] = {"energy": ("graph", ()), "forces": ("node", (3,)), "stress": ("graph", (3, 3))}
"""Results of calculators in a file of structures."""
POWERS: Mapping[str, int] = {"energy": 0, "forces": 1, "stress": 3}
"""Lengths by which energies are divided there."""


class XyzSink(Sink):
    """Extended XYZ.

    Energy, forces and stress as results in ASE's units, everything else in ``info`` and ``arrays`` by name.

    An energy, forces or a stress in a unit that is not known is called by it, as ``energy_in_UNIT``, since readers take the plain names for ASE's units.
    The mean (of classes: the label) of a field has the field's name, the other quantities NAME_std and so on. Whatever else a
    structure had in its file it keeps, results and names that predictions have with ``input_`` before them. A structure that
    could not be built, or is not valid, has no atoms.
    """

    def open(self) -> None:
        """Begin the file."""
        self.file = self.temporary.open("wb")

    @cached_property
    def called(self) -> dict[str, tuple[str, float]]:
        """Return name and factor of every field's numbers."""
        return as_ase(self.heading.targets, self.heading.length)

    @cached_property
    def reserved(self) -> set[str]:
        """Return the names of predictions in a structure."""
        names = {
            self.called[target.name][0] + ending
            for target in self.heading.targets
            for ending in ("", *(f"_{quantity}" for quantity in estimates_of(target).quantities))
        }
        return {"graph", "status", "domain", "domain_score", "node_domain_score", *names}

    def piece(self, block: Block) -> Piece:
        """Return the lines of structures."""
        frames = list(_frames(block, self.heading.length))
        own = {key: list(values) for key, values in block.predictions.texts.items()}
        stored_atoms = own.pop(ATOMS, None)
        results = self._predicted(block, frames)
        for row, frame in enumerate(frames):
            if stored_atoms is not None and stored_atoms[row]:
                restore_atoms(frame, stored_atoms[row], self.reserved)
            for key, values in own.items():
                if (line := one_line(values[row])) and key not in self.reserved:
                    frame.info.setdefault(one_line(key), line)
            for name, value in results[row].items():
                (frame.arrays if RESULTS[name][0] == "node" else frame.info)[name] = value
        return {"structures": lines_array(text_of(frames))}

    def _predicted(self, block: Block, frames: Sequence[Atoms]) -> list[dict[str, Any]]:
        """Give structures their predictions; return those that are results of calculators."""
        predictions = block.predictions
        scores = predictions.domain_score.tolist()
        facts = zip(block.numbers.tolist(), texts(predictions.status), texts(predictions.domain), scores)
        for frame, (number, status, domain, score) in zip(frames, facts, strict=True):
            frame.info |= {"graph": number, "status": status}
            frame.info |= {"domain": domain} if domain else {}
            frame.info |= {} if math.isnan(score) else {"domain_score": score}
        results: list[dict[str, Any]] = [{} for _ in frames]
        fine = predictions.ok
        if "node_domain_score" not in self.heading.absent:
            of_nodes = np.split(predictions.node_domain_score, np.cumsum(predictions.nodes_per_graph)[:-1])
            for row in np.flatnonzero(fine).tolist():
                frames[row].arrays["node_domain_score"] = of_nodes[row]
        for name, estimate in predictions.fields.items():
            called, factor = self.called[name]
            node = estimate.field.on == "node"
            counts = predictions.nodes_per_graph if node else np.ones(len(frames), dtype=np.int64)
            stops = np.cumsum(counts)
            for quantity in self.heading.quantities(estimate.target):
                values = estimate[quantity] if factor == 1.0 else estimate[quantity] * factor
                # no interval, or no stress without a volume
                known = fine if values.dtype.kind != "f" else fine & _any_number(values, counts)
                is_result = estimate.headline == quantity == "mean" and _is_result(called, estimate.field)
                key = called if quantity == estimate.headline else f"{called}_{quantity}"
                values = values.reshape(len(values), -1) if node and values.ndim > 2 else values
                plain = None if node or values.ndim > 1 else values.tolist()
                for row in np.flatnonzero(known).tolist():
                    value = (
                        plain[row] if plain else values[stops[row] - counts[row] : stops[row]] if node else values[row]
                    )
                    into = results[row] if is_result else frames[row].arrays if node else frames[row].info
                    into[key] = value
        return results

    def write(self, piece: Piece) -> None:
        """Append some structures."""
        self.file.write(np.asarray(piece["structures"]).tobytes())

    def close(self, *, complete: bool) -> None:
        """Close the file."""
        self.file.close()


def text_of(frames: Sequence[Atoms]) -> str:
    """Return structures as ASE writes them, which knows no unsigned numbers."""
    for atoms in frames:
        atoms.arrays |= {name: one.astype(np.int64) for name, one in atoms.arrays.items() if one.dtype.kind == "u"}
    lines = StringIO()
    write_xyz(lines, frames)
    return lines.getvalue()


def _any_number(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which graphs have a value that is a number."""
    numbers = ~np.isnan(values.reshape(len(values), -1)).all(axis=1) if values.size else np.zeros(len(values), bool)
    return np.bincount(np.repeat(np.arange(len(counts)), counts), numbers, minlength=len(counts)) > 0


def _frames(block: Block, length: float) -> Iterator[Atoms]:
    """Give every structure without its predictions."""
    read = block.graphs
    if read is None:
        yield from (Atoms() for _ in range(len(block.predictions)))
        return
    batch = read.whole
    numbers = batch[ATOMIC_NUMBERS].reshape(-1).numpy()  # of graphs that are no structures, too
    numbers = np.where((numbers >= 0) & (numbers < len(chemical_symbols)), numbers, 0)
    positions, cells = batch.positions.numpy() * length, batch.cell.numpy() * length
    bounds = batch.node_offsets.numpy().tolist()
    facts = zip(read.reasons, bounds[:-1], bounds[1:], cells, batch.periodic.numpy(), strict=True)
    for reason, start, stop, cell, flags in facts:
        if reason:
            yield Atoms()
        else:
            yield Atoms(numbers=numbers[start:stop], positions=positions[start:stop], cell=cell, pbc=flags)


def _is_result(name: str, field: Field) -> bool:
    """Return True where a field is what ASE means by its name.

    >>> _is_result("energy", Field(name="energy", on="graph")), _is_result("energy", Field(name="energy", on="node"))
    (True, False)
    """
    return (field.on, field.shape) == RESULTS.get(name)


def as_ase(targets: Sequence[Target], length: float) -> dict[str, tuple[str, float]]:
    """Return name and factor of every field in a structure of ASE.

    What has no unit fits the others, as in training. What has such a name and is something else has ``predicted_`` before it.
    """
    units = {one.name: one.field.unit for one in targets if _is_result(one.name, one.field)}
    factors: dict[str, float] = {}
    called = {
        one.name: f"predicted_{one.name}" if one.name in RESULTS and not _is_result(one.name, one.field) else one.name
        for one in targets
    }
    for name, unit in units.items():
        try:
            factors |= {name: in_ase_units(unit, name, f"field {name}")} if unit else {}
        except InputError:
            called[name] = re.sub(r"\W+", "_", f"{name}_in_{unit}").strip("_")
    energy = next((size * length ** POWERS[name] for name, size in factors.items()), 1.0)
    fitting = {name: energy / length ** POWERS[name] for name, unit in units.items() if not unit and factors}
    return {name: (own, factors.get(name, fitting.get(name, 1.0))) for name, own in called.items()}
