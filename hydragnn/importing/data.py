"""Sets of the public HydraGNN as stores of imported models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.datasets import GraphStore, StoreWriter
from hydragnn.frozen import FrozenSettings
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.parts import PART
from hydragnn.importing.model import LENGTHS
from hydragnn.importing.variables import CLASSES, Reading, Variable

BLOCK = 2048
"""Graphs that are read at once."""
CLOSE = 1e-4
"""Relative difference of lengths that were stored and computed."""


def reading_in(source: GraphStore, reading: Reading, settings: FrozenSettings) -> Reading:
    """Return the reading of graphs; InputError where they lack a variable."""
    batch, variables = source.read(range(min(BLOCK, len(source)))), list[Variable]()
    of_x = [one for one in reading.inputs if one.key == "x"]
    narrow = "x" in batch.fields and batch.fields["x"].width == len(of_x)
    for place, one in enumerate(of_x if narrow else ()):  # columns that were selected when the set was made
        of_x[place] = replace(one, first=place)
    heads = {f"y_{place}": one for place, one in enumerate(reading.outputs) if f"y_{place}" in batch.fields}
    outputs = [replace(one, key=key, first=None) for key, one in heads.items()] or reading.outputs
    others = [one for one in reading.inputs if one.key != "x"]
    for one in [*of_x, *others, *outputs]:
        if one.key not in batch.fields:
            raise InputError(f"it has no {one.key}, which the model {'reads' if one.head is None else 'predicts'}")
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
    return Reading(variables=variables, images=bool(batch.edge_shifts.any()), edge_lengths=unit)


def _unit(lengths: Tensor, column: Tensor) -> float:
    """Return the unit of stored lengths; 0 where they are none."""
    ratio = (lengths / column).nan_to_num(0.0)
    middle = float(ratio.median()) if len(ratio) else 1.0
    agree = bool(((ratio - middle).abs() <= CLOSE * abs(middle)).all())
    return (1.0 if abs(middle - 1.0) < CLOSE else middle) if agree else 0.0


def write_data(source: GraphStore, reading: Reading, settings: FrozenSettings, out: Path) -> None:
    """Write a store of all variables, with the part of graphs."""
    present = {field.name for field in source.fields()}
    fields = [one.field for one in reading.variables] + [PART] * (PART.name in present)
    longest: float = 0.0
    attributes: dict[str, Any] = {
        "max_neighbours": settings.max_neighbours,
        "imported": str(getattr(source, "path", "")),
    }
    blocks = [range(first, min(first + BLOCK, len(source))) for first in range(0, len(source), BLOCK)]
    for block in blocks:
        lengths = edge_vectors(source.read(block, fields=[])).norm(dim=1)
        longest = max(longest, float(lengths.max()) if len(lengths) else 0.0)
    if settings.radius and longest <= settings.radius * (1 + CLOSE):
        attributes["cutoff"] = settings.radius
    with StoreWriter(out, fields, dim=source.dim, attributes=attributes) as writer:
        for block in blocks:
            batch = source.read(block)
            values = {one.field.name: _typed(_values(batch, one), one.field) for one in reading.variables}
            own = [PART.name] if PART.name in present else []
            drop = [name for name in batch.fields if name not in own]
            writer.write(
                batch.with_fields(drop=drop).with_fields(values, fields=[one.field for one in reading.variables])
            )


def _values(batch: GraphBatch, one: Variable) -> Tensor:
    """Return a variable in its unit, as ``[items, width]``."""
    items, field = batch.num_items(one.field.on), batch.fields[one.key]
    if field.on != one.field.on:
        raise InputError(f"{one.key} of the data lies on {field.on}s, and config.json says {one.field.on}s")
    values = batch[one.key].reshape(items, -1)
    if one.first is not None:
        values = values[:, one.first : one.first + one.field.width]
    if values.shape[1] != one.field.width:
        raise InputError(f"{one.key} of the data has {field.width} columns, fewer than config.json says")
    for column, (low, high) in enumerate(one.span):
        values = values.double()
        values[:, column] = values[:, column] * (high - low) + low
    return values


def _are_numbers(values: Tensor) -> bool:
    rounded = values.round()
    close = bool(((values - rounded).abs() < CLOSE).all())
    return close and float(rounded.min()) >= 0 and float(rounded.max()) < CLASSES


def _typed(values: Tensor, field: Field) -> Tensor:
    values = values.round() if field.classes else values
    return values.to(field.torch_dtype).reshape(len(values), *field.shape)


def parts_of(store: GraphStore) -> dict[str, Any] | None:
    """Return the writer's split; None without training or validation."""
    if PART.name not in {field.name for field in store.fields()}:
        return None
    numbers = {*torch.as_tensor(store.column(PART.name).values).flatten().tolist()}
    return {"kind": "given", "field": PART.name} if {0, 1} <= numbers else None
