"""Geometry and structures of files: they are used as they were measured, or refused in a sentence."""

import gzip
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.io import write

from hydragnn.datasets import StoreWriter, build_store, examine_store, read_build_settings
from hydragnn.datasets.merging import merge_stores
from hydragnn.graphs import Field, GraphBatch, from_ase, graph_from_arrays
from hydragnn.graphs.pyg import from_pyg, torch_geometric
from tests.datasets.conftest import built, refused
from tests.refusals import refuses

Z = {"name": "atomic_numbers", "key": "Z", "on": "node", "classes": 119, "dtype": "int64"}
NUMBERS = Field(name="atomic_numbers", on="node", classes=119, dtype="int64")
STRESS = {"name": "stress", "on": "graph", "shape": [3, 3], "parity": "tensor", "role": "target"}
CRYSTAL = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
SKEW = np.arange(9.0).reshape(3, 3)
BOX = '1\nLattice="4 0 0 0 4 0 0 0 4" {}\nCu 0 0 0\n'


def npz(folder: Path, arrays: dict[str, Any] | None = None, **table: Any) -> GraphBatch:
    """The graphs of two crystals of salt in npz, with more arrays and settings."""
    stacked = {"Z": np.stack([CRYSTAL.numbers] * 2), "R": np.stack([CRYSTAL.positions] * 2)}
    np.savez(folder / "a.npz", **(stacked | (arrays or {})))
    return built(folder, kind="npz", files=["a.npz"], positions="R", cutoff=3.0, fields=[Z], **table)


def tables(folder: Path, header: str, row: str) -> GraphBatch:
    (folder / "nodes.csv").write_text(f"graph,x,y,z,q{header}\n" + "".join(f"0,{k},0,0,1{row}\n" for k in range(3)))
    (folder / "edges.csv").write_text("graph,sender,receiver\n0,0,1\n0,1,0\n")
    more = {"edges": "edges.csv", "positions": ["x", "y", "z"], "fields": [{"name": "q", "on": "node"}]}
    return built(folder, kind="tables", files=["nodes.csv"], **more)


def network(folder: Path, image: Any = None, **attributes: Any) -> GraphBatch:
    nodes = [{"id": k, "x": float(k), "y": 0.0} for k in range(2)]
    table: Any = {"graph": attributes, "nodes": nodes, "edges": [{"source": 0, "target": 1}]}
    table["edges"][0] |= {"to_jimage": image} if image else {}
    (folder / "a.json").write_text(json.dumps(table))
    return built(folder, kind="networkx", files=["a.json"], positions=["x", "y"])


def atoms(folder: Path, text: str, suffix: str = "xyz", **table: Any) -> GraphBatch:
    (folder / f"a.{suffix}").write_text(text)
    return built(folder, kind="ase", files=[f"a.{suffix}"], cutoff=4.0, **table)


def ring(**more: Any) -> GraphBatch:
    """Four points on a periodic line, each joined to the next."""
    points, ends = np.arange(4.0)[:, None] * [1.0, 0, 0], np.arange(4)
    return graph_from_arrays(points, ends, (ends + 1) % 4, **more)


def data(fields: Sequence[Field] = (), **attributes: Any) -> GraphBatch:
    """Two nodes of torch_geometric a unit apart, with more attributes."""
    values = {"pos": [[0.0, 0, 0], [1, 0, 0]], "edge_index": np.array([[0, 1], [1, 0]]), **attributes}
    tensors = {key: torch.as_tensor(np.asarray(value)) for key, value in values.items()}
    return from_pyg(torch_geometric("data").Data(**tensors), fields, cutoff=3.0)


