"""Properties of ASE among targets, and their units."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn.base.errors import InputError
from hydragnn.graphs.units import in_ase_units, length_in_angstrom
from hydragnn.models import Target


def properties_of(targets: Sequence[Target]) -> dict[str, str]:
    """Return the targets that are ASE's properties; InputError without an energy."""
    source = next((target.source for target in targets if target.derivative == "forces"), "energy")
    target_of_energy = next((target for target in targets if target.field.name == source), None)
    energy = None if target_of_energy is None else target_of_energy.field
    if target_of_energy is None or energy is None or energy.on != "graph" or energy.width != 1 or energy.classes:
        raise InputError(
            "the ensemble predicts no energy, so it cannot be a calculator; train a head with forces, or named energy"
        )
    derived: dict[str, str] = {target.derivative: target.name for target in targets if target.source == source}
    return {"energy": target_of_energy.name, **derived}


def factors_of(targets: Sequence[Target], attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return ASE's units per unit of each property; InputError for unknown units.

    ``attributes`` are those of the training store. A property without a unit fits the others, and is in ASE's where none has one.
    """
    if length_in_angstrom(attributes) != 1.0:
        raise InputError(
            "the positions of the training data are not in Angstrom, and those of ASE are; build the store in Angstrom"
        )
    fields, names = {target.name: target.field for target in targets}, properties_of(targets)
    units = {what: fields[name].unit for what, name in names.items()}
    factor_of = {what: in_ase_units(unit, what, f"field {names[what]}") for what, unit in units.items() if unit}
    return {what: factor_of.get(what, next(iter(factor_of.values()), 1.0)) for what in units}
