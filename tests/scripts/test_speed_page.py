"""The page that ``python -m tests.benchmarks.bench_kinds`` makes: resumed, with sentences for what could not be had, and the one in the documents."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn.architectures import architectures
from tests.benchmarks import bench_kinds
from tests.benchmarks.bench_kinds import OURS, PUBLIC, requirements
from tests.benchmarks.harness import NOT_MEASURED
from tests.benchmarks.speed_page import PAGE, TITLE, Measured, Sample, page_of, remarks, rows_of

MADE_WITH = {"rounds": 2, "processor": "a processor", "torch": "2", "geometric": "2", "source": "s"}


def sample(*milliseconds: float) -> Sample:
    return Sample(milliseconds=milliseconds, megabytes=2.0, values="1e-07")


def measured(**peers: tuple[float, float]) -> Measured:
    batch = {OURS: sample(2.0, 4.0), **{name: sample(*times) for name, times in peers.items()}}
    return Measured(made_with=MADE_WITH, date="2026-01-01", load=[2.0, 3.0], molecules=batch, alloys=batch)


def test_a_ratio_is_the_median_of_those_of_single_rounds() -> None:
    (row,) = rows_of("gin", measured(theirs=(6.0, 4.0)))
    assert row == ["`gin`", "energies", "theirs", "3.0", "2.00", "3.0", "2.00", "2.0", "1.00", "1e-07"]


def test_the_page_says_what_was_not_measured_and_where_ours_is_no_faster() -> None:
    known = {
        "gin": replace(measured(theirs=(6.0, 4.0)), missing={"mine": "it ended with 1"}),
        "sage": measured(theirs=(2.0, 4.0)),
    }
    lines = remarks(["gin", "sage", "mfc"], known)
    assert "Not measured: `gin` beside mine, since it ended with 1." in lines
    assert "Not measured yet: `mfc`; the same command goes on with them." in lines
    assert any("`sage` beside theirs (1.00)" in line and "`gin`" not in line for line in lines)
    page = page_of(["gin", "sage", "mfc"], known, cores=2, amounts={"molecules": "few", "alloys": "many"})
    assert page.startswith(TITLE) and "2 cores at a load of 2 to 3" in page and page.count("| `gin` |") == 1


def test_the_command_goes_on_with_what_was_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(kind: str, made_with: dict[str, object], *_: object) -> Measured:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(kind)
        return replace(measured(theirs=(6.0, 4.0)), made_with=made_with)

    monkeypatch.setattr(bench_kinds, "measure", measure)
    monkeypatch.setattr(bench_kinds, "make_environment", lambda environment: {})
    page = tmp_path / "speed.md"
    monkeypatch.setattr(sys, "argv", ["bench_kinds", "--environment", str(tmp_path / "peers"), "--out", str(page)])
    with pytest.raises(KeyboardInterrupt):
        bench_kinds.main()
    kinds, asked[:] = [*PUBLIC], []
    others = [kind for kind in architectures() if kind not in kinds]  # which nobody else has, below
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE) == kinds[:3] + others
    with pytest.raises(KeyboardInterrupt):
        bench_kinds.main()
    assert asked == kinds[3:6]
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE) == kinds[:6] + others


def test_the_environment_gets_the_versions_that_the_table_names(root: Path) -> None:
    script = (root / "tests" / "benchmarks" / "peers.sh").read_text()
    assert len(requirements()) == 4
    assert all(f"{package}=={version}" in script for package, version in requirements().items())


def test_the_page_in_the_documents_is_of_this_command(root: Path) -> None:
    page = (root / "docs" / "measurements" / "speed.md").read_text()
    form = re.sub(r"\\{\w+\\}", ".+", re.escape(PAGE))
    pairs = {(kind, name) for kind, peers in PUBLIC.items() for name in peers}
    rows = {
        tuple(line.split(" | ")[:3:2])
        for line in page.splitlines()
        if line.startswith("| `") and NOT_MEASURED not in line
    }
    left_out = set(re.findall(r"^Not measured: `(\w+)` beside (.+), since", page, re.MULTILINE))
    advice = (
        "make it anew: python -m tests.benchmarks.bench_kinds --environment DIRECTORY --out docs/measurements/speed.md"
    )
    assert re.match(form, page), advice
    assert {(kind.strip("| `"), name) for kind, name in rows} | left_out <= pairs, advice
