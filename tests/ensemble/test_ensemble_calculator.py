"""The calculator says what the ensemble says, and its stress is the slope of its energy."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import Trajectory, read, write
from ase.md.verlet import VelocityVerlet

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import OutsideDomain, calculator
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction import predict_to_file
from hydragnn.ensemble.reading.structures import structures_for
from hydragnn.ensemble.uses.calculator import NEVER_SEEN, EnsembleCalculator, _check_outside
from hydragnn.graphs import Field, with_encodings
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train
from tests.ensemble.conftest import CUTOFF, STRESS, TARGETS, calculating, refused
from tests.ensemble.finished import edit_json


def test_the_calculator_says_what_the_ensemble_says(ensemble: Path, frames: list[Atoms]) -> None:
    atoms = calculating(frames[3], ensemble)
    direct = Ensemble.load(ensemble).predict(atoms)
    assert atoms.get_potential_energy() == direct["energy"].mean[0]
    np.testing.assert_array_equal(atoms.get_forces(), direct["forces"].mean)
    np.testing.assert_array_equal(atoms.calc.results["forces_std"], direct["forces"].std)
    assert atoms.calc.results["energy_std"] == direct["energy"].std[0] > 0
    assert atoms.calc.results["energy_lower"] < atoms.get_potential_energy() < atoms.calc.results["energy_upper"]
    assert atoms.calc.results["domain"] == ""
    assert atoms.calc.results["free_energy"] == atoms.get_properties(["energy", "forces"])["energy"]
    assert set(SinglePointCalculator(atoms, **atoms.calc.results).results) == {"energy", "forces", "free_energy"}
    assert atoms.calc.results.get("no such thing") is None


def test_modes_of_torch_change_no_result_of_the_calculator(ensemble: Path, frames: list[Atoms]) -> None:
    forces = calculating(frames[3], ensemble).get_forces()
    for mode in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta")):
        atoms = calculating(frames[3], ensemble)
        with mode:
            np.testing.assert_array_equal(atoms.get_forces(), forces)


@pytest.mark.parametrize("way", ["strained", "molecule", "other elements", "far away"])
def test_a_graph_that_follows_its_atoms_is_as_made_anew(ensemble: Path, frames: list[Atoms], way: str) -> None:
    loaded, random = Ensemble.load(ensemble, dtype=torch.float64), np.random.default_rng(0)
    atoms = frames[6].copy() if way == "molecule" else bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.numbers[:2] = 79
    following = EnsembleCalculator(loaded)
    for step in range(6):
        atoms.positions += 0.03 * random.normal(size=atoms.positions.shape)
        if way == "strained":
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.01 * random.normal(size=(3, 3))), scale_atoms=True)
        elif way == "far away":
            atoms.positions[step] += 40 * atoms.cell.array[0]
        elif way == "other elements":
            atoms.numbers[step] = 108 - atoms.numbers[step]
        results = {}
        for name, one in (("following", following), ("fresh", EnsembleCalculator(loaded))):
            atoms.calc = one
            results[name] = atoms.get_potential_energy(), atoms.get_forces()
        for ours, fresh in zip(results["following"], results["fresh"]):
            np.testing.assert_allclose(ours, fresh, rtol=1e-12, atol=1e-12)
    assert way != "molecule" or following.moving.neighbours.searches == 1  # of six steps


def test_a_structure_that_fails_leaves_no_results_of_the_one_before(ensemble: Path, frames: list[Atoms]) -> None:
    atoms, following = frames[0].copy(), calculator(ensemble)
    following.calculate(atoms)
    atoms.numbers[:] = 2
    for _ in range(2):
        refused("cannot be predicted", following.calculate, atoms)
        refused("cannot be predicted", following.get_property, "energy", atoms)


def test_units_of_energies_are_converted_or_refused(runs: list[Path], frames: list[Atoms], tmp_path: Path) -> None:
    run, atoms = shutil.copytree(runs[0], tmp_path / "run"), frames[3].copy()
    atoms.calc = calculator(run)
    energy = atoms.get_potential_energy()

    def with_unit(unit: str) -> Path:
        def change(value: dict[str, Any]) -> None:
            next(field for field in value["fields"] if field["name"] == "energy").update(unit=unit)

        edit_json(run / "model" / "model.json", change)
        return run

    refused("field energy: the unit 'of the code' is not known; write eV,", calculator, with_unit("of the code"))
    write(tmp_path / "in.xyz", frames[3].copy())
    predict_to_file(run, tmp_path / "in.xyz", tmp_path / "out.xyz")
    back = read(tmp_path / "out.xyz")
    assert back.info["energy_in_of_the_code"] == pytest.approx(energy, rel=1e-6) and "energy" not in back.calc.results


PER_MOL = units.kcal / units.mol
IN_ASE = {
    "eV and Angstrom": (("eV", "eV/Angstrom", "eV/Angstrom^3"), (1.0, 1.0, 1.0)),
    "chemists' units": (("kcal/mol", "Ha/Bohr", "kbar"), (PER_MOL, units.Ha / units.Bohr, 0.1 * units.GPa)),
}


def test_labels_in_other_units_are_learned_and_predicted_alike(tmp_path: Path) -> None:
    copper, predicted = bulk("Cu", cubic=True), []
    for name, (words, sizes) in IN_ASE.items():
        frames = []
        for number in range(12):
            atoms = copper.copy()
            atoms.rattle(0.1, seed=number)
            atoms.set_cell(atoms.cell.array * (1 + 0.01 * (number % 3)), scale_atoms=True)
            atoms.calc = EMT()
            labels = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
            scaled = {what: label / size for what, label, size in zip(("energy", "forces", "stress"), labels, sizes)}
            atoms.calc = SinglePointCalculator(atoms, **scaled)
            frames.append(atoms)
        fields = [replace(field, unit=unit, dtype="float64") for field, unit in zip((*TARGETS, STRESS), words)]
        store = MemoryStore([from_ase(one, 4.0, fields=fields) for one in frames], {"cutoff": 4.0, "source": "ase"})
        head = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "stress": "stress"}
        table = {
            "data": {"store": str(tmp_path / "copper.h5")},
            "split": {"train": 0.5, "valid": 0.25},
            "model": {"kind": "schnet", "hidden_dim": 4, "num_layers": 1, "num_radial": 6},
            "heads": [{**head, "hidden_dims": [4]}],
            "train": {"epochs": 2, "precision": "fp64"},
        }
        record = train(RunConfig.parse(table), tmp_path / name, store=store)
        assert sum("is learned and predicted in" in note for note in record.notes) == (2 if sizes[0] != 1 else 0)
        predicted.append((atoms := frames[3].copy(), record))
        atoms.calc = calculator(tmp_path / name)
        write(tmp_path / "in.xyz", frames[3].copy())
        predict_to_file(tmp_path / name, tmp_path / "in.xyz", out := tmp_path / f"{name[:2]}.xyz")
        assert_same_results(
            read(out), atoms, 1e-6, 1e-6
        )  # an .xyz says eV and Angstrom, whatever the unit of the labels
    (ours, first), (theirs, second) = predicted
    assert second.best["valid/loss"] == pytest.approx(first.best["valid/loss"], rel=1e-5)
    stress = first.best["valid/stress/mae"] / (0.1 * units.GPa)
    assert second.best["valid/stress/mae"] == pytest.approx(stress, rel=1e-5)
    # constants of ASE and pint differ by 1e-8, and steps repeat the difference
    assert_same_results(theirs, ours, 1e-5, 1e-4)


def assert_same_results(ours: Atoms, theirs: Atoms, energy: float, others: float) -> None:
    assert ours.get_potential_energy() == pytest.approx(theirs.get_potential_energy(), rel=energy)
    np.testing.assert_allclose(ours.get_forces(), theirs.get_forces(), rtol=others, atol=1e-6)
    np.testing.assert_allclose(ours.get_stress(), theirs.get_stress(), rtol=others, atol=1e-7)


def test_an_ensemble_about_something_else_than_atoms_takes_no_structures(ensemble: Path) -> None:
    loaded = Ensemble.load(ensemble)
    flat = loaded.with_manifest(replace(loaded.manifest, dim=2))
    refused("atomic numbers in three dimensions", structures_for, flat)


def test_stress_is_the_slope_of_the_energy_with_strain_in_ases_order(strained: tuple[Path, Atoms]) -> None:
    folder, atoms = strained
    atoms = calculating(atoms, folder)
    stress = atoms.get_stress()
    assert atoms.calc.results["stress_std"].shape == (6,)
    step = 1e-5
    for position, (i, j) in enumerate([(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]):
        energies = []
        for sign in (1, -1):
            strain = np.zeros((3, 3))
            strain[i, j] = sign * step / 2
            strain = np.eye(3) + strain + strain.T
            moved = atoms.copy()
            moved.set_cell(atoms.cell.array @ strain, scale_atoms=True)
            moved.calc = atoms.calc
            energies.append(moved.get_potential_energy())
        slope = (energies[0] - energies[1]) / (2 * step) / atoms.get_volume()
        assert stress[position] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_structures_get_the_encodings_that_members_read(ensemble: Path, frames: list[Atoms]) -> None:
    loaded = Ensemble.load(ensemble)
    encoding = Field(name="random_walk_encoding", on="node", shape=(3,))
    manifest = replace(loaded.manifest, inputs=(*loaded.manifest.inputs, encoding))
    made, bare = (one.structures.graph(frames[0], "first") for one in (loaded.with_manifest(manifest), loaded))
    assert np.array_equal(made[encoding.name], with_encodings(bare, {encoding.name: 3})[encoding.name])


def test_a_structure_without_a_volume_has_no_stress(strained: tuple[Path, Atoms], tmp_path: Path) -> None:
    folder, crystal = strained
    molecule, slab = crystal.copy(), crystal.copy()
    molecule.pbc = False  # in the box of the crystal
    slab.cell[2] = 0.0
    slab.pbc = (True, True, False)
    predictions = Ensemble.load(folder).predict([crystal, molecule, slab])
    assert predictions.ok.all()
    undefined = np.isnan(predictions["stress"].mean)
    assert not undefined[0].any() and undefined[1:].all()
    write(tmp_path / "structures.xyz", [crystal, molecule, slab])
    predict_to_file(folder, tmp_path / "structures.xyz", tmp_path / "out.xyz")
    with_stress, *others = read(tmp_path / "out.xyz", ":")
    assert "stress" in with_stress.calc.results
    for atoms, predicted in zip((molecule, slab), others):
        assert not {"stress", "stress_std"} & {*predicted.calc.results, *predicted.info}
        atoms.calc = calculator(folder)
        atoms.get_forces()
        with pytest.raises(PropertyNotImplementedError):
            atoms.get_stress()


def test_a_single_run_has_means_alone(runs: list[Path], frames: list[Atoms], capfd: pytest.CaptureFixture[str]) -> None:
    atoms = calculating(frames[3], runs[0])
    assert "is a single run" in capfd.readouterr().err
    atoms.get_forces()
    assert set(atoms.calc.results) == {"energy", "free_energy", "forces"}
    for name in ("energy_std", "forces_std", "energy_lower", "domain", "domain_score"):
        assert atoms.calc.results.get(name) is None


CHANGES: dict[str, Callable[[Atoms], object]] = {
    "a number of the graph": lambda atoms: atoms.info.update(charge=-1),
    "an array of the graph, in place": lambda atoms: atoms.info["charge"].fill(-1),
    "a value of one node, in place": lambda atoms: atoms.arrays["tags"].put(2, 7),
    "another array of nodes": lambda atoms: atoms.set_tags(3),
    "positions": lambda atoms: atoms.positions.put(0, 0.05),
    "cell and periodic axes": lambda atoms: (atoms.set_cell([5, 5, 5]), atoms.set_pbc(True)),
    "initial charges and moments, and a number": lambda atoms: (
        atoms.set_initial_charges([1.0] * len(atoms)),
        atoms.set_initial_magnetic_moments([1.0] * len(atoms)),
        atoms.info.update(charge=-1),
    ),
    "species": lambda atoms: atoms.numbers.put(0, 29 + 79 - atoms.numbers[0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_the_model_reads_is_looked_at_anew(charged: tuple[Path, Atoms], change: Callable[[Atoms], object]) -> None:
    run, atoms = charged[0], charged[1].copy()
    atoms.info["charge"] = np.array(1.0)
    atoms.calc = calculator(run)
    before = atoms.get_potential_energy()
    change(atoms)
    assert atoms.get_potential_energy() == Ensemble.load(run).predict(atoms)["energy"].mean[0] != before
    np.testing.assert_array_equal(atoms.get_forces(), Ensemble.load(run).predict(atoms)["forces"].mean)


def test_results_stay_while_other_things_change(charged: tuple[Path, Atoms], monkeypatch: pytest.MonkeyPatch) -> None:
    atoms = calculating(charged[1], charged[0])
    before = atoms.get_potential_energy()
    atoms.info["note"] = "anything"
    atoms.set_momenta(np.ones((len(atoms), 3)))
    monkeypatch.setattr(EnsembleCalculator, "calculate", lambda *_: pytest.fail("calculated anew"))
    assert atoms.get_potential_energy() == before


def told(run: Path, **attributes: object) -> Ensemble:
    """The run, with a training store that says so of itself."""
    ensemble = Ensemble.load(run)
    data = {"attributes": {"cutoff": CUTOFF, **attributes}}
    return Ensemble(ensemble.members, replace(ensemble.manifest, data=data), ensemble.digest)


def with_info(atoms: Atoms, **info: object) -> Atoms:
    copy = atoms.copy()
    copy.info = info
    return copy


def test_a_field_is_found_and_scaled_in_structures_as_in_the_files_of_training(charged: tuple[Path, Atoms]) -> None:
    """The build file called it ``total`` and halved it; what has the field's own name is in its unit."""
    run, atoms = charged
    field = {"name": "charge", "on": "graph", "key": "total", "scale": 0.5}
    rule = {"kind": "ase", "cutoff": CUTOFF, "fields": [field]}
    halved, whole = told(run, source="ase", build=rule), Ensemble.load(run)
    one, two = (whole.predict(with_info(atoms, charge=charge))["energy"].mean[0] for charge in (1, 2))
    assert halved.predict(with_info(atoms, total=2, charge=7))["energy"].mean[0] == one
    assert halved.predict(with_info(atoms, charge=2))["energy"].mean[0] == two != one
    atoms = with_info(atoms, total=2)
    atoms.calc = EnsembleCalculator(halved)
    assert atoms.get_potential_energy() == one
    atoms.info["total"] = 4
    assert atoms.get_potential_energy() == two


