"""LAMMPS has right numbers, or ends on all ranks with a sentence."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("lammps_runs.py")


@pytest.fixture(scope="module")
def answers(driven: Path) -> dict[str, dict[str, Any]]:
    """Answers of all inputs by name."""
    command = [sys.executable, str(SCRIPT), str(driven)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=driven.parent)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize(
    "name",
    [
        "in two parts",
        "again from 0",
        "no ids",
        "no pair style",
        "short pair style",
        "hybrid",
        "newton off",
        "bonds that keep all pairs",
    ],
)
def test_commands_that_change_no_interaction_change_no_number(name: str, answers: dict[str, dict[str, Any]]) -> None:
    plain, answer = answers["plain"], answers[name]
    assert (answer["code"], answer["words"]) == (0, "")
    assert answer["pe"] == pytest.approx(answer["energy"], abs=1e-9)
    assert answer["energy"] == pytest.approx(plain["energy"], abs=1e-6)  # LAMMPS rounds in another order
    for own, other in zip(answer["forces"], plain["forces"], strict=True):
        assert own == pytest.approx(other, abs=1e-5)


def test_a_minimisation_ends_below_its_start(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["minimised"]["code"] == 0, answers["minimised"]["words"]
    assert answers["minimised"]["energy"] < answers["plain"]["energy"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pe/atom", r"step 0: it has no energies of single atoms \(compute pe/atom\)"),
        ("pe/atom later", r"step 3: it has no energies of single atoms"),
        ("stress/atom", r"step 0: it has no stresses \(compute stress/atom\)"),
        ("centroid/stress/atom", r"step 0: it has no stresses"),
        ("heat/flux", r"step 0: it has no energies of single atoms"),
        ("exclude type", r"step 0: LAMMPS leaves out \d+ pairs of atoms that the potential has"),
        ("exclude group", r"step 0: LAMMPS leaves out \d+ pairs"),
        ("exclude later", r"step 3: LAMMPS leaves out \d+ pairs"),
        ("bonds that leave pairs out", r"step 0: LAMMPS leaves out \d+ pairs.*special_bonds lj/coul 1 1 1"),
        ("respa", r"step 0: run_style respa leaves fix external out"),
        ("MemoryError at step 7", r"step 6: MemoryError: there is no room"),
        ("KeyboardInterrupt at step 7", r"step 6: KeyboardInterrupt"),
        ("not finite", r"step 0: energy or forces are not finite"),
    ],
)
def test_a_callback_that_cannot_answer_ends_lammps_with_a_sentence(
    name: str, words: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[name]["code"] == 1
    assert re.fullmatch(f"error: the potential failed at {words}.*\n", answers[name]["words"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no vesin", "ModuleNotFoundError: import of vesin halted"),
        ("no atoms", "there are no atoms; create them before attach"),
        ("two dimensions", "write dimension 3"),
    ],
)
def test_what_cannot_work_is_an_error_of_attach(name: str, words: str, answers: dict[str, dict[str, Any]]) -> None:
    assert answers[name]["code"] == 3  # of an exception that the script sees
    assert words in answers[name]["words"]


def on_ranks(driven: Path, ranks: int, what: str) -> tuple[int, str, float]:
    """Exit code, output and end of a run under mpirun."""
    launcher = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks), sys.executable]
    result = subprocess.run(
        [*launcher, str(SCRIPT), str(driven), "ranks", what],
        capture_output=True,
        text=True,
        check=False,
        cwd=driven.parent,
        timeout=180,
    )
    return result.returncode, result.stdout + result.stderr, time.time()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "what"), [(1, "first"), (2, "first"), (2, "last"), (3, "first"), (3, "last")])
def test_an_error_of_one_rank_ends_all(ranks: int, what: str, driven: Path) -> None:
    code, text, end = on_ranks(driven, ranks, what)
    assert code != 0
    sentences = re.findall("error: the potential failed at step [56]: .*there is no room", text)
    assert len(sentences) == 1, text
    raised = re.search(r"raised at ([\d.]+)", text)
    assert raised and end - float(raised.group(1)) < 10


@pytest.mark.slow
def test_ids_near_two_billions_and_ranks_without_atoms_have_the_numbers_of_one_rank(driven: Path) -> None:
    energies = []
    for ranks, what in ((1, "few"), (1, "ids"), (3, "ids")):
        code, text, _ = on_ranks(driven, ranks, what)
        assert code == 0, text
        found = re.search(r"energy (\S+) of (\S+)", text)
        assert found and float(found.group(1)) == pytest.approx(float(found.group(2)), abs=1e-9)
        energies.append(float(found.group(1)))
    assert energies[1:] == pytest.approx(energies[:1] * 2, abs=1e-8)
