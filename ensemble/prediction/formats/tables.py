"""Prediction files for people and for other programs: CSV and Parquet."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import MissingPackageError
from hydragnn.base.shown import csv_cell
from hydragnn.ensemble.estimates.estimate import Estimate
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.prediction.formats.sink import (
    Block,
    Column,
    Heading,
    Piece,
    Sink,
    joined,
    lines_array,
    size_of,
    texts,
)
from hydragnn.graphs.field import Location
from hydragnn.models import Target

KEYS: Mapping[Location, tuple[str, ...]] = {"node": ("node",), "edge": ("sender", "receiver")}
"""Columns with the node or edge of a line in its graph."""


ROW_GROUP = 1 << 24
"""Bytes of rows that Parquet writes at once, at least."""


class CsvSink(Sink):
    """One line per graph."""

    suffix = ".csv"

    @property
    def temporaries(self) -> Mapping[Path, Path]:
        """Return the tables of graphs, nodes and edges in the making."""
        finals = [self.path, *(self.path.with_suffix(f".{place}s{self.suffix}") for place in self.places)]
        return {self.in_the_making(final): final for final in finals}

    def open(self) -> None:
        """Write the headings."""
        self.files: dict[str, BinaryIO] = {
            place: path.open("wb") for place, path in zip(("graph", *self.places), self.temporaries)
        }
        for place, titles in self.titles.items():
            self.files[place].write(_lines([titles]).tobytes())

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
            keys = _keys(block, place)
            if self._scores(place):
                scores = predictions.node_domain_score.tolist()
                keys = [(*key, "" if math.isnan(score) else score) for key, score in zip(keys, scores)]
            rows = zip(owners, keys, _numbers(self.heading, estimates, len(owners)))
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
    def titles(self) -> dict[str, list[str]]:
        """Return the names of columns of every table."""
        first: dict[str, tuple[str, ...]] = {place: (*KEYS[place], *self._scores(place)) for place in self.places}
        factors = () if "domain" in self.heading.absent else ("domain", "domain_score")
        first["graph"] = ("name", "status", *factors, "nodes")
        return {
            place: ["graph", *first[place], *_titles(self.heading, self._on(place))]
            for place in ("graph", *self.places)
        }

    @property
    def places(self) -> list[Location]:
        """Return the locations of fields with a table of their own."""
        return [place for place in KEYS if self._on(place)]

    def _scores(self, place: str) -> tuple[str, ...]:
        name = "node_domain_score"
        return (name,) if place == "node" and name not in self.heading.absent else ()

    def _on(self, place: str) -> list[Target]:
        return [target for target in self.heading.targets if target.field.on == place]


class ParquetSink(CsvSink):
    """The tables of CSV with types; unknown numbers are null."""

    suffix = ".parquet"

    def __init__(self, path: Path, heading: Heading, folder: Path | None = None) -> None:
        """Raise MissingPackageError without pyarrow."""
        super().__init__(path, heading, folder)
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise MissingPackageError("pyarrow", "parquet", f"--out {path}") from error
        self.arrow, self.parquet = pyarrow, parquet
        self.writers, self.waiting = dict[str, Any](), list[Piece]()

    def open(self) -> None:
        """Begin without files."""

    def piece(self, block: Block) -> Piece:
        """Return the columns of all tables, by table and name."""
        predictions, (senders, receivers) = block.predictions, block.edge_ends()
        counts = predictions.nodes_per_graph
        nodes = [np.arange(0)] + [np.arange(count) for count in counts.tolist()]
        columns: dict[str, Column] = {
            "graph/graph": block.numbers,
            "graph/name": texts(predictions.names),
            "graph/status": texts(predictions.status),
            "graph/domain": texts(predictions.domain),
            "graph/domain_score": predictions.domain_score,
            "graph/nodes": counts,
            "node/node": np.concatenate(nodes),
            "node/node_domain_score": predictions.node_domain_score,
            "edge/sender": senders,
            "edge/receiver": receivers,
        }
        for target in self.heading.targets:
            place, estimate = target.field.on, predictions[target.name]
            columns[f"{place}/graph"] = block.numbers[predictions.graph_of_item(target.name)]
            for quantity in self.heading.quantities(target):
                suffixes = estimate.columns(target, quantity)
                values = estimate[quantity].reshape(-1, len(suffixes))
                columns |= {f"{place}/{target.name}{s}_{quantity}": own for s, own in zip(suffixes, values.T.copy())}
        return {f"{place}/{one}": columns[f"{place}/{one}"] for place, own in self.titles.items() for one in own}

    def write(self, piece: Piece) -> None:
        """Keep rows until they are worth a group."""
        self.waiting.append(piece)
        if sum(map(size_of, self.waiting)) > ROW_GROUP:
            self._write()

    def close(self, *, complete: bool) -> None:
        """Write the last rows and close the files."""
        if complete and self.waiting:
            self._write()
        for writer in self.writers.values():
            writer.close()

    def _write(self) -> None:
        """Write the rows that wait, as a group of each table."""
        piece, self.waiting = joined(self.waiting), []
        for (place, titles), path in zip(self.titles.items(), self.temporaries):
            arrays = [self.arrow.array(piece[f"{place}/{title}"], from_pandas=True) for title in titles]
            table = self.arrow.Table.from_arrays(arrays, names=titles)
            if place not in self.writers:
                schema = table.schema.with_metadata({"heading": json.dumps(self.heading.to_json())})
                self.writers[place] = self.parquet.ParquetWriter(path, schema)
            self.writers[place].write_table(table.replace_schema_metadata(None).cast(self.writers[place].schema))


def _lines(rows: Iterable[Sequence[Any]]) -> NDArray[np.uint8]:
    text = StringIO(newline="")
    csv.writer(text).writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return lines_array(text.getvalue())


def _keys(block: Block, place: Location) -> Sequence[tuple[int | float | str, ...]]:
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
