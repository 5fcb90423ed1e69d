"""Prediction files made of arrays.

ADIOS2 BP and npz (HDF5: ``hdf5``), with the same names in each.

``graph``, ``nodes``, ``name``, ``status``, ``domain`` and ``domain_score`` have one row per graph, ``node_domain_score`` one per node; ``fields/NAME/QUANTITY`` has one row per graph or, for
node fields, one per node, for edge fields one per edge, graphs in order (files with edge fields have ``edges`` per graph, and ``senders`` and
``receivers`` per edge: numbers of nodes in their graph); QUANTITY is mean, std, epistemic, aleatoric, lower or upper, in the field's
unit; of classes probability, label, set, entropy, epistemic or aleatoric. The attribute ``heading`` is JSON: fields with units, nominal level, members. Failed graphs have NaN (label -1, no class in their set) and a reason in
``status``. Arrays of which nothing is known are not there: of a single run its uncertainty, intervals and domain.
"""

import json
import os
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.ensemble.prediction.formats.sink import Block, Column, Piece, Sink, joined, texts


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


class NpzSink(ArraySink):
    """A numpy archive."""

    def open(self) -> None:
        """Begin without a file."""
        self.pieces: list[Piece] = []

    def write(self, piece: Piece) -> None:
        """Keep some graphs."""
        self.pieces.append(piece)

    def close(self, *, complete: bool) -> None:
        """Write everything at once."""
        if not complete:
            return
        arrays = {name: np.asarray(column) for name, column in joined(self.pieces).items()}
        with self.temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, heading=np.array(json.dumps(self.heading.to_json())), **arrays)
            file.flush()
            os.fsync(file.fileno())


class BpSink(ArraySink):
    """ADIOS2 BP."""

    def open(self) -> None:
        """Begin the folder."""
        from hydragnn.datasets.formats.adios import ReservedBp

        shutil.rmtree(self.temporary, ignore_errors=True)
        self.reserved = ReservedBp(self.temporary)
        self.attributes = {"heading": json.dumps(self.heading.to_json())}

    def write(self, piece: Piece) -> None:
        """Append some graphs as one step, the heading with the first.

        OSError where there is no space.
        """
        step = {name: json.dumps(values) if isinstance(values, list) else values for name, values in piece.items()}
        self.reserved.write_step(step, self.attributes)
        self.attributes = {}

    def close(self, *, complete: bool) -> None:
        """Close the stream."""
        self.reserved.close()
