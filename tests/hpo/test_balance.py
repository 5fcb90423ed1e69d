"""Sizes while an allocation empties: who starts on what is free, and who goes on with more."""

import pytest
from world import after

from hydragnn.hpo import State, decide
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Failed,
    Launched,
    Opened,
    Plan,
    Progressed,
    Proposed,
    Reached,
    Start,
)

SLOTS = tuple(f"n{number}" for number in range(10))


def after(state: State, now: float, *events: Event) -> list[Action]:
    """Let events happen; everything that is asked for then."""
    return [action for event in events for action in transition(state, event, now)[1]]


def starts(actions: list[Action]) -> list[tuple[int, int]]:
    return [(action.trial, len(action.slots)) for action in actions if isinstance(action, Start)]


def running(trials: int, work: float, rungs: tuple[int, ...] = (10, 20)) -> State:
    """Trials that share ten slots; with ``rungs`` all of them are finalists."""
    state = State()
    plan = Plan(trials=trials, rungs=rungs, reduction=1, finalists=trials, max_slots=10)
    proposed = [Proposed(trial=trial, values={"a": trial}, work=work) for trial in range(trials)]
    actions = after(state, 0.0, Opened(plan=plan, slots=SLOTS), *proposed)
    assert starts(actions) == [(trial, 10 // trials) for trial in range(trials)]
    after(state, 0.0, *(Launched(trial=trial, attempt=1, identity={}) for trial in range(trials)))
    return state


@pytest.mark.parametrize(
    ("work", "now", "moves"), [(1000.0, 100.0, True), (10.0, 5.0, False)], ids=["runs for long", "ends soon"]
)
def test_idle_slots_go_to_an_attempt_that_would_run_for_long(work: float, now: float, moves: bool) -> None:
    state = running(2, work)
    early = Reached(trial=1, attempt=1, epochs=10, value=0.5, over=True, seconds=now)
    cancels = [action for action in after(state, now, early) if isinstance(action, Cancel)]
    assert cancels == [Cancel(trial=0, attempt=1, reason="more slots")] * moves
    if moves:
        actions = after(state, now + 1, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=0))
        assert (starts(actions), state.trials[0].faults) == ([(0, 10)], 0)


@pytest.mark.parametrize(("speed", "moves"), [(1.0, False), (0.2, True)], ids=["as expected", "five times as slow"])
def test_an_attempt_is_judged_by_its_own_pace_not_by_what_was_expected_of_it(speed: float, moves: bool) -> None:
    state = running(2, work=50.0, rungs=(20,))  # ten seconds an epoch
    for now in (60.0, 120.0, 190.0):
        assert after(state, now, Progressed(trial=0, attempt=1, epochs=speed * now / 10)) == []
    actions = after(state, 195.0, Reached(trial=1, attempt=1, epochs=20, value=0.5, over=True, seconds=195.0))
    assert [action.trial for action in actions if isinstance(action, Cancel)] == [0] * moves


@pytest.mark.parametrize(("trial", "attempt"), [(0, 2), (7, 1)])
def test_progress_of_an_attempt_that_is_over_changes_nothing(trial: int, attempt: int) -> None:
    state = running(2, work=50.0, rungs=(20,))
    assert decide(state, Progressed(trial=trial, attempt=attempt, epochs=1.0), 60.0) == (None, ())


def test_a_trial_that_begins_anew_takes_the_slots_that_are_free() -> None:
    state, lost = running(2, work=250.0, rungs=(20,)), Failed(trial=1, attempt=1, kind="preempted", message="")
    assert starts(after(state, 990.0, lost)) == [(1, 5)]


def test_where_nodes_differ_a_trial_has_nodes_of_one_size_and_its_work_counts_by_their_speed() -> None:
    state, nodes, sizes = State(), ("n1", "n2", "n3", "n4"), {"n1": 0.5, "n2": 1.0, "n3": 0.5, "n4": 1.0}
    plan = Plan(trials=2, rungs=(10, 20), reduction=1, finalists=2, min_slots=2, max_slots=2, sizes=sizes)
    proposed = (Proposed(trial=trial, values={"a": trial}) for trial in range(2))
    actions = after(state, 0.0, Opened(plan=plan, slots=nodes), *proposed)
    assert [action.slots for action in actions if isinstance(action, Start)] == [("n2", "n4"), ("n1", "n3")]
    seconds = (100.0, 200.0)  # the second on nodes of half the speed
    ends = (Reached(trial=k, attempt=1, epochs=10, value=0.5, seconds=s) for k, s in enumerate(seconds))
    after(state, 200.0, *(Launched(trial=trial, attempt=1, identity={}) for trial in range(2)), *ends)
    assert [state.trials[trial].work for trial in range(2)] == [20.0, 20.0]  # seconds per epoch on a fast node
