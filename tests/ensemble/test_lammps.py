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


def test_every_input_has_the_numbers_of_the_plain_one_or_ends_with_its_sentence(
    answers: dict[str, dict[str, Any]],
) -> None:
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
