"""HDF5 files of predictions.

``graph``, ``nodes``, ``name``, ``status``, ``domain`` and ``domain_score`` have one row per graph, ``node_domain_score`` one per node; ``fields/NAME/QUANTITY`` has one row per graph or, for
node fields, one per node, for edge fields one per edge, graphs in order (files with edge fields have ``edges`` per graph, and ``senders`` and
``receivers`` per edge: numbers of nodes in their graph); QUANTITY is mean, std, epistemic, aleatoric, lower or upper, in the field's
unit; of classes probability, label, set, entropy, epistemic or aleatoric. The attribute ``heading`` is JSON: fields with units, nominal level, members. Failed graphs have NaN (label -1, no class in their set) and a reason in
``status``. Arrays of which nothing is known are not there: of a single run its uncertainty, intervals and domain.
"""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets.formats.hdf5 import VERSIONS, NewHdf5
from hydragnn.ensemble.prediction.formats.sink import Block, Column, Heading, Piece, Sink, end_to_end, texts

ROWS = 4096
"""Rows of a chunk."""


class ArraySink(Sink):
    """A file of the arrays above."""

    def piece(self, block: Block) -> Piece:
        """Return the arrays of the block, without unknown ones."""
        predictions, ends = block.predictions, dict[str, NDArray[Any]]()
        if any(estimate.field.on == "edge" for estimate in predictions.fields.values()):
            senders, receivers = block.edge_ends()
            ends = {"edges": predictions.edges_per_graph, "senders": senders, "receivers": receivers}
        arrays: dict[str, Column] = {
            "graph": block.numbers,
            "nodes": predictions.nodes_per_graph,
            **ends,
            "name": texts(predictions.names),
            "status": texts(predictions.status),
            "domain": texts(predictions.domain),
            "domain_score": predictions.domain_score,
            "node_domain_score": predictions.node_domain_score,
        }
        for name, estimate in predictions.fields.items():
            arrays |= {f"fields/{name}/{quantity}": estimate[quantity] for quantity in estimate.quantities}
        return {name: values for name, values in arrays.items() if name not in self.heading.absent}


class Hdf5Sink(ArraySink):
    """HDF5; whole chunks are written, each with a checksum that HDF5 compares."""

    def open(self) -> None:
        """Create the file."""
        self._new = NewHdf5(self.temporary)
        self._pending: dict[str, list[Column]] = {}

    def write(self, piece: Piece) -> None:
        """Append some graphs.

        Rows that do not fill a chunk wait. OSError where there is no space.
        """
        for name, column in piece.items():
            self._pending.setdefault(name, []).append(column)
        if any(sum(map(len, columns)) >= ROWS for columns in self._pending.values()):
            self._flush(complete=False)

    def close(self, *, complete: bool) -> None:
        """Write the last rows and close the file."""
        if complete:
            self._flush(complete=True)
        self._new.close()

    def _flush(self, *, complete: bool) -> None:
        with self._new.growing() as file:
            for name, columns in self._pending.items():
                column = end_to_end(columns)
                stop = len(column) if complete else len(column) // ROWS * ROWS
                if name not in file and (stop or complete):
                    create_array(file, name, column[:stop], growing=True)
                elif stop:
                    start = len(file[name])
                    file[name].resize(start + stop, axis=0)
                    file[name][start:] = column[:stop]
                self._pending[name] = [column[stop:]]
            if complete:
                describe(file, self.heading)


def create_array(file: Any, name: str, column: Column, *, growing: bool = False) -> None:
    """Create an array in chunks of at most ``ROWS`` rows."""
    is_text = isinstance(column, list)
    values = np.array(column, dtype=h5py.string_dtype()) if isinstance(column, list) else column
    options: dict[str, Any] = {}
    if values.ndim and all(values.shape):
        options = {"chunks": (min(ROWS, len(values)), *values.shape[1:]), "fletcher32": not is_text}
        options |= {"maxshape": (None, *values.shape[1:])} if growing else {}
    file.create_dataset(name, data=values, **options)


def describe(file: Any, heading: Heading) -> None:
    """Write the heading and the units of fields."""
    file.attrs["heading"] = json.dumps(heading.to_json())
    for target in heading.targets:
        file.require_group(f"fields/{target.name}").attrs["unit"] = target.field.unit


ABSENT: dict[str, Any] = {"f": np.nan, "i": -1, "S": b"missing"}
"""Values by kind of number where a part file is missing; HDF5's own would be zeros, which look like predictions."""


class VirtualSink(ArraySink):
    """HDF5 of views of part files in a folder beside the file."""

    def open(self) -> None:
        """Begin without part files."""
        self._parts: list[Path] = []

    def append(self, piece: Piece, part: Path | None = None) -> None:
        """Note a part file, which stays."""
        assert part is not None
        self._parts.append(part)

    def write(self, piece: Piece) -> None:
        """Write nothing: the part file has it."""

    def close(self, *, complete: bool) -> None:
        """Write views of the part files."""
        if not complete:
            return
        shapes: dict[str, list[tuple[int, ...]]] = {}
        dtypes: dict[str, Any] = {}
        for part in self._parts:
            with h5py.File(part) as file:
                for name in array_names(file):
                    shapes.setdefault(name, []).append(file[name].shape)
                    dtypes[name] = file[name].dtype
        with h5py.File(self.temporary, "w", libver=VERSIONS) as file:
            describe(file, self.heading)
            for name, of_parts in shapes.items():
                layout = h5py.VirtualLayout((sum(rows for rows, *_ in of_parts), *of_parts[0][1:]), dtype=dtypes[name])
                start = 0
                for part, shape in zip(self._parts, of_parts):
                    where = f"{part.parent.name}/{part.name}"
                    if all(shape):
                        source = h5py.VirtualSource(where, name, shape, dtype=dtypes[name])
                        layout[start : start + shape[0]] = source
                    start += shape[0]
                file.create_virtual_dataset(name, layout, fillvalue=ABSENT.get(dtypes[name].kind))


def array_names(file: Any) -> list[str]:
    """Return the paths of all arrays in an HDF5 file."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names
