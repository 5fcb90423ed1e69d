"""How a campaign stands is read from its journal while it grows: a table on a terminal, plain lines elsewhere, JSON for machines.

The timeline accounts for every second of every node, and says what faults cost.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from campaigns import Settings
from clockwork import after, play, timeline_builder
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from rich.console import Console

from hydragnn.hpo import CampaignStatus, CampaignView, Follower, State, campaign_history, campaign_status
from hydragnn.hpo.preflight import write_settings
from hydragnn.hpo.scheduling.events import Event, Failed, Launched, Opened, Plan, Probed, Proposed, Reached, Stopping
from hydragnn.hpo.scheduling.scheduler import MACHINE_FAULTS, decide
from hydragnn.hpo.scheduling.state import Trouble
from hydragnn.hpo.status.facts import forecast, node_counts
from hydragnn.hpo.status.timeline import FaultRow, Timeline, TimelineBuilder
from hydragnn.hpo.status.view import _fault_lines, event_line, show_status, status_rows
from hydragnn.record import Cost, RunRecord, Usage, write_record

PLAN = Plan(trials=40, rungs=(2, 6, 18), finalists=2, max_slots=2, max_node_seconds=90_000.0)


Campaign = Callable[..., Path]


@cache
def played(nodes: int = 6, prefix: str = "n") -> Any:
    player = play(PLAN, nodes, seed=3, own=0.15, machine=0.08, bad=("n3",), work=30.0, prefix=prefix)
    player.session(stop_after=1500)
    player.session()
    return player


@pytest.fixture
def player() -> Any:
    return played()


@pytest.fixture
def campaign(settings: Settings, tmp_path: Path) -> Campaign:
    def made(*nodes: Any) -> Path:
        place = tmp_path / "campaign"
        place.mkdir()
        write_settings(settings(trials=40, rungs=[2, 6], sampler="auto"), [], place)
        played(*nodes).write(place / "journal.jsonl")
        return place

    return made


@pytest.fixture
def folder(campaign: Campaign) -> Path:
    return campaign()


def test_the_status_agrees_with_the_campaign(folder: Path, player: Any) -> None:
    status = campaign_status(folder)
    state = player.state
    assert status.status == "finished"
    assert (status.planned, sum(status.trials.values())) == (40, len(state.trials))
    assert status.trials["finished"] == sum(trial.status == "finished" for trial in state.trials.values())
    assert [rung.reached for rung in status.rungs] == [
        sum(len(trial.results) > level for trial in state.trials.values()) for level in range(3)
    ]
    assert (status.best.trial, status.best.value) == (state.best.number, state.best.value)
    assert status.goodput == status.node_hours.goodput
    assert 0.2 < (status.goodput or 0) < 1
    budgets = {budget.name: budget for budget in status.budgets}
    assert budgets["node-hours"].used == pytest.approx(status.node_hours.allocated)
    assert budgets["node-hours"].limit == 25.0
    assert {row.kind for row in status.faults} >= {"launch", "diverged"}
    failed = {trial.number for trial in state.trials.values() if trial.status in ("failed", "lost")}
    reasons = [reason for row in status.faults for reason in row.reasons.items()]
    assert {trial for _, trials in reasons for trial in trials} == failed and failed
    lines = status_rows(status)["faults"]
    assert all(sum(line.startswith("  ") and line.endswith(f": {one}") for line in lines) == 1 for one, _ in reasons)
    assert status.forecast is None
    assert set(json.loads(json.dumps(status.to_json(), allow_nan=False))) == set(CampaignStatus.__dataclass_fields__)


def test_a_bad_node_is_named(folder: Path, player: Any) -> None:
    assert campaign_status(folder).nodes.quarantined in (("n3",), ())
    halfway = player.events[: len(player.events) // 4]
    state = State()
    seen = set()
    for now, event in halfway:
        after(state, now, event)
        nodes = node_counts(state)
        seen |= set(nodes.quarantined)
        assert nodes.busy + nodes.idle + nodes.probing + len(nodes.quarantined) == nodes.known == 6
    assert seen == {"n3"}


def test_the_status_has_the_trouble_of_the_machine_and_the_error_of_the_cost_model(folder: Path) -> None:
    follower = Follower(folder)
    follower.update()
    status, state = follower.status(), follower.builder.state
    assert status.trouble is None
    assert status.costs.measured > 20
    assert 0.02 < (status.costs.error or 0.0) < 0.5  # the planted law has ten per cent of noise
    state.trouble = Trouble(number=2, since=50.0, until=80.0)
    assert follower.status().trouble == {"number": 2, "since": 50.0, "until": 80.0}
    state.trouble = Trouble(number=2)
    assert follower.status().trouble == {"number": 2, "since": None, "until": None}
    json.dumps(follower.status().to_json(), allow_nan=False)


def test_a_journal_is_followed_while_it_grows_and_a_torn_line_waits(folder: Path) -> None:
    whole = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(b"")
    follower = Follower(folder)
    assert not follower.update()
    assert follower.status().status == "begun"
    lines = whole.splitlines(keepends=True)
    written = b"".join(lines[:90]) + lines[90][:-9]
    (folder / "journal.jsonl").write_bytes(written)
    assert follower.update()
    assert not follower.update()
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(whole[len(written) :])
    assert follower.update()
    grown, at_once = follower.status().to_json(), campaign_status(folder).to_json()
    silence, costs = ("silence", "costs")
    assert {k: v for k, v in grown.items() if k not in (silence, costs)} == {
        k: v for k, v in at_once.items() if k not in (silence, costs)
    }


@pytest.mark.parametrize(("later", "status"), [(30.0, "running"), (1000.0, "silent")])
def test_a_controller_that_writes_no_more_is_thought_gone(folder: Path, player: Any, later: float, status: str) -> None:
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:101]))  # the first is the claim
    follower = Follower(folder, clock=lambda: player.events[99][0] + later)
    follower.update()
    found = follower.status()
    assert (found.status, found.silence) == (status, pytest.approx(later))


@pytest.mark.parametrize(("limit", "by", "seconds"), [(60.0, "hours", 50.0), (None, "finished", 200.0)])
def test_the_forecast_is_by_the_first_budget_or_epochs_of_rungs(limit: float | None, by: str, seconds: float) -> None:
    plan = Plan(trials=9, rungs=(1, 3, 9), max_seconds=limit, grace=5.0)
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=("n1",)))
    assert forecast(state, 5.0) is None
    after(state, 0.0, Proposed(trial=0, values={"model.hidden_dim": 32}))
    after(state, 10.0, Reached(trial=0, attempt=1, epochs=1, value=0.75))
    # 9 trials to epoch 1, 3 to epoch 3, 1 to epoch 9: 9 + 6 + 6 = 21 epochs, one done in ten seconds
    found = forecast(state, 10.0)
    assert (found.by, found.seconds) == (by, pytest.approx(seconds))


EVENTS: list[tuple[Event, float]] = [
    (Opened(plan=Plan(trials=9, rungs=(1, 3, 9), reduction=3), slots=("worker-0", "worker-1")), 0.0),
    (Proposed(trial=0, values={"model.hidden_dim": 32, "train.learning_rate": 0.0012345}), 0.0),
    (Proposed(trial=1, values={"model.hidden_dim": 64, "train.learning_rate": 0.1}), 0.0),
    (Reached(trial=0, attempt=1, epochs=1, value=0.75), 10.0),
    (Failed(trial=1, attempt=1, kind="launch", message="exit code 1\nImportError: no torch"), 12.0),
    (Probed(node="worker-1", healthy=True), 13.0),
    (Failed(trial=1, attempt=2, kind="diverged", message="loss is not finite"), 14.0),
    (Proposed(trial=2, values={"model.hidden_dim": 8, "train.learning_rate": 0.01}), 14.0),
    (Stopping(reason="SIGINT"), 20.0),
]


def shown(out: Path, events: list[tuple[Event, float]] = EVENTS, *, terminal: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200, color_system=None)
    state = State()
    clock = iter(float(second) for second in range(100))
    with CampaignView(out, console, clock=lambda: next(clock)) as view:
        for event, now in events:
            after(state, now, event)
            view(state, event, state.elapsed(now))
    return text.getvalue()


def test_plain_lines_tell_every_piece_of_news_once(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert text.splitlines() == [
        "9 trials on 2 worker(s), rungs 1, 3, 9",
        "trial 0: hidden_dim=32 learning_rate=0.00123",
        "trial 1: hidden_dim=64 learning_rate=0.1",
        "trial 0 reached a rung at epoch 1: 0.75; "
        "10.0 s: running; trials 2 of 9: 1 running, 1 at a rung; best 0.75 (trial 0); 1 worker busy, 1 idle; goodput 100 %; about 3 min 20 s left",
        "trial 1: launch, tried again: exit code 1: ImportError: no torch",
        "trial 1: diverged, given up: loss is not finite",
        "trial 2: hidden_dim=8 learning_rate=0.01",
        "SIGINT: 1 trial(s) save their state",
    ]
    state = State()
    after(state, 0.0, EVENTS[0][0])
    assert event_line(state, Stopping(reason="SIGTERM")) == "SIGTERM: no trial is running"


def test_on_a_terminal_the_table_shows_progress_and_speed(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "0002"
    cost, usage = Cost(graphs_per_second=1234.0), Usage(busy=0.617)
    write_record(RunRecord(config={}, config_hash="", data_hash="", seed=0, epochs=0, cost=cost, usage=usage), folder)
    text = shown(tmp_path, terminal=True)
    assert "1234 graphs/s, 62 % busy" in text
    assert "running" in text
    assert "hidden_dim=8" in text
    assert "best 0.75 (trial 0)" in text


ON_NODES: list[tuple[Event, float]] = [
    (Opened(plan=Plan(trials=2, rungs=(1, 3)), slots=("n1", "n2", "n3")), 0.0),
    (Proposed(trial=0, values={"model.hidden_dim": 32}), 0.0),
    (Proposed(trial=1, values={"model.hidden_dim": 64}), 0.0),
    (Failed(trial=0, attempt=1, kind="lost_node", message="n1 is gone", suspects=("n1",)), 10.0),
    (Probed(node="n1", healthy=False), 10.0),
    (Reached(trial=1, attempt=1, epochs=1, value=0.5, seconds=18.0), 20.0),
]


def test_beyond_one_machine_the_summary_counts_nodes_and_goodput(tmp_path: Path) -> None:
    lines = shown(tmp_path, ON_NODES).splitlines()
    assert lines[0] == "2 trials on 3 node(s), rungs 1, 3"
    # n2 trained 18 s for trial 1, trial 0 runs again on n3 since 10 s: 28 of 60 node-seconds
    assert "1 node busy, 1 idle, 1 quarantined; goodput 47 %" in lines[-1]


def test_the_table_is_drawn_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    clock = iter(0.01 * tick for tick in range(10_000))
    view = CampaignView(tmp_path, Console(file=io.StringIO(), force_terminal=True), clock=lambda: next(clock))
    monkeypatch.setattr("hydragnn.hpo.status.view.status_table", lambda *_: drawn.append(1) or "")
    state = State()
    after(state, 0.0, EVENTS[0][0])
    with view:
        for _ in range(1000):  # ten seconds
            view(state, Probed(node="worker-1", healthy=True), 1.0)
    assert 18 <= len(drawn) <= 22


def test_quick_results_share_a_call_and_the_last_one_has_one(tmp_path: Path) -> None:
    seen, state = list[int](), State()
    callback = CampaignView(
        tmp_path,
        clock=lambda: 0.2 * state.count("finished"),
        quiet=True,
        callback=lambda status: seen.append(status.trials["finished"]),
    )
    events: list[Event] = [Opened(plan=Plan(trials=6, rungs=(1,)), slots=("a", "b", "c", "d", "e", "f"))]
    events += [Proposed(trial=number, values={"model.hidden_dim": number}) for number in range(6)]
    events += [Reached(trial=number, attempt=1, epochs=1, value=0.5) for number in range(6)]
    for event in events:
        after(state, 1.0, event)
        callback(state, event, 1.0)
    assert seen == [1, 4, 6]


SHORT = Plan(trials=12, rungs=(2, 6, 18), finalists=2)


def timeline_after(*events: tuple[float, Event]) -> Timeline:
    return timeline_builder(events).timeline()


OPENED = (100.0, Opened(plan=Plan(trials=1, rungs=(2, 4)), slots=("n1", "n2")))
PROPOSED = (100.0, Proposed(trial=0, values={"model.hidden_dim": 8}))


Spans = list[tuple[str, int, float, float, float]]
SPANS: dict[str, tuple[list[tuple[float, Event]], Spans, list[tuple[Any, ...]]]] = {
    "an attempt counts with what its record vouches for": (
        [(130.0, Reached(trial=0, attempt=1, epochs=2, value=1.0, seconds=24.0))],
        [("reached", 1, 100.0, 130.0, 24.0)],
        [],
    ),
    # the record says 40 s of training: what does not fit into the second attempt was done by the first
    "what survives a machine fault counts once the trial reaches its rung": (
        [
            (150.0, Failed(trial=0, attempt=1, kind="lost_node", message="", epochs=1, suspects=("n1",))),
            (175.0, Reached(trial=0, attempt=2, epochs=2, value=1.0, seconds=40.0)),
        ],
        [("lost_node", 1, 100.0, 150.0, 15.0), ("reached", 2, 150.0, 175.0, 25.0)],
        [("lost_node", 1, 1, 1, 0, 35.0)],
    ),
    "a failure of the configuration is an answer and nothing of it is lost": (
        [(160.0, Failed(trial=0, attempt=1, kind="diverged", message="loss is nan"))],
        [("diverged", 1, 100.0, 160.0, 60.0)],
        [("diverged", 1, 1, 0, 1, 0.0)],
    ),
    "an attempt that was asked to leave is no fault": (
        [(120.0, Stopping(reason="SIGTERM")), (121.0, Failed(trial=0, attempt=1, kind="preempted", message="saved"))],
        [("saved", 1, 100.0, 121.0, 0.0)],
        [],
    ),
    "a killed controller cuts its attempts at its last sign of life": (
        [
            (110.0, Launched(trial=0, attempt=1, identity={"pid": 1})),
            (900.0, Opened(plan=SHORT, slots=("n1",))),
            (950.0, Stopping(reason="SIGTERM")),
        ],
        [("cut", 1, 100.0, 110.0, 0.0), ("running", 2, 900.0, 950.0, 50.0)],
        [("cut", 1, 1, 0, 0, 10.0)],
    ),
}


@pytest.mark.parametrize(("events", "spans", "faults"), SPANS.values(), ids=SPANS)
def test_faults_have_their_time(events: list[tuple[float, Event]], spans: Spans, faults: list[tuple[Any, ...]]) -> None:
    timeline = timeline_after(OPENED, PROPOSED, *events)
    assert [(s.outcome, s.attempt, s.started, s.ended, s.useful) for s in timeline.spans] == spans
    rows = timeline.faults()
    assert [(row.kind, row.count, row.trials, row.nodes, row.to_sampler) for row in rows] == [row[:5] for row in faults]
    assert [3600 * row.node_hours for row in rows] == pytest.approx([row[5] for row in faults])


@pytest.mark.parametrize(("times", "reasons"), [(3, {}), (4, {"n3 is gone": [0]})])
def test_a_trial_that_the_machine_lost_has_its_reason(times: int, reasons: dict[str, list[int]]) -> None:
    gone = [
        Failed(trial=0, attempt=1 + n, kind="lost_node", message=f"n{n} is gone", suspects=("n1",))
        for n in range(times)
    ]
    (row,) = timeline_after(OPENED, PROPOSED, *((110.0 + n, one) for n, one in enumerate(gone))).faults()
    assert (row.reasons, row.to_sampler) == (reasons, 0)


@pytest.mark.parametrize(("count", "words"), [(8, "6, 7: full"), (10, "6, 7 and 2 more: full")])
def test_a_reason_of_many_trials_names_the_first(count: int, words: str) -> None:
    row = FaultRow(
        kind="diverged", count=9, trials=9, nodes=0, node_hours=0.0, to_sampler=9, reasons={"full": [*range(count)]}
    )
    assert _fault_lines(row, "node")[1] == f"  trial 0, 1, 2, 3, 4, 5, {words}"


def test_sessions_may_divide_their_nodes_into_other_numbers_of_slots() -> None:
    """Four trials on a node, then one on another: both nodes are full, and no more than that."""
    plan = Plan(trials=5, rungs=(2, 4))

    def course(first: int, slots: tuple[str, ...], begin: float, seconds: float) -> list[tuple[float, Event]]:
        trials = range(first, first + len(slots))
        reached = [Reached(trial=n, attempt=1, epochs=2, value=1.0, seconds=seconds) for n in trials]
        return [
            (begin, Opened(plan=plan, slots=slots)),
            *((begin, Proposed(trial=n, values={"model.hidden_dim": 8 + n})) for n in trials),
            *((begin + seconds, one) for one in reached),
        ]

    both = [*course(0, ("a/0", "a/1", "a/2", "a/3"), 100.0, 100.0), *course(4, ("b",), 300.0, 10.0)]
    hours = timeline_after(*both).node_hours()
    assert hours.allocated == pytest.approx(110 / 3600)
    assert hours.goodput == pytest.approx(1.0)


def test_who_sees_a_resumed_controller_alone_counts_its_time_alone() -> None:
    state = timeline_builder([OPENED, PROPOSED, (110.0, Launched(trial=0, attempt=1, identity={"pid": 1}))]).state
    later = TimelineBuilder()
    for now, event in (
        (900.0, Opened(plan=SHORT, slots=("n1",))),
        (950.0, Reached(trial=0, attempt=2, epochs=2, value=1.0, seconds=90.0)),
    ):
        decide(state, event, now)
        later.observe(event, state, now)
    assert later.timeline().node_hours().goodput == pytest.approx(1.0)


def test_node_hours_are_what_was_allocated_and_its_uses_and_running_attempts_count_until_proven_otherwise() -> None:
    assert TimelineBuilder().timeline() == Timeline() and Timeline().node_hours().goodput is None
    builder = timeline_builder([OPENED, PROPOSED])
    assert builder.timeline().node_hours().goodput is None
    reached = (130.0, Reached(trial=0, attempt=1, epochs=2, value=1.0, seconds=24.0))
    hours = timeline_after(OPENED, PROPOSED, reached).node_hours()
    seconds = [3600 * part for part in (hours.allocated, hours.useful, hours.overhead, hours.idle)]
    assert seconds == pytest.approx([60, 24, 6, 30]) and hours.goodput == pytest.approx(24 / 60)
    hours = builder.timeline(now=200.0).node_hours()
    assert (hours.useful, hours.goodput) == (pytest.approx(100 / 3600), pytest.approx(0.5))


def test_trials_that_failed_are_no_goodput_and_what_ended_controllers_destroyed_is_lost_in_faults() -> None:
    diverged = (130.0, Failed(trial=0, attempt=1, kind="diverged", message="the loss is nan", epochs=0))
    hours = timeline_after(OPENED, PROPOSED, diverged).node_hours()
    assert 3600 * hours.failed == pytest.approx(30) and hours.goodput == 0 == hours.overhead == hours.faults
    launched = (110.0, Launched(trial=0, attempt=1, identity={"pid": 1}))
    cut = timeline_after(OPENED, PROPOSED, launched, (140.0, Opened(plan=SHORT, slots=("n1", "n2")))).node_hours()
    assert 3600 * cut.faults == pytest.approx(10) and cut.overhead == 0


@given(
    seed=st.integers(0, 2**16),
    slots=st.integers(1, 6),
    own=st.sampled_from([0.0, 0.2]),
    machine=st.sampled_from([0.0, 0.3]),
    bad=st.booleans(),
    stop=st.sampled_from([None, 300.0]),
    kill=st.sampled_from([None, 500.0]),
)
@with_settings(max_examples=25, deadline=None)
def test_every_second_of_every_node_is_accounted_for(
    seed: int, slots: int, own: float, machine: float, bad: bool, stop: Any, kill: Any
) -> None:
    player = play(SHORT, slots, seed=seed, own=own, machine=machine, bad=("n1",) if bad else ())
    if kill:
        player.session(kill_after=kill)
    if stop:
        player.session(stop_after=stop)
    player.session()
    builder = timeline_builder(player.events)
    timeline = builder.timeline()
    hours = timeline.node_hours()
    parts = hours.useful + hours.overhead + hours.failed + hours.faults + hours.out + hours.idle
    assert parts == pytest.approx(hours.allocated)
    assert all(-1e-9 <= span.useful <= span.seconds + 1e-9 for span in timeline.spans)
    for slot in timeline.slots:
        mine = sorted((span.started, span.ended) for span in timeline.spans if slot in span.slots)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))
        lost = [o for o in timeline.outages if o.node == slot]
        assert not any(o.started < ended and began < o.ended for o in lost for began, ended in mine)
    rows = {row.kind: row for row in timeline.faults()}
    failed = [event for _, event in player.events if isinstance(event, Failed)]
    saved = sum(span.outcome == "saved" for span in timeline.spans)
    assert sum(row.count for kind, row in rows.items() if kind != "cut") + saved == len(failed)
    assert all(row.to_sampler == 0 for kind, row in rows.items() if kind in MACHINE_FAULTS)


def status_of(folder: Path, *, terminal: bool = False, whole: bytes = b"", as_json: bool = False) -> str:
    """What is printed, watched where there is a whole journal that is written meanwhile."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, color_system=None)

    def sleep(_: float) -> None:
        (folder / "journal.jsonl").write_bytes(whole)

    show_status(folder, watch=bool(whole), as_json=as_json, console=console, sleep=sleep)
    return text.getvalue()