SPANS = CRYSTAL.cell.array
Case = tuple[Callable[[Path], Any], str]
NO_FLAGS, UNUSED, NOT_SAID = "does not say which axes repeat", "which describes geometry", "would not be used; "
GEOMETRY: dict[str, Case] = {
    "lengths of cells": (
        lambda f: npz(f, {"L": np.full((2, 3), 5.6)}, cell="L"),
        "a.npz, graph 0 has a cell and does not say which axes repeat",
    ),
    "a box in the build file": (lambda f: npz(f, cell=[5.6, 5.6, 5.6]), NO_FLAGS),
    "one matrix for all": (lambda f: npz(f, {"h": SPANS}, cell="h"), NO_FLAGS),
    "periodic without cell": (lambda f: npz(f, periodic=True), "periodic, but no cell; give cell"),
    "a lattice in the file": (
        lambda f: npz(f, {"Lattice": np.stack([SPANS] * 2)}),
        f"has Lattice, {UNUSED} and {NOT_SAID}say cell, or leave it out",
    ),
    "a cell in the file": (lambda f: npz(f, {"cell": np.stack([SPANS] * 2)}), "has cell, which .* say cell, or"),
    "box vectors in the file": (lambda f: npz(f, {"box_vectors": SPANS}), f"has box_vectors, {UNUSED}"),
    "flags in the file": (lambda f: npz(f, {"pbc": np.ones((2, 3), bool)}), "has pbc, which .* say periodic"),
    "shifts of edges in the file": (lambda f: npz(f, {"cell_offsets": np.zeros((9, 3))}), "kind = 'npz' reads none"),
    "columns of a table": (
        lambda f: tables(f, ",lattice_a,lattice_b", ",5,5"),
        f"nodes.csv has lattice_., {UNUSED} and {NOT_SAID}kind = 'tables' reads none",
    ),
    "an attribute of a network": (lambda f: network(f, box=[3, 3]), f"graph 0 has box, {UNUSED}"),
    "a cell under another name": (
        lambda f: atoms(f, '1\ncell="5 0 0 0 5 0 0 0 5"\nCu 0 0 0\n'),
        f"cell is no cell here, and {NOT_SAID}write Lattice",
    ),
    "a list": (lambda f: data(cell=SPANS), f"{NO_FLAGS}; give periodic .pbc"),
    "a box": (lambda f: data(box=[9.0, 9, 9]), f"box describes geometry and {NOT_SAID}store cell with pbc"),
    "lattice vectors": (lambda f: data(lattice_vectors=SPANS[None]), "lattice_vectors describes geometry"),
    "vectors under a short name": (lambda f: npz(f, {"latvec": SPANS}), f"has latvec, {UNUSED}"),
    "images of a network's edges": (lambda f: network(f, image=[0, 0, 1]), f"has to_jimage, {UNUSED}"),
    "a cell of zeros": (lambda f: npz(f, cell=[0.0, 0, 0], periodic=True), "no vector there; set the cell"),
    "arrays in Python": (lambda f: ring(cell=[4.0, 9, 9]), NO_FLAGS),
    "edges through images": (
        lambda f: ring(cell=[4.0, 9, 9], periodic=True),
        "edge 3 is 3 long where an image is 1 away, and nothing says through which images edges run",
    ),
}


def test_cells_whose_axes_are_stated_are_used(tmp_path: Path) -> None:
    cells = {"h": np.stack([SPANS] * 2)}
    periodic, box, mix = (npz(tmp_path, cells, cell="h", periodic=axes) for axes in (True, False, [True, True, False]))
    assert periodic.num_edges == 2 * 8 * 6 and periodic.periodic.all()
    assert box.num_edges == 2 * from_ase(Atoms(CRYSTAL.symbols, CRYSTAL.positions), 3.0).num_edges
    assert box.num_edges < mix.num_edges < periodic.num_edges
    assert not atoms(tmp_path, '1\nLattice="5 0 0 0 5 0 0 0 5" pbc="F F F"\nCu 0 0 0\n').periodic.any()
    assert ring(cell=[4.0, 9, 9], periodic=[False] * 3).num_edges == 4
    assert ring(cell=[4.0, 9, 9], periodic=True, edge_shifts=np.zeros((4, 3))).num_edges == 4
    assert tables(tmp_path, ",cell", ",7").num_nodes == 3  # numbers of cells


