"""What the scheduler decides, case by case; tests/hpo/test_faults.py has the storms of faults."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Close,
    Event,
    Exhausted,
    Failed,
    Launched,
    Opened,
    Plan,
    Probe,
    Probed,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
)
from hydragnn.hpo.scheduling.scheduler import HOPELESS, MACHINE_FAULTS, State, step

FAULTS = ["lost_node", "launch", "preempted", "out_of_memory", "diverged", "timeout", "configuration", "defect"]


class World:
    """Carries out the scheduler's actions by hand, and keeps the invariants under watch."""

    def __init__(self, plan: Plan, workers: int = 1) -> None:
        self.plan, self.workers = plan, workers
        self.state = State()
        self.now = 1000.0
        self.running: dict[int, Start] = {}
        self.cancelled: set[int] = set()
        self.to_propose: list[int] = []
        self.to_probe: list[str] = []
        self.settled: list[tuple[int, str]] = []
        self.started: list[tuple[int, int]] = []
        self.closed: str | None = None
        self.journal: list[tuple[float, Event]] = []

    def open(self) -> None:
        self.running.clear()
        self.to_propose.clear()
        self.to_probe.clear()
        self.settled = [s for s in self.settled if s[1] != "pruned"]
        self.closed = None
        self.feed(Opened(plan=self.plan, places=tuple(f"p{k}" for k in range(self.workers))))

    def feed(self, event: Event) -> None:
        before = self.state
        self.state, actions = step(before, event, self.now)
        if self.state is not before or actions:
            self.journal.append((self.now, event))
        for action in actions:
            self.obey(action)
        assert len(self.running) <= self.workers
        assert {t.number for t in self.state.running} == set(self.running)
        assert len(self.state.free) == self.state.healthy - len(self.running)

    def obey(self, action: Action) -> None:
        assert self.closed is None
        match action:
            case Propose():
                assert action.trial not in self.to_propose
                self.to_propose.append(action.trial)
            case Probe():
                assert action.node not in self.to_probe
                self.to_probe.append(action.node)
            case Start():
                assert action.trial not in self.running, "run twice at once"
                assert action.places[0] not in {p for s in self.running.values() for p in s.places}
                self.running[action.trial] = action
                self.started.append((action.trial, action.until))
            case Cancel():
                assert self.running[action.trial].attempt == action.attempt
                self.cancelled.add(action.trial)
            case Settle():
                assert action.trial not in [number for number, _ in self.settled], "reported twice"
                self.settled.append((action.trial, action.outcome))
            case Close():
                assert not self.running
                self.closed = action.ending

    def reach(self, number: int, value: float, over: bool = False) -> None:
        start = self.running.pop(number)
        self.feed(Reached(trial=number, attempt=start.attempt, epochs=start.until, value=value, over=over))

    def fail(self, number: int, kind: Any) -> None:
        start = self.running.pop(number)
        self.feed(Failed(trial=number, attempt=start.attempt, kind=kind, message="why"))

    def probe(self, healthy: bool = True) -> None:
        self.feed(Probed(node=self.to_probe.pop(0), healthy=healthy))

    def propose(self) -> None:
        number = self.to_propose.pop(0)
        self.feed(Proposed(trial=number, values={"x": number}))


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


def test_successive_halving_lets_the_best_third_through_and_no_other() -> None:
    world = finished(World(Plan(trials=27, rungs=(1, 3, 9), reduction=3)), lambda trial, _: float(trial))
    assert [number for number, until in world.started if until == 3] == list(range(9))
    assert [number for number, until in world.started if until == 9] == [0, 1, 2]
    assert len(world.started) >= 27
    assert sorted(number for number, _ in world.settled) == list(range(27))


def test_without_rungs_every_trial_is_trained_to_the_end() -> None:
    world = finished(World(Plan(trials=5, rungs=(10,)), workers=2), lambda trial, _: -float(trial))
    assert sorted(world.settled) == [(number, "finished") for number in range(5)]


