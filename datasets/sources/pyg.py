"""Lists of torch_geometric data."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hydragnn.base.errors import InputError
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.datasets.sources.base import BuildSettings, Make
from hydragnn.datasets.sources.tables import find_files
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field

MASKS = ("train_mask", "val_mask", "test_mask")
"""Attributes that say which nodes train, validate and test."""


class PygBuild(BuildSettings):
    """Lists of torch_geometric ``Data`` in ``.pt`` files, loaded without running code."""

    kind: Literal["pyg"] = "pyg"

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each ``Data``; InputError for anything else."""
        for field in self.fields:
            if field.keys != [field.name]:
                raise InputError(f"field {field.name}: torch_geometric attributes keep their names; remove key")
        for path in find_files(self.files):
            for number, data in enumerate(load_pyg(path)):
                yield partial(self._graph, data, path, number)

    def _graph(self, data: Any, path: Path, number: int) -> GraphBatch:
        from hydragnn.graphs.pyg import from_pyg

        fields = {field.name: field.field for field in self.fields}
        masks = [key for key in MASKS if data.get(key) is not None]
        if masks and self.node_split is None and any(f.on == "node" and f.role == "target" for f in fields.values()):
            raise InputError(
                f"{path.name}, graph {number} has {', '.join(masks)}; say node_split = {masks} to train, validate and test on these nodes, or "
                "remove them from the data to train on all"
            )
        for mask in self.node_split or ():
            fields.setdefault(mask, Field(name=mask, on="node", role="auxiliary", classes=2, dtype="int64"))
        graph = from_pyg(
            data,
            list(fields.values()),
            optional=self.optional,
            cutoff=cutoff_of(self.attributes),
            name=f"{path.name}, graph {number}",
        )
        return graph.with_texts(self.texts_of(data.to_dict(), f"{path.name}#{number}"))


def load_pyg(path: Path) -> list[Any]:
    """Return the saved ``Data`` of a list or InMemoryDataset; no code runs."""
    from pickle import UnpicklingError

    import torch

    from hydragnn.graphs.pyg import torch_geometric

    data, storage = torch_geometric("data.data"), torch_geometric("data.storage")
    classes = [data.Data, data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage]
    try:
        with torch.serialization.safe_globals(classes):
            loaded = torch.load(path, weights_only=True, map_location="cpu")
    except UnpicklingError as error:
        raise InputError(
            f"{path} holds more than torch_geometric Data and tensors, and code from files is not run; save a plain list of Data"
        ) from error
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        raise InputError(f"{path} cannot be read by torch.load ({error}); was it cut off?") from error
    if isinstance(loaded, tuple) and len(loaded) >= 2 and isinstance(loaded[0], dict):
        return _separate(data.Data.from_dict(loaded[0]), loaded[1])
    graphs = [loaded] if isinstance(loaded, data.Data) else loaded
    if not isinstance(graphs, list) or not all(isinstance(graph, data.Data) for graph in graphs):
        raise InputError(f"{path} holds {type(loaded).__name__}, not a list of torch_geometric Data; save such a list")
    return graphs


def _separate(collated: Any, slices: Any) -> list[Any]:
    from hydragnn.graphs.pyg import torch_geometric

    separate = torch_geometric("data.separate").separate
    count = len(next(iter(slices.values()))) - 1
    return [separate(type(collated), collated, index, slices, decrement=False) for index in range(count)]
