"""Sets of the public HydraGNN as stores of imported models."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, Normalisation, StoreWriter, reference_sums
from hydragnn.datasets.public import PublicStore
from hydragnn.datasets.sources.registry import read_build_settings
from hydragnn.frozen import FrozenSettings
from hydragnn.frozen.settings import FAILURE, OLD
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.parts import PART
from hydragnn.graphs.pyg import CELLS, PERIODIC
from hydragnn.graphs.units import CLOSE_NUCLEI
from hydragnn.importing.configuration import raw_files
from hydragnn.importing.finding import SETS, folder_of_raw
from hydragnn.importing.model import LENGTHS
from hydragnn.importing.runs import Imported
from hydragnn.importing.variables import CLASSES, Reading, Source, Variable, complete, distinct, reading_of

BLOCK = 2048
"""Graphs that are read at once."""
CLOSE = 1e-4
"""Relative difference of lengths that were stored and computed."""
REFERENCES, BRANCH = "energy_linear_regression_coeff", "dataset_name"
"""Attribute with energies of elements, and key with the branch of a graph."""
STRAIGHT = "of no use without edge_shifts: crystals are open clusters, as its code saw them"
BOUNDS = ("minmax_node_feature", "minmax_graph_feature")
"""Attributes with smallest and largest values."""


def with_data(model: Imported, place: Path) -> tuple[Imported, GraphStore, Sequence[int]]:
    """Return a model with its data, their store, and its graphs.

    InputError where the data lack a variable, or nothing tells which graphs are of a branch.
    """
    if place.suffix in SETS:
        source = _set_of_graphs(model, place)
    else:  # raw files, whose paths count from a folder
        with complete("config.json does not say how raw files are read"):
            table = {"kind": "hydragnn", **raw_files(model.files.source, [])}
        settings: Any = read_build_settings(table, cast(Path, folder_of_raw(model.files)) / "BUILD.toml")
        (source,) = settings.stores
    graphs: Sequence[int] = range(len(source))
    named = model.files.source.paths.get(f"branch-{model.branch}")
    known = BRANCH in {one.name for one in source.fields()}
    numbers = source.column(BRANCH).values.reshape(-1) if model.branch is not None and known else np.zeros(0)
    if model.branch is not None and (not named or len(np.unique(numbers)) > 1):
        if not known:
            raise InputError(
                f'no file says which branch it belongs to; add "Dataset": {{"path": {{"branch-{model.branch}": "{place.name}"}}}} to config.json if it is its set'
            )
        graphs = np.flatnonzero(numbers == model.branch).tolist()
        if not graphs:
            raise InputError(f"none of its graphs is of branch {model.branch} by {BRANCH}")
    reading, scaled = model.reading, model.files.source.dataset.get("normalize_features")
    if scaled or "edge_attr_unit" in source.attributes:  # which raw files have, that are scaled as they are read
        bounds = {key: source.attributes[key] for key in BOUNDS if key in source.attributes}
        reading = reading_of(Source(model.files.source.table, model.files.source.where, bounds), model.settings)
    some = source.read(graphs[:: math.ceil(len(graphs) / BLOCK)])  # of all places, as sets are in order of something
    images = any(bool(source.read(block, fields=[]).edge_shifts.any()) for block in _blocks(graphs))
    reading = replace(_reading_in(some, reading, model.settings), images=images)
    return replace(model, reading=_with_references(source.attributes, some, reading, model.settings)), source, graphs


def cause_of_nan(model: Imported, place: Path) -> str:
    """Return the failure by which edges of a set make NaN; empty for none."""
    settings, edges = model.settings, 0
    old = settings.kind == "EGNN" and settings.equivariance and settings.generation in OLD
    if old or settings.kind == "PAINN":
        with suppress(InputError):
            _, source, graphs = with_data(model, place)
            for batch in (source.read(block, fields=[]) for block in _blocks(graphs)):
                nan = batch.senders == batch.receivers if old else edge_vectors(batch).norm(dim=1) == 0
                edges += int(nan.sum())
    number, how = (29, "join a node with itself") if old else (14, "have length zero")
    return f" ({FAILURE} {number}, since {edges} edges of its graphs {how})" if edges else ""


def _set_of_graphs(model: Imported, place: Path) -> PublicStore:
    """Return a set as its code read it: edges without shifts cross no boundary."""
    try:
        source = PublicStore.at(place)
    except InputError:  # the model knows where heads of y lie, where graphs of one size do not tell
        source = PublicStore.at(place, [head.level for head in model.settings.heads])
    columns = source.columns
    if "edge_shifts" not in columns.offsets:  # which that code took as zero
        cells = [key for key in (*CELLS, *PERIODIC) if columns.offsets.pop(key, None) is not None]
        columns.left_out |= dict.fromkeys(cells[:1], STRAIGHT)
    return source


def _blocks(graphs: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield graphs that are read at once."""
    return (graphs[first : first + BLOCK] for first in range(0, len(graphs), BLOCK))


