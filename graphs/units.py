"""Units of energies, derivatives and lengths, parsed by pint."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

CLOSE_NUCLEI = "close_nuclei"  # attribute of stores whose nuclei may be nearer than any bond
FAILED_STEPS = "failed_steps"  # attribute of a store with notes on steps that did not converge, which it lacks
LENGTH_UNIT = "length_unit"  # attribute of a store that names the unit of its positions and cells
OF_ASE = {"energy": "eV", "forces": "eV/Angstrom", "stress": "eV/Angstrom^{dim}", "length": "Angstrom"}
ATOMIC = {"energy": "Ha", "forces": "Ha/bohr", "stress": "Ha/bohr^{dim}", "length": "bohr"}
ATOMIC_NAMES = ("a.u.", "au", "atomic units")
USUAL = {
    "energy": "eV, meV, Ha, Ry, kcal/mol or kJ/mol",
    "forces": "eV/Angstrom, Ha/bohr, Ry/bohr or kcal/mol/Angstrom",
    "stress": "eV/Angstrom^3, GPa or kbar",
    "length": "Angstrom, bohr or nm",
}
PINT_NAMES = {
    **dict.fromkeys(("A", "Å", "Ang", "ang", "angstroms"), "angstrom"),
    "Ha": "hartree",
    **dict.fromkeys(("mHa", "mEh"), "millihartree"),
    **dict.fromkeys(("a0", "a_0", "au"), "bohr"),
    "ev": "eV",
    "atoms": "atom",
}
"""Names that pint does not know, or takes for something else (A for ampere, au for the distance of the sun)."""
LONGEST, HUGE = 100, 1e100  # characters of a unit, also its largest power; and its size in base units
POWER = re.compile(r"\b[^\W\d]\w*\s*\*\*\s*\(?\s*-?\s*\d(\.\d+)?(?![\d.])")
"""The power of a unit as pint reads it; powers of numbers, which may have no end, are no units."""
CLOSE = 1e-6  # two scales are equal where they differ by less: programs use constants of different years


def in_ase_units(unit: str, what: str, where: str, dim: int = 3) -> float:
    """Return one ``unit`` in ASE's units (eV, Angstrom and quotients).

    ``what``: energy, forces, stress or length. A stress is an energy per volume of ``dim`` dimensions. InputError that begins with ``where`` for a unit that is not known, or of
    something else.

    >>> round(in_ase_units("kcal/mol", "energy", "energy"), 7), round(in_ase_units("GPa", "stress", "stress"), 9)
    (0.0433641, 0.006241509)
    >>> round(in_ase_units("Ha/Bohr", "forces", "forces"), 5), in_ase_units("eV/A", "forces", "forces")
    (51.42207, 1.0)
    """
    of_ase = OF_ASE[what].format(dim=dim)
    if unit in (of_ase, of_ase.replace("Angstrom", "A"), of_ase.replace("Angstrom", "Å")):
        return 1.0  # parsing takes half a second the first time
    try:
        value, kind = parsed(ATOMIC[what].format(dim=dim) if unit in ATOMIC_NAMES else unit)
    except Exception as error:  # pint raises whatever its parser raises
        raise InputError(
            f"{where}: the unit {unit!r:.80} is not known; write {USUAL[what]}, or leave it out"
        ) from error
    if "[atom]" in kind:
        raise InputError(
            f"{where} is in {unit}, and an energy head predicts the sum over atoms; build the store with totals, or predict it with "
            'kind = "scalar"'
        )
    expected, own_kind = parsed(of_ase)
    if kind != own_kind:
        raise InputError(f"{where}: {unit!r} is no unit of {what}; write {USUAL[what]}, or leave it out")
    return value / expected


@cache
def parsed(unit: str) -> tuple[float, dict[str, float]]:
    """Return a unit in base units and its dimensions; pint's errors.

    ValueError for a unit that is long, has powers other than small ones of names, or has no finite size above 0.
    """
    quantity = _quantity(1.0, unit)
    moles = quantity.dimensionality.get("[substance]", 0)
    quantity = (quantity * _registry().Quantity(6.02214076e23, "1/mol") ** moles).to_base_units()
    size, powers = float(quantity.magnitude), {name: float(one) for name, one in quantity.dimensionality.items()}
    if not 1 / HUGE < size < HUGE or any(abs(power) > LONGEST for power in powers.values()):
        raise ValueError(f"size {size}, powers {powers}")
    return size, powers


def _quantity(value: float, unit: str) -> Any:
    """Return a value in base units; errors of ``parsed``."""
    from pint.util import string_preprocessor

    text = string_preprocessor(re.sub(r"([A-Za-zÅ])(-?[1-9])\b", r"\1**\2", unit[: LONGEST + 1].strip("[] ")))
    if len(unit) > LONGEST or "**" in POWER.sub(" ", text):
        raise ValueError(text)
    registry = _registry()  # Mbar is no mbar, but Kelvin is kelvin
    text = re.sub(r"\b[A-Z][a-z]{3,}\b", lambda match: match[0] if match[0] in registry else match[0].lower(), text)
    text = re.sub(r"\b[^\W\d]\w*", lambda match: PINT_NAMES.get(match[0], match[0]), text)
    return registry.Quantity(value, text).to_base_units()


DIMENSIONS = ("[length]", "[mass]", "[time]", "[current]", "[temperature]", "[luminosity]")


@cache
def unit_features(unit: str) -> tuple[float, ...]:
    """Return exponents of a unit's dimensions, whether it is unknown, and 1.

    Units that differ by a factor have the same features. A unit that is not stated or not known has the exponents 0.

    >>> unit_features("W/m^2") == unit_features("kg/s^3") == (0.0, 1.0, -3.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    True
    >>> unit_features("")
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    """
    try:
        powers, unknown = (parsed(unit)[1], 0.0) if unit else ({}, 1.0)
    except Exception:  # pint raises whatever its parser raises
        powers, unknown = {}, 1.0
    return (*(powers.get(name, 0.0) for name in DIMENSIONS), unknown, 1.0)


def unit_factor(unit: str, other: str) -> float | None:
    """Return one ``unit`` in ``other``; None without such a factor.

    >>> unit_factor("km", "m"), unit_factor("Kelvin", "K"), unit_factor("Mbar", "GPa"), unit_factor("degC", "K")
    (1000.0, 1.0, 100.0, None)
    """
    try:
        (value, kind), (expected, own_kind) = parsed(unit), parsed(other)
        has_offset = any(_quantity(0.0, one).magnitude for one in (unit, other))
    except Exception:  # as above
        return None
    return value / expected if kind == own_kind and not has_offset else None


@cache
def _registry() -> Any:
    import pint

    registry: Any = pint.UnitRegistry()
    registry.define("atom = [atom]")
    return registry


def label_factors(
    energy: Field, derived: Mapping[str, Field], attributes: Mapping[str, Any], dim: int = 3
) -> dict[str, float]:
    """Return the factor of each derivative's unit to its field's.

    ``derived`` are the fields of ``forces`` and ``stress``. What has no unit fits the others. Positions are in the ``length_unit``
    of the store's attributes, or in Angstrom. InputError for units that are not known or do not fit together.

    >>> forces = Field(name="forces", on="node", shape=(3,), unit="kcal/mol/Angstrom", parity="vector")
    >>> round(label_factors(Field(name="energy", on="graph", unit="eV"), {"forces": forces}, {"source": "ase"})["forces"], 4)
    23.0605
    """
    fields = {"energy": energy, **derived}
    if not derived:
        if re.search(r"(/|\bper\b) *atoms?\b", energy.unit):
            in_ase_units(energy.unit, "energy", f"field {energy.name}")
        return {}
    sizes = {what: in_ase_units(one.unit, what, f"field {one.name}", dim) for what, one in fields.items() if one.unit}
    name = getattr(derived.get("stress"), "name", "").lower()
    if "virial" in name and "stress" not in name and "stress" not in sizes:
        problem = f'field {name}: a head predicts stress, and virials become it by convert = "virial" in the build file'
        raise InputError(f"{problem}; or declare the unit")
    if not sizes:
        return dict.fromkeys(derived, 1.0)
    powers = {"energy": 0, "forces": 1, "stress": dim}
    length = length_in_angstrom(attributes)
    size, power = next((size, powers[what]) for what, size in sizes.items())
    energies = size * length**power  # eV in one unit of the predicted energy
    factors = {what: energies / length ** powers[what] / sizes[what] if what in sizes else 1.0 for what in derived}
    factors = {what: 1.0 if abs(factor - 1.0) < CLOSE else factor for what, factor in factors.items()}
    for what, factor in factors.items():
        if factor != 1.0 and not knows_length(attributes):
            others = " and ".join(f"{fields[other].name} in {fields[other].unit}" for other in sizes if other != what)
            raise InputError(
                f"{fields[what].name} in {fields[what].unit} does not fit {others} and positions in Angstrom, by a factor of {factor:.8g}; "
                "name the unit of positions in the build file (attributes.length_unit), by which labels are converted, or correct the "
                "units or the values (scale)"
            )
    return factors


def knows_length(attributes: Mapping[str, Any]) -> bool:
    """Return True where a store states the unit of positions."""
    return LENGTH_UNIT in attributes or attributes.get("source") == "ase"


def angstrom_of(attributes: Mapping[str, Any], fields: Iterable[Field]) -> float:
    """Return positions' unit in Angstrom; 0 if nuclei may be near."""
    nuclei = any(field.name == ATOMIC_NUMBERS for field in fields) and not attributes.get(CLOSE_NUCLEI)
    return length_in_angstrom(attributes) if nuclei else 0.0


def length_in_angstrom(attributes: Mapping[str, Any]) -> float:
    """Return a store's unit of positions in Angstrom, 1 by default."""
    unit = attributes.get(LENGTH_UNIT, "Angstrom")
    return in_ase_units(str(unit), "length", f"the store's attribute {LENGTH_UNIT}")
