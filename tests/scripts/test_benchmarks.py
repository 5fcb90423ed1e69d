"""Programs of tests/benchmarks: what they time, and pages that are resumed, name what is missing and are those of the documents."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError, Interrupted
from hydragnn.kernels import OPS
from hydragnn.scripts import api
from tests.benchmarks import bench_architectures, bench_kernels, bench_kinds, speed_page
from tests.benchmarks.bench_kinds import OURS, PUBLIC, requirements
from tests.benchmarks.harness import NOT_MEASURED
from tests.benchmarks.speed_page import Measured, Sample, page_of, remarks, rows_of
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


def test_one_command_searches_architectures_goes_on_and_writes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, resumed, search = tmp_path / "page.md", [], api.search
    short = ["--samples", "12", "--set", "train.epochs=1", "--set", "search.rungs=[]", "--set", "search.trials=2"]
    options = ["--folder", str(tmp_path / "work"), *short, "--out", str(page)]

    def stopped_once(*arguments: object, resume: bool, **settings: object) -> None:
        resumed.append(resume)
        search(*arguments, resume=resume, **settings)  # type: ignore[arg-type]
        if len(resumed) == 1:
            raise Interrupted("a signal came")

    monkeypatch.setattr(api, "search", stopped_once)
    with pytest.raises(Interrupted):
        bench_architectures.main(options)
    assert not page.exists()
    bench_architectures.main(options)
    assert resumed == [False, True]
    text = page.read_text()
    for words in (bench_architectures.TITLE, "12 structures, of which", "2 trials of at most 1 epochs", "- `gin`: "):
        assert words in text
    assert len(re.findall(r"^\| `\w+` \| 1 \| 1 \| 0 \| ", text, re.MULTILINE)) == 2
    with pytest.raises(InputError, match="has 12 structures, not 13"):
        bench_architectures.main([*options, "--samples", "13"])


def measured(**peers: tuple[float, ...]) -> Measured:
    milliseconds = {OURS: (2.0, 4.0), **peers}
    batch = {name: Sample(milliseconds=own, megabytes=2.0, values="1e-07") for name, own in milliseconds.items()}
    made_with = {"rounds": 2, "processor": "a processor", "torch": "2", "geometric": "2", "source": "s"}
    return Measured(made_with=made_with, date="2026-01-01", load=[2.0, 3.0], molecules=batch, alloys=batch)


def test_a_page_has_medians_of_ratios_what_was_not_measured_and_where_ours_is_no_faster() -> None:
    (row,) = rows_of("gin", measured(theirs=(6.0, 4.0)))
    assert row == ["`gin`", "energies", "theirs", "3.0", "2.00", "3.0", "2.00", "2.0", "1.00", "1e-07"]
    gin = replace(measured(theirs=(6.0, 4.0)), missing={"mine": "it ended with 1"})
    kinds, known = ["gin", "sage", "mfc"], {"gin": gin, "sage": measured(theirs=(2.0, 4.0))}
    lines = remarks(kinds, known)
    assert "Not measured: `gin` beside mine, since it ended with 1." in lines
    assert "Not measured yet: `mfc`; the same command goes on with them." in lines
    assert any("`sage` beside theirs (1.00)" in line and "`gin`" not in line for line in lines)
    page = page_of(kinds, known, cores=2, amounts={"molecules": "few", "alloys": "many"})
    assert page.startswith(speed_page.TITLE)
    assert "2 cores at a load of 2 to 3" in page and page.count("| `gin` |") == 1


def test_the_command_goes_on_with_what_was_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(kind: str, made_with: dict[str, object], *_: object) -> Measured:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(kind)
        return replace(measured(theirs=(6.0, 4.0)), made_with=made_with)

    monkeypatch.setattr(bench_kinds, "measure", measure)
    monkeypatch.setattr(bench_kinds, "make_environment", lambda environment: {})
    page, kinds = tmp_path / "speed.md", [*PUBLIC]
    monkeypatch.setattr(sys, "argv", ["bench_kinds", "--environment", str(tmp_path / "peers"), "--out", str(page)])
    others = [kind for kind in architectures() if kind not in kinds]  # which nobody else has, below
    for first in (0, 3):
        asked.clear()
        with pytest.raises(KeyboardInterrupt):
            bench_kinds.main()
        assert asked == kinds[first : first + 3]
        assert re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE) == kinds[: first + 3] + others


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
