"""Stores as Python users expect them: indices, iteration, loaders, tables."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from hydragnn.base.errors import InputError
from hydragnn.base.shown import Shown
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.pyg import to_pyg, without_zeros

if TYPE_CHECKING:
    from hydragnn.datasets.store import GraphStore

Index = int | slice | Sequence[int] | Sequence[bool] | ndarray | Tensor
"""Graphs of a store: a number, also from its end, a slice, numbers, or one bool per graph."""

BLOCK = 256  # graphs that are read at once where a store is iterated


def numbers_of(index: Index, graphs: int) -> Int64[ndarray, " chosen"]:
    """Return the numbers of graphs; InputError for what is no index.

    >>> numbers_of([0, -1], 5), numbers_of(slice(3, None), 5), numbers_of(np.array([True, False]), 2)
    (array([0, 4]), array([3, 4]), array([0]))
    """
    if isinstance(index, slice):
        if any(one is not None and not hasattr(one, "__index__") for one in (index.start, index.stop, index.step)):
            raise InputError(f"{index} is no slice of graphs; its ends are whole numbers")
        return np.arange(graphs)[index]
    try:
        values = np.asarray(index.detach().cpu() if isinstance(index, Tensor) else index)
    except ValueError:
        values = np.array(None)
    if values.dtype == np.bool_ and values.shape == (graphs,):
        return np.flatnonzero(values)
    if values.dtype == np.bool_ and values.ndim == 1:
        raise InputError(f"{len(values)} flags for {graphs} graphs; give one per graph")
    if not values.size and values.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if values.dtype.kind not in "iu" or values.ndim > 1:
        kind = type(index).__name__
        problem = f"{index!r:.80} ({kind}) is no index of graphs"
        raise InputError(f"{problem}; give a whole number, a slice, or a list or array of whole numbers")
    numbers = values.reshape(-1).astype(np.int64)
    return np.where((numbers < 0) & (numbers >= -graphs), numbers + graphs, numbers)  # others are refused by reading


def attribute_at(path: str) -> Any:
    """Return a property with the value at a path of attributes."""
    return property(attrgetter(path))


class Access(Shown):
    """Indices, iteration and tables of a store."""

    @property
    def _store(self) -> "GraphStore":
        return cast("GraphStore", self)

    def __getitem__(self, index: Index) -> GraphBatch:
        """Return the chosen graphs as one batch; InputError for a wrong index."""
        return self._store.read(numbers_of(index, len(self._store)))

    def __iter__(self) -> Iterator[GraphBatch]:
        """Yield the graphs one by one."""
        count = len(self._store)
        for first in range(0, count, BLOCK):
            block = self._store.read(range(first, min(first + BLOCK, count)))
            yield from (block.select([place]) for place in range(len(block)))

    def __repr__(self) -> str:
        store = self._store
        names = ", ".join(f"{field.name} ({field.on})" for field in store.fields())
        place = f"{path}: " if (path := getattr(self, "path", None)) else ""
        return f"{type(self).__name__}({place}{len(store)} graphs, dim {store.dim}; {names})"

    def shown(self) -> Mapping[str, Any]:
        """Return sizes and fields."""
        store = self._store
        sizes, fields = store.sizes(), [field.shown() for field in store.fields()]
        return {"nodes": int(sizes.nodes.sum()), "edges": int(sizes.edges.sum()), "fields": fields}

    def dataset(self) -> "StoreDataset":
        """Return the graphs as a ``Dataset`` for torch's own ``DataLoader``.

        Labels that a graph lacks are NaN, and -1 as a class.
        """
        return StoreDataset(self._store)

    def to_pyg(self) -> "StoreDataset":
        """Return the graphs as a dataset of torch_geometric's ``Data``, for its ``DataLoader``.

        Every ``Data`` has every field; labels that a graph lacks are those of ``dataset``.
        """
        return StoreDataset(self._store, pyg=True)


class StoreDataset(Dataset[Any]):
    """Graphs of a store, read when a loader asks."""

    def __init__(self, store: "GraphStore", *, pyg: bool = False) -> None:
        self.store, self.pyg = store, pyg

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Any:
        """Return a graph; IndexError beyond the last one."""
        if isinstance(index, slice | Sequence | ndarray):
            raise InputError("a dataset gives graphs one by one; take several with torch.utils.data.Subset")
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no graph {index}; the store has {len(self)} graphs")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several graphs, read at once."""
        batch = self.store.read(numbers_of(list(indices), len(self)))
        if self.pyg:
            return to_pyg(batch, whole=True)
        batch = without_zeros(batch)  # a loss of labels that are not there is NaN, then
        return [batch.select([place]) for place in range(len(batch))]

    def __repr__(self) -> str:
        return f"StoreDataset({self.store!r}, pyg={self.pyg})"


# what torch's own DataLoader makes of a list of graphs
default_collate_fn_map[GraphBatch] = lambda graphs, **_: concatenate(graphs)
