"""Journals hold decisions: whatever rules come later, a campaign is read as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from immutables import Map
from msgspec.structs import replace
from played import Player, nodes

from hydragnn.base.errors import InputError
from hydragnn.hpo.journal import Entry, Journal, read_entries, replay
from hydragnn.hpo.records import _timeline_builder
from hydragnn.hpo.scheduling import filling, health, scheduler
from hydragnn.hpo.scheduling.changes import changes_between, whole_state
from hydragnn.hpo.scheduling.events import Opened, Plan, Tick
from hydragnn.hpo.scheduling.replay import Replay
from hydragnn.hpo.scheduling.scheduler import State, transition

ARCHIVE = Path(__file__).resolve().parents[1] / "archive"
LATER_RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "nodes strike out at once, for long": lambda patch: (
        patch.setattr(health, "STRIKES", 1),
        patch.setattr(health, "BACK_OFF", 4000.0),
    )[0],
    "new trials first": lambda patch: patch.setattr(filling, "ready_trials", new_ones_first),
    "every trial gets all it can use": lambda patch: patch.setattr(
        filling, "fewest_slots", lambda _load, _s, _l, most: most
    ),
    "a first failure ends all hope": lambda patch: patch.setattr(scheduler, "HOPELESS", 1),
    "nobody is tried again": lambda patch: patch.setattr(scheduler, "MACHINE_FAULTS", frozenset()),
}


def new_ones_first(state: State, given: Callable[[State], Any] = filling.ready_trials) -> Any:
    """Trials in another order."""
    return sorted(given(state), key=lambda number: -1 if number is None else number)


def campaign(seed: int) -> Player:
    """A campaign with faults of machines and its own, a bad node, a killed and a stopped controller."""
    plan = Plan(trials=40, rungs=(1, 3, 9), finalists=4, max_slots=1 + seed % 4)
    player = Player(plan, nodes(12), seed=seed, own=0.08, machine=0.12, bad=frozenset({"n3"}))
    player.session(kill_after=400.0)
    player.session(stop_after=300.0, slots=nodes(10))
    player.session()
    return player


@pytest.mark.parametrize("seed", range(4))
def test_five_later_rules_leave_every_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    player, path = campaign(seed), tmp_path / "journal.jsonl"
    player.write(path)
    course = _timeline_builder(path).timeline()
    assert replay(path) == player.state and player.state.closed
    for name, change in LATER_RULES.items():
        change(monkeypatch)
        assert replay(path) == player.state, name
    assert _timeline_builder(path).timeline() == course
    assert decided_again(player) != player.state, "these rules would have decided otherwise"


@pytest.mark.parametrize("seed", range(4))
def test_a_status_reads_all_of_a_campaign_but_its_processes(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal.jsonl"
    campaign(seed).write(path)
    whole, brief = Replay(), Replay(brief=True)
    for entry in read_entries(path):
        assert entry.then is not None
        whole.apply(entry.event, entry.then)
        brief.apply(entry.event, entry.then)
        state = whole.state
        trials = {number: replace(trial, identity=None) for number, trial in state.trials.items()}
        assert brief.state == replace(state, trials=Map(trials))


def decided_again(player: Player) -> State:
    state = State()
    for now, event in player.events:
        state, _ = transition(state, event, now)
    return state


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_without_decisions_holds_the_whole_state_once_a_controller_has_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    player, path = campaign(seed), tmp_path / "journal.jsonl"
    half = len(player.events) // 2
    with Journal(path) as journal:
        journal.extend(Entry(now, event) for now, event in player.events[:half])
    before, now = replay(path), player.events[half][0]
    opening = Opened(plan=player.plan, slots=player.slots)
    after, _ = transition(before, opening, now)
    with Journal(path) as journal:
        assert journal.undecided
        journal.append(opening, now, whole_state(opening, after))
        later, _ = transition(after, Tick(), now + 100.0)
        journal.append(Tick(), now + 100.0, changes_between(after, Tick(), later))
    assert replay(path) == later
    for change in LATER_RULES.values():
        change(monkeypatch)
    assert replay(path) == later
    with Journal(path) as journal:
        assert not journal.undecided


def test_a_missing_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    campaign(0).write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:30], *lines[31:]]))
    with pytest.raises(InputError, match="line 31 was number 32 when it was written"):
        replay(path)


def test_a_journal_of_a_newer_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    with monkeypatch.context() as patch:
        for module in ("journal", "lines"):
            patch.setattr(f"hydragnn.hpo.{module}.FORMAT", 4)
        patch.setattr("hydragnn.hpo.journal.__version__", "7.1")
        campaign(0).write(path)
    with pytest.raises(InputError, match=r"line 1 was written by a newer program \(7\.1\); update this one"):
        replay(path)


@pytest.mark.parametrize(
    "then",
    [
        {"trials": {"0": {"results": ["a"]}}},
        {"trials": {"7": None}},
        {"trials": {"0": {"mood": 1}}},
        {"waiting": [0, 1]},
        {"waiting": 3},
        {"free": {"gone": ["nowhere"], "came": [], "head": 0, "tail": 1}},
        {"nodes": {"n1": {"status": "tired"}}},
        {"later": 1},
        {"later": 1, "trials": {"0": {"status": "asked"}}},
        {"trials": {"0": {"identity": 3}}},
        {"free": {"gone": [], "came": [["a", "b"]], "head": 0, "tail": 1}},
        {"trials": []},
    ],
    ids=str,
)
def test_changes_that_do_not_fit_are_refused(tmp_path: Path, then: dict[str, Any]) -> None:
    path, opening = tmp_path / "journal.jsonl", Opened(plan=Plan(trials=1, rungs=(1,)), slots=("n1",))
    (after, _), brief = transition(State(), opening, 0.0), Replay(brief=True)
    with Journal(path) as journal:
        journal.append(opening, 0.0, changes_between(State(), opening, after))
        journal.append(Tick(), 1.0, then)
    with pytest.raises(
        InputError, match=r"journal.jsonl: (line 3|trial 0): its changes do not fit the campaign before them"
    ):
        replay(path)
    with pytest.raises(InputError, match="its changes do not fit the campaign before them"):
        for entry in read_entries(path):
            brief.apply(entry.event, entry.then or {})
            assert brief.state


def test_a_journal_of_format_2_tells_the_same_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = json.loads((ARCHIVE / "journal-v2.json").read_text())
    for change in LATER_RULES.values():
        change(monkeypatch)
    path = ARCHIVE / "journal-v2.jsonl"
    assert {entry.then is None for entry in read_entries(path)} == {False}
    assert summary(replay(path)) == expected


def summary(state: State) -> dict[str, Any]:
    """What a campaign came to, as plain JSON."""
    return {
        "ending": state.ending,
        "spent": state.spent,
        "best": state.best.number if state.best else None,
        "nodes": {name: [node.status, len(node.strikes), node.spells] for name, node in sorted(state.health.items())},
        "trials": {
            str(number): [trial.status, list(trial.results), trial.attempt, trial.micro_batches, trial.seconds]
            for number, trial in sorted(state.trials.items())
        },
    }
