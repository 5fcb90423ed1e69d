"""Commands say what is wrong with a path before they import torch, in the words of whatever opens it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.places import SUFFIXES, check_source, check_store, model_folder
from hydragnn.datasets import open_store
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.prediction.job import FORMATS
from hydragnn.scripts import api

RUN = 'name = "x"\n[data]\nstore = "{store}"\n'

COMMANDS = {
    "predict none graphs.xyz --out p.h5": "none does not exist",
    "predict empty graphs.xyz --out p.h5": "empty is neither a campaign, an ensemble nor a run",
    "predict graphs.xyz graphs.xyz --out p.h5": "graphs.xyz is a file, neither a campaign, an ensemble nor a run",
    "predict lost.toml/ graphs.xyz --out p.h5": "lost.toml is a file, neither",
    "check none": "none does not exist",
    "relax none graphs.xyz --out p.xyz": "none does not exist",
    "md empty graphs.xyz --out p.xyz": "empty is neither a campaign, an ensemble nor a run",
    "predict model none --out p.h5": "none does not exist",
    "predict model empty --out p.h5": "empty is neither a store, a BUILD.toml nor another file",
    "predict model half.h5 --out p.h5": "half.h5 has no manifest.json: the writer did not finish",
    "predict model graphs.xyz --out p.foo": "--out p.foo: the suffix chooses the format",
    "train none.toml --out r": "none.toml does not exist",
    "train empty --out r": "empty is a folder without a run",
    "train lost.toml --out r": "lost.h5 does not exist",
    "search none.toml --out c": "none.toml does not exist",
    "search lost.toml --out c": "lost.h5 does not exist",
    "search branches.toml --out c": "empty has no manifest.json, so it is not a store",
    "ensemble none --out e": "none does not exist",
    "ensemble model empty --out e": "empty is neither a campaign nor a run",
    "report none": "none does not exist",
    "report graphs.xyz": "graphs.xyz is a file, neither a campaign, an ensemble nor a run",
    "report empty": "empty is neither a campaign, an ensemble nor a run",
    "status empty": "empty is not a campaign",
    "data info none": "none does not exist",
    "data info graphs.xyz": "graphs.xyz is a file, not a store",
    "data check empty": "empty has no manifest.json",
    "data convert none x.h5": "none does not exist",
    "data build none.toml --out x.h5": "none.toml does not exist",
    "predict model '' --out p.h5": "an argument is empty",
    "data info ''": "an argument is empty",
    "report model --out ''": "an argument is empty",
    "train '' --out r": "an argument is empty",
    "train --help": "",
    "predict --help": "",
}

PROGRAM = """
import shlex, sys
from hydragnn.scripts.__main__ import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["hydragnn", *shlex.split(line)]
    code = 0
    try:
        main()
    except SystemExit as ending:
        code = ending.code
    print("ended", code, "torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with an empty folder, an unfinished store, a run by its looks, and configurations."""
    for folder in ("empty", "half.h5", "model"):
        (tmp_path / folder).mkdir()
    (tmp_path / "half.h5" / "part-0.h5").touch()
    (tmp_path / "model" / "record.json").touch()
    (tmp_path / "graphs.xyz").touch()
    (tmp_path / "lost.toml").write_text(RUN.format(store="lost.h5"))
    (tmp_path / "branches.toml").write_text('[[branches]]\nname = "a"\n[branches.data]\nstore = "empty"\n')
    return tmp_path


def test_a_wrong_path_is_told_before_torch_is_imported(places: Path, root: Path) -> None:
    lines = "\n".join(COMMANDS)
    environment = {"PYTHONPATH": str(root), "HOME": str(places)}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, input=lines, cwd=places, env=environment, capture_output=True, text=True)
    said = ended.stderr.splitlines()
    words = iter(said)
    for command_line, sentence in COMMANDS.items():
        if sentence:
            assert sentence in next(words), command_line
        code = 2 if sentence else 0
        assert next(words) == f"ended {code} False", command_line


def test_a_configuration_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"learning = 1\n")
    os.close(writing)
    try:
        with pytest.raises(InputError, match="learning"):
            api.train(f"/dev/fd/{reading}", tmp_path / "r")
    finally:
        os.close(reading)


def test_what_opens_a_path_says_the_same(places: Path) -> None:
    for check, opens, names in (
        (check_store, open_store, ("none", "empty", "half.h5", "graphs.xyz")),
        (model_folder, Ensemble.load, ("none", "empty", "graphs.xyz", "half.h5")),
    ):
        for name in names:
            with pytest.raises(InputError) as early:
                check(places / name)
            with pytest.raises(InputError) as late:
                opens(places / name)
            assert str(early.value) == str(late.value)
    check_source(places / "graphs.xyz")


def test_every_format_of_predictions_has_a_suffix_that_is_checked() -> None:
    assert set(FORMATS) == set(SUFFIXES)
