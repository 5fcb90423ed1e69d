"""Journals hold decisions: whatever rules come later, a campaign is read as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from world import Player, nodes

from hydragnn.base.errors import InputError
from hydragnn.hpo.journal import Journal, courses, replay
from hydragnn.hpo.scheduling import filling, health, scheduler
from hydragnn.hpo.scheduling.events import Opened, Plan, Tick
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.status.timeline import Timeline, TimelineBuilder

LATER_RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "nodes strike out at once, for long": lambda patch: (
        patch.setattr(health, "STRIKES", 1),
        patch.setattr(health, "QUARANTINE", 4000.0),
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
    course = course_of(path)
    assert replay(path) == player.state and player.state.closed
    for name, change in LATER_RULES.items():
        change(monkeypatch)
        assert replay(path) == player.state, name
    assert course_of(path) == course
    assert decided_again(player) != player.state, "these rules would have decided otherwise"


def course_of(path: Path) -> Timeline:
    builder = TimelineBuilder()
    for entry, state in courses(path):
        builder.observe(entry.event, state, entry.time)
    return builder.timeline()


def decided_again(player: Player) -> State:
    state = State()
    for now, event in player.events:
        decide(state, event, now)
    return state


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
    with Journal(path) as journal:
        journal.append(opening, 0.0, decide(State(), opening, 0.0).changes)
        journal.append(Tick(), 1.0, then)
    with pytest.raises(InputError, match=r"journal.jsonl: line 3: its changes do not fit the campaign before them"):
        replay(path)


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
