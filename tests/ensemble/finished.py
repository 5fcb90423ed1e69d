"""Finished work of predictions, files of predictions compared, and files of JSON changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hydragnn.base.files import checksum_of
from hydragnn.ensemble.prediction.parts import Parts


def finished_units(folder: Path) -> int:
    """Return how many batches are finished in the folder of an interrupted prediction."""
    parts = Parts(folder)
    parts.look()
    return int(parts.finished(1000).sum())


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of JSON, and its checksum where it has one, as whoever writes NaN into it on purpose would."""
    value = json.loads(path.read_text())
    sealed = value.pop("checksum", None)
    change(value)
    path.write_text(json.dumps({**value, "checksum": checksum_of(value)} if sealed else value))


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz or .h5 file."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if name != "heading"}
    actual = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            actual[name] = item.asstr()[:] if item.dtype.kind == "O" else item[:]

    with h5py.File(path) as file:
        file.visititems(visit)
    return actual


def assert_same(one: Path, other: Path, rounding: float = 0.0) -> None:
    """Compare two files: bytes, or the arrays of HDF5, reals of them up to rounding."""
    if one.suffix != ".h5":
        assert one.read_bytes() == other.read_bytes()
        return
    left, right = arrays_of(one), arrays_of(other)
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert values.dtype == right[name].dtype
        if rounding and values.dtype.kind == "f":
            np.testing.assert_allclose(values, right[name], rounding, rounding, err_msg=name)
        else:
            np.testing.assert_array_equal(values, right[name], err_msg=name)
