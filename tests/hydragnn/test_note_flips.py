"""A bit that changed in the small notes beside runs, predictions and ensembles: whoever reads them is told, or reads what was written."""

import json
from operator import eq
from pathlib import Path

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_json, write_sealed
from hydragnn.ensemble.prediction.records import Parts
from hydragnn.ensemble.prediction.reporting import PLAN, check_plan
from hydragnn.hpo.controller import write_folder
from hydragnn.hpo.launching.launcher import Task
from hydragnn.runs.attempt import Attempt, Fenced
from hydragnn.runs.checkpoint import latest_checkpoint
from hydragnn.scripts.report.ablation_facts import ablation_facts
from tests.flips import FLIPS, flipped, silent

ROWS = {"energy": {"unit": "eV", "with_edges": 0.01, "without_edges": 0.3, "trivial": 0.5}}


def test_a_flipped_bit_never_points_to_another_checkpoint(tmp_path: Path) -> None:
    """All names that one bit makes of the right one are there, as the one before it may be."""
    for number in range(10):
        folder = tmp_path / f"{number:06d}-000000"
        folder.mkdir()
        (folder / "state.json").touch()
    write_sealed(tmp_path / "latest.json", {"version": 2, "checkpoint": "000004-000000"})
    found, refused = silent(tmp_path / "latest.json", lambda: latest_checkpoint(tmp_path), eq)
    assert not found and refused > FLIPS / 2


def test_a_flipped_bit_never_lets_another_attempt_write(tmp_path: Path) -> None:
    write_folder(Task(trial=0, attempt=4, until=1, folder=tmp_path, slots=("n1",)), None, {})
    Attempt(folder=tmp_path, number=4).check()
    fenced = 0
    for _ in flipped([tmp_path / "attempt.json"], seed=1):
        for other in (0, 5, 6):
            with pytest.raises(Fenced):
                Attempt(folder=tmp_path, number=other).check()
        try:
            Attempt(folder=tmp_path, number=4).check()
        except Fenced:
            fenced += 1
    assert fenced > FLIPS / 2


def test_a_flipped_bit_of_an_ablation_is_never_silent(tmp_path: Path) -> None:
    write_sealed(tmp_path / "ablation.json", ROWS)
    found, refused = silent(tmp_path / "ablation.json", lambda: ablation_facts(tmp_path), eq)
    assert not found and refused > FLIPS / 2


def test_a_plan_with_a_flipped_bit_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "OUT.plan.json"
    write_sealed(path, {key: {"makespan": 1.5, "ranks": 3} for key in PLAN})
    found, refused = silent(path, lambda: check_plan(path), eq)
    assert not found and refused > FLIPS / 2


def test_notes_of_earlier_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    note = {"version": 2, "checkpoint": "000004-000000"}
    folder = tmp_path / note["checkpoint"]
    folder.mkdir()
    (folder / "state.json").touch()
    write_json(tmp_path / "latest.json", note)
    write_json(tmp_path / "attempt.json", {"attempt": 4})
    write_json(tmp_path / "ablation.json", ROWS)
    assert latest_checkpoint(tmp_path) == folder
    Attempt(folder=tmp_path, number=4).check()
    assert ablation_facts(tmp_path)[0].with_edges == 0.01
    write_sealed(tmp_path / "latest.json", note)
    edited = json.loads((tmp_path / "latest.json").read_text()) | {"checkpoint": "000003-000000"}
    write_json(tmp_path / "latest.json", edited)
    with pytest.raises(InputError, match="removes the key checksum"):
        latest_checkpoint(tmp_path)


def test_a_piece_of_a_prediction_with_a_flipped_bit_is_made_again(tmp_path: Path) -> None:
    parts, values = Parts(tmp_path), np.random.default_rng(0).normal(size=(40, 3))
    written = {"graph": np.arange(40), "status": np.array(["ok"] * 40), "fields/energy/mean": values}
    parts.keep_piece(0, {"graphs": 40, "failed": 0}, written, [1.0])
    torn = 0
    for _, place in flipped([*tmp_path.iterdir()], seed=2):
        seen = Parts(tmp_path)
        seen.records.look()
        piece = seen.piece(0)
        seen.records.close()
        if piece is None:
            torn += 1
            continue
        counts, arrays = piece
        assert counts == {"graphs": 40, "failed": 0}, place
        assert arrays.keys() == written.keys(), place
        assert all(np.array_equal(arrays[name], written[name]) for name in written), place
    assert torn > FLIPS / 2