def test_structures_are_refused_with_other_positions_or_without_a_field(charged: tuple[Path, Atoms]) -> None:
    with pytest.raises(InputError, match="positions of the training data are in bohr, and those of structure files in"):
        told(charged[0], length_unit="bohr").predict(charged[1])
    atoms = calculating(charged[1], charged[0])
    atoms.get_potential_energy()
    del atoms.info["charge"]
    refused("no charge for the field charge", atoms.get_potential_energy)


def test_dynamics_stop_after_the_last_frame_inside(ensemble: Path, frames: list[Atoms], tmp_path: Path) -> None:
    atoms, loaded = frames[0].copy(), Ensemble.load(ensemble)
    atoms.calc = calculator(ensemble, outside="stop")
    atoms.set_momenta(-6.0 * (atoms.positions - atoms.positions.mean(0)))  # towards each other
    dynamics = VelocityVerlet(atoms, timestep=0.5)
    trajectory = Trajectory(str(tmp_path / "inside.traj"), "w", atoms)
    dynamics.attach(trajectory.write)
    dynamics.attach(lambda: write(tmp_path / "inside.xyz", atoms, append=True))
    with pytest.raises(OutsideDomain, match="outside the training domain") as stopped:
        dynamics.run(1000)
    with pytest.raises(OutsideDomain):  # no result of the frame before answers for this one
        atoms.get_potential_energy()
    outside = loaded.predict(atoms)
    assert (stopped.value.reason, stopped.value.score) == (outside.domain[0], outside.domain_score[0])
    inside = read(tmp_path / "inside.traj", index=":")  # which nobody closed
    assert len(inside) == len(read(tmp_path / "inside.xyz", index=":")) > 1
    assert loaded.predict(inside[0]).domain == ("",)
    assert loaded.predict(inside).domain_scores["contacts"].max() < NEVER_SEEN
    assert inside[-1].get_potential_energy() == loaded.predict(inside[-1])["energy"].mean[0]
    trajectory.close()


