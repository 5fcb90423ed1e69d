"""Frames of extended XYZ are what ASE reads, apart from names, texts and what it misunderstands."""

import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io.extxyz import read_xyz

from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.datasets.build import build_store
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.sources.ase import AseBuild
from hydragnn.datasets.sources.base import FEW, pieces_of
from hydragnn.graphs.extxyz import read_frame
from tests.refusals import refuses

ATOM = "C 0.5 -1e-3 +.25\n"
FRAMES = {
    "no comment": "1\n\n" + ATOM,
    "cell": '1\nLattice="4 0 0 0 5.5 0 0.1 0 6" energy=-1.5\n' + ATOM,
    "axes": '1\nLattice="4 0 0 0 5 0 0 0 6" pbc="T F T"\n' + ATOM,
    "axes as numbers": '1\nLattice="4 0 0 0 5 0 0 0 6" pbc="1 0 1"\n' + ATOM,
    "stress": '1\nLattice="4 0 0 0 5 0 0 0 6" stress="1 2 3 2 5 6 3 6 9.5" virial="1 2 3 4 5 6 7 8 9"\n' + ATOM,
    "words": '1\nname=mp-12 note="two words, 3" flag=T flags="T, F" uid=mp-7 count=3 list="1,2 3" key=1e-3\n' + ATOM,
    "columns": "2\nProperties=species:S:1:pos:R:3:forces:R:3:tag:I:1:site:S:1:charge:R:1:w:I:2\n"
    "o 0 0 0 1 2 3 -4 A1 0.5 1 2\r\nH  1 0 0 4 5 6 7 B 0.25 3 4",
    "whole results": '1\nProperties=species:S:1:pos:R:3:magmoms:I:1 energy=3 dipole="1 2 3"\nC 0 0 0 2\n',
    "commas at ends": '1\na=T, b=",T" c=T,F, d=1, e=",1.5," f="T,,F" g="x,"\n' + ATOM,
    "twice": "1\nenergy=1.0 energy=2.0\n" + ATOM,
    "escaped quote": '1\nnote="a \\"b\\" c"\n' + ATOM,
    "brackets": "1\nlist=[1, 2] other={3 4}\n" + ATOM,
    "single quotes": "1\nnote='a b'\n" + ATOM,
    "bare word": "1\nfree energy=1\n" + ATOM,
    "spaces around": "1\nenergy = 1.0\n" + ATOM,
    "commas alone": '1\nx=","\n' + ATOM,
    "JSON": '1\nx="_JSON true"\n' + ATOM,
    "not a number": "1\nenergy=nan\n" + ATOM,
    "too many columns": "1\nenergy=1.0\nC 0 0 0 9\n",
    "numbers of elements": "1\nProperties=Z:I:1:pos:R:3\n6 0 0 0\n",
    "truth": "1\nProperties=species:S:1:pos:R:3:fixed:L:1\nC 0 0 0 T\n",
    "vectors": "1\ncomment\nC 0 0 0\nVEC1 4 0 0\nVEC2 0 4 0\nVEC3 0 0 4\n",
}


def built(folder: Path, **more: Any) -> DiskStore:
    build_store(AseBuild(files=[str(folder / "a.xyz")], cutoff=3.0, **more), folder / "store.h5")
    return open_store(folder / "store.h5")


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_what_ase_reads(kind: str) -> None:
    text = FRAMES[kind]
    ours, theirs = read_frame(text), next(read_xyz(StringIO(text), 0))
    assert ours == theirs
    for one, other in ((ours.info, theirs.info), (ours.arrays, theirs.arrays)):
        assert list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        assert all(one[key].dtype == other[key].dtype for key in one if isinstance(one[key], np.ndarray))
    results, expected = (getattr(atoms.calc, "results", {}) for atoms in (ours, theirs))
    assert list(results) == list(expected) and all(same(results[key], expected[key]) for key in results)
    assert all(np.asarray(results[key]).dtype == np.asarray(expected[key]).dtype for key in results)


NAMES = ("010", "10", "T", "1e5", "1_000", "1.10", "nan", "inf", "TRUE", "_", "+7", "١٢", "-0", "9" * 30, "a  b", "7 8")


@pytest.mark.parametrize("form", ['{key}="{text}"', "note=[1,2] {key}='{text}'", "free {key} = {{{text}}}"])
@pytest.mark.parametrize("text", NAMES)
def test_names_and_texts_are_the_letters_of_the_file(text: str, form: str) -> None:
    for key in ("id", "name", "uid", "group"):
        frame = "1\n" + form.format(key=key, text=text) + "\n" + ATOM
        assert read_frame(frame, ["group"]).info[key] == text
    assert read_frame(f"1\nrun=007 x=7 y=1.10 z=T\n{ATOM}").info == {"run": "007", "x": 7, "y": 1.1, "z": True}


