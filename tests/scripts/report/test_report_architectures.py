"""The report says which architecture wins per error, and which per second."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hydragnn.hpo import CampaignHistory, Timeline, TrialHistory, campaign_settings
from hydragnn.record import Cost, RunRecord
from hydragnn.scripts.report import search
from hydragnn.scripts.report.facts import Campaign, Facts
from hydragnn.scripts.report.search import architectures_table, compared_architectures, objective_within

SPACE = {"model.hidden_dim": {"type": "int", "low": 8, "high": 16}}
ROWS: list[tuple[str, list[float], float, Any]] = [
    ("slow", [0.9, 0.5, 0.2, 0.1], 80.0, "finished"),
    ("quick", [0.6, 0.5, 0.4, 0.3], 20.0, "finished"),
    ("quick", [0.7], 6.0, "paused"),
    ("third", [1.0], 1.0, "failed"),
]
"""A slow architecture that ends at 0.1, a quick one that ends at 0.3 in a quarter of the time, and one that failed."""


def trial(number: int, curve: list[float], status: Any) -> TrialHistory:
    failure = "diverged: the loss is not finite" if status == "failed" else None
    facts: dict[str, Any] = {"values": {}, "origin": "sampler", "rungs": {}, "attempts": 1, "speed": 0.0}
    place = Path(f"{number:04d}")
    return TrialHistory(number=number, status=status, value=min(curve), failure=failure, folder=place, **facts)


def record(kind: str, curve: list[float], seconds: float) -> RunRecord:
    cost = Cost(seconds=seconds, graphs_per_second=100.0 * len(curve) / seconds)
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


def test_the_smallest_error_and_the_smallest_error_in_the_same_time_have_their_winners(campaign: Campaign) -> None:
    table = architectures_table(campaign)
    assert [row[0] for row in table.rows] == ["slow", "quick", "third"]
    assert [row[1:4] for row in table.rows] == [("1", "1", "0"), ("2", "1", "0"), ("1", "0", "1")]
    assert "slow wins per error, quick per second: in 20.0 s" in table.caption
    in_time = [one.in_time for one in compared_architectures(campaign, 20.0, False)]
    assert in_time[:2] == [0.9, 0.3]  # slow has had one epoch of 20 s


@pytest.mark.parametrize(("seconds", "value"), [(19.0, float("inf")), (20.0, 0.9), (41.0, 0.5), (999.0, 0.1)])
def test_no_more_counts_than_what_a_trial_had_time_for(campaign: Campaign, seconds: float, value: float) -> None:
    assert objective_within(campaign.records[0], "valid/loss", seconds, False) == value


def test_trials_on_processors_are_compared_by_what_they_computed_and_not_by_when(campaign: Campaign) -> None:
    def on_processor(one: RunRecord, type: str) -> RunRecord:
        cost = replace(one.cost, cpu_seconds=10.0 * one.epochs)  # all alike, but the slow one had to wait
        return replace(one, cost=cost, hardware={"type": type}, parts={"train": 50})

    records = {number: on_processor(one, "cpu") for number, one in campaign.records.items()}
    table = architectures_table(replace(campaign, records=records))
    assert table is not None and "slow per second: in 40.0 s of processors" in table.caption
    assert table.header[5] == "processor time of that trial" and table.rows[0][5:7] == ("40.0 s", "5")
    mixed = {**records, 0: on_processor(campaign.records[0], "cuda")}
    table = architectures_table(replace(campaign, records=mixed))
    assert table is not None and "quick per second: in 20.0 s, the" in table.caption


def test_nobody_wins_before_any_result_or_where_there_was_no_choice(campaign: Campaign) -> None:
    trials = campaign.history.trials
    assert architectures_table(replace(campaign, history=replace(campaign.history, trials=trials[1:3]))) is None
    waiting = [replace(one, value=None, status="running", failure=None) for one in trials]
    table = architectures_table(replace(campaign, history=replace(campaign.history, trials=waiting)))
    assert table is not None and table.caption == "Architectures; none has a result yet."


def test_an_objective_that_fails_leaves_out_its_table_alone(campaign: Campaign) -> None:
    own = replace(campaign, history=history(list(campaign.history.trials), objective="acme.functions:cheap"))
    object.__setattr__(facts := object.__new__(Facts), "campaign", own)
    section = search.chapter(facts)
    assert section is not None and section.tables[2] is None and section.tables[3] is not None
    assert "Architectures are not compared: search.objective" in section.lead
