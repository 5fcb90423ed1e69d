"""Graphs from files, as ``hydragnn data build`` makes them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hydragnn.base.errors import InputError, about, own_code
from hydragnn.datasets.sources.base import BuildSettings, Make, MakerOfMany, grouped, made, made_together, nodes_of
from hydragnn.datasets.sources.fields import FieldSettings
from hydragnn.datasets.sources.labels import Labels, parted_settings
from hydragnn.datasets.sources.registry import rule_of, transform_function
from hydragnn.datasets.tools import refuse_useless
from hydragnn.datasets.writer import StoreWriter
from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.graphs.encodings import ENCODINGS, with_encodings
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import concatenate, unbatch
from hydragnn.graphs.parts import labels_of_part
from hydragnn.graphs.texts import naming
from hydragnn.graphs.units import CLOSE_NUCLEI

TOGETHER, EDGES_TOGETHER = 256, 2**16
"""At most so many graphs, with so many edges, are checked and written together."""


def store_writer(settings: BuildSettings, out: Path, fields: list[Field], dim: int, **part: int) -> StoreWriter:
    """Return the writer of a source's store, or of a part."""
    return StoreWriter(out, fields, dim=dim, attributes=attributes_of(settings), texts=settings.texts, **part)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, which is faster for small graphs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def build_store(settings: BuildSettings, out: Path | str, progress: Callable[[int], None] | None = None) -> None:
    """Make a store at ``out`` (.h5 or .bp) from files.

    ``progress`` is called with the number of graphs written so far. Streams: memory does not grow with the number of
    graphs. InputError for anything wrong in the files, naming the file and the graph; then no store is left behind.
    """
    with one_thread():
        makers = makers_of(settings)  # of a generator in memory there is one pass
        first = next(makers, None)
        if first is None:
            raise no_graphs(settings)
        graph = first()
        groups = groups_of(made(chain([first], makers)))
        some = next(groups)
        with store_writer(settings, Path(out), fields_of(settings, graph), graph.dim) as writer:
            for group in chain([some], groups):
                writer.write_graphs(group)
                if progress is not None:
                    progress(writer.graphs)
        refuse_useless(Path(out), settings)


def groups_of(graphs: Iterable[GraphBatch]) -> Iterator[list[GraphBatch]]:
    """Return groups of consecutive batches that are checked and written together."""
    return grouped(graphs, lambda batch: (len(batch), batch.num_edges), (TOGETHER, EDGES_TOGETHER))


def no_graphs(settings: BuildSettings) -> InputError:
    """The error for a source without graphs."""
    return InputError(f"{', '.join(settings.files)}: no graphs in there; check the files and the index")


def makers_of(settings: BuildSettings) -> Iterator[Make]:
    """Yield a maker per graph of a source; failures stay separate."""
    transform_function(settings.transform)  # one sentence instead of one for every graph
    source, labels = parted_settings(settings)
    graphs = partial(_completed, settings, labels)
    for number, make in enumerate(source.makers()):
        for part in range(settings.parts):
            yield MakerOfMany(graphs, (make, number, part), nodes_of(make))


def _completed(
    settings: BuildSettings, labels: Labels | None, items: Sequence[tuple[Make, int, int]]
) -> GraphBatch | None:
    """Return graphs with all that settings add; None to go singly.

    An item is the maker of a graph, its number and its part. InputError for one graph names number and file.
    """
    (make, number, part), *more = items
    if not more:
        batch: GraphBatch | None = make()
    else:
        batch = None if settings.node_split or labels else made_together([one for one, *_ in items])
    if batch is None:
        return None
    with naming(batch.texts), about("" if more else f"graph {number} of {', '.join(settings.files)}"):
        batch = batch if labels is None else labels.added_to(batch)
        widths = {name: getattr(settings, name) for name in ENCODINGS}
        batch = with_encodings(_scale_fields(batch, settings.fields), widths)
        if settings.node_split:
            batch = labels_of_part(batch, settings.node_split, part)
        if settings.transform:
            batch = concatenate([_transformed(graph, settings.transform) for graph in unbatch(batch)])
        return batch if settings.coarsening is None else settings.coarsening.applied(batch)


def _transformed(graph: GraphBatch, reference: str) -> GraphBatch:
    """Return a user's transform of a graph; InputError where it fails."""
    function = transform_function(reference)
    assert function is not None
    with own_code(f"transform {reference}", "repair it, or the file"):
        changed = function(graph.mapped(torch.clone))  # whose arrays may be the user's, or shared by graphs
    if not isinstance(changed, GraphBatch) or len(changed) != 1:
        raise InputError(f"transform {reference} returned {changed!r:.80}; return a GraphBatch of one graph")
    return changed.with_texts(graph.texts) if changed.texts.keys() != graph.texts.keys() else changed


def _scale_fields(graph: GraphBatch, fields: list[FieldSettings]) -> GraphBatch:
    """Return the graphs in the units of the store, virials as stress."""
    changed = {}
    for field in fields:
        if field.name in graph.fields and (field.scale != 1.0 or field.convert or field.missing_value is not None):
            values = torch.from_numpy(field.without_fill(graph[field.name].double().numpy())) * field.scale
            if field.convert == "virial":
                volume = volumes(graph)
                if not bool(volume[graph.present(field.name)].all()):
                    raise InputError(
                        f"a virial in {field.name} becomes no stress, since there is no volume (no periodic axis, or a cell vector of "
                        "length zero); give the cell, or take the virial out of the structure and list the field as optional"
                    )
                values = -values / torch.where(volume > 0, volume, 1.0)[:, None, None]
            present = graph.present_items(field.name)
            if present is not None:  # zeros of absent labels have no sign
                values = torch.where(present.view(-1, *[1] * (values.ndim - 1)), values, 0.0)
            changed[field.name] = values.to(graph[field.name].dtype)
    own = {field.name: field for field in fields}
    masks = {name: graph.present(name) for name in changed if own[name].missing}
    return graph.with_fields(changed, masks=masks) if changed else graph


def fields_of(settings: BuildSettings, first: GraphBatch) -> list[Field]:
    """Return the fields of the first graph and the declared ones."""
    declared = {field.name: field.field for field in settings.fields if field.name not in (settings.node_split or ())}
    return list({**first.fields, **{n: f for n, f in declared.items() if n not in first.fields}}.values())


def attributes_of(settings: BuildSettings) -> dict[str, Any]:
    """Return the attributes of the store that settings make."""
    attributes: dict[str, Any] = {**settings.notes(), "source": settings.kind}
    attributes["files"] = [Path(file).name for file in settings.files]
    for key in ("cutoff", "max_neighbours", CLOSE_NUCLEI):
        if getattr(settings, key, None) not in (None, False):
            attributes[key] = getattr(settings, key)
    rule = rule_of(settings)
    attributes |= {"build": rule} if rule else {"transform": settings.transform} if settings.transform else {}
    return {**attributes, **settings.attributes}
