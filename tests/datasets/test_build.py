"""Stores from files of other programs: what goes in comes out, and what cannot go in is named."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.io
import meshio
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.formats import open_with_compression

from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, build_store, open_store, read_build_settings, store_info
from hydragnn.datasets.build import makers_of
from hydragnn.datasets.manifest import transform_of
from hydragnn.datasets.merging import append_store, merge_stores
from hydragnn.datasets.sources.base import made_together
from hydragnn.datasets.sources.registry import for_prediction, settings_of_rule
from hydragnn.graphs import GraphBatch, edge_vectors, from_mesh, graph_from_arrays, with_encodings
from hydragnn.graphs.atomic import from_ase
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.pyg import torch_geometric
from tests.datasets.conftest import built as new_store
from tests.datasets.conftest import refused
from tests.refusals import refuses

ENERGY = {"name": "energy", "on": "graph", "unit": "eV", "role": "target", "dtype": "float64"}
FORCES = {"name": "forces", "on": "node", "shape": [3], "parity": "vector", "unit": "eV/Angstrom", "role": "target"}
STRESS = {"name": "stress", "on": "graph", "shape": [3, 3], "parity": "tensor", "role": "target"}
VIRIAL = {**STRESS, "key": "virial", "convert": "virial"}


def table_of(kind: str, file: str = "a", *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": kind, "files": [file], "fields": [*fields], **more}


def ase_table(*fields: dict[str, Any], file: str = "a.xyz", **more: Any) -> dict[str, Any]:
    return table_of("ase", file, *fields, **{"cutoff": 3.0, **more})


def built(folder: Path, **table: Any) -> GraphBatch:
    """Return all graphs of a store that takes the place of an earlier one."""
    shutil.rmtree(folder / "out.h5", ignore_errors=True)
    return new_store(folder, "out.h5", **table)


def structures(count: int = 5) -> list[Atoms]:
    rng = np.random.default_rng(0)
    crystals = []
    for number in range(count):
        atoms = bulk("Cu", "fcc", a=3.6) * (1 + number % 2, 1, 1)
        atoms.rattle(0.05, seed=number)
        forces, stress = rng.standard_normal((len(atoms), 3)), rng.standard_normal(6)
        atoms.calc = SinglePointCalculator(atoms, energy=float(number), forces=forces, stress=stress)
        crystals.append(atoms)
    return crystals


@pytest.mark.parametrize("name", ["structures.xyz", "structures.xyz.gz", "structures.traj"])
def test_atoms_come_from_any_format_of_ase(name: str, tmp_path: Path) -> None:
    originals = structures()
    ase.io.write(tmp_path / name, originals)
    actual = built(tmp_path, **ase_table(ENERGY, FORCES, file=name, cutoff=4.0))
    assert actual["energy"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    forces = np.concatenate([atoms.get_forces() for atoms in originals])
    np.testing.assert_allclose(actual["forces"], forces, atol=1e-6)
    assert actual.counts("edge")[3] == from_ase(originals[3], 4.0).num_edges


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS pp pp pp
0 4
0 4
0 4
ITEM: ATOMS id type {column}x y z
1 1 {first}0 0 0
2 2 {second}2 2 2
"""


def lammps(path: Path, elements: bool) -> None:
    if path.suffix == ".lammps-data":
        ase.io.write(path, bulk("Cu", cubic=True), masses=elements)
        return
    column, first, second = ("element ", "Cu ", "Ni ") if elements else ("", "", "")
    with open_with_compression(str(path), "w") as file:
        file.write(DUMP.format(column=column, first=first, second=second))


@pytest.mark.parametrize(
    ("name", "numbers"), [("dump.lammpstrj", [29, 28]), ("dump.lammpstrj.gz", [29, 28]), ("cell.lammps-data", [29] * 4)]
)
def test_types_of_lammps_are_not_taken_for_elements(name: str, numbers: list[int], tmp_path: Path) -> None:
    lammps(tmp_path / name, elements=False)
    words = f"{name} has types of LAMMPS without their elements, and ASE would read type 1 as H"
    refused(tmp_path, words, **ase_table(file=name, cutoff=4.0))
    lammps(tmp_path / name, elements=True)
    assert built(tmp_path, **ase_table(file=name, cutoff=4.0))["atomic_numbers"].tolist() == numbers


