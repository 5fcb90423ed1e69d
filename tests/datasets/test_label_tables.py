"""A table of labels beside the files of any source, joined by file or by name."""

import shutil
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from hydragnn.base.errors import InputError
from hydragnn.datasets import build_store, open_store, read_build_settings
from hydragnn.datasets.build import graphs_of
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.parallel_build import first_and_count

GAP = {"name": "gap", "on": "graph", "role": "target", "key": "band_gap"}
METALS = ("Cu", "Ag", "Au", "Pt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four crystals as CIF files in a folder."""
    (tmp_path / "cifs").mkdir()
    for metal in METALS:
        ase.io.write(tmp_path / "cifs" / f"{metal}.cif", bulk(metal))
    (tmp_path / "cifs" / ".hidden").write_text("no crystal")
    return tmp_path


def built(folder: Path, **table: Any) -> DiskStore:
    table = {"kind": "ase", "files": ["cifs"], "cutoff": 3.2, "fields": [GAP], **table}
    build_store(read_build_settings(table, folder / "BUILD.toml"), folder / "out.h5")
    return open_store(folder / "out.h5")


def table(folder: Path, *lines: str) -> str:
    (folder / "gaps.csv").write_text("\n".join(lines))
    return "gaps.csv"


@pytest.mark.parametrize("suffix", ["", ".cif"])
def test_a_folder_of_structures_and_a_table_of_labels_are_a_store(suffix: str, folder: Path) -> None:
    lines = [f"{metal}{suffix},{number / 4},{metal}-fcc" for number, metal in enumerate(METALS)]
    labels = table(folder, "file,band_gap,mineral", *reversed(lines))
    store = built(folder, labels=labels, texts=["mineral"])
    expected = {f"{metal}.cif#0": (number / 4, f"{metal}-fcc") for number, metal in enumerate(METALS)}
    batch = store.read(range(4))
    rows = zip(batch.names, batch["gap"].tolist(), store.texts["mineral"])
    assert {name: (gap, mineral) for name, gap, mineral in rows} == expected
    assert store.fields()[-1].dtype == "float64" and "labels" not in store.attributes["build"]


def test_labels_are_joined_by_id_and_those_that_are_missing_stay_so(folder: Path) -> None:
    frames = [bulk(metal) for metal in METALS]
    for number, frame in enumerate(frames):
        frame.info["material_id"] = f"mp-{number}"
    ase.io.write(folder / "all.xyz", frames)
    labels = table(folder, "id,band_gap,kind,a,b", "mp-2,0.5,1,1,2", "mp-0,,0,,4", "mp-1,1.5,,5,6", "other,9,9,9,9")
    kind = {"name": "kind", "on": "graph", "role": "target", "classes": 2, "dtype": "int64", "optional": True}
    pair = {"name": "pair", "on": "graph", "role": "target", "shape": [2], "key": ["a", "b"], "optional": True}
    store = built(
        folder, files=["all.xyz"], labels=labels, fields=[{**GAP, "optional": True, "scale": 2.0}, kind, pair]
    )
    batch = store.read(range(4))
    assert list(batch.names) == ["mp-0", "mp-1", "mp-2", "mp-3"]
    assert batch.present("gap").tolist() == [False, True, True, False] and batch["gap"].tolist()[1:3] == [3.0, 1.0]
    assert batch.present("kind").tolist() == [True, False, True, False] and batch["kind"].tolist()[2] == 1
    np.testing.assert_array_equal(batch.labelled("pair"), [[False, True], [True, True], [True, True], [False, False]])


@pytest.mark.parametrize("column", ["file", "id"])
def test_names_of_rows_keep_their_zeros(column: str, folder: Path) -> None:
    for number, metal in enumerate(METALS):
        (folder / "cifs" / f"{metal}.cif").rename(folder / "cifs" / f"{number:03d}.cif")
    lines = [f"{number:03d},{number}" for number in range(len(METALS))]
    store = built(folder, labels=table(folder, f"{column},band_gap", *lines), fields=[{**GAP, "optional": True}])
    assert store.read(range(4))["gap"].tolist() == [0.0, 1.0, 2.0, 3.0] and store.read(range(4)).present("gap").all()


def test_files_of_one_name_do_not_share_a_row(folder: Path) -> None:
    (folder / "more").mkdir()
    ase.io.write(folder / "more" / "Cu.cif", bulk("Cu", a=3.9))
    lines = [f"{metal},1" for metal in METALS]
    with pytest.raises(InputError, match=r"cifs/Cu.cif and .*more/Cu.cif have the same name"):
        built(folder, files=["cifs", "more"], labels=table(folder, "file,band_gap", *lines))


def test_arrays_have_tables_of_labels_too_and_are_counted(folder: Path) -> None:
    np.savez(folder / "sites.npz", counts=np.array([1, 1]), x=np.array([0.5, 1.0]), name=np.array(["left", "right"]))
    labels = table(folder, "name,band_gap", "right,1.0", "left,2.0")
    fields = [{"name": "x", "on": "node"}, GAP]
    settings = {
        "kind": "npz",
        "files": ["sites.npz"],
        "nodes": "counts",
        "name_key": "name",
        "fields": fields,
        "labels": labels,
    }
    parsed = read_build_settings(settings, folder / "BUILD.toml")
    assert [graph["gap"].item() for graph in graphs_of(parsed)] == [2.0, 1.0]
    assert first_and_count(parsed, folder / "counted.h5")[1] == 2


def test_the_numbers_of_rows_that_pandas_writes_are_no_column(folder: Path) -> None:
    lines = (",file,band_gap", "0,Pt,1.5", "1,Cu,2.5", "2,Ag,#N/A", "3,Au,<NA>")
    store = built(folder, labels=table(folder, *lines), fields=[GAP | {"optional": True}])
    batch = store.read(range(4))
    found = dict(zip(batch.names, zip(batch["gap"].tolist(), batch.present("gap").tolist())))
    assert found["Pt.cif#0"] == (1.5, True) and found["Cu.cif#0"] == (2.5, True)
    assert not found["Ag.cif#0"][1] and not found["Au.cif#0"][1]


def test_a_row_labels_one_graph_of_a_file(folder: Path) -> None:
    ase.io.write(folder / "both.xyz", [bulk("Cu"), bulk("Ag")])
    named = built(folder, files=["both.xyz"], labels=table(folder, "file,band_gap", "both.xyz#0,1", "both.xyz#1,2"))
    assert named.read(range(2))["gap"].tolist() == [1.0, 2.0]
    shutil.rmtree(folder / "out.h5")
    last = built(folder, files=["both.xyz"], index="-1:", labels=table(folder, "file,band_gap", "both.xyz,2"))
    assert last.read(range(1))["gap"].tolist() == [2.0]
    shutil.rmtree(folder / "out.h5")
    with pytest.raises(
        InputError,
        match="has several graphs, and its row would label all of them",
    ):
        built(folder, files=["both.xyz"], labels="gaps.csv")


WRONG: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a row that lacks": (
        ("file,band_gap", "Cu,1", "Ag,2", "Au,3"),
        {},
        "gaps.csv: no row whose column file is Pt.cif; add one, or set",
    ),
    "two rows for one": (
        ("file,band_gap", "Cu,1", "Cu,2"),
        {},
        "gaps.csv has several rows whose column file is Cu; keep one",
    ),
    "no names": (("structure,band_gap", "Cu,1"), {}, "gaps.csv has no column that names graphs; call it file"),
    "another column": (
        ("file,gap", "Cu,1"),
        {},
        "gaps.csv has none of band_gap; it has file, gap; name its columns in key",
    ),
    "an empty cell": (("file,band_gap", "Cu,"), {}, "gaps.csv, line 2: the column band_gap holds nothing; fill it in"),
    "a word": (
        ("file,band_gap", "Cu,wide"),
        {},
        "gaps.csv, line 2: the column band_gap holds 'wide', which is no number",
    ),
    "semicolons": (("file;band_gap", "Cu;1,5"), {}, "gaps.csv separates columns by ';'; separate them by commas"),
    "a column without a name": (("file,band_gap,", "Cu,1,"), {}, "gaps.csv has no header; name every column"),
    "no table": ((), {"labels": "none.csv"}, "cannot read .*none.csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tables_that_do_not_fit_get_one_sentence(case: str, folder: Path) -> None:
    lines, settings, sentence = WRONG[case]
    with pytest.raises(InputError, match=sentence) as caught:
        built(folder, **{"labels": table(folder, *lines), **settings})
    assert "\n" not in str(caught.value)
