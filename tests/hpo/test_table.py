"""What the user sees: a table on a terminal, plain lines elsewhere, and a forecast that the rungs justify."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from world import after

from hydragnn.hpo import CampaignView, State
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Plan, Probed, Proposed, Reached, Stopping, Tick
from hydragnn.hpo.status.view import event_line
from hydragnn.record import Cost, RunRecord, write_record

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
