"""Calculators of others: baselines with energies from the zeros of labels, and labellers."""

import json
import shutil
import warnings
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
from hydragnn.base.files import write_sealed
from hydragnn.datasets import MemoryStore, StoreWriter, make_split
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.ensemble.uses.foreign import Baseline, graphs_for_fit, results_of
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train
from hydragnn.scripts.cli import app
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.verdict import error_finding
from tests.ensemble import potentials
from tests.ensemble.conftest import STRESS, TARGETS, config_of
from tests.once import shared

HERE = "tests.ensemble.potentials"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(imports, "_allowed", {HERE})
    yield
    potentials.STATE.update(refuses=0)


@shared
def joined(tmp_path_factory: pytest.TempPathFactory, runs: list[Path], store: MemoryStore) -> tuple[Path, Any]:
    """Two runs beside a calculator that gives the labels, but for their zeros."""
    out = tmp_path_factory.mktemp("joined") / "ensemble"
    with pytest.MonkeyPatch.context() as patch:  # trials of later tests would be started with what is allowed
        patch.setattr(imports, "_allowed", {HERE})
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
    facts = ensemble_facts(joined[0])
    part = facts.parts["test"]
    assert all("exact" in one.baselines for one in part.scores.values())
    assert "A model of others is better: exact" in error_finding(part.scores["forces"]).sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 6}, r"which are members no more; build the ensemble of its runs.* by --baseline"),
        (
            {"domain": {"version": 2}},
            "a training domain of detectors that are gone; build the ensemble of its runs anew",
        ),
    ],
    ids=["calculators as members", "detectors that are gone"],
)
def test_ensembles_of_parts_that_are_gone_are_refused(
    joined: tuple[Path, Any], tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    described = json.loads((joined[0] / "ensemble.json").read_text())
    shutil.copytree(joined[0], tmp_path / "copy")
    del described["checksum"]
    write_sealed(tmp_path / "copy" / "ensemble.json", described | change)
    with pytest.raises(InputError, match=words):
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
        hydragnn.build_ensemble(runs[:2], tmp_path / "out", baselines=[reference])
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
    monkeypatch.setattr("hydragnn.ensemble.uses.foreign_trial.check_calculator", lambda *_: "")  # once, when it begins
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code != 0
    assert len(read(tmp_path / "parts.xyz", ":")) == 2
    assert CliRunner().invoke(app, [*whole, str(tmp_path / "parts.xyz")]).exit_code == 0
    assert asked == [len(frames[number]) for number in (0, 1, 2, 2, 3, 4)]
    assert (tmp_path / "parts.xyz").read_bytes() == (tmp_path / "whole.xyz").read_bytes()


def test_structures_that_it_refuses_are_left_out_and_named(
    runs: list[Path], store: MemoryStore, frames: list[Atoms], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    potentials.STATE["refuses"] = 5
    evaluation = build_ensemble(runs[:2], tmp_path / "out", store=store, baselines=[f"{HERE}:exact"])
    notes = [line for line in capsys.readouterr().err.splitlines() if "which are left out" in line]
    assert len(notes) == 1 and "(RuntimeError: no convergence in 100 steps), " in notes[0]
    train = make_split(store, config_of(tmp_path).split).train
    count = sum(len(frames[number]) == 5 for number in train)
    assert f"refuses {count} structures" in notes[0] and f"fitted on {len(train) - count} training" in notes[0]
    assert "Cu -11, Au 4.5 fitted on" in notes[0]
    assert evaluation.parts["test"]["energy"].baselines["exact"]["mae"] < 1e-6


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
        build_ensemble(runs[:2], tmp_path / "out", store=store, baselines=[f"{HERE}:exact"])


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
    original = Baseline.outputs

    def failing(self: Baseline, where: Any, graphs: Any) -> Any:
        if len(graphs) == len(make_split(store, config_of(tmp_path).split).test):
            raise OSError(28, "No space left on device")
        return original(self, where, graphs)

    monkeypatch.setattr(Baseline, "outputs", failing)
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


@pytest.mark.parametrize("pbc", [(True, True, False), (True, False, False), (False, False, False), (True, True, True)])
def test_a_stress_is_asked_for_where_there_is_one(pbc: tuple[bool, ...]) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.set_pbc(pbc)
    own = results_of(atoms, OfCrystals(PropertyNotImplementedError))
    assert set(own) == {"energy", "forces", *(["stress"] if all(pbc) else [])}
    assert ("stress" in results_of(atoms, EMT())) == any(pbc)


@pytest.mark.parametrize("error", [ValueError, NotImplementedError, AssertionError, MemoryError])
def test_an_error_that_is_no_lack_of_a_stress_refuses_the_structure(error: type[Exception]) -> None:
    atoms = bulk("Cu", cubic=True)
    atoms.set_pbc((True, True, False))
    with pytest.raises(
        InputError, match=rf"stress of Cu4 \({error.__name__}: a crystal is needed\); let it raise ASE's"
    ):
        results_of(atoms, OfCrystals(error))


POTENTIALS = "tests.benchmarks.foreign_potentials"


def crystals(count: int) -> list[Any]:
    """Rattled and strained cells of four copper atoms with energy, forces and stress."""
    generator = np.random.default_rng(5)
    frames = []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell @ (np.eye(3) + 0.03 * generator.normal(size=(3, 3))), scale_atoms=True)
        atoms.positions += 0.08 * generator.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_stress()
        frames.append(atoms)
    return frames


def test_foundation_potentials_are_compared_in_the_units_and_zeros_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of stress, too; zeros of energies differ by volts."""
    pytest.importorskip("chgnet", reason="the extra foreign is not installed")
    pytest.importorskip("sevenn", reason="the extra foreign is not installed")
    monkeypatch.setattr(imports, "_allowed", {POTENTIALS})
    frames = crystals(120)
    graphs = [from_ase(atoms, 4.5, fields=(*TARGETS, STRESS), name=f"{i}") for i, atoms in enumerate(frames)]
    with StoreWriter(tmp_path / "cu.h5", MemoryStore(graphs).fields(), dim=3, attributes={"cutoff": 4.5}) as writer:
        for graph in graphs:
            writer.write(graph)
    config = config_of(tmp_path / "cu.h5", split__train=0.4, train__epochs=10)
    table = config.to_json()
    table["heads"][0] |= {"stress": "stress", "stress_weight": 0.1}
    train(type(config).parse(table), tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own
        evaluation = build_ensemble(
            [tmp_path / "run"], tmp_path / "ensemble", baselines=[f"{POTENTIALS}:chgnet", f"{POTENTIALS}:sevennet"]
        )
    for name in ("chgnet", "sevennet"):
        scores = {field: one.baselines[name] for field, one in evaluation.parts["test"].items()}
        assert scores["energy"]["mae"] < 0.5  # eV of four atoms; the zeros are 14 eV away
        assert scores["stress"]["r2"] > 0.5
