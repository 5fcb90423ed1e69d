"""Use of the nodes: nodes over time, what faults cost, and that both read well from one worker to hundreds of nodes."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hydragnn.hpo import Timeline
from hydragnn.hpo.status.timeline import Outage, Session, Span
from hydragnn.scripts.report.collect import campaign_facts
from hydragnn.scripts.report.node_time import (
    all_bars,
    campaign_time,
    faults_table,
    hours_table,
    mean_count,
    nodes_over_time,
)


def span(slot: str, begin: float, end: float, outcome: Any = "reached") -> Span:
    return Span(trial=0, attempt=1, slots=(slot,), started=begin, ended=end, outcome=outcome, useful=end - begin)


def session(started: float, ended: float, *slots: str) -> Session:
    return Session(slots=slots or ("n1",), started=started, ended=ended)


def test_the_page_says_what_the_nodes_did_and_what_faults_cost(pages: dict[str, Path]) -> None:
    text = pages["disturbed"].read_text(encoding="utf-8")
    for words in (
        "Use of the nodes",
        "training that counts (goodput)",
        "lost to the machine",
        "node out of service",
        "interrupted",
        "told to the sampler",
        "out of memory",
    ):
        assert words in text


def test_every_slot_has_a_row_until_there_are_too_many(played: ModuleType) -> None:
    few = Timeline(spans=(span("n1", 0.0, 9.0),), sessions=(session(0.0, 10.0, "n1", "n2"),))
    many = Timeline(spans=(span("n1", 0.0, 9.0),), sessions=(session(0.0, 10.0, *played.nodes(65)),))
    rows, bands = nodes_over_time(few), nodes_over_time(many)
    assert rows is not None and bands is not None
    assert ">n2<" in rows.panels[0].svg and "each row is one node" in rows.caption
    assert "how many of the 65 nodes" in bands.caption and len(bands.panels[0].svg) < 100_000
    figure = nodes_over_time(Timeline(spans=(span("worker-0", 0.0, 10.0),), sessions=(session(0.0, 10.0, "worker-0"),)))
    assert figure is not None
    assert figure.caption == (
        "How to read it: each row is one worker; each bar is an attempt at one segment of a trial, and blank is idle."
    )


def test_nothing_is_drawn_before_anything_ran() -> None:
    assert nodes_over_time(Timeline()) is None
    assert nodes_over_time(Timeline(sessions=(session(0.0, 0.0),))) is None
    assert not hours_table(Timeline()).rows
    assert not faults_table(Timeline()).rows


def test_pauses_between_controllers_are_left_out() -> None:
    timeline = Timeline(sessions=(session(100.0, 110.0), session(500.0, 520.0), session(520.0, 525.0)))
    assert campaign_time(timeline, [100.0, 105.0, 110.0, 300.0, 500.0, 510.0, 525.0]).tolist() == [
        *(0.0, 5.0, 10.0, 10.0, 10.0, 20.0, 35.0),
    ]


def test_outages_are_bars_like_attempts() -> None:
    outage = Outage(node="n1", kind="quarantined", slots=("n1/0", "n1/1"), started=2.0, ended=4.0)
    timeline = Timeline(outages=(outage,), sessions=(session(0.0, 10.0, "n1/0", "n1/1"),))
    assert [(bar.slot, bar.look, bar.begin, bar.end) for bar in all_bars(timeline)] == [
        ("n1/0", "out", 2.0, 4.0),
        ("n1/1", "out", 2.0, 4.0),
    ]


def test_bands_hold_all_the_time_that_bars_have() -> None:
    generator = np.random.default_rng(0)
    begins = generator.uniform(0, 90, size=50)
    bars = [(float(b), float(b + d)) for b, d in zip(begins, generator.uniform(0, 10, size=50))]
    edges = np.linspace(0, 100, 33)
    counts = mean_count(bars, edges)
    assert (counts >= -1e-9).all()
    assert (counts * np.diff(edges)).sum() == pytest.approx(sum(end - begin for begin, end in bars))


def test_the_tables_add_up(disturbed: Any, played: ModuleType) -> None:
    timeline = played.timeline_builder(disturbed.events).timeline()
    uses, faults = hours_table(timeline), faults_table(timeline)
    shares = [float(row[2].removesuffix(" %")) for row in uses.rows]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.5)
    answers = {row[0]: row[5] for row in faults.rows}
    assert answers["it did not start"] == "no"
    assert answers["diverged"] == "yes"


def test_thousands_of_trials_are_thinned_to_the_best_and_an_even_sample(samples: Any) -> None:
    campaign = campaign_facts(samples.campaign)
    assert campaign.thin() is campaign
    first = campaign.history.trials[0]
    trials = [replace(first, number=k, value=float(-k), status="finished", failure=None) for k in range(5000)]
    many = replace(campaign, history=replace(campaign.history, trials=trials))
    shown = [trial.number for trial in many.thin(400).history.trials]
    assert len(shown) == len(set(shown)) == 400
    assert shown[-100:] == list(range(4900, 5000))
    assert shown[0] == 0
    assert shown == sorted(shown)
