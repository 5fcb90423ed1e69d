"""Calculators of others: members with energies from the zeros of labels, baselines, labellers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.io import read, write
from typer.testing import CliRunner

import hydragnn
from hydragnn.base import imports
from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, make_split
from hydragnn.ensemble import Ensemble, build_ensemble, calculator, predict_to_file
from hydragnn.ensemble.building import evaluation as evaluation_module
from hydragnn.ensemble.foreign import graphs_for_fit, results_of
from hydragnn.scripts.cli import app
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.verdict import error_finding
from tests.ensemble import potentials
from tests.ensemble.conftest import config_of
from tests.ensemble.finished import arrays_of

HERE = "tests.ensemble.potentials"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(imports, "_allowed", {HERE})
    yield
    potentials.STATE.update(offset=0.0, refuses=0)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> tuple[Path, Any]:
    """Two runs and a calculator that gives the labels, but for their zeros."""
    out, names = tmp_path_factory.mktemp("joined") / "ensemble", [f"{HERE}:exact"]
    with pytest.MonkeyPatch.context() as patch:  # trials of later tests would be started with what is allowed
        patch.setattr(imports, "_allowed", {HERE})
        return out, build_ensemble(runs[:2], out, store=store, foreign=names, baselines=names)


def test_a_calculator_has_the_zeros_of_labels(joined: tuple[Path, Any], frames: list[Atoms]) -> None:
    """Its energies differed by up to 77 eV, and it reproduces labels: so it has nearly all weight."""
    loaded, evaluation = Ensemble.load(joined[0]), joined[1]
    assert loaded.names == ("0000", "0001", "exact")
    predictions = loaded.predict(frames[:8])
    for number, atoms in enumerate(frames[:8]):
        assert predictions["energy"].members[2, number] == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    forces = np.concatenate([atoms.get_forces() for atoms in frames[:8]])
    np.testing.assert_allclose(predictions["forces"].members[2], forces, atol=1e-6)
    for field in ("energy", "forces"):
        scores = evaluation.parts["test"][field]
        assert loaded.weights_of(field)[2] > 0.9
        assert scores.ensemble["rmse"] < 0.2 * min(scores.members[name]["rmse"] for name in ("0000", "0001"))


def test_a_mean_of_all_has_intervals_that_cover(joined: tuple[Path, Any], store: MemoryStore) -> None:
    scores = hydragnn.evaluate(joined[0], store).parts["all"]
    assert all(scores[field].ensemble["coverage"] > 0.8 for field in ("energy", "forces"))


def test_the_domain_is_that_of_the_runs(
    joined: tuple[Path, Any], runs: list[Path], store: MemoryStore, frames: list[Atoms], tmp_path: Path
) -> None:
    build_ensemble(runs[:2], tmp_path / "alone", store=store)
    stretched = [atoms.copy() for atoms in frames[:6]]
    stretched[0].positions *= 1.3
    alone, both = (Ensemble.load(folder).predict(stretched) for folder in (tmp_path / "alone", joined[0]))
    np.testing.assert_array_equal(alone.domain_score, both.domain_score)
    assert alone.domain[0] and bool(both.domain[0]) and alone.domain[1:] == both.domain[1:]


def test_a_file_a_calculator_and_memory_agree(joined: tuple[Path, Any], frames: list[Atoms], tmp_path: Path) -> None:
    """Also with two workers, which load the calculator by themselves."""
    write(tmp_path / "some.xyz", [atoms.copy() for atoms in frames[:6]])
    direct = Ensemble.load(joined[0]).predict(frames[:6])
    predict_to_file(joined[0], tmp_path / "some.xyz", tmp_path / "out.npz", workers=2)
    np.testing.assert_allclose(arrays_of(tmp_path / "out.npz")["fields/energy/mean"], direct["energy"].mean, rtol=1e-6)
    own = calculator(joined[0], outside="record")
    atoms = frames[2].copy()
    atoms.calc = own
    assert atoms.get_potential_energy() == pytest.approx(direct["energy"].mean[2], rel=1e-6)
    assert own.results["energy_std"] > 0


def test_a_folder_runs_no_code_that_was_not_allowed(joined: tuple[Path, Any], frames: list[Atoms]) -> None:
    imports._allowed.clear()
    with pytest.raises(InputError, match=rf"member exact runs code of {HERE}; where you trust it, add --allow-code"):
        Ensemble.load(joined[0])
    assert len(hydragnn.predict(joined[0], frames[:1], allow_code=[HERE])) == 1


def test_another_potential_under_the_same_name_is_refused(joined: tuple[Path, Any], frames: list[Atoms]) -> None:
    potentials.STATE["offset"] = 0.01
    with pytest.raises(InputError, match=r"member exact: .* is another potential than when the ensemble was built"):
        Ensemble.load(joined[0]).predict(frames[:1])


def test_a_structure_that_it_refuses_fails_alone(joined: tuple[Path, Any], frames: list[Atoms]) -> None:
    loaded = Ensemble.load(joined[0])
    loaded.predict(frames[:1])
    sizes = np.array([len(atoms) for atoms in frames[:8]])
    potentials.STATE["refuses"] = int(sizes[0])
    status = np.array(loaded.predict(frames[:8]).status)
    assert set(status[sizes == sizes[0]]) == {"member exact: RuntimeError: no convergence in 100 steps"}
    assert set(status[sizes != sizes[0]]) == {"ok"}


def test_torch_gradients_end_at_a_calculator(joined: tuple[Path, Any], frames: list[Atoms]) -> None:
    loaded = hydragnn.load(joined[0])
    with pytest.raises(InputError, match="member exact is a calculator, through which torch has no gradients"):
        loaded(frames[0])
    assert len(loaded.models) == 2 and loaded.embeddings(frames[0]).shape == (len(frames[0]), 24)
    loaded.predict(frames[:1])


def test_the_report_has_baselines_and_members_of_others(joined: tuple[Path, Any]) -> None:
    row = joined[1].parts["test"]["forces"].baselines["exact-2"]
    assert row["mae"] < 1e-6 and "exact-2" not in Ensemble.load(joined[0]).names
    facts = ensemble_facts(joined[0])
    part = facts.parts["test"]
    assert all("exact-2" in [one.name for one in scores.baselines] for scores in part.scores)
    assert [member.name for member in facts.members] == ["0000", "0001", "exact"]
    assert "A model of others is better: exact-2" in error_finding(part.scores[1]).sentence


def test_the_description_is_text_and_damage_has_a_sentence(joined: tuple[Path, Any], tmp_path: Path) -> None:
    described = json.loads((joined[0] / "ensemble.json").read_text())
    entry = described["members"][2]["foreign"]
    assert (described["version"], entry["reference"], list(entry["energies"])) == (6, f"{HERE}:exact", ["Cu", "Au"])
    shutil.copytree(joined[0], tmp_path / "copy")
    from hydragnn.base.files import write_sealed

    del described["checksum"], entry["reference"]
    write_sealed(tmp_path / "copy" / "ensemble.json", described)
    with pytest.raises(InputError, match=r"ensemble.json is damaged"):
        Ensemble.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (f"{HERE}:nothing", "gave a NoneType, which is no calculator of ASE"),
        (f"{HERE}:broken", "failed .OSError: weights are missing.; it takes no arguments"),
        (f"{HERE}:absent", "is no function; name one that returns a calculator"),
        ("elsewhere:make", "runs code of elsewhere; where you trust it, add --allow-code elsewhere"),
    ],
)
def test_a_function_that_makes_no_calculator_is_one_sentence(
    reference: str, problem: str, runs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        hydragnn.build_ensemble(runs[:2], tmp_path / "out", foreign=[reference])
    assert not list(tmp_path.iterdir())


def test_every_independent_composition_has_a_part_in_reference_energies() -> None:
    """The element of one graph among a thousand, and no other graph beyond the usual number."""
    counts = np.zeros((1000, 3), dtype=np.int64)
    counts[:, 0], counts[::2, 1], counts[777, 2] = 4, 2, 1
    chosen = graphs_for_fit(counts, np.arange(500, 1000))
    assert 777 in chosen and len(set(chosen)) in (200, 201) and min(chosen) >= 500


def test_labels_are_those_of_the_calculator_and_no_older_ones(tmp_path: Path, frames: list[Atoms]) -> None:
    some = [atoms.copy() for atoms in frames[:6]]
    for number, atoms in enumerate(some):
        atoms.info |= {"config_type": "cluster", "dft_energy": 1.0, "name": f"own {number}"}
        atoms.arrays["old_forces"] = np.ones((len(atoms), 3))
    write(tmp_path / "in.xyz", some)
    sizes = [len(atoms) for atoms in some]
    words = ["data", "label", str(tmp_path / "in.xyz"), "--out", str(tmp_path / "out.xyz"), "--allow-code", HERE]
    potentials.STATE["refuses"] = sizes[1]
    ended = CliRunner().invoke(app, [*words, "--calculator", f"{HERE}:exact", "--json"])
    refused = [number for number, size in enumerate(sizes) if size == sizes[1]]
    assert ended.exit_code == 3
    assert {int(one) for one in json.loads(ended.stdout)["failed"]} == set(refused)
    rows = read(tmp_path / "out.xyz", ":")
    assert [row.info["name"] for row in rows] == [f"own {n}" for n in range(6) if n not in refused]
    for row in rows:
        assert set(row.info) == {"config_type", "name"} and set(row.arrays) == {"numbers", "positions"}
        expected = row.copy()
        expected.calc = EMT()
        zeros = sum(potentials.ZEROS[one] for one in row.symbols)
        assert row.get_potential_energy() == pytest.approx(expected.get_potential_energy() + zeros, abs=1e-6)
        np.testing.assert_allclose(row.get_forces(), expected.get_forces(), atol=1e-7)


def test_labels_go_on_where_they_were_interrupted(
    tmp_path: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in.xyz", [atoms.copy() for atoms in frames[:5]])
    whole = ["data", "label", str(tmp_path / "in.xyz"), "--allow-code", HERE, "--calculator", f"{HERE}:exact", "--out"]
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "whole.xyz")]).exit_code == 0
    calculate, asked = potentials.OtherZeros.calculate, list[int]()

    def stopping(self: Any, atoms: Any = None, *args: Any, **more: Any) -> None:
        asked.append(len(atoms))
        if len(asked) == 3:
            raise KeyboardInterrupt
        calculate(self, atoms, *args, **more)

    monkeypatch.setattr(potentials.OtherZeros, "calculate", stopping)
    monkeypatch.setattr("hydragnn.ensemble.foreign_trial.check_calculator", lambda *_: "")  # once, when it begins
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code != 0
    assert len(read(tmp_path / "parts.xyz", ":")) == 2
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code == 0
    assert asked == [len(frames[number]) for number in (0, 1, 2, 2, 3, 4)]
    assert (tmp_path / "parts.xyz").read_bytes() == (tmp_path / "whole.xyz").read_bytes()


class Faulty(EMT):
    """EMT with results that are not those of a structure."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def calculate(self, *args: Any, **named: Any) -> None:
        super().calculate(*args, **named)
        if self.fault == "exit":
            raise SystemExit(5)
        energy, forces = self.results["energy"], self.results["forces"]
        faults = {
            "energy": np.nan,
            "row": forces[:-1],
            "turned": forces.T,
            "infinite": forces * np.inf,
            "many": np.ones(2) * energy,
        }
        self.results["energy" if self.fault in ("energy", "many") else "forces"] = faults[self.fault]