def shortened(folder: Path, lines: int) -> bytes:
    """Take the journal back to its first lines; gives what it was."""
    path = folder / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    return whole


def test_every_question_has_its_line(folder: Path) -> None:
    text = status_of(folder)
    words = "all trials done,40 of 40,epoch 18:,hidden_dim=,node-hours,seconds per epoch,never told to the sampler"
    assert [one for one in words.split(",") if one not in text] == []


TROUBLE = {"number": 3, "since": 1.7e9, "until": 1.7e9 + 30}


@pytest.mark.parametrize(
    ("changes", "row", "sentences"),
    [
        ({}, "sampler", [["tpe, since 6 can run at once"]]),
        # a sampler that fails leaves a random search, which nobody should take for anything else
        ({"stand_ins": 3}, "sampler", [["tpe"], ["3 trial(s), which were drawn at random", "sampler.log says why"]]),
        ({"trouble": None}, "machine", []),
        ({"trouble": TROUBLE}, "machine", [["since 2023-11-1", "(3 time(s) so far)", "no start before 2023-11-1"]]),
        ({"trouble": {**TROUBLE, "since": None, "until": None}}, "machine", [["in order; in trouble 3 time(s)"]]),
    ],
)
def test_a_status_has_sentences_on_its_sampler_and_machine(
    folder: Path, changes: dict[str, Any], row: str, sentences: list[list[str]]
) -> None:
    lines = status_rows(replace(campaign_status(folder), **changes)).get(row, [])
    assert len(lines) == len(sentences)
    assert all(word in line for line, words in zip(lines, sentences) for word in words)