CIF = """data_x
_cell_length_a 4
_cell_length_b 4
_cell_length_c 4
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_occupancy
"""
PDB = "ATOM      1  CU  MOL A   1       0.000   0.000   0.000{:6.2f}  0.00          CU\n"


def cif(folder: Path, *rows: str) -> GraphBatch:
    return atoms(folder, CIF + "\n".join(rows) + "\n", "cif")


def pdb(folder: Path, occupancy: float) -> GraphBatch:
    return atoms(folder, PDB.format(occupancy) + "END\n", "pdb")


def column(folder: Path, value: str, name: str = "occupancy", **table: Any) -> GraphBatch:
    return atoms(folder, f"1\nProperties=species:S:1:pos:R:3:{name}:R:1\nCu 0 0 0 {value}\n", **table)


def shared(folder: Path, other: str, group: str = "P 1") -> GraphBatch:
    """Copper at the origin and another element, without a column of occupancies."""
    text = CIF.replace("_atom_site_occupancy\n", "").replace("P 1", group)
    return atoms(folder, f"{text}Cu1 Cu 0 0 0\n{other}\n", "cif")


def with_sites(**sites: Any) -> GraphBatch:
    return from_ase(Atoms("Cu", info={"occupancy": sites}), 3.0, name="structure 4")


DISORDERED: dict[str, Callable[[Path], Any]] = {
    "a vacancy of a tenth": lambda f: cif(f, "Cu1 Cu 0 0 0 0.9"),
    "an uncertain third": lambda f: cif(f, "Cu1 Cu 0 0 0 1", "O1 O .5 .5 .5 0.333(2)"),
    "three elements on one site": lambda f: cif(f, *(f"{e}1 {e} 0 0 0 .3333" for e in ("Fe", "Co", "Ni"))),
    "two whole atoms on one site": lambda f: with_sites(**{"0": {"Cu": 1.0, "Ag": 1.0}}),
    "a half atom of a protein": lambda f: pdb(f, 0.5),
    "a column of extended XYZ": lambda f: column(f, "0.25"),
    "a short column of extended XYZ": lambda f: column(f, "0.25", "occ"),
    "a column of sites": lambda f: column(f, "0.25", "site_occupancy"),
    "two elements at one place": lambda f: shared(f, "Ag1 Ag 0 0 0"),
    "a place and its image": lambda f: shared(f, "Ag1 Ag 1 0 0"),
    "a place and its copy by symmetry": lambda f: shared(f, "Ag1 Ag .5 .5 .5", "I m -3 m"),
}


def test_whole_atoms_are_no_disorder(tmp_path: Path) -> None:
    assert cif(tmp_path, "Cu1 Cu 0 0 0 1.0", "Cu2 Cu .5 .5 .5 ?").num_nodes == 2
    assert shared(tmp_path, "Cu2 Cu .5 .5 .5", "I m -3 m").num_nodes == 2  # all atoms of the cell beside its symmetry
    assert pdb(tmp_path, 0.0).num_nodes == pdb(tmp_path, 1.0).num_nodes == 1
    field = {"name": "occupancy", "on": "node", "role": "target"}
    assert column(tmp_path, "0.25", fields=[field])["occupancy"].tolist() == [0.25]


def water(scale: float = 1.0) -> str:
    one = molecule("H2O")
    return "3\n\n" + "".join(f"{s} {x} {y} {z}\n" for s, (x, y, z) in zip(one.symbols, one.positions * scale))


def given_edges(folder: Path) -> GraphBatch:
    """Two copper atoms a tenth of an Angstrom apart that no edge joins."""
    np.savez(folder / "e.npz", Z=[[29, 29, 29]], R=[[[0.0, 0, 0], [2.5, 0, 0], [2.5, 0.1, 0]]], edges=[[0, 1], [1, 0]])
    return built(folder, kind="npz", files=["e.npz"], positions="R", edges="edges", fields=[Z])


