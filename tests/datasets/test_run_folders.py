"""Layouts of calculations and competitions: folders, databases, frames of one molecule."""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.db import connect

from hydragnn.datasets.merging import merge_stores
from hydragnn.datasets.tools import store_info
from hydragnn.graphs.calculation_files import FAILURES, converged_steps
from hydragnn.graphs.structure_files import structures_of
from tests.datasets.conftest import built, refused

VASP = Path(ase.__file__).parent / "test" / "testdata" / "vasp"
ENERGY = {"name": "energy", "on": "graph", "role": "target"}
GAP = {"name": "gap", "on": "graph", "role": "target"}
ASE: dict[str, Any] = {"kind": "ase", "cutoff": 3.0}
OSZICAR = (
    "DAV:   1   -0.1E+02\n   1 F= -.75E+01 E0= -.75E+01  d E =-.1E-1\n   2 F= -.75001E+01 E0= -.7501E+01  d E =-.1E-3\n"
)
SLOW = OSZICAR.replace("   2 F", "RMM:  60   -0.75E+01\n   2 F")
GAUSSIAN = """ Entering Gaussian System, Link 0=g16
 Gaussian 16:  ES64L-G16RevA.03 25-Dec-2016
 ----------
 # b3lyp/6-31g*
 ----------

                         Standard orientation:
 ----------
 Center     Atomic      Atomic             Coordinates (Angstroms)
 Number     Number       Type             X           Y           Z
 ----------
      1         29           0        0.000000    0.000000    0.117176
      2         29           0        0.000000    2.557005   -0.468706
 ----------
 SCF Done:  E(RB3LYP) =  -1.0     A.U. after  129 cycles
"""
COMPETITION = "id,number_of_atoms,gap\n" + "".join(f"{number},1,{number / 4}\n" for number in (1, 2, 10))


CHARGE, DENSITY = {"name": "charge", "on": "node"}, {"name": "density", "on": "graph", "shape": [2]}
DATA = {"density": [0.5, 1.5], "ragged": [[1], [2, 3]]}


def steps_of_vasp(at: Path) -> None:
    """Write runs of three steps, the second of which has as many iterations as NELM."""
    text = (VASP / "vasprun_pstress.xml").read_text()
    head, step, tail = re.split("( <calculation>.*</calculation>\n)", text, flags=re.DOTALL)
    most = step.count("<scstep>")
    head = re.sub(r'name="NELM">.*?<', f'name="NELM">{most:6d}<', head)
    good = re.sub(r"  <scstep>.*?</scstep>\n", "", step, count=1, flags=re.DOTALL)
    (at / "vasprun.xml").write_text(head + good + step + good + tail)
    text = (VASP / "OUTCAR_example_1").read_text()
    head, step = re.split(r"(?=^-+ Iteration +1\( +1\))", text, maxsplit=1, flags=re.MULTILINE)
    last = max(map(int, re.findall(r"Iteration +1\( *(\d+)\)", step)))
    head = re.sub(r"NELM   = +\d+", f"NELM   = {last:6d}", head)
    ended = re.search(r"^-.*aborting loop.*$", step, re.MULTILINE)[0]
    (at / "OUTCAR").write_text(head + step + step.replace(ended, "") + step)
    (at / "OUTCAR6").write_text(head + step + step.replace("because EDIFF is", "EDIFF was not") + step)


@pytest.mark.parametrize("file", ["vasprun.xml", "OUTCAR", "OUTCAR6", "OUTCAR.gz"])
def test_steps_of_vasp_that_did_not_converge_are_left_out(file: str, tmp_path: Path) -> None:
    steps_of_vasp(tmp_path)
    if file.endswith(".gz"):
        (tmp_path / file).write_bytes(gzip.compress((tmp_path / file[:-3]).read_bytes()))
    table = {**ASE, "files": [file], "fields": [ENERGY]}
    for index, some in {":": [0, 2], "-2:": [-1]}.items():
        graphs = built(tmp_path, f"steps{index[:1]}.h5", **table, index=index)
        assert list(graphs.texts["name"]) == [f"{file}#{number}" for number in some], index
    refused(tmp_path, f"{file} has no structure, or no finished step whose electrons converged", **table, index="1")
    graphs = built(tmp_path, **table | {"fields": [ENERGY | {"optional": True}]})
    assert graphs.present("energy").tolist() == [True, False, True]  # as when predicting, its structure is good
    assert (
        store_info(tmp_path / "steps:.h5").notes[0]
        == f"steps whose electrons did not converge are left out: 1, namely {file}#1"
    )
    merge_stores([tmp_path / "steps:.h5", tmp_path / "steps-.h5"], tmp_path / "both.h5")
    assert [note[-2:] for note in store_info(tmp_path / "both.h5").notes[:2]] == ["#1", "-2"]


