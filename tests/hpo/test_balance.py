"""Sizes while an allocation empties: who waits for places that come back, and who goes on with more of them."""

from hydragnn.hpo import State, step
from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Failed,
    Launched,
    Opened,
    Plan,
    Probed,
    Propose,
    Proposed,
    Reached,
    Start,
)

PLACES = tuple(f"n{number}" for number in range(10))


def told(state: State, now: float, *events: Event) -> tuple[State, list[Action]]:
    """The state after the events, and everything that was asked for, proposals left out."""
    asked: list[Action] = []
    for event in events:
        state, actions = step(state, event, now)
        asked += [action for action in actions if not isinstance(action, Propose)]
    return state, asked


def starts(actions: list[Action]) -> list[tuple[int, int]]:
    return [(action.trial, len(action.places)) for action in actions if isinstance(action, Start)]


def plan(trials: int) -> Plan:
    return Plan(trials=trials, rungs=(10, 20), reduction=1, finalists=trials, max_places=10)


def test_a_trial_waits_for_nodes_that_are_being_probed_instead_of_starting_on_the_first_that_comes_back() -> None:
    state, actions = told(
        State(), 0.0, Opened(plan=plan(1), places=PLACES), Proposed(trial=0, values={"a": 1}, work=1000.0)
    )
    assert starts(actions) == [(0, 10)]
    state, actions = told(
        state,
        60.0,
        Launched(trial=0, attempt=1, identity={}),
        Failed(trial=0, attempt=1, kind="launch", message=""),
    )
    assert starts(actions) == []
    state, actions = told(state, 80.0, *(Probed(node=node, healthy=True) for node in PLACES[:9]))
    assert starts(actions) == []
    state, actions = told(state, 81.0, Probed(node=PLACES[9], healthy=True))
    assert starts(actions) == [(0, 10)]


def test_idle_places_go_to_the_attempt_that_would_run_for_long() -> None:
    events = [Proposed(trial=trial, values={"a": trial}, work=1000.0) for trial in range(2)]
    state, actions = told(State(), 0.0, Opened(plan=plan(2), places=PLACES), *events)
    assert starts(actions) == [(0, 5), (1, 5)]
    launched = [Launched(trial=trial, attempt=1, identity={}) for trial in range(2)]
    early = Reached(trial=1, attempt=1, epochs=10, value=0.5, over=True, seconds=100.0)
    state, actions = told(state, 100.0, *launched, early)
    assert [action for action in actions if isinstance(action, Cancel)] == [
        Cancel(trial=0, attempt=1, reason="more places")
    ]
    state, actions = told(state, 101.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=0))
    assert starts(actions) == [(0, 10)]
    assert state.trials[0].faults == 0


def test_an_attempt_that_ends_soon_keeps_its_places() -> None:
    events = [Proposed(trial=trial, values={"a": trial}, work=10.0) for trial in range(2)]
    state, _ = told(State(), 0.0, Opened(plan=plan(2), places=PLACES), *events)
    launched = [Launched(trial=trial, attempt=1, identity={}) for trial in range(2)]
    early = Reached(trial=1, attempt=1, epochs=10, value=0.5, over=True, seconds=1.0)
    state, actions = told(state, 5.0, *launched, early)
    assert not [action for action in actions if isinstance(action, Cancel)]
