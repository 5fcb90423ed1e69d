"""Energies of isolated atoms come from a file or a table, one for each element."""

from pathlib import Path

import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn.base.settings import read_toml
from hydragnn.config import RunConfig, config_from_table
from hydragnn.datasets.isolated_atoms import isolated_atoms
from hydragnn.hpo.settings import read_campaign
from hydragnn.models.heads.kinds import EnergyHeadSettings
from tests.refusals import refuses

RUN = """
[data]
store = "store.h5"
[model]
kind = "painn"
[[heads]]
kind = "energy"
field = "energy"
references = "atoms.xyz"
"""
SEARCH = """
[search]
trials = 1
[search.space."model.hidden_dim"]
type = "int"
low = 8
high = 16
"""


def lone(symbol: str, energy: float | None, **info: object) -> Atoms:
    atoms = Atoms(symbol, info=info)
    if energy is not None:
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
    return atoms


def test_every_structure_gives_the_energy_of_its_element(tmp_path: Path) -> None:
    write(tmp_path / "atoms.xyz", [lone("H", -13.5), lone("O", -2037.25)])
    assert isolated_atoms(tmp_path / "atoms.xyz", "energy") == {"H": -13.5, "O": -2037.25}
    write(tmp_path / "named.xyz", [lone("H", None, total=-1.5)])
    assert isolated_atoms(tmp_path / "named.xyz", "total") == {"H": -1.5}


NO_ENERGY = [
    ([lone("H2", -1.0)], "structure 0: it has 2 atoms"),
    ([lone("H", -1.0), lone("O", -2.0), lone("H", -1.0)], "structure 2: H comes a second time"),
    ([lone("H", None, total=-1.0)], "no number under energy.*it has total"),
    ([lone("H", float("nan"))], "no number under energy"),
]


@pytest.mark.parametrize(("atoms", "sentence"), NO_ENERGY)
def test_what_is_no_isolated_atom_with_an_energy_is_refused(tmp_path: Path, atoms: list[Atoms], sentence: str) -> None:
    write(tmp_path / "atoms.xyz", atoms)
    refuses(sentence, isolated_atoms, tmp_path / "atoms.xyz", "energy")


def test_a_file_that_is_not_there_or_no_structures_is_refused(tmp_path: Path) -> None:
    refuses("does not exist", isolated_atoms, tmp_path / "atoms.xyz", "energy")
    (tmp_path / "atoms.xyz").write_text("one\n")
    refuses("cannot be read by ASE", isolated_atoms, tmp_path / "atoms.xyz", "energy")


def test_runs_and_campaigns_hold_the_energies_and_no_path(tmp_path: Path) -> None:
    """Paths count from the file that names them; what is kept does not depend on the file any more."""
    write(tmp_path / "atoms.xyz", [lone("H", -13.5), lone("O", -2037.25)])
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "campaign.toml").write_text(RUN + SEARCH)
    config = config_from_table(read_toml(tmp_path / "run.toml"), tmp_path / "run.toml")
    assert isinstance(config, RunConfig)
    (head,) = config.heads
    assert isinstance(head, EnergyHeadSettings) and head.references == {"H": -13.5, "O": -2037.25}
    assert RunConfig.parse(config.to_json()) == config
    campaign = read_campaign(tmp_path / "campaign.toml")
    assert campaign.base["heads"][0]["references"] == {"H": -13.5, "O": -2037.25}


@pytest.mark.parametrize(
    ("references", "sentence"),
    [
        ({"Hx": -1.0}, "Hx is no element"),
        ({"H": -1.0, "1": -2.0}, "1 comes a second time"),
        ({"H": "much"}, "a table of one energy per element"),
        ({}, "a table of one energy per element"),
        ("atoms.xyz", "was read by no configuration file"),
    ],
)
def test_a_table_has_one_energy_for_each_of_its_elements(references: object, sentence: str) -> None:
    refuses(sentence, EnergyHeadSettings.parse, {"field": "energy", "references": references})
