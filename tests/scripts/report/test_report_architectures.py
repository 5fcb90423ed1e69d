"""The report says which architecture wins per error, and which per second."""

from dataclasses import replace
from pathlib import Path

import pytest

from hydragnn.record import Cost, RunRecord
from hydragnn.scripts.report.facts import CampaignFacts, Trial
from hydragnn.scripts.report.tables import architectures_table, compared_architectures, layouts_table, objective_within


def trial(number: int, kind: str, curve: list[float], seconds: float, status: str = "finished") -> Trial:
    record = RunRecord(
        config={"model": {"kind": kind}},
        config_hash="",
        data_hash="",
        seed=0,
        epochs=len(curve),
        curves={"valid/loss": curve},
        cost=Cost(seconds=seconds, graphs_per_second=100.0 * len(curve) / seconds),
    )
    folder = Path(f"{number:04d}")
    return Trial(number=number, folder=folder, parameters={}, objective=min(curve), record=record, status=status)


@pytest.fixture
def campaign() -> CampaignFacts:
    """A slow architecture that ends at 0.1, a quick one that ends at 0.3 in a quarter of the time, and one that failed."""
    failed = replace(trial(3, "third", [1.0], 1.0, "failed"), objective=None, failure_kind="diverged")
    trials = (
        trial(0, "slow", [0.9, 0.5, 0.2, 0.1], 80.0),
        trial(1, "quick", [0.6, 0.5, 0.4, 0.3], 20.0),
        trial(2, "quick", [0.7], 6.0, "paused"),
        failed,
    )
    return CampaignFacts(
        folder=Path("c"),
        config={},
        search={"objective": "valid/loss"},
        objective="valid/loss",
        rungs=(1,),
        trials=trials,
        importances={},
    )


def test_the_smallest_error_and_the_smallest_error_in_the_same_time_have_their_winners(campaign: CampaignFacts) -> None:
    table = architectures_table(campaign)
    assert table is not None
    assert [row[0] for row in table.rows] == ["slow", "quick", "third"]
    assert [row[1:4] for row in table.rows] == [("1", "1", "0"), ("2", "1", "0"), ("1", "0", "1")]
    assert "slow wins per error, quick per second: in 20.0 s" in table.caption
    assert [one.in_time for one in compared_architectures(campaign, 20.0, False)][:2] == [
        0.9,
        0.3,
    ]  # slow has had one epoch of 20 s


def test_no_more_counts_than_what_a_trial_had_time_for(campaign: CampaignFacts) -> None:
    slow = campaign.trials[0]
    actual = [objective_within(slow, "valid/loss", seconds, False) for seconds in (19.0, 20.0, 41.0, 999.0)]
    assert actual == [float("inf"), 0.9, 0.5, 0.1]


def test_trials_on_processors_are_compared_by_what_they_computed_and_not_by_when(campaign: CampaignFacts) -> None:
    def on_processor(one: Trial, type: str) -> Trial:
        assert one.record is not None
        cost = replace(one.record.cost, cpu_seconds=10.0 * one.record.epochs)  # all alike, but the slow one had to wait
        return replace(one, record=replace(one.record, cost=cost, hardware={"type": type}, parts={"train": 50}))

    trials = tuple(on_processor(one, "cpu") for one in campaign.trials)
    table = architectures_table(replace(campaign, trials=trials))
    assert table is not None and "slow per second: in 40.0 s of processors" in table.caption
    assert table.header[5] == "processor time of that trial" and table.rows[0][5:7] == ("40.0 s", "5")
    mixed = (on_processor(campaign.trials[0], "cuda"), *trials[1:])
    table = architectures_table(replace(campaign, trials=mixed))
    assert table is not None and "quick per second: in 20.0 s, the" in table.caption


def test_where_there_was_no_choice_nothing_is_compared(campaign: CampaignFacts) -> None:
    assert architectures_table(replace(campaign, trials=campaign.trials[1:3])) is None


def test_before_any_result_nobody_wins(campaign: CampaignFacts) -> None:
    waiting = tuple(replace(one, objective=None, status="running", failure_kind="") for one in campaign.trials)
    table = architectures_table(replace(campaign, trials=waiting))
    assert table is not None and table.caption == "Architectures; none has a result yet."


def test_layouts_stand_by_throughput_while_they_were_compared(campaign: CampaignFacts) -> None:
    assert layouts_table(campaign) is None
    shards, speeds = (1, 2, 4, 2), (50.0, 80.0, 0.0, 95.0)  # the last trial has other settings
    trials = tuple(
        replace(one, parameters={"parallel.shard": shard}, speed=speed)
        for one, shard, speed in zip(campaign.trials, shards, speeds)
    )
    trials = (*trials[:2], replace(trials[2], failure_kind="out_of_memory"), replace(trials[3], failure_kind=""))
    table = layouts_table(
        replace(campaign, trials=trials, search={"space": {"parallel.shard": {}}, "layout_trials": 3})
    )
    assert table is not None
    assert [(row[0], row[1], row[2], row[4]) for row in table.rows] == [
        ("2", "2", "80", "0"),
        ("1", "1", "50", "0"),
        ("4", "1", "–", "1"),
    ]
    assert "The first 3 trials differ in their layout only" in table.caption