LEAVING: list[tuple[dict[str, float], list[float], bool]] = [
    ({"latent": 5.0}, [1.0], True),
    ({"latent": 5.0}, [1.0, 9.0], False),
    ({"spread": 50.0, "statistics": 50.0}, [1.0] * 30, False),
    ({"latent": 5.0, "contacts": 3.9}, [1.0, 9.0], False),
    ({"latent": 5.0, "contacts": 4.1}, [1.0, 9.0], True),
    ({"kinds": 1000.0}, [1.0, 1.0], True),
    ({"latent": 5.0}, [1.0, 1e9], True),
    ({"latent": 5.0}, [9.9] * 200, False),
    ({"latent": 5.0}, [10.1] * 200, True),
    ({"latent": 5.0}, [1.0] * 100 + [21.0] * 100, True),
    ({"latent": 5.0}, [1.0, 2001.0], True),
    ({"latent": 5.0}, [21.0] * 100 + [1.0] * 200, False),
]
"""Excesses by detector, predicted errors of the last steps over the usual one, and whether the trajectory ends."""


@pytest.mark.parametrize(("excesses", "errors", "left"), LEAVING)
def test_a_trajectory_may_come_back(
    excesses: dict[str, float], errors: list[float], left: bool, ensemble: Path, frames: list[Atoms]
) -> None:
    potential = calculator(ensemble, outside="stop")
    potential.errors.extend(errors)
    predictions = potential.ensemble.predict(frames[0])
    scores = {name: np.array([value]) for name, value in excesses.items()}
    assert potential._has_left(replace(predictions, domain_scores=scores)) == left