def test_keys_scales_and_optional_fields_of_atoms(tmp_path: Path) -> None:
    first, second = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]]), Atoms("H", [[0, 0, 0]])
    first.info |= {"total_energy_mev": 1500.0, "virial_kbar": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
    second.info["total_energy_mev"] = 250.0
    ase.io.write(tmp_path / "a.xyz", [first, second])
    energy = {**ENERGY, "key": "total_energy_mev", "scale": 1e-3}
    actual = built(tmp_path, **ase_table(energy, {**STRESS, "key": "virial_kbar", "scale": -2.0, "optional": True}))
    assert actual["energy"].tolist() == [1.5, 0.25]
    assert actual.present("stress").tolist() == [True, False]
    assert actual["stress"][0].tolist() == [[-2, -12, -10], [-12, -4, -8], [-10, -8, -6]]


def test_virials_become_stress_where_the_build_file_says_so(tmp_path: Path) -> None:
    crystals = structures()
    expected = np.stack([atoms.get_stress(voigt=False) for atoms in crystals])
    for atoms in crystals:
        atoms.info["virial"] = -atoms.get_stress(voigt=False) * atoms.get_volume()
    ase.io.write(tmp_path / "a.xyz", crystals)
    words = 'virial is not yet stress; say convert = "virial"'
    refused(tmp_path, words, **ase_table({**STRESS, "key": "virial"}))
    np.testing.assert_allclose(built(tmp_path, **ase_table(VIRIAL))["stress"], expected, rtol=1e-6)
    for atoms in crystals[1::2]:
        del atoms.info["virial"]
    ase.io.write(tmp_path / "a.xyz", crystals)
    makers = [*makers_of(read_build_settings(ase_table({**VIRIAL, "optional": True}), tmp_path / "BUILD.toml"))]
    together = made_together(makers)
    assert together is not None and together.present("stress").tolist() == [True, False, True, False, True]
    singly = concatenate([make() for make in makers])  # the bytes of absent labels do not depend on grouping
    assert together["stress"].numpy().tobytes() == singly["stress"].numpy().tobytes()
    crystals[2].pbc = False
    ase.io.write(tmp_path / "a.xyz", crystals[::2])
    refuses(r"graph 1 of .*a.xyz: a virial in stress becomes no stress", built, tmp_path, **ase_table(VIRIAL))


def test_numbers_of_graphs_that_are_targets_have_sixteen_digits(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a.xyz", [Atoms("Ag", info={"energy": -144000.4567891, "load": 1 / 3})])
    energy = {"name": "energy", "on": "graph", "role": "target"}
    actual = built(tmp_path, **ase_table(energy, {"name": "load", "on": "graph"}))
    assert actual["energy"].tolist() == [-144000.4567891] and actual["load"].dtype == torch.float32

    def dtypes() -> list[str]:
        rule = open_store(tmp_path / "out.h5").attributes["build"]
        return [field.field.dtype for field in settings_of_rule(rule, tmp_path / "a.xyz", "store").fields]

    assert dtypes() == ["float64", "float32"]
    built(tmp_path, **ase_table({**energy, "dtype": "float32"}))
    assert dtypes() == ["float32"]


def test_a_field_that_no_graph_has_is_an_error(tmp_path: Path) -> None:
    crystals = structures(4)
    crystals[0].info["gap"] = crystals[3].info["gap"] = 0.5
    ase.io.write(tmp_path / "a.xyz", crystals)
    gap, charge = ({"name": name, "on": "graph", "optional": True} for name in ("gap", "charge"))
    built(tmp_path, **ase_table(ENERGY, gap))
    rows = {field["name"]: field for field in store_info(tmp_path / "out.h5").to_json()["fields"]}
    counts = {name: (row["present"], row["missing"]) for name, row in rows.items()}
    assert counts == {"atomic_numbers": (4, 0), "energy": (4, 0), "gap": (2, 2)}
    refused(tmp_path, "no graph has the field charge", **ase_table(ENERGY, gap, charge))


@pytest.mark.parametrize("index", [":", "0:"])
@pytest.mark.parametrize(
    ("label", "sentence"), [("Fe1", "write Fe,"), ("H_a", "write H,"), ("OW", "write O,"), ("26", "write the symbol")]
)
def test_a_label_that_is_no_chemical_symbol_is_named(label: str, sentence: str, index: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(f"1\n\nFe 0 0 0\n1\n\n{label} 0 0 0\n")
    words = f"a.xyz: structure 1 has an atom '{label.capitalize()}', which is no chemical symbol; {sentence}"
    refused(tmp_path, words, **ase_table(index=index))


def test_every_tenth_structure_of_several_files(tmp_path: Path) -> None:
    for name in ("b.xyz", "a.xyz"):
        ase.io.write(tmp_path / name, structures(5))
    actual = built(tmp_path, **ase_table(ENERGY, file="*.xyz", index="::2"))
    assert actual["energy"].tolist() == [0, 2, 4, 0, 2, 4]


def test_names_come_from_the_data_else_from_file_and_number(tmp_path: Path) -> None:
    originals = structures(4)
    originals[1].info["material_id"] = "mp-1"
    originals[2].info |= {"id": 7, "config_type": "bulk"}
    ase.io.write(tmp_path / "a.xyz", originals)
    actual = built(tmp_path, **ase_table(texts=["config_type"]))
    assert list(actual.texts["name"]) == ["a.xyz#0", "mp-1", "7", "a.xyz#3"]
    assert list(actual.texts["config_type"]) == ["", "", "bulk", ""]
    assert list(built(tmp_path, **ase_table(index="1::2")).texts["name"]) == ["mp-1", "a.xyz#3"]
    words = "a.xyz#0 has no text or whole number materialid for its name"
    refused(tmp_path, words, **ase_table(name_key="materialid"))
    refused(tmp_path, "no graph has a text", **ase_table(texts=["config_typ", "config_type"]))


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (table_of("pyg", "a.pt"), ["a.pt#0", "a.pt#1"]),
        (table_of("npz", "a.npz", nodes="n", positions="pos", cutoff=2.0), ["a.npz#0", "a.npz#1"]),
        (table_of("mesh", "*.vtk", labels="labels.csv"), ["g0.vtk", "g1.vtk"]),
        (table_of("grains", "grains.csv", edges="contacts.csv", graphs="graphs.csv", undirected=True), ["3", "8"]),
    ],
    ids=["pyg", "npz", "mesh", "grains"],
)
def test_every_kind_of_source_names_its_graphs(table: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    data = torch_geometric("data").Data
    edges, positions = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.0, 0, 0], [1, 0, 0]])
    torch.save([data(pos=positions, edge_index=edges, label=f"g{k}", phase="ice") for k in range(2)], tmp_path / "a.pt")
    labels = {"label": np.array(["g0", "g1"]), "phase": np.array(["ice", "ice"])}
    np.savez(tmp_path / "a.npz", n=[2, 2], pos=np.tile(positions, (2, 1)), **labels)
    for k in range(2):
        meshio.Mesh([[0, 0], [1, 0], [0, 1]], [("triangle", [[0, 1, 2]])]).write(tmp_path / f"g{k}.vtk")
    (tmp_path / "labels.csv").write_text("file,label,phase\ng0.vtk,g0,ice\ng1.vtk,g1,ice\n")
    (tmp_path / "grains.csv").write_text("graph\n3\n8\n3\n8\n")
    (tmp_path / "contacts.csv").write_text("graph,sender,receiver\n3,0,1\n8,0,1\n")
    (tmp_path / "graphs.csv").write_text("graph,label,phase\n3,g0,ice\n8,g1,ice\n")
    assert list(built(tmp_path, **table).texts["name"]) == names
    texts = built(tmp_path, **table, name_key="label", texts=["phase"]).texts
    assert [list(texts[key]) for key in ("name", "phase")] == [["g0", "g1"], ["ice", "ice"]]
    # one file is not enough to tell how grains become graphs
    assert ("build" in open_store(tmp_path / "out.h5").attributes) == (table["kind"] != "grains")