def rounded(folder: Path) -> GraphBatch:
    """A site of a hexagonal crystal with two digits, and its copy by symmetry."""
    lattice = {"matrix": [[3.2, 0, 0], [-1.6, 2.771, 0], [0, 0, 5.2]]}
    sites = [{"species": [{"element": "Mg", "occu": 1}], "abc": [a, 0.67, 0.25]} for a in (0.33, 0.34)]
    return atoms(folder, json.dumps({"@class": "Structure", "lattice": lattice, "sites": sites}), "json")


NEAR: dict[str, Case] = {
    "an atom written twice": (lambda f: atoms(f, "2\n\nC 0 0 0\nC 0.05 0 0\n"), "atoms 0 and 1 .C-C. are 0.05 apart"),
    "nanometres": (lambda f: atoms(f, water(0.1)), "compare the unit of positions with Angstrom"),
    "rounded fractions": (rounded, "atoms 0 and 1 .Mg-Mg. are 0.032 apart"),
    "atoms that no edge joins": (given_edges, "atoms 1 and 2 .Cu-Cu. are 0.1 apart"),
    "hydrogens of two conformers": (lambda f: atoms(f, "2\n\nH 0 0 0\nH 0.2 0 0\n"), "H-H. are 0.2 apart"),
    "a cell of one tiny axis": (
        lambda f: atoms(f, '1\nLattice="0.4 0 0 0 4 0 0 0 4"\nCu 0 0 0\n'),
        "atoms 0 and 0 .Cu-Cu. are 0.4 apart",
    ),
}


def test_near_nuclei_are_allowed_by_name_and_the_nearest_are_shown(tmp_path: Path) -> None:
    scan = "".join(f"2\nname=d{k}\nC 0 0 0\nO {0.3 + 0.1 * k} 0 0\n" for k in range(5))
    (tmp_path / "scan.xyz").write_text(scan)
    (tmp_path / "waters.xyz").write_text(water())
    table = {"kind": "ase", "cutoff": 4.0}
    for name, more in (("scan", {"close_nuclei": True}), ("waters", {})):
        settings = read_build_settings({**table, "files": [f"{name}.xyz"], **more}, tmp_path / "BUILD.toml")
        build_store(settings, tmp_path / f"{name}.h5")
    merge_stores([tmp_path / "waters.h5", tmp_path / "scan.h5"], tmp_path / "both.h5")
    check = examine_store(tmp_path / "both.h5")
    assert check.problems == []
    assert check.nearest == [
        "C-O 0.3 in graph 'd0'",
        "H-O 0.9686 in graph 'waters.xyz#0'",
        "H-H 1.526 in graph 'waters.xyz#0'",
    ]


def test_short_bonds_are_no_fault(tmp_path: Path) -> None:
    bonds = [("H2", 0.6), ("N2", 1.0), ("CO", 1.05), ("HF", 0.8), ("Cu2", 1.5), ("Cs2", 2.0)]
    write(tmp_path / "a.xyz", [Atoms(symbols, [[0, 0, 0], [length, 0, 0]]) for symbols, length in bonds])
    assert len(built(tmp_path, kind="ase", files=["a.xyz"], cutoff=4.0)) == len(bonds)


def padding_written(folder: Path) -> None:
    graph = data([NUMBERS], atomic_numbers=[6, 0], pos=[[0.0, 0, 0], [3.0, 0, 0]])
    with StoreWriter(folder / "w.h5", list(graph.fields.values()), dim=graph.dim) as writer:
        writer.write(graph)


NO_ELEMENTS: dict[str, Callable[[Path], Any]] = {
    "X": lambda f: atoms(f, "2\n\nC 0 0 0\nX 2 0 0\n"),
    "a ghost of a surface": lambda f: atoms(f, '2\nLattice="4 0 0 0 4 0 0 0 9"\nCu 0 0 0\nX 2 0 4\n'),
    "padding": lambda f: npz(f, {"Z": [[11, 0, *CRYSTAL.numbers[2:]]] * 2}),
    "padding of torch_geometric": padding_written,
}


def stress_field(**more: Any) -> Field:
    return Field(**{"name": "stress", "on": "graph", "shape": (3, 3), "role": "target", "parity": "tensor", **more})


