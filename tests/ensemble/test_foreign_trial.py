"""What a calculator of others gives is tried when it is taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, fcc111
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, Hookean

from hydragnn.base.errors import InputError
from hydragnn.ensemble.uses.foreign import check_scale, results_of
from hydragnn.ensemble.uses.foreign_trial import check_calculator

Change = Callable[[dict[str, Any], Atoms], dict[str, Any]]


class Changed(EMT):
    """EMT with results that a function changes."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def calculate(self, atoms: Any = None, *args: Any, **more: Any) -> None:
        super().calculate(atoms, *args, **more)
        self.results |= self.change(dict(self.results), atoms)
        self.results = {name: value for name, value in self.results.items() if value is not None}

    def get_property(self, name: str, *args: Any, **more: Any) -> Any:
        value = super().get_property(name, *args, **more)
        if name not in self.results:
            raise PropertyNotImplementedError(name)
        return value


def times(factor: float, *names: str) -> Change:
    """Return a change of some results by a factor."""
    return lambda results, _: {name: results[name] * factor for name in names if name in results}


def reordered(*order: int) -> Change:
    """Return a change of the order of six components."""
    return lambda results, _: {"stress": results["stress"][list(order)]} if "stress" in results else {}


def as_of_a_molecule(_: Any, atoms: Atoms) -> dict[str, Any]:
    lone = Atoms(atoms.numbers, atoms.positions, calculator=EMT())
    return {"energy": lone.get_potential_energy(), "forces": lone.get_forces(), "stress": None}


def random_numbers() -> Change:
    random = np.random.default_rng(0)
    return lambda results, atoms: {"energy": results["energy"] + random.normal(0, 0.05) * len(atoms)}


def in_single_precision(results: dict[str, Any], atoms: Atoms) -> dict[str, Any]:
    """As a network of five million weights on a GPU: rounding of 1e-6 of 10 eV per atom."""
    random = np.random.default_rng(int(1e6 * abs(atoms.positions.sum())))
    zero = 10 * len(atoms)
    return {
        "energy": np.float32(results["energy"] - zero) + 1e-5 * random.normal() * len(atoms) ** 0.5,
        "forces": results["forces"].astype(np.float32) + 1e-4 * random.normal(size=results["forces"].shape),
    }


WRONG: dict[str, tuple[Change, str]] = {
    "stress in bar": (times(1e4 * 160.2177, "stress"), r"factor of 1\.6\d*e\+06 \(bar\?\)"),
    "stress in kbar": (times(1602.177, "stress"), r"\(kbar\?\)"),
    "stress in atomic units": (times(units.Bohr**3 / units.Hartree, "stress"), r"\(Hartree/Bohr\^3\?\)"),
    "pressure": (times(-1.0, "stress"), r"its stress .* \(the other sign\?\)"),
    "pressure in GPa": (times(-160.2177, "stress"), "GPa with the other sign"),
    "no division by the volume": (
        lambda results, atoms: {"stress": results["stress"] * atoms.get_volume()} if "stress" in results else {},
        "a virial in eV",
    ),
    "order of VASP": (reordered(0, 1, 2, 5, 3, 4), "its stress and the derivative"),
    "two components exchanged": (reordered(0, 1, 2, 5, 4, 3), "its stress and the derivative"),
    "axes exchanged": (reordered(2, 1, 0, 3, 4, 5), "its stress and the derivative"),
    "no stress at all": (times(0.0, "stress"), "its stress and the derivative of its energy differ by a factor of -?0"),
    "forces in Hartree/Bohr": (times(units.Bohr / units.Hartree, "forces"), r"\(Hartree/Bohr\?\)"),
    "forces in kcal": (times(23.06, "forces"), "kcal/mol/Angstrom"),
    "gradients": (times(-1.0, "forces"), r"its forces .* \(the other sign\?\)"),
    "energies in Rydberg": (times(1 / units.Rydberg, "energy"), "Rydberg"),
    "energies per atom": (
        lambda results, atoms: {"energy": results["energy"] / len(atoms)},
        "not twice|energies per atom",
    ),
    "random": (random_numbers(), "a second time"),
    "blind to periodic axes": (as_of_a_molecule, "in another order and place|a cell twice as long"),
    "forces of other atoms": (lambda results, _: {"forces": results["forces"][::-1]}, "its forces"),
    "forces of the order of elements": (
        lambda results, atoms: {"forces": results["forces"] * np.arange(len(atoms))[:, None]},
        "its forces differ in another order",
    ),
}


def alloy() -> Atoms:
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[0] = "Ag"
    return atoms


@pytest.mark.parametrize("name", WRONG)
def test_results_in_other_units_signs_and_orders_are_not_taken(name: str) -> None:
    change, words = WRONG[name]
    with pytest.raises(InputError, match=rf"^other:make cannot be taken: .*{words}"):
        check_calculator("other:make", partial(results_of, calculator=Changed(change)), [alloy()])


def in_atomic_units(results: dict[str, Any], _: Atoms) -> dict[str, Any]:
    powers = {"energy": 0, "forces": 1, "stress": 3}
    return {name: results[name] * units.Bohr ** powers[name] / units.Hartree for name in powers if name in results}