@pytest.mark.parametrize("index", [":", "::1", "0:"])
def test_a_name_that_is_a_field_too_is_both(index: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(f"1\nid=010 run=007\n{ATOM}1\nid=1.10 run=7\n{ATOM}")
    fields = [{"name": name, "on": "graph", "key": key} for name, key in (("number", "id"), ("run_number", "run"))]
    store = built(tmp_path, fields=fields, texts=["run"], index=index)
    assert list(store.texts["name"]) == ["010", "1.10"] and list(store.texts["run"]) == ["007", "7"]
    batch = store.read([0, 1])
    assert np.allclose(batch["number"], [10.0, 1.1]) and batch["run_number"].tolist() == [7.0, 7.0]


TRUTH, GOOD = "T T T T T T T T T", "2\n\nC 0 0 0\nC 0 0 1.2\n"
WRONG = [
    (f'1\nstress="{TRUTH}"\n{ATOM}', "structure 1 cannot be read.*ValueError.*stress"),
    (f'1\nvirial="{TRUTH}"\n{ATOM}', "structure 1 cannot be read.*ValueError.*virial"),
    (f'1\nLattice="{TRUTH}"\n{ATOM}', "structure 1 cannot be read.*ValueError.*Lattice"),
    ("2\n\nC 0 0 0\nC 0 0\n", "structure 1 cannot be read"),
    ("2\n\nC 0 0 0\nC 0 0 x\n", "structure 1 cannot be read"),
    ("2\n\nC 0 0 0\nQq 0 0 2\n", "structure 1 has an atom 'Qq', which is no chemical symbol"),
    ("2\n\nC 0 0 0\nC 0 0 0\n", "a.xyz, structure 1: nodes 0 and 1 are 0 apart"),
]


@pytest.mark.parametrize(("rows", "sentence"), WRONG)
def test_a_fault_among_many_frames_names_file_and_frame(rows: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(GOOD + rows + GOOD)
    refuses(sentence, built, tmp_path)
    assert not (tmp_path / "store.h5").exists()
    (tmp_path / "a.xyz").write_text(3 * GOOD)
    assert list(built(tmp_path).texts["name"]) == ["a.xyz#0", "a.xyz#1", "a.xyz#2"]


def test_one_fault_among_many_frames_leaves_the_others_together(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(70 * GOOD + "2\n\nC 0 0 0\nC 0 0 0\n" + 57 * GOOD)
    pieces = [*pieces_of([*AseBuild(files=[str(tmp_path / "a.xyz")], cutoff=3.0).makers()])]
    assert sum(len(makers) for makers, _ in pieces) == 128
    ((alone, _),) = [(makers, batch) for makers, batch in pieces if batch is None]
    assert len(alone) <= FEW
    with pytest.raises(InputError, match="structure 70: nodes 0 and 1"):
        [make() for make in alone]


BOX = 'Lattice="5 0 0 0 5 0 0 0 5"'


@pytest.mark.parametrize("pbc", ["F", '"F F F"', '"False False False"', "[F, F, F]", '"0 0 0"', "false"])
def test_flags_in_every_usual_form_are_understood(pbc: str) -> None:
    assert not read_frame(f"1\n{BOX} pbc={pbc}\n{ATOM}").pbc.any()


FLAGS = ('"[F, F, F]"', "FFF", '".F. .F. .F."', "no", '"2 0 0"', "[[F,F,F]]")
COLUMNS = ("f:R:99999999999", "f:R:60000:g:R:60000", "a:S:1:f:I:1000000", "f:L:100001")
HALVES = "0.1 0.02 0 {} 0.1 0 0 0 0.1"
NO_FRAME = {
    **{f"{BOX} pbc={flags}": "is not one flag per axis" for flags in FLAGS},
    'PBC="F F F"': "has no meaning; write pbc",
    'lattice="5 0 0 0 5 0 0 0 5"': "has no meaning; write Lattice",
    **{f"Properties=species:S:1:pos:R:3:{columns}": "more than 100,000 columns" for columns in COLUMNS},
    f"{BOX} Properties=pos:R:3": "atoms have 4 columns, and Properties names 3",
    f'{BOX} note= pbc="F F F"': "note= has no value, and would take pbc=",  # a molecule would be periodic
    f'{BOX} pbc=F pbc="F F T"': "pbc stands twice, as F and F F T; keep one",
    f'{BOX} Lattice="9 0 0 0 9 0 0 0 9"': "Lattice stands twice",
    f"{BOX} note= energy=1": "note= has no value, and would take energy=1 for it",
    f'{BOX} stress="{HALVES.format(0.03)}"': "stress is no symmetric tensor",  # ASE takes one half
    f"{BOX} stress={{{HALVES.format(0.03)}}}": "stress is no symmetric tensor",
}


@pytest.mark.parametrize(("comment", "sentence"), NO_FRAME.items())
def test_what_would_be_read_as_something_else_is_refused(comment: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_frame(f"1\n{comment}\n{ATOM}")


def test_an_atom_with_a_column_too_many_is_refused_wherever_it_stands() -> None:
    with pytest.raises(ValueError, match="atoms have 5 columns, and Properties names 4"):
        read_frame(f"2\n{BOX} Properties=species:S:1:pos:R:3\n{ATOM}Cu 1 0.5 0.5 0.5\n")  # Cu 1 may be a label


def test_what_only_looks_so_is_read() -> None:
    assert read_frame(f'1\nnote="a= b=c" smiles=C=C pbc=F energy= 2\n{ATOM}').info == {
        "note": "a= b=c",
        "smiles": "C=C",
    }
    assert read_frame(f"1\n{BOX} pbc=F energy=1 lattice=fcc\n{ATOM}").info == {"lattice": "fcc"}
    assert len(read_frame(f"1\nlattice of copper\n{ATOM}")) == 1
    nearly = read_frame(f'1\n{BOX} stress="{HALVES.format(0.020001)}"\n{ATOM}')
    assert nearly.calc.results["stress"][5] == 0.020001
    assert len(read_frame(f'1\n{BOX} stress="{" ".join(["nan"] * 9)}"\n{ATOM}')) == 1


@pytest.mark.parametrize("rest", ["b" * 10**5, "[" * 10**5 + "]" * 10**5, "a" + " " * 10**5 + "b", "9." * 10**5])
def test_a_line_without_end_takes_time_as_its_length(rest: str) -> None:
    start = time.process_time()
    assert read_frame(f"1\nenergy=1 id=007 x={rest} {rest}\n{ATOM}").info["id"] == "007"
    assert time.process_time() - start < 10
