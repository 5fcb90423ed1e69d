"""Refusals of all commands: one sentence, exit code 2 and nothing made; wrong paths before torch is imported."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hydragnn.base.errors import InputError
from hydragnn.base.places import SUFFIXES, check_store, model_folder, source_paths
from hydragnn.datasets import StoreWriter, open_store
from hydragnn.ensemble import Ensemble
from hydragnn.ensemble.prediction.job import FORMATS
from hydragnn.graphs import Field
from hydragnn.scripts import api
from tests import charged_rings as rings
from tests.charged_rings import RUN, SEARCH, ring

FIELDS = (*rings.FIELDS, Field(name="family", on="graph", classes=3, dtype="int64", role="auxiliary"))

WITHOUT_TORCH = {
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
    "train '' --out r": "an argument is empty",
    "train --help": "",
    "predict --help": "",
    **{
        f"relax model x.xyz --out y.xyz --device {text}": "is no device; use cpu, cuda or cuda:1"
        for text in ("gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:99999")
    },
}
"""Words of commands, and of their sentence; empty for exit code 0."""

SET = "train run.toml --out new --set"
WITH_TORCH = {
    f"{SET} model.hiden_dim=4": "did you mean hidden_dim",
    f"{SET} heads.0.field=momnt": "moment",
    f"{SET} data.inputs=\"['chrge']\"": "charge",
    f"{SET} data.inputs=\"['moment']\"": "moment",
    f"{SET} split.train=0.99 --set split.valid=0.005": "split",
    f"{SET} split.kind=group --set split.field=famly": "famly",
    f"{SET} batch.max_nodes=3": "max_nodes",
    f"{SET} heads.0.kind=energy --set heads.0.references=true": "atomic_numbers",
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
    "data convert rings.h5 new.zarr": ".h5",
    "quickstart --out new --scale alloy": "did you mean alloys",
    "kernels compile --arch gfx9000": "unknown architecture gfx9000; Triton kernels are compiled for gfx90a",
    "kernels compile --arch gfx90a --dtype int8": "unknown dtype int8; choose among float32",
    "conformance pain": "did you mean painn",
    "conformance gin --around fim": "did you mean film",
    "conformance gin --set cutoff=3.0": "unknown key",
    "plan run.toml --site fronteir": "did you mean frontier",
    "plan run.toml --set batch.max_nodes=40 --set batch.max_graphs=8 --set parallel.pipeline=2": "takes a layer per stage",
    "help paralel.shard": "did you mean parallel.shard",
    "help epoch": "did you mean epochs?",
    "help ''": "train, start, parallel, model",
    "help zzz": "job",
    "relax model x.xyz --out y.xyz --device cuda:7": "--device cuda:7: this process sees no such GPU",
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
    """A folder with a store, an empty folder, an unfinished store, a run by its looks, and configurations."""
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "rings.h5", FIELDS, dim=2) as writer:
        for number in range(20):
            writer.write(ring(4 + number % 3, random, FIELDS, family=number % 3))
    for folder in ("empty", "half.h5", "model", "taken"):
        (tmp_path / folder).mkdir()
    texts = {
        "half.h5/part-0.h5": "",
        "model/record.json": "",
        "taken/record.json": "{}",
        "graphs.xyz": "",
        "lost.toml": 'name = "x"\n[data]\nstore = "lost.h5"\n',
        "branches.toml": '[[branches]]\nname = "a"\n[branches.data]\nstore = "empty"\n',
        "run.toml": RUN,
        "relational.toml": '[data]\nstore = "rings.h5"\n[model]\nkind = "relational"\n[[heads]]\nkind = "scalar"\nfield = "moment"\n',
        "nowhere.toml": RUN + SEARCH.replace("hidden_dim", "hiddn_dim"),
        "space.toml": RUN + SEARCH,
        "empty.toml": RUN + SEARCH.replace("low = 4", "low = 9"),
        "build.toml": 'kind = "ase"\nfiles = ["nothing-*.xyz"]\ncutoff = 3.0\n',
        "kind.toml": 'kind = "nppz"\nfiles = ["a.npz"]\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_refusal_is_one_sentence_and_leaves_nothing(places: Path, root: Path) -> None:
    before = sorted(places.rglob("*"))
    commands = WITHOUT_TORCH | WITH_TORCH
    environment = {"PYTHONPATH": str(root), "HOME": str(root), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", PROGRAM]
    text = "\n".join(commands)
    ended = subprocess.run(command, input=text, cwd=places, env=environment, capture_output=True, text=True)
    lines = iter(ended.stderr.splitlines())
    for command, sentence in commands.items():
        if sentence:
            line = next(lines)
            assert line.startswith("error: ") and sentence in line and len(line) < 600, (command, line)
        line = next(lines)
        code, torch = 2 if sentence else 0, " False" * (command in WITHOUT_TORCH)
        assert line.startswith(f"ended {code}{torch}"), (command, line)
    assert sorted(places.rglob("*")) == before


def test_a_configuration_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"learning = 1\n")
    os.close(writing)
    try:
        with pytest.raises(InputError, match="learning"):
            api.train(f"/dev/fd/{reading}", tmp_path / "r")
    finally:
        os.close(reading)


def test_opening_a_path_gives_the_same_sentence(places: Path) -> None:
    for functions in ((check_store, open_store), (model_folder, Ensemble.load)):
        for name in ("none", "empty", "half.h5", "graphs.xyz"):
            sentences = set()
            for function in functions:
                with pytest.raises(InputError) as refused:
                    function(places / name)
                sentences.add(str(refused.value))
            assert len(sentences) == 1
    source_paths(places / "graphs.xyz")
    assert set(FORMATS) == set(SUFFIXES)
