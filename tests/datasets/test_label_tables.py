"""A table of labels beside the files of any source, joined by file or by name."""

from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.base.shown import csv_cell
from hydragnn.datasets import open_store, read_build_settings
from hydragnn.datasets.build import makers_of
from hydragnn.distributed.building import first_and_count
from hydragnn.graphs import GraphBatch
from tests.datasets.conftest import built as new_store

GAP = {"name": "gap", "on": "graph", "role": "target", "key": "band_gap"}
METALS = ("Cu", "Ag", "Au", "Pt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cifs").mkdir()
    for metal in METALS:
        ase.io.write(tmp_path / "cifs" / f"{metal}.cif", bulk(metal))
    (tmp_path / "cifs" / ".hidden").write_text("no crystal")
    return tmp_path


def built(folder: Path, **table: Any) -> GraphBatch:
    table = {"kind": "ase", "files": ["cifs"], "cutoff": 3.2, "fields": [GAP], **table}
    return new_store(folder, **{key: value for key, value in table.items() if value is not None})


def refused(folder: Path, sentence: str, **table: Any) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        built(folder, out="refused.h5", **table)
    assert "\n" not in str(caught.value) and not (folder / "refused.h5").exists()


def table(folder: Path, *lines: str) -> str:
    (folder / "gaps.csv").write_text("\n".join(lines))
    return "gaps.csv"


@pytest.mark.parametrize("suffix", ["", ".cif"])
def test_a_folder_of_structures_and_a_table_of_labels_are_a_store(suffix: str, folder: Path) -> None:
    lines = [f"{metal}{suffix},{number / 4},{metal}-fcc" for number, metal in enumerate(METALS)]
    labels = table(folder, "file,band_gap,mineral", *reversed(lines))
    batch = built(folder, labels=labels, texts=["mineral"], out="out.h5")
    expected = {f"{metal}.cif#0": (number / 4, f"{metal}-fcc") for number, metal in enumerate(METALS)}
    rows = zip(batch.names, batch["gap"].tolist(), batch.texts["mineral"])
    assert {name: (gap, mineral) for name, gap, mineral in rows} == expected
    assert batch.fields["gap"].dtype == "float64"
    assert "labels" not in open_store(folder / "out.h5").attributes["build"]


def test_labels_are_joined_by_id_and_those_that_are_missing_stay_so(folder: Path) -> None:
    frames = [bulk(metal) for metal in METALS]
    for number, frame in enumerate(frames):
        frame.info["material_id"] = f"mp-{number}"
    ase.io.write(folder / "all.xyz", frames)
    labels = table(folder, "id,band_gap,kind,a,b", "mp-2,0.5,1,1,2", "mp-0,,0,,4", "mp-1,1.5,,5,6", "other,9,9,9,9")
    kind = {"name": "kind", "on": "graph", "role": "target", "classes": 2, "dtype": "int64", "optional": True}
    pair = {"name": "pair", "on": "graph", "role": "target", "shape": [2], "key": ["a", "b"], "optional": True}
    gap = {**GAP, "optional": True, "scale": 2.0}
    batch = built(folder, files=["all.xyz"], labels=labels, fields=[gap, kind, pair])
    assert list(batch.names) == ["mp-0", "mp-1", "mp-2", "mp-3"]
    assert batch.present("gap").tolist() == [False, True, True, False] and batch["gap"].tolist()[1:3] == [3.0, 1.0]
    assert batch.present("kind").tolist() == [True, False, True, False] and batch["kind"].tolist()[2] == 1
    np.testing.assert_array_equal(batch.labelled("pair"), [[False, True], [True, True], [True, True], [False, False]])


@pytest.mark.parametrize("column", ["file", "id"])
def test_names_of_rows_keep_their_zeros(column: str, folder: Path) -> None:
    for number, metal in enumerate(METALS):
        (folder / "cifs" / f"{metal}.cif").rename(folder / "cifs" / f"{number:03d}.cif")
    lines = [f"{number:03d},{number}" for number in range(len(METALS))]
    batch = built(folder, labels=table(folder, f"{column},band_gap", *lines), fields=[{**GAP, "optional": True}])
    assert batch["gap"].tolist() == [0.0, 1.0, 2.0, 3.0] and batch.present("gap").all()