@pytest.mark.parametrize(
    "fault, words",
    [
        ("energy", "energy of the calculator is not finite"),
        ("infinite", "forces of the calculator is not finite"),
        ("row", r"forces of the calculator has shape \(3, 3\), not \(4, 3\)"),
        ("turned", r"forces of the calculator has shape \(3, 4\), not \(4, 3\)"),
        ("exit", r"the calculator ended the program \(5\)"),
    ],
)
def test_results_that_are_none_of_a_structure_are_refused(fault: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        results_of(bulk("Cu", cubic=True), Faulty(fault))


def test_structures_that_it_refuses_are_left_out_and_named(
    runs: list[Path], store: MemoryStore, frames: list[Atoms], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a member and as a baseline: both fit the rest, and reproduce the labels."""
    potentials.STATE["refuses"] = 5
    names = [f"{HERE}:exact"]
    evaluation = build_ensemble(runs[:2], tmp_path / "out", store=store, foreign=names, baselines=names)
    notes = [line for line in capsys.readouterr().err.splitlines() if "which are left out" in line]
    assert len(notes) == 2 and "(RuntimeError: no convergence in 100 steps), " in notes[0]
    train = make_split(store, config_of(tmp_path).split).train
    count = sum(len(frames[number]) == 5 for number in train)
    assert f"refuses {count} structures" in notes[0] and f"fitted on {len(train) - count} training" in notes[0]
    entry = Ensemble.load(tmp_path / "out").members[2].potential.entry
    assert entry.energies == pytest.approx({name: -zero for name, zero in potentials.ZEROS.items()}, abs=1e-6)
    assert evaluation.parts["test"]["energy"].baselines["exact-2"]["mae"] < 1e-6


@pytest.mark.parametrize("least", [5, 1])
def test_a_calculator_that_refuses_most_structures_is_not_taken(
    least: int, runs: list[Path], store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_small(self: Any, atoms: Any = None, *args: Any, **more: Any) -> None:
        if len(atoms) >= least:
            raise MemoryError
        EMT.calculate(self, atoms, *args, **more)

    monkeypatch.setattr(potentials.OtherZeros, "calculate", only_small)
    with pytest.raises(InputError, match=r"exact refuses \d+ structures, .*MemoryError.* more than half of 40"):
        build_ensemble(runs[:2], tmp_path / "out", store=store, foreign=[f"{HERE}:exact"])


def test_an_element_of_refused_structures_alone_has_no_reference_energy() -> None:
    """Refused graphs make room for the next ones, and a composition of theirs alone stays open."""
    counts = np.ones((500, 2), dtype=np.int64)
    counts[::3, 1] = 2
    order = np.arange(500)
    first = graphs_for_fit(counts, order)
    later = graphs_for_fit(counts, order[~np.isin(order, [3, 7])])
    assert set(later) - set(first) == {200, 201}


def test_a_baseline_that_fails_on_a_part_costs_its_errors_there_alone(
    runs: list[Path],
    store: MemoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = evaluation_module.member_outputs

    def failing(members: Any, where: Any, graphs: Any, inputs: Any) -> Any:
        if len(members) == 1 and len(graphs) == len(make_split(store, config_of(tmp_path).split).test):
            raise OSError(28, "No space left on device")
        return original(members, where, graphs, inputs)

    monkeypatch.setattr(evaluation_module, "member_outputs", failing)
    result = build_ensemble(runs[:2], tmp_path / "out", store=store, baselines=[f"{HERE}:exact"])
    parts = {part: "exact" in fields["energy"].baselines for part, fields in result.parts.items()}
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


@pytest.mark.parametrize("error", [ValueError, NotImplementedError, PropertyNotImplementedError, AssertionError])
@pytest.mark.parametrize("pbc", [(True, True, False), (True, False, False), (False, False, False), (True, True, True)])
def test_a_stress_is_asked_for_where_there_is_one(error: type[Exception], pbc: tuple[bool, ...]) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.set_pbc(pbc)
    assert set(results_of(atoms, OfCrystals(error))) == {"energy", "forces", *(["stress"] if all(pbc) else [])}
    assert ("stress" in results_of(atoms, EMT())) == any(pbc)