def test_at_least_the_finalists_finish_however_few_the_rungs_let_through() -> None:
    world = finished(World(Plan(trials=6, rungs=(1, 2, 4), reduction=3, finalists=4)), lambda t, _: float(t))
    assert [number for number, outcome in world.settled if outcome == "finished"] == [0, 1, 2, 3]


def test_more_finalists_than_trials_is_all_of_them() -> None:
    world = finished(World(Plan(trials=3, rungs=(1, 2), finalists=9)), lambda trial, _: float(trial))
    assert len([number for number, outcome in world.settled if outcome == "finished"]) == 3


def test_a_machine_fault_is_retried_and_then_given_up_without_counting_as_failed() -> None:
    world = World(Plan(trials=1, rungs=(1,), retries=2), workers=3)
    world.open()
    world.propose()
    for place in ("p0", "p1", "p2"):
        assert world.running[0].places == (place,)
        world.fail(0, "lost_node")
    assert world.settled == [(0, "lost")]
    assert world.closed == "finished"


def test_a_failure_of_the_configuration_is_not_repeated() -> None:
    world = World(Plan(trials=1, rungs=(1,)))
    world.open()
    world.propose()
    world.fail(0, "diverged")
    assert world.settled == [(0, "failed")]
    assert world.started == [(0, 1)]


def test_a_campaign_in_which_everything_fails_gives_up_early() -> None:
    world = World(Plan(trials=50, rungs=(1,)))
    world.open()
    while world.closed is None:
        if world.to_propose:
            world.propose()
        else:
            world.fail(min(world.running), "configuration")
    assert world.closed == "hopeless"
    assert len(world.started) == HOPELESS


def test_a_few_early_failures_among_thousands_are_no_reason_to_give_up() -> None:
    world = World(Plan(trials=200, rungs=(1,)), workers=100)
    world.open()
    while world.to_propose:
        world.propose()
    for number in range(HOPELESS + 5):
        world.fail(number, "diverged")
    assert world.closed is None
    world.reach(50, 0.5)
    assert world.state.ending is None


def test_a_late_message_of_an_earlier_attempt_changes_nothing() -> None:
    world = World(Plan(trials=1, rungs=(1, 2)))
    world.open()
    world.propose()
    world.fail(0, "preempted")
    before = world.state
    world.feed(Reached(trial=0, attempt=1, epochs=1, value=0.0))
    world.feed(Failed(trial=0, attempt=1, kind="defect", message=""))
    assert world.state is before
    assert world.running[0].attempt == 2


def test_after_a_kill_what_ran_runs_again_first_and_does_not_count_as_a_fault() -> None:
    world = World(Plan(trials=4, rungs=(1, 2), retries=0), workers=2)
    world.open()
    world.propose()
    world.propose()
    running = sorted(world.running)
    world.open()
    assert sorted(world.running) == running
    assert all(trial.faults == 0 for trial in world.state.trials.values())


def test_an_open_request_to_the_sampler_is_made_again_after_a_kill() -> None:
    world = World(Plan(trials=4, rungs=(1,)))
    world.open()
    assert world.to_propose == [0]
    world.open()
    assert world.to_propose == [0]
    assert world.state.asked == 1


def test_stopping_cancels_what_runs_and_keeps_it_for_the_next_controller() -> None:
    world = World(Plan(trials=4, rungs=(1, 2), retries=0), workers=2)
    world.open()
    world.propose()
    world.propose()
    world.feed(Stopping(reason="SIGINT"))
    assert world.cancelled == {0, 1}
    world.fail(0, "preempted")
    world.fail(1, "preempted")
    assert world.closed == "stopped"
    assert world.settled == []
    world.open()
    assert sorted(world.running) == [0, 1]


def test_nothing_starts_after_the_hours_are_spent_and_a_resumed_campaign_goes_on() -> None:
    world = World(Plan(trials=4, rungs=(1,), max_seconds=100.0))
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
    world = World(Plan(trials=2, rungs=(1,), timeout=10.0))
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
    world = World(Plan(trials=2, rungs=(1,), max_seconds=100.0))
    world.open()
    world.propose()
    world.now -= 10_000
    world.reach(0, 1.0)
    assert world.closed is None
    assert world.state.elapsed(world.now) == 0.0


