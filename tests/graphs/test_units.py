"""Units as people write them are those of ASE times its own factors, and what does not fit together is refused."""

from typing import Any

import pytest
from ase import units

from hydragnn.base.errors import InputError
from hydragnn.graphs import Field
from hydragnn.graphs.units import in_ase_units, label_factors, unit_features
from tests.refusals import refuses

PER_MOL, HA_PER_BOHR3 = units.kcal / units.mol, units.Ha / units.Bohr**3
WRITTEN = {
    "energy": {
        "eV": 1.0,
        "meV": 1e-3,
        **dict.fromkeys(["Ha", "hartree", "Hartree", "Eh", "a.u.", "au"], units.Ha),
        **dict.fromkeys(["Ry", "rydberg"], units.Ry),
        **dict.fromkeys(["kcal/mol", "kcal mol^-1", "kcal mol-1"], PER_MOL),
        "kJ/mol": units.kJ / units.mol,
        "J": units.J,
    },
    "forces": {
        **dict.fromkeys(["eV/A", "eV/Å", "eV/Ang", "eV/Angstrom", "eV A^-1", "eV A-1", "eV·Å⁻¹", "eV per Angstrom"], 1),
        **dict.fromkeys(["Ha/Bohr", "Ha/bohr", "hartree/a0", "a.u."], units.Ha / units.Bohr),
        **dict.fromkeys(["Ry/bohr", "Ry/au"], units.Ry / units.Bohr),
        **dict.fromkeys(["kcal/mol/A", "kcal/(mol*Angstrom)"], PER_MOL),
        "kJ/mol/nm": units.kJ / units.mol / units.nm,
    },
    "stress": {
        **dict.fromkeys(["eV/A^3", "eV/A3", "eV/Å³", "eV/Angstrom**3", "eV A⁻³", "eV / (Å ** 3)"], 1.0),
        "GPa": units.GPa,
        "kbar": 0.1 * units.GPa,
        "Ha/bohr^3": HA_PER_BOHR3,
    },
}


@pytest.mark.parametrize("what", WRITTEN)
def test_units_as_people_write_them_have_the_size_that_ase_gives_them(what: Any) -> None:
    actual = {unit: in_ase_units(unit, what, what) for unit in WRITTEN[what]}
    assert actual == pytest.approx(WRITTEN[what], rel=1e-6)  # constants of another year


REFUSED = {
    "per atom": ("energy", "meV/atom", "an energy head predicts the sum over atoms"),
    "nothing": ("energy", "of the code", "the unit 'of the code' is not known; write eV,"),
    "no energy": ("energy", "K", "'K' is no unit of energy"),
    "no force": ("forces", "eV", "'eV' is no unit of forces; write eV/Angstrom,"),
    "kilobytes": ("stress", "kB", "'kB' is no unit of stress; write eV/Angstrom^3, GPa or kbar"),
}


@pytest.mark.parametrize(("what", "unit", "message"), REFUSED.values(), ids=REFUSED)
def test_other_units_are_refused(what: Any, unit: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        in_ase_units(unit, what, "field q")
    assert "field q" in str(caught.value) and message in str(caught.value)


def fields(energy: str, forces: str, stress: str = "", name: str = "stress") -> tuple[Field, dict[str, Field]]:
    derived = {
        "forces": Field(name="forces", on="node", shape=(3,), unit=forces, parity="vector", role="target"),
        "stress": Field(name=name, on="graph", shape=(3, 3), unit=stress, parity="tensor", role="target"),
    }
    return Field(name="energy", on="graph", unit=energy, role="target"), derived


ASE = {"source": "ase"}
FACTORS = {
    "one system": (("eV", "eV/A", "eV/A^3"), ASE, {"forces": 1.0, "stress": 1.0}),
    "none is declared": (("", "", ""), {}, {"forces": 1.0, "stress": 1.0}),
    "GPa": (("eV", "eV/A", "GPa"), ASE, {"forces": 1.0, "stress": 1 / units.GPa}),
    "chemists' energies": (("kcal/mol", "eV/A", ""), ASE, {"forces": PER_MOL, "stress": 1.0}),
    "bohr": (("Ha", "Ha/bohr", "GPa"), {"length_unit": "bohr"}, {"forces": 1.0, "stress": HA_PER_BOHR3 / units.GPa}),
    "Angstrom": (("Ha", "Ha/bohr", ""), {"length_unit": "Angstrom"}, {"forces": units.Bohr, "stress": 1.0}),
}


@pytest.mark.parametrize(("texts", "attributes", "expected"), FACTORS.values(), ids=FACTORS)
def test_labels_have_the_factor_between_their_and_the_derived_unit(texts: Any, attributes: Any, expected: Any) -> None:
    assert label_factors(*fields(*texts), attributes) == pytest.approx(expected, rel=1e-6)


UNFIT = [
    (fields("eV", "eV/A", "GPa"), {}, "stress in GPa does not fit energy in eV and forces .* by a factor of 160.2176"),
    (fields("Ha", "Ha/bohr"), {}, "forces in Ha/bohr does not fit energy in Ha and positions in Angstrom"),
    (fields("eV", "eV/A"), {"length_unit": "box"}, "attribute length_unit: the unit 'box' is not known"),
    (fields("eV", "eV/A", name="virial"), {}, 'virials become it by convert = "virial"'),
    (fields("eV", "eV/A", "eV", name="virial"), {}, "field virial: 'eV' is no unit of stress"),
]


@pytest.mark.parametrize(("pair", "attributes", "message"), UNFIT, ids=[message for *_, message in UNFIT])
def test_units_that_do_not_fit_are_refused_with_the_factor(pair: Any, attributes: dict[str, Any], message: str) -> None:
    refuses(message, label_factors, *pair, attributes)


def test_an_energy_without_derivatives_may_be_anything_but_per_atom() -> None:
    energy = Field(name="volume", on="graph", unit="Angstrom^3", role="target")
    assert label_factors(energy, {}, {}) == {}
    for unit in ("eV/atom", "meV per atom"):
        refuses("sum over atoms", label_factors, Field(name="energy", on="graph", unit=unit, role="target"), {}, {})


WITHOUT_END = (
    *("2**2**2**2**2**2", "((9**9)**9)**9 eV", "eV^9^9^9^9", "m**9999999999", "eV" * 99, "m" * 300_000),
    *("(" * 100_000 + "m" + ")" * 100_000, "9⁹⁹⁹⁹⁹⁹⁹ eV", "m⁹⁹⁹⁹⁹⁹⁹", "(9⁹)⁹ m", "m^(9^9^9)", "9⁹·9⁹ eV"),
    *("m**٩٩٩٩٩٩٩٩", "9e999999999 eV", "m**9e999", "9e9**9**9 eV", "(9e99*eV)^9"),
)


@pytest.mark.parametrize("text", WITHOUT_END, ids=lambda text: text[:20])
def test_a_unit_that_would_take_for_ever_is_refused_at_once(text: str) -> None:
    with pytest.raises(InputError, match="is not known") as caught:
        in_ase_units(text, "energy", "field energy")
    assert len(str(caught.value)) < 300
    assert unit_features(text) == unit_features("no unit at all")


def test_a_description_of_a_field_holds_no_book() -> None:
    refuses("more than", Field, name="a", on="node", unit="m" * 300_000)
