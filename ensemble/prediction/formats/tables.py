"""Prediction files for people and for other programs: CSV."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.prediction.formats.sink import Block, Heading, Piece, Sink, lines_array, texts
from hydragnn.ensemble.predictions import estimates_of
from hydragnn.graphs.field import Location
from hydragnn.models import Target

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
        first: dict[str, tuple[str, ...]] = {place: (*KEYS[place], *self._scores(place)) for place in self.places}
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
    def places(self) -> list[Location]:
        """Return the locations of fields with a table of their own."""
        return [place for place in KEYS if self._on(place)]

    def _scores(self, place: str) -> tuple[str, ...]:
        name = "node_domain_score"
        return (name,) if place == "node" and name not in self.heading.absent else ()

    def _on(self, place: str) -> list[Target]:
        return [target for target in self.heading.targets if target.field.on == place]


def _lines(rows: Iterable[Sequence[Any]]) -> NDArray[np.uint8]:
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
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
