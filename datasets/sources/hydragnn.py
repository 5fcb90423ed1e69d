"""Files of the public HydraGNN: ``.bp`` sets, pickled folders, and raw texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.places import is_public
from hydragnn.datasets.formats.public_columns import record_columns
from hydragnn.datasets.public import PublicStore
from hydragnn.datasets.sources.base import BuildSettings, Make, MakerOfMany
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location, columns_of
from hydragnn.graphs.texts import NAME

RAW = {"lsms": ".txt", "cfg": ".cfg", "xyz": ".xyz"}
"""Ends of raw files by format."""


class HydragnnBuild(BuildSettings):
    """Sets of the public HydraGNN; without ``fields`` every key is one."""

    takes_columns: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))

    kind: Literal["hydragnn"] = "hydragnn"

    format: Literal["bp", "pickle", "lsms", "cfg", "xyz"] | None = None
    """Format of the files; absent: sets, or folders with a ``-meta.pkl``."""

    heads: list[Literal["node", "graph"]] | None = None
    """Places of ``y_0``, ``y_1``, ... in a packed ``y``; absent: by length."""

    file_parts: list[Literal["trainset", "valset", "testset"]] | None = None
    """Part of every entry of ``files``, for raw files."""

    cutoff: float | None = Setting(default=None, gt=0)
    """Distance of pairs of raw files, without images; ``edge_attr`` is their distance by the longest (``edge_attr_unit``)."""

    max_neighbours: int | None = Setting(default=None, ge=1)
    """Nearest neighbours of each node that are taken, with ``cutoff``."""

    node_features: list[list[int]] = Setting(default_factory=list)
    """Columns of every node feature in the lines of atoms (lsms)."""

    graph_features: list[list[int]] = Setting(default_factory=list)
    """Columns of every graph feature in the first line (lsms)."""

    charge_rule: bool = False
    """True takes the first node feature from the second: charges less protons."""

    scaling: Literal["minmax"] | None = None
    """minmax: features go from 0 to 1 over all files together."""

    per_node: dict[Literal["x", "y"], list[int]] = Setting(default_factory=dict)
    """Columns that are divided by the number of nodes (``_scaled_num_nodes``)."""

    @model_validator(mode="after")
    def _check(self) -> "HydragnnBuild":
        if (self.format in RAW) != (self.cutoff is not None):
            raise ValueError("raw files have no edges: give format and cutoff together, and neither for bp and pickle")
        if self.format == "lsms" and not self.node_features:
            raise ValueError("node_features name the columns of the files; give them")
        if self.file_parts is not None and len(self.file_parts) != len(self.files):
            raise ValueError("file_parts holds a part for each entry of files; give equally many")
        return self

    @cached_property
    def stores(self) -> list[PublicStore]:
        """Return sets, or one of all raw files."""
        if self.format in RAW:
            return [self._raw()]
        paths = find_files(self.files)
        places = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
        if absent := [place for place in places if not is_public(place)]:
            raise InputError(
                f"{absent[0]}: neither a .bp set nor a folder with a -meta.pkl; name the format of raw files"
            )
        return [PublicStore.at(place, self.heads) for place in places]

    def _raw(self) -> PublicStore:
        """Return the raw files with edges and scales."""
        from hydragnn.datasets.formats import public_raw as raw

        samples: dict[str, list[dict[str, Any]]] = {}
        notes: dict[str, Any] = {}
        for number, pattern in enumerate(self.files):
            label = self.file_parts[number] if self.file_parts else "total"
            for path in (one for one in find_files([pattern]) if one.suffix == RAW[str(self.format)]):
                if self.format == "lsms":
                    sample = raw.lsms_sample(path, self.node_features, self.graph_features)
                else:
                    sample = raw.ase_sample(path)
                if self.charge_rule:
                    sample["x"][:, 1:2] -= sample["x"][:, :1]
                for key, columns in self.per_node.items():
                    sample[key][..., columns] /= len(sample["x"])
                sample = raw.with_edges(sample, float(self.cutoff or 0), self.max_neighbours, path.name)
                samples.setdefault(label, []).append({**sample, "name": path.name})
        every = [one for some in samples.values() for one in some]
        if not every:
            raise InputError(f"{', '.join(self.files)}: no file ends with {RAW[str(self.format)]}; check format")
        if self.scaling:
            for key, features in (("x", self.node_features), ("y", self.graph_features)):
                if all(key in one for one in every):
                    widths = [len(one) for one in features] or [1] * every[0][key].shape[-1]
                    raw.scale_features(every, key, widths, notes)
        notes["edge_attr_unit"] = max(float(one["edge_attr"].max(initial=0)) for one in every) or 1.0
        for one in every:
            one["edge_attr"] /= np.float32(notes["edge_attr_unit"])
        return PublicStore(record_columns(Path(self.files[0]), samples, notes), self.heads)

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph; InputError for an unreadable file."""
        for store in self.stores:
            yield from (_Maker(self, store, number, int(count)) for number, count in enumerate(store.sizes().nodes))

    def notes(self) -> Mapping[str, Any]:
        """Return global attributes of the sets, of several those of the last."""
        return {key: value for store in self.stores for key, value in store.attributes.items()}

    def graphs_of(self, store: PublicStore, numbers: Sequence[int]) -> GraphBatch:
        """Return graphs of a store with the declared fields."""
        batch = store.read(numbers)
        if self.name_key and self.name_key not in batch.texts:
            raise InputError(f"{store.path} has no text {self.name_key}; {nearest(self.name_key, [*batch.texts])}")
        batch = batch.with_texts({NAME: batch.texts[self.name_key]}) if self.name_key else batch
        if not self.fields:
            return batch
        values = {}
        for field in self.fields:
            absent = [key for key in field.keys if key not in batch.fields or batch.fields[key].on != field.on]
            if absent and field.optional:
                continue
            if absent:
                hint = nearest(absent[0], [key for key, own in batch.fields.items() if own.on == field.on])
                raise InputError(f"{store.path}: {absent[0]} is no key of {field.on}s; {hint}")
            arrays = [batch[key] for key in field.keys]
            if field.column is not None:
                arrays = [
                    columns_of(one.reshape(len(one), -1), field.column, f"{store.path}, {field.name}") for one in arrays
                ]
            value = arrays[0] if len(arrays) == 1 else torch.cat([one.reshape(len(one), -1) for one in arrays], dim=1)
            if field.classes and bool((value != value.round()).any()):
                raise InputError(
                    f"{store.path}: {field.name} has values that are no classes; leave out classes and dtype"
                )
            values[field.name] = value.reshape(len(value), *field.shape).to(field.field.torch_dtype)
        declared = [field.field for field in self.fields if field.name in values]
        bare = batch.with_fields(drop=[name for name in batch.fields if name != "part" or "part" in values])
        return bare.with_fields(values, fields=declared)


@dataclass(frozen=True, slots=True)
class _Maker(MakerOfMany):
    """Maker of a graph of a set."""

    source: HydragnnBuild
    store: PublicStore
    number: int
    nodes: int

    def size(self) -> int:
        """Return the nodes of the graph."""
        return self.nodes

    def __call__(self) -> GraphBatch:
        """Return the graph."""
        return self.source.graphs_of(self.store, [self.number])

    @classmethod
    def together(cls, makers: Sequence["_Maker"]) -> GraphBatch | None:
        """Return graphs of one store as one batch."""
        first = makers[0]
        if any(one.store is not first.store for one in makers):
            return None
        return first.source.graphs_of(first.store, [one.number for one in makers])
