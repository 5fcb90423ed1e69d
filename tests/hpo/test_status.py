"""How a campaign stands is read from its journal while it grows; a table on a terminal, plain lines elsewhere."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clockwork import after, play
from rich.console import Console

from hydragnn.hpo import CampaignSettings, CampaignStatus, CampaignView, Follower, State, campaign_status
from hydragnn.hpo.preflight import write_settings
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Plan, Probed, Proposed, Reached, Stopping, Tick
from hydragnn.hpo.scheduling.state import Trouble
from hydragnn.hpo.status.facts import forecast, node_counts
from hydragnn.hpo.status.view import event_line
from hydragnn.record import Cost, RunRecord, write_record

PLAN = Plan(trials=40, rungs=(2, 6, 18), finalists=2, max_slots=2, max_node_seconds=90_000.0)


@pytest.fixture(scope="module")
def player() -> Any:
    """A campaign on six nodes, one of them bad, with faults."""
    player = play(PLAN, 6, seed=3, own=0.15, machine=0.08, bad=("n3",), work=30.0)
    player.session(stop_after=1500)
    player.session()
    return player


@pytest.fixture
def folder(player: Any, settings: Callable[..., CampaignSettings], tmp_path: Path) -> Path:
    """The folder of that campaign."""
    place = tmp_path / "campaign"
    place.mkdir()
    write_settings(settings(trials=40, rungs=[2, 6]), [], place)
    player.write(place / "journal.jsonl")
    return place


def test_the_status_agrees_with_the_campaign(folder: Path, player: Any) -> None:
    status = campaign_status(folder)
    state = player.state
    assert status.status == "finished"
    assert (status.planned, sum(status.trials.values())) == (40, len(state.trials))
    assert status.trials["finished"] == sum(trial.status == "finished" for trial in state.trials.values())
    assert [rung.reached for rung in status.rungs] == [
        sum(len(trial.results) > level for trial in state.trials.values()) for level in range(3)
    ]
    assert status.best is not None
    assert (status.best.trial, status.best.value) == (state.best.number, state.best.value)
    assert status.goodput == status.node_hours.goodput
    assert 0.2 < (status.goodput or 0) < 1
    budgets = {budget.name: budget for budget in status.budgets}
    assert budgets["node-hours"].used == pytest.approx(status.node_hours.allocated)
    assert budgets["node-hours"].limit == 25.0
    assert {row.kind for row in status.faults} >= {"launch", "diverged"}
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


def test_a_machine_in_trouble_is_told_with_since_when_and_how_often(folder: Path) -> None:
    follower = Follower(folder)
    follower.update()
    assert follower.status().trouble is None
    state = follower.builder.state
    state.trouble = Trouble(number=2, since=50.0, until=80.0)
    assert follower.status().trouble == {"number": 2, "since": 50.0, "until": 80.0}
    state.trouble = Trouble(number=2)
    assert follower.status().trouble == {"number": 2, "since": None, "until": None}
    json.dumps(follower.status().to_json(), allow_nan=False)


def test_the_cost_model_says_how_wrong_it_is(folder: Path) -> None:
    costs = campaign_status(folder).costs
    assert costs.measured > 20
    assert costs.error is not None
    assert 0.02 < costs.error < 0.5  # the planted law has ten per cent of noise, which nothing can predict


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
def test_the_forecast_is_the_budget_that_ends_first_or_the_epochs_that_the_rungs_will_ask_for(
    limit: float | None, by: str, seconds: float
) -> None:
    plan = Plan(trials=9, rungs=(1, 3, 9), max_seconds=limit, grace=5.0)
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=("n1",)))
    assert forecast(state, 5.0) is None
    after(state, 0.0, Proposed(trial=0, values={"model.hidden_dim": 32}))
    after(state, 10.0, Reached(trial=0, attempt=1, epochs=1, value=0.75))
    # 9 trials to epoch 1, 3 to epoch 3, 1 to epoch 9: 9 + 6 + 6 = 21 epochs, one done in ten seconds
    found = forecast(state, 10.0)
    assert found is not None
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
        "10 s: running; trials 2 of 9: 1 running, 1 at a rung; best 0.75 (trial 0); 1 worker busy, 1 idle; goodput 100 %; about 3.3 min left",
        "trial 1: launch, tried again: exit code 1: ImportError: no torch",
        "trial 1: diverged, given up: loss is not finite",
        "trial 2: hidden_dim=8 learning_rate=0.01",
        "SIGINT: 1 trial(s) save their state",
    ]


def test_a_stop_is_told_also_while_no_trial_runs() -> None:
    state = State()
    after(state, 0.0, EVENTS[0][0])
    assert not state.running
    assert event_line(state, Stopping(reason="SIGTERM")) == "SIGTERM: no trial is running"


def test_on_a_terminal_the_table_shows_progress_and_speed(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "0002"
    cost = Cost(graphs_per_second=1234.0)
    write_record(RunRecord(config={}, config_hash="", data_hash="", seed=0, epochs=0, cost=cost), folder)
    text = shown(tmp_path, terminal=True)
    assert "1234" in text
    assert "running" in text
    assert "hidden_dim=8" in text
    assert "best 0.75 (trial 0)" in text


def on_nodes() -> list[tuple[Event, float]]:
    """Two trials on three nodes, of which one is lost."""
    return [
        (Opened(plan=Plan(trials=2, rungs=(1, 3)), slots=("n1", "n2", "n3")), 0.0),
        (Proposed(trial=0, values={"model.hidden_dim": 32}), 0.0),
        (Proposed(trial=1, values={"model.hidden_dim": 64}), 0.0),
        (Failed(trial=0, attempt=1, kind="lost_node", message="n1 is gone", suspects=("n1",)), 10.0),
        (Probed(node="n1", healthy=False), 10.0),
        (Reached(trial=1, attempt=1, epochs=1, value=0.5, seconds=18.0), 20.0),
    ]


def test_beyond_one_machine_the_summary_counts_nodes_and_goodput(tmp_path: Path) -> None:
    lines = shown(tmp_path, on_nodes()).splitlines()
    assert lines[0] == "2 trials on 3 node(s), rungs 1, 3"
    # n2 trained 18 s for trial 1, trial 0 runs again on n3 since 10 s: 28 of 60 node-seconds
    assert "1 node busy, 1 idle, 1 quarantined; goodput 47 %" in lines[-1]


def test_however_fast_events_come_the_table_is_drawn_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    clock = iter(0.01 * tick for tick in range(10_000))
    view = CampaignView(tmp_path, Console(file=io.StringIO(), force_terminal=True), clock=lambda: next(clock))
    monkeypatch.setattr("hydragnn.hpo.status.view.status_table", lambda *_: drawn.append(1) or "")
    state = State()
    after(state, 0.0, EVENTS[0][0])
    with view:
        for _ in range(1000):  # ten seconds
            view(state, Tick(), 1.0)
    assert 18 <= len(drawn) <= 22
