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
from hydragnn.scripts.showing import show_value
from tests import charged_rings as rings
from tests.charged_rings import ring
from tests.ensemble.finished import arrays_of

Call = Callable[..., tuple[int, str, str]]
FIELDS = (*rings.FIELDS, Field(name="family", on="graph", classes=3, dtype="int64", role="auxiliary"))
RUN = """
[data]
store = "{store}"
[model]
kind = "schnet"
hidden_dim = 8
num_layers = 1
num_radial = 4
envelope = "none"
[[heads]]
kind = "scalar"
field = "moment"
[train]
epochs = 2
"""
SEARCH = """
[search]
trials = 2
[search.space."model.hidden_dim"]
type = "int"
low = 4
high = 8
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty rings, each of one of three families."""
    path, random = tmp_path_factory.mktemp("cli") / "rings.h5", np.random.default_rng(0)
    with StoreWriter(path, FIELDS, dim=2) as writer:
        for number in range(20):
            writer.write(ring(4 + number % 3, random, FIELDS, family=number % 3))
    return path


def _written(path: Path, text: str, store: Path | str = "absent.h5") -> Path:
    path.write_text(text.format(store=store))
    return path


CASES: dict[str, tuple[list[str], str]] = {
    "no such configuration": (["train", "absent.toml", "--out", "new"], "does not exist"),
    "no such store": (["train", "lost.toml", "--out", "new"], "absent.h5"),
    "unknown override": (
        ["train", "run.toml", "--out", "new", "--set", "model.hiden_dim=4"],
        "did you mean hidden_dim",
    ),
    "unknown target": (["train", "run.toml", "--out", "new", "--set", "heads.0.field='momnt'"], "moment"),
    "unknown input": (["train", "run.toml", "--out", "new", "--set", "data.inputs=['chrge']"], "charge"),
    "target as input": (["train", "run.toml", "--out", "new", "--set", "data.inputs=['moment']"], "moment"),
    "split without a part": (
        ["train", "run.toml", "--out", "new", "--set", "split.train=0.99", "--set", "split.valid=0.005"],
        "split",
    ),
    "split by an absent field": (
        ["train", "run.toml", "--out", "new", "--set", "split.kind='group'", "--set", "split.field='famly'"],
        "famly",
    ),
    "budget below a graph": (["train", "run.toml", "--out", "new", "--set", "batch.max_nodes=3"], "max_nodes"),
    "references without species": (
        [
            "train",
            "run.toml",
            "--out",
            "new",
            "--set",
            "heads.0.kind='energy'",
            "--set",
            "heads.0.references=true",
        ],
        "atomic_numbers",
    ),
    "relational without relations": (["train", "relational.toml", "--out", "new"], "relation"),
    "a run is there already": (["train", "run.toml", "--out", "taken"], "taken"),
    "the status of no campaign": (["status", "."], "is not a campaign"),
    "a configuration as a campaign": (["search", "run.toml", "--out", "new"], "[search]"),
    "a space over nothing": (["search", "nowhere.toml", "--out", "new"], "model.hiddn_dim"),
    "a misspelt key beside the space": (
        ["search", "space.toml", "--out", "new", "--set", "train.epoch=3"],
        "error: space.toml: unknown key train.epoch; did you mean epochs?",
    ),
    "an assumption without a value": (
        ["simulate", "space.toml", "--assume", "diverged"],
        "--assume diverged: expected",
    ),
    "an empty space": (["search", "empty.toml", "--out", "new"], "low"),
    "no such campaign": (["ensemble", "absent", "--out", "new"], "absent"),
    "no such model": (["predict", "absent", "run.toml", "--out", "new.h5"], "absent"),
    "no such report": (["report", "absent"], "absent"),
    "a folder that is no store": (["data", "info", "taken"], "taken"),
    "no such source": (["data", "build", "build.toml", "--out", "new.h5"], "nothing-*.xyz"),
    "an unknown kind of source": (["data", "build", "kind.toml", "--out", "new.h5"], "did you mean npz"),
    "a store with an unknown suffix": (["data", "convert", "STORE", "new.zarr"], ".h5"),
    "an unknown scale": (["quickstart", "--out", "new", "--scale", "alloy"], "did you mean alloys"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    name: str,
    store: Path,
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    _written(tmp_path / "run.toml", RUN, store)
    _written(tmp_path / "lost.toml", RUN)
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
    words, sentence = CASES[name]
    code, _, err = call(*(str(store) if word == "STORE" else word for word in words))
    assert code == 2, err
    assert sentence in err
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


GROUPS = ("data", "kernels")


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
    for command in ("quickstart", "train", "search", "status", "ensemble", "predict", "report", "doctor", *GROUPS):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "--json" in out or command in GROUPS
    assert "--json" in call("kernels", "compile", "--help")[1]


def test_doctor_names_what_is_here(call: Call) -> None:
    code, out, _ = call("doctor", "--json")
    assert code == 0
    assert {"torch", "mpi", "adios2", "scheduler", "gpus"} <= set(json.loads(out))


def test_data_commands_answer_for_machines(store: Path, call: Call, tmp_path: Path) -> None:
    code, out, _ = call("data", "convert", store, tmp_path / "rings.bp", "--json")
    assert code == 0
    code, out, _ = call("data", "check", tmp_path / "rings.bp", "--json")
    assert code == 0 and json.loads(out)["problems"] == []


def test_what_there_is_not_is_none_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_value({"best trial": None}, as_json=False)
    assert capsys.readouterr().out.split() == ["best", "trial", "none"]


def test_a_result_below_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*out\.json: .*; free space or choose another place"):
        write_json(tmp_path / "file" / "folder" / "out.json", {})


def test_kernels_for_an_unknown_machine_or_dtype_are_refused(call: Call) -> None:
    code, _, err = call("kernels", "compile", "--arch", "gfx9000")
    assert code == 2 and "unknown architecture gfx9000; Triton kernels are compiled for gfx90a" in err
    code, _, err = call("kernels", "compile", "--arch", "gfx90a", "--dtype", "int8")
    assert code == 2 and "unknown dtype int8; choose among float32" in err
