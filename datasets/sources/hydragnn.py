"""Files of the public HydraGNN: ``.bp`` sets, pickled folders, and raw texts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from ase.io import read
from pydantic import Field as Setting
from pydantic import model_validator

from hydragnn.base.errors import InputError, as_input_error, nearest
from hydragnn.base.places import check_store, is_public
from hydragnn.datasets.arrays import Array
from hydragnn.datasets.formats.public_columns import MINMAX, record_columns
from hydragnn.datasets.public import PublicStore
from hydragnn.datasets.sources.base import BuildSettings, Make, MakerOfMany
from hydragnn.datasets.sources.table_files import find_files
from hydragnn.graphs.atomic import neighbour_list
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location, columns_of, is_labelled
from hydragnn.graphs.pyg import without_zeros
from hydragnn.graphs.texts import NAME
from hydragnn.graphs.validate import field_values

RAW = {"lsms": ".txt", "cfg": ".cfg", "xyz": ".xyz"}  # ends of raw files by format
BESIDE = {".cfg": ".bulk", ".xyz": "_energy.txt"}
"""Ends of the files beside a structure that begin with its graph feature."""
AUXILIARY = ("c_peratom", "fx", "fy", "fz")  # columns of a CFG file that are node features


class HydragnnBuild(BuildSettings):
    """Sets of the public HydraGNN; without ``fields`` every key is one."""

    takes_columns: ClassVar[bool] = True
    joins: ClassVar[frozenset[Location]] = frozenset(("node", "edge", "graph"))

    kind: Literal["hydragnn"] = "hydragnn"

    format: Literal["lsms", "cfg", "xyz"] | None = None
    """Format of raw files; absent: sets, or folders with a ``-meta.pkl``."""

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
        if bool(self.format) != (self.cutoff is not None):
            raise ValueError("raw files have no edges: give format and cutoff together, and neither for bp and pickle")
        if (self.format == "lsms") != bool(self.node_features):
            raise ValueError("node_features name the columns of lsms files; give them for these alone")
        if self.charge_rule and sum(map(len, self.node_features)) < 2:
            raise ValueError("charge_rule takes the first column of node_features from the second; name two")
        if self.file_parts is not None and len(self.file_parts) != len(self.files):
            raise ValueError("file_parts holds a part for each entry of files; give equally many")
        return self

    @cached_property
    def stores(self) -> list[PublicStore]:
        """Return sets, or one of all raw files."""
        if self.format:
            return [self._raw_store(RAW[self.format])]
        paths = find_files(self.files)
        places = dict.fromkeys(path if path.is_dir() or path.suffix == ".bp" else path.parent for path in paths)
        for place in (place for place in places if not is_public(place)):
            if place.is_file():
                check_store(place)
            raise InputError(f"{place}: neither a .bp set nor a folder with a -meta.pkl; name the format of raw files")
        return [PublicStore.at(place, self.heads) for place in places]

    def _raw_store(self, suffix: str) -> PublicStore:
        """Return the raw files with edges and scales."""
        samples: dict[str, list[dict[str, Any]]] = {}
        for pattern, label in zip(self.files, list[str](self.file_parts or []) or ["total"] * len(self.files)):
            paths = [path for path in find_files([pattern]) if path.suffix == suffix]
            samples.setdefault(label, []).extend(map(self._sample, paths))
        every = [one for some in samples.values() for one in some]
        if not every:
            raise InputError(f"{', '.join(self.files)}: no file ends with {suffix}; check format")
        longest = max(float(one["edge_attr"].max(initial=0)) for one in every) or 1.0
        for one in every:
            one["edge_attr"] /= np.float32(longest)
        notes: dict[str, Any] = {"edge_attr_unit": longest}
        for key, name, features in (("x", "node", self.node_features), ("y", "graph", self.graph_features)):
            if self.scaling and all(key in one for one in every):
                widths = [len(one) for one in features] or [1] * every[0][key].shape[-1]
                notes[f"{MINMAX}{name}_feature"] = _scale_features([one[key] for one in every], widths)
        return PublicStore(record_columns(Path(self.files[0]), samples, notes), self.heads)

    def _sample(self, path: Path) -> dict[str, Any]:
        """Return a raw file with its edges; InputError where it lacks something."""
        move = "check format, node_features and per_node"
        with as_input_error(f"{path} lacks a column, a number or a file beside it", move):
            sample = self._lsms_sample(path) if self.format == "lsms" else _ase_sample(path)
            if self.charge_rule:
                sample["x"][:, 1] -= sample["x"][:, 0]
            for key, columns in self.per_node.items():
                sample[key][..., columns] /= len(sample["x"])
        pos, most = sample["pos"].astype(np.float64), self.max_neighbours
        places = np.eye(3), np.zeros(3, dtype=bool), float(self.cutoff or 0), most
        senders, receivers, _ = neighbour_list(pos, *places, name=path.name)
        lengths = np.linalg.norm(pos[receivers] - pos[senders], axis=1, keepdims=True).astype(np.float32)
        return {**sample, "edge_index": np.stack([senders, receivers]), "edge_attr": lengths, "name": path.name}

    def _lsms_sample(self, path: Path) -> dict[str, Array]:
        """Return a text of LSMS: graph features, then a line per atom."""
        first, *lines = path.read_text().splitlines()
        rows, head = [line.split() for line in lines if line.strip()], first.split()
        texts = {
            "x": [[row[column] for some in self.node_features for column in some] for row in rows],
            "y": [head[column] for some in self.graph_features for column in some],
            "pos": [row[2:5] for row in rows],
        }
        return {key: np.array(some, dtype=np.float32) for key, some in texts.items()}

    def makers(self) -> Iterator[Make]:
        """Yield a maker for each graph; InputError for an unreadable file."""
        for store in self.stores:
            graphs = partial(self.graphs_of, store)
            yield from (MakerOfMany(graphs, number, int(count)) for number, count in enumerate(store.sizes().nodes))

    def notes(self) -> Mapping[str, Any]:
        """Return global attributes of the sets, of several those of the last."""
        return {key: value for store in self.stores for key, value in store.attributes.items()}

    def graphs_of(self, store: PublicStore, numbers: Sequence[int]) -> GraphBatch:
        """Return graphs of a store with the declared fields."""
        batch = store.read(numbers)
        for key in (key for key in self.text_keys if key not in batch.texts):
            raise InputError(f"{store.path} has no text {key}; {nearest(key, [*batch.texts])}")
        batch = batch.with_texts({NAME: batch.texts[self.name_key]}) if self.name_key else batch
        if not self.fields:
            return batch
        batch, values, masks = without_zeros(batch), {}, {}
        for field in self.fields:
            items, own = batch.num_items(field.on), [key for key, one in batch.fields.items() if one.on == field.on]
            absent = [key for key in field.keys if key not in own]
            if absent and not field.optional:
                raise InputError(f"{store.path}: {absent[0]} is no key of {field.on}s; {nearest(absent[0], own)}")
            if absent:
                continue
            arrays = [batch[key].reshape(items, -1) for key in field.keys]
            if field.column is not None:
                where = f"{store.path}, {field.name}"
                arrays = [columns_of(one, field.column, where).reshape(items, -1) for one in arrays]
            value = torch.cat(arrays, dim=1)
            if field.classes and bool((value == value.round()).all()):
                value = value.to(torch.int64)
            value = value.reshape(items, *field.shape) if value.shape[1] == field.field.width else value
            values[field.name] = field_values(value, field.field, items, str(store.path), field.optional)
            if not bool(is_labelled(values[field.name], field.field).all()):
                masks[field.name] = torch.ones(len(batch), dtype=torch.bool)
        declared = [field.field for field in self.fields if field.name in values]
        bare = batch.with_fields(drop=[name for name in batch.fields if name != "part" or "part" in values])
        return bare.with_fields(values, fields=declared, masks=masks)


def _ase_sample(path: Path) -> dict[str, Array]:
    """Return a CFG or XYZ file with the graph feature beside it."""
    atoms: Any = read(path, format=path.suffix[1:])
    columns = [atoms.numbers]
    if path.suffix == ".cfg":
        columns += [atoms.get_masses(), *(atoms.arrays[name] for name in AUXILIARY)]
    sample = {"x": np.stack(columns, axis=1), "pos": atoms.positions, "cell": atoms.cell.array}
    other = path.with_name(path.stem + BESIDE[path.suffix])
    if path.suffix == ".xyz" or other.exists():
        sample["y"] = np.array([float(other.read_text().split()[0])])
    numbers = {key: np.asarray(one, dtype=np.float32) for key, one in sample.items()}
    return {**numbers, "pbc": np.zeros(3, dtype=np.int32)}


def _scale_features(arrays: Sequence[Array], widths: Sequence[int]) -> Array:
    """Bring features to 0 to 1; return the extremes of each."""
    bounds = []
    for first, width in zip(np.cumsum([0, *widths[:-1]]).tolist(), widths):
        values = [one[..., first : first + width] for one in arrays]
        low, high = (pick([pick(value) for value in values]) for pick in (np.min, np.max))
        for value in values:
            value[...] = (value - low) / (high - low) if high > low else 0.0
        bounds.append((float(low), float(high)))
    return np.array(bounds).T
