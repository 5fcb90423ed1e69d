"""Slow nodes are found by the pace of what runs on them and by their probes; a machine that is slow as a whole moves nobody."""

from dataclasses import replace

import pytest

from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Event,
    Failed,
    Opened,
    Plan,
    Probe,
    Probed,
    Progressed,
    Proposed,
    Tick,
)
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.scheduling.slowness import REASON

PLAN = Plan(trials=4, rungs=(100,), min_slots=2, max_slots=2, moves=True)
Looks = list[tuple[float, tuple[float, float, float, float]]]
"""Times, with the epochs of all four attempts; ten seconds an epoch are usual."""
USUAL: Looks = [(60.0, (6, 6, 6, 6)), (360.0, (36, 36, 36, 36))]
AT_FIRST: Looks = [(120.0, (4, 12, 12, 12)), (240.0, (8, 24, 24, 24)), (480.0, (16, 48, 48, 48))]
LATER: Looks = [*USUAL, (660.0, (46, 66, 66, 50)), (960.0, (56, 96, 96, 66))]  # one at a third of its pace, one at half


def happen(state: State, now: float, *events: Event) -> list[Action]:
    return [action for event in events for action in decide(state, event, now).actions]


def begun(plan: Plan = PLAN) -> State:
    """Four attempts on two nodes each."""
    state = State()
    proposed = (Proposed(trial=trial, values={"x": trial}, work=20.0) for trial in range(4))
    happen(state, 0.0, Opened(plan=plan, slots=tuple(f"n{number}" for number in range(8))), *proposed)
    return state


def cancels(state: State, looks: Looks) -> list[int]:
    """How many attempts move after each look."""
    counts = []
    for now, epochs in looks:
        shown = (Progressed(trial=trial, attempt=1, epochs=float(reached)) for trial, reached in enumerate(epochs))
        actions = happen(state, now, *shown)
        assert all(action == Cancel(trial=0, attempt=1, reason=REASON) for action in actions)
        counts.append(len(actions))
    return counts


@pytest.mark.parametrize(
    ("plan", "looks", "expected"),
    [
        (PLAN, LATER, [0, 0, 0, 1]),
        (PLAN, AT_FIRST, [0, 0, 1]),
        (PLAN, [*USUAL, *((now, (epochs,) * 4) for now, epochs in ((660.0, 46), (960.0, 56), (1260.0, 66)))], [0] * 5),
        (replace(PLAN, moves=False), AT_FIRST, [0, 0, 0]),
    ],
    ids=["slower than before", "slower than forecast", "all are slow", "nowhere to go"],
)
def test_an_attempt_that_two_looks_find_slow_moves_while_most_are_not(
    plan: Plan, looks: Looks, expected: list[int]
) -> None:
    assert cancels(begun(plan), looks) == expected


def test_a_slow_node_is_out_until_it_is_fast_and_its_partner_is_not() -> None:
    state = begun()
    cancels(state, LATER)
    slow, other = state.trials[0].slots
    actions = happen(state, 965.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=56))
    assert {action.node for action in actions if isinstance(action, Probe)} == {slow, other}
    assert (state.trials[0].faults, state.trials[0].status, state.trials[0].moved) == (0, "waiting", 1)
    happen(state, 985.0, *(Probed(node=node, healthy=True, seconds=s) for node, s in ((slow, 0.3), (other, 0.1))))
    assert (state.health[slow].status, state.health[other].strikes) == ("quarantined", ())
    assert "3.0 times" in state.health[slow].message
    for now, seconds, status in ((2000.0, 0.29, "quarantined"), (9000.0, 0.11, "pool")):
        assert Probe(node=slow) in happen(state, now, Tick())
        happen(state, now + 1, Probed(node=slow, healthy=True, seconds=seconds))
        assert state.health[slow].status == status


def test_nodes_that_are_equally_fast_are_all_taken_back() -> None:
    state = begun()
    cancels(state, AT_FIRST)
    happen(state, 500.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=16))
    happen(state, 505.0, *(Probed(node=node, healthy=True, seconds=0.1) for node in list(state.health)))
    assert not [node for node in state.health.values() if node.status == "quarantined" and node.reference]
