"""Cases of the second look: geometry and structures of files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase.build import bulk

from hydragnn.datasets import open_store
from tests.cases.running import Answer, Command, build, hydragnn

GAP = '[[fields]]\nname = "gap"\non = "graph"\nunit = "eV"\nrole = "target"\n'
NUMBERS = '[[fields]]\nname = "atomic_numbers"\nkey = "{key}"\non = "node"\nclasses = 119\ndtype = "int64"\n'
CIF = """data_x
_cell_length_a {a}
_cell_length_b {a}
_cell_length_c {c}
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma {gamma}
{group}
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
"""
GRAPHML = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="node" attr.name="demand" attr.type="double"><default>5.0</default></key>
<graph edgedefault="undirected"><node id="x"><data key="d0">1.0</data></node><node id="y"/><edge source="x" target="y"/></graph>
</graphml>
"""


def tried(folder: Path, text: str) -> Command:
    """Build the store ``a.h5``, or see why not."""
    (folder / "a.toml").write_text(text, encoding="utf-8")
    return hydragnn(folder, "data", "build", "a.toml", "--out", "a.h5")


def refused(built: Command, word: str) -> Answer:
    return Answer(f"a sentence: {word}", built.sentence, built.refused and word in built.text)


def npz_cell(folder: Path) -> Answer:
    """A cell in npz without periodic axes asks for them."""
    crystal = bulk("Cu", cubic=True)
    arrays = {"Z": crystal.numbers, "R": crystal.positions, "cell": crystal.cell.array}
    np.savez(folder / "a.npz", **{key: np.stack([value] * 5) for key, value in arrays.items()})
    text = f'kind = "npz"\nfiles = ["a.npz"]\npositions = "R"\ncell = "cell"\ncutoff = 5.0\n{NUMBERS.format(key="Z")}'
    return refused(tried(folder, text), "give periodic")


def disorder(folder: Path) -> Answer:
    """Sites that are occupied in part are refused."""
    head = CIF.format(a=4, c=4, gamma=90, group="_symmetry_space_group_name_H-M 'P 1'")
    (folder / "x.cif").write_text(f"{head}_atom_site_occupancy\nCu1 Cu 0 0 0 0.6\nAg1 Ag 0 0 0 0.4\n")
    (folder / "gaps.csv").write_text("file,gap\nx,1\n")
    text = f'kind = "ase"\nfiles = ["x.cif"]\ncutoff = 4.0\nlabels = "gaps.csv"\n{GAP}'
    return refused(tried(folder, text), "occupied")


def rounded(folder: Path) -> Answer:
    """Copies by symmetry that do not fall together are nuclei too near."""
    head = CIF.format(a=3.2, c=5.2, gamma=120, group="_symmetry_Int_Tables_number 194")
    (folder / "m.cif").write_text(f"{head}Mg1 Mg .333 .667 0.25\n")
    return refused(tried(folder, 'kind = "ase"\nfiles = ["m.cif"]\ncutoff = 4.0\n'), "0.0032 apart")


def imagej(folder: Path) -> Answer:
    """Lengths of voxels that ImageJ states are used."""
    import tifffile

    labels = np.repeat(np.array([1, 2], "u2"), 12).reshape(2, 3, 4)
    metadata = {"spacing": 3.0, "unit": "um", "axes": "ZYX"}
    tifffile.imwrite(folder / "s.tif", labels, imagej=True, resolution=(2.0, 2.0), metadata=metadata)
    seen = open_store(build(folder, "s", 'kind = "voxels"\nfiles = ["s.tif"]\n')).read([0])["volume"].tolist()
    return Answer("volumes 9, 9", f"volumes {seen}", np.allclose(seen, 9.0))


def graphml(folder: Path) -> Answer:
    """A node without a value has the default of its key."""
    (folder / "d.graphml").write_text(GRAPHML)
    text = 'kind = "networkx"\nfiles = ["d.graphml"]\n[[fields]]\nname = "demand"\non = "node"\n'
    seen = open_store(build(folder, "d", text)).read([0])["demand"].tolist()
    return Answer("1, 5", str(seen), seen == [1.0, 5.0])


def frames_npz(folder: Path) -> Answer:
    """Atomic numbers that stand once for all frames are read, or refused."""
    frames = np.eye(5)[:, :3] * 1.1 + np.zeros((6, 1, 1))
    np.savez(folder / "a.npz", z=[6, 1, 1, 1, 1], R=frames, E=np.arange(6.0))
    text = f'kind = "npz"\nfiles = ["a.npz"]\npositions = "R"\ncutoff = 4.0\n{NUMBERS.format(key="z")}'
    built = tried(folder, f'{text}[[fields]]\nname = "energy"\nkey = "E"\non = "graph"\nunit = "eV"\nrole = "target"\n')
    return _graphs_or_sentence(folder, built, 6)


def mptrj(folder: Path) -> Answer:
    """Frames by material, with values beside the structures, are read, or refused."""
    site = {"species": [{"element": "Cu", "occu": 1}], "abc": [0, 0, 0], "xyz": [0, 0, 0]}
    lattice = {"matrix": [[4, 0, 0], [0, 4, 0], [0, 0, 4]]}
    frame = {"structure": {"@class": "Structure", "lattice": lattice, "sites": [site]}, "corrected_total_energy": -1.0}
    (folder / "m.json").write_text(json.dumps({"mp-1": {"a": frame, "b": frame}, "mp-2": {"c": frame}}))
    return _graphs_or_sentence(folder, tried(folder, 'kind = "ase"\nfiles = ["m.json"]\ncutoff = 5.0\n'), 3)


def _graphs_or_sentence(folder: Path, built: Command, graphs: int) -> Answer:
    right = built.refused if built.code else len(open_store(folder / "a.h5")) == graphs
    return Answer(f"{graphs} graphs, or a sentence", built.sentence, right)


CASES: dict[str, Callable[[Path], Answer]] = {
    "npz_cell": npz_cell,
    "cif_disorder": disorder,
    "cif_rounded": rounded,
    "imagej": imagej,
    "graphml": graphml,
    "rmd17_npz": frames_npz,
    "mptrj_json": mptrj,
}
