"""What a store on disk says when it is not what it should be, or when some of its graphs lack a label."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreWriter, check_store, convert_store, finish_store, open_store, store_info
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, validate
from hydragnn.graphs.field import Location
from tests.datasets.conftest import edit_manifest
from tests.refusals import refuses


def test_information_is_complete(path: Path, store: MemoryStore) -> None:
    info = store_info(path)
    sizes = store.sizes()
    assert info.graphs == 60
    assert (info.nodes.total, info.nodes.min, info.nodes.max) == (int(sizes.nodes.sum()), 2, 8)
    assert info.nodes.mean == pytest.approx(sizes.nodes.mean(), abs=1e-3)
    assert info.edges.total == int(sizes.edges.sum())
    assert info.attributes == {"cutoff": 50.0}
    assert info.fields == tuple(store.fields())
    assert info.fingerprint == store.fingerprint
    assert info.backend == {".h5": "hdf5", ".bp": "adios2"}[path.suffix]
    value = info.to_json()
    assert json.loads(json.dumps(value)) == value and value["nodes"]["max"] == 8


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), "bytes where .* were written: it was cut off"),
        (Path.unlink, "is missing; copy the whole store again"),
    ],
    ids=["cut off", "missing"],
)
def test_a_part_that_is_not_whole_is_refused(harm: Callable[[Path], object], words: str, path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "manifest.json"]
    harm(max(files, key=lambda file: file.stat().st_size))
    refuses(words, open_store, path)
    assert re.search(words, check_store(path)[0])


def test_a_part_of_another_store_is_found_by_the_check(path: Path, graph: Callable[..., GraphBatch]) -> None:
    """Sizes and hashes of the files are made to fit, so that only the digests of the graphs can tell."""
    other = path.with_name(f"other{path.suffix}")
    with StoreWriter(other, list(graph().fields.values()), dim=3) as writer:
        writer.write(graph())
    edit_manifest(other, lambda table: table.update(fingerprint="0" * 32))
    assert "fingerprint" in check_store(other)[0]


def test_a_store_from_a_newer_version_or_without_manifest_says_so(path: Path) -> None:
    edit_manifest(path, lambda table: table.update(version=99))
    for look in (open_store, check_store, store_info):
        refuses("format version 99, this program reads up to 1; update the program", look, path)
    (path / "manifest.json").unlink()
    refuses(r"has no manifest.json: the writer did not finish; run it again", open_store, path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("absent.h5", "does not exist"), ("file.h5", "is a file, not a store"), ("empty.bp", "not a store")],
)
def test_what_is_no_store_says_so(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file.h5").write_bytes(b"\x89HDF\r\n\x1a\n and nothing else")
    (tmp_path / "empty.bp").mkdir()
    refuses(words, open_store, tmp_path / name)


def test_a_store_is_never_overwritten_and_can_be_moved(path: Path, store: MemoryStore, tmp_path: Path) -> None:
    refuses("is a store already; choose another path or remove it first", StoreWriter, path, store.fields(), dim=3)
    refuses("is a store already", convert_store, path, path)
    target = tmp_path / "elsewhere" / f"renamed{path.suffix}"
    shutil.move(path, target)
    assert open_store(target).fingerprint == store.fingerprint
    assert check_store(target) == []


PLACES = {
    "photos.h5": r"holds holiday.jpg, which belongs to no store",
    "data.zip": r"call it data.h5 .HDF5. or data.bp .ADIOS2.",
    "file/store.h5": r"cannot write .*file/store.h5: .*choose another place",
    "/proc/store.h5": r"cannot write /proc/store.h5: .*choose another place",
}


@pytest.mark.parametrize(("place", "words"), PLACES.items(), ids=PLACES)
def test_a_place_that_is_not_for_a_store_is_named(place: str, words: str, tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "photos.h5").mkdir()
    (tmp_path / "photos.h5" / "holiday.jpg").write_bytes(b"sea")
    (tmp_path / "file").write_text("not a folder")
    refuses(words, StoreWriter, tmp_path / place, store.fields(), dim=3)
    assert (tmp_path / "photos.h5" / "holiday.jpg").read_bytes() == b"sea"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path, store: MemoryStore) -> None:
    tmp_path.chmod(0o500)
    refuses("Permission denied; choose another place", StoreWriter, tmp_path / "store.h5", store.fields(), dim=3)


@pytest.mark.parametrize(
    ("fields", "dim", "graphs", "words"),
    [
        ({}, 3, [], "no graphs were written"),
        ({}, 3, ["sound", "NaN"], "graph 1, field forces: nan in row 1"),
        ({"charge": None}, 3, ["sound"], "charge that was not declared"),
        ({"charge": "mC"}, 3, ["sound"], "field charge was declared as"),
        ({}, 2, ["sound"], "dimension 3, the store 2"),
    ],
)
def test_graphs_that_do_not_fit_or_are_bad_are_refused(
    fields: dict[str, str | None],
    dim: int,
    graphs: list[str],
    words: str,
    tmp_path: Path,
    store: MemoryStore,
    graph: Callable[..., GraphBatch],
) -> None:
    declared = [replace(field, unit=fields.get(field.name, field.unit) or "") for field in store.fields()]
    declared = [field for field in declared if fields.get(field.name, "") is not None]
    forces = graph()["forces"].clone()
    forces[1, 2] = float("nan")
    with pytest.raises(InputError, match=words), StoreWriter(tmp_path / "store.h5", declared, dim=dim) as writer:
        for name in graphs:
            writer.write(graph() if name == "sound" else graph().with_fields({"forces": forces}))
            writer._flush()
    assert not (tmp_path / "store.h5").exists()


def test_several_writers_must_agree_and_all_arrive(tmp_path: Path, store: MemoryStore) -> None:
    place = tmp_path / "store.h5"
    for part, fields in ((0, store.fields()), (2, store.fields()[:1])):
        with StoreWriter(place, fields, dim=3, part=part) as writer:
            writer.write(store.read([part], [field.name for field in fields]))
    refuses("part 1 of 3 is missing; run its writer again", finish_store, place, 3)
    with StoreWriter(place, store.fields(), dim=3, part=1) as writer:
        writer.write(store.read([1]))
    refuses("parts 0 and 2 differ in fields", finish_store, place, 3)
    with StoreWriter(place, store.fields(), dim=3, part=2) as writer:
        writer.write(store.read([2]))
    with StoreWriter(place, store.fields(), dim=3, part=3):
        pass  # a rank without graphs
    finish_store(place, 4)
    assert open_store(place).fingerprint == MemoryStore(store.read([0, 1, 2])).fingerprint


def test_edges_without_shifts_take_no_space(tmp_path: Path) -> None:
    ends = np.arange(5000)
    points, cell = np.zeros((5000, 3)) + ends[:, None], 1000.0 * np.eye(3)
    plain = graph_from_arrays(points, ends, ends[::-1].copy(), edge_shifts=0 * points, cell=cell, periodic=True)
    shifted = replace(plain, edge_shifts=plain.edge_shifts + 1000.0)
    sizes = []
    for name, graph in (("plain", plain), ("shifted", shifted)):
        with StoreWriter(tmp_path / f"{name}.h5", [], dim=3) as writer:
            writer.write(graph)
        sizes.append(store_info(tmp_path / f"{name}.h5").bytes)
        assert torch.equal(open_store(tmp_path / f"{name}.h5").read([0]).edge_shifts, graph.edge_shifts)
    assert sizes[1] - sizes[0] > 0.8 * 5000 * 24


@pytest.mark.parametrize(("on", "rows"), [("graph", 1), ("node", 2), ("edge", 2)])
def test_sentences_about_a_missing_label_say_both_things_to_leave_out(on: Location, rows: int, tmp_path: Path) -> None:
    label, items = Field(name="label", on=on, role="target"), {"graph": "graphs", "node": "nodes", "edge": "edges"}[on]

    def make(fields: list[Field], values: dict[str, list[float]]) -> GraphBatch:
        return graph_from_arrays([[0.0, 0.0], [1.0, 0.0]], [0, 1], [1, 0], fields=fields, **{items: values})

    both = f"where it has no label, leave the value out .*, in Python neither fields nor {items} have it"
    say = r"where labels of label are missing, say so: optional = true in a BUILD.toml, optional=\['label'\] in Python"
    refuses(f"nan in row 0 .*; remove the graph, or {say}", make, [label], {"label": [math.nan] * rows})
    refuses(rf"pass {items}=.'label': \.\.\.., or {both}", make, [label], {})
    refuses(rf"declare it in fields \(.*\), or leave it out of {items}, too", make, [], {"label": [0.0] * rows})
    labelled = make([label], {"label": [1.0] * rows})
    with pytest.raises(InputError, match=f"graph 0, field label: nan .*; remove the graph, or {say}"):
        validate(labelled.with_fields({"label": labelled["label"] * math.nan}))
    refuses("add it, or take label out of the batch's fields, too", validate, replace(labelled, **{items: {}}))
    with StoreWriter(tmp_path / "some.h5", [label], dim=2) as writer:  # what the sentences advise
        writer.write(make([], {}))
        writer.write(labelled)
    assert open_store(tmp_path / "some.h5").read([0, 1]).present("label").tolist() == [False, True]
