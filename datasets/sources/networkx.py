"""Graphs of networkx, in files that it reads without running code."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field as Setting

from hydragnn.base.errors import InputError, as_input_error
from hydragnn.datasets.sources.base import ObjectsBuild
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.graphs.pymatgen_json import read_json


class NetworkxBuild(ObjectsBuild):
    """Graphs of networkx: ``.graphml``, ``.gml``, ``.json`` or ``.jsonl`` (node-link), or in memory."""

    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))

    kind: Literal["networkx"] = "networkx"

    positions: list[str] = Setting(default_factory=list)
    """Attributes of nodes with the coordinates; empty for graphs without geometry."""

    def graph(self, one: Any, first: Any, name: str, number: int) -> GraphBatch:
        """Return the graph of one networkx graph."""
        from hydragnn.graphs.network import from_networkx

        keys, where = {field.name: field.keys for field in self.fields}, f"{name}, graph {number}"
        fields = [field.field for field in self.fields]
        if len({graph.is_directed() for graph in (first, one) if hasattr(graph, "is_directed")}) > 1:
            problem = f"{where} and the first graph: one is directed, and the other is not"
            raise InputError(f"{problem}; use to_undirected or to_directed of networkx")
        if self.positions and hasattr(one, "graph"):
            edges = {key: None for *_, values in one.edges(data=True) for key in values}
            self.check_geometry(map(str, [*one.graph, *edges]), where)
        return from_networkx(one, fields, keys=keys, positions=self.positions, optional=self.optional, name=where)

    def load(self, path: Path) -> Iterable[Any]:
        """Return the graphs of a file; InputError where networkx cannot read it."""
        import networkx
        from networkx.readwrite.graphml import GraphMLReader

        with as_input_error(f"{path} is no .graphml, .gml, .json or .jsonl (node-link) of networkx", "check it"):
            if path.suffix == ".graphml":
                return _of_graphml(GraphMLReader(), path)
            if path.suffix == ".gml":
                return [networkx.read_gml(path, label=None)]
            tables = read_json(path)
            return [_of_table(table) for table in (tables if isinstance(tables, list) else [tables])]


def _of_graphml(reader: Any, path: Path) -> list[Any]:
    """Return graphs with the defaults of keys; ValueError for graphs inside others."""
    graphs = [*reader(path=str(path))]
    within = sum(1 for _ in reader.xml.iter(f"{{{reader.NS_GRAPHML}}}graph")) - len(graphs)
    if within:
        raise ValueError(f"{within} graphs stand inside others; write each as a graph of its own")
    keys, defaults = reader.find_graphml_keys(reader.xml)
    for graph in graphs:
        nodes, edges = ([one[-1] for one in items(data=True)] for items in (graph.nodes, graph.edges))
        places = {"node": nodes, "edge": edges, "graph": [graph.graph]}
        for key, value in defaults.items():
            for values in places.get(keys[key]["for"], [*nodes, *edges, graph.graph]):
                values.setdefault(keys[key]["name"], value)
    return graphs


def _of_table(table: Any) -> Any:
    """Return the graph of a table; ValueError for repeated nodes."""
    import networkx

    names = Counter(str(node.get("id")) for node in table["nodes"])
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise ValueError(f"the node {twice} is listed twice")
    return networkx.node_link_graph(table, edges="links" if "links" in table else "edges")
