"""HDF5 files of predictions hold what the pieces held."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.ensemble.prediction.formats import hdf5
from hydragnn.ensemble.prediction.formats.hdf5 import Hdf5Sink
from hydragnn.ensemble.prediction.formats.sink import Heading, joined
from hydragnn.graphs import Field
from hydragnn.models import Target
from tests.ensemble.finished import arrays_of

TARGETS = tuple(
    Target(field=Field(name=name, on=on, unit="eV"))
    for name, on in (("energy", "graph"), ("forces", "node"), ("bond", "edge"))
)
WORDS = ["ok", "", "NaN in forces", "Grüße", "a text of eight" + "s" * 300, "12345678", "\N{SNOWMAN}"]


def piece(generator: np.random.Generator, graphs: int) -> dict[str, Any]:
    nodes, edges = generator.integers(0, 4, graphs), generator.integers(0, 3, graphs)
    return {
        "graph": np.arange(graphs),
        "nodes": nodes,
        "edges": edges,
        "senders": np.arange(edges.sum()),
        "receivers": np.arange(edges.sum())[::-1].copy(),
        "status": generator.choice(WORDS, graphs).tolist(),
        "domain": generator.choice(WORDS, graphs, p=[0, 0.9, 0, 0, 0.02, 0.04, 0.04]).tolist(),
        "domain_score": generator.normal(size=graphs),
        "fields/energy/mean": generator.normal(size=graphs).astype(np.float32),
        "fields/energy/set": generator.random((graphs, 3)) < 0.5,
        "fields/forces/mean": generator.normal(size=(nodes.sum(), 3)).astype(np.float32),
        "fields/bond/mean": generator.normal(size=edges.sum()),
    }


def joined_file(folder: Path, pieces: list[dict[str, Any]]) -> Path:
    sink = Hdf5Sink(folder / "out.h5", Heading(targets=TARGETS, nominal=0.9, ensemble="e", members=("a",)))
    sink.begin()
    for one in pieces:
        sink.append(one)
    sink.complete()
    assert [path.name for path in folder.iterdir()] == ["out.h5"]
    return sink.path


@pytest.mark.parametrize("rows", [4096, 8, 64])
@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_pieces_are_read_back(tmp_path_factory: pytest.TempPathFactory, rows: int, sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    pieces = [piece(generator, size) for size in sizes]
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "ROWS", rows)
        path = joined_file(folder, pieces)
    expected = joined(pieces)
    read = arrays_of(path)
    with h5py.File(path) as file:
        assert file["fields/energy"].attrs["unit"] == "eV"
        summed = [name for name, values in read.items() if len(values) and file[name].fletcher32]
    assert summed == [name for name, values in read.items() if len(values) and values.dtype != "O"]
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values.dtype.kind == "O" or values.dtype == np.asarray(expected[name]).dtype
        np.testing.assert_array_equal(values, np.asarray(expected[name]), err_msg=name)
