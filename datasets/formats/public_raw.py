"""Raw LSMS, CFG and XYZ files of the public HydraGNN."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.datasets.arrays import Array
from hydragnn.graphs.atomic import neighbour_list

BESIDE = {".cfg": ".bulk", ".xyz": "_energy.txt"}
"""Ends of the files beside a structure that hold its graph features."""

Columns = Sequence[Sequence[int]]
"""Columns of every feature."""


def lsms_sample(path: Path, nodes: Columns, graphs: Columns) -> dict[str, Array]:
    """Return a text of LSMS: graph features, then a line per atom."""
    try:
        first, *lines = path.read_text().splitlines()
        head, rows = first.split(), [line.split() for line in lines if line.strip()]
        x = np.array([[float(row[column]) for some in nodes for column in some] for row in rows], dtype=np.float32)
        y = np.array([float(head[column]) for some in graphs for column in some], dtype=np.float32)
        return {"x": x, "y": y, "pos": np.array([[float(one) for one in row[2:5]] for row in rows], dtype=np.float32)}
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise InputError(f"{path} lacks a column, or has what is no number ({error}); check node_features") from error


def ase_sample(path: Path) -> dict[str, Array]:
    """Return a CFG or XYZ file with the graph features beside it."""
    from ase.io import read

    try:
        atoms: Any = read(path, format=path.suffix[1:])
    except Exception as error:  # whatever a reader of ASE raises
        raise InputError(f"{path} is not read by ASE: {error}; check its format") from error
    columns = [atoms.numbers]
    if path.suffix == ".cfg":
        absent = [name for name in ("c_peratom", "fx", "fy", "fz") if name not in atoms.arrays]
        if absent:
            raise InputError(f"{path} has no {absent[0]} for its atoms; add the auxiliary column")
        columns += [atoms.get_masses(), *(atoms.arrays[name] for name in ("c_peratom", "fx", "fy", "fz"))]
    sample = {"x": np.stack(columns, axis=1), "pos": atoms.positions, "cell": atoms.cell.array}
    other = path.with_name(path.stem + BESIDE[path.suffix])
    if other.exists():
        first = (other.read_text().splitlines() or [""])[0].split()
        try:
            sample["y"] = np.array([float(first[0])])
        except (ValueError, IndexError) as error:
            raise InputError(f"{other} does not begin with a number; write the graph feature there") from error
    elif path.suffix == ".xyz":
        raise InputError(f"{other} does not exist; write the energy of {path.name} there")
    return {
        "pbc": np.zeros(3, dtype=np.int32),
        **{key: np.asarray(one, dtype=np.float32) for key, one in sample.items()},
    }


def with_edges(sample: Mapping[str, Array], cutoff: float, most: int | None, name: str) -> dict[str, Array]:
    """Return a sample with pairs within the cutoff, without images."""
    pos = sample["pos"].astype(np.float64)
    senders, receivers, _ = neighbour_list(pos, np.eye(3), np.zeros(3, dtype=bool), cutoff, most, name=name)
    lengths = np.linalg.norm(pos[receivers] - pos[senders], axis=1, keepdims=True).astype(np.float32)
    return {**sample, "edge_index": np.stack([senders, receivers]), "edge_attr": lengths}


def scale_lengths(samples: Sequence[dict[str, Array]]) -> float:
    """Divide distances by the longest of all, and return it."""
    longest = max(float(one["edge_attr"].max(initial=0)) for one in samples) or 1.0
    for one in samples:
        one["edge_attr"] /= np.float32(longest)
    return longest


def scale_features(samples: Sequence[dict[str, Array]], key: str, features: Columns) -> Any:
    """Bring features to 0 to 1; return the smallest and the largest of each."""
    widths = [len(one) for one in features] or [1] * samples[0][key].shape[-1]
    bounds = []
    for first, width in zip(np.cumsum([0, *widths[:-1]]).tolist(), widths):
        values: list[NDArray[Any]] = [one[key][..., first : first + width] for one in samples]
        low, high = (pick([pick(value) for value in values]) for pick in (np.min, np.max))
        for value in values:
            value[...] = (value - low) / (high - low) if high > low else 0.0
        bounds.append((float(low), float(high)))
    return np.array(bounds).T
