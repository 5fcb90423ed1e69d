"""Sizes while an allocation empties: who waits for slots that come back, and who goes on with more of them."""

import pytest
from world import transition

from hydragnn.hpo import State, decide
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Failed,
    Launched,
    Opened,
    Plan,
    Probed,
    Progressed,
    Propose,
    Proposed,
    Reached,
    Start,
)

SLOTS = tuple(f"n{number}" for number in range(10))


def after(state: State, now: float, *events: Event) -> tuple[State, list[Action]]:
    """The state after the events, and everything that was asked for, proposals left out."""
    asked: list[Action] = []
    for event in events:
        state, actions = transition(state, event, now)
        asked += [action for action in actions if not isinstance(action, Propose)]
    return state, asked


def starts(actions: list[Action]) -> list[tuple[int, int]]:
    return [(action.trial, len(action.slots)) for action in actions if isinstance(action, Start)]


def plan(trials: int) -> Plan:
    return Plan(trials=trials, rungs=(10, 20), reduction=1, finalists=trials, max_slots=10)


def test_a_trial_waits_for_nodes_that_are_being_probed_instead_of_starting_on_the_first_that_comes_back() -> None:
    state, actions = after(
        State(), 0.0, Opened(plan=plan(1), slots=SLOTS), Proposed(trial=0, values={"a": 1}, work=1000.0)
    )
    assert starts(actions) == [(0, 10)]
    state, actions = after(
        state,
        60.0,
        Launched(trial=0, attempt=1, identity={}),
        Failed(trial=0, attempt=1, kind="launch", message=""),
    )
    assert starts(actions) == []
    state, actions = after(state, 80.0, *(Probed(node=node, healthy=True) for node in SLOTS[:9]))
    assert starts(actions) == []
    state, actions = after(state, 81.0, Probed(node=SLOTS[9], healthy=True))
    assert starts(actions) == [(0, 10)]


def test_idle_slots_go_to_the_attempt_that_would_run_for_long() -> None:
    events = [Proposed(trial=trial, values={"a": trial}, work=1000.0) for trial in range(2)]
    state, actions = after(State(), 0.0, Opened(plan=plan(2), slots=SLOTS), *events)
    assert starts(actions) == [(0, 5), (1, 5)]
    launched = [Launched(trial=trial, attempt=1, identity={}) for trial in range(2)]
    early = Reached(trial=1, attempt=1, epochs=10, value=0.5, over=True, seconds=100.0)
    state, actions = after(state, 100.0, *launched, early)
    assert [action for action in actions if isinstance(action, Cancel)] == [
        Cancel(trial=0, attempt=1, reason="more slots")
    ]
    state, actions = after(state, 101.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=0))
    assert starts(actions) == [(0, 10)]
    assert state.trials[0].faults == 0


def test_an_attempt_that_ends_soon_keeps_its_slots() -> None:
    events = [Proposed(trial=trial, values={"a": trial}, work=10.0) for trial in range(2)]
    state, _ = after(State(), 0.0, Opened(plan=plan(2), slots=SLOTS), *events)
    launched = [Launched(trial=trial, attempt=1, identity={}) for trial in range(2)]
    early = Reached(trial=1, attempt=1, epochs=10, value=0.5, over=True, seconds=1.0)
    state, actions = after(state, 5.0, *launched, early)
    assert not [action for action in actions if isinstance(action, Cancel)]


def running_two(work: float) -> State:
    """Two trials of 20 epochs on five slots each."""
    plan = Plan(trials=2, rungs=(20,), max_slots=10)
    events = [Proposed(trial=trial, values={"a": trial}, work=work) for trial in range(2)]
    state, actions = after(State(), 0.0, Opened(plan=plan, slots=SLOTS), *events)
    assert starts(actions) == [(0, 5), (1, 5)]
    return after(state, 0.0, *(Launched(trial=trial, attempt=1, identity={}) for trial in range(2)))[0]


@pytest.mark.parametrize(("speed", "moves"), [(1.0, False), (0.2, True)], ids=["as expected", "five times as slow"])
def test_an_attempt_is_judged_by_its_own_pace_not_by_what_was_expected_of_it(speed: float, moves: bool) -> None:
    state = running_two(work=50.0)  # ten seconds an epoch
    for now in (60.0, 120.0, 190.0):
        state, actions = after(state, now, Progressed(trial=0, attempt=1, epochs=speed * now / 10))
        assert actions == []
    state, actions = after(state, 195.0, Reached(trial=1, attempt=1, epochs=20, value=0.5, over=True, seconds=195.0))
    assert [action.trial for action in actions if isinstance(action, Cancel)] == [0] * moves


def test_progress_of_an_attempt_that_is_over_changes_nothing() -> None:
    state = running_two(work=50.0)
    for progress in (Progressed(trial=0, attempt=2, epochs=1.0), Progressed(trial=7, attempt=1, epochs=1.0)):
        assert decide(state, progress, 60.0) == (None, ())


@pytest.mark.parametrize(("left", "waits"), [(10.0, True), (200.0, False)])
def test_nobody_waits_for_longer_than_a_move_to_more_slots_costs(left: float, waits: bool) -> None:
    """One of two trials must begin anew; the other leaves its five slots soon, or late."""
    lost = Failed(trial=1, attempt=1, kind="preempted", message="", epochs=0)
    _, actions = after(running_two(work=250.0), 1000.0 - left, lost)
    assert starts(actions) == ([] if waits else [(1, 5)])


def test_where_nodes_differ_a_trial_has_nodes_of_one_size_and_its_work_counts_by_their_speed() -> None:
    nodes, sizes = ("n1", "n2", "n3", "n4"), {"n1": 0.5, "n2": 1.0, "n3": 0.5, "n4": 1.0}
    plan = Plan(trials=2, rungs=(10, 20), reduction=1, finalists=2, min_slots=2, max_slots=2, sizes=sizes)
    events = [Proposed(trial=trial, values={"a": trial}) for trial in range(2)]
    state, actions = after(State(), 0.0, Opened(plan=plan, slots=nodes), *events)
    assert [action.slots for action in actions if isinstance(action, Start)] == [("n2", "n4"), ("n1", "n3")]
    launched = [Launched(trial=trial, attempt=1, identity={}) for trial in range(2)]
    ends = [Reached(trial=0, attempt=1, epochs=10, value=0.5, seconds=100.0)]
    ends.append(Reached(trial=1, attempt=1, epochs=10, value=0.5, seconds=200.0))  # on nodes of half the speed
    state, _ = after(state, 200.0, *launched, *ends)
    assert [state.trials[trial].work for trial in range(2)] == [20.0, 20.0]  # seconds per epoch on a fast node
