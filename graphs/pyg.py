"""Exchange with torch_geometric, whose edges also flow from row 0 to 1."""

import warnings
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import unbatch
from hydragnn.graphs.pyg_geometry import geometry_of
from hydragnn.graphs.texts import NAME, NAME_KEYS, name_among
from hydragnn.graphs.validate import graph_from_arrays

Data = Any  # torch_geometric.data.Data: importing it takes seconds, so only what uses it does


def torch_geometric(module: str) -> ModuleType:
    """Import a module of torch_geometric without its deprecation notes."""
    from importlib import import_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(f"torch_geometric.{module}")


def from_pyg(
    data: Data,
    fields: Iterable[Field] = (),
    *,
    optional: Iterable[str] = (),
    cutoff: float | None = None,
    name: str = "graph",
) -> GraphBatch:
    """Return the graph of one ``Data``; fields are attributes by name.

    Positions come from ``pos`` (none: dimension 0); cell, periodic axes and images from the attributes of this program, the public
    HydraGNN, MACE, NequIP, fairchem, SevenNet, matgl, SchNetPack and others (``pyg_geometry``), compared with lengths of edges that
    are stored beside, or with the ``cutoff`` that made them. A trailing axis of length 1 may stand for a scalar, and a leading
    one for the graph. Fields named in ``optional`` may be absent. InputError for a missing attribute, for images that are not
    understood and for all that ``graph_from_arrays`` refuses.

    >>> data = torch_geometric("data").Data(pos=torch.zeros(2, 3), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([2.0]))
    >>> from_pyg(data, [Field(name="y", on="graph", role="target")])["y"]
    tensor([2.])
    """
    declared: list[Field] = []
    values: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    absent = set(optional)
    for field in fields:
        value = data.get(field.name)
        if value is None and field.name in absent:
            continue
        if value is None:
            keys = list(data.keys())
            raise InputError(f"{name}: the data has no attribute {field.name}; {nearest(field.name, keys)}")
        declared.append(field)
        values[field.on][field.name] = _shaped(torch.as_tensor(value), field)
    geometry = geometry_of(data, name, cutoff=cutoff, known={field.name for field in declared})
    positions = geometry.positions
    if positions is None:
        count = data.num_nodes
        if count is None:
            raise InputError(f"{name}: the data has neither nodes nor positions; set pos, x or num_nodes")
        positions = torch.zeros(count, 0)
    graph = graph_from_arrays(
        positions,
        geometry.edge_index[0],
        geometry.edge_index[1],
        fields=declared,
        nodes=values["node"],
        edges=values["edge"],
        graphs=values["graph"],
        edge_shifts=geometry.shifts,
        cell=geometry.cell,
        periodic=geometry.periodic,
        name=name,
    )
    own = name_among({key: data[key] for key in NAME_KEYS if key in data})
    return graph.with_texts({NAME: [own]}) if own else graph


def to_pyg(batch: GraphBatch) -> list[Data]:
    """Return one ``Data`` per graph, with every field under its name.

    Graph fields have a leading axis of 1, so that torch_geometric stacks them when it makes batches.
    """
    return [_data(graph) for graph in unbatch(batch)]


def _data(graph: GraphBatch) -> Data:
    geometry: dict[str, Any] = {"pos": graph.positions, "edge_shifts": graph.edge_shifts} if graph.dim else {}
    return torch_geometric("data").Data(
        edge_index=torch.stack([graph.senders, graph.receivers]),
        num_nodes=graph.num_nodes,
        cell=graph.cell,
        periodic=graph.periodic,
        **geometry,
        **graph.nodes,
        **graph.edges,
        **graph.graphs,
        **{key: texts[0] for key, texts in graph.texts.items() if texts[0] and key not in graph.fields},
    )


def _shaped(value: Tensor, field: Field) -> Tensor:
    """Without the axis of length 1 that torch_geometric's users keep for scalars."""
    extra = value.ndim - len(field.shape)
    if field.on == "graph" and extra == 0 and not field.shape:
        return value[None]
    if extra == 2 and not field.shape and value.shape[-1] == 1:
        return value.squeeze(-1)
    return value
