"""Graphs of networkx, whose edges become both directions where it is undirected."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field, Location
from hydragnn.graphs.texts import NAME, name_among
from hydragnn.graphs.validate import graph_from_arrays

Item = tuple[str, Mapping[str, Any]]  # words for a node or edge, and its attributes


def from_networkx(
    graph: Any,
    fields: Iterable[Field] = (),
    *,
    keys: Mapping[str, Sequence[str]] | None = None,
    positions: Sequence[str] = (),
    optional: Collection[str] = (),
    name: str = "graph",
) -> GraphBatch:
    """Return the graph of a networkx graph; fields are attributes.

    ``keys`` names the attributes of fields with other names. Nodes come in its order. Several keys are the components of a value. ``positions`` names the attributes with coordinates.
    Fields named in ``optional`` may be absent, and labels of these targets missing at some nodes or edges (absent, None, NaN).
    InputError names the node or edge that lacks an attribute.

    >>> import networkx
    >>> from_networkx(networkx.path_graph(3)).senders.tolist()
    [1, 0, 2, 1]
    """
    if not hasattr(graph, "nodes") or not hasattr(graph, "is_directed"):
        raise InputError(f"{name}: a {type(graph).__name__} is no graph of networkx; give one")
    fields = list(fields)
    edges = [(a, b, values) for a, b, values in graph.edges(data=True)]
    if not graph.is_directed():
        check_reversed(fields, name)
        edges += [(b, a, values) for a, b, values in edges if a != b]
    items: dict[Location, list[Item]] = {
        "node": [(f"node {node}", values) for node, values in graph.nodes(data=True)],
        "edge": [(f"edge {a} to {b}", values) for a, b, values in edges],
        "graph": [("the graph", graph.graph)],
    }
    values: dict[Location, dict[str, Any]] = {"node": {}, "edge": {}, "graph": {}}
    declared = []
    for field in fields:
        own = (keys or {}).get(field.name, [field.name])
        column = _column(items[field.on], own, field, field.name in optional, name)
        if column is not None:
            values[field.on][field.name] = column
            declared.append(field)
    axes = Field(name="coordinates", on="node", shape=(len(positions) or 1,), dtype="float64")
    ends = edge_ends(graph)
    batch = graph_from_arrays(
        _column(items["node"], positions, axes, False, name) if positions else np.zeros((len(graph.nodes), 0)),
        ends[:, 0],
        ends[:, 1],
        fields=declared,
        nodes=values["node"],
        edges=values["edge"],
        graphs=values["graph"],
        optional=optional,
        name=name,
    )
    return batch.with_texts({NAME: [text]}) if (text := name_among(graph.graph)) else batch


def edge_ends(graph: Any) -> Int[np.ndarray, "edges 2"]:
    """Return senders and receivers in order; reverses of undirected edges last."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    ends = np.array([(place[a], place[b]) for a, b in graph.edges()], dtype=np.int64).reshape(-1, 2)
    return ends if graph.is_directed() else np.concatenate([ends, ends[ends[:, 0] != ends[:, 1], ::-1]])


def check_reversed(fields: Iterable[Field], where: str) -> None:
    """Raise InputError for vectors of edges whose reverses are to be added."""
    for field in fields:
        if field.on == "edge" and field.parity == "vector":
            raise InputError(
                f"{where}: {field.name} is a vector of edges, and the reverse of an edge may have it turned round or not; "
                "list both directions with the vector of each"
            )


def _column(items: Sequence[Item], keys: Sequence[str], field: Field, optional: bool, where: str) -> Any:
    """Return the values of a field; None where all lack it."""
    if optional and all(values.get(key) is None for _, values in items for key in keys):
        return None
    column = np.full((len(items), *field.shape), np.nan)
    for number, (name, values) in enumerate(items):
        row = [values.get(key) for key in keys]
        if None in row and not (optional and field.role == "target"):
            raise InputError(
                f"{where}: {name} has no {keys[row.index(None)]}; it has {', '.join(map(str, values)) or 'nothing'}"
            )
        try:
            if row != [None]:
                value = np.array(row[0] if len(row) == 1 else row, dtype=np.float64)
                if value.shape != field.shape:
                    raise ValueError(value.shape)
                column[number] = value
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{where}: {name} has {', '.join(keys)} = {row!r:.60}, not numbers of shape {field.shape}; mend it"
            ) from error
    whole = field.dtype == "int64" and bool((column == np.round(column)).all())
    return column[0] if field.on == "graph" else column.astype(np.int64) if whole else column
