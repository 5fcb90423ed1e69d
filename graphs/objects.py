"""Graphs of other libraries in memory, one by one."""

import itertools
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from hydragnn.base.errors import InputError, as_input_error
from hydragnn.graphs.atomic import snapshot

LIBRARIES = {"torch_geometric": "BaseData", "networkx": "Graph", "ase": "Atoms", "hydragnn": "GraphBatch"}
"""Class of a graph by its library."""

_END = object()


def library_of(value: Any) -> str:
    """Return the library of a graph; empty for anything else."""
    names = {(one.__module__.partition(".")[0], one.__name__) for one in type(value).__mro__}
    return next((library for library, name in LIBRARIES.items() if (library, name) in names), "")


def entries_of(graph: Any) -> Mapping[str, Any]:
    """Return what a graph of torch_geometric or networkx says as a whole."""
    return graph.stores[0].to_dict() if library_of(graph) == "torch_geometric" else getattr(graph, "graph", {})


def graphs_in(data: Any) -> Iterator[Any]:
    """Yield the graphs of a graph, list, data set, loader or generator.

    Batches of torch_geometric are taken apart, and a loader stands for its data set. InputError for anything else.
    """
    data = _data_set(data) if isinstance(data, DataLoader) else data
    data = [data] if library_of(data) or hasattr(data, "data_vars") else data  # the latter are of xarray
    shown = " ".join(f"{data!r:.60}".split())
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    series = hasattr(data, "__getitem__") or hasattr(data, "__iter__")
    if isinstance(data, str | bytes | PathLike | Mapping) or not series:
        raise InputError(f"{shown} is no list, data set or generator of graphs; give graphs, and files by their paths")
    if isinstance(data, itertools.cycle | itertools.repeat | itertools.count):
        raise InputError(f"{shown} has no end; give every graph once")
    graphs = (data[place] for place in range(len(data))) if sized else iter(data)
    for number in itertools.count():
        with as_input_error(f"graph {number} of the data cannot be read", "repair the data set, or leave it out"):
            one = next(graphs, _END)
        if one is _END:
            return
        if one is None:
            raise InputError(f"graph {number} of the data is None; leave it out")
        if library_of(one) != "torch_geometric" or not hasattr(one, "to_data_list"):
            yield snapshot(one) if library_of(one) == "ase" and not sized else one  # which a generator may move on
            continue
        with as_input_error(f"batch {number} of the data cannot be taken apart", "give its graphs"):
            yield from one.to_data_list()


def _data_set(loader: Any) -> Any:
    """Return the data set of a loader, if it gives that."""
    sampler, collate = loader.sampler, getattr(loader.collate_fn, "__module__", "")
    sampler = getattr(loader.batch_sampler, "sampler", sampler)
    plain = {type(sampler), type(loader.batch_sampler)} <= {SequentialSampler, RandomSampler, BatchSampler, type(None)}
    usual = collate.partition(".")[0] in ("torch", "torch_geometric", "hydragnn")
    every = plain and len(sampler) == len(loader.dataset) and not getattr(sampler, "replacement", False)
    if not usual or not (every or isinstance(loader.dataset, IterableDataset)):
        raise InputError(
            f"a {type(loader).__name__} with a sampler or collate_fn of its own may give other graphs than its data set; give a list of them"
        )
    return loader.dataset
