"""A disk that fails: whatever it refuses, and when, files are complete or absent, and one sentence says why."""

import errno
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hydragnn
from hydragnn.base import files
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.datasets.formats import hdf5
from tests.charged_rings import write_rings
from tests.nolock import preloaded

RUN = {
    "model": {"kind": "gin", "hidden_dim": 4, "num_layers": 1},
    "heads": [{"kind": "scalar", "field": "moment"}],
    "train": {"epochs": 1},
}


def fail() -> OSError:
    return OSError(errno.EIO, "Input/output error")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    hydragnn.train({**RUN, "data": {"store": str(write_rings(folder / "rings.h5", 24))}}, folder / "run")
    return folder


def test_a_failing_write_of_hdf5_leaves_a_sentence_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them in turn, and all after it; HDF5 itself would not survive one."""
    whole, left = hdf5.NotedFile.write, [0]

    def failing(self: hdf5.NotedFile, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0 and self.error is None:
            self.error = fail()
        return whole(self, data)

    monkeypatch.setattr(hdf5.NotedFile, "write", failing)
    for number in itertools.count():
        left[0] = number
        try:
            store = write_rings(tmp_path / "rings.h5", 3)
        except InputError as error:
            assert "cannot write" in str(error) and "Input/output error" in str(error)
            assert not list(tmp_path.iterdir())
        else:
            assert number > 10 and len(open_store(store)) == 3
            break


def test_a_prediction_is_complete_where_only_its_plan_cannot_be_written(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.h5"
    _fail_at(tmp_path, Path(f"{out}.plan.json"), monkeypatch)
    result = hydragnn.predict(made / "run", made / "rings.h5", out)
    assert result is not None and result.graphs == 24
    assert "note: cannot write" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]


def test_an_ensemble_without_a_flush_is_not_there(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_at(tmp_path, tmp_path / "ensemble", monkeypatch)
    with pytest.raises(InputError, match=r"cannot write .*ensemble: Input/output error"):
        hydragnn.build_ensemble([made / "run"], tmp_path / "ensemble")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    hydragnn.build_ensemble([made / "run"], tmp_path / "ensemble")


def test_a_file_neither_confirmed_nor_taken_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.rename
    monkeypatch.setattr(files, "flush_directory", lambda folder: (_ for _ in ()).throw(fail()))
    monkeypatch.setattr(Path, "rename", lambda self, to: real(self, to) if self.name.startswith(".") else _raise())
    with pytest.raises(InputError, match="it is there as a whole, but may not survive a power cut"):
        files.write_json(tmp_path / "a.json", {})
    assert files.read_json(tmp_path / "a.json") == {}


def _raise() -> None:
    raise fail()


def _fail_at(folder: Path, final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk does not confirm the names of ``folder`` while ``final`` is one of them."""
    real = files.flush_directory

    def flush(place: Path) -> None:
        if place == folder and final.exists():
            raise fail()
        real(place)

    monkeypatch.setattr(files, "flush_directory", flush)


def test_a_fault_of_a_command_leaves_its_output_whole_or_absent_and_a_repeat_completes_it(tmp_path: Path) -> None:
    """At the last flush, and at the write before it or by a kill half-way."""
    words = [sys.executable, "-m", "tests.faulting", str(tmp_path)]
    environment = {**os.environ, "LD_PRELOAD": str(preloaded("faulting")), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1200)
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == 3 * 13, run.stderr
    assert [row for row in rows if row[3]] == []
