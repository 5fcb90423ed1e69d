"""Use of the nodes: attempts over time and cost of faults, from one worker to thousands of nodes."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace as changed

from hydragnn.base.errors import InputError
from hydragnn.hpo import Timeline
from hydragnn.hpo.status.timeline import Outage, Session, Span
from hydragnn.record import Cost, Failure, RunRecord, Usage, read_record
from hydragnn.scripts.report.collect import campaign_facts
from hydragnn.scripts.report.node_time import all_bars, campaign_time, faults_table, nodes_over_time
from hydragnn.scripts.report.search import learning_curves
from hydragnn.scripts.report.usage import Spent, usage_table


def span(slot: str, begin: float, end: float, outcome: Any = "reached") -> Span:
    return Span(trial=0, attempt=1, slots=(slot,), started=begin, ended=end, outcome=outcome, useful=end - begin)


def session(started: float, ended: float, *slots: str) -> Session:
    return Session(slots=slots or ("n1",), started=started, ended=ended)


def test_the_page_says_what_the_nodes_did_and_what_faults_cost(pages: dict[str, Path]) -> None:
    text = pages["disturbed"].read_text(encoding="utf-8")
    words = "Where the time went,training that counts (goodput),lost to the machine,node out of service,interrupted,told to the sampler,out of memory"
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
    assert (
        not faults_table(Timeline()).rows
        and not Spent(name="run", records=[]).parts
        and not Spent(name="run", records=[]).loss()
    )


def test_pauses_between_controllers_are_left_out() -> None:
    timeline = Timeline(sessions=(session(100.0, 110.0), session(500.0, 520.0), session(520.0, 525.0)))
    seconds = {100.0: 0.0, 105.0: 5.0, 110.0: 10.0, 300.0: 10.0, 500.0: 10.0, 510.0: 20.0, 525.0: 35.0}
    assert campaign_time(timeline, seconds).tolist() == [*seconds.values()]


def test_sessions_after_a_clock_was_set_back_are_drawn_too() -> None:
    timeline = Timeline(spans=(span("n1", 110.0, 150.0), span("n1", 20.0, 90.0)), sessions=(session(100.0, 200.0, "n1"), session(10.0, 90.0, "n1")))  # fmt: skip
    assert [(bar.begin, bar.end) for bar in all_bars(timeline)] == [(90.0, 130.0), (10.0, 80.0)]


def test_outages_are_bars_like_attempts() -> None:
    outage = Outage(node="n1", kind="quarantined", slots=("n1/0", "n1/1"), started=2.0, ended=4.0)
    timeline = Timeline(outages=(outage,), sessions=(session(0.0, 10.0, "n1/0", "n1/1"),))
    bars = [(bar.slot, bar.look, bar.begin, bar.end) for bar in all_bars(timeline)]
    assert bars == [(slot, "out", 2.0, 4.0) for slot in ("n1/0", "n1/1")]


def test_parts_add_up_to_the_time_of_all_nodes(disturbed: Any, played: ModuleType) -> None:
    timeline = played.timeline_builder(disturbed.events).timeline()
    allocated = pytest.approx(3600 * timeline.node_hours().allocated, rel=2e-3)  # small uses are left out
    parts = Spent(name="run", records=[record(data=1.0, forward=3.0)], timeline=timeline).parts
    assert sum(parts.values()) == sum(Spent(name="run", records=[], timeline=timeline).parts.values()) == allocated
    assert parts["forward"] == pytest.approx(3 * parts["data"]) and {"faults", "out", "idle"} <= parts.keys()
    assert all(map(all, faults_table(timeline).rows))  # no cell is empty
    answers = {row[0]: row[5] for row in faults_table(timeline).rows}
    assert (answers["it did not start"], answers["diverged"]) == ("no", "yes")


def record(*, nodes: int = 1, ranks: int = 1, failed: bool = False, device: str = "cpu", **values: Any) -> RunRecord:
    """A record with phases and other values of its usage."""
    known = {name: values.pop(name) for name in list(values) if name in Usage.__dataclass_fields__}
    cost, failure = Cost(seconds=sum(values.values()), nodes=nodes, ranks=ranks), Failure(kind="diverged", message="")
    best: Any = {"best": {"valid/loss": 1.0}, "failure": failure if failed else None}
    empty: Any = {"config": {}, "config_hash": "", "data_hash": "", "seed": 0}
    return RunRecord(**empty, **best, cost=cost, usage=Usage(phases=values, **known), hardware={"type": device})


def lost(*spans: Span, until: float) -> Timeline:
    return Timeline(spans=spans, sessions=(session(0.0, until),))


BUSY = {"forward": 30.0, "backward": 60.0}
PEAKS = {"peak_flops": 1e12, "peak_bytes": 1e11}


@pytest.mark.parametrize(
    ("records", "timeline", "sentence"),
    [
        ([record(**BUSY, data=50.0, other=40.0)], Timeline(), "Largest loss of the run: waiting for data, 28 % of the time. Next move: copy the store to a disk"),
        ([record(**BUSY, data=10.0), record(nodes=8, forward=9.0, collectives=3.0)], Timeline(), "Largest loss of the run: collectives of ranks, 12 % of the time. Next move: raise batch.max_graphs, or take fewer ranks"),
        ([record(**BUSY, validation=45.0)], Timeline(), "Largest loss of the run: validation, 33 % of the time. Next move: take a smaller split.valid."),
        ([record(**BUSY, saving=30.0)], Timeline(), "Largest loss of the run: saving, 25 % of the time. Next move: raise train.checkpoint_seconds."),
        ([record(**BUSY, other=20.0, unheard_of=10.0)], Timeline(), 'Largest loss of the run: start and host, 25 % of the time. Next move: train longer after each start, or raise batch.max_graphs.'),
        ([record(**BUSY, data=10.0, busy=0.3)], Timeline(), "Largest loss of the run: waiting for data, 10 % of the time."),
        ([record(**BUSY, data=10.0, busy=0.3, device="cuda")], Timeline(), 'Largest loss of the run: gaps in the GPU\'s work, 60 % of the time. Next move: set train.graphs = "on", or raise batch.max_graphs.'),
        ([record(**BUSY, validation=20.0, collectives=8.0, data=7.0, busy=0.9, device="cuda")], Timeline(), "Largest loss of the run: validation, 16 % of the time."),
        ([record(**BUSY, data=10.0, busy=0.0, device="cuda")], Timeline(), "Largest loss of the run: gaps in the GPU\'s work, 90 % of the time."),
        ([record(**BUSY, data=9.0, flops=1.8e12, bytes=9e11, **PEAKS)], Timeline(), "Largest loss of the run: computation uses 2 % of the operations and 10 % of the memory traffic that the device can do. Next move: raise batch.max_graphs."),
        ([record(**BUSY, data=9.0, flops=1.8e12, bytes=4.5e12, **PEAKS)], Timeline(), "No loss takes a tenth of the time of the run; the largest: waiting for data, 9 %."),
        ([record(**BUSY, data=9.0, flops=1.8e12, peak_flops=1e12)], Timeline(), "No loss takes a tenth of the time of the run; the largest: waiting for data, 9 %."),
        ([record(**BUSY)], Timeline(), ""),
        ([record()], Timeline(), ""),
        ([record(**BUSY, data=10.0)], lost(span("n1", 0.0, 20.0), until=100.0), "Largest loss of the run: idle, 80 % of the time. Next move: raise search.trials"),
        ([record(**BUSY, data=90.0)], lost(span("n1", 0.0, 80.0), until=100.0), "Largest loss of the run: waiting for data, 40 % of the time."),
        ([], lost(span("n1", 0.0, 80.0), until=100.0), "Largest loss of the run: idle, 20 % of the time."),
        *(
            ([], lost(span("n1", 0.0, 40.0), changed(span("n1", 40.0, 100.0, kind), useful=0.0), until=100.0), f"Largest loss of the run: lost in faults ({what}), 60 % of the time. Next move: {move}")
            for kind, what, move in (
                ("out_of_memory", "out of memory", "set batch.memory"),
                ("lost_node", "a node was lost", "ask for other nodes"),
                ("launch", "it did not start", "log.txt of such a trial"),
                ("preempted", "ended from outside", "lower train.checkpoint_seconds"),
                ("cut", "the controller was gone", "lower train.checkpoint_seconds, so that less"),
                ("timeout", "timeout", "see the table of faults"),
            )
        ),
        (
            [],
            lost(*(changed(span("n1", end - 20.0, end, kind), useful=0.0) for end, kind in ((20.0, "cut"), (35.0, "launch"), (40.0, "launch"))), changed(span("n1", 40.0, 55.0, "lost_node"), useful=0.0), until=55.0),
            "Largest loss of the run: lost in faults (it did not start), ",
        ),
        (
            [record(**BUSY)],
            lost(span("n1", 0.0, 20.0), changed(span("n1", 20.0, 90.0, "diverged"), useful=70.0, last=True), until=90.0),
            "Largest loss of the run: trials that failed by themselves, 78 % of the time. Next move: the table of faults",
        ),
    ],
)  # fmt: skip
def test_the_largest_loss_names_a_move(records: list[RunRecord], timeline: Timeline, sentence: str) -> None:
    said = Spent(name="run", records=records, timeline=timeline).loss()
    assert said.startswith(sentence) and bool(said) == bool(sentence)


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([record()], []),
        ([record(**BUSY)], [("energy", "–", "not measured")]),
        (
            [record(**BUSY, busy=0.9, joules=100.0, energy_source="RAPL"), record(forward=45.0, busy=0.3, joules=50.0, energy_source="NVML", failed=True), record(**BUSY)],
            [("device computes", "70 %", "time of training"), ("energy per training with a result", "150 J", "RAPL and NVML")],
        ),
        (
            [record(ranks=2, **BUSY, flops=9e13, bytes=0.0, **PEAKS)],
            [("operations while it computes", "50.0 %", "peak of the device"), ("energy", "–", "not measured")],
        ),
        (
            [record(**BUSY, flops=1.8e14, **PEAKS)],
            [("operations while it computes", "200.0 %", "peak of the device, measured low beside other work"), ("energy", "–", "not measured")],
        ),
    ],
)  # fmt: skip
def test_what_was_not_measured_is_no_zero(records: list[RunRecord], rows: list[tuple[str, str, str]]) -> None:
    assert usage_table([Spent(name="run", records=records)]).rows == [("run", *row) for row in rows]


def test_curves_of_thousands_of_trials_are_pixels(samples: Any) -> None:
    campaign = campaign_facts(samples.campaign)
    first, record = campaign.history.trials[0], next(iter(campaign.records.values()))
    trials = [structs.replace(first, number=number) for number in range(2000)]
    every = replace(campaign.history, trials=trials)
    figure = learning_curves(replace(campaign, history=every, records=dict.fromkeys(range(2000), record)))
    assert figure is not None and len(figure.panels[0].svg) < 200_000


@pytest.mark.parametrize("seconds", ["Infinity", "1e999", "NaN", "1e308", "-5.0", '"long"', "null"])
@pytest.mark.parametrize("place", ["forward", "cpu_seconds"])
def test_a_time_that_cannot_be_is_one_sentence(place: str, seconds: str, tmp_path: Path) -> None:
    table = asdict(record(**BUSY))
    (tmp_path / "record.json").write_text(re.sub(rf'"{place}": [^,}}]+', f'"{place}": {seconds}', json.dumps(table)))
    with pytest.raises(InputError, match=r"record\.json is damaged"):
        read_record(tmp_path)