def of_cell(stress: Any, field: Field) -> GraphBatch:
    box = {"cell": 4 * np.eye(3), "periodic": True}
    return graph_from_arrays(np.zeros((1, 3)), [], [], fields=[field], graphs={field.name: stress}, **box)


def of_info(stress: Any) -> GraphBatch:
    return from_ase(Atoms("Cu", cell=[4] * 3, pbc=True, info={"stress": stress}), 3.0, fields=[stress_field()])


HALVES: dict[str, Callable[[Path], Any]] = {
    "npz": lambda f: built(f, **stress_npz(f, np.stack([SKEW] * 2))),
    "table of labels": lambda f: labels(f, SKEW),
    "torch_geometric": lambda f: data([stress_field()], stress=SKEW),
    "info of atoms": lambda f: of_info(SKEW),
    "nine numbers of atoms": lambda f: of_info(SKEW.ravel()),
    "another name in extended XYZ": lambda f: atoms(
        f, BOX.format('dft_stress="0 1 2 3 4 5 6 7 8"'), fields=[{**STRESS, "key": "dft_stress"}]
    ),
    "a stress without parity": lambda f: of_cell(SKEW, stress_field(parity="scalar")),
    "a polarisability": lambda f: of_cell(SKEW, stress_field(name="alpha")),
}


def stress_npz(folder: Path, values: Any) -> dict[str, Any]:
    np.savez(folder / "s.npz", Z=[[29]] * 2, R=np.zeros((2, 1, 3)), stress=values)
    more = {"cell": [4.0] * 3, "periodic": True, "cutoff": 5.0}
    return {"kind": "npz", "files": ["s.npz"], "positions": "R", "fields": [Z, STRESS], **more}


def labels(folder: Path, stress: Any) -> GraphBatch:
    np.savez(folder / "t.npz", name=np.array(["a.xyz#0"]), stress=stress[None])
    return atoms(folder, BOX.format(""), labels="t.npz", fields=[STRESS])


ORDER = r"a site is occupied by (\{|\w+ and ).*; order it|atoms are there in part"
REFUSED: list[Case] = [
    *GEOMETRY.values(),
    *NEAR.values(),
    *((make, ORDER) for make in DISORDERED.values()),
    *((make, "nodes with the atomic number 0, which is no element") for make in NO_ELEMENTS.values()),
    *((make, "no symmetric tensor, and one half of it would be left out") for make in HALVES.values()),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[*GEOMETRY, *NEAR, *DISORDERED, *NO_ELEMENTS, *HALVES])
