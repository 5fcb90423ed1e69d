"""Use of the nodes: attempts over time and cost of faults, from one worker to thousands of nodes."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hydragnn.hpo import Timeline
from hydragnn.hpo.status.timeline import Outage, Session, Span
from hydragnn.scripts.report.collect import campaign_facts
from hydragnn.scripts.report.node_time import all_bars, campaign_time, faults_table, hours_table, nodes_over_time
from hydragnn.scripts.report.search import learning_curves


def span(slot: str, begin: float, end: float, outcome: Any = "reached") -> Span:
    return Span(trial=0, attempt=1, slots=(slot,), started=begin, ended=end, outcome=outcome, useful=end - begin)


def session(started: float, ended: float, *slots: str) -> Session:
    return Session(slots=slots or ("n1",), started=started, ended=ended)


def test_the_page_says_what_the_nodes_did_and_what_faults_cost(pages: dict[str, Path]) -> None:
    text = pages["disturbed"].read_text(encoding="utf-8")
    words = "Use of the nodes,training that counts (goodput),lost to the machine,node out of service,interrupted,told to the sampler,out of memory"
    assert [one for one in words.split(",") if one not in text] == []


@pytest.mark.parametrize(
    ("spans", "slots", "row"),
    [
        ((span("n1", 0.0, 9.0),), ("n1", "n2"), "node"),
        ((span("worker-0", 0.0, 10.0),), ("worker-0",), "worker"),
        ((span("n1/0", 0.0, 10.0),), ("n1/0", "n1/1"), "part of a node"),
        ((span("n7", 0.0, 9.0),), tuple(f"n{k}" for k in range(3000)), "node"),
    ],
)
def test_every_slot_has_a_row(spans: tuple[Span, ...], slots: tuple[str, ...], row: str) -> None:
    figure = nodes_over_time(Timeline(spans=spans, sessions=(session(0.0, 10.0, *slots),)))
    assert figure is not None and figure.caption.startswith(f"each row is one {row}; each bar is")
    assert f">{slots[0]}<" in figure.panels[0].svg and len(figure.panels[0].svg) < 100_000


def test_nothing_is_drawn_before_anything_ran() -> None:
    assert nodes_over_time(Timeline()) is None
    assert nodes_over_time(Timeline(sessions=(session(0.0, 0.0),))) is None
    assert not hours_table(Timeline()).rows and not faults_table(Timeline()).rows


def test_pauses_between_controllers_are_left_out() -> None:
    timeline = Timeline(sessions=(session(100.0, 110.0), session(500.0, 520.0), session(520.0, 525.0)))
    seconds = {100.0: 0.0, 105.0: 5.0, 110.0: 10.0, 300.0: 10.0, 500.0: 10.0, 510.0: 20.0, 525.0: 35.0}
    assert campaign_time(timeline, seconds).tolist() == [*seconds.values()]


def test_outages_are_bars_like_attempts() -> None:
    outage = Outage(node="n1", kind="quarantined", slots=("n1/0", "n1/1"), started=2.0, ended=4.0)
    timeline = Timeline(outages=(outage,), sessions=(session(0.0, 10.0, "n1/0", "n1/1"),))
    bars = [(bar.slot, bar.look, bar.begin, bar.end) for bar in all_bars(timeline)]
    assert bars == [(slot, "out", 2.0, 4.0) for slot in ("n1/0", "n1/1")]


def test_the_tables_add_up(disturbed: Any, played: ModuleType) -> None:
    timeline = played.timeline_builder(disturbed.events).timeline()
    uses, faults = hours_table(timeline), faults_table(timeline)
    shares = [float(row[2].removesuffix(" %")) for row in uses.rows]
    assert shares[-1] == 100.0 and sum(shares[:-1]) == pytest.approx(100.0, abs=0.5)
    answers = {row[0]: row[5] for row in faults.rows}
    assert (answers["it did not start"], answers["diverged"]) == ("no", "yes")


def test_curves_of_thousands_of_trials_are_pixels(samples: Any) -> None:
    campaign = campaign_facts(samples.campaign)
    first, record = campaign.history.trials[0], next(iter(campaign.records.values()))
    trials = [replace(first, number=number) for number in range(2000)]
    every = replace(campaign.history, trials=trials)
    figure = learning_curves(replace(campaign, history=every, records=dict.fromkeys(range(2000), record)))
    assert figure is not None and len(figure.panels[0].svg) < 200_000