def test_files_of_one_name_do_not_share_a_row(folder: Path) -> None:
    (folder / "more").mkdir()
    ase.io.write(folder / "more" / "Cu.cif", bulk("Cu", a=3.9))
    labels = table(folder, "file,band_gap", *(f"{metal},1" for metal in METALS))
    refused(folder, "cifs/Cu.cif and .*more/Cu.cif are both Cu, so that", files=["cifs", "more"], labels=labels)


SITES = {"kind": "npz", "files": ["sites.npz"], "nodes": "counts", "fields": [{"name": "x", "on": "node"}, GAP]}


def sites(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "sites.npz", counts=np.array([1, 1]), x=np.array([0.5, 1.0]), **arrays)


def test_arrays_have_tables_of_labels_too_and_are_counted(folder: Path) -> None:
    sites(folder, name=np.array(["left", "right"]))
    labels = table(folder, "name,band_gap", "right,1.0", "left,2.0")
    parsed = read_build_settings({**SITES, "name_key": "name", "labels": labels}, folder / "BUILD.toml")
    assert [graph["gap"].item() for graph in (make() for make in makers_of(parsed))] == [2.0, 1.0]
    assert first_and_count(parsed, makers_of(parsed))[1] == 2


def test_the_numbers_of_rows_that_pandas_writes_are_no_column(folder: Path) -> None:
    lines = (",file,band_gap", "0,Pt,1.5", "1,Cu,2.5", "2,Ag,#N/A", "3,Au,<NA>")
    batch = built(folder, labels=table(folder, *lines), fields=[GAP | {"optional": True}])
    found = dict(zip(batch.names, zip(batch["gap"].tolist(), batch.present("gap").tolist())))
    assert found["Pt.cif#0"] == (1.5, True) and found["Cu.cif#0"] == (2.5, True)
    assert not found["Ag.cif#0"][1] and not found["Au.cif#0"][1]


def test_a_row_labels_one_graph_of_a_file(folder: Path) -> None:
    ase.io.write(folder / "both.xyz", [bulk("Cu"), bulk("Ag")])
    named = built(folder, files=["both.xyz"], labels=table(folder, "file,band_gap", "both.xyz#0,1", "both.xyz#1,2"))
    assert named["gap"].tolist() == [1.0, 2.0]
    last = built(folder, files=["both.xyz"], index="-1:", labels=table(folder, "file,band_gap", "both.xyz,2"))
    assert last["gap"].tolist() == [2.0]
    refused(folder, "has several graphs, and its row would label all of them", files=["both.xyz"], labels="gaps.csv")


ONE_ROW: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (("y.cif", "y.xyz"), ("y,1",), "are both y"),
    (("y.cif", "y.cif.gz"), ("y.cif,1",), "are both y.cif"),
    (("y.cif", "y.xyz"), ("y#0,1", "y.xyz#0,2"), "are both y"),
    (("y.cif.gz", "y.cif.xz"), ("y,1",), "are both y"),
    (("y.cif.gz",), ("y,1", "y.cif.gz,2"), "y.cif.gz#0 has several rows, y and y.cif.gz; keep one"),
    (("y.cif.bz2",), ("y,1", "y.cif,2"), "y.cif.bz2#0 has several rows, y and y.cif; keep one"),
    (("y.xyz",), ("y.xyz#0,1", "y.xyz,2"), "y.xyz#0 has several rows"),
]


@pytest.mark.parametrize(("files", "lines", "sentence"), ONE_ROW)
def test_files_and_rows_are_paired(files: tuple[str, ...], lines: tuple[str, ...], sentence: str, folder: Path) -> None:
    for file in files:
        ase.io.write(folder / file, bulk("Cu"))
    refused(folder, sentence, files=[*files], labels=table(folder, "file,band_gap", *lines))


@pytest.mark.parametrize("row", ["y", "y.cif", "y.cif.{0}", "folder/y.cif.{0}"])
@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_suffixes_of_compression_are_seen_through(suffix: str, row: str, folder: Path) -> None:
    ase.io.write(folder / f"y.cif.{suffix}", bulk("Cu"))
    ase.io.write(folder / "z.cif", bulk("Cu", a=3.9))
    lines = [f"{row.format(suffix)},1", "z.cif,2"]
    batch = built(folder, files=["?.cif*"], labels=table(folder, "file,band_gap", *lines))
    assert batch["gap"].tolist() == [1.0, 2.0]


