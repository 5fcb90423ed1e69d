"""Exported files give the calculator's numbers, in processes without this project, or end with a sentence."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

import hydragnn
from hydragnn.ensemble import calculator
from hydragnn.ensemble.exporting import export as exporting
from tests.ensemble.conftest import calculating, refused
from tests.forked import run_forked
from tests.once import shared

OUTSIDE = Path(__file__).with_name("exporting.py")


@shared
def structures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Atoms]]:
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
    strained: tuple[Path, Atoms], structures: tuple[Path, list[Atoms]], exported: tuple[Path, dict[str, Any]]
) -> None:
    (path, some), (file, stated) = structures, exported
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
    strained: tuple[Path, Atoms], structures: tuple[Path, list[Atoms]], tmp_path: Path
) -> None:
    pytest.importorskip(
        "metatomic.torch", reason="metatomic is not installed: pip install 'hydragnn-ensemble[simulation]'"
    )
    path, some = structures
    run_forked(hydragnn.export, strained[0], tmp_path / "m.pt", "metatomic")
    check_same(ran("metatomic", tmp_path / "m.pt", path), strained[0], some, list(range(len(some))), 1e-9)


@pytest.mark.parametrize(("units", "ranks"), [("metal", 1), ("real", 1), ("metal", 2)])
def test_lammps_has_the_calculators_numbers_and_moves_atoms_as_ase_does(
    strained: tuple[Path, Atoms], structures: tuple[Path, list[Atoms]], driven: Path, units: str, ranks: int
) -> None:
    path, some = structures
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
