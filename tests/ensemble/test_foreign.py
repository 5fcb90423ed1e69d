"""Calculators of others: baselines with energies from the zeros of labels, labellers, and the trial when they are taken."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, fcc111
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, Hookean
from ase.io import read, write
from typer.testing import CliRunner

import hydragnn
from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.ensemble.uses.foreign import Baseline, check_scale, graphs_for_fit, results_of
from hydragnn.ensemble.uses.foreign_trial import check_calculator
from hydragnn.scripts.cli import app
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.verdict import error_finding
from tests.ensemble.conftest import config_of, refused
from tests.ensemble.finished import edit_json
from tests.once import shared

HERE = __name__
ZEROS = {"Cu": 11.0, "Au": -4.5}
STATE = {"refuses": 0}


class OtherZeros(EMT):
    """EMT with other reference energies; refuses as many atoms as a test says."""

    def calculate(self, atoms: Any = None, *args: Any, **more: Any) -> None:
        super().calculate(atoms, *args, **more)
        if len(atoms) == STATE["refuses"]:
            raise RuntimeError("no convergence\nin 100 steps")
        self.results["energy"] += sum(ZEROS[one] for one in atoms.symbols)


def exact() -> Any:
    return OtherZeros()


def nothing() -> None:
    """Return no calculator."""


def broken() -> Any:
    raise OSError("weights are missing")


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(imports, "_allowed", {HERE})
    yield
    STATE.update(refuses=0)


@pytest.fixture
def compare(runs: list[Path], store: MemoryStore, tmp_path: Path) -> Callable[[], Any]:
    return partial(build_ensemble, runs[:2], tmp_path / "out", store=store, baselines=[f"{HERE}:exact"])


@shared
def joined(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> tuple[Path, Any]:
    """Two runs beside a calculator that gives the labels, but for their zeros."""
    out = tmp_path_factory.mktemp("joined") / "ensemble"
    with pytest.MonkeyPatch.context() as context:  # trials of later tests would be started with what is allowed
        context.setattr(imports, "_allowed", {HERE})
        return out, build_ensemble(runs[:2], out, store=store, baselines=[f"{HERE}:exact"])


def test_a_baseline_has_the_zeros_of_labels_and_changes_no_member(
    joined: tuple[Path, Any], runs: list[Path], store: MemoryStore, frames: list[Atoms], tmp_path: Path
) -> None:
    """Its energies differed by up to 77 eV, and it reproduces labels."""
    build_ensemble(runs[:2], tmp_path / "alone", store=store)
    alone, both = (Ensemble.load(folder).predict(frames[:6]) for folder in (tmp_path / "alone", joined[0]))
    for part in joined[1].parts.values():
        assert all(part[field].baselines["exact"]["mae"] < 1e-6 for field in ("energy", "forces"))
    assert Ensemble.load(joined[0]).names == ("0000", "0001")
    np.testing.assert_array_equal(alone["energy"].mean, both["energy"].mean)
    np.testing.assert_array_equal(alone.domain_score, both.domain_score)


def test_the_report_has_baselines_of_others(joined: tuple[Path, Any]) -> None:
    part = ensemble_facts(joined[0]).parts["test"]
    assert all("exact" in one.baselines for one in part.scores.values())
    assert "A model of others is better: exact" in error_finding(part.scores["forces"]).sentence


def test_ensembles_of_parts_that_are_gone_are_refused(joined: tuple[Path, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(joined[0], tmp_path / "copy")
    edit_json(folder / "ensemble.json", lambda value: value.update(domain={"version": 4, "detectors": []}))
    refused("made by an earlier version, with other .*; build the ensemble of its runs anew", Ensemble.load, folder)
    edit_json(folder / "ensemble.json", lambda value: value.update(version=6))
    refused("which are members no more; build the ensemble of its runs", Ensemble.load, folder)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (f"{HERE}:nothing", "gave a NoneType, which is no calculator of ASE"),
        (f"{HERE}:broken", "failed .OSError: weights are missing.; it takes no arguments"),
        (f"{HERE}:absent", "is no function; name one that returns a calculator"),
        ("elsewhere:make", "runs code of elsewhere; where you trust it, add --allow-code elsewhere"),
    ],
)
def test_functions_of_no_calculator_are_told(reference: str, problem: str, runs: list[Path], tmp_path: Path) -> None:
    refused(problem, hydragnn.build_ensemble, runs[:2], tmp_path / "out", baselines=[reference])
    assert not list(tmp_path.iterdir())


def test_every_independent_composition_has_a_part_in_reference_energies() -> None:
    """The element of one graph among a thousand, and no other graph beyond the usual number."""
    counts = np.zeros((1000, 3), dtype=np.int64)
    counts[:, 0], counts[::2, 1], counts[777, 2] = 4, 2, 1
    chosen = graphs_for_fit(counts, np.arange(500, 1000))
    assert 777 in chosen and len(set(chosen)) in (200, 201) and min(chosen) >= 500
    counts = np.ones((500, 2), dtype=np.int64)
    counts[::3, 1] = 2
    order = np.arange(500)  # refused graphs make room for the next ones, and a composition of theirs alone stays open
    first, later = (set(graphs_for_fit(counts, some)) for some in (order, order[~np.isin(order, [3, 7])]))
    assert later - first == {200, 201}


def test_labels_are_those_of_the_calculator_and_no_older_ones(tmp_path: Path, frames: list[Atoms]) -> None:
    some = [atoms.copy() for atoms in frames[:6]]
    for number, atoms in enumerate(some):
        atoms.info |= {"config_type": "cluster", "dft_energy": 1.0, "name": f"own {number}"}
        atoms.arrays["old_forces"] = np.ones((len(atoms), 3))
    write(tmp_path / "in.xyz", some)
    sizes = [len(atoms) for atoms in some]
    words = ["data", "label", str(tmp_path / "in.xyz"), "--out", str(tmp_path / "out.xyz"), "--allow-code", HERE]
    STATE["refuses"] = sizes[1]
    ended = CliRunner().invoke(app, [*words, "--calculator", f"{HERE}:exact", "--json"])
    failed, rows = json.loads(ended.stdout)["failed"], read(tmp_path / "out.xyz", ":")
    assert ended.exit_code == 3 and {int(one) for one in failed} == {n for n in range(6) if sizes[n] == sizes[1]}
    assert [row.info["name"] for row in rows] == [f"own {n}" for n in range(6) if sizes[n] != sizes[1]]
    for row in rows:
        assert set(row.info) == {"config_type", "name"} and set(row.arrays) == {"numbers", "positions"}
        expected = row.copy()
        expected.calc = EMT()
        zeros = sum(ZEROS[one] for one in row.symbols)
        assert row.get_potential_energy() == pytest.approx(expected.get_potential_energy() + zeros, abs=1e-6)
        np.testing.assert_allclose(row.get_forces(), expected.get_forces(), atol=1e-7)


def test_labels_are_resumed(tmp_path: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in.xyz", [atoms.copy() for atoms in frames[:5]])
    whole = ["data", "label", str(tmp_path / "in.xyz"), "--allow-code", HERE, "--calculator", f"{HERE}:exact", "--out"]
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "whole.xyz")]).exit_code == 0
    calculate, asked = OtherZeros.calculate, list[int]()

    def stopping(self: Any, atoms: Any = None, *args: Any, **more: Any) -> None:
        asked.append(len(atoms))
        if len(asked) == 3:
            raise KeyboardInterrupt
        calculate(self, atoms, *args, **more)

    monkeypatch.setattr(OtherZeros, "calculate", stopping)
    monkeypatch.setattr("hydragnn.ensemble.uses.foreign_trial.check_calculator", lambda *_: "")  # once, when it begins
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code != 0
    assert len(read(tmp_path / "parts.xyz", ":")) == 2
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code == 0
    assert asked == [len(frames[number]) for number in (0, 1, 2, 2, 3, 4)]
    assert (tmp_path / "parts.xyz").read_bytes() == (tmp_path / "whole.xyz").read_bytes()


def test_structures_that_it_refuses_are_left_out_and_named(
    compare: Any, store: MemoryStore, frames: list[Atoms], capsys: pytest.CaptureFixture[str]
) -> None:
    STATE["refuses"] = 5
    evaluation = compare()
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "which are left out" in line]
    train = make_split(store, config_of(Path()).split).train
    count = sum(len(frames[number]) == 5 for number in train)
    assert f"refuses {count} structures" in note and "(RuntimeError: no convergence in 100 steps), " in note
    assert f"Cu -11, Au 4.5 fitted on {len(train) - count} training" in note
    assert evaluation.parts["test"]["energy"].baselines["exact"]["mae"] < 1e-6


@pytest.mark.parametrize("least", [5, 1])
def test_refusing_most_is_too_much(least: int, compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_small(self: Any, atoms: Any = None, *args: Any, **more: Any) -> None:
        if len(atoms) >= least:
            raise MemoryError
        EMT.calculate(self, atoms, *args, **more)

    monkeypatch.setattr(OtherZeros, "calculate", only_small)
    refused(r"exact refuses \d+ structures, .*MemoryError.* more than half of 40", compare)


def test_baselines_fail(compare: Any, store: MemoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, test = Baseline.outputs, make_split(store, config_of(tmp_path).split).test

    def failing(self: Baseline, where: Any, graphs: Any) -> Any:
        if len(graphs) == len(test):
            raise OSError(28, "No space left on device")
        return original(self, where, graphs)

    with patch.object(Baseline, "outputs", failing):
        parts = {part: "exact" in fields["energy"].baselines for part, fields in compare().parts.items()}
    assert not all(parts.values()) and Ensemble.load(tmp_path / "out").names == ("0000", "0001")
    assert "baseline exact has no errors of" in capsys.readouterr().err


class OfCrystals(EMT):
    """EMT with a stress of crystals alone, as many programs have it."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def get_property(self, name: str, atoms: Any = None, *args: Any, **more: Any) -> Any:
        if name == "stress" and not atoms.pbc.all():
            raise self.error("a crystal is needed")
        return super().get_property(name, atoms, *args, **more)


