"""Layouts of files that people have: molecules, JSON by material and by line, tables of SMILES, lists of meshes, series of arrays."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest

from hydragnn.datasets.sources.ase import AseBuild
from hydragnn.datasets.sources.registry import for_prediction
from tests.datasets.conftest import built, refused

ATOMS: dict[str, Any] = {"kind": "ase", "cutoff": 5.0}
GAP = {"name": "gap", "on": "graph", "role": "target"}
FORCE = {"name": "force", "on": "node", "shape": [3], "parity": "vector"}
U, V = {"name": "u", "on": "node"}, {"name": "v", "on": "node", "role": "target", "key": "u", "step": 1}
W = U | {"optional": True}
TIME, LEAD = {"name": "time", "on": "graph"}, {"name": "lead", "on": "graph", "key": "lead_time", "step": 1}

SDF = """water
  Program 0101000000{}

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 O   0  0
    0.0000    0.0000    0.9600 H   0  0
  1  2  1  0
M  END
>  <gap>  (1)
{}

> <note>
two
lines

$$$$
"""
V3000 = """water
  Program 0101000000{}

  0  0  0     0  0            999 V3000
M  V30 BEGIN CTAB
M  V30 COUNTS 2 1 0 0 0
M  V30 BEGIN ATOM
M  V30 1 O 0 0 0 0
M  V30 2 H 0 0 -
M  V30 0.96 0
M  V30 END ATOM
M  V30 BEGIN BOND
M  V30 1 1 1 2
M  V30 END BOND
M  V30 END CTAB
M  END
"""
V3000 = f"{V3000}{SDF.partition('M  END')[2][1:]}"
TWO = SDF.format("3D", 7.5) + SDF.format("3D", 1e1)
QM9 = """2
gdb 7\t1\t2\t3\t.4\t5\t-0.6\t.7\t8*^-1\t9\t10\t-1.1*^1\t12\t13\t14\t15\t
O\t0\t0\t0\t-.25
H\t0\t0\t9.6*^-1\t2.5*^-1
3000.0\t
[OH]\tO[H]\t
InChI=1S/HO\tInChI=1S/HO/h1H
"""
SITES = [{"species": [{"element": one, "occu": 1}], "abc": [half] * 3} for one, half in (("Cu", 0), ("Ni", 0.5))]
STRUCTURE = {"@class": "Structure", "lattice": {"matrix": (4 * np.eye(3)).tolist()}, "sites": SITES}


def record(gap: Any, force: Any = ((0, 0, 1), (0, 0, -1)), **more: Any) -> dict[str, Any]:
    return {"structure": STRUCTURE, "gap": gap, "force": force, "magmom": None, **more}


def need(file: str) -> None:
    if file.endswith((".csv", "v3000.sdf")):
        pytest.importorskip("rdkit", reason="the extra chemistry is not installed")


BY_MATERIAL = {"mp-1": {"mp-1-0": record(1.0), "mp-1-1": record(2.0)}, "mp-2": {"mp-2-0": record(3.0)}}
LINES = "".join(json.dumps(record(gap)) + "\n" for gap in (1.0, 2.0))
SMILES = "id,smiles,gap\n007,CC(=O)[O-],1.5\nb,c1ccccc1,2.5\n"
NODES = json.dumps({"nodes": [{"id": 0, "u": 1.0}, {"id": 1, "u": 2.0}], "links": [{"source": 0, "target": 1}]})
Q, CHARGE = ({"name": name, "on": "node", "key": key} for name, key in (("q", "mulliken"), ("charge", "formal_charge")))
TABLES: dict[str, dict[str, Any]] = {
    "a.sdf": ATOMS | {"fields": [GAP], "texts": ["note"]},
    "v3000.sdf": ATOMS | {"fields": [GAP], "texts": ["note"]},
    "mu.XYZ.gz": ATOMS | {"fields": [{"name": "mu", "on": "graph", "unit": "Debye"}]},
    "a.xyz": ATOMS | {"fields": [GAP | {"unit": "Ha"}, Q], "texts": ["smiles"]},
    "ev.xyz": ATOMS | {"fields": [GAP | {"unit": "eV"}]},
    "a.pdb": ATOMS,
    "a.xsf": ATOMS | {"fields": [FORCE | {"key": "forces", "unit": "eV/Angstrom"}]},
    "cp2k.xyz": ATOMS | {"fields": [GAP | {"key": "E", "unit": "eV"}]},
    "a.gro": ATOMS,
    "a.json": ATOMS | {"fields": [GAP, FORCE], "texts": ["material_id"]},
    "q.json": ATOMS | {"fields": [{"name": "charge", "on": "graph"}]},
    "a.jsonl": ATOMS | {"fields": [GAP, FORCE]},
    "places.jsonl": ATOMS | {"fields": [FORCE | {"key": "positions"}]},
    "n.jsonl": {"kind": "networkx", "fields": [U]},
    "a.csv": {"kind": "smiles", "fields": [GAP, CHARGE]},
    "h.csv": {"kind": "smiles", "hydrogens": True, "fields": [{"name": "hydrogens", "on": "node"}]},
    "u.csv": {"kind": "smiles", "fields": [U]},
}
RIGHT: list[tuple[str, str, dict[str, list[Any]]]] = [
    ("a.sdf", TWO, {"gap": [7.5, 10.0], "note": ["two lines"] * 2, "atomic_numbers": [8, 1, 8, 1]}),
    ("v3000.sdf", SDF.format("3D", 1) + V3000.format("3D", 2), {"gap": [1, 2], "atomic_numbers": [8, 1, 8, 1]}),
    ("v3000.sdf", V3000.format("3D", 2), {"note": ["two lines"], "positions": [0, 0, 0, 0, 0, 0.96]}),
    ("a.sdf", TWO.replace("M  END\n", ""), {"gap": [7.5, 10.0], "atomic_numbers": [8, 1, 8, 1]}),
    ("mu.XYZ.gz", QM9, {"mu": [0.4]}),
    ("a.xyz", QM9, {"gap": [0.8], "q": [-0.25, 0.25], "smiles": ["[OH]"]}),
    ("a.json", json.dumps(BY_MATERIAL), {"gap": [1, 2, 3], "force": [0, 0, 1, 0, 0, -1] * 3}),
    (
        "a.json",
        json.dumps(BY_MATERIAL),
        {"name": ["mp-1-0", "mp-1-1", "mp-2-0"], "material_id": ["mp-1", "mp-1", "mp-2"]},
    ),
    ("a.json", json.dumps({"mp-1": {"a": record(1.0, id=None)}}), {"name": ["a"], "material_id": ["mp-1"]}),
    ("q.json", json.dumps(STRUCTURE | {"charge": -1}), {"charge": [-1]}),
    ("a.json", json.dumps({"mp-1": [record(1.0), record(2.0)]}), {"gap": [1, 2], "name": ["mp-1#0", "mp-1#1"]}),
    ("a.jsonl", LINES, {"gap": [1, 2], "name": ["a.jsonl#0", "a.jsonl#1"]}),
    ("a.jsonl", json.dumps(record(1.0, positions=[[0, 0, 0]] * 2)), {"gap": [1]}),
    ("n.jsonl", f"{NODES}\n\n{NODES}\n", {"u": [1, 2, 1, 2]}),
    ("a.csv", SMILES, {"gap": [1.5, 2.5], "name": ["007", "b"], "charge": [0, 0, 0, -1] + [0] * 6}),
    ("a.csv", SMILES, {"bond_order": [1, 1, 2, 1, 2, 1] + [1.5] * 12, "atomic_numbers": [6, 6, 8, 8] + [6] * 6}),
    ("h.csv", "smiles\nCC\n", {"atomic_numbers": [6, 6] + [1] * 6, "hydrogens": [3, 3] + [0] * 6}),
    ("h.csv", "smiles\n[H][H]\n", {"hydrogens": [1, 1]}),
]


@pytest.mark.parametrize(("file", "text", "values"), RIGHT)
def test_a_layout_has_its_numbers_and_texts(file: str, text: str, values: dict[str, list[Any]], tmp_path: Path) -> None:
    need(file)
    (tmp_path / file).write_bytes(gzip.compress(text.encode()) if file.endswith(".gz") else text.encode())
    graphs = built(tmp_path, files=[file], **TABLES[file])
    for name, right in values.items():
        found = (
            list(graphs.texts[name])
            if name in graphs.texts
            else (graphs.positions if name == "positions" else graphs[name]).flatten().tolist()
        )
        assert found == (right if name in graphs.texts else pytest.approx(right))
    assert {*graphs.texts["file"]} == {file}


PDB = "HETATM    4 CA    CA A   2      15.000   9.000  -3.000  1.00  0.00\n"
AENET = "# total energy = -1.5 eV\nATOMS\nH 0 0 0 0 0 1\nH 0 0 0.7 0 0 -1\n"
WRONG = [
    ("a.sdf", TWO.replace("M  END\n", "", 1)[:-90], "molecule 1 is cut off"),
    ("a.sdf", TWO.replace("M  END\n", "")[:-5], "molecule 1 is cut off"),
    ("a.sdf", TWO.replace("7.5", ""), "no gap for the field gap"),
    ("a.sdf", TWO.replace("  1  2  1  0\n", "", 1), "2 atoms and 1 bonds in 2 lines"),
    ("a.sdf", TWO.replace("  2  1", "  1  1", 1), "1 atoms and 1 bonds in 3 lines"),
    ("v3000.sdf", TWO.replace("V2000", "V3000"), "molecule 0 is cut off or damaged"),
    ("v3000.sdf", V3000.format("2D", 1), "is a drawing in two dimensions"),
    *[
        ("v3000.sdf", text, "molecule 0 is cut off or damaged, or no V3000 of elements")
        for text in (
            V3000[:150],
            V3000.replace("COUNTS 2", "COUNTS 1"),
            V3000.replace("1 O", "1 Ko"),
            V3000.replace("M  END", ""),
        )
    ],
    ("a.sdf", TWO.replace("$$$$", "", 1), "molecule 0 and the next one are not parted; write a line $$$$"),
    ("a.sdf", TWO.replace(" O ", " D "), "an atom 'D', which is no chemical symbol; write H"),
    ("a.pdb", f"{PDB[:-1]}           D\n".replace("CA ", "DB2", 1), "write columns 77 and 78, H for D"),
    ("cp2k.xyz", "1\n i =        0, time =        0.000, E =        -1.5\nH 0 0 0\n", "E is in Ha, not eV; say"),
    ("a.xsf", AENET, "or scale = 0.036749322"),
    ("a.sdf", TWO.replace(" O ", " R#"), "an atom 'R#', which is no chemical symbol"),
    ("a.sdf", TWO.replace("<note>", "<gap>"), "molecule 0 has several values of gap; keep one"),
    ("a.sdf", TWO.replace("7.5", "nan"), "field gap: nan"),
    ("a.sdf", TWO.replace("<gap>", "<g>", 1), "no gap for the field gap"),
    ("a.pdb", PDB, "a.pdb names its atoms without their elements, and CA may be"),
    ("a.gro", "MD\n    1\n    1NA      NA    1   0.126   1.624   1.679\n 2 2 2\n", "a.gro names its atoms without"),
    ("a.xyz", QM9.replace("\t15\t", "\t"), "no whole file of QM9, or several: 2 of 2 atoms, 14 properties"),
    ("a.xyz", QM9.replace("\t2.5*^-1", ""), "no whole file of QM9"),
    ("a.xyz", QM9 + QM9, "no whole file of QM9, or several"),
    ("a.xyz", QM9[:-30], "no whole file of QM9"),
    ("a.xyz", QM9.replace("2\n", "3\n", 1), "no whole file of QM9"),
    ("ev.xyz", QM9, 'gap is in Ha, not eV; say unit = "Ha", or scale = 27.211386'),
    ("a.json", json.dumps(BY_MATERIAL).replace("mp-1-1", "mp-1-0"), "a name stands twice among mp-1-0, mp-1-0"),
    ("a.jsonl", LINES[:-9], "a.jsonl, line 2, is no JSON"),
    ("a.jsonl", "[" * 10**5, "a.jsonl, line 1, is no JSON"),
    ("a.jsonl", json.dumps(record(1.0, [[0, 0, 1]])), "no force for the field force"),
    ("a.jsonl", json.dumps(record(1.0, [[0, 0, 1], [0, 0]])), "no force for the field force"),
    ("a.jsonl", json.dumps(record(1.0, [[0, 0, 1], [0, 0, None]])), "field force: nan in row 1"),
    ("places.jsonl", json.dumps(record(1.0, positions=[[0, 0, 0]] * 2)), "positions of sites beside another positions"),
    ("n.jsonl", f"{NODES}\n{NODES[:-2]}\n", "n.jsonl, line 2, is no JSON"),
    ("a.csv", SMILES.replace("c1ccccc1", "c1cccc"), "a.csv#1: 'c1cccc' is no SMILES"),
    ("a.csv", SMILES.replace("c1ccccc1", "*C"), "is no SMILES of elements"),
    ("a.csv", SMILES.replace("c1ccccc1", "C C"), "is no SMILES"),
    ("a.csv", SMILES.replace("2.5", ""), "a.csv, line 3: the column gap holds nothing"),
    ("a.csv", SMILES.replace("smiles", "formula"), "a.csv has no smiles"),
    ("u.csv", SMILES, "field u: nodes have atomic_numbers, formal_charge"),
]


@pytest.mark.parametrize(("file", "text", "words"), WRONG)
def test_a_layout_that_is_damaged_is_refused(file: str, text: str, words: str, tmp_path: Path) -> None:
    need(file)
    (tmp_path / file).write_text(text)
    refused(tmp_path, words, files=[file], **TABLES[file])


def meshes(folder: Path) -> str:
    points, cells, rows = [[0, 0, 0], [1, 0, 0], [0, 1, 0]], [("triangle", [[0, 1, 2]])], ""
    for number in (1, 2, 10):
        meshio.Mesh(points, cells, point_data={"u": 10.0 * number + np.arange(3)}).write(folder / f"run_{number}.vtu")
        rows += f'<DataSet timestep="{number / 4}" part="0" file="run_{number}.vtu"/>\n'
    return f'<?xml version="1.0"?>\n<VTKFile type="Collection"><Collection>\n{rows}</Collection></VTKFile>'


SERIES = [
    ({"files": ["run.pvd"]}, [0.25, 0.5], ["run.pvd#0", "run.pvd#1"]),
    ({"files": ["run_*.vtu"], "series": True}, [1, 2], ["run_1.vtu", "run_2.vtu"]),
]


NUMBERED = [
    (["t_0.25", "t_0.5"], "t_0.25.vtu: its last number may be a decimal"),
    (["f_1e-2", "f_1e-3"], "f_1e-2.vtu: its last number may be a decimal"),
    (["f_-1", "f_1"], "f_-1.vtu: its last number may be a decimal"),
    (["u_000_p0", "u_001_p0"], "u_000_p*.vtu has too few files (1) for its steps"),
    (["u", "v"], "u.vtu is no time series; leave step out, or number it"),
]


@pytest.mark.parametrize(("names", "words"), NUMBERED)
def test_numbers_that_may_be_no_frames_are_refused(names: list[str], words: str, tmp_path: Path) -> None:
    meshes(tmp_path)
    for name in names:
        (tmp_path / f"{name}.vtu").write_text((tmp_path / "run_1.vtu").read_text())
    files = [f"{name}.vtu" for name in names]
    refused(tmp_path, words, kind="mesh", files=files, series=True, fields=[U, V, TIME])


@pytest.mark.parametrize(("table", "times", "names"), SERIES)
def test_meshes_of_one_series_are_frames(table: Any, times: list[float], names: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.pvd").write_text(meshes(tmp_path))
    graphs = built(tmp_path, kind="mesh", **table, fields=[U, V, TIME, LEAD])
    assert graphs["u"].tolist() == [10, 11, 12, 20, 21, 22] and graphs["v"].tolist() == [20, 21, 22, 100, 101, 102]
    assert graphs["time"].tolist() == times and graphs["lead"].tolist() == [times[0], 8 * times[0]]
    assert list(graphs.names) == names and {*graphs.texts["run"]} == {*table["files"]}
    refused(tmp_path, "frames are not equally spaced in time", kind="mesh", **table, fields=[U, V])
    meshio.Mesh(np.eye(3), [("triangle", [[0, 1, 2]])], point_data={"w": np.ones(3)}).write(tmp_path / "run_2.vtu")
    second = "run.pvd#1" if "run.pvd" in names[0] else "run_2.vtu"
    refused(tmp_path, f"{second}: no u for the node field v; there is w", kind="mesh", **table, fields=[W, V, LEAD])


@pytest.mark.parametrize("compressor", [None, "vtkZLibDataCompressor"])
def test_arrays_of_raw_bytes_are_found_by_their_own_offsets(compressor: str | None, tmp_path: Path) -> None:
    fields = {name: np.random.default_rng(number).random(5, np.float32) for number, name in enumerate("abcdef")}
    places = np.random.default_rng(9).random((5, 3)).astype(np.float32)
    cells = {"connectivity": np.array([0, 1, 2, 2, 3, 4]), "offsets": np.array([3, 6]), "types": np.full(2, 5, "u1")}
    data, tags = b"", dict[str, str]()
    for name, array in {**fields, "Points": places, **cells}.items():
        kind = array.dtype.name.title().replace("Ui", "UI")
        tags[name] = f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{array[0].size}" format="appended" '
        tags[name] += f'offset="{len(data)}"/>'
        block = zlib.compress(array.tobytes()) if compressor else array.tobytes()
        counts = [1, array.nbytes, array.nbytes, len(block)] if compressor else [len(block)]
        data += np.array(counts, "<u4").tobytes() + block
    head = f'<VTKFile type="UnstructuredGrid" version="0.1" byte_order="LittleEndian" compressor="{compressor}">'
    head = head.replace(' compressor="None"', "") + '<UnstructuredGrid><Piece NumberOfPoints="5" NumberOfCells="2">'
    sets = {"PointData": fields, "Points": ["Points"], "Cells": cells}
    head += "".join(f"<{key}>{''.join(tags[name] for name in names)}</{key}>" for key, names in sets.items())
    end = b"\n</AppendedData></VTKFile>"
    head += '</Piece></UnstructuredGrid><AppendedData encoding="raw">\n_'
    (tmp_path / "a.vtu").write_bytes(head.encode() + data + end)
    table = {"kind": "mesh", "files": ["a.vtu"], "fields": [{"name": name, "on": "node"} for name in fields]}
    graphs = built(tmp_path, **table)
    assert all(np.array_equal(graphs[name], array) for name, array in fields.items())
    np.testing.assert_array_equal(graphs.positions, places)
    (tmp_path / "a.vtu").write_bytes(head.encode() + data[:-9] + end)
    refused(tmp_path, "a.vtu cannot be read by meshio", **table)


LISTS = [
    ("run_2", "run_7", "names run_7.vtu, which is no file in its folder"),
    ("run_2.vtu", "../run_2.vtu", "names ../run_2.vtu, which is no file in its folder"),
    ("run_2.vtu", "/etc/passwd", "names /etc/passwd, which is no file in its folder"),
    ("run_2", "run_1", "run_1.vtu twice"),
    ('"0.5"', '"0.25"', "has 0.25 twice"),
    ('"0.5"', '"nan"', "has nan twice, or as a time"),
    ('timestep="0.5"', "", "KeyError: 'timestep'"),
    ("</VTKFile>", "", "cannot be read"),
    ("?>\n", '?><!DOCTYPE a [<!ENTITY b "c">]>', "it declares entities"),
]


@pytest.mark.parametrize(("text", "wrong", "words"), LISTS)
def test_a_wrong_list_of_meshes_is_refused(text: str, wrong: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.pvd").write_text(meshes(tmp_path).replace(text, wrong))
    refused(tmp_path, words, kind="mesh", files=["run.pvd"], fields=[U])


def test_frames_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "run.pvd").write_text(meshes(tmp_path))
    (tmp_path / "same.pvd").write_text((tmp_path / "run.pvd").read_text())
    for files in (["*.vtu", "run.pvd"], ["run.pvd", "same.pvd"]):
        refused(tmp_path, "run_1.vtu is in two lists, or in one and a file", kind="mesh", files=files, fields=[U])
    refused(tmp_path, "run_1.vtu is no time series; leave step out", kind="mesh", files=["run_*.vtu"], fields=[U, V])
    (tmp_path / "run_01.vtu").write_text((tmp_path / "run_1.vtu").read_text())
    refused(tmp_path, "run_*.vtu has 1.0 twice", kind="mesh", files=["run_*.vtu"], series=True, fields=[U])
    (tmp_path / "a.vtu").write_text((tmp_path / "run_1.vtu").read_text().replace("</Piece>", "</Piece><Piece></Piece>"))
    refused(tmp_path, "a.vtu has several frames, zones or pieces", kind="mesh", files=["a.vtu"], fields=[U])


FRAMES = {"x": np.random.default_rng(0).random((4, 3, 2)), "u": np.arange(12.0).reshape(4, 3), "time": np.arange(4) / 2}
Z = {"name": "atomic_numbers", "on": "node", "key": "z", "classes": 119, "dtype": "int64"}
STEPS: list[tuple[dict[str, Any], list[Any], list[int] | str]] = [
    ({}, [U, V], [0, 1, 2]),
    ({}, [U, V, {**U, "name": "w", "key": "u", "step": -1}], [1, 2]),
    ({"time": [0, 1, 2, 4]}, [U, V, LEAD], [0, 1, 2]),
    ({"time": [0, 1, 2, np.inf]}, [U, V], "frame 3 has time inf after 2.0"),
    ({"time": [0, 1, 2, 4]}, [U, V], "frames are not equally spaced in time (times [2.0, 4.0] of frames 2 and 3)"),
    ({"time": [0, 1, np.nan, 3]}, [U, V], "frame 2 has time nan after 1.0"),
    ({"time": [0, 2, 1, 3]}, [U, V, LEAD], "frame 2 has time 1.0 after 2.0; write each run as a file of its own"),
    ({"time": [0, 1, 0, 1]}, [U, V, TIME], "frame 2 has time 0.0 after 1.0"),
    ({}, [U, V, {**LEAD, "step": 0}], "s.npz#0: lead is 0, and leads to no later frame"),
    ({"lead_time": [7.0] * 4}, [U, V, LEAD], "s.npz has an array lead_time"),
    ({"w": np.ones(3)}, [U, {**V, "key": "w"}], "an array that all frames share no step"),
    ({"time": [0, 1, 2]}, [U, V], "time has shape (3,) and dtype int64; write a number for each frame"),
    ({"time": [[0], [1], [2], [3]]}, [U, V], "time has shape (4, 1)"),
    ({"time": 0}, [U, V, LEAD], "lead_time is a single value"),
    ({"time": [*"abcd"]}, [U, V], "dtype <U1; write a number for each frame"),
    ({"time": np.arange(4).astype("M8[D]")}, [U, V, LEAD], "dtype datetime64[D]; write a number"),
    ({"z": [[1, 6, 8]] * 3 + [[6, 1, 8]]}, [U, V, Z], "frames have the same nodes"),
    ({}, [U, {**V, "step": 4}], "no graphs in there"),
]


@pytest.mark.parametrize(("arrays", "fields", "frames"), STEPS)
def test_frames_of_arrays_have_later_ones_as_targets(arrays: Any, fields: Any, frames: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", **{key: np.asarray(value) for key, value in (FRAMES | arrays).items()})
    table = {"kind": "npz", "files": ["s.npz"], "positions": "x", "cutoff": 2.0, "fields": fields}
    if isinstance(frames, str):
        refused(tmp_path, frames, **table)
        return
    graphs, times = built(tmp_path, **table), np.asarray((FRAMES | arrays)["time"])
    now, later = (FRAMES["u"][[one + step for one in frames]].ravel().tolist() for step in (0, 1))
    assert (graphs["u"].tolist(), graphs["v"].tolist()) == (now, later)
    assert list(graphs.names) == [f"s.npz#{one}" for one in frames]
    assert LEAD not in fields or graphs["lead"].tolist() == np.diff(times)[frames].tolist()


STEP = """ITEM: TIMESTEP
{0}
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 4
0 4
0 4
ITEM: ATOMS id type x y z fx fy fz
2 2 2 2 2 0 0 {0}
1 1 0 0 0 0 0 -{0}
"""
DUMP, LOG = (
    STEP.format(10) + STEP.format(20),
    "Step PotEng Press\n10 -6.5 0\n20 -6.25 1.0\nLoop time of 1 for 20 steps with 2 atoms\n",
)
NAMED = DUMP.replace("id type", "id element").replace("2 2 2", "2 Ni 2").replace("1 1 0", "1 Cu 0")
ENERGY, FORCES = GAP | {"key": "PotEng", "unit": "eV"}, FORCE | {"key": "forces", "unit": "eV/Angstrom"}
KCAL, REAL = 0.0433641043, {"units": "real"}  # eV
ENTHALPY, PER_ATOM = ENERGY | {"key": "Enthalpy"}, {"fields": [{"name": "c_pe", "on": "node", "unit": "eV"}]}
MASSES = DUMP.replace("type x", "type mass x").replace("2 2 2", "2 2 9 2").replace("1 1 0", "1 1 1 0")
COMPUTED = DUMP.replace("z fx", "z c_pe")
DUMPS: list[tuple[str, str, dict[str, Any], list[float] | str]] = [
    (DUMP, LOG, {}, [-6.5, -6.25, 1]),
    (DUMP.replace("\n", "\r\n"), LOG.replace("\n", "\r\n"), {}, [-6.5, -6.25, 1]),
    (DUMP, LOG, {"units": "real"}, [-6.5 * KCAL, -6.25 * KCAL, KCAL]),
    (DUMP, LOG + "Step PotEng\n20 -6.25\n", {}, [-6.5, -6.25, 1]),
    (NAMED, LOG, {"elements": []}, [-6.5, -6.25, 1]),
    (MASSES, LOG, {}, [-6.5, -6.25, 1]),
    (DUMP.replace("type x", "mass x"), LOG, {}, "step 10: elements = ['Cu', 'Ni'] does not fit its types"),
    (DUMP, LOG.replace("PotEng", "Enthalpy"), REAL | {"fields": [ENTHALPY, FORCES]}, [-6.5 * KCAL, -6.25 * KCAL, KCAL]),
    (
        DUMP,
        LOG,
        REAL | {"fields": [ENERGY | {"key": "v_e"}]},
        "v_e is as written, in units real, not in eV; give scale",
    ),
    (COMPUTED, LOG, REAL | PER_ATOM, "c_pe is as written, in units real, not in eV; give scale"),
    (COMPUTED, LOG, {"units": None} | PER_ATOM, "does not say its style of units"),
    (DUMP, "Step PotEng\n0 -1\n15 -2\n" + LOG, {}, "log.lammps has two runs with steps from 10 to 15"),
    (DUMP, "Step PotEng\n0 -1\n10 -6.5\n20 -6.25\n" + LOG, {}, [-6.5, -6.25, 1]),
    (
        DUMP,
        LOG,
        {"units": "real", "fields": [ENERGY | {"unit": "kcal/mol"}]},
        'PotEng is in eV, not kcal/mol; say unit = "eV"',
    ),
    (DUMP, LOG, {"units": None}, 'does not say its style of units; say units = "metal"'),
    (f"ITEM: UNITS\nreal\n{DUMP}", LOG, {}, 'is in units real; say units = "real"'),
    (DUMP, LOG, {"elements": []}, "has types of LAMMPS without their elements"),
    (DUMP, LOG, {"elements": ["Cu"]}, "step 10: elements = ['Cu'] does not fit its types"),
    (DUMP, LOG.replace("20 -6.25 1.0\n", ""), {}, "log.lammps has no PotEng at step 20 of the dump"),
    (DUMP, LOG + "Step PotEng\n20 -6.0\n", {}, "at step 20 of the dump, or several that differ"),
    (DUMP, LOG.replace("2 atoms", "500 atoms"), {}, "log.lammps is of 500 atoms, and the dump has 2 at step 10"),
    (DUMP, "thermo_modify norm yes\n" + LOG, {}, "log.lammps has energies per atom"),
    (DUMP, "thermo_modify lost warn & \n  norm on\n" + LOG, {}, "log.lammps has energies per atom"),
    (DUMP, "Step Press PotEng\n10 0 -6.5\n20 0 -6.25", {}, "log.lammps has no PotEng at step 20"),  # of -6.25731
    (DUMP, "  units         real\n" + LOG, {}, "log.lammps is in units real; say units"),
    (DUMP, LOG, {"log": "other.log"}, "other.log: no such file"),
    (DUMP + STEP.format(20), LOG, {}, "x.lammpstrj#1 and x.lammpstrj#2 are both of step 20"),
    (DUMP[:-1], LOG, {}, "x.lammpstrj was cut off or counts wrong"),
    (DUMP.replace("ITEM: TIMESTEP", "\nITEM: TIMESTEP") + "\n", LOG, {}, [-6.5, -6.25, 1]),
    (DUMP[:-18], LOG, {}, "x.lammpstrj was cut off or counts wrong"),
    (DUMP.replace("ATOMS\n2", f"ATOMS\n{10**15}", 1), LOG, {}, "x.lammpstrj was cut off or counts wrong"),
    (DUMP.replace("2 2 2", "1 2 2"), LOG, {}, "step 10: two atoms have one id"),
    (DUMP, LOG, {"fields": [GAP | {"key": "energy"}], "log": None}, "no energy for the field gap"),
]


@pytest.mark.parametrize(("dump", "log", "table", "right"), DUMPS)
def test_dumps_of_lammps_have_elements_units_and_energies(
    dump: str, log: str, table: dict[str, Any], right: list[float] | str, tmp_path: Path
) -> None:
    (tmp_path / "x.lammpstrj").write_text(dump)
    (tmp_path / "log.lammps").write_text(log)
    stated = {"elements": ["Cu", "Ni"], "units": "metal", "log": "log.lammps", "fields": [ENERGY, FORCES]}
    table = ATOMS | {"files": ["x.lammpstrj"]} | stated | table
    if isinstance(right, str):
        refused(tmp_path, right, **table)
        return
    graphs = built(tmp_path, **table)
    assert graphs["atomic_numbers"].tolist() == [29, 28] * 2 and graphs["gap"].tolist() == pytest.approx(right[:2])
    np.testing.assert_allclose(graphs["force"][:, 2], np.array([-10, 10, -20, 20]) * right[2], rtol=1e-5)


def test_a_prediction_needs_no_log_of_labels() -> None:
    settings = AseBuild.parse(ATOMS | {"files": ["a"], "log": "log.lammps", "fields": [ENERGY, FORCES]}, "BUILD.toml")
    assert [for_prediction(settings, names).log for names in (["force"], ["gap"])] == [None, "log.lammps"]
