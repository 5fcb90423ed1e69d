"""Command line: a run from training to report, and values for machines."""

import json
from pathlib import Path
from typing import Any

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_json
from hydragnn.scripts.showing import show
from tests.charged_rings import RUN, write_rings
from tests.ensemble.finished import arrays_of
from tests.once import Call, shared


@shared
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rings(tmp_path_factory.mktemp("cli") / "rings.h5", 20)


def _written(path: Path, text: str, store: Path) -> Path:
    path.write_text(text.replace("rings.h5", str(store)))
    return path


def test_commands_answer_for_machines(store: Path, call: Call, tmp_path: Path) -> None:
    def answer(*words: object) -> Any:
        code, out, err = call(*words, "--json")
        assert code == 0, err
        return {**json.loads(out), "note": err}

    config, run, page = _written(tmp_path / "run.toml", RUN, store), tmp_path / "run", tmp_path / "said.h5"
    assert answer("train", config, "--out", run)["status"] == "finished"
    assert "nothing to resume" in answer("predict", run, store, "--out", page, "--resume")["note"]
    assert any(array.shape[:1] == (20,) for array in arrays_of(page).values())
    assert Path(answer("report", run)["report"]).read_text().lower().startswith("<!doctype html>")
    assert {"torch", "mpi", "adios2", "scheduler", "gpus"} <= set(answer("doctor"))
    answer("data", "convert", store, tmp_path / "rings.bp")
    assert answer("data", "check", tmp_path / "rings.bp")["problems"] == []


def test_a_run_is_continued_by_its_folder_and_repeated_by_its_file(call: Call, store: Path, tmp_path: Path) -> None:
    config, one, two = _written(tmp_path / "run.toml", RUN, store), str(tmp_path / "one"), str(tmp_path / "two")
    assert call("train", str(config))[2].startswith("error: --out is missing")
    assert call("train", str(config), "--out", one, "--json")[0] == 0
    assert "is a run; continue it with --resume" in call("train", one)[2]
    begun = (tmp_path / "one" / "record.json").read_text()
    for source in (one, f"{one}/config.json"):
        code, out, _ = call("train", source, "--resume", "--json")
        assert (code, json.loads(out)["run"]) == (0, one)
    assert json.loads(begun)["config_hash"] == json.loads((tmp_path / "one" / "record.json").read_text())["config_hash"]
    assert call("train", f"{one}/config.json", "--out", two, "--json", "--set", "train.epochs=1")[0] == 0
    before, after = (json.loads((Path(folder) / "config.json").read_text()) for folder in (one, two))
    assert after == {**before, "train": {**before["train"], "epochs": 1}}
    assert "is a folder without a run" in call("train", str(tmp_path), "--resume")[2]
    bad = _written(tmp_path / "bad.toml", RUN.replace('"moment"', '"momentum"'), store)  # before what is said of --out
    assert "the store has no field momentum; did you mean moment" in call("train", str(bad), "--out", one)[2]


@pytest.mark.parametrize(
    "command", ["quickstart", "train", "search", "status", "ensemble", "predict", "report", "doctor", "kernels compile"]
)
def test_every_command_teaches(command: str, call: Call) -> None:
    code, out, _ = call(*command.split(), "--help")
    assert code == 0 and "--json" in out


def test_what_there_is_not_is_none_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show({"best trial": None}, as_json=False)
    assert capsys.readouterr().out.split() == ["best", "trial", "none"]


def test_a_result_below_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*out\.json: .*; free space or choose another place"):
        write_json(tmp_path / "file" / "folder" / "out.json", {})
