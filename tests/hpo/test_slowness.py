"""Slow nodes are found by the pace of what runs on them and by their probes; a machine that is slow as a whole moves nobody."""

from typing import Any

from world import transition

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
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.scheduling.slowness import REASON

PLAN = Plan(trials=4, rungs=(100,), min_slots=2, max_slots=2, moves=True)
NODES = tuple(f"n{number}" for number in range(8))


class Played:
    """Four attempts on two nodes each, ten seconds an epoch."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.state, self.actions = State(), list[Action]()
        self.happen(0.0, Opened(plan=plan, slots=NODES))
        for trial in range(4):
            self.happen(0.0, Proposed(trial=trial, values={"x": trial}, work=20.0))

    def happen(self, now: float, event: Event) -> list[Any]:
        self.state, actions = transition(self.state, event, now)
        self.actions += actions
        return list(actions)

    def show(self, now: float, epochs: dict[int, float]) -> list[Any]:
        """What follows from a look at all attempts."""
        shown = (Progressed(trial=trial, attempt=1, epochs=reached) for trial, reached in epochs.items())
        return [action for event in shown for action in self.happen(now, event) if isinstance(action, Cancel)]


def test_an_attempt_that_two_looks_find_slow_goes_on_elsewhere_and_its_slow_node_is_out_until_it_is_fast() -> None:
    played = Played()
    assert played.show(60.0, dict.fromkeys(range(4), 6.0)) == []
    assert played.show(360.0, dict.fromkeys(range(4), 36.0)) == []
    third = {0: 46.0, 1: 66.0, 2: 66.0, 3: 50.0}  # one at a third of its pace, one at half
    assert played.show(660.0, third) == []
    assert played.show(960.0, {0: 56.0, 1: 96.0, 2: 96.0, 3: 66.0}) == [Cancel(trial=0, attempt=1, reason=REASON)]
    slots = played.state.trials[0].slots
    actions = played.happen(965.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=56))
    assert {action.node for action in actions if isinstance(action, Probe)} == {*slots}
    assert (played.state.trials[0].faults, played.state.trials[0].status) == (0, "waiting")
    slow, other = slots
    played.happen(985.0, Probed(node=slow, healthy=True, seconds=0.3))
    played.happen(985.0, Probed(node=other, healthy=True, seconds=0.1))
    assert played.state.health[slow].status == "quarantined"
    assert "3.0 times" in played.state.health[slow].message
    assert not played.state.health[other].strikes
    for now, seconds, status in ((2000.0, 0.29, "quarantined"), (9000.0, 0.11, "pool")):
        assert Probe(node=slow) in played.happen(now, Tick())
        played.happen(now + 1, Probed(node=slow, healthy=True, seconds=seconds))
        assert played.state.health[slow].status == status


def test_where_all_are_slow_nobody_moves() -> None:
    played = Played()
    for now, epochs in ((60.0, 6.0), (360.0, 36.0), (660.0, 46.0), (960.0, 56.0), (1260.0, 66.0)):
        assert played.show(now, dict.fromkeys(range(4), epochs)) == []


def test_an_attempt_that_is_slow_from_its_beginning_is_compared_with_the_forecast_and_moves() -> None:
    played = Played()
    looks = [(120.0, 12.0), (240.0, 24.0), (480.0, 48.0)]
    cancels = [played.show(now, {0: epochs / 3, 1: epochs, 2: epochs, 3: epochs}) for now, epochs in looks]
    assert [len(some) for some in cancels] == [0, 0, 1]
    played.happen(500.0, Failed(trial=0, attempt=1, kind="preempted", message="", epochs=16))
    for node in played.state.health:
        played.happen(505.0, Probed(node=node, healthy=True, seconds=0.1))
    assert [
        node.status for node in played.state.health.values() if node.status == "quarantined" and node.reference
    ] == []
    assert played.state.trials[0].moved == 1


def test_on_one_machine_nobody_moves() -> None:
    played = Played(Plan(trials=4, rungs=(100,), min_slots=2, max_slots=2))
    for now, epochs in ((120.0, 12.0), (240.0, 24.0), (480.0, 48.0)):
        assert played.show(now, {0: epochs / 3, 1: epochs, 2: epochs, 3: epochs}) == []