@pytest.mark.parametrize(("slots", "name"), [(6, "tpe"), (64, "gp")])
def test_the_sampler_that_auto_became_is_named_with_its_reason(campaign: Campaign, slots: int, name: str) -> None:
    """What proposes depends on the machine, and nobody should have to read the source to know it."""
    folder = campaign(slots)
    [sentence] = status_rows(campaign_status(folder))["sampler"]
    assert sentence.startswith(f'{name}, since {slots} can run at once ("auto" is gp where 64 trials or more')
    assert campaign_history(folder).sampler == sentence
    shortened(folder, 0)
    assert campaign_status(folder).sampler.startswith("not chosen yet")


def test_a_laptop_has_workers(campaign: Campaign) -> None:
    folder = campaign(2, "worker-")
    shortened(folder, 20)
    text = status_of(folder)
    assert "of worker time" in text
    assert "workers busy" in text or "worker busy" in text


def test_watching_shows_what_is_new_and_ends_with_the_campaign(folder: Path) -> None:
    for terminal in (False, True):
        text = status_of(folder, terminal=terminal, whole=shortened(folder, 100))
        assert "no sign of life" in text and "all trials done" in text
    text = status_of(folder, as_json=True, whole=shortened(folder, 100))
    first, last = (json.loads(line) for line in text.splitlines())
    assert (first["status"], last["status"]) == ("silent", "finished")
    assert campaign_status(folder).trials == last["trials"]
