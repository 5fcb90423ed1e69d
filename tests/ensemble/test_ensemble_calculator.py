"""The calculator says what the ensemble says, and its stress is the slope of its energy."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from hydragnn.base.files import write_sealed
from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.ensemble import OutsideDomain, calculator
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction import predict_to_file
from hydragnn.ensemble.reading.structures import structures_for
from hydragnn.ensemble.uses.calculator import EnsembleCalculator, _check_outside
from hydragnn.graphs import Field, with_encodings
from hydragnn.graphs.atomic import from_ase
from hydragnn.runs import train
from tests.ensemble.conftest import CUTOFF, STRESS, TARGETS


def test_the_calculator_says_what_the_ensemble_says(ensemble: Path, frames: list[Atoms]) -> None:
    atoms = frames[3].copy()
    atoms.calc = calculator(ensemble)
    direct = Ensemble.load(ensemble).predict(atoms)
    assert atoms.get_potential_energy() == direct["energy"].mean[0]
    np.testing.assert_array_equal(atoms.get_forces(), direct["forces"].mean)
    np.testing.assert_array_equal(atoms.calc.results["forces_std"], direct["forces"].std)
    assert atoms.calc.results["energy_std"] == direct["energy"].std[0] > 0
    assert atoms.calc.results["energy_lower"] < atoms.get_potential_energy() < atoms.calc.results["energy_upper"]
    assert atoms.calc.results["domain"] == ""


def test_dynamics_have_the_energies_of_neighbours_that_are_searched_anew(ensemble: Path, frames: list[Atoms]) -> None:
    atoms = frames[6].copy()
    loaded = Ensemble.load(ensemble)
    atoms.calc = EnsembleCalculator(loaded)
    dynamics = VelocityVerlet(atoms, timestep=0.1)
    for _ in range(6):
        dynamics.run(1)
        fresh = loaded.predict(atoms)
        assert atoms.get_potential_energy() == fresh["energy"].mean[0]
        np.testing.assert_array_equal(atoms.get_forces(), fresh["forces"].mean)
    assert atoms.calc.neighbours.searches == 1


@pytest.mark.parametrize(
    "way", ["crystal", "changing cell", "slab", "far away", "molecule", "other elements", "on a device"]
)
def test_a_graph_that_follows_its_atoms_is_the_one_that_is_made_anew(
    ensemble: Path, frames: list[Atoms], way: str
) -> None:
    loaded, random = Ensemble.load(ensemble, dtype=torch.float64), np.random.default_rng(0)
    atoms = frames[6].copy() if way == "molecule" else bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.pbc = way != "molecule" and (True, True, way != "slab")
    atoms.numbers[:2] = 79
    following = EnsembleCalculator(loaded)
    following.neighbours.searches_there = way == "on a device"
    for step in range(10 if way == "on a device" else 6):
        atoms.positions += (0.08 if way == "on a device" else 0.03) * random.normal(size=atoms.positions.shape)
        if way in ("changing cell", "on a device"):
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
    if way == "on a device":
        assert following.neighbours.searches > 3 and following.neighbours._compared


def test_a_structure_that_fails_leaves_no_results_of_the_one_before(ensemble: Path, frames: list[Atoms]) -> None:
    atoms, following = frames[0].copy(), calculator(ensemble)
    following.calculate(atoms)
    atoms.numbers[:] = 2
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be predicted"):
            following.calculate(atoms)
        with pytest.raises(InputError, match="cannot be predicted"):
            following.get_property("energy", atoms)


def test_an_energy_in_another_unit_is_converted_and_an_unknown_one_refused(
    runs: list[Path], frames: list[Atoms], tmp_path: Path
) -> None:
    run, atoms = tmp_path / "run", frames[3].copy()
    shutil.copytree(runs[0], run)
    value = json.loads((run / "model" / "model.json").read_text())
    atoms.calc = calculator(run)
    energy = atoms.get_potential_energy()
    for unit, factor in (("Ry", units.Ry), ("kcal/mol", units.kcal / units.mol)):
        next(field for field in value["fields"] if field["name"] == "energy").update(unit=unit)
        write_sealed(run / "model" / "model.json", value)
        atoms.calc = calculator(run)
        assert atoms.get_potential_energy() == pytest.approx(factor * energy, rel=1e-6)
    next(field for field in value["fields"] if field["name"] == "energy").update(unit="of the code")
    write_sealed(run / "model" / "model.json", value)
    with pytest.raises(InputError, match="field energy: the unit 'of the code' is not known; write eV,"):
        calculator(run)
    write(tmp_path / "in.xyz", frames[3].copy())
    predict_to_file(run, tmp_path / "in.xyz", tmp_path / "out.xyz")
    back = read(tmp_path / "out.xyz")
    assert back.info["energy_in_of_the_code"] == pytest.approx(energy, rel=1e-6) and "energy" not in back.calc.results


IN_ASE = {
    "eV and Angstrom": ("eV", "eV/Angstrom", "eV/Angstrom^3", 1.0, 1.0, 1.0),
    "chemists' units": (
        *("kcal/mol", "Ha/Bohr", "kbar"),
        *(units.kcal / units.mol, units.Ha / units.Bohr, 0.1 * units.GPa),
    ),
}


def test_labels_in_other_units_are_learned_and_predicted_alike(tmp_path: Path) -> None:
    copper, predicted = bulk("Cu", cubic=True), []
    for name, (energy, forces, stress, *sizes) in IN_ASE.items():
        frames = []
        for number in range(12):
            atoms = copper.copy()
            atoms.rattle(0.1, seed=number)
            atoms.set_cell(atoms.cell.array * (1 + 0.01 * (number % 3)), scale_atoms=True)
            atoms.calc = EMT()
            labels = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
            atoms.calc = SinglePointCalculator(
                atoms,
                **{what: label / size for what, label, size in zip(("energy", "forces", "stress"), labels, sizes)},
            )
            frames.append(atoms)
        used = zip((*TARGETS, STRESS), (energy, forces, stress))
        fields = [replace(field, unit=unit, dtype="float64") for field, unit in used]
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
        assert len([note for note in record.notes if "is learned and predicted in" in note]) == (
            2 if sizes[0] != 1 else 0
        )
        predicted.append((atoms := frames[3].copy(), record))
        atoms.calc = calculator(tmp_path / name)
        write(tmp_path / "in.xyz", frames[3].copy())
        predict_to_file(tmp_path / name, tmp_path / "in.xyz", out := tmp_path / f"{energy.split('/')[0]}.xyz")
        back = read(out)  # an .xyz says eV and Angstrom, whatever the unit of the labels
        assert back.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
        np.testing.assert_allclose(back.get_forces(), atoms.get_forces(), atol=1e-6)
        np.testing.assert_allclose(back.get_stress(), atoms.get_stress(), atol=1e-7)
    (ours, first), (theirs, second) = predicted
    assert second.best["valid/loss"] == pytest.approx(first.best["valid/loss"], rel=1e-5)
    assert second.best["valid/stress/mae"] == pytest.approx(
        first.best["valid/stress/mae"] / (0.1 * units.GPa), rel=1e-5
    )
    # constants of ASE and pint differ by 1e-8, and steps repeat the difference
    assert theirs.get_potential_energy() == pytest.approx(ours.get_potential_energy(), rel=1e-5)
    np.testing.assert_allclose(theirs.get_forces(), ours.get_forces(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(theirs.get_stress(), ours.get_stress(), rtol=1e-4, atol=1e-8)


def test_an_ensemble_about_something_else_than_atoms_takes_no_structures(ensemble: Path) -> None:
    loaded = Ensemble.load(ensemble)
    with pytest.raises(InputError, match="atomic numbers in three dimensions"):
        structures_for(loaded.members, replace(loaded.manifest, dim=2))


def test_stress_is_the_slope_of_the_energy_with_strain_in_ases_order(strained: tuple[Path, Atoms]) -> None:
    folder, atoms = strained
    atoms = atoms.copy()
    atoms.calc = calculator(folder)
    stress = atoms.get_stress()
    assert atoms.calc.results["stress_std"].shape == (6,)
    step = 1e-5
    for position, (i, j) in enumerate([(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * step / 2
            strain[j, i] += sign * step / 2
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
    made = structures_for(loaded.members, manifest).graph(frames[0], "first")
    bare = structures_for(loaded.members, loaded.manifest).graph(frames[0], "first")
    assert np.array_equal(
        made["random_walk_encoding"], with_encodings(bare, {"random_walk_encoding": 3})["random_walk_encoding"]
    )


def test_a_structure_without_a_volume_has_no_stress(strained: tuple[Path, Atoms], tmp_path: Path) -> None:
    folder, crystal = strained
    molecule, slab = crystal.copy(), crystal.copy()
    molecule.pbc = False  # in the box of the crystal
    slab.cell[2] = 0.0
    slab.pbc = (True, True, False)
    predictions = Ensemble.load(folder).predict([crystal, molecule, slab])
    assert predictions.ok.all()
    undefined = [[False] * 9, [True] * 9, [True] * 9]
    np.testing.assert_array_equal(np.isnan(predictions["stress"].mean).reshape(3, 9), undefined)
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


def test_ase_takes_all_results_of_the_calculator(strained: tuple[Path, Atoms]) -> None:
    atoms = strained[1].copy()
    atoms.calc = calculator(strained[0])
    energy, results = atoms.get_potential_energy(), atoms.calc.results
    assert atoms.get_properties(["energy", "forces"])["energy"] == energy
    assert sorted(SinglePointCalculator(atoms, **results).results) == ["energy", "forces", "free_energy", "stress"]
    assert results["energy_std"] == results.get("energy_std") >= 0 and results.get("no such thing") is None


def test_the_calculator_of_a_single_run_has_means_alone(
    runs: list[Path], frames: list[Atoms], capfd: pytest.CaptureFixture[str]
) -> None:
    atoms = frames[3].copy()
    atoms.calc = calculator(runs[0])
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
def test_whatever_the_model_reads_is_calculated_anew_where_it_changes(
    charged: tuple[Path, Atoms], change: Callable[[Atoms], object]
) -> None:
    run, atoms = charged[0], charged[1].copy()
    atoms.info["charge"] = np.array(1.0)
    atoms.calc = calculator(run)
    before = atoms.get_potential_energy()
    change(atoms)
    assert atoms.get_potential_energy() == Ensemble.load(run).predict(atoms)["energy"].mean[0] != before
    np.testing.assert_array_equal(atoms.get_forces(), Ensemble.load(run).predict(atoms)["forces"].mean)


def test_results_are_kept_while_only_what_no_member_reads_changes(
    charged: tuple[Path, Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
    atoms = charged[1].copy()
    atoms.calc = calculator(charged[0])
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
    rule = {
        "kind": "ase",
        "cutoff": CUTOFF,
        "fields": [{"name": "charge", "on": "graph", "key": "total", "scale": 0.5}],
    }
    halved, whole = told(run, source="ase", build=rule), Ensemble.load(run)
    one, two = (whole.predict(with_info(atoms, charge=charge))["energy"].mean[0] for charge in (1, 2))
    assert halved.predict(with_info(atoms, total=2, charge=7))["energy"].mean[0] == one
    assert halved.predict(with_info(atoms, charge=2))["energy"].mean[0] == two != one
    atoms = with_info(atoms, total=2)
    atoms.calc = EnsembleCalculator(halved)
    assert atoms.get_potential_energy() == one
    atoms.info["total"] = 4
    assert atoms.get_potential_energy() == two


def test_structures_are_refused_where_the_positions_of_training_are_no_angstrom(charged: tuple[Path, Atoms]) -> None:
    with pytest.raises(InputError, match="positions of the training data are in bohr, and those of structure files in"):
        told(charged[0], length_unit="bohr").predict(charged[1])


def test_a_field_that_was_taken_away_is_refused(charged: tuple[Path, Atoms]) -> None:
    atoms = charged[1].copy()
    atoms.calc = calculator(charged[0])
    atoms.get_potential_energy()
    del atoms.info["charge"]
    with pytest.raises(InputError, match="no charge for the field charge"):
        atoms.get_potential_energy()


def squeezed(atoms: Atoms, step: int) -> Atoms:
    """Return the atoms, nearer to each other the later the step."""
    atoms.positions *= 0.9 if step else 1.0
    return atoms


def test_dynamics_stop_after_the_last_frame_inside_and_the_files_stay_readable(
    ensemble: Path, frames: list[Atoms], tmp_path: Path
) -> None:
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
    assert loaded.predict(inside).domain == ("",) * len(inside)
    assert inside[-1].get_potential_energy() == loaded.predict(inside[-1])["energy"].mean[0]
    trajectory.close()


def test_a_cause_is_printed_once_and_recorded_at_every_step(
    ensemble: Path, frames: list[Atoms], capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {}
    for outside in ("warn", "record"):
        atoms = frames[0].copy()
        atoms.calc = calculator(ensemble, outside=outside)
        capsys.readouterr()
        reasons = []
        for step in range(5):
            squeezed(atoms, step).get_potential_energy()
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
    with pytest.raises(InputError, match="outside = 'stpo' is no reaction; did you mean stop"):
        _check_outside(Ensemble.load(ensemble), "stpo")
    with pytest.raises(InputError, match='outside = "stop" needs a training domain, and 0000 has none'):
        calculator(runs[0], outside="stop")
    assert calculator(runs[0]).outside == "warn"
