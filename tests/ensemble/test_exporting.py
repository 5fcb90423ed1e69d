"""Exported files have the calculator's numbers for every form of an input, in processes without this project, or end with a sentence."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from torch import Tensor
from vesin import NeighborList

import hydragnn
from hydragnn.base.errors import MissingPackageError
from hydragnn.ensemble import OutsideDomain, calculator, package_calculator, torch_sim_model
from hydragnn.ensemble.exporting import export as exporting
from hydragnn.ensemble.exporting.program import example
from tests.ensemble.conftest import calculating, refused
from tests.forked import run_forked
from tests.once import shared

OUTSIDE = Path(__file__).with_name("exporting.py")


@shared
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Atoms]]:
    """Copper of 1 to 32 atoms in sheared cells, a pair in a vacuum, and an atom without neighbours."""
    random, some = np.random.default_rng(3), [Atoms("Cu2", [[0, 0, 0], [0, 0, 2.4]]), Atoms("Cu", [[1.0, 2.0, 3.0]])]
    for repeat in ((1, 1, 1), (2, 1, 1), (2, 2, 2)):
        atoms = bulk("Cu", cubic=True) * repeat
        atoms.positions += 0.1 * random.normal(size=atoms.positions.shape)
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + np.tril(0.03 * random.normal(size=(3, 3)))), scale_atoms=True)
        some.append(atoms)
    some.append(bulk("Cu", cubic=False))
    some[-1].set_cell(some[-1].cell.standard_form()[0], scale_atoms=True)
    path = tmp_path_factory.mktemp("structures") / "structures.npz"
    columns = {}
    for number, atoms in enumerate(some):
        columns |= {f"{number} {key}": np.array(getattr(atoms, key)) for key in ("positions", "numbers", "cell", "pbc")}
    np.savez(path, **columns)
    return path, some


def output_of(*words: object, ranks: int = 1, folder: Path) -> subprocess.CompletedProcess[str]:
    launcher = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)


def ran(what: str, file: Path, structures: Path, *more: str, ranks: int = 1) -> dict[str, Any]:
    out = file.with_name(f"results {ranks} {' '.join(more)}.npz")
    result = output_of(OUTSIDE, what, file, structures, out, *more, ranks=ranks, folder=file.parent)
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(np.load(out))


def check_same(results: dict[str, Any], folder: Path, some: list[Atoms], numbers: list[int], stress: float) -> None:
    potential = calculator(folder, outside="record")
    for number in numbers:
        atoms = some[number].copy()
        atoms.calc = potential
        assert results[f"{number} energy"][0] == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
        np.testing.assert_allclose(results[f"{number} forces"], atoms.get_forces(), atol=1e-9)
        if atoms.pbc.all():
            np.testing.assert_allclose(results[f"{number} stress"][0], atoms.get_stress(voigt=False), atol=stress)


def test_a_program_of_torch_has_the_calculators_numbers_for_all_sizes_without_this_project(
    strained: tuple[Path, Atoms], samples: tuple[Path, list[Atoms]], exported: tuple[Path, dict[str, Any]]
) -> None:
    (path, some), (file, stated) = samples, exported
    results = ran("program", file, path)
    check_same(results, strained[0], some, list(range(len(some))), 1e-9)
    for name in ("energy", "forces", "stress"):
        alone = [results[f"{number} {name}"] for number in range(len(some))]
        np.testing.assert_allclose(results[f"all {name}"], np.concatenate(alone), atol=1e-12)
    facts = json.loads(str(results["facts"]))
    assert stated["torch -1"] == {"out": file.name, "to": "torch", **facts}
    refused(r"potential\.pt2 exists already; choose another --out", hydragnn.export, strained[0], file)


def test_an_export_on_a_full_disk_leaves_nothing(exported: tuple[Path, dict[str, Any]]) -> None:
    for to, name in (("torch", "potential.pt2"), ("lammps", "copper")):
        words, files = exported[1][f"{to} 20000"]
        assert words.startswith(f"cannot write {name}: File too large; free space") and files == []


def test_a_model_of_metatomic_has_the_calculators_numbers(
    strained: tuple[Path, Atoms], samples: tuple[Path, list[Atoms]], tmp_path: Path
) -> None:
    pytest.importorskip("metatomic.torch", reason=NEEDED.replace("torch-sim", "metatomic"))
    path, some = samples
    run_forked(hydragnn.export, strained[0], tmp_path / "m.pt", "metatomic")
    check_same(ran("metatomic", tmp_path / "m.pt", path), strained[0], some, list(range(len(some))), 1e-9)


@pytest.mark.parametrize(("units", "ranks"), [("metal", 1), ("real", 1), ("metal", 2)])
def test_lammps_has_the_calculators_numbers_and_moves_atoms_as_ase_does(
    strained: tuple[Path, Atoms], samples: tuple[Path, list[Atoms]], driven: Path, units: str, ranks: int
) -> None:
    path, some = samples
    results = ran("lammps", driven, path, units, ranks=ranks)
    assert results["ranks"] == ranks
    check_same(results, strained[0], some, [2, 3, 4], 1e-8)  # digits of its conversion of pressures
    from ase import units as of_ase
    from ase.md.verlet import VelocityVerlet

    atoms = calculating(some[4], strained[0], outside="record")
    atoms.set_masses([63.546] * len(atoms))
    atoms.set_velocities(results["4 velocities"] / of_ase.fs)
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, timestep=2 * of_ase.fs).run(40)
    drift = atoms.get_total_energy() - before
    assert results["4 kinetic"] == pytest.approx(atoms.get_kinetic_energy(), rel=1e-6)
    assert results["4 drift"] == pytest.approx(drift, abs=1e-7)


REFUSED: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("strained", "out.pt2", "onnx", {}, "'onnx' is no format"),
    ("charged", "out.pt2", "torch", {}, r"reads charge, tags.*, which exports do not carry"),
    ("strained", "out.pt", "torch", {}, r"let the name of a program of torch\.export end in \.pt2"),
    ("strained", "out.pt2", "lammps", {}, "let the name of a folder for LAMMPS end in no suffix"),
    ("nothing", "out.pt2", "torch", {}, "neither a campaign, an ensemble nor a run"),
    ("strained", "out", "lammps", {"dim": 2}, "does not read atoms in three dimensions"),
    ("strained", "out.pt2", "torch", {"targets": ()}, "the ensemble predicts no energy"),
    ("strained", "out.pt", "metatomic", {}, r"hydragnn-ensemble\[simulation\]"),
]
"""Model, file, format, changes of the manifest, and words."""


@pytest.mark.parametrize(("which", "name", "to", "changes", "words"), REFUSED)
def test_models_that_a_format_cannot_carry_get_one_sentence(
    which: str, name: str, to: str, changes: dict[str, Any], words: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: Any = tmp_path if which == "nothing" else request.getfixturevalue(which)[0]
    if changes:
        model = hydragnn.load(model)
        model.manifest = replace(model.manifest, **changes)
    with patch.object(exporting, "find_spec", lambda name: None):
        refused(words, hydragnn.export, model, tmp_path / name, to=to)
    assert not list(tmp_path.iterdir())


SCRIPT = Path(__file__).with_name("lammps_runs.py")


@pytest.fixture(scope="module")
def answers(driven: Path) -> dict[str, dict[str, Any]]:
    result = output_of(SCRIPT, driven, folder=driven.parent)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


def test_every_input_has_the_plain_numbers_or_its_sentence(answers: dict[str, dict[str, Any]]) -> None:
    plain = answers["plain"]
    for name, answer in answers.items():
        code, words = answer["expected"]
        assert answer["code"] == code, (name, answer["words"])
        if code == 1:
            assert re.fullmatch(f"error: the potential failed at {words}.*\n", answer["words"]), name
        elif code:
            assert words in answer["words"], name
        elif name == "minimised":
            assert answer["energy"] < plain["energy"]
        else:
            assert answer["words"] == "" and answer["pe"] == pytest.approx(answer["energy"], abs=1e-9), name
            assert answer["energy"] == pytest.approx(plain["energy"], abs=1e-6)  # LAMMPS rounds in another order
            for own, other in zip(answer["forces"], plain["forces"], strict=True):
                assert own == pytest.approx(other, abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "what"), [(1, "first"), (2, "first"), (2, "last"), (3, "first"), (3, "last")])
def test_an_error_of_one_rank_ends_all(ranks: int, what: str, driven: Path) -> None:
    result = output_of(SCRIPT, driven, "ranks", what, ranks=ranks, folder=driven.parent)
    text, end = result.stdout + result.stderr, time.time()
    assert result.returncode != 0
    sentences = re.findall("error: the potential failed at step [56]: .*there is no room", text)
    assert len(sentences) == 1, text
    raised = re.search(r"raised at ([\d.]+)", text)
    assert raised and end - float(raised.group(1)) < 10


@pytest.mark.slow
def test_ids_near_two_billions_and_ranks_without_atoms_have_the_numbers_of_one_rank(driven: Path) -> None:
    energies = []
    for ranks, what in ((1, "few"), (1, "ids"), (3, "ids")):
        result = output_of(SCRIPT, driven, "ranks", what, ranks=ranks, folder=driven.parent)
        assert result.returncode == 0, result.stderr
        found = re.search(r"energy (\S+) of (\S+)", result.stdout)
        assert found and float(found.group(1)) == pytest.approx(float(found.group(2)), abs=1e-9)
        energies.append(float(found.group(1)))
    assert energies[1:] == pytest.approx(energies[:1] * 2, abs=1e-8)


Inputs = list[Tensor]
Program = Callable[..., Any]
NAMES = ("positions", "species", "cells", "edges", "images", "owners")


def spread(tensor: Tensor) -> Tensor:
    return torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 77, dtype=tensor.dtype)[..., ::2].copy_(tensor)


def window(tensor: Tensor) -> Tensor:
    corner = tuple(slice(0, size) for size in tensor.shape)
    return torch.full([size + 3 for size in tensor.shape], 77, dtype=tensor.dtype)[corner].copy_(tensor)


def columns(tensor: Tensor) -> Tensor:
    """The order of Fortran."""
    axes = list(range(tensor.dim()))[::-1]
    return tensor.permute(axes).contiguous().permute(axes)


TYPES = (torch.float32, torch.float16, torch.int32, torch.uint8, torch.complex128, torch.float64, torch.int64)
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda tensor: tensor,
    "spread": spread,
    "window": window,
    "columns": columns,
    **{str(dtype).removeprefix("torch."): partial(Tensor.to, dtype=dtype) for dtype in TYPES},
    "one short": lambda tensor: tensor[:-1],
    "nothing": lambda tensor: tensor[:0],
    "flat": lambda tensor: tensor.flatten(),
    "one axis more": lambda tensor: tensor[None],
}


def structures() -> dict[str, Atoms]:
    crystal = bulk("Cu", cubic=True)
    crystal.positions += 0.1 * np.random.default_rng(1).normal(size=crystal.positions.shape)
    some = {"crystal": crystal}
    for name, periodic in {"slab": (1, 1, 0), "wire": (0, 0, 1), "cluster": (0, 0, 0), "far away": (1, 1, 1)}.items():
        some[name] = crystal.copy()
        some[name].pbc = periodic
    some["far away"].positions += 40.0
    some |= {"alone": Atoms("Cu", [[1.0, 2.0, 3.0]]), "one in a crystal": bulk("Cu")}
    return some


def inputs_of(atoms: Atoms) -> Inputs:
    search = NeighborList(cutoff=4.0, full_list=True)
    centres, neighbours, images = search.compute(atoms.positions, atoms.cell.array, atoms.pbc, "ijS")
    return [
        torch.from_numpy(atoms.positions.copy()),
        torch.from_numpy(atoms.numbers.astype(np.int64)),
        torch.from_numpy(atoms.cell.array.copy())[None],
        torch.from_numpy(np.stack([neighbours, centres]).astype(np.int64)),
        torch.from_numpy(images.astype(np.float64)),
        torch.zeros(len(atoms), dtype=torch.int64),
    ]


def _compile(model: Path, traced: Path, out: Path) -> None:
    """Export a package of the program that was traced already."""
    program = torch.export.load(traced)

    def program_of(potential: exporting.PlainPotential) -> torch.export.ExportedProgram:
        program._example_inputs = example(potential), {}
        return program

    exporting.program_of = program_of
    hydragnn.export(model, out, to="aoti")


@shared
def package(strained: tuple[Path, Atoms], exported: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("programs") / "aoti.pt2"
    run_forked(_compile, strained[0], exported[0], file)
    return file


without_compiler = pytest.mark.skipif(not which("g++"), reason="no g++")


@pytest.fixture(
    scope="module",
    params=["exported", pytest.param("package", marks=[pytest.mark.slow, without_compiler])],
    ids=["torch", "aoti"],
)
def program(request: pytest.FixtureRequest) -> Program:
    made = request.getfixturevalue(request.param)
    if request.param == "exported":
        return torch.export.load(made[0]).module()
    loaded: Program = torch._inductor.aoti_load_package(str(made))
    return loaded


def answer(program: Program, inputs: Inputs) -> list[np.ndarray] | None:
    """Energy, forces and stress; None where the program refuses."""
    try:
        return [one.numpy() for one in program(*inputs)[:3]]
    except (RuntimeError, IndexError, AssertionError, ValueError):
        return None


@pytest.fixture(scope="module")
def right(strained: tuple[Path, Atoms]) -> dict[str, list[np.ndarray]]:
    potential, numbers = calculator(strained[0], outside="record"), {}
    for name, atoms in structures().items():
        atoms.calc = potential
        stress = [atoms.get_stress(voigt=False)[None]] if atoms.pbc.all() else []
        numbers[name] = [np.array([atoms.get_potential_energy()]), atoms.get_forces(), *stress]
    return numbers


@pytest.mark.parametrize("form", FORMS)
def test_any_form_is_computed_or_refused(form: str, program: Program, right: dict[str, list[np.ndarray]]) -> None:
    for name, atoms in structures().items():
        for place, what in enumerate(NAMES):
            inputs = inputs_of(atoms)
            inputs[place] = FORMS[form](inputs[place])
            results = answer(program, inputs)
            assert results is not None or form != "as it is", f"{what} of {name} are refused"
            for own, other in zip(results or (), right[name]):
                np.testing.assert_allclose(own, other, atol=1e-6, err_msg=f"{what} of {name}")


@pytest.mark.parametrize(
    ("place", "change"),
    [(3, 100), (3, -1), (3, -100), (5, 1), (5, -1), (1, 200), (1, -60)],
    ids=["atoms beyond", "atom -1", "atoms before", "structure beyond", "structure -1", "element 229", "element -31"],
)
def test_numbers_of_what_is_not_there_are_refused(place: int, change: int, program: Program) -> None:
    inputs = inputs_of(structures()["crystal"])
    inputs[place] = inputs[place] + change
    assert answer(program, inputs) is None


@pytest.mark.parametrize("species", [[79, 29, 29, 29], [29, 29, 29, 1], [0, 29, 29, 29], [47, 47, 47, 47]])
def test_an_unknown_element_makes_all_results_of_its_structure_unknown(species: list[int], program: Program) -> None:
    crystal = structures()["crystal"]
    inputs, known = inputs_of(crystal), inputs_of(crystal)
    inputs[1] = torch.tensor(species)
    both = [torch.cat([one, other], dim=0) for one, other in zip(inputs, known)]
    both[3] = torch.cat([inputs[3], known[3] + 4], dim=1)
    both[5] = torch.arange(8) // 4
    alone, results = answer(program, known), answer(program, both)
    assert alone is not None and results is not None
    for own, other, atoms in zip(results, alone, (1, 4, 1)):
        assert np.isnan(own[:atoms]).all()
        np.testing.assert_allclose(own[atoms:], other, atol=1e-9)
    lone = inputs_of(structures()["alone"])
    lone[1] = torch.tensor([79])
    assert all(np.isnan(one).all() for one in answer(program, lone) or [np.zeros(1)])


@pytest.mark.slow
@without_compiler
def test_a_package_is_a_calculator_of_its_model(package: Path, strained: tuple[Path, Atoms], runs: list[Path]) -> None:
    fast, right = package_calculator(strained[0], package), calculator(strained[0], outside="record")
    for name, atoms in structures().items():
        for _ in range(2):  # with the neighbours that are kept
            one, other = atoms.copy(), atoms.copy()
            one.calc, other.calc = fast, right
            assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-6), name
            np.testing.assert_allclose(one.get_forces(), other.get_forces(), atol=1e-6, err_msg=name)
            assert ("stress" in fast.results) == ("stress" in right.results), name
            if "stress" in fast.results:
                np.testing.assert_allclose(one.get_stress(), other.get_stress(), atol=1e-6, err_msg=name)
            atoms.positions += 0.01
    gold = bulk("Au", cubic=True)
    gold.calc = fast
    refused("elements that training did not hold", gold.get_potential_energy)
    refused("another model", package_calculator, runs[0], package)
    refused("does not exist; write it with", package_calculator, strained[0], package.with_name("none.pt2"))


@pytest.mark.parametrize("periodic", [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 0)])
@pytest.mark.parametrize("form", ["as it is", "window", "columns", "float32"])
def test_states_of_torch_sim_have_any_form(form: str, periodic: tuple[int, ...], strained: tuple[Path, Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    model, atoms = torch_sim_model(strained[0], outside="record"), structures()["crystal"]
    atoms.pbc = True  # mixed axes are set below, since initialize_state would open all of them
    state = torch_sim.initialize_state([atoms], model.device, model.dtype)
    atoms.pbc = periodic
    state.pbc = torch.tensor(periodic, dtype=torch.bool)
    state.positions = FORMS[form](state.positions)
    atoms.positions = state.positions.double().numpy()
    atoms.calc = calculator(strained[0], outside="record")
    results = model(state)
    assert results["energy"].item() == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
    np.testing.assert_allclose(results["forces"], atoms.get_forces(), atol=1e-6)


NEEDED = "torch-sim is not installed: pip install 'hydragnn-ensemble[simulation]'"


def rattled(count: int, seed: int) -> list[Atoms]:
    """Cells of one to eight atoms, some with an open side and some far from their origin."""
    random = np.random.default_rng(seed)
    structures = []
    for number in range(count):
        atoms = bulk("Cu", cubic=bool(number % 2)) * (1, 1, 1 + number % 3 // 2)
        atoms.positions += 0.1 * random.normal(size=atoms.positions.shape)
        atoms.pbc[2] = number % 4 != 3
        atoms.positions += 60.0 * (number % 5 == 4)
        structures.append(atoms)
    return structures


def test_all_structures_have_the_calculators_energies_forces_and_stress(strained: tuple[Path, Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    model, potential = torch_sim_model(strained[0]), calculator(strained[0], outside="record")
    structures = [atoms for atoms in rattled(9, seed=2) if atoms.pbc.all()]
    results = model(torch_sim.initialize_state(structures, model.device, model.dtype))
    assert (model.compute_forces, model.compute_stress) == (True, True)
    first = 0
    for number, atoms in enumerate(structures):
        atoms.calc = potential
        own = slice(first, first := first + len(atoms))
        assert results["energy"][number].item() == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
        np.testing.assert_allclose(results["forces"][own], atoms.get_forces(), atol=1e-9)
        np.testing.assert_allclose(results["stress"][number], atoms.get_stress(voigt=False), atol=1e-9)
        np.testing.assert_allclose(results["forces_std"][own], potential.results["forces_std"], atol=1e-9)
        assert results["domain_score"][number].item() == pytest.approx(potential.results["domain_score"])
        assert model.domain[number] == potential.results["domain"]


def test_structures_that_move_or_go_have_the_calculators_energies(strained: tuple[Path, Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    model, potential = torch_sim_model(strained[0], outside="record"), calculator(strained[0], outside="record")
    structures, random = [atoms for atoms in rattled(9, seed=3) if atoms.pbc.all()], np.random.default_rng(1)
    for step in range(6):
        energies = model(torch_sim.initialize_state(structures, model.device, model.dtype))["energy"].tolist()
        for atoms, energy in zip(structures, energies, strict=True):
            alone = atoms.copy()
            alone.calc = potential
            assert energy == pytest.approx(alone.get_potential_energy(), rel=1e-9)
            atoms.positions += 0.02 * random.normal(size=atoms.positions.shape)
            atoms.set_cell(atoms.cell.array * 1.002, scale_atoms=True)
        structures = structures[1:] if step == 3 else structures
    structures[1].positions[1] = structures[1].positions[0] + 1e-5
    state = torch_sim.initialize_state(structures, model.device, model.dtype)
    refused(r"structure 1: nodes 0 and 1 are 1\.7e-05 apart", model, state)
    state.positions[-1, 0] = np.nan
    refused("structure 0, positions: NaN or infinite", model, state[[-1]])


def test_clusters_are_relaxed_at_once_as_one_after_the_other(ensemble: Path, frames: list[Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    from ase.optimize import FIRE

    model, potential, energies = torch_sim_model(ensemble, outside="record"), calculator(ensemble, outside="record"), []
    for frame in frames[:4]:
        atoms = frame.copy()
        atoms.calc = potential
        FIRE(atoms, logfile=None).run(1e-9, 6)
        energies.append(atoms.get_potential_energy())
    state = torch_sim.initialize_state([frame.copy() for frame in frames[:4]], model.device, model.dtype)
    state.pbc = False
    start, step = torch_sim.optimizers.fire(model, md_flavor="ase_fire")
    fire = start(state)
    for _ in range(6):
        fire = step(fire)
    np.testing.assert_allclose(fire.energy, energies, rtol=1e-6)


def test_a_state_outside_the_training_domain_stops_by_name(ensemble: Path, frames: list[Atoms]) -> None:
    torch_sim = pytest.importorskip("torch_sim", reason=NEEDED)
    far = frames[1].copy()
    far.positions *= 0.6
    model = torch_sim_model(ensemble, outside="stop")
    state = torch_sim.initialize_state([frames[0].copy(), far], model.device, model.dtype)
    with pytest.raises(OutsideDomain, match="structure 1: "):
        model(state)


def test_models_that_read_more_than_states_hold_and_a_missing_package_get_a_sentence(
    charged: tuple[Path, Atoms], ensemble: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_sim", reason=NEEDED)
    refused("reads charge, tags beside elements and positions", torch_sim_model, charged[0])
    monkeypatch.setattr("hydragnn.ensemble.exporting.package_calculator.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"hydragnn-ensemble\[simulation\]"):
        torch_sim_model(ensemble)
