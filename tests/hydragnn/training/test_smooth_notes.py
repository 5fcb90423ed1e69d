"""Records note forces that are not smooth."""

from pathlib import Path

import pytest

from hydragnn.record import read_record
from hydragnn.scripts.showing import run_summary
from tests.hydragnn.training.conftest import Trained


@pytest.mark.parametrize(
    "model, norm, note",
    [("painn", "smooth", ""), ("painn", "paper", "force constants of perfect crystals"), ("pna", "", "energies jump")],
)
def test_forces_that_are_not_smooth_are_noted(
    model: str, norm: str, note: str, trained: Trained, tmp_path: Path
) -> None:
    changes = {"model__norm": norm} if norm else {}
    record = trained("run", model, until=1, **changes)
    assert record.notes == read_record(tmp_path / "run").notes and len(record.notes) == bool(note)
    assert note in run_summary(record, tmp_path / "run").get("notes", "")
    assert trained("charges", model, [{"kind": "scalar", "field": "charge"}], until=1, **changes).notes == []
