"""Prediction files for people and for other programs: CSV and Parquet."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import as_missing
from hydragnn.base.shown import csv_cell
from hydragnn.ensemble.estimates.predictions import estimates_of
from hydragnn.ensemble.prediction.formats import sink
from hydragnn.graphs.field import Location

PLACES: tuple[Location, ...] = ("node", "edge")
"""Locations of fields with a table of their own."""

ROW_GROUP = 1 << 24
"""Bytes of rows that Parquet writes at once, at least."""


class CsvSink(sink.Sink):
    """One line per graph."""

    suffix = ".csv"

    @property
    def temporaries(self) -> Mapping[Path, Path]:
        """Return the tables of graphs, nodes and edges in the making."""
        finals = [self.path, *(self.path.with_suffix(f".{place}s{self.suffix}") for place in self.places)]
        return {self.in_the_making(final): final for final in finals}

    def open(self) -> None:
        """Write the headings."""
        places = zip(("graph", *self.places), self.temporaries)
        self.files: dict[str, BinaryIO] = {place: path.open("wb") for place, path in places}
        for place, titles in self.titles.items():
            self.files[place].write(_lines([_cells(titles)]).tobytes())

    def piece(self, block: sink.Block) -> sink.Piece:
        """Return the lines of graphs, of their nodes and of their edges."""
        columns = {name: _cells(column) for name, column in self.columns(block).items()}
        return {
            place: _lines(zip(*(columns[f"{place}/{title}"] for title in titles), strict=True))
            for place, titles in self.titles.items()
        }

    def columns(self, block: sink.Block) -> dict[str, sink.Column]:
        """Return the columns of all tables, by table and name."""
        predictions, (senders, receivers) = block.predictions, block.edge_ends()
        counts = predictions.nodes_per_graph
        nodes = [np.arange(0)] + [np.arange(count) for count in counts.tolist()]
        columns: dict[str, sink.Column] = {
            "graph/graph": block.numbers,
            "graph/name": sink.texts(predictions.names),
            "graph/status": sink.texts(predictions.status),
            "graph/domain": sink.texts(predictions.domain),
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

    def write(self, piece: sink.Piece) -> None:
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
        first = {"graph": ["name", "status", "domain", "domain_score", "nodes"], "node": ["node", "node_domain_score"]}
        first["edge"] = ["sender", "receiver"]
        columns = {place: [one for one in own if one not in self.heading.absent] for place, own in first.items()}
        every: list[Location] = ["graph", *self.places]
        titles: dict[str, list[str]] = {place: ["graph", *columns[place]] for place in every}
        for target in self.heading.targets:
            for quantity in self.heading.quantities(target):
                suffixes = estimates_of(target).columns(target, quantity)
                titles[target.field.on] += [f"{target.name}{suffix}_{quantity}" for suffix in suffixes]
        return titles

    @property
    def places(self) -> list[Location]:
        """Return the locations of fields with a table of their own."""
        return [place for place in PLACES if any(target.field.on == place for target in self.heading.targets)]


class ParquetSink(CsvSink):
    """The tables of CSV with types; unknown numbers are null."""

    suffix = ".parquet"

    def __init__(self, path: Path, heading: sink.Heading, folder: Path | None = None) -> None:
        """Raise MissingPackageError without pyarrow."""
        super().__init__(path, heading, folder)
        with as_missing("pyarrow", "parquet", f"--out {path}"):
            import pyarrow
            from pyarrow import parquet
        self.arrow, self.parquet = pyarrow, parquet
        self.writers, self.waiting = dict[str, Any](), list[sink.Piece]()

    def open(self) -> None:
        """Begin without files."""

    def piece(self, block: sink.Block) -> sink.Piece:
        """Return the columns of all tables, by table and name."""
        return self.columns(block)

    def write(self, piece: sink.Piece) -> None:
        """Keep rows until they are worth a group."""
        self.waiting.append(piece)
        if sum(map(sink.size_of, self.waiting)) > ROW_GROUP:
            self._write()

    def close(self, *, complete: bool) -> None:
        """Write the last rows and close the files."""
        if complete and self.waiting:
            self._write()
        for writer in self.writers.values():
            writer.close()

    def _write(self) -> None:
        """Write the rows that wait, as a group of each table."""
        piece, self.waiting = sink.joined(self.waiting), []
        for (place, titles), path in zip(self.titles.items(), self.temporaries):
            arrays = [self.arrow.array(piece[f"{place}/{title}"], from_pandas=True) for title in titles]
            table = self.arrow.Table.from_arrays(arrays, names=titles)
            if place not in self.writers:
                schema = table.schema.with_metadata({"heading": json.dumps(self.heading.to_json())})
                self.writers[place] = self.parquet.ParquetWriter(path, schema)
            self.writers[place].write_table(table.replace_schema_metadata(None).cast(self.writers[place].schema))


def _lines(rows: Iterable[Sequence[Any]]) -> NDArray[np.uint8]:
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    return sink.lines_array(text.getvalue())


def _cells(column: sink.Column) -> list[Any]:
    """Return cells of a column; empty for unknown numbers."""
    if isinstance(column, list):
        return [csv_cell(cell) for cell in column]
    return ["" if value != value else value for value in column.tolist()]
