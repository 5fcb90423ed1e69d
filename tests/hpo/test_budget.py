"""A budget buys epochs by the measured costs of a campaign, and errors by its curves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaigns import Search

from hydragnn.base.errors import InputError
from hydragnn.hpo import campaign_history
from hydragnn.hpo.journal import replay
from hydragnn.hpo.records import bought, expected
from hydragnn.record import Cost, RunRecord, Usage, read_record, write_record

CONSTANT: dict[str, Any] = {"train": {"schedule": "constant"}, "heads": [{"kind": "scalar"}]}
COSINE = {**CONSTANT, "train": {"schedule": "cosine"}}
STAGED = {**CONSTANT, "heads": [{"forces": "forces", "stage_two_factor": 10.0}]}
LAW = [0.1 + 1.0 / epoch for epoch in range(1, 41)]
STEPS = [1.0] * 20 + [0.5] * 20
"""A curve that halves once; no power law predicts its end."""


def of(curve: Any, epochs: int, config: dict[str, Any] = CONSTANT, **changes: Any) -> dict[str, Any]:
    record = RunRecord(config=config, config_hash="", data_hash="", seed=0, epochs=len(curve), **changes)
    return expected(record, curve, epochs)


@pytest.mark.parametrize(
    ("curve", "epochs", "changes", "basis", "after", "value"),
    [
        (LAW, 0, {}, "no epoch", 0, None),
        ([], 3, {}, "no curve of an error", 0, None),
        ([None, *LAW], 1, {}, "no curve of an error", 0, None),
        (LAW, 10, {}, "measured", 10, 0.2),
        (LAW, 40, {}, "measured", 40, 0.125),
        (LAW, 160, {}, "power law", 160, 0.1 + 1 / 160),
        (LAW, 10_000, {}, "power law", 160, 0.1 + 1 / 160),
        (LAW, 160, {"status": "stopped"}, "measured", 40, 0.125),
        (LAW, 160, {"config": COSINE}, "measured", 40, 0.125),
        (LAW, 39, {"config": COSINE}, "less than a schedule of 40 epochs", 0, None),
        (LAW, 39, {"config": STAGED}, "less than a schedule of 40 epochs", 0, None),
        (LAW[:11], 40, {}, "measured", 11, LAW[10]),
        (STEPS, 80, {}, "measured", 40, 0.5),
        ([value - 0.2 for value in LAW], 80, {}, "measured", 40, -0.075),
    ],
)
def test_an_error_is_what_the_curve_tells(
    curve: Any, epochs: int, changes: dict[str, Any], basis: str, after: int, value: float | None
) -> None:
    row = of(curve, epochs, **changes)
    assert (row["basis"], row["after"]) == (basis, after)
    assert row["expected"] == (None if value is None else pytest.approx(value, rel=0.02))
    assert (row["interval"] is None) == (basis != "power law")


def test_intervals_hold_for_most_curves_with_noise() -> None:
    random, inside, wide = np.random.default_rng(0), [], []
    for _ in range(150):
        floor, power, end = random.choice([0.0, 0.05, 0.2]), random.uniform(0.3, 1.5), int(random.choice([20, 40]))
        curve = (floor + np.arange(1.0, 4 * end + 1) ** -power) * np.exp(0.03 * random.normal(size=4 * end))
        curve = np.minimum.accumulate(curve)
        epochs = int(random.choice([1.5, 2, 4]) * end)
        row = of(curve[:end].tolist(), epochs)
        if row["interval"]:
            low, high = row["interval"]
            inside.append(low <= curve[epochs - 1] <= high)
            wide.append((high - low) / row["expected"])
    assert len(inside) > 120 and np.mean(inside) > 0.85 and np.median(wide) < 0.6


@pytest.mark.parametrize("goals", ["valid/loss", ["valid/loss", {"of": "cost/parameters"}]], ids=["one", "front"])
def test_a_budget_buys_epochs_of_finished_trials_by_their_costs(search: Search, tmp_path: Path, goals: Any) -> None:
    search("c", objective=goals)
    out, state = tmp_path / "c", replay(tmp_path / "c" / "journal.jsonl")
    finished = {trial.number for trial in campaign_history(out).trials if trial.status == "finished"}
    rows = bought(out, 1.0)
    numbers = {row["trial"] for row in rows}
    assert numbers == finished if isinstance(goals, str) else numbers <= finished
    for row in rows:
        hours = (state.trials[row["trial"]].work or 0.0) / 3600
        assert row["node_hours_per_epoch"] == pytest.approx(hours) and row["epochs"] == int(1 / hours)
        assert row["expected"] == pytest.approx(row["objectives"][0]) and row["after"] == 6
        assert row["objective"] == "valid/loss" and not row["estimated"]
    values = [row["expected"] for row in rows]
    assert values == sorted(values) and json.dumps(rows)
    assert {row["basis"] for row in bought(out, 1e-12)} == {"no epoch"}


def test_the_start_of_a_segment_is_no_part_of_its_epochs(search: Search, tmp_path: Path) -> None:
    search("c", trials=3)
    before = {row["trial"]: row for row in bought(tmp_path / "c", 1.0)}
    for number, row in before.items():
        folder, epoch = campaign_history(tmp_path / "c").trials[number].folder, 3600 * row["node_hours_per_epoch"]
        record, cost = read_record(folder), Cost(graphs_per_second=100 / (0.1 * epoch), seconds=1.0)
        usage = Usage(phases={"validation": 0.02 * epoch * record.epochs, "saving": 0.03 * epoch * record.epochs})
        write_record(replace(record, parts={"train": 100}, cost=cost, usage=usage), folder)
    for row in bought(tmp_path / "c", 1.0):
        assert row["node_hours_per_epoch"] == pytest.approx(0.15 * before[row["trial"]]["node_hours_per_epoch"])


def test_bounds_that_no_trial_meets_are_said(search: Search, tmp_path: Path) -> None:
    search("c", objective=[{"of": "valid/loss", "at_most": 1e-30}, "cost/parameters"])
    with pytest.raises(InputError, match=r"no finished trial of .* is within the bounds of its objectives"):
        bought(tmp_path / "c", 1.0)


def test_without_a_finished_trial_nothing_tells_costs(search: Search, tmp_path: Path) -> None:
    search("c", trials=2)
    journal = tmp_path / "c" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(
        InputError, match=r"no trial of .* is trained to its end yet; continue the search with --resume"
    ):
        bought(tmp_path / "c", 1.0)
