"""Tables of nodes and edges, such as grains and their contacts."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from hydragnn.base.errors import InputError
from hydragnn.datasets.sources import table_files
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.table_files import Table
from hydragnn.graphs.field import Location
from hydragnn.graphs.network import check_reversed
from hydragnn.graphs.texts import NAME_KEYS

Array = NDArray[Any]


class TablesBuild(BuildSettings):
    """Tables of nodes, edges and graphs, one row each.

    They are ``files``, ``edges`` and ``graphs``. Tables are CSV files with a header, or npz files with one array per
    column. The column ``graph`` says to which graph a row belongs; without it all rows are one graph.
    """

    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))
    beside: ClassVar[tuple[str, ...]] = ("edges", "graphs", "labels")

    kind: Literal["tables", "grains", "sensors"] = "tables"

    edges: str
    """Table with columns ``graph``, ``sender``, ``receiver`` (numbers of nodes inside the graph, from 0; or see ``node_id``)."""

    ends: tuple[str, str] = ("sender", "receiver")
    """Columns of ``edges`` with the two nodes of an edge."""

    node_id: str | None = None
    """Column of ``files`` with the numbers or names that edges use for nodes; absent: nodes count from 0 in each graph."""

    graphs: str | None = None
    """Table with a column ``graph`` and the graph fields."""

    positions: list[str] = Setting(default_factory=list)
    """Columns with the coordinates of nodes; empty for graphs without geometry."""

    undirected: bool | None = None
    """True adds the reverse of every edge, for tables that list each from one side; False takes edges that run one way; absent: both sides are listed."""

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph, ascending by the column ``graph``."""
        if self.undirected:
            check_reversed((field.field for field in self.fields), self.edges)
        names = [] if self.node_id is None else [self.node_id, *self.ends]
        ends = [] if names else [*self.ends]
        numbers: dict[Location, list[str]] = {"node": [*self.positions], "edge": ends, "graph": []}
        optional = {key for field in self.fields if field.missing for key in field.keys}
        for field in self.fields:
            numbers[field.on] += field.keys
        paths = table_files.find_files(self.files)
        of_nodes = [table_files.read_table(path, numbers["node"], optional, ["graph", *names[:1]]) for path in paths]
        grains = _join(of_nodes, paths)
        edges = table_files.read_table(Path(self.edges), numbers["edge"], optional, ["graph", *names[1:]])
        tables: dict[Location, Table] = {"node": grains, "edge": edges, "graph": {}}
        sources: dict[Location, str] = {"node": ", ".join(self.files), "edge": self.edges}
        sources["graph"] = self.graphs or "the build file (no table of graphs)"
        if self.graphs is not None:
            named = ["graph", *NAME_KEYS, *self.text_keys]
            tables["graph"] = table_files.read_table(Path(self.graphs), numbers["graph"], optional, named)
        for location, table in tables.items() if self.positions else ():
            self.check_geometry({*table} - {"cell"}, sources[location])  # a cell is a number of one
        if not any("graph" in table for table in tables.values()):
            for table in filter(None, tables.values()):
                table["graph"] = np.zeros(len(next(iter(table.values()))), dtype=np.int64)
        labels = _sorted({str(one).strip() for one in table_files.table_column(grains, "graph", sources["node"])})
        if "" in labels:
            raise InputError(f"{sources['node']}: a row has nothing in the column graph; fill it in")
        rows = {location: _rows(table, labels, sources[location]) for location, table in tables.items() if table}

        def column(own: dict[Location, Array], on: Location, key: str) -> Array:
            return table_files.table_column(tables[on], key, sources[on])[own[on]]

        for number, label in enumerate(labels):
            name = f"graph {label}"
            rows_here = {location: index[number] for location, index in rows.items()}
            senders, receivers = (column(rows_here, "edge", key) for key in self.ends)
            if self.node_id is not None:
                ids = column(rows_here, "node", self.node_id)
                senders, receivers = (_places(ids, side, f"{self.edges}, {name}") for side in (senders, receivers))
            table_files.check_sides(senders, receivers, self.undirected, f"{self.edges}, {name}")
            if self.undirected:
                senders, receivers, twice = table_files.both_ways(senders, receivers)
                rows_here["edge"] = rows_here["edge"][twice]
            values = {}
            for field in self.fields:
                parts = [column(rows_here, field.on, key) for key in field.keys]
                if field.on == "graph" and len(parts[0]) != 1:
                    raise InputError(f"{sources['graph']}: {len(parts[0])} rows for {name}; give one")
                values[field.name] = table_files.stack_rows(parts, field)
            columns = [column(rows_here, "node", key) for key in self.positions]
            keys = {*self.text_keys, *(key for key in NAME_KEYS if key in tables["graph"])}
            texts = {key: column(rows_here, "graph", key) for key in keys}
            positions = np.stack(columns, axis=1) if columns else np.zeros((len(rows_here["node"]), 0))
            graph = partial(self.graph_of, positions, senders, receivers, values, name=name)
            yield partial(self.graph_with_texts, texts, str(label), graph)


def _places(ids: Array, names: Array, where: str) -> Array:
    """Return the number of each named node; InputError for unknown names."""
    place = {str(one): number for number, one in enumerate(ids.tolist())}
    if len(place) < len(ids):
        twice = next(one for number, one in enumerate(ids.tolist()) if place[str(one)] != number)
        raise InputError(f"{where}: the node {twice} is listed twice; give every node one name in its graph")
    absent = next((one for one in names.tolist() if str(one) not in place), None)
    if absent is not None:
        raise InputError(f"{where}: an edge names the node {absent}, which its graph does not have; mend the edge")
    return np.array([place[str(one)] for one in names.tolist()], dtype=np.int64)


def _join(tables: list[Table], files: list[Path]) -> Table:
    names, file_of = set(tables[0]), dict[str, Path]()
    for table, file in zip(tables, files):
        if set(table) != names:
            raise InputError(f"{files[0]} and {file} have different columns; give them the same header")
        own = {str(one).strip() for one in table.get("graph", ())}
        if both := next((label for label in own if label in file_of), None):
            raise InputError(
                f"graph {both} has rows in {file_of[both]} and in {file}; name the graphs of each file otherwise"
            )
        file_of |= dict.fromkeys(own, file)
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _sorted(labels: set[str]) -> list[str]:
    """Return labels in order: whole numbers by size, texts by letter.

    >>> _sorted({"10", "9"}), _sorted({"a10", "a9"})
    (['9', '10'], ['a10', 'a9'])
    """
    whole = all(re.fullmatch("0|-?[1-9][0-9]*", label) for label in labels)
    return sorted(labels, key=int if whole else None)


def _rows(table: Table, labels: list[str], source: str) -> list[Array]:
    """Return the rows of each graph in the order of the table."""
    places = {label: number for number, label in enumerate(labels)}
    owners = [str(one).strip() for one in table_files.table_column(table, "graph", source)]
    if absent := next((one for one in owners if one not in places), None):
        raise InputError(f"{source}: graph {absent} has rows here but no nodes; add them or remove the rows")
    place = np.array([places[one] for one in owners], dtype=np.int64)
    order = np.argsort(place, kind="stable")
    cuts = np.searchsorted(place[order], np.arange(len(labels) + 1))
    return [order[a:b] for a, b in pairwise(cuts)]