def _reading_in(batch: GraphBatch, reading: Reading, settings: FrozenSettings) -> Reading:
    """Return the reading of graphs; InputError where they lack a variable."""
    variables = list[Variable]()
    of_x = [one for one in reading.inputs if one.key == "x"]
    packed = [name for name in batch.fields if re.fullmatch(r"y_\d+", name)]
    narrow = "x" in batch.fields and batch.fields["x"].width == len(of_x)
    narrow &= bool(packed) or any((one.first or 0) >= len(of_x) for one in of_x)  # else columns are selected at reading
    for place, one in enumerate(of_x if narrow else ()):  # columns that were selected when the set was made
        of_x[place] = replace(one, first=place)
    heads = [] if settings.interatomic else packed
    if heads and len(heads) != len(reading.outputs):
        raise InputError(f"y packs {len(heads)} outputs, and the model has {len(reading.outputs)}")
    outputs = [replace(one, key=key, first=None) for key, one in zip(heads, reading.outputs)] or reading.outputs
    is_begin = [one.first for one in reading.inputs if one.key == "x"] == [*range(len(of_x))]
    for one in outputs:
        if narrow and one.key == "x" and (one.first is None or not is_begin):
            raise InputError(f"its x holds the {len(of_x)} inputs alone, without {one.field.name}")
    others = [one for one in reading.inputs if one.key not in ("x", LENGTHS)]
    for one in [*of_x, *others, *outputs]:
        if one.key not in batch.fields:
            raise InputError(f"it has no {one.key}, which the model {'reads' if one.weight is None else 'predicts'}")
        values = _values(batch, one)
        if one.field.name == ATOMIC_NUMBERS and not _are_numbers(values):
            one = replace(one, field=Field(name="atomic_number", on="node"))  # of atoms, but scaled or counted anew
        variables.append(one)
    unit = 0.0
    if settings.edge_dim:
        if LENGTHS not in batch.fields or batch.fields[LENGTHS].width != settings.edge_dim:
            raise InputError(f"it has no {LENGTHS} with {settings.edge_dim} columns, which the model reads")
        column, lengths = batch[LENGTHS].reshape(batch.num_edges, -1), edge_vectors(batch).double().norm(dim=1)
        unit = _unit(lengths, column[:, 0].double()) if settings.edge_dim == 1 else 0.0
        if not unit:
            shape = () if settings.edge_dim == 1 else (settings.edge_dim,)
            variables.append(Variable(field=Field(name=LENGTHS, on="edge", shape=shape), key=LENGTHS))
    return replace(reading, variables=distinct(variables), edge_lengths=unit)