def test_positions_beyond_those_that_a_poscar_counts_are_refused(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a.vasp", bulk("Cu", cubic=True), format="vasp", direct=True)
    text = (tmp_path / "a.vasp").read_text()
    for velocities in ("", " \n" + 4 * "  0.1 0.2 0.3\n", "Cartesian\n" + 4 * "  0.1 0.2 0.3\n"):
        (tmp_path / "a.vasp").write_text(text + velocities)
        assert len(built(tmp_path, **ASE, files=["a.vasp"], fields=[]).positions) == 4
    (tmp_path / "b.vasp").write_text(text.replace("\n   4\n", "\n   3\n"))
    refused(tmp_path, "b.vasp: line 12 has a position beyond the 3", **ASE, files=["b.vasp"], fields=[])


def test_a_damaged_file_beside_an_outcar_is_the_one_that_is_named(tmp_path: Path) -> None:
    shutil.copy(VASP / "OUTCAR_example_1", tmp_path / "OUTCAR")
    (tmp_path / "CONTCAR").write_text("Cut\n1.0\n 1 0 0\n 0 1")
    words = f"since {tmp_path / 'CONTCAR'} beside it is damaged; repair or remove"
    refused(tmp_path, words, **ASE, files=["OUTCAR"], fields=[ENERGY])
    (tmp_path / "CONTCAR").unlink()
    assert len(built(tmp_path, **ASE, files=["OUTCAR"], fields=[ENERGY])) == 1


@pytest.mark.parametrize(("start", "converged"), [("0", False), ("1", True)])
@pytest.mark.parametrize("file", ["vasprun.xml", "OUTCAR"])
def test_one_iteration_is_enough_with_orbitals_of_another_run(
    file: str, start: str, converged: bool, tmp_path: Path
) -> None:
    text = (VASP / {"OUTCAR": "OUTCAR_example_1"}.get(file, "vasprun_pstress.xml")).read_text()
    text = re.sub(r'((NELM|ISTART)(">| +=) *)\d+', lambda mark: mark[1] + {"NELM": "1"}.get(mark[2], start), text)
    one = re.findall(r"  <scstep>.*?</scstep>\n", text, re.DOTALL)
    text = re.sub(r"Iteration +1\( *\d+\)", "Iteration 1( 1)", text)
    for more in one[1:]:
        text = text.replace(more, "")
    (tmp_path / file).write_text(text.replace("aborting loop because EDIFF is", "aborting loop EDIFF was not"))
    assert converged_steps(tmp_path / file, {"OUTCAR": "vasp-out"}.get(file, "vasp-xml"))[0] is converged


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_outputs_that_say_that_electrons_did_not_converge_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run.out").write_bytes(b"SCF\n  *** " + FAILURES[kind] + b" after 100 cycles\n")
    refused(
        tmp_path, f"run.out says {FAILURES[kind].decode()!r}", **ASE, files=["run.out"], fields=[ENERGY], format=kind
    )


def test_a_structure_whose_electrons_did_not_converge_is_predicted(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(GAUSSIAN)
    table = {**ASE, "files": ["run.log"], "fields": [ENERGY]}
    whole = [atoms.calc.results["energy"] for atoms in structures_of(tmp_path / "run.log")]
    (tmp_path / "run.log").write_text(f"{GAUSSIAN} {FAILURES['gaussian-out'].decode()}.\n")
    (atoms,) = structures_of(tmp_path / "run.log")
    assert whole == pytest.approx([-27.2114], abs=1e-3) and atoms.calc is None and len(atoms) == 2
    refused(tmp_path, "run.log says", **table)


DIPOLE = " Dipole moment (field-independent basis, Debye):\n    X=              0.5    Y=              0.0    Z=   0.0  Tot= 0\n"
AXES: list[tuple[str, str, str | None]] = [
    ("forces", GAUSSIAN, "run.log has the forces along other axes than its positions; run it with nosymm"),
    ("forces", GAUSSIAN.replace("Standard", "Input"), None),
    ("forces", GAUSSIAN.replace("Standard", "Input").replace(" SCF", " Standard orientation:\n SCF"), None),
    ("dipole", GAUSSIAN + DIPOLE, None),
    (
        "dipole",
        GAUSSIAN.replace("Standard", "Input").replace(" SCF", " Standard orientation:\n SCF") + DIPOLE,
        "the dipole",
    ),
]


@pytest.mark.parametrize(("key", "text", "words"), AXES)
def test_vectors_of_gaussian_are_along_the_axes_of_positions(
    key: str, text: str, words: str | None, tmp_path: Path
) -> None:
    forces = "".join(f"      {number}       29      0.1   0.2   0.3\n" for number in (1, 2))
    (tmp_path / "run.log").write_text(f"{text} Center     Atomic      Forces (Hartrees/Bohr)\n -\n -\n{forces} -\n")
    field = {"name": key, "on": "node" if key == "forces" else "graph", "shape": [3], "role": "target"}
    table = {**ASE, "files": ["run.log"], "fields": [field]}
    if words:
        refused(tmp_path, words, **table)
    else:
        assert len(built(tmp_path, **table)) == 1


@pytest.mark.parametrize("file", ["vasprun.xml", "OUTCAR"])
def test_steps_of_force_fields_of_vasp_are_refused(file: str, tmp_path: Path) -> None:
    steps_of_vasp(tmp_path)
    text = (tmp_path / file).read_text()
    text = re.sub(r"  <scstep>.*?</scstep>\n", "", text, flags=re.DOTALL)
    (tmp_path / file).write_text(text.replace("free  energy   TOTEN", "free  energy ML TOTEN"))
    refused(tmp_path, f"{file} has steps without electronic iterations", **ASE, files=[file], fields=[ENERGY])


def test_the_end_of_a_response_is_not_that_of_the_next_step(tmp_path: Path) -> None:
    steps_of_vasp(tmp_path)
    text = (tmp_path / "OUTCAR").read_text()
    ended = re.search(r"^-.*aborting loop.*\n", text, re.MULTILINE)[0]
    (tmp_path / "OUTCAR").write_text(re.sub(r"(free  energy   TOTEN .*\n\n.*\n)", rf"\1{ended}", text))
    assert converged_steps(tmp_path / "OUTCAR", "vasp-out") == [True, False, True]


def database(path: Path, *more: Any) -> None:
    """Write four molecules with pairs and data, and more of them."""
    both = {"sites": 5, **DATA}  # differs and is not read
    rows = [
        ({"gap": k / 2, "code": f"m{k}", "sites": 4}, {"charge": np.array([k, -1.0]), "gap": k / 2, **both})
        for k in range(4)
    ]
    with connect(path) as store:
        for pairs, data in [*rows, *more]:
            store.write(Atoms("H2", [[0, 0, 0], [0, 0, 0.7]]), key_value_pairs=pairs, data=data)


def crystals(folder: Path) -> None:
    """Write folders of one structure each, and tables of labels."""
    for number in (1, 2, 10):
        place = folder / "calc" / str(number)
        place.mkdir(parents=True)
        ase.io.write(place / "CONTCAR", bulk("Cu", a=3.5 + number / 50), format="vasp")
        (place / "OSZICAR").write_text(OSZICAR)
        shutil.copy(VASP / "vasprun_pstress.xml", place / "vasprun.xml")
        shutil.copy(VASP / "OUTCAR_example_1", place / "OUTCAR")
    (folder / "labels.csv").write_text(COMPETITION)
    (folder / "paths.csv").write_text("file,gap\ncalc/1/CONTCAR,1\ncalc/10/CONTCAR,2\n")


FOLDERS: list[tuple[dict[str, Any], list[float]]] = [
    ({"files": ["calc/*/vasprun.xml"], "fields": [ENERGY]}, [-20.24720095] * 3),
    ({"files": ["calc/*/OUTCAR"], "fields": [ENERGY]}, [-68.23102426] * 3),
    ({"files": ["calc/*/CONTCAR"], "fields": [ENERGY]}, [-7.501] * 3),
    ({"files": ["calc/*/CONTCAR"], "fields": [GAP], "labels": "labels.csv"}, [0.25, 2.5, 0.5]),
    ({"files": ["calc/1*/CONTCAR"], "fields": [GAP], "labels": "paths.csv"}, [1.0, 2.0]),
]


def test_iterations_below_nelm_of_an_incar_are_converged(tmp_path: Path) -> None:
    crystals(tmp_path)
    (tmp_path / "calc/2/OSZICAR").write_text(SLOW)
    (tmp_path / "calc/2/INCAR").write_text(" ENCUT = 400; NELM  = 100 ; EDIFF = 1E-6\n")
    assert len(built(tmp_path, **ASE, **FOLDERS[2][0])) == 3


@pytest.mark.parametrize(("table", "values"), FOLDERS)
def test_a_folder_for_each_structure(table: dict[str, Any], values: list[float], tmp_path: Path) -> None:
    crystals(tmp_path)
    graphs = built(tmp_path, **ASE, **table)
    (field,) = table["fields"]
    np.testing.assert_allclose(graphs[field["name"]], values)
    assert list(graphs.texts["folder"]) == ["1", "10", "2"][: len(values)]
    assert list(graphs.texts["file"]) == [f"{one}/{Path(table['files'][0]).name}" for one in graphs.texts["folder"]]


def test_a_folder_and_a_link_to_it_have_one_name(tmp_path: Path) -> None:
    crystals(tmp_path)
    (tmp_path / "link").symlink_to("calc")
    graphs = built(tmp_path, **ASE, files=["calc/1/CONTCAR", "link/1/CONTCAR", "link/2/CONTCAR"], fields=[ENERGY])
    assert list(graphs.texts["folder"]) == ["1", "1", "2"]


def put(file: str, text: str | int) -> Callable[[Path], Any]:
    """Write a text, or keep so many letters of a file."""
    return lambda at: (at / file).write_text((at / file).read_text()[:text] if isinstance(text, int) else text)


XML, OUTCAR, CONTCAR = (
    {"files": [f"calc/*/{name}"], "fields": [ENERGY]} for name in ("vasprun.xml", "OUTCAR", "CONTCAR")
)
LABELS = {**CONTCAR, "fields": [GAP], "labels": "labels.csv"}
PAIRS = {"files": ["all.db"], "fields": [GAP]}
WRONG: list[tuple[Callable[[Path], Any], dict[str, Any], str]] = [
    (put("calc/2/vasprun.xml", 30000), XML, "calc/2/vasprun.xml is no complete XML (no element"),
    (put("calc/2/OUTCAR", 60000), OUTCAR, "calc/2/OUTCAR has no structure, or no finished step"),
    (put("calc/2/CONTCAR", 100), CONTCAR, "calc/2/CONTCAR: structure 0 cannot be read by ASE"),
    (lambda at: (at / "calc/2/OSZICAR").unlink(), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (put("calc/2/OSZICAR", OSZICAR.index("   2 F")), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (put("calc/2/OSZICAR", f"{OSZICAR} 3 F= *** E0= *** d E\n"), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (put("calc/2/OSZICAR", 44), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (put("calc/2/OSZICAR", "1 T= 300. E= -1 F= -1 E0= -1\n"), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (put("calc/2/OSZICAR", f"{OSZICAR} 3 F= -.9E+1 E0= -.9E+1 d E\n"), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (str, {**XML, "fields": [ENERGY | {"unit": "Ha"}]}, "energy is in eV, not Ha"),
    (put("calc/2/OSZICAR", SLOW), CONTCAR, "2/CONTCAR, structure 0: no energy"),
    (str, {**XML, "files": ["calc"]}, "calc is a folder; name the files of such folders, as in calc/*/vasprun.xml"),
    (str, {**XML, "files": ["calc/*"]}, "calc/1 is a folder; name the files of such folders"),
    (put("labels.csv", COMPETITION[:-9]), LABELS, "no row whose column id is 10/CONTCAR"),
    (put("labels.csv", f"{COMPETITION}2,1,1\n"), LABELS, "several rows whose column id is 2; keep one"),
    (put("labels.csv", COMPETITION.replace("gap", "gapp")), LABELS, "labels.csv has none of gap"),
    (put("labels.csv", "file,gap\nCONTCAR,1\n"), LABELS, "1/CONTCAR and 10/CONTCAR are both CONTCAR"),
    (lambda at: shutil.copytree(at / "calc", at / "x"), {**LABELS, "files": ["*/*/CONTCAR"]}, "are both 1,"),
    (lambda at: database(at / "all.db", ({}, {})), PAIRS, "all.db, structure 4: no gap for the field gap"),
    (lambda at: database(at / "all.db", ({"gap": 1}, {"gap": 2})), PAIRS, "row 5 has gap as a key-value pair and"),
    (lambda at: database(at / "all.db", ({"gap": "wide"}, {})), PAIRS, "texts such as 'wide' are not numbers"),
]


@pytest.mark.parametrize(("spoil", "table", "words"), WRONG)
def test_a_folder_that_is_wrong_gets_a_sentence(
    spoil: Callable[[Path], Any], table: dict[str, Any], words: str, tmp_path: Path
) -> None:
    crystals(tmp_path)
    spoil(tmp_path)
    refused(tmp_path, words, **ASE, **table)


@pytest.mark.parametrize("suffix", ["db", "json"])
@pytest.mark.parametrize(("index", "numbers"), [(":", [0, 1, 2, 3]), ("1::2", [1, 3]), ("-1", [3])])
def test_databases_of_ase_bring_pairs_and_data(suffix: str, index: str, numbers: list[int], tmp_path: Path) -> None:
    database(tmp_path / f"all.{suffix}")
    table = {"files": [f"all.{suffix}"], "fields": [GAP, CHARGE, DENSITY], "texts": ["code"], "index": index}
    graphs = built(tmp_path, **ASE, **table)
    assert graphs["gap"].tolist() == [k / 2 for k in numbers] and graphs["charge"][::2].tolist() == numbers
    assert list(graphs.texts["code"]) == [f"m{k}" for k in numbers] and graphs["density"][0].tolist() == [0.5, 1.5]


@pytest.mark.parametrize("names", [("coords", "nuclear_charges", "energies", "forces"), ("R", "z", "E", "F")])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_frames_of_one_molecule_share_its_elements(names: tuple[str, ...], count: int, tmp_path: Path) -> None:
    places = np.array([[0, 0, 0], [1, 0, 0.2]]) + np.arange(count)[:, None, None] / 50
    arrays = [places, np.array([8, 1], dtype=np.uint8), np.arange(float(count))[:, None], places + 0.5]
    fields = [
        {"name": "atomic_numbers", "key": names[1], "on": "node", "classes": 119, "dtype": "int64"},
        {**ENERGY, "key": names[2]},
        {"name": "forces", "key": names[3], "on": "node", "shape": [3]},
    ]
    table = {"kind": "npz", "files": ["m.npz"], "positions": names[0], "cutoff": 2.0, "fields": fields}
    np.savez(tmp_path / "m.npz", **dict(zip(names, arrays)), theory=np.array("PBE"))
    graphs = built(tmp_path, **table)
    assert graphs["atomic_numbers"].tolist() == [8, 1] * count and graphs["energy"].tolist() == [*range(count)]
    np.testing.assert_allclose(graphs["forces"], graphs.positions + 0.5)
    for words, values in {
        "3 rows for 2 nodes": [places, np.array([8, 1, 1]), *arrays[2:]],
        "arrays of different lengths": [places.reshape(-1, 3), np.ones(2 * count + 7, int), *arrays[2:]],
    }.items():
        np.savez(tmp_path / "m.npz", **dict(zip(names, values)))
        refused(tmp_path, words, **table)


@pytest.mark.parametrize(
    ("length", "energy", "words"),
    [
        ("Ang", "kcal/mol", ""),
        ("Ang", "", ""),
        ("Ang", "unknown", ""),
        (
            "bohr",
            "kcal/mol",
            'F is in kcal/mol/bohr, not kcal/mol/Angstrom; say unit = "kcal/mol/bohr", or scale = 1.88',
        ),
        ("au", "", "R is in bohr, not Angstrom; write [attributes] length_unit = 'bohr'"),
        ("Ang", "eV", 'E is in eV, not kcal/mol; say unit = "eV", or scale = 23.06'),
        ("Ang", "au", "E is in Ha, not kcal/mol"),
    ],
)
def test_units_that_an_npz_file_states_are_those_of_its_fields(
    length: str, energy: str, words: str, tmp_path: Path
) -> None:
    arrays = {"R": np.eye(3)[None], "z": np.ones(3, int), "E": np.ones(1), "F": np.ones((1, 3, 3))}
    np.savez(tmp_path / "m.npz", r_unit=np.array(length), e_unit=np.array(energy), **arrays)
    forces = {"name": "forces", "key": "F", "on": "node", "shape": [3], "unit": "kcal/mol/Angstrom"}
    table = {"kind": "npz", "files": ["m.npz"], "positions": "R", "cutoff": 2.0}
    table["fields"] = [ENERGY | {"key": "E", "unit": "kcal/mol"}, forces]
    if words:
        refused(tmp_path, words, **table)
    else:
        assert len(built(tmp_path, **table)) == 1
