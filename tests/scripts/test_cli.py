"""The command line: what bad input gets is one sentence, exit code 2 and nothing half-written."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.files import write_json
from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field
from hydragnn.scripts.showing import show
from tests import charged_rings as rings
from tests.charged_rings import RUN, SEARCH, ring
from tests.ensemble.finished import arrays_of
from tests.once import shared

Call = Callable[..., tuple[int, str, str]]
FIELDS = (*rings.FIELDS, Field(name="family", on="graph", classes=3, dtype="int64", role="auxiliary"))


@shared
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty rings, each of one of three families."""
    path, random = tmp_path_factory.mktemp("cli") / "rings.h5", np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        for number in range(20):
            writer.write(ring(4 + number % 3, random, FIELDS, family=number % 3))
    return path


def _written(path: Path, text: str, store: Path) -> Path:
    path.write_text(text.replace("rings.h5", str(store)))
    return path


SET = "train run.toml --out new --set"
BAD: dict[str, str] = {
    f"{SET} model.hiden_dim=4": "did you mean hidden_dim",
    f"{SET} heads.0.field='momnt'": "moment",
    f"{SET} data.inputs=['chrge']": "charge",
    f"{SET} data.inputs=['moment']": "moment",
    f"{SET} split.train=0.99 --set split.valid=0.005": "split",
    f"{SET} split.kind='group' --set split.field='famly'": "famly",
    f"{SET} batch.max_nodes=3": "max_nodes",
    f"{SET} heads.0.kind='energy' --set heads.0.references=true": "atomic_numbers",
    "train relational.toml --out new": "relation",
    "train run.toml --out taken": "taken",
    "search run.toml --out new": "[search]",
    "search nowhere.toml --out new": "model.hiddn_dim",
    "search space.toml --out new --set train.epoch=3": "error: space.toml: unknown key train.epoch; did you mean epochs?",
    "simulate space.toml --assume diverged": "--assume diverged: expected",
    "search empty.toml --out new": "low",
    "data info taken": "taken",
    "data build build.toml --out new.h5": "nothing-*.xyz",
    "data build kind.toml --out new.h5": "did you mean npz",
    "data convert STORE new.zarr": ".h5",
    "quickstart --out new --scale alloy": "did you mean alloys",
    "kernels compile --arch gfx9000": "unknown architecture gfx9000; Triton kernels are compiled for gfx90a",
    "kernels compile --arch gfx90a --dtype int8": "unknown dtype int8; choose among float32",
}
"""Words of a command, and words of its sentence; wrong paths stand in ``test_wrong_paths``."""


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    line: str, store: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _written(tmp_path / "run.toml", RUN, store)
    (tmp_path / "relational.toml").write_text(
        f'[data]\nstore = "{store}"\n[model]\nkind = "relational"\n[[heads]]\nkind = "scalar"\nfield = "moment"\n'
    )
    _written(tmp_path / "nowhere.toml", RUN + SEARCH.replace("hidden_dim", "hiddn_dim"), store)
    _written(tmp_path / "space.toml", RUN + SEARCH, store)
    _written(tmp_path / "empty.toml", RUN + SEARCH.replace("low = 4", "low = 9"), store)
    (tmp_path / "build.toml").write_text('kind = "ase"\nfiles = ["nothing-*.xyz"]\ncutoff = 3.0\n')
    (tmp_path / "kind.toml").write_text('kind = "nppz"\nfiles = ["a.npz"]\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "record.json").write_text("{}")
    code, _, err = call(*line.replace("STORE", str(store)).split())
    assert code == 2 and BAD[line] in err, err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("new")]


def test_a_run_trains_predicts_and_reports_for_machines(store: Path, call: Call, tmp_path: Path) -> None:
    config = _written(tmp_path / "run.toml", RUN, store)
    code, out, err = call("train", config, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["status"] == "finished"
    code, out, err = call("predict", tmp_path / "run", store, "--out", tmp_path / "said.h5", "--json", "--resume")
    assert code == 0, err
    assert "nothing to resume" in err
    assert any(array.shape[:1] == (20,) for array in arrays_of(tmp_path / "said.h5").values())
    code, out, err = call("report", tmp_path / "run", "--json")
    assert code == 0, err
    assert Path(json.loads(out)["report"]).read_text().lower().startswith("<!doctype html>")


def test_a_run_is_continued_by_its_folder_and_begun_anew_by_its_configuration(
    call: Call, store: Path, tmp_path: Path
) -> None:
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


def test_every_command_teaches(call: Call) -> None:
    groups = ("data", "kernels")
    for command in ("quickstart", "train", "search", "status", "ensemble", "predict", "report", "doctor", *groups):
        code, out, _ = call(command, "--help")
        assert code == 0 and ("--json" in out or command in groups)
    assert "--json" in call("kernels", "compile", "--help")[1]


def test_commands_answer_for_machines(store: Path, call: Call, tmp_path: Path) -> None:
    code, out, _ = call("doctor", "--json")
    assert code == 0 and {"torch", "mpi", "adios2", "scheduler", "gpus"} <= set(json.loads(out))
    assert call("data", "convert", store, tmp_path / "rings.bp", "--json")[0] == 0
    code, out, _ = call("data", "check", tmp_path / "rings.bp", "--json")
    assert code == 0 and json.loads(out)["problems"] == []


def test_what_there_is_not_is_none_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show({"best trial": None}, as_json=False)
    assert capsys.readouterr().out.split() == ["best", "trial", "none"]


def test_a_result_below_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*out\.json: .*; free space or choose another place"):
        write_json(tmp_path / "file" / "folder" / "out.json", {})