def test_predicted_errors_of_usual_structures_are_about_one(ensemble: Path, frames: list[Atoms]) -> None:
    loaded, errors = Ensemble.load(ensemble), list[float]()
    for frame in frames[:20]:
        atoms = calculating(frame, loaded, outside="record")
        atoms.get_forces()
        errors += atoms.calc.errors
    assert 0.1 < np.median(errors) < 2 and len(errors) == 20


def test_only_the_next_structure_of_a_trajectory_may_be_unusual(ensemble: Path, frames: list[Atoms]) -> None:
    atoms = calculating(frames[0], ensemble, outside="record")
    steps = []
    for positions in (frames[0].positions, 1.01 * frames[0].positions, 2.0 * frames[0].positions):
        atoms.positions[:] = positions
        atoms.get_potential_energy()
        steps.append(len(atoms.calc.errors))
    assert steps == [1, 2, 1]


def test_a_cause_is_printed_once(ensemble: Path, frames: list[Atoms], capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {}
    for outside in ("warn", "record"):
        atoms = calculating(frames[0], ensemble, outside=outside)
        capsys.readouterr()
        reasons = []
        for step in range(5):
            atoms.positions *= 0.9 if step else 1.0
            atoms.get_potential_energy()
            reasons.append(atoms.calc.results["domain"])
        numbers[outside] = atoms.get_forces()
        printed = capsys.readouterr().err.splitlines()
        causes = {says.partition(":")[0] for reason in reasons if reason for says in reason.split("; ")}
        assert reasons[0] == "" and all(reasons[-2:])
        assert len(printed) == (len(causes) if outside == "warn" else 0)
        assert all(line.startswith("warning: a structure is outside the training domain") for line in printed)
    np.testing.assert_array_equal(numbers["warn"], numbers["record"])
    assert calculator(ensemble).outside == "warn"


def test_a_reaction_that_is_unknown_or_needs_a_domain_is_refused(ensemble: Path, runs: list[Path]) -> None:
    refused("outside = 'stpo' is no reaction; did you mean stop", _check_outside, Ensemble.load(ensemble), "stpo")
    refused('outside = "stop" needs a training domain, and 0000 has none', calculator, runs[0], outside="stop")
    assert calculator(runs[0]).outside == "warn"