def test_two_graphs_of_one_name_do_not_share_a_label_and_ids_join_by_file(folder: Path) -> None:
    frames = [bulk("Cu"), bulk("Cu", a=3.9)]
    for frame in frames:
        frame.info["id"] = "mp-1.5"
    ase.io.write(folder / "two.xyz", frames)
    for header, row, words in (
        ("id", "mp-1.5,1", r"one row labels both mp-1.5 \(graph 0\) and mp-1.5 \(graph 1\)"),
        ("file", "two,1", "one row labels both"),
        ("id", "mp-1,1", r"no row whose column id is mp-1\.5"),
    ):
        refused(folder, words, files=["two.xyz"], labels=table(folder, f"{header},band_gap", row))
    ase.io.write(folder / "one.xyz", frames[0])
    assert built(folder, files=["one.xyz"], labels=table(folder, "file,band_gap", "one,1"))["gap"].item() == 1.0


IDS = ("010", "10", "1e5", "T", "1.10", "1.1", "=1+1", "'=1+1", "-5", "a  b", "+7", "@x", "\u202eb", "9" * 25)


@pytest.mark.parametrize("column", ["id", "name", "mp_id"])
def test_ids_of_tables_are_their_letters(column: str, folder: Path) -> None:
    nodes = [f"{number},{number / 2}" for number in range(len(IDS))]
    graphs = [f"{number},{csv_cell(one)},{number}" for number, one in enumerate(IDS)]
    (folder / "nodes.csv").write_text("\n".join(["graph,x", *nodes]))
    (folder / "edges.csv").write_text("graph,sender,receiver\n0,0,0\n")
    (folder / "graphs.csv").write_text("\n".join([f"graph,{column},y", *graphs]))
    settings = {"kind": "tables", "files": ["nodes.csv"], "edges": "edges.csv", "graphs": "graphs.csv", "cutoff": None}
    settings |= {"fields": [{"name": "x", "on": "node"}, GAP]}
    labels = table(folder, f"{column},band_gap", *(f"{csv_cell(one)},{number}" for number, one in enumerate(IDS)))
    batch = built(folder, **settings, labels=labels)
    assert list(batch.texts["name"]) == [*IDS] and batch["gap"].tolist() == [*range(len(IDS))]


@pytest.mark.parametrize("value", [np.array([1.0, 2.5]), np.array([True, False]), np.array([1e5, np.inf])])
def test_texts_that_are_numbers_or_truth_values_are_refused(value: Any, folder: Path) -> None:
    sites(folder, run=value)
    settings = {**SITES, "fields": SITES["fields"][:1], "cutoff": None, "texts": ["run"]}
    refused(folder, r"run = .* is no text or whole number; write it as text", **settings)


ONE = "file,band_gap"
WRONG: list[tuple[tuple[str, ...], str]] = [
    ((ONE, "Cu,1", "Ag,2", "Au,3"), "gaps.csv: no row whose column file is Pt.cif; add one, or set"),
    ((ONE, "Cu,1", "Cu,2"), "gaps.csv has several rows whose column file is Cu; keep one"),
    (("structure,band_gap", "Cu,1"), "gaps.csv has no column that names graphs; call it file"),
    (("file,gap", "Cu,1"), "gaps.csv has none of band_gap; it has file, gap; name its columns in key"),
    ((ONE, "Cu,"), "gaps.csv, line 2: the column band_gap holds nothing; fill it in"),
    ((ONE, "Cu,wide"), "gaps.csv, line 2: the column band_gap holds 'wide', which is no number"),
    ((ONE, "Cu,1_5"), "gaps.csv, line 2: the column band_gap holds '1_5', which is no number"),
    (("file;band_gap", "Cu;1,5"), "gaps.csv separates columns by ';'; separate them by commas"),
    ((f"{ONE},", "Cu,1,"), "gaps.csv has no header; name every column"),
]


@pytest.mark.parametrize(("lines", "sentence"), WRONG)
def test_tables_that_do_not_fit_get_one_sentence(lines: tuple[str, ...], sentence: str, folder: Path) -> None:
    refused(folder, sentence, labels=table(folder, *lines))


def test_a_table_that_is_not_there_gets_one_sentence(folder: Path) -> None:
    refused(folder, "cannot read .*none.csv", labels="none.csv")
