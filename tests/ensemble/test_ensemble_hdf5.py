"""A file that many processes fill is one that HDF5 could have written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.base.errors import InputError
from hydragnn.datasets.packing import Budget
from hydragnn.datasets.store import Sizes
from hydragnn.ensemble.plan import chunks_of
from hydragnn.ensemble.prediction import filling, hdf5
from hydragnn.ensemble.prediction.filling import Filler
from hydragnn.ensemble.prediction.group import Alone
from hydragnn.ensemble.prediction.hdf5 import Hdf5Sink, checksums, chunk_rows, heap_sizes
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.records import Parts
from hydragnn.ensemble.prediction.sinks import Heading, joined
from hydragnn.ensemble.prediction.work import Merger, Worker
from hydragnn.graphs import Field
from hydragnn.models import Target

TARGETS = tuple(
    Target(field=Field(name=name, on=on, unit="eV"))
    for name, on in (("energy", "graph"), ("forces", "node"), ("bond", "edge"))
)
WORDS = ["ok", "", "NaN in forces", "Grüße", "a text of eight" + "s" * 300, "12345678", "\N{SNOWMAN}"]


def piece(generator: np.random.Generator, graphs: int) -> dict[str, Any]:
    """What some graphs of random sizes become in a file."""
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


def filled(folder: Path, pieces: list[dict[str, Any]]) -> Path:
    """The file of these pieces."""
    sink = Hdf5Sink(folder / "out.h5", Heading(targets=TARGETS, nominal=0.9, ensemble="e", members=("a",)))
    parts = Parts(folder / "parts")
    parts.folder.mkdir(parents=True)
    ones = np.ones(len(pieces), dtype=np.int64)
    for number, one in enumerate(pieces):
        parts.keep_piece(number, {}, one, [], sink.sizes(one))
    worker = Worker.__new__(Worker)
    worker.group, worker.parts, worker.sink, worker.check = Alone(), parts, sink, lambda: None
    worker.chunks = chunks_of(Sizes(nodes=ones, edges=ones), None, Budget(max_graphs=1), {})
    filler = Filler(worker, Merger(worker), sink)
    filler.fill()
    counts = filler.finish()
    assert counts["graphs"] == sum(len(one["graph"]) for one in pieces)
    assert counts["failed"] == sum(text != "ok" for one in pieces for text in one["status"])
    parts.delete()
    return sink.path


def arrays(file: h5py.File) -> Iterator[tuple[str, Any]]:
    """All arrays of a file."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    for name in names:
        yield name, file[name].asstr()[:] if file[name].dtype.kind == "O" else file[name][:]


@pytest.mark.parametrize("rows, items", [(4096, 1 << 17), (8, 1 << 17), (64, 100)])
@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_what_is_read_is_what_pieces_held_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, rows: int, items: int, sizes: list[int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    pieces = [piece(generator, size) for size in sizes]
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "ROWS", rows)
        patch.setattr(hdf5, "ITEMS", items)
        path = filled(folder, pieces)
    expected = joined(pieces)
    with h5py.File(path) as file:
        read = dict(arrays(file))
        assert file["fields/energy"].attrs["unit"] == "eV"
        assert file["graph"].fletcher32 and not file["status"].fletcher32
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values.dtype.kind == "O" or values.dtype == np.asarray(expected[name]).dtype
        np.testing.assert_array_equal(values, np.asarray(expected[name]), err_msg=name)


def test_a_file_that_was_filled_can_be_changed_and_grow(tmp_path: Path) -> None:
    """Nothing that HDF5 writes comes to lie upon texts."""
    one = piece(np.random.default_rng(0), 200)
    path = filled(tmp_path, [one])
    with h5py.File(path, "r+") as file:
        file["more"] = np.arange(10_000.0)
        file["notes"] = ["written later"] * 500
        file["status"][0] = "a longer text than before"
        del file["graph"]
        file["again"] = np.arange(5000)
    with h5py.File(path) as file:
        assert file["status"].asstr()[:].tolist() == ["a longer text than before", *one["status"][1:]]
        assert file["domain"].asstr()[:].tolist() == one["domain"]
        np.testing.assert_array_equal(file["domain_score"][:], one["domain_score"])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 1200), st.sampled_from([0, 1, 255, None]), st.integers(0, 99))
def test_checksums_are_those_of_hdf5(size: int, letter: int | None, seed: int) -> None:
    """Also of sums that are nothing but ones or zeros."""
    content = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    if letter is not None:
        content[:] = letter
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        data = file.create_dataset("x", data=content, chunks=(size,), fletcher32=True)
        _, chunk = data.id.read_direct_chunk((0,))
    assert checksums(content[None]).astype("<u4").tobytes() == chunk[-4:]


def test_a_thousand_texts_take_as_much_as_is_foreseen() -> None:
    texts = ["x" * length for length in range(1000)]
    total, longest = heap_sizes(texts)
    content, references = hdf5.heap_collection(texts, hdf5.COLLECTION + total, 64)
    assert len(content) == hdf5.COLLECTION + total and longest == 16 + 1000
    assert references["length"].tolist() == list(range(1000)) and not references["address"][0]


def test_a_segment_holds_few_graphs_where_they_are_large() -> None:
    assert chunk_rows([1000, 10_000_000, 0])[0] < 20 and chunk_rows([100_000, 1_600_000, 9])[0] == 4096


def test_a_failure_while_a_file_is_filled_leaves_none_and_the_prediction_goes_on(
    ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> Never:
        raise OSError(28, "No space left on device")

    for name in ("write_at", "lay_out"):
        with monkeypatch.context() as patch:
            patch.setattr(filling, name, full)
            with pytest.raises(InputError, match="No space left on device; free space"):
                predict_to_file(ensemble, stored, tmp_path / "out.h5", resume=name == "lay_out")
        assert [path.name for path in tmp_path.iterdir()] == ["out.h5.parts"]
    predict_to_file(ensemble, stored, tmp_path / "out.h5", resume=True)
    predict_to_file(ensemble, stored, tmp_path / "whole.h5")
    assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
