"""Faults of every kind: no trial lost, none run or told twice, no slot given twice, no budget exceeded, no dead end."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from clockwork import Clockwork
from hypothesis import given, settings
from hypothesis import strategies as st
from world import after

from hydragnn.hpo.scheduling.events import (
    Ending,
    Failed,
    Opened,
    Plan,
    Probe,
    Probed,
    Propose,
    Proposed,
    Reached,
    Start,
    Tick,
)
from hydragnn.hpo.scheduling.health import QUARANTINE
from hydragnn.hpo.scheduling.node_health import NodeStatus
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.scheduling.state import TrialStatus
from hydragnn.hpo.scheduling.trouble import LONGEST


def test_five_thousand_faults_violate_nothing_and_reach_every_status_and_ending(root: Path) -> None:
    """In a process without the checks of shapes, which take most of the time."""
    script = root / "tests" / "benchmarks" / "million_faults.py"
    command = [sys.executable, str(script), "--faults", "5000", "--processes", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    seen = Counter(json.loads(ended.stdout))
    assert seen["faults"] >= 5000
    kinds = (("trial", TrialStatus), ("node", NodeStatus), ("ending", Ending))
    names = [f"{word} {name}" for word, kind in kinds for name in get_args(kind)]
    names += [f"outcome {outcome}" for outcome in ("finished", "pruned", "failed", "lost")]
    assert [name for name in names if not seen[name]] == []


@pytest.mark.parametrize("passes_probe", [True, False], ids=["passes its probes", "fails its probes"])
@pytest.mark.parametrize("names_suspects", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_bad_node_disturbs_two_trials_at_most(passes_probe: bool, names_suspects: bool, size: int) -> None:
    plan = Plan(trials=200, rungs=(1, 3), min_slots=size, max_slots=size, retries=2)
    campaign = Clockwork(plan, 24, bad=("n5",), passes_probe=passes_probe, names_suspects=names_suspects)
    assert len(campaign.disturbed) <= (2 if passes_probe else 1)
    assert campaign.outcomes["lost"] == campaign.outcomes["failed"] == 0
    assert campaign.state.ending == "finished"


def test_nodes_that_worked_with_a_bad_one_stay_in_use() -> None:
    plan = Plan(trials=60, rungs=(1, 3), min_slots=3, max_slots=3)
    campaign = Clockwork(plan, 9, bad=("n4",), names_suspects=False)
    out = [name for name, node in campaign.state.health.items() if node.status != "pool"]
    assert out == ["n4"]
    assert len(campaign.disturbed) == 2
    used = Counter(slot for _, start in campaign.starts[-9:] for slot in start.slots)
    assert set(used) == {f"n{k}" for k in range(9) if k != 4}


def test_a_node_that_only_fails_its_probe_comes_back_when_it_is_well() -> None:
    state = State()
    after(state, 0.0, Opened(plan=Plan(trials=3, rungs=(1,)), slots=("a", "b")))
    after(state, 0.0, Probed(node="b", healthy=False, message="ECC errors"))
    assert list(state.free) == ["a"]
    for now in (QUARANTINE, 2 * QUARANTINE):
        assert transition(state, Tick(), now - 1)[1] == ()
        actions = after(state, now, Tick())
        assert actions == (Probe(node="b"),)
        after(state, now, Probed(node="b", healthy=False))
    actions = after(state, 1000.0, Tick())
    assert actions == (Probe(node="b"),)
    after(state, 1001.0, Probed(node="b", healthy=True))
    assert list(state.free) == ["a", "b"]


def test_a_sick_node_in_use_keeps_its_trial_and_leaves_when_that_ends() -> None:
    state = begun(Plan(trials=1, rungs=(1, 2)), ("a", "b"))
    assert state.trials[0].slots == ("a",)
    actions = after(state, 1.0, Probed(node="a", healthy=False))
    assert not actions
    actions = after(state, 2.0, Reached(trial=0, attempt=1, epochs=1, value=0.5))
    assert state.health["a"].held == ("a",)
    assert "a" not in state.free


def test_preemption_strikes_nobody() -> None:
    state = begun(Plan(trials=1, rungs=(1,)), ("a",))
    actions = after(state, 1.0, Failed(trial=0, attempt=1, kind="preempted", message=""))
    assert not state.health
    assert [type(action) for action in actions] == [Start]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_campaign_in_which_every_node_is_out_before_anything_worked_is_hopeless(nodes: int) -> None:
    campaign = Clockwork(Plan(trials=9, rungs=(1,), retries=99), nodes, bad=("n0", "n1", "n2"))
    assert campaign.state.ending == "hopeless"
    now = campaign.world.now
    assert now < 60.0 if nodes == 1 else now >= LONGEST, "several may be the victims of a storm"
    assert not campaign.outcomes


def test_the_only_node_comes_back_when_its_probe_is_good_however_often_it_failed() -> None:
    state = begun(Plan(trials=2, rungs=(1,), retries=9), ("a",))
    after(state, 0.0, Reached(trial=0, attempt=1, epochs=1, value=0.5))
    after(state, 0.0, Proposed(trial=1, values={"x": 1}))
    for attempt in (1, 2):
        after(state, 1.0, Failed(trial=1, attempt=attempt, kind="lost_node", message=""))
        after(state, 100.0, Tick())
        actions = after(state, 100.0, Probed(node="a", healthy=True))
        assert [type(action) for action in actions] == [Start]


def test_another_controller_forgets_nodes_that_are_gone_and_keeps_the_strikes_of_the_others() -> None:
    state = begun(Plan(trials=2, rungs=(1,), min_slots=2, max_slots=2), ("a", "b", "c", "d"))
    after(state, 1.0, Failed(trial=0, attempt=1, kind="lost_node", message=""))
    assert sorted(state.health) == ["a", "b"]
    actions = after(state, 2.0, Opened(plan=state.plan, slots=("b", "c", "e")))
    assert [action for action in actions if isinstance(action, Probe)] == [Probe(node="b")]
    assert sorted(state.health) == ["b"]
    assert len(state.health["b"].strikes) == 1


def test_a_retry_goes_on_from_the_checkpoint_that_the_failed_attempt_left() -> None:
    state = begun(Plan(trials=1, rungs=(9,)), ("a", "b"))
    after(state, 1.0, Failed(trial=0, attempt=1, kind="lost_node", message="", epochs=5))
    assert state.trials[0].epochs == 5
    assert state.trials[0].status == "running"
    assert state.trials[0].slots == ("b",)


def test_retries_count_from_the_last_rung_that_was_passed() -> None:
    state = begun(Plan(trials=1, rungs=(1, 2, 3), reduction=1, retries=1), ("a",))
    for rung in range(3):
        attempt = 2 * rung + 1
        after(state, 1.0, Failed(trial=0, attempt=attempt, kind="preempted", message=""))
        after(state, 1.0, Reached(trial=0, attempt=attempt + 1, epochs=rung + 1, value=0.5))
    assert state.trials[0].status == "finished"


@pytest.mark.parametrize(
    "plan, deadline, ending",
    [
        (Plan(trials=99, rungs=(4,), max_seconds=500.0), None, "hours"),
        (Plan(trials=99, rungs=(4,), max_node_seconds=1500.0), None, "node_hours"),
        (Plan(trials=99, rungs=(4,), max_seconds=900.0), 500.0, "walltime"),
    ],
    ids=["hours", "node hours", "walltime"],
)
def test_what_runs_is_saved_before_a_budget_ends_and_nothing_starts_that_cannot_save_an_epoch(
    plan: Plan, deadline: float | None, ending: str
) -> None:
    hours = 100.0 if deadline is None else deadline / 3600
    campaign = Clockwork(plan, 3, work=lambda trial: 37.0, hours=hours)
    assert campaign.state.ending == ending
    assert campaign.world.now <= 500.0
    assert all(now + 37.0 <= 490.0 for now, _ in campaign.starts)
    assert not campaign.outcomes["failed"] + campaign.outcomes["lost"]
    assert all(trial.faults == 0 for trial in campaign.state.trials.values())


def test_a_campaign_that_can_save_no_more_epoch_leaves_at_once() -> None:
    campaign = Clockwork(Plan(trials=9, rungs=(1,)), 1, work=lambda trial: 60.0, hours=100 / 3600)
    assert campaign.state.ending == "walltime"
    assert [start.trial for _, start in campaign.starts] == [0]
    assert campaign.outcomes["finished"] == 1


def test_time_that_passes_is_written_down_so_that_a_killed_controller_has_spent_it() -> None:
    state = begun(Plan(trials=1, rungs=(1,), max_seconds=300.0), ("a",))
    for second in range(0, 200, 10):
        after(state, float(second), Tick())
    after(state, 10_000.0, Opened(plan=state.plan, slots=("a",)))
    assert 190.0 <= reopened.elapsed(10_000.0) <= 250.0
    assert decide(state, Tick(), 190.5).changes is None, "nothing but a little time passed"


def test_the_longest_of_the_waiting_trials_goes_first() -> None:
    state = begun(Plan(trials=4, rungs=(1,)), tuple("abcd"), work=(1.0, 9.0, 5.0, 3.0))
    actions = after(state, 1.0, Opened(plan=state.plan, slots=("a", "b")))
    assert [action.trial for action in actions if isinstance(action, Start)] == [1, 2]


@settings(max_examples=12, deadline=None)
@given(works=st.lists(st.floats(1.0, 30.0), min_size=3, max_size=15), per_trial=st.integers(4, 30))
def test_a_final_training_ends_for_all_at_once(works: list[float], per_trial: int) -> None:
    slots = per_trial * len(works)
    plan = Plan(trials=len(works), rungs=tuple(range(4, 44, 4)), reduction=1, max_slots=slots)
    campaign = Clockwork(plan, slots, work=lambda trial: works[trial])
    assert campaign.outcomes["finished"] == len(works)
    bound = 40 * sum(works) / slots
    assert sum(campaign.world.ledger.useful.values()) == pytest.approx(40 * sum(works))
    assert campaign.world.now <= 1.0 + 1.15 * bound + 40 * max(works) / slots


def test_trials_grow_onto_idle_nodes_at_the_end_of_their_segment() -> None:
    plan = Plan(trials=2, rungs=(1, 2, 3, 4, 5, 6), reduction=1, max_slots=8, finalists=0)
    campaign = Clockwork(plan, 8, work=lambda trial: (1.0, 40.0)[trial])
    sizes = [len(start.slots) for _, start in campaign.starts if start.trial == 1]
    assert sizes[0] < sizes[-1] == 8


def begun(plan: Plan, slots: tuple[str, ...], work: tuple[float, ...] = ()) -> State:
    """A campaign in which as many trials run as there is room for."""
    state, actions = transition(State(), Opened(plan=plan, slots=slots), 0.0)
    while proposals := [action for action in actions if isinstance(action, Propose)]:
        actions = ()
        for action in proposals:
            known = work[action.trial] if work else None
            event = Proposed(trial=action.trial, values={"x": action.trial}, work=known)
            state, more = transition(state, event, 0.0)
            actions = (*actions, *more)
    return state
