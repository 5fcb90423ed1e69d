"""What the store behind a run, search or ensemble holds, at a glance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import GraphStore, disk_store, open_store
from hydragnn.datasets.split import Split, make_split
from hydragnn.datasets.tools import present_graphs, store_notes
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field
from hydragnn.graphs.texts import NAME, Texts
from hydragnn.runs.moved import is_data
from hydragnn.scripts.report.facts import DataFacts, Target, Values

SAMPLE_NODES = 400_000  # enough for a histogram, little enough for any store
SAMPLE_GRAPHS = 2_000


def data_facts(config: RunConfig, path: Path) -> DataFacts:
    """The store at ``path``: sizes of all graphs, and compositions and targets of a sample spread evenly over every part.

    InputError where the store is no longer where the configuration says, or the split no longer fits it.
    """
    store = open_store(path)
    split = make_split(store, config.split)
    sizes = store.sizes()
    picked = {
        name: evenly_spaced(getattr(split, name), sizes.nodes, SAMPLE_GRAPHS, SAMPLE_NODES) for name in split.counts
    }
    fields = {field.name: field for field in store.fields()}
    target_names = [name for name in config.targets if name in fields]
    kinds = _kind_field(list(fields.values()), config)
    read = {
        name: store.read(indices, [*target_names, *([kinds.name] if kinds else [])])
        for name, indices in picked.items()
        if len(indices)
    }
    return DataFacts(
        path=path,
        fingerprint=store.fingerprint,
        dim=store.dim,
        names=store.texts.get(NAME, Texts(())),
        nodes=sizes.nodes,
        edges=sizes.edges,
        parts={name: count for name, count in split.counts.items() if count or name != "calibration"},
        fields=[{**field.to_json(), "present": _present_in(store, field, split)} for field in store.fields()],
        attributes=dict(store.attributes),
        notes=store_notes(disk) if (disk := disk_store(store)) else (),
        composition=_composition(read, kinds) if kinds else {},
        composition_of=_composition_name(kinds),
        targets=tuple(_target(fields[name], read) for name in target_names),
        sampled=sum(len(indices) for indices in picked.values()),
    )


def _present_in(store: GraphStore, field: Field, split: Split) -> dict[str, int]:
    """How many graphs of every part have a field."""
    present = present_graphs(store, field)
    return {name: int(present[getattr(split, name)].sum()) for name in split.counts}


def evenly_spaced(indices: NDArray[np.int64], nodes: NDArray[np.int64], graphs: int, budget: int) -> NDArray[np.int64]:
    """An even sample of a part: at most ``graphs`` of them, with about ``budget`` nodes at most, and at least one."""
    if not len(indices):
        return indices
    affordable = int(budget / max(1.0, float(nodes[indices].mean())))
    count = min(len(indices), graphs, max(1, affordable))
    return np.asarray(indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)], dtype=np.int64)


def _kind_field(fields: list[Field], config: RunConfig) -> Field | None:
    """The field that says what a node is: the species, else the first categorical input of nodes."""
    inputs = config.data.inputs
    kinds = [field for field in fields if field.on == "node" and field.classes and field.role == "input"]
    kinds = [field for field in kinds if inputs is None or field.name in inputs or field.name == ATOMIC_NUMBERS]
    return next((field for field in kinds if field.name == ATOMIC_NUMBERS), kinds[0] if kinds else None)


def _composition_name(kinds: Field | None) -> str:
    if kinds is None:
        return ""
    return "chemical element" if kinds.name == ATOMIC_NUMBERS else kinds.name


def _composition(read: Mapping[str, GraphBatch], kinds: Field) -> dict[str, float]:
    values = np.concatenate([_present_rows(batch, kinds).astype(np.int64) for batch in read.values()])
    kind_numbers, counts = np.unique(values, return_counts=True)
    names = [_kind_name(kinds, int(value)) for value in kind_numbers]
    return {name: float(count / counts.sum()) for name, count in zip(names, counts)}


def _kind_name(kinds: Field, value: int) -> str:
    if kinds.name == ATOMIC_NUMBERS and 0 <= value < len(chemical_symbols):
        return str(chemical_symbols[value])
    return str(value)


def _present_rows(batch: GraphBatch, field: Field) -> NDArray[Any]:
    """All numbers of a field, flat, from the graphs that have it."""
    present = batch.present_items(field.name)
    values = batch[field.name] if present is None else batch[field.name][present]
    return np.asarray(values.reshape(-1).numpy())


def _target(field: Field, read: Mapping[str, GraphBatch]) -> Target:
    values: dict[str, Values] = {
        name: _present_rows(batch, field).astype(np.float64)
        for name, batch in read.items()
        if field.name in batch.fields
    }
    return Target(field=field.name, unit=field.unit, on=field.on, components=field.width, parts=values)


def with_store(config: Mapping[str, Any], place: Path, data_hash: str) -> Mapping[str, Any]:
    """The configuration with its store at another place; InputError where there are several, or other graphs there."""
    if "data" not in config:
        raise InputError(
            f"--store {place}: there is not one store to move; give the report of a branch's ensemble, or of a run"
        )
    store = open_store(place)
    if data_hash and not is_data(store, data_hash):
        raise InputError(
            f"the store {place} is not what was trained on (fingerprint {store.fingerprint}, trained on {data_hash}); give the "
            "original store, or a copy of it"
        )
    return {**config, "data": {**config["data"], "store": str(place.resolve())}}


def units_of_branches(config: Mapping[str, Any]) -> dict[str, str]:
    """The units of the targets of all branches whose stores are there."""
    units: dict[str, str] = {}
    for branch in config.get("branches", []):
        try:
            fields = open_store(Path(branch["data"]["store"])).fields()
        except InputError:
            continue
        units |= {f"{field.name}@{branch['name']}": field.unit for field in fields}
    return units