def test_meshes_have_nodal_fields_and_labels_and_a_store_says_how_others_become_graphs(tmp_path: Path) -> None:
    points, cells = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]]), [("triangle", [[0, 1, 2], [0, 2, 3]])]
    for number in range(3):
        mesh = meshio.Mesh(points * (1 + number), cells, point_data={"T": np.arange(4.0) + number})
        mesh.write(tmp_path / f"mesh{number}.vtu")
    (tmp_path / "labels.csv").write_text("file,energy\nmesh2.vtu,2.5\nmesh0.vtu,0.5\nmesh1.vtu,1.5\n")
    fields = {"name": "temperature", "on": "node", "key": "T", "scale": 2.0}, {"name": "energy", "on": "graph"}
    widths = {"laplacian_encoding": 2, "random_walk_encoding": 3}
    actual = built(tmp_path, **table_of("mesh", "*.vtu", *fields, **widths, labels="labels.csv"))
    assert actual.dim == 2 and actual.counts("edge").tolist() == [10, 10, 10]
    assert actual["temperature"].tolist() == [0, 2, 4, 6, 2, 4, 6, 8, 4, 6, 8, 10]
    assert actual["energy"].tolist() == [0.5, 1.5, 2.5]
    expected = with_encodings(from_mesh(mesh), widths)
    for name in widths:
        torch.testing.assert_close(actual.select([2])[name], expected[name])
    rule = open_store(tmp_path / "out.h5").attributes["build"]
    assert rule["kind"] == "mesh" and not {"files", "labels"} & rule.keys()
    meshio.Mesh(2 * points, cells, point_data={"T": 5 + np.arange(4.0)}).write(tmp_path / "new[1].vtu")
    settings = settings_of_rule(rule, tmp_path / "new[1].vtu", "the store")
    needed = {"temperature", *widths}
    (graph,) = (make() for make in makers_of(for_prediction(settings, needed)))
    assert graph["temperature"].tolist() == [10, 12, 14, 16] and set(graph.fields) == needed
    with pytest.raises(InputError, match="no energy for the graph field energy"):
        [make() for make in makers_of(settings)]


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_flat_arrays_with_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts, pairs = np.array([2, 4, 3]), np.array([1, 3, 0])
    edge = np.array([[0, 1], [3, 0], [1, 2], [2, 3]])
    arrays = {"z": rng.integers(1, 9, 9), "xyz": rng.standard_normal((9, 3)), "y": rng.standard_normal((3, 15))}
    np.savez(tmp_path / "a.npz", n=counts, m=pairs, edge=edge, weight=np.arange(4.0), **arrays)
    fields = [
        {"name": "atomic_numbers", "on": "node", "classes": 119, "dtype": "int64", "key": "z"},
        {"name": "gap", "on": "graph", "key": "y", "column": 4, "dtype": "float64"},
        {"name": "weight", "on": "edge"},
    ]
    table = {"kind": "npz", "files": ["a.npz"], "nodes": "n", "positions": "xyz", "fields": fields}
    actual = built(tmp_path, **table, edges="edge", edge_counts="m", undirected=True)
    assert actual.counts("node").tolist() == [2, 4, 3]
    assert actual.counts("edge").tolist() == [2, 6, 0]
    np.testing.assert_array_equal(actual.positions, arrays["xyz"])
    np.testing.assert_array_equal(actual["gap"], arrays["y"][:, 4])
    received = {(int(s), int(r), float(w)) for s, r, w in zip(actual.senders, actual.receivers, actual["weight"])}
    assert received == {(0, 1, 0), (1, 0, 0), (5, 2, 1), (2, 5, 1), (3, 4, 2), (4, 3, 2), (4, 5, 3), (5, 4, 3)}