def test_geometry_without_effect_or_sense_is_refused(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    refuses(words, make, tmp_path)


def test_rounding_and_noise_leave_a_tensor_symmetric(tmp_path: Path) -> None:
    symmetric = SKEW + SKEW.T
    for stress in (symmetric, symmetric + 1e-4 * SKEW, 1e-9 * SKEW):
        assert of_cell(stress, stress_field())["stress"].shape == (1, 3, 3)
    assert of_cell(SKEW, stress_field(name="piola", parity="scalar"))["piola"].shape == (1, 3, 3)
    assert len(labels(tmp_path, symmetric)) == 1


IN_CIF = """data_x
_cell_length_a 5.64
_cell_length_b 5.64
_cell_length_c 5.64
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
{}
loop_
_atom_site_label
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
Na 0 0 0
Cl 0.5 0.5 0.5
"""
OF, SYMBOL = "_symmetry_Int_Tables_number", "_symmetry_space_group_name_H-M"
ONE = "loop_\n_space_group_symop_operation_xyz\n'x, +y, z'"
SYMMETRIES: dict[str, int | str] = {
    f"{OF} 225\n{SYMBOL} 'F m -3 m'": 8,
    f"{OF} 14\n{SYMBOL} 'P 1 21/c 1'": 4,
    f"{OF} 221\n{SYMBOL} 'F m -3 m'\n{ONE}\n'-x,-y,-z'": 2,
    f"{SYMBOL} 'P 1'\n{ONE}": 2,
    f"{OF} 221\n{SYMBOL} 'F m -3 m'": "fm-3m is not pm-3m, as which ASE takes its space group 221",
    f"{OF} 62\n{SYMBOL} 'P b n m'": "pbnm is not pnma",
    f"{OF} 225\n{ONE}": "is of space group 225, and lists no operation but x, y, z; list all",
    f"{SYMBOL} 'F m -3 m'\n{ONE}": "is of space group fm-3m",
    "_space_group_name_Hall '-F 4 2 3'": "by the Hall symbol -f423 alone",
}


@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_a_crystal_has_the_symmetry_that_its_file_states(symmetry: str, tmp_path: Path) -> None:
    (tmp_path / "a.cif").write_text(IN_CIF.format(symmetry))
    build, expected = {"files": ["a.cif"], "kind": "ase", "cutoff": 6.0}, SYMMETRIES[symmetry]
    if isinstance(expected, str):
        refuses(expected, built, tmp_path, **build)
    else:
        assert built(tmp_path, **build).num_nodes == expected


def sdf(count: int, code: str = "3D") -> str:
    heads = [
        f"mol {k}\n  Program 0101000000{code}\n\n{2 + k:3}  0  0  0  0  0  0  0  0  0999 V2000\n" for k in range(count)
    ]
    atoms = ["".join(f"{2.0 * n:10.4f}    0.0000    0.0000 C   0  0\n" for n in range(2 + k)) for k in range(count)]
    return "".join(f"{head}{own}M  END\n> <gap>\n1.0\n\n$$$$\n" for head, own in zip(heads, atoms))


def test_every_molecule_of_an_sdf_is_a_graph(tmp_path: Path) -> None:
    (tmp_path / "a.sdf").write_text(sdf(4))
    with gzip.open(tmp_path / "b.sdf.gz", "wt") as file:
        file.write(sdf(3))
    table = {"kind": "ase", "cutoff": 3.0}
    assert built(tmp_path, files=["a.sdf", "b.sdf.gz"], **table).counts("node").tolist() == [2, 3, 4, 5, 2, 3, 4]
    for index, nodes in (("1::2", [3, 5]), ("-1", [5]), ("::-2", [5, 3])):
        assert built(tmp_path, files=["a.sdf"], index=index, **table).counts("node").tolist() == nodes
    (tmp_path / "c.sdf").write_text(sdf(2, "2D"))
    refuses("molecule 0 is a drawing in two dimensions", built, tmp_path, files=["c.sdf"], **table)


NODES = "$Nodes\n3\n1 0 0 0\n2 1 0 0\n3 0 1 0\n$EndNodes\n$Elements\n1\n1 2 2 1 1 1 2 3\n$EndElements\n"
STEP = '$NodeData\n1\n"u"\n1\n{0}\n3\n{0}\n1\n3\n1 0.\n2 1.\n3 2.\n$EndNodeData\n'
ZONE = "ZONE N=3, E=1, F=FEPOINT, ET=TRIANGLE\n0 0 1\n1 0 2\n0 1 3\n1 2 3\n"
NESTED = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">
<node id="a"><graph edgedefault="undirected"><node id="b"/></graph></node></graph></graphml>"""
MSH = f"$MeshFormat\n2.2 0 8\n$EndMeshFormat\n{NODES}{STEP.format(0)}"
SEVERAL = {
    "steps of Gmsh": ("a.msh", MSH + STEP.format(1), "mesh"),
    "zones of Tecplot": ("a.dat", f'TITLE="a"\nVARIABLES="X","Y","u"\n{ZONE}{ZONE}', "mesh"),
    "small letters": ("a.tec", f'VARIABLES="X","Y","u"\n{ZONE.replace("ZONE", "zone")}{ZONE}', "mesh"),
    "graphs inside graphs": ("a.graphml", NESTED, "networkx"),
}


@pytest.mark.parametrize(("file", "text", "kind"), SEVERAL.values(), ids=SEVERAL)
def test_frames_that_a_library_passes_over_are_refused(file: str, text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    refuses(r"several frames, zones or pieces|1 graphs stand inside others", built, tmp_path, kind=kind, files=[file])


def test_one_frame_of_a_mesh_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.msh").write_text(MSH)
    fields = [{"name": "u", "on": "node"}]
    assert built(tmp_path, kind="mesh", files=["a.msh"], fields=fields)["u"].tolist() == [0.0, 1.0, 2.0]


def image(folder: Path, pages: int = 2, **settings: Any) -> None:
    """Two grains of twelve voxels, of pages or beside each other."""
    tifffile = pytest.importorskip("tifffile")
    labels = np.ones((2, 3, 4), "u2")
    labels[1] = 2
    labels = labels if pages == 2 else np.concatenate([*labels], axis=1)
    tifffile.imwrite(folder / "a.tif", labels, photometric="minisblack", **settings)


def ome(**sizes: Any) -> dict[str, Any]:
    return {"ome": True, "metadata": {"axes": "ZYX", **{f"PhysicalSize{key}": value for key, value in sizes.items()}}}


def imagej(**more: Any) -> dict[str, Any]:
    return {"imagej": True, "resolution": (2.0, 4.0), "metadata": {"axes": "ZYX", "unit": "um", **more}}


BY_HAND = "ImageJ=1.5\nspacing=.5"
QUOTES = "<OME><Pixels PhysicalSizeX='.5' PhysicalSizeY='.2' PhysicalSizeZ='2'/></OME>"
TWO_UNITS = "not of all axes in one unit; give spacing"
VOXELS: dict[str, tuple[dict[str, Any], float | str]] = {
    "ImageJ, three lengths": (imagej(spacing=3.0), 12 * 0.5 * 0.25 * 3.0),
    "OME": (ome(X=0.5, Y=0.2, Z=2.0), 12 * 0.2),
    "ImageJ, .5": ({"pages": 1, "resolution": (4.0, 4.0), "description": BY_HAND, "metadata": None}, 12 / 16),
    "OME in single quotes": ({"description": QUOTES, "metadata": None}, 12 * 0.2),
    "JSON of tifffile": ({"resolution": (2.0, 2.0), "metadata": {"axes": "ZYX", "spacing": 3.0}}, 12 * 0.75),
    "OME in two units": (ome(X=0.5, Y=0.5, Z=2.0, ZUnit="nm"), TWO_UNITS),
    "OME without distance of pages": (ome(X=0.5, Y=0.5), TWO_UNITS),
    "ImageJ without distance of pages": (imagej(), TWO_UNITS),
    "centimetres": ({"pages": 1, "resolution": (10.0, 20.0), "resolutionunit": 3}, 12 * 0.1 * 0.05),
    "dots of a printer": ({"pages": 1, "resolution": (300, 300), "resolutionunit": 2}, 12.0),
    "nothing": ({"pages": 1}, 12.0),
}


@pytest.mark.parametrize(("settings", "right"), VOXELS.values(), ids=VOXELS)
def test_lengths_of_voxels_are_those_of_the_file(settings: dict[str, Any], right: float | str, tmp_path: Path) -> None:
    image(tmp_path, **settings)
    table = {"kind": "voxels", "files": ["a.tif"]}
    if isinstance(right, str):
        refused(tmp_path, right, **table)
    else:
        assert built(tmp_path, **table)["volume"].tolist() == pytest.approx([right] * 2)
    assert built(tmp_path, **table, spacing=1.0)["volume"].tolist() == [12.0, 12.0]


@pytest.mark.parametrize(
    ("settings", "unit"),
    [
        (ome(X=1.0, Y=1.0, Z=1.0), "um^3"),
        (ome(X=9.0, Y=9.0, Z=9.0, XUnit="nm", YUnit="nm", ZUnit="nm"), "nm^3"),
        (imagej(spacing=3.0), "um^3"),
        (imagej(spacing=3.0, unit="\\u00B5m"), "um^3"),
        (imagej(spacing=3.0, unit="pixel"), ""),
        ({"pages": 1, "resolution": (10.0, 20.0), "resolutionunit": 3}, "cm^2"),
        ({"pages": 1}, ""),
    ],
)
def test_volumes_of_voxels_have_the_unit_of_the_file(settings: dict[str, Any], unit: str, tmp_path: Path) -> None:
    image(tmp_path, **settings)
    graph = built(tmp_path, kind="voxels", files=["a.tif"])
    assert graph.fields["volume"].unit == unit and graph.fields["area"].unit == unit.translate({51: "2", 50: ""}).strip(
        "^"
    )
    assert built(tmp_path, kind="voxels", files=["a.tif"], spacing=1.0).fields["volume"].unit == ""


def test_a_tiff_without_its_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    refused(tmp_path, "pip install 'hydragnn-ensemble[images]'", kind="voxels", files=["a.tif"])


GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}
<graph edgedefault="directed"><node id="x">{own}</node><node id="y"/><edge source="x" target="y"/></graph></graphml>"""
KEY = '<key id="k" for="{place}" attr.name="v" attr.type="{kind}"><default>{value}</default></key>'
DEFAULTS = {
    "nodes": ("node", "double", "5.5", "node", [1.0, 5.5]),
    "whole numbers of nodes": ("node", "int", "7", "node", [1.0, 7.0]),
    "edges": ("edge", "double", "2.5", "edge", [2.5]),
    "truth of edges": ("edge", "boolean", "false", "edge", [0.0]),
    "the graph": ("graph", "float", "3", "graph", [3.0]),
    "all, as nodes": ("all", "int", "4", "node", [1.0, 4.0]),
    "all, as the graph": ("all", "int", "4", "graph", [4.0]),
}


@pytest.mark.parametrize(("place", "kind", "value", "on", "right"), DEFAULTS.values(), ids=DEFAULTS)
def test_graphml_has_defaults(place: str, kind: str, value: str, on: str, right: list[float], tmp_path: Path) -> None:
    own = '<data key="k">1</data>' if on == "node" else ""
    text = GRAPHML.format(keys=KEY.format(place=place, kind=kind, value=value), own=own)
    (tmp_path / "a.graphml").write_text(text)
    graph = built(tmp_path, kind="networkx", files=["a.graphml"], fields=[{"name": "v", "on": on}])
    assert graph["v"].tolist() == right


CONTRADICTIONS = {
    "Z": "1\nProperties=species:S:1:pos:R:3:Z:I:1\nCu 0 0 0 47\n",
    "atomic_numbers": "1\nProperties=species:S:1:pos:R:3:atomic_numbers:I:1\nCu 0 0 0 47\n",
    "numbers first": "1\nProperties=numbers:I:1:species:S:1:pos:R:3\n47 Cu 0 0 0\n",
    "the second atom": "2\nProperties=species:S:1:Z:I:1:pos:R:3\nCu 29 0 0 0\nAg 29 3 0 0\n",
    "beside forces": "1\nProperties=species:S:1:pos:R:3:forces:R:3:Z:I:1\nH 0 0 0 0 0 0 2\n",
}


@pytest.mark.parametrize("index", [":", "0", "::2"])
@pytest.mark.parametrize("text", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_atomic_numbers_that_contradict_the_species_are_refused(text: str, index: str, tmp_path: Path) -> None:
    refuses(r"atom . is .* and has the atomic number \d+; correct one of them", atoms, tmp_path, text, index=index)


def test_frames_of_an_index_are_checked_like_all(tmp_path: Path) -> None:
    frames = "".join(f"1\nenergy={k}\nCu 0 0 {k}\n" for k in range(5))
    energy = [{"name": "energy", "on": "graph", "role": "target"}]
    for index, right in (("::2", [0.0, 2.0, 4.0]), ("-1", [4.0]), ("::-2", [4.0, 2.0, 0.0]), ("-3:", [2.0, 3.0, 4.0])):
        assert atoms(tmp_path, frames, index=index, fields=energy)["energy"].tolist() == right
    refuses("stress is no symmetric tensor", atoms, tmp_path, BOX.format('stress="0 1 2 3 4 5 6 7 8"'), index="-1")
