"""Foreign members in the manifest: text and numbers, never code."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pydantic
from ase import Atoms


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A structure, by whose energy a changed potential is noticed."""

    numbers: Sequence[int]
    positions: Sequence[Sequence[float]]  # Angstrom
    cell: Sequence[Sequence[float]]
    pbc: Sequence[bool]
    energy: float  # eV, of the calculator itself

    @property
    def atoms(self) -> Atoms:
        """Return the structure."""
        return Atoms(self.numbers, self.positions, cell=self.cell, pbc=self.pbc)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignEntry:
    """A function that makes a calculator, and its reference energies."""

    reference: str
    """``package.module:factory``."""
    energies: Mapping[str, float] = field(default_factory=dict)
    """Reference energy of each element in eV, which is added to the calculator's."""
    probe: Probe | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def foreign_from_json(value: Any) -> ForeignEntry:
    """Return the description that ``to_json`` wrote; ValueError on anything else."""
    return pydantic.TypeAdapter(ForeignEntry).validate_python(value)