@pytest.mark.parametrize(
    "structure",
    [
        alloy(),
        fcc111("Cu", (1, 1, 3), vacuum=5.0),
        Atoms("Cu2", [[0, 0, 0], [2.0, 0, 0]]),
        Atoms("Cu3", [[0, 0, 0], [0, 0, 2.4], [0, 2.1, 1]]),
    ],
)
def test_results_that_are_all_in_atomic_units_are_not_taken(structure: Atoms) -> None:
    with pytest.raises(InputError, match=r"its forces and the derivative of its energy differ by a factor of 0\.5"):
        check_calculator("other:make", partial(results_of, calculator=Changed(in_atomic_units)), [structure])


RIGHT: dict[str, Change] = {
    "as it is": lambda *_: {},
    "single precision": in_single_precision,
    "another zero": lambda results, atoms: {"energy": results["energy"] - 5e3 * len(atoms)},
    "no stress": lambda *_: {"stress": None},
    "energies alone": lambda *_: {"stress": None, "forces": None},
}
STRUCTURES: dict[str, Callable[[], Atoms]] = {
    "alloy": alloy,
    "one atom": lambda: bulk("Cu"),
    "slab": lambda: fcc111("Cu", (1, 1, 3), vacuum=5.0),
    "molecule": lambda: Atoms("Cu2", [[0, 0, 0], [2.3, 0, 0]]),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_right_results_are_taken_of_every_structure(name: str, structure: str) -> None:
    frames = [STRUCTURES[structure]()]
    assert check_calculator("own", partial(results_of, calculator=Changed(RIGHT[name])), frames) == ""


def test_a_dozen_calls_of_the_smallest_structure_suffice() -> None:
    sizes: list[int] = []

    def results(atoms: Atoms) -> dict[str, Any]:
        sizes.append(len(atoms))
        return results_of(atoms, EMT())

    check_calculator("own", results, [alloy().repeat(2), alloy(), Atoms("Cu")])
    assert len(sizes) <= 15 and max(sizes) == 8


@pytest.mark.parametrize(
    "frames, refused, words",
    [
        ([Atoms("Cu")], 0, "its units were not checked: no structure has two atoms"),
        ([], 0, "its units were not checked: no structure has two atoms"),
        ([alloy()], 4, r"its units were not checked: ValueError: not this"),
        ([alloy(), bulk("Cu")], 2, ""),
        ([alloy()], 1, "it refuses an isolated Ag: ValueError: not this"),
    ],
)
def test_what_is_refused_is_a_note_and_another_structure_is_tried(
    frames: list[Atoms], refused: int, words: str
) -> None:
    def results(atoms: Atoms) -> dict[str, Any]:
        if len(atoms) == refused:
            raise ValueError("not this")
        return results_of(atoms, EMT())

    assert check_calculator("own", results, frames) == words


class Relaxing(EMT):
    """EMT that moves atoms of the structure that it is asked for."""

    def calculate(self, atoms: Any = None, *args: Any, **more: Any) -> None:
        atoms.positions += 0.01
        super().calculate(atoms, *args, **more)


def ended(*_: Any) -> Any:
    raise SystemExit(5)


@pytest.mark.parametrize(
    ("calculator", "words"),
    [
        (Relaxing(), "the calculator changes the structure"),
        (Changed(lambda *_: {"energy": np.nan}), "energy of the calculator is not finite"),
        (Changed(times(np.inf, "forces")), "forces of the calculator is not finite"),
        (Changed(lambda results, _: {"forces": results["forces"][:-1]}), r"has shape \(3, 3\), not \(4, 3\)"),
        (Changed(lambda results, _: {"forces": results["forces"].T}), r"has shape \(3, 4\), not \(4, 3\)"),
        (Changed(ended), r"the calculator ended the program \(5\)"),
    ],
    ids=["moves atoms", "energy", "forces", "a row less", "turned", "exit"],
)
def test_results_that_are_none_of_a_structure_are_refused(calculator: EMT, words: str) -> None:
    atoms = alloy()
    atoms.rattle(0.1, seed=0)
    with pytest.raises(InputError, match=words):
        results_of(atoms, calculator)


@pytest.mark.parametrize("constraint", [FixAtoms([0, 1]), Hookean(a1=0, a2=1, rt=1.0, k=10.0)])
def test_constraints_have_no_part_in_results(constraint: Any) -> None:
    atoms = alloy()
    atoms.rattle(0.1, seed=0)
    free = results_of(atoms, EMT())
    atoms.set_constraint(constraint)
    held = results_of(atoms, EMT())
    assert held["energy"] == free["energy"]
    np.testing.assert_array_equal(held["forces"], free["forces"])


@pytest.mark.parametrize(
    "factor, words", [(23.06, "kcal/mol/Angstrom"), (96.485, "kJ/mol"), (1 / 51.42, "Hartree/Bohr"), (-1, "sign")]
)
def test_all_results_in_one_other_unit_are_seen_by_labels(factor: float, words: str) -> None:
    """Energies and forces that fit together, and not the labels; noise is that of a model."""
    random = np.random.default_rng(0)
    labels = random.normal(size=300)
    with pytest.raises(InputError, match=words):
        check_scale("other:make", [np.stack([factor * (labels + 0.2 * random.normal(size=300)), labels])])
    check_scale("other:make", [np.stack([0.7 * labels + 0.1 * random.normal(size=300), labels])])
    check_scale("other:make", [np.stack([factor * random.normal(size=300), labels])])
    check_scale("other:make", [np.stack([factor * labels, np.full(300, np.nan)])])
