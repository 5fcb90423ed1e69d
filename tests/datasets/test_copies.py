"""A structure that is written otherwise is a copy; frames of one trajectory are none."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.io import write

from hydragnn.base.errors import InputError
from hydragnn.base.shown import csv_cell, html_table, text_in_cell
from hydragnn.datasets import MemoryStore, SplitSettings, build_store, make_split, open_store
from hydragnn.datasets.copies import copy_labels, structure_labels
from hydragnn.datasets.disk import DiskStore
from hydragnn.datasets.sources.ase import AseBuild
from hydragnn.datasets.split import copies_across, sentence_on_files
from hydragnn.graphs import from_ase
from hydragnn.graphs.field import Field


def shaken(atoms: Atoms, size: float, seed: int = 0) -> Atoms:
    copy = atoms.copy()
    copy.positions += np.random.default_rng(seed).normal(0, size, copy.positions.shape)
    return copy


def slab() -> Atoms:
    atoms = fcc111("Cu", (4, 4, 4), vacuum=8.0)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    return atoms


STRUCTURES = {
    "metal": lambda: shaken(bulk("Cu", cubic=True).repeat((3, 2, 2)), 0.1),
    "salt": lambda: shaken(bulk("NaCl", "rocksalt", a=5.64, cubic=True), 0.05),
    "molecule": lambda: shaken(molecule("CH3CH2OH"), 0.05),
    "slab": slab,
    "alloy": lambda: shaken(bulk("AuCu", "cesiumchloride", a=3.1).repeat((2, 1, 1)), 0.05),
}


def wrapped(atoms: Atoms) -> Atoms:
    atoms.positions += np.random.default_rng(1).integers(-2, 3, (len(atoms), 3)) * atoms.pbc @ atoms.cell.array
    return atoms


def permuted(atoms: Atoms) -> Atoms:
    return atoms[np.random.default_rng(2).permutation(len(atoms))]


def shifted(atoms: Atoms) -> Atoms:
    atoms.translate([0.123, -4.56, 7.89])
    atoms.wrap()
    return atoms


def rounded(atoms: Atoms) -> Atoms:
    atoms.positions = np.round(atoms.positions, 4)
    return atoms


def turned(atoms: Atoms) -> Atoms:
    atoms.rotate(37.0, (1, 2, 3), rotate_cell=True)
    return atoms


def doubled(atoms: Atoms) -> Atoms:
    return atoms.repeat([2 if periodic else 1 for periodic in atoms.pbc])


def all_at_once(atoms: Atoms) -> Atoms:
    return rounded(turned(permuted(shifted(wrapped(doubled(atoms))))))


def store_of(structures: Sequence[Atoms]) -> MemoryStore:
    return MemoryStore([from_ase(atoms, 5.0) for atoms in structures], attributes={"cutoff": 5.0})


@pytest.mark.parametrize("change", [wrapped, permuted, shifted, rounded, turned, doubled, all_at_once])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_structure_written_otherwise_is_a_copy(kind: str, change: Callable[[Atoms], Atoms]) -> None:
    others = [make() for name, make in STRUCTURES.items() if name != kind]
    labels = structure_labels(store_of([STRUCTURES[kind](), *others, change(STRUCTURES[kind]())])).tolist()
    assert labels[0] == labels[-1]
    assert len({*labels}) == len(labels) - 1


@pytest.mark.parametrize("size", [0.01, 0.03])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_frames_of_a_trajectory_are_no_copies(kind: str, size: float) -> None:
    store = store_of([shaken(STRUCTURES[kind](), size, seed) for seed in range(30)])
    assert len({*structure_labels(store).tolist()}) == 30


def test_one_atom_elsewhere_is_another_structure() -> None:
    frames = [slab() for _ in range(6)]
    for number, atoms in enumerate(frames):
        atoms.positions[-1] += [0.02 * number, 0.0, 0.0]
    mixed = bulk("Cu", cubic=True).repeat(2)
    pairs = [mixed.copy(), mixed.copy(), bulk("Ag", a=3.61, cubic=True).repeat(2)]
    pairs[0].symbols[[0, 1]], pairs[1].symbols[[0, 31]] = "Ag", "Ag"
    assert len({*structure_labels(store_of([*frames, *pairs])).tolist()}) == 9


def test_equal_geometry_with_other_inputs_or_without_edges_is_no_copy() -> None:
    charge = Field(name="charge", on="graph", role="input")
    spins = Field(name="spin", on="node", role="input")
    graphs = []
    for number in range(4):
        atoms = permuted(molecule("H2O")) if number % 2 else molecule("H2O")
        atoms.info["charge"] = float(number // 2)
        atoms.arrays["spin"] = np.array([0.5 * (number == 3)] * 3)
        graphs.append(from_ase(atoms, 5.0, fields=[charge, spins]))
    labels = structure_labels(MemoryStore(graphs)).tolist()
    assert labels[0] == labels[1] and len({*labels}) == 3
    far = [Atoms("CuCu", [[0, 0, 0], [0, 0, length]]) for length in (7.0, 8.0, 9.0)]
    assert len({*structure_labels(store_of(far)).tolist()}) == 3


def test_a_split_keeps_copies_together_and_counts_those_that_are_parted() -> None:
    frames = [shaken(bulk("Cu", cubic=True), 0.1, seed) for seed in range(20)]
    store = store_of([*frames, *map(all_at_once, (atoms.copy() for atoms in frames))])
    assert len({*copy_labels(store).tolist()}) == 40
    random = SplitSettings(train=0.5, valid=0.25)
    assert copies_across(store, make_split(store, random)).count > 5
    together = make_split(store, SplitSettings(kind="group", field="duplicates", train=0.5, valid=0.25))
    assert copies_across(store, together).count == 0
    for part in (together.train, together.valid, together.test):
        assert {*(part % 20)} == {*part[part < 20]}


def test_copies_among_many_frames_are_found() -> None:
    frames = [shaken(bulk("Cu", cubic=True), 0.05, seed) for seed in range(300)]
    copies = [permuted(shifted(frames[number].copy())) for number in range(0, 300, 10)]
    store = store_of([*frames, *copies])
    assert len({*structure_labels(store).tolist()}) == 300


def trajectories(folder: Path, files: int, frames: int, texts: Sequence[str] = ()) -> DiskStore:
    for number in range(files):
        place = folder / ("first" if number % 2 else "second") / f"md-{number // 2}.xyz"
        place.parent.mkdir(exist_ok=True)
        path = [shaken(bulk("Cu", cubic=True), 0.05, 100 * number + frame) for frame in range(frames)]
        for frame, atoms in enumerate(path):
            atoms.info["id"], atoms.info["run"] = f"{number:03d}-{frame}", ("007", "7", "1e5", "T")[number % 4]
        write(place, path)
    build_store(AseBuild(files=[f"{folder}/*/*.xyz"], cutoff=3.0, texts=list(texts)), folder / "store.h5")
    return open_store(folder / "store.h5")


@pytest.mark.parametrize(("group", "count"), [("file", 8), ("folder", 2), ("run", 4)])
def test_graphs_of_a_file_a_folder_or_a_text_stay_together(group: str, count: int, tmp_path: Path) -> None:
    store = trajectories(tmp_path, 8, 3, ["run"])
    assert len({*store.texts[group]}) == count
    split = make_split(store, SplitSettings.parse({"group": group, "train": 0.5, "valid": 0.5}, "run.toml"))
    values = np.array(list(store.texts[group]))
    assert not {*values[split.train]} & {*values[split.valid]} and len(split.train) == 12


def test_a_group_that_no_graphs_share_is_refused_and_so_is_one_that_a_store_lacks(tmp_path: Path) -> None:
    store = trajectories(tmp_path, 4, 1, ["run"])
    for name in ("name", "file", "run"):
        with pytest.raises(InputError, match=f"split: {name} groups nothing, since no two graphs have the same"):
            make_split(store, SplitSettings(kind="group", field=name))
    with pytest.raises(InputError, match="the store has no field or text file"):
        make_split(store_of([bulk("Cu"), bulk("Ag")]), SplitSettings(kind="group", field="file"))
    numbers = Field(name="molecule", on="graph")
    atoms = [Atoms("Cu", info={"molecule": 2.0**24 + number // 2}) for number in range(4)]
    large = MemoryStore([from_ase(one, 3.0, fields=[numbers]) for one in atoms])
    with pytest.raises(InputError, match="numbers in molecule may have lost digits"):
        make_split(large, SplitSettings(kind="group", field="molecule"))


@pytest.mark.parametrize(("files", "frames", "noted"), [(2, 20, True), (8, 2, True), (1, 20, False), (12, 1, False)])
def test_a_random_split_of_few_files_gets_a_note(files: int, frames: int, noted: bool, tmp_path: Path) -> None:
    sentence = sentence_on_files(trajectories(tmp_path, files, frames))
    assert ('set split.group = "file"' in sentence) == noted


def test_what_turns_the_direction_of_text_is_written_out() -> None:
    for mark in "\u202e\u2066\u200f\u061c":
        assert csv_cell(f"a{mark}b") == f"a\\u{ord(mark):04x}b" and text_in_cell(csv_cell(f"a{mark}b")) == f"a{mark}b"
        assert mark not in html_table(mark, {mark: [mark]})
