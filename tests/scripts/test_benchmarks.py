"""Programs of tests/benchmarks: what they time, and pages that are those of the documents."""

import json
import re
from pathlib import Path

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.kernels import OPS
from tests.benchmarks import bench_architectures, bench_kernels, speed_page
from tests.benchmarks.bench_kinds import PUBLIC, requirements
from tests.benchmarks.harness import NOT_MEASURED
from tests.benchmarks.step_times import StepSettings, dynamics_rows


def test_every_op_is_timed_beside_a_copy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    small = ["--device", "cpu", "--nodes", "20", "--degree", "3", "--channels", "4", "--repeats", "1"]
    bench_kernels.main(small)
    assert set(OPS) <= set(re.findall(r"\w+", capsys.readouterr().out))
    bench_kernels.main([*small, "--json"])
    about, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert about["copy_bytes_per_second"] > 0 and len(rows) >= len(OPS)
    assert all(row["forward"] > 0 and row["twice"] > 0 and row["copy_share"] > 0 for row in rows)


def test_a_crystal_moves_by_the_calculator() -> None:
    (row,) = dynamics_rows(StepSettings(device="cpu", hidden=4, repeats=1, atoms=(8,)))
    assert row["atoms"] == 8 and row["ms"] > row["graph ms"] > 0


def test_one_command_searches_architectures_and_writes_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    short = ["--samples", "12", "--set", "train.epochs=1", "--set", "search.rungs=[]", "--set", "search.trials=2"]
    options = ["--folder", str(tmp_path / "work"), *short, "--out", str(page)]
    bench_architectures.main(options)
    text = page.read_text()
    for words in (bench_architectures.TITLE, "12 structures, of which", "2 trials of at most 1 epochs", "- `gin`: "):
        assert words in text
    assert len(re.findall(r"^\| `\w+` \| 1 \| 1 \| 0 \| ", text, re.MULTILINE)) == 2
    with pytest.raises(InputError, match="has 12 structures, not 13"):
        bench_architectures.main([*options, "--samples", "13"])


def test_the_environment_gets_the_versions_that_the_table_names(root: Path) -> None:
    script = (root / "tests" / "benchmarks" / "peers.sh").read_text()
    assert len(requirements()) == 4
    assert all(f"{package}=={version}" in script for package, version in requirements().items())


def test_the_pages_in_the_documents_are_of_these_commands(root: Path) -> None:
    text = (root / "docs" / "measurements" / "architectures.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert text.startswith(bench_architectures.TITLE) and rows and rows <= set(architectures())
    page = (root / "docs" / "measurements" / "speed.md").read_text()
    assert re.match(re.sub(r"\\{\w+\\}", ".+", re.escape(speed_page.PAGE)), page), "make it anew"
    lines = [line for line in page.splitlines() if line.startswith("| `") and NOT_MEASURED not in line]
    pairs = {(line.split(" | ")[0].strip("| `"), line.split(" | ")[2]) for line in lines}
    pairs |= set(re.findall(r"^Not measured: `(\w+)` beside (.+), since", page, re.MULTILINE))
    assert pairs <= {(kind, name) for kind, peers in PUBLIC.items() for name in peers}, "make it anew"