def _unit(lengths: Tensor, column: Tensor) -> float:
    """Return the unit of stored lengths; 0 where they are none."""
    ratio = (lengths / column).nan_to_num(0.0)
    middle = float(ratio.median()) if len(ratio) else 1.0
    agree = bool(((ratio - middle).abs() <= CLOSE * abs(middle)).all())
    return (1.0 if abs(middle - 1.0) < CLOSE else middle) if agree else 0.0


def _with_references(
    attributes: Mapping[str, Any], batch: GraphBatch, reading: Reading, settings: FrozenSettings
) -> Reading:
    """Return total energies, where the set holds those of elements."""
    numbers = next((one for one in reading.inputs if one.field.name == ATOMIC_NUMBERS), None)
    energies = attributes.get(REFERENCES)
    usable = isinstance(energies, list) and len(energies) == CLASSES - 1 and all(map(math.isfinite, energies))
    if not (usable and numbers and settings.interatomic):
        return reading
    present = {*_values(batch, numbers).round().flatten().tolist()}  # others without a number were in no fit
    by_element = {z: float(one) for z, one in enumerate(energies or (), 1) if one or z in present}
    return replace(reading, references={reading.outputs[0].field.name: by_element})


def write_data(source: GraphStore, graphs: Sequence[int], model: Imported, out: Path) -> None:
    """Write a store of all variables, with the part of graphs."""
    reading, settings = model.reading, model.settings
    present = {field.name for field in source.fields()}
    fields = [one.field for one in reading.variables] + [PART] * (PART.name in present)
    longest: float = 0.0
    attributes: dict[str, Any] = {
        "max_neighbours": settings.max_neighbours,
        CLOSE_NUCLEI: True,  # models learned from all of them
        "imported": str(getattr(source, "path", "")),
    }
    for block in _blocks(graphs):
        lengths = edge_vectors(source.read(block, fields=[])).norm(dim=1)
        longest = max(longest, float(lengths.max()) if len(lengths) else 0.0)
    if settings.radius and longest <= settings.radius * (1 + CLOSE):
        attributes["cutoff"] = settings.radius
    references = Normalisation(references=reading.references)
    with StoreWriter(out, fields, dim=source.dim, attributes=attributes) as writer:
        for block in _blocks(graphs):
            batch = source.read(block)
            values = {one.field.name: _typed(_values(batch, one), one.field) for one in reading.variables}
            drop = [name for name in batch.fields if name != PART.name]
            batch = batch.with_fields(drop=drop).with_fields(values, fields=[one.field for one in reading.variables])
            sums = {name: batch[name] + reference_sums(references, name, batch) for name in reading.references}
            writer.write(batch.with_fields(sums))


def _values(batch: GraphBatch, one: Variable) -> Tensor:
    """Return a variable in its unit, as ``[items, width]``."""
    items, field = batch.num_items(one.field.on), batch.fields[one.key]
    if field.on != one.field.on:
        raise InputError(f"{one.key} of the data lies on {field.on}s, and config.json says {one.field.on}s")
    values = batch[one.key].reshape(items, -1)
    if one.first is not None:
        values = values[:, one.first : one.first + one.field.width]
    if values.shape[1] != one.field.width:
        raise InputError(
            f"{one.key} of the data has {field.width} columns, and config.json names no {one.field.width} of them for {one.field.name}"
        )
    if not one.span:
        return values
    low, high = torch.tensor(one.span, dtype=torch.float64).T
    return values * (high - low) + low


def _are_numbers(values: Tensor) -> bool:
    rounded = values.round()
    close = bool(((values - rounded).abs() < CLOSE).all())
    return close and float(rounded.min()) >= 1 and float(rounded.max()) < CLASSES


def _typed(values: Tensor, field: Field) -> Tensor:
    if field.classes and not _are_numbers(values):
        raise InputError(f"{field.name} of some graphs are no whole numbers from 1 to {CLASSES - 1}")
    values = values.round() if field.classes else values
    return values.to(field.torch_dtype).reshape(len(values), *field.shape)
