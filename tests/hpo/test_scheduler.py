"""What the scheduler decides, case by case; tests/hpo/test_faults.py has the storms of faults."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from world import World

from hydragnn.hpo.scheduling.events import Exhausted, Plan, Stopping, Tick
from hydragnn.hpo.scheduling.scheduler import HOPELESS


def world_of(plan: Plan, workers: int = 1) -> World:
    """A campaign on so many slots."""
    return World(plan, tuple(f"p{k}" for k in range(workers)))


def finished(world: World, value: Callable[[int, int], float]) -> World:
    """Run a world to its end without faults; ``value(trial, epochs)`` is the objective."""
    world.open()
    while world.closed is None:
        if world.to_propose:
            world.propose()
        else:
            number = min(world.running)
            world.reach(number, value(number, world.running[number].until))
    return world


@pytest.mark.parametrize(
    ("plan", "passed"),
    [
        (Plan(trials=27, rungs=(1, 3, 9), reduction=3), [27, 9, 3]),
        (Plan(trials=27, rungs=(1, 3, 9), reduction=1), [27, 27, 27]),
        (Plan(trials=5, rungs=(10,)), [5]),
        (Plan(trials=6, rungs=(1, 2, 4), reduction=3, finalists=4), [6, 4, 4]),
        (Plan(trials=3, rungs=(1, 2), finalists=9), [3, 3]),
    ],
    ids=["the best third", "no reduction", "no rungs", "at least the finalists", "more finalists than trials"],
)
def test_rungs_let_the_best_through_and_no_other(plan: Plan, passed: list[int]) -> None:
    world = finished(world_of(plan), lambda trial, _: float(trial))
    assert [sorted(n for n, until in world.started if until == rung) for rung in plan.rungs] == [
        list(range(count)) for count in passed
    ]
    assert [number for number, outcome in world.settled.items() if outcome == "finished"] == list(range(passed[-1]))
    assert sorted(world.settled) == list(range(plan.trials))


def test_a_machine_fault_is_retried_and_then_given_up_without_counting_as_failed() -> None:
    world = world_of(Plan(trials=1, rungs=(1,), retries=2), workers=3)
    world.open()
    world.propose()
    for slot in ("p0", "p1", "p2"):
        assert world.running[0].slots == (slot,)
        world.fail(0, "lost_node")
    assert world.settled == {0: "lost"}
    assert world.closed == "finished"


def test_a_campaign_in_which_everything_fails_gives_up_early() -> None:
    world = world_of(Plan(trials=50, rungs=(1,)))
    world.open()
    while world.closed is None:
        if world.to_propose:
            world.propose()
        else:
            world.fail(min(world.running), "configuration")
    assert world.closed == "hopeless"
    assert len(world.started) == HOPELESS


def test_a_few_early_failures_among_thousands_are_no_reason_to_give_up() -> None:
    world = world_of(Plan(trials=200, rungs=(1,)), workers=100)
    world.open()
    while world.to_propose:
        world.propose()
    for number in range(HOPELESS + 5):
        world.fail(number, "diverged")
    assert world.closed is None
    world.reach(50, 0.5)
    assert world.state.ending is None


def test_after_a_kill_what_ran_runs_again_first_and_does_not_count_as_a_fault() -> None:
    world = world_of(Plan(trials=4, rungs=(1, 2), retries=0), workers=2)
    world.open()
    world.propose()
    world.propose()
    running = sorted(world.running)
    world.open()
    assert sorted(world.running) == running
    assert all(trial.faults == 0 for trial in world.state.trials.values())


def test_stopping_cancels_what_runs_and_keeps_it_for_the_next_controller() -> None:
    world = world_of(Plan(trials=4, rungs=(1, 2), retries=0), workers=2)
    world.open()
    world.propose()
    world.propose()
    world.feed(Stopping(reason="SIGINT"))
    assert world.cancelled == {0, 1}
    world.fail(0, "preempted")
    world.fail(1, "preempted")
    assert world.closed == "stopped"
    assert not world.settled
    world.open()
    assert sorted(world.running) == [0, 1]


def test_nothing_starts_after_the_hours_are_spent_and_a_resumed_campaign_goes_on() -> None:
    world = world_of(Plan(trials=4, rungs=(1,), max_seconds=100.0))
    world.open()
    world.propose()
    world.now += 60
    world.reach(0, 1.0)
    world.propose()
    world.now += 60
    world.feed(Tick())
    assert world.cancelled == {1}, "what runs saves itself"
    assert world.closed is None
    world.reach(1, 1.0)
    assert world.closed == "hours"
    world.plan = replace(world.plan, max_seconds=1000.0)
    world.now += 5000  # a pause between controllers costs nothing
    world.open()
    assert world.to_propose == [2]


def test_a_segment_beyond_its_time_is_cancelled_once_and_fails_as_timeout() -> None:
    world = world_of(Plan(trials=2, rungs=(1,), timeout=10.0))
    world.open()
    world.propose()
    world.now += 11
    world.feed(Tick())
    assert world.cancelled == {0}
    world.feed(Tick())
    world.fail(0, "preempted")
    assert world.state.trials[0].failure is not None
    assert world.state.trials[0].failure.kind == "timeout"


def test_a_clock_that_jumps_back_does_not_extend_or_spend_the_budget() -> None:
    world = world_of(Plan(trials=2, rungs=(1,), max_seconds=100.0))
    world.open()
    world.propose()
    world.now -= 10_000
    world.reach(0, 1.0)
    assert world.closed is None
    assert world.state.elapsed(world.now) == 0.0


def test_an_exhausted_space_ends_the_campaign_after_what_was_proposed() -> None:
    world = world_of(Plan(trials=10, rungs=(1,)))
    world.open()
    world.propose()
    world.reach(0, 1.0)
    world.feed(Exhausted(trial=world.to_propose.pop()))
    assert world.closed == "finished"
    assert world.settled == {0: "finished"}


def test_more_trials_may_be_asked_for_when_a_campaign_is_opened_again() -> None:
    world = finished(world_of(Plan(trials=3, rungs=(1, 2), reduction=3)), lambda trial, _: float(trial))
    world.plan = replace(world.plan, trials=9)
    again = finished(world, lambda trial, _: float(-trial))
    assert len(again.state.trials) == 9
