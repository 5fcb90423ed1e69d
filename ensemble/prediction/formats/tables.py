"""Prediction files for people and for other programs: CSV and extended XYZ."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources.atoms_text import ATOMS, one_line, restore_atoms
from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.prediction.formats.sink import Block, Heading, Piece, Sink, lines_array, texts
from hydragnn.ensemble.predictions import Predictions, estimates_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field, Location
from hydragnn.graphs.units import in_ase_units
from hydragnn.models import Target

RESULTS: Mapping[str, tuple[Location, tuple[int, ...]]] = {
    "energy": ("graph", ()),
    "forces": ("node", (3,)),
    "stress": ("graph", (3, 3)),
}
"""Results of calculators in a file of structures."""
POWERS: Mapping[str, int] = {"energy": 0, "forces": 1, "stress": 3}
"""Lengths by which energies are divided there."""
KEYS: Mapping[Location, tuple[str, ...]] = {"node": ("node",), "edge": ("sender", "receiver")}
"""Columns with the node or edge of a line in its graph."""


class CsvSink(Sink):
    """One line per graph."""

    @property
    def temporaries(self) -> Mapping[Path, Path]:
        """Return the tables of graphs, nodes and edges in the making."""
        finals = [self.path, *(self.path.with_suffix(f".{place}s.csv") for place in self.places)]
        return {self.in_the_making(final): final for final in finals}

    def open(self) -> None:
        """Write the headings."""
        self.files: dict[str, BinaryIO] = {
            place: path.open("wb") for place, path in zip(("graph", *self.places), self.temporaries)
        }
        first: dict[str, tuple[str, ...]] = {place: KEYS[place] for place in self.places}
        factors = () if "domain" in self.heading.absent else ("domain", "domain_score")
        first["graph"] = ("name", "status", *factors, "nodes")
        for place, file in self.files.items():
            file.write(_lines([["graph", *first[place], *_titles(self.heading, self._on(place))]]).tobytes())

    def piece(self, block: Block) -> Piece:
        """Return the lines of graphs, of their nodes and of their edges."""
        predictions = block.predictions
        columns: list[list[Any]] = [block.numbers.tolist(), texts(predictions.names), texts(predictions.status)]
        if "domain" not in self.heading.absent:
            scores = ["" if math.isnan(score) else score for score in predictions.domain_score.tolist()]
            columns += [texts(predictions.domain), scores]
        fixed = zip(*columns, predictions.nodes_per_graph.tolist())
        estimates = [predictions[target.name] for target in self._on("graph")]
        values = _numbers(self.heading, estimates, len(predictions))
        piece = {"graph": _lines([*start, *row] for start, row in zip(fixed, values))}
        for place in self.places:
            targets = self._on(place)
            estimates = [predictions[target.name] for target in targets]
            owners = block.numbers[predictions.graph_of_item(targets[0].name)].tolist()
            rows = zip(owners, _keys(block, place), _numbers(self.heading, estimates, len(owners)))
            piece[place] = _lines([owner, *key, *row] for owner, key, row in rows)
        return piece

    def write(self, piece: Piece) -> None:
        """Append lines."""
        for place, lines in piece.items():
            self.files[place].write(np.asarray(lines).tobytes())

    def close(self, *, complete: bool) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()

    @property
    def places(self) -> list[Location]:
        """Return the locations of fields with a table of their own."""
        return [place for place in KEYS if self._on(place)]

    def _on(self, place: str) -> list[Target]:
        return [target for target in self.heading.targets if target.field.on == place]


def _lines(rows: Iterable[Sequence[Any]]) -> NDArray[np.uint8]:
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    return lines_array(text.getvalue())


def _keys(block: Block, place: Location) -> list[tuple[int, ...]]:
    """Return the node, or the ends of the edge, of every row."""
    if place == "edge":
        senders, receivers = block.edge_ends()
        return list(zip(senders.tolist(), receivers.tolist()))
    return [(node,) for count in block.predictions.nodes_per_graph.tolist() for node in range(count)]


def _titles(heading: Heading, targets: list[Target]) -> list[str]:
    return [
        f"{target.name}{column}_{quantity}"
        for target in targets
        for quantity in heading.quantities(target)
        for column in estimates_of(target).columns(target, quantity)
    ]


def _numbers(heading: Heading, estimates: list[Estimate], rows: int) -> list[list[float | int | str]]:
    """Return the rows of a table."""
    table: list[list[float | int | str]] = [[] for _ in range(rows)]
    for estimate in estimates:
        for quantity in heading.quantities(estimate.target):
            width = len(estimate.columns(estimate.target, quantity))
            for row, values in zip(table, estimate[quantity].reshape(rows, width).tolist()):
                row += ["" if value != value else value for value in values]
    return table


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
        return {"graph", "status", "domain", "domain_score", *names}

    def piece(self, block: Block) -> Piece:
        """Return the lines of structures."""
        from ase.io import write

        text = StringIO()
        for row in range(len(block.predictions)):
            atoms = _frame(self.heading, block, row, self.called)
            _restore(atoms, block.predictions, row, self.reserved)
            write(text, atoms, format="extxyz", parallel=False)
        return {"structures": lines_array(text.getvalue())}

    def write(self, piece: Piece) -> None:
        """Append some structures."""
        self.file.write(np.asarray(piece["structures"]).tobytes())

    def close(self, *, complete: bool) -> None:
        """Close the file."""
        self.file.close()


def _frame(heading: Heading, block: Block, row: int, names: Mapping[str, tuple[str, float]]) -> Atoms:
    """Return one structure with its predictions."""
    predictions = block.predictions
    offsets = np.concatenate([[0], np.cumsum(predictions.nodes_per_graph)])
    read = block.graphs
    atoms = Atoms() if read is None or read.reasons[row] else _atoms(read.whole, row, heading.length)
    atoms.info |= {"graph": int(block.numbers[row]), "status": texts(predictions.status)[row]}
    if predictions.domain[row]:
        atoms.info["domain"] = texts(predictions.domain)[row]
    if not math.isnan(predictions.domain_score[row]):
        atoms.info["domain_score"] = float(predictions.domain_score[row])
    if predictions.status[row] != "ok":
        return atoms
    results: dict[str, Any] = {}
    for name, estimate in predictions.fields.items():
        node = estimate.field.on == "node"
        span = slice(offsets[row], offsets[row + 1]) if node else row
        for quantity in heading.quantities(estimate.target):
            values = estimate[quantity][span]
            called, factor = names[name]
            values = values * factor if factor != 1.0 else values
            if values.dtype.kind == "f" and np.isnan(values).all():
                continue  # no interval, or no stress without a volume
            if estimate.headline == quantity == "mean" and _is_result(called, estimate.field):
                results[called] = float(values) if called == "energy" else values
            else:
                key = called if quantity == estimate.headline else f"{called}_{quantity}"
                values = values.reshape(len(values), -1) if node and values.ndim > 2 else values
                (atoms.arrays if node else atoms.info)[key] = values.item() if np.ndim(values) == 0 else values
    if results:
        atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


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


def _restore(atoms: Atoms, predictions: Predictions, row: int, reserved: set[str]) -> None:
    """Give a structure its texts and its entries in the input file."""
    own = {key: texts[row] for key, texts in predictions.texts.items()}
    if stored_atoms := own.pop(ATOMS, ""):
        restore_atoms(atoms, stored_atoms, reserved)
    for key, text in own.items():
        if (line := one_line(text)) and key not in reserved:
            atoms.info.setdefault(one_line(key), line)


def _atoms(batch: GraphBatch, row: int, length: float) -> Atoms:
    start, stop = batch.node_offsets[row : row + 2].tolist()
    return Atoms(
        numbers=batch[ATOMIC_NUMBERS][start:stop].numpy(),
        positions=batch.positions[start:stop].numpy() * length,
        cell=batch.cell[row].numpy() * length,
        pbc=batch.periodic[row].numpy(),
    )
