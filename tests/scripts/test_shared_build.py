"""A store that ranks build together is the one that a single process builds, or there is none."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn.base.files import alone_in_folder
from hydragnn.datasets import check_store, open_store
from hydragnn.scripts import api
from tests.forked import ends_of_ranks
from tests.scripts.dying import GRAPHS as SLOW_GRAPHS

GRAPHS = 500
BIN = Path(sys.executable).parent
COMMAND = ["-m", "hydragnn.scripts", "data", "build"]
needs_mpirun = pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="no mpirun beside this Python; install mpich")

Build = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    for number in range(GRAPHS):
        size, (file, index) = number % 5 + 2, divmod(number, GRAPHS // 2)
        atoms = Atoms(f"CO{size - 1}", positions=rng.random((size, 3)) + 2 * np.arange(size)[:, None])
        atoms.calc = SinglePointCalculator(atoms, energy=float(file * GRAPHS + index))
        write(folder / f"{file}.xyz", atoms, format="extxyz", append=True)
    return build_toml(folder, 'kind = "ase"\nfiles = ["*.xyz"]\ncutoff = 3.0\n')


def build_toml(folder: Path, text: str) -> Path:
    energy = '[[fields]]\nname = "energy"\non = "graph"\ndtype = "float64"\nrole = "target"\n'
    (folder / "BUILD.toml").write_text(text + energy)
    return folder / "BUILD.toml"


@pytest.fixture
def build(root: Path) -> Build:
    def building(ranks: int, *words: object) -> tuple[int, str]:
        command = [str(BIN / "mpirun"), "-n", str(ranks), sys.executable, *COMMAND, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout + done.stderr

    return building


def steps(ranks: int, *words: object) -> list[tuple[int, str]]:
    return ends_of_ranks(ranks, *COMMAND, *words)


def assert_is_the_store_of_one(source: Path, store: Path, one: Path) -> None:
    """Every bit of every graph in the same order, and nothing beside the store."""
    api.build_store(source, one, quiet=True)
    expected, actual = open_store(one), open_store(store)
    assert actual.fingerprint == expected.fingerprint  # of all graphs in their order
    assert (actual.attributes, actual.fields()) == (expected.attributes, expected.fields())
    for name in (field.name for field in expected.fields()):
        np.testing.assert_array_equal(actual.column(name).values, expected.column(name).values)
    assert {key: list(texts) for key, texts in actual.texts.items()} == dict(expected.texts)
    assert check_store(store) == []
    assert all(re.fullmatch(r"manifest.json|part-\d{5}.h5(.texts.gz)?", file.name) for file in store.iterdir())
    assert sorted(path.name for path in store.parent.iterdir()) == sorted([store.name, one.name])


@needs_mpirun
def test_ranks_of_mpi_build_the_store_of_one_process(build: Build, source: Path, tmp_path: Path) -> None:
    code, said = build(2, source, "--out", tmp_path / "store.h5", "--json")
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if line.startswith("{"))  # one rank speaks
    assert json.loads(line)["graphs"] == GRAPHS and json.loads(line)["parts"] > 1
    assert_is_the_store_of_one(source, tmp_path / "store.h5", tmp_path / "one.h5")


def assert_all_are_refused_once(results: list[tuple[int, str]], sentence: str) -> None:
    """Every rank exits with 2, and one of them says why."""
    said = "".join(output for _, output in results)
    assert {code for code, _ in results} == {2}, said
    assert said.count(sentence) == said.count("error:") == 1 and "Traceback" not in said, said


def test_an_error_in_the_part_of_one_rank_is_said_once_and_leaves_no_store(source: Path, tmp_path: Path) -> None:
    for name in ("0.xyz", "1.xyz"):
        text = source.with_name(name).read_text()
        (tmp_path / name).write_text(text.replace("energy=740.0", "other=740.0"))
    broken = build_toml(tmp_path, source.read_text().partition("[[")[0])
    before = sorted(path.name for path in tmp_path.iterdir())
    results = steps(3, broken, "--out", tmp_path / "store.h5")
    assert_all_are_refused_once(results, "error: 1.xyz, structure 240: no energy for the field energy")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_ranks_are_refused_once_where_a_store_is_or_will_be_and_with_workers(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "frames.h5"
    with alone_in_folder(out, "makes"):
        assert_all_are_refused_once(steps(2, source, "--out", out), "another process makes")
    assert_all_are_refused_once(steps(2, source, "--out", out, "--workers", 2), "leave --workers out")
    assert not any(tmp_path.iterdir())
    out.mkdir()
    (out / "manifest.json").write_text("{}")
    assert_all_are_refused_once(steps(2, source, "--out", out), "is a store already")
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("manifest.json", "{}")]


def dying(folder: Path, **settings: Any) -> Path:
    """A BUILD.toml of a source that ends the process of a rank."""
    folder.mkdir()
    lines = ['kind = "tests.scripts.dying:Dying"', 'files = ["dying.toml"]']
    (folder / "dying.toml").write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in settings.items())]))
    return folder / "dying.toml"


@needs_mpirun
def test_a_killed_rank_of_mpi_ends_the_job_and_what_it_left_gives_way(build: Build, tmp_path: Path) -> None:
    out = tmp_path / "there" / "store.h5"
    code, said = build(2, dying(tmp_path / "source", dies=1), "--out", out)
    assert code != 0 and "BAD TERMINATION" in said, said
    assert not (out / "manifest.json").exists()
    assert [code for code, _ in steps(2, dying(tmp_path / "whole"), "--out", out)] == [0, 0]
    assert len(open_store(out)) == SLOW_GRAPHS and check_store(out) == []


def test_ranks_of_a_job_step_without_mpi_build_the_store_of_one_process(source: Path, tmp_path: Path) -> None:
    (code, said), (silent, nothing) = steps(2, source, "--out", tmp_path / "store.h5")
    assert (code, silent, nothing) == (0, 0, "") and "fingerprint" in said, said
    assert_is_the_store_of_one(source, tmp_path / "store.h5", tmp_path / "one.h5")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_of_a_job_step_ends_all_with_a_sentence_and_no_store(lost: int, tmp_path: Path) -> None:
    out = tmp_path / "store.h5"
    results = steps(2, dying(tmp_path / "source", dies=lost), "--out", out)
    assert results[lost][0] == -9
    code, said = results[1 - lost]
    assert code == 2 and said.count("error:") == 1 and "was ended, perhaps for want of memory" in said, said
    assert not (out / "manifest.json").exists()
    if lost:
        assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert steps(2, dying(tmp_path / "whole"), "--out", out)[0][0] == 0
    assert len(open_store(out)) == SLOW_GRAPHS and check_store(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "store.h5", "whole"]


def test_a_defect_of_the_source_on_one_rank_ends_all_with_one_sentence(tmp_path: Path) -> None:
    (code, said), (other, _) = steps(2, dying(tmp_path / "source", dies=1, defect="true"), "--out", tmp_path / "s.h5")
    assert (code, other) == (2, 2) and said.count("error:") == 1, said
    # which block this rank takes is a race
    assert re.search(r"graph \d{3}: the source tests.scripts.dying:Dying raised ZeroDivisionError: of the test", said)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
