"""What changes while it is predicted, or is no place for predictions, is told in a sentence and never mixed in."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.io import read, write
from torch.distributed import FileStore

from hydragnn.base.errors import InputError
from hydragnn.datasets import BatchSettings, StoreWriter, open_store
from hydragnn.ensemble.ensemble import Ensemble
from hydragnn.ensemble.prediction import predict, sources, work
from hydragnn.ensemble.prediction.job import PredictionJob
from hydragnn.ensemble.prediction.predict import predict_to_file
from hydragnn.ensemble.prediction.rules import digest_of, rules_for
from tests.acting import first_acts
from tests.ensemble.finished import assert_same

SMALL = BatchSettings(max_graphs=4)


@pytest.mark.parametrize("what", ["ensemble", "source"])
def test_a_rank_that_finds_something_else_than_the_first_one_predicts_nothing(
    what: str, ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder was replaced between the starts of two ranks."""
    original = predict.begin
    monkeypatch.setattr(predict, "begin", lambda *known: original(*known) | {what: "another digest"})
    monkeypatch.setattr(work, "outcome_of", None)
    with pytest.raises(InputError, match="was replaced while the prediction began"):
        predict_to_file(ensemble, stored, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_a_local_worker_that_finds_something_else_says_so_in_a_line(
    ensemble: Path,
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = PredictionJob(model=ensemble, source=stored, out=tmp_path / "out.h5")
    opening = {"fresh": True, "finished": [], "ensemble": "another digest", "source": "", "error": ""}
    FileStore(str(tmp_path / "store"), -1).set("opening", json.dumps(opening))
    monkeypatch.setattr(predict, "keep_memory", lambda: None)
    predict._predict_as_child(1, 2, torch.get_num_threads(), str(tmp_path / "store"), job, ())
    said = f"worker 1 ended: {ensemble} was replaced while the prediction began; nothing was predicted of it here: start it again"
    assert capsys.readouterr().err.splitlines() == [said]
    opening["error"] = "no such format"  # of the first process, which prints it
    FileStore(str(tmp_path / "another"), -1).set("opening", json.dumps(opening))
    predict._predict_as_child(1, 2, torch.get_num_threads(), str(tmp_path / "another"), job, ())
    assert not capsys.readouterr().err


def test_a_file_that_changes_while_graphs_are_made_of_it_is_not_predicted(
    ensemble: Path, structures_file: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "moving.xyz"
    shutil.copy(structures_file(8), path)
    frames = read(path, index=":")
    first_acts(monkeypatch, sources.Graphs, "build", lambda: write(path, frames[::-1], format="extxyz"))
    with pytest.raises(InputError, match="was changed while graphs were made of it"):
        predict_to_file(ensemble, path, tmp_path / "out.h5")
    assert not list(tmp_path.glob("out*"))
    predict_to_file(ensemble, path, tmp_path / "out.h5")


def test_a_disk_that_is_full_while_graphs_are_made_is_no_fault_of_the_files(
    ensemble: Path, structures_file: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several ranks leave a folder behind, which says nothing of the disk: once there is space, the prediction goes on."""
    path, parts, full = structures_file(8), tmp_path / "out.h5.parts", "the disk is full"

    def failing(*known: Any) -> None:
        raise InputError(full)

    def building() -> sources.Graphs:
        rules = rules_for([path], Ensemble.load(ensemble))
        return sources.Graphs(rules, parts, digest_of(rules))

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write", failing)
        with pytest.raises(InputError, match=full):
            building().build(0)
        with pytest.raises(InputError, match=full):
            predict_to_file(ensemble, path, tmp_path / "new.h5")
    assert building().missing() == [0] and not list(tmp_path.glob("new*"))
    building().build(0)
    building().join()
    source = building().source()
    assert len(source.numbers) + len(source.failures) == 8


def test_a_store_that_is_replaced_while_it_is_predicted_is_predicted_as_it_was(
    ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict_to_file(ensemble, stored, tmp_path / "whole.h5", batch=SMALL)
    store = tmp_path / "store.h5"
    shutil.copytree(stored, store)
    first_acts(monkeypatch, work, "outcome_of", lambda: shutil.rmtree(store))
    predict_to_file(ensemble, store, tmp_path / "out.h5", batch=SMALL)
    assert_same(tmp_path / "out.h5", tmp_path / "whole.h5")


def test_a_store_that_is_written_over_while_it_is_predicted_ends_the_prediction(
    ensemble: Path, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.h5"
    shutil.copytree(stored, store)
    (part,) = store.glob("*.h5")
    positions = open_store(store).read(np.arange(1)).positions.numpy().tobytes()

    def overwrite() -> None:
        place = part.read_bytes().index(positions)
        with part.open("r+b") as file:
            file.seek(place)
            file.write(bytes(8))

    first_acts(monkeypatch, work, "outcome_of", overwrite)
    with pytest.raises(InputError, match="changed while it was read"):
        predict_to_file(ensemble, store, tmp_path / "out.h5", batch=SMALL)
    assert not (tmp_path / "out.h5").exists()
