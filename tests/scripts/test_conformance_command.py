"""One command tests all promises of all architectures, and the page that it makes is the one in the documents."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from hydragnn.architectures import architectures
from hydragnn.conformance.cases import AROUND
from hydragnn.conformance.table import PROMISES, PromiseOutcome, conformance_of, conformance_page, conformance_table
from hydragnn.scripts.check_commands import conformance
from hydragnn.scripts.showing import show
from tests.benchmarks.harness import NOT_MEASURED


def outcome(kind: str, promise: str, verdict: Any, why: str = "") -> PromiseOutcome:
    return PromiseOutcome(kind=kind, promise=promise, verdict=verdict, why=why)


def test_no_promise_on_the_page_fails(root: Path) -> None:
    """Alone, and with attention, conditioning and pooling around the layers."""
    page = (root / "docs" / "conformance.md").read_text()
    advice = f"make it anew: {page.split('`')[1]}"
    alone, around = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
        for part in page.split("## With something around the layers")
    )
    assert set(alone[0][1:]) | set(around[0][1:]) <= {f"`{kind}`" for kind in architectures()}, advice
    assert {row[0] for row in alone[1:]} <= set(PROMISES), advice
    assert {cell for row in alone[1:] for cell in row[1:]} <= {"yes", "-", NOT_MEASURED}, advice
    assert {"multihead", "film", "clusters"} <= {row[0].strip("`") for row in around[1:]} <= set(AROUND), advice
    cells = [cell for row in around[1:] for cell in row[1:]]
    assert all(cell == "-" or 0 < int(cell) <= len(PROMISES) for cell in cells), advice


def test_promises_are_tested_with_something_around_the_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = conformance_of(["gin"], around=["clusters"])
    alone, pooled = ([o for o in outcomes if o.around == name] for name in ("", "clusters"))
    assert {o.promise for o in alone} == {o.promise for o in pooled} == set(PROMISES)
    of_cells = [o for o in outcomes if o.promise == "a repeated cell is the cell so many times"]
    assert [o.verdict for o in of_cells] == ["passed", "does not apply"] and "has levels of its own" in of_cells[1].why
    assert not [o for o in outcomes if o.verdict == "failed"]
    monkeypatch.setattr("hydragnn.conformance.table.PROMISES", {})  # a second time would show nothing
    (refusal,) = [o for o in conformance_of(["gin"], {"num_layers": 1}, around=["clusters"]) if o.around]
    assert refusal.verdict == "does not apply" and "set num_layers to 2 or more" in refusal.why
    page = conformance_page([*outcomes, refusal], "the command")
    kept = sum(o.verdict == "passed" for o in pooled)
    assert f"| `clusters` | {kept} |\n" in page and f"- {refusal.why.partition('; ')[0]}\n" in page


def test_the_command_says_what_an_architecture_does_not_keep_with_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why, page = "relative error 0.3", tmp_path / "page.md"
    promises = {"float32 keeps half of its digits": ("failed", why), "neighbours matter": ("passed", "")}
    outcomes = tuple(outcome("acme:Net", promise, *own) for promise, own in promises.items())
    monkeypatch.setattr("hydragnn.conformance.table.conformance_of", lambda *_, **__: outcomes)
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as end:
            show(conformance(["acme:Net"], page, ["fault=digits"]), as_json)
        assert end.value.exit_code == 3
    first, *rest = capsys.readouterr().out.splitlines()
    assert tuple(PromiseOutcome(**one) for one in json.loads(first)) == outcomes
    assert f"acme:Net fails: float32 keeps half of its digits: {why}" in rest
    assert "**failed (1)**" in page.read_text() and why in page.read_text() and "--set fault=digits" in page.read_text()


def test_a_table_numbers_failures_and_says_why_a_promise_does_not_apply() -> None:
    outcomes = [
        outcome("a", "it turns", "failed", "rotation: 0.3"),
        outcome("a", "it pulls", "does not apply", "a gives no forces"),
        outcome("b", "it turns", "passed"),
        outcome("b", "it pulls", "failed", "0.1"),
    ]
    assert conformance_table(outcomes).splitlines() == [
        "| promise | `a` | `b` |",
        "|---|---|---|",
        "| it turns | **failed (1)** | yes |",
        "| it pulls | - | **failed (2)** |",
        "",
        "1. `a`, it turns: rotation: 0.3",
        "2. `b`, it pulls: 0.1",
        "",
        "A dash is a promise that does not apply:",
        "",
        "- a gives no forces",
    ]
    around = [replace(one, around="film") for one in outcomes]
    table = conformance_table([*outcomes, *around, replace(outcomes[2], around="pooled")], around=True)
    assert table.splitlines()[:7] == [
        "| around the layers | `a` | `b` |",
        "|---|---|---|",
        "| `film` | **failed (1)** | **failed (2)** |",
        "| `pooled` | - | 1 |",
        "",
        "1. `film` around `a`, it turns: rotation: 0.3",
        "2. `film` around `b`, it pulls: 0.1",
    ]
