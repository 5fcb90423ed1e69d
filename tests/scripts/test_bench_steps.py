"""Steps and dynamics of this machine are measured beside other packages, and written as a page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hydragnn.scripts.step_bench import StepSettings, dynamics_rows

Call = Callable[..., tuple[int, str, str]]
SMALL = ("--device", "cpu", "--kind", "schnet", "--graphs", "2", "--hidden", "4", "--repeats", "1", "--no-dynamics")


def test_steps_are_rows_beside_other_packages_and_tables_of_a_page(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "steps.md"
    page.write_text("# Ours\n\nText of a person.\n")
    for _ in range(2):  # the tables of the last time are replaced
        code, out, err = call("bench", "steps", *SMALL, "--page", str(page), "--json")
        assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["package"] for row in rows] == ["hydragnn", "PyTorch Geometric", "schnetpack"]
    assert all(row["ms"] > 0 if "ms" in row else "not installed" in row["note"] for row in rows), rows
    assert "ms" in rows[0]
    text = page.read_text()
    assert text.startswith("# Ours\n\nText of a person.\n") and text.count("| package | kind | graphs | ms |") == 1
    assert "a CPU with" in text


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--kind", "schnett", "no such architecture; choose among"),
        ("--precision", "fp8", "choose among fp32, tf32, bf16, fp64"),
        ("--page", "none/page.md", "is no folder"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("bench", "steps", *SMALL, option, value)
    assert code == 2 and sentence in err and not out


def test_a_crystal_moves_by_the_calculator() -> None:
    (row,) = dynamics_rows(StepSettings(device="cpu", hidden=4, repeats=1, atoms=(8,)))
    assert row["atoms"] == 8 and row["ms"] > row["graph ms"] > 0
