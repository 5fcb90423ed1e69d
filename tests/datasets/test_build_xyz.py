"""Extended XYZ is divided into structures before anything of it is understood."""

import gzip
from pathlib import Path

import ase.io
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.graphs.atomic import from_ase
from tests.datasets.test_build import built, structures

VEC_CELL = "2\nno lattice\nCu 0 0 0\nCu 1.8 1.8 0\nVEC1 3.6 0 0\nVEC2 0 3.6 0\nVEC3 0 0 3.6\n"


@pytest.mark.parametrize("name", ["mixed.xyz", "mixed.extxyz.gz"])
def test_extended_xyz_is_divided_as_ase_divides_it(tmp_path: Path, name: str) -> None:
    ase.io.write(tmp_path / "plain.xyz", structures(2), format="extxyz")
    text = VEC_CELL + (tmp_path / "plain.xyz").read_text() + VEC_CELL + "\n\n"
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write(text)
    actual = built(tmp_path, kind="ase", files=[name], cutoff=3.0)
    expected = [from_ase(atoms, 3.0) for atoms in ase.io.read(tmp_path / name, ":")]
    assert actual.num_graphs == len(expected) == 4
    assert actual.counts("edge").tolist() == [graph.num_edges for graph in expected]
    assert torch.equal(actual.cell, torch.cat([graph.cell for graph in expected]))


def test_structures_behind_an_empty_line_are_not_lost_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "two.xyz").write_text(VEC_CELL + "\n" + VEC_CELL)
    with pytest.raises(InputError, match=r"structure 1 cannot be read by ASE .* an empty line"):
        built(tmp_path, kind="ase", files=["two.xyz"], cutoff=3.0)


def test_a_structure_that_cannot_be_read_is_named_by_its_number(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "some.xyz", structures(3), format="extxyz")
    lines = (tmp_path / "some.xyz").read_text().splitlines(keepends=True)
    (tmp_path / "some.xyz").write_text("".join([*lines[:-1], "Cu one two three\n"]))
    with pytest.raises(InputError, match="structure 2 cannot be read by ASE"):
        built(tmp_path, kind="ase", files=["some.xyz"], cutoff=3.0)
