"""Records note forces that are not smooth."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hydragnn.config import RunConfig
from hydragnn.datasets import MemoryStore
from hydragnn.record import read_record
from hydragnn.runs import train
from hydragnn.scripts.showing import run_summary

Config = Callable[..., RunConfig]


@pytest.mark.parametrize(
    "model, norm, note",
    [("painn", "smooth", ""), ("painn", "paper", "force constants of perfect crystals"), ("pna", "", "energies jump")],
)
def test_forces_that_are_not_smooth_are_noted(
    model: str, norm: str, note: str, store: MemoryStore, make_config: Config, tmp_path: Path
) -> None:
    changes = {"model__norm": norm} if norm else {}
    record = train(make_config(model, **changes), tmp_path / "run", store=store, until=1)
    assert record.notes == read_record(tmp_path / "run").notes and len(record.notes) == bool(note)
    assert note in run_summary(record, tmp_path / "run").get("notes", "")
    charges = make_config(model, heads=[{"kind": "scalar", "field": "charge"}], **changes)
    assert train(charges, tmp_path / "charges", store=store, until=1).notes == []