def test_an_exhausted_space_ends_the_campaign_after_what_was_proposed() -> None:
    world = World(Plan(trials=10, rungs=(1,)))
    world.open()
    world.propose()
    world.reach(0, 1.0)
    world.feed(Exhausted(trial=world.to_propose.pop()))
    assert world.closed == "finished"
    assert world.settled == [(0, "finished")]


def test_more_trials_may_be_asked_for_when_a_campaign_is_opened_again() -> None:
    world = finished(World(Plan(trials=3, rungs=(1, 2), reduction=3)), lambda trial, _: float(trial))
    world.plan = replace(world.plan, trials=9)
    again = finished(world, lambda trial, _: float(-trial))
    assert len(again.state.trials) == 9


PLANS = st.fixed_dictionaries(
    {
        "trials": st.integers(1, 14),
        "rungs": st.sampled_from([(3,), (1, 3), (1, 3, 9), (1, 2, 4, 8)]),
        "reduction": st.integers(2, 4),
        "finalists": st.integers(0, 4),
        "retries": st.integers(0, 2),
        "timeout": st.sampled_from([None, 50.0]),
    }
)


@settings(max_examples=50, deadline=None)
@given(plan=PLANS, workers=st.integers(1, 5), data=st.data())
def test_no_order_of_events_loses_or_doubles_a_trial_or_ends_in_a_dead_end(plan: Any, workers: int, data: Any) -> None:
    world = World(Plan(**plan), workers)
    world.open()
    for _ in range(400):
        if world.closed is not None:
            if world.closed in ("stopped", "hopeless"):
                world.open()  # an interrupted campaign is continued
                continue
            break
        world.now += data.draw(st.sampled_from([0.0, 1.0, 30.0]), label="time")
        choices = [
            *(["propose"] * 3 if world.to_propose else []),
            *(["reach", "reach", "fail"] if world.running else []),
            *(["probe"] if world.to_probe else []),
        ]
        choice = data.draw(st.sampled_from([*choices, "tick", "kill", "stop", "stale"]), label="event")
        number = data.draw(st.sampled_from(sorted(world.running)), label="trial") if world.running else -1
        match choice:
            case "propose":
                world.propose()
            case "reach":
                over = data.draw(st.booleans(), label="early stop") and data.draw(st.booleans())
                world.feed(Launched(trial=number, attempt=world.running[number].attempt, identity={}))
                world.reach(number, data.draw(st.floats(0, 1), label="value"), over)
            case "fail":
                world.fail(number, data.draw(st.sampled_from(FAULTS), label="kind"))
            case "probe":
                world.probe(data.draw(st.booleans(), label="healthy"))
            case "tick":
                world.feed(Tick())
            case "kill":
                world.open()
            case "stop":
                world.feed(Stopping(reason="SIGINT"))
            case "stale":
                world.feed(Reached(trial=0, attempt=0, epochs=1, value=0.0))
    while world.closed is None or world.closed in (
        "stopped",
        "hopeless",
    ):  # now without faults: there must be a way to the end
        if world.closed:
            world.open()
        elif world.to_propose:
            world.propose()
        elif world.running:
            world.reach(min(world.running), 0.5)
        elif world.to_probe:
            world.probe()
        elif world.state.due < float("inf"):
            world.now = world.state.due
            world.feed(Tick())
        else:
            pytest.fail("dead end: nothing runs, nothing is asked, and the campaign is open")
    check_the_end(world)


def check_the_end(world: World) -> None:
    trials = world.state.trials
    if world.closed == "finished":
        assert sorted(number for number, _ in world.settled) == sorted(trials)
        assert len(trials) == world.plan.trials
    for number, outcome in world.settled:
        kind = trials[number].failure.kind if trials[number].failure else None
        assert (outcome == "lost") == (trials[number].status == "lost")
        if outcome == "failed":
            assert kind is not None and kind not in MACHINE_FAULTS, "a machine fault was told as a failure"
    replayed = State()
    for now, event in world.journal:
        replayed, _ = step(replayed, event, now)
    assert replayed == world.state, "the journal does not give the state back"