@pytest.mark.parametrize("pbc", [(True, True, False), (True, False, False), (False, False, False), (True, True, True)])
def test_a_stress_is_asked_for_where_there_is_one(pbc: tuple[bool, ...]) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.set_pbc(pbc)
    own = results_of(atoms, OfCrystals(PropertyNotImplementedError))
    assert set(own) == {"energy", "forces", *(["stress"] if all(pbc) else [])}
    assert ("stress" in results_of(atoms, EMT())) == any(pbc)
    for error in (ValueError, NotImplementedError, AssertionError, MemoryError) if pbc == (True, True, False) else ():
        words = rf"stress of Cu4 \({error.__name__}: a crystal is needed\); let it raise ASE's"
        refused(words, results_of, atoms, OfCrystals(error))


Change = Callable[[dict[str, Any], Atoms], dict[str, Any]]


class Changed(EMT):
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


def times(factor: Any, *names: str) -> Change:
    """Return a change of some results by a factor, or by one of the structure."""
    of = factor if callable(factor) else lambda _: factor
    return lambda results, atoms: {name: results[name] * of(atoms) for name in names if name in results}


def reordered(*order: int) -> Change:
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
    "no division by the volume": (times(Atoms.get_volume, "stress"), "a virial in eV"),
    "order of VASP": (reordered(0, 1, 2, 5, 3, 4), "its stress and the derivative"),
    "two components exchanged": (reordered(0, 1, 2, 5, 4, 3), "its stress and the derivative"),
    "axes exchanged": (reordered(2, 1, 0, 3, 4, 5), "its stress and the derivative"),
    "no stress at all": (times(0.0, "stress"), "its stress and the derivative of its energy differ by a factor of -?0"),
    "forces in Hartree/Bohr": (times(units.Bohr / units.Hartree, "forces"), r"\(Hartree/Bohr\?\)"),
    "forces in kcal": (times(23.06, "forces"), "kcal/mol/Angstrom"),
    "gradients": (times(-1.0, "forces"), r"its forces .* \(the other sign\?\)"),
    "energies in Rydberg": (times(1 / units.Rydberg, "energy"), "Rydberg"),
    "energies per atom": (times(lambda atoms: 1 / len(atoms), "energy"), "not twice|energies per atom"),
    "random": (random_numbers(), "a second time"),
    "blind to periodic axes": (as_of_a_molecule, "in another order and place|a cell twice as long"),
    "forces of other atoms": (lambda results, _: {"forces": results["forces"][::-1]}, "its forces"),
    "forces of the order of elements": (
        times(lambda atoms: np.arange(len(atoms))[:, None], "forces"),
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


PLACES = [[0, 0, 0], [0, 0, 2.0], [0, 2.1, 1]]


def in_atomic_units(results: dict[str, Any], _: Atoms) -> dict[str, Any]:
    powers = {"energy": 0, "forces": 1, "stress": 3}
    return {name: results[name] * units.Bohr ** powers[name] / units.Hartree for name in powers if name in results}


@pytest.mark.parametrize(
    "structure", [alloy(), fcc111("Cu", (1, 1, 3), vacuum=5.0), *(Atoms(f"Cu{n}", PLACES[:n]) for n in (2, 3))]
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
STRUCTURES = [alloy(), bulk("Cu"), fcc111("Cu", (1, 1, 3), vacuum=5.0), Atoms("Cu2", [[0, 0, 0], [2.3, 0, 0]])]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("structure", STRUCTURES, ids=["alloy", "one atom", "slab", "molecule"])
def test_right_results_are_taken_of_every_structure(name: str, structure: Atoms) -> None:
    assert check_calculator("own", partial(results_of, calculator=Changed(RIGHT[name])), [structure.copy()]) == ""


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
def test_what_is_refused_is_a_note_and_others_are_tried(frames: list[Atoms], refused: int, words: str) -> None:
    def results(atoms: Atoms) -> dict[str, Any]:
        if len(atoms) == refused:
            raise ValueError("not this")
        return results_of(atoms, EMT())

    assert check_calculator("own", results, frames) == words


class Relaxing(EMT):
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
)
def test_results_that_are_none_of_a_structure_are_refused(calculator: EMT, words: str) -> None:
    atoms = alloy()
    atoms.rattle(0.1, seed=0)
    refused(words, results_of, atoms, calculator)


def test_constraints_have_no_part_in_results() -> None:
    atoms = alloy()
    atoms.rattle(0.1, seed=0)
    free = results_of(atoms, EMT())
    for constraint in (FixAtoms([0, 1]), Hookean(a1=0, a2=1, rt=1.0, k=10.0)):
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
    refused(words, check_scale, "other:make", [np.stack([factor * (labels + 0.2 * random.normal(size=300)), labels])])
    check_scale("other:make", [np.stack([0.7 * labels + 0.1 * random.normal(size=300), labels])])
    check_scale("other:make", [np.stack([factor * random.normal(size=300), labels])])
    check_scale("other:make", [np.stack([factor * labels, np.full(300, np.nan)])])