def test_rectangular_arrays_with_shared_positions_and_edges_from_a_cutoff(tmp_path: Path) -> None:
    grid = np.stack(np.meshgrid(*[np.arange(3.0)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    np.savez(tmp_path / "a.npz", pos=grid, charge=np.arange(54.0).reshape(2, 27), energy=[1.0, 2.0])
    fields = {"name": "charge", "on": "node"}, {"name": "energy", "on": "graph"}
    box = {"cell": [3.0, 3.0, 3.0], "periodic": True}
    actual = built(tmp_path, **table_of("npz", "a.npz", *fields, positions="pos", cutoff=1.1, **box))
    assert actual.counts("edge").tolist() == [27 * 6, 27 * 6]
    assert actual["charge"].tolist() == list(range(54))
    torch.testing.assert_close(edge_vectors(actual).norm(dim=1), torch.ones(2 * 27 * 6, dtype=torch.float64))


def test_grain_tables(tmp_path: Path) -> None:
    rows = "7,0,0,0.1,5\n7,1,0,0.2,6\n3,0,0,0.3,7\n7,2,0,0.4,8\n3,1,1,0.5,9\n"
    (tmp_path / "grains.csv").write_text(f"graph,x,y,phi,size\n{rows}")
    (tmp_path / "contacts.csv").write_text("graph,sender,receiver,area\n7,0,1,2.0\n3,0,1,4.0\n7,1,2,3.0\n")
    (tmp_path / "micro.csv").write_text("graph,stiffness\n7,70.0\n3,30.0\n")
    texture = {"name": "texture", "on": "node", "shape": [2], "key": ["phi", "size"]}
    fields = texture, {"name": "area", "on": "edge"}, {"name": "stiffness", "on": "graph", "role": "target"}
    more = {"edges": "contacts.csv", "graphs": "micro.csv", "positions": ["x", "y"], "undirected": True}
    actual = built(tmp_path, **table_of("grains", "grains.csv", *fields, **more))
    assert actual.counts("node").tolist() == [2, 3] and actual["stiffness"].tolist() == [30.0, 70.0]
    assert actual.positions.tolist() == [[0, 0], [1, 1], [0, 0], [1, 0], [2, 0]]
    torch.testing.assert_close(actual["texture"], torch.tensor([[0.3, 7], [0.5, 9], [0.1, 5], [0.2, 6], [0.4, 8]]))
    contacts = {(int(s), int(r), float(a)) for s, r, a in zip(actual.senders, actual.receivers, actual["area"])}
    assert contacts == {(0, 1, 4.0), (1, 0, 4.0), (2, 3, 2.0), (3, 2, 2.0), (3, 4, 3.0), (4, 3, 3.0)}


SIDES: dict[str, tuple[list[list[int]], bool | None, list[list[int]] | str]] = {
    "both sides": ([[0, 1], [1, 0], [1, 2], [2, 1]], None, [[0, 1], [1, 0], [1, 2], [2, 1]]),
    "both sides, and more asked for": ([[0, 1], [1, 0]], True, "the pair 0, 1 is listed in both directions"),
    "one side": ([[0, 1], [1, 2]], True, [[0, 1], [1, 0], [1, 2], [2, 1]]),
    "one way": ([[0, 1], [1, 2]], False, [[0, 1], [1, 2]]),
    "one way, and nothing said": ([[0, 1], [1, 2]], None, "every pair is listed in one direction"),
}


@pytest.mark.parametrize("kind", ["grains", "npz", "pyg"])
@pytest.mark.parametrize("case", SIDES)
def test_pairs_are_taken_as_they_are_listed_and_never_doubled(kind: str, case: str, tmp_path: Path) -> None:
    pairs, undirected, expected = SIDES[case]
    if kind == "pyg" and undirected:
        expected = "reverses are added by ToUndirected"
    (tmp_path / "grains.csv").write_text("graph,size\n0,1\n0,2\n0,3\n")
    rows = "".join(f"0,{sender},{receiver}\n" for sender, receiver in pairs)
    (tmp_path / "contacts.csv").write_text("graph,sender,receiver\n" + rows)
    np.savez(tmp_path / "a.npz", n=[3], size=[1.0, 2.0, 3.0], e=pairs, m=[len(pairs)])
    data = torch_geometric("data").Data(size=torch.arange(1.0, 4.0), edge_index=torch.tensor(pairs).T, num_nodes=3)
    torch.save([data], tmp_path / "a.pt")
    table: dict[str, Any] = {
        "grains": {"files": ["grains.csv"], "edges": "contacts.csv"},
        "npz": {"files": ["a.npz"], "nodes": "n", "edges": "e", "edge_counts": "m"},
        "pyg": {"files": ["a.pt"]},
    }[kind]
    table |= {"kind": kind, "fields": [{"name": "size", "on": "node"}]}
    table |= {} if undirected is None else {"undirected": undirected}
    if isinstance(expected, str):
        refuses(expected, built, tmp_path, **table)
    else:
        actual = built(tmp_path, **table)
        assert sorted(zip(actual.senders.tolist(), actual.receivers.tolist())) == sorted(map(tuple, expected))


SETTINGS = {
    "unknown kind": ({"kind": "asee"}, "kind = 'asee' is no kind of source; did you mean ase?"),
    "no kind": ({}, "no key kind; add one of ase, climate, grains"),
    "unknown key": (ase_table(cutof=3.0), "unknown key cutof; did you mean cutoff?"),
    "foreign key": (table_of("pyg", cutoff=3.0), "unknown key cutoff"),
    "missing key": (table_of("ase"), "missing key cutoff; add it"),
    "negative cutoff": (ase_table(cutoff=-1.0), "cutoff"),
    "impossible field": (ase_table({**FORCES, "shape": []}), "a vector needs a last axis"),
    "a field twice": (ase_table(ENERGY, FORCES, ENERGY), "the field energy is declared 2 times; keep one"),
    "no tensor": (ase_table({**ENERGY, "convert": "virial"}), "a virial is a 3 x 3 tensor of a graph"),
    "several keys": (ase_table({**ENERGY, "key": ["a", "b"]}), "this source takes one key per field, not 2; declare"),
    "a column of structures": (ase_table({**ENERGY, "column": 1}), "field energy: column is for npz"),
    "cutoff without positions": (table_of("npz", cutoff=1.0), "give positions and no edges"),
}


@pytest.mark.parametrize(("table", "message"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be_say_what_to_do(table: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_build_settings(table, tmp_path / "BUILD.toml")
    assert message in str(caught.value)


def bad_files(folder: Path) -> None:
    twins = Atoms("H2", [[0, 0, 0], [0, 0, 0]])
    ase.io.write(folder / "twins.xyz", [Atoms("H"), twins])
    ase.io.write(folder / "plain.xyz", [Atoms("H")])
    line = 'energy=-1.5 note="energy=3" energy=-1.5 '
    (folder / "double.xyz").write_text(f"1\n{line}\nH 0 0 0\n1\n{line} energy=2\nH 0 0 0\n")
    (folder / "text.xyz").write_text("three\nblind\nmice\n")
    (folder / "cut.xyz").write_text("5\nProperties=species:S:1:pos:R:3\nH 0 0 0\nH 0 0 1\n")
    np.savez(folder / "objects.npz", n=np.array([[1], [1, 2]], dtype=object))
    np.savez(folder / "counts.npz", n=[2, 2], x=np.zeros((5, 3)), q=np.zeros(5))
    np.savez(folder / "edges.npz", n=[2, 2], q=np.zeros(4), e=[[0, 1], [1, 7]], m=[1, 1])
    (folder / "zip.npz").write_bytes(b"PK\x03\x04 cut off")
    torch.save([Bomb(folder / "exploded")], folder / "bomb.pt")
    torch.save({"a": torch.zeros(1)}, folder / "dict.pt")
    (folder / "two.xyz").write_text(VEC_CELL + "\n" + VEC_CELL)
    (folder / "cut.pt").write_bytes(b"PK\x03\x04 cut off")
    (folder / "noise.msh").write_text("this is no mesh\n")
    (folder / "grains.csv").write_text("graph,size\n1,2\n1,oops\n")
    (folder / "ragged.csv").write_text("graph,size\n1\n")
    (folder / "contacts.csv").write_text("graph,sender,receiver\n9,0,1\n")
    (folder / "nodes.csv").write_text("graph\n3\n3\n8\n8\n")
    (folder / "sound.csv").write_text("graph,sender,receiver\n3,0,1\n\n8,0,1\n")
    (folder / "zero.csv").write_text("graph,sender,receiver\n3,0,1\n\n8,0,zero\n")
    (folder / "empty.csv").write_text("graph,strain\n3,0.1\n\n8,\n")


CHARGE, SIZE = {"name": "q", "on": "node"}, {"name": "size", "on": "node"}
EDGES = {"nodes": "n", "edges": "e", "edge_counts": "m", "undirected": False}
SEVERAL = "double.xyz: structure 1 has several values of energy in its second line: -1.5, 2; keep one"
OOPS = "grains.csv, line 3: the column size holds 'oops', which is no number; repair it, or remove the row"
STRAIN = {"name": "strain", "on": "graph", "role": "target"}
NOTHING = "empty.csv, line 4: the column strain holds nothing; fill it in, or remove the row"
RANGE = "edges.npz, graph 1, receivers: node index 7 is out of range"
FILES = [
    (ase_table(file="nothing.xyz"), "nothing.xyz: no such file"),
    (ase_table(file="twins.xyz"), "twins.xyz, structure 1: nodes 0 and 1"),
    (ase_table(ENERGY, file="plain.xyz"), "plain.xyz, structure 0: no energy for the field energy"),
    (ase_table(ENERGY, file="double.xyz"), SEVERAL),
    (ase_table(ENERGY, file="double.xyz", index="::2"), "structure 1 has several values of energy"),
    (ase_table(file="text.xyz"), "structure 0 cannot be read by ASE"),
    (ase_table(file="cut.xyz"), "structure 0 cannot be read by ASE"),
    (ase_table(file="two.xyz"), "an empty line stands before it"),
    (table_of("npz", "objects.npz", nodes="n"), "save plain number arrays"),
    (table_of("npz", "zip.npz", nodes="n"), "zip.npz as npz"),
    (table_of("npz", "counts.npz", CHARGE, nodes="n", positions="x"), "q has 5 rows where 4 nodes were counted"),
    (table_of("npz", "counts.npz", nodes="natoms"), "has no natoms; it has n, x, q"),
    (table_of("npz", "edges.npz", CHARGE, **EDGES), RANGE),
    (table_of("pyg", "bomb.pt"), "code from files is not run"),
    (table_of("pyg", "dict.pt"), "dict.pt holds dict, not a list"),
    (table_of("pyg", "cut.pt"), "cut.pt"),
    (table_of("mesh", "noise.msh"), "noise.msh cannot be read by meshio"),
    (table_of("grains", "grains.csv", SIZE, edges="contacts.csv"), OOPS),
    (table_of("grains", "grains.csv", edges="contacts.csv"), "contacts.csv: graph 9 has rows here but no nodes"),
    (table_of("grains", "ragged.csv", edges="contacts.csv"), "ragged.csv, line 2: 1 values"),
    (table_of("grains", "nodes.csv", edges="zero.csv"), "zero.csv, line 4: the column receiver holds 'zero'"),
    (table_of("grains", "nodes.csv", STRAIN, edges="sound.csv", graphs="empty.csv"), NOTHING),
]


@pytest.mark.parametrize(("table", "message"), FILES, ids=[message for _, message in FILES])
def test_a_bad_file_is_named_and_leaves_no_store(table: dict[str, Any], message: str, tmp_path: Path) -> None:
    bad_files(tmp_path)
    refused(tmp_path, message, **table)
    assert not (tmp_path / "exploded").exists()


def test_real_extended_xyz_becomes_a_store(real_data: Path, tmp_path: Path) -> None:
    table = ase_table(ENERGY, FORCES, file="acac/train_*.xyz.gz", index="::100", cutoff=5.0)
    reports: list[int] = []
    build_store(read_build_settings(table, real_data / "BUILD.toml"), tmp_path / "acac.bp", progress=reports.append)
    store = open_store(tmp_path / "acac.bp")
    assert len(store) == 10
    assert reports == [10]  # graphs are written some at a time
    assert store.attributes["cutoff"] == 5.0
    assert set(store.sizes().nodes.tolist()) == {15}


class Rereads(OwnBuild):
    """Makes a good graph and then one that fails, as its file says."""

    def graphs(self) -> Iterator[Make]:
        yield lambda: graph_from_arrays([[0.0, 0.0]], [], [])
        text = Path(self.files[0]).read_text()
        if text == "listing":
            raise KeyError("column")
        yield lambda: graph_from_arrays([[float(text), 0.0]], [], [])


RAISED = {
    "x": r"graph 1: the source .* raised ValueError: could not convert string to float: 'x' \(test_build.py, line \d+\)",
    "listing": r"before graph 1: the source .* raised KeyError: 'column' \(test_build.py, line \d+\)",
}


@pytest.mark.parametrize(("text", "words"), RAISED.items(), ids=RAISED)
def test_whatever_a_source_of_your_own_raises_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text(text)
    settings = Rereads(kind="tests:Rereads", files=[str(tmp_path / "a.dat")])
    refuses(words, build_store, settings, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


VEC_CELL = "2\nno lattice\nCu 0 0 0\nCu 1.8 1.8 0\nVEC1 3.6 0 0\nVEC2 0 3.6 0\nVEC3 0 0 3.6\n"


@pytest.mark.parametrize("name", ["mixed.xyz", "mixed.extxyz.gz"])
def test_extended_xyz_is_divided_as_ase_divides_it(tmp_path: Path, name: str) -> None:
    ase.io.write(tmp_path / "plain.xyz", structures(2), format="extxyz")
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wt") as file:
        file.write(VEC_CELL + (tmp_path / "plain.xyz").read_text() + VEC_CELL + "\n\n")
    actual = built(tmp_path, **ase_table(file=name))
    expected = [from_ase(atoms, 3.0) for atoms in ase.io.read(tmp_path / name, ":")]
    assert actual.counts("node").tolist() == [graph.num_nodes for graph in expected] and len(expected) == 4
    assert actual.counts("edge").tolist() == [graph.num_edges for graph in expected]
    assert torch.equal(actual.cell, torch.cat([graph.cell for graph in expected]))


def shifted(graph: GraphBatch) -> GraphBatch:
    return graph.with_fields({"charge": graph["charge"] + 1})


def test_transforms_are_refused_that_differ_or_cannot_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_allowed", {__name__})
    ase.io.write(tmp_path / "a.xyz", [Atoms("Cu2", [[0, 0, 0], [0, 0, 2]], info={"charge": 1.0})])
    charge, own = {"name": "charge", "on": "graph"}, f"{__name__}:shifted"
    for transform, words in {f"{__name__}:ENERGY": "is no function", "other:shifted": "--allow-code other"}.items():
        refused(tmp_path, words, **ase_table(charge, transform=transform))
    plain, changed = (read_build_settings(ase_table(charge, transform=one), tmp_path / "B.toml") for one in (None, own))
    a, b = (tmp_path / name for name in ("a.h5", "b.h5"))
    build_store(plain, a), build_store(changed, b)
    calls = ((append_store, a, b), (append_store, a, changed), (merge_stores, [a, b], tmp_path / "c.h5"))
    for call, *arguments in calls:
        refuses(f"their transforms are none and {own}", call, *arguments)
    files = for_prediction(read_build_settings(ase_table(charge, ENERGY, transform=own), tmp_path / "B.toml"), ())
    assert next(makers_of(files))()["charge"].tolist() == [2.0], "no energy is needed, but the charge"
    rule, parts = open_store(b).attributes, [{"build": {"kind": "ase"}}, {"by": "me"}]
    assert transform_of({"merged": [{"merged": [rule, {}]}, {}]}) == transform_of({"transform": own}) == own
    assert transform_of({"merged": parts}) == "" and transform_of({"merged": parts[1:], "transform": "a word"}) is None
