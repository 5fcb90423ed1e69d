"""Rows of an HDF5 file are those that HDF5 itself gives, however the array lies in its file."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hydragnn.datasets.formats.hdf5 import Hdf5PartReader, chunk_places
from tests.refusals import refuses

ROWS = 103
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks of rows": {"chunks": (10, 3)},
    "one row a chunk": {"chunks": (1, 3)},
    "compressed": {"chunks": (10, 3), "compression": "gzip"},
    "with checksums": {"chunks": (10, 3), "fletcher32": True},
    "chunks of columns": {"chunks": (10, 1)},
    "in one piece": {},
    "big-endian": {"chunks": (10, 3), "dtype": ">f8"},
}
DIRECT = {"chunks of rows", "one row a chunk"}


def rows(reader: Hdf5PartReader, start: int, stop: int) -> np.ndarray:
    joined = reader.joined("x", np.dtype("f8"), np.array([start]), np.array([stop]))
    if joined is not None:
        return np.frombuffer(joined).reshape(-1, 3)
    out = np.zeros((stop - start, 3))
    reader.fill("x", out, start)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_those_that_hdf5_gives(layout: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, 3))
    with h5py.File(tmp_path / "part.h5", "w") as file:
        array = file.create_dataset("x", shape=(ROWS, 3), **{"dtype": "<f8", **LAYOUTS[layout]})
        array[:40], array[60:] = values[:40], values[60:]  # chunks between are never written
    values[40:60] = 0
    with h5py.File(tmp_path / "part.h5") as file:
        assert (chunk_places(file["x"]) is not None) == (layout in DIRECT)
    reader = Hdf5PartReader(tmp_path / "part.h5")
    for start, stop in ((0, ROWS), (0, 1), (9, 11), (35, 65), (57, 58), (99, ROWS), (100, ROWS + 20)):
        out = rows(reader, start, stop)
        stored = min(stop, ROWS) - start
        np.testing.assert_array_equal(out[stored:], 0.0)
        np.testing.assert_array_equal(out[:stored], values[start : min(stop, ROWS)])
    reader.close()


def test_a_file_that_was_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("x", data=np.ones((ROWS, 3)), chunks=(10, 3))
    reader = Hdf5PartReader(tmp_path / "part.h5")
    rows(reader, 0, 5)
    with (tmp_path / "part.h5").open("r+b") as file:
        file.truncate(3000)
    refuses(r"x cannot be read .the file was changed while it was read.; copy the store", rows, reader, 0, ROWS)
