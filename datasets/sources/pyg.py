"""Lists of torch_geometric data."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_claim
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.sources.base import ObjectsBuild
from hydragnn.datasets.sources.table_files import check_sides
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.objects import library_of

MASKS = ("train_mask", "val_mask", "test_mask")  # attributes that say which nodes train, validate and test


class PygBuild(ObjectsBuild):
    """Data of torch_geometric in ``.pt`` files, which run no code, or memory."""

    takes_columns: ClassVar[bool] = True
    former: ClassVar[dict[str, Any]] = {"undirected": False}  # 0.2.0 took edges that run one way

    kind: Literal["pyg"] = "pyg"

    undirected: bool | None = None
    """False takes edges that all run one way; absent: pairs have both directions, at least some."""

    @field_validator("undirected")
    @classmethod
    def _no_reverses(cls, undirected: bool | None) -> bool | None:
        if undirected:
            raise ValueError("reverses are added by ToUndirected of torch_geometric; leave it out")
        return undirected

    def load(self, path: Path) -> list[Any]:
        """Return the data of a file; InputError for anything else."""
        graphs = load_pyg(path)
        values = (value for one in graphs for store in one.stores for value in store.values())
        check_claim(path, sum(one.numel() for one in values if not getattr(one, "is_sparse", True)))
        return graphs

    def graph(self, one: Any, first: Any, name: str, number: int) -> GraphBatch:
        """Return the graph of one ``Data``, with the first one's kinds."""
        from hydragnn.graphs.hetero import homogeneous, is_hetero
        from hydragnn.graphs.pyg import from_pyg

        where = f"{name}, graph {number}"
        if library_of(one) != "torch_geometric":
            raise InputError(f"{where}: a {type(one).__name__} is no Data of torch_geometric; give a list of them")
        data, fields = one, {field.name: field.field for field in self.fields}
        keys = {field.name: field.keys[0] for field in self.fields}
        for mask in self.node_split or ():
            fields.setdefault(mask, Field(name=mask, on="node", role="auxiliary", classes=2, dtype="int64"))
        if is_hetero(one) or is_hetero(first):
            data, kinds = homogeneous(one, fields.values(), keys, self.optional, first, where)
            fields |= {field.name: field for field in kinds}
        elif (
            len({all(data.get(key) is None for key in ("edge_index", "adj_t", "_idx_i")) for data in (first, one)}) > 1
        ):
            problem = f"{where} and the first graph: one has edge_index, and the other has not"
            raise InputError(f"{problem}; give both one, of shape (2, 0) without edges")
        masks = [key for key in MASKS if any(store.get(key) is not None for store in one.stores)]
        if masks and self.node_split is None and any(f.on == "node" and f.role == "target" for f in fields.values()):
            raise InputError(
                f"{where} has {', '.join(masks)}; say node_split = {masks} to train, validate and test on these nodes, or "
                "remove them from the data to train on all"
            )
        graph = from_pyg(
            data,
            list(fields.values()),
            keys=keys,
            columns={field.name: field.column for field in self.fields if field.column is not None},
            optional=self.optional,
            cutoff=cutoff_of(self.attributes),
            name=where,
        )
        if data is one:  # kinds of edges say which way they run
            remedy = "use ToUndirected of torch_geometric"
            check_sides(graph.senders.numpy(), graph.receivers.numpy(), self.undirected, where, remedy)
        return graph


def load_pyg(path: Path) -> list[Any]:
    """Return the saved ``Data`` of a list or InMemoryDataset; no code runs."""
    from pickle import UnpicklingError

    import torch

    from hydragnn.graphs.pyg import torch_geometric

    data, storage = torch_geometric("data.data"), torch_geometric("data.storage")
    hetero = torch_geometric("data.hetero_data").HeteroData
    stores = [storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage]
    classes = [data.Data, data.DataEdgeAttr, data.DataTensorAttr, hetero, *stores]
    try:
        with torch.serialization.safe_globals(classes):
            loaded = torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError as error:
        problem = f"{path} holds more than torch_geometric Data and tensors, and code from files is not run"
        raise InputError(f"{problem}; save a plain list of Data") from error
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        raise InputError(f"{path} cannot be read by torch.load ({error}); was it cut off?") from error
    if isinstance(loaded, tuple) and len(loaded) >= 2 and isinstance(loaded[0], dict):
        separate, collated = torch_geometric("data.separate").separate, data.Data.from_dict(loaded[0])
        count = len(next(iter(loaded[1].values()))) - 1
        return [separate(type(collated), collated, index, loaded[1], decrement=False) for index in range(count)]
    graphs = [loaded] if isinstance(loaded, data.Data | hetero) else loaded
    if not isinstance(graphs, list) or not all(isinstance(graph, data.Data | hetero) for graph in graphs):
        raise InputError(f"{path} holds {type(loaded).__name__}, not a list of torch_geometric Data; save such a list")
    return graphs
