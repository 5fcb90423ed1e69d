"""Prediction files made of arrays: HDF5, ADIOS2 BP and npz, with the same names in each.

``graph``, ``nodes``, ``status``, ``domain`` and ``domain_score`` have one row per graph; ``fields/NAME/QUANTITY`` has one row per graph or, for
node fields, one per node, for edge fields one per edge, graphs in order (files with edge fields have ``edges`` per graph, and ``senders`` and
``receivers`` per edge: numbers of nodes in their graph); QUANTITY is mean, std, epistemic, aleatoric, lower or upper, in the field's
unit; of classes probability, label, set, entropy, epistemic or aleatoric. The attribute ``heading`` is JSON: fields with units, nominal level, members. Failed graphs have NaN (label -1, no class in their set) and a reason in
``status``.
"""

import json
import os
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.ensemble.prediction.sinks import Block, Piece, Sink, joined, texts


def block_arrays(block: Block) -> dict[str, NDArray[Any]]:
    """The arrays of a block by name."""
    return {
        "graph": block.numbers,
        "nodes": block.predictions.nodes_per_graph,
        **edge_arrays(block),
        "status": np.array(texts(block.predictions.status), dtype=np.str_),
        "domain": np.array(texts(block.predictions.domain), dtype=np.str_),
        "domain_score": block.predictions.domain_score,
        **estimate_arrays(block),
    }


def edge_arrays(block: Block) -> dict[str, NDArray[Any]]:
    """How many edges every graph has and which nodes they join; nothing where no field lies on edges."""
    if not any(estimate.field.on == "edge" for estimate in block.predictions.fields.values()):
        return {}
    senders, receivers = block.edge_ends()
    return {"edges": block.predictions.edges_per_graph, "senders": senders, "receivers": receivers}


def estimate_arrays(block: Block) -> dict[str, NDArray[Any]]:
    """What is predicted, by name."""
    return {
        f"fields/{name}/{quantity}": estimate[quantity]
        for name, estimate in block.predictions.fields.items()
        for quantity in estimate.quantities
    }


class ArraySink(Sink):
    """A file of the arrays above."""

    def piece(self, block: Block) -> Piece:
        """The arrays of the block."""
        return block_arrays(block)


class Hdf5Sink(ArraySink):
    """HDF5, appended piece by piece."""

    def open(self) -> None:
        """Begin the file with its heading."""
        import h5py

        self.file = h5py.File(self.temporary, "w")
        self.file.attrs["heading"] = json.dumps(self.heading.to_json())

    def write(self, piece: Piece) -> None:
        """Append some graphs."""
        import h5py

        for name, values in piece.items():
            text = values.dtype.kind == "U"
            if name not in self.file:
                self.file.create_dataset(
                    name,
                    shape=(0, *values.shape[1:]),
                    maxshape=(None, *values.shape[1:]),
                    chunks=(4096, *values.shape[1:]),
                    dtype=h5py.string_dtype() if text else values.dtype,
                )
            data = self.file[name]
            start = len(data)
            data.resize(start + len(values), axis=0)
            if len(values):
                data[start:] = values.tolist() if text else values

    def close(self, *, complete: bool) -> None:
        """Flush and close."""
        for target in self.heading.targets if complete else ():
            if f"fields/{target.name}" in self.file:
                self.file[f"fields/{target.name}"].attrs["unit"] = target.field.unit
        self.file.close()


class NpzSink(ArraySink):
    """A numpy archive; kept in memory until the end, since the format has no way to append."""

    def open(self) -> None:
        """Nothing yet."""
        self.pieces: list[Piece] = []

    def write(self, piece: Piece) -> None:
        """Keep some graphs."""
        self.pieces.append(piece)

    def close(self, *, complete: bool) -> None:
        """Write everything at once."""
        if not complete:
            return
        arrays = joined(self.pieces)
        with self.temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, heading=np.array(json.dumps(self.heading.to_json())), **arrays)
            file.flush()
            os.fsync(file.fileno())


class BpSink(ArraySink):
    """ADIOS2 BP: one step per piece, arrays of a step end to end; texts as JSON lists."""

    def open(self) -> None:
        """Begin the folder with its heading."""
        import adios2

        shutil.rmtree(self.temporary, ignore_errors=True)
        self.stream = adios2.Stream(str(self.temporary), "w")
        self.started = False

    def write(self, piece: Piece) -> None:
        """Append some graphs as one step."""
        self.stream.begin_step()
        if not self.started:
            self.stream.write_attribute("heading", json.dumps(self.heading.to_json()))
            self.started = True
        for name, values in piece.items():
            if values.dtype.kind == "U":
                self.stream.write(name, json.dumps(values.tolist()))
            else:
                shape = list(values.shape)
                self.stream.write(name, np.ascontiguousarray(values), shape, [0] * len(shape), shape)
        self.stream.end_step()

    def close(self, *, complete: bool) -> None:
        """Close the stream."""
        self.stream.close()
