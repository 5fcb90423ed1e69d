"""The report compares architectures by the best trial of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hydragnn.hpo import CampaignHistory, Timeline, TrialHistory, campaign_settings
from hydragnn.record import Cost, Failure, RunRecord
from hydragnn.scripts.report.facts import Campaign
from hydragnn.scripts.report.search import architectures_table

SPACE = {"model.hidden_dim": {"type": "int", "low": 8, "high": 16}}
ROWS: list[tuple[str, list[float], float, Any]] = [
    ("slow", [0.9, 0.5, 0.2, 0.1], 80.0, "finished"),
    ("quick", [0.6, 0.5, 0.4, 0.3], 20.0, "finished"),
    ("quick", [0.7], 6.0, "paused"),
    ("third", [1.0], 1.0, "failed"),
]
"""A slow architecture that ends at 0.1, a quick one that ends at 0.3 in a quarter of the time, and one that failed."""


def trial(number: int, curve: list[float], status: Any) -> TrialHistory:
    failure = Failure(kind="diverged", message="the loss is not finite") if status == "failed" else None
    facts: dict[str, Any] = {"rungs": {}, "attempt": 1, "speed": 5.0, "folder": Path(f"{number:04d}")}
    return TrialHistory(number=number, status=status, results=(min(curve),), failure=failure, **facts)


def record(kind: str, curve: list[float], seconds: float) -> RunRecord:
    cost = Cost(seconds=seconds, graphs_per_second=7.0)  # after the first rung; tables of trials have that up to it
    facts: dict[str, Any] = {"config": {"model": {"kind": kind}}, "config_hash": "", "data_hash": "", "seed": 0}
    return RunRecord(epochs=len(curve), curves={"valid/loss": curve}, cost=cost, **facts)


def history(trials: list[TrialHistory], **search: Any) -> CampaignHistory:
    settings = campaign_settings({"search": {"trials": 4, "space": SPACE, **search}}, Path("CAMPAIGN.toml"))
    return CampaignHistory(settings=settings, trials=trials, rungs=(1, 4), ending=None, timeline=Timeline(), sampler="")


@pytest.fixture
def campaign() -> Campaign:
    trials = [trial(number, curve, status) for number, (_, curve, _, status) in enumerate(ROWS)]
    records = {number: record(*row[:3]) for number, row in enumerate(ROWS)}
    return Campaign(history=history(trials), records=records, importances={})


def test_architectures_stand_by_the_error_of_their_best_trial(campaign: Campaign) -> None:
    table = architectures_table(campaign)
    assert table is not None and [row[0] for row in table.rows] == ["slow", "quick", "third"]
    assert [row[1:4] for row in table.rows] == [("1", "1", "0"), ("2", "1", "0"), ("1", "0", "1")]
    assert [row[4:] for row in table.rows[::2]] == [("0.100", "1 min 20 s", "5"), ("–", "–", "–")]


def test_nobody_wins_before_any_result_or_where_there_was_no_choice(campaign: Campaign) -> None:
    trials = campaign.history.trials
    assert architectures_table(replace(campaign, history=replace(campaign.history, trials=trials[1:3]))) is None
    waiting = [structs.replace(one, results=(), status="running", failure=None) for one in trials]
    table = architectures_table(replace(campaign, history=replace(campaign.history, trials=waiting)))
    assert table is not None and {row[4] for row in table.rows} == {"–"}
