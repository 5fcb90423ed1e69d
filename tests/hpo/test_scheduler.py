"""Decisions of the scheduler as tables of (events, decisions), campaigns on virtual machines, and storms of faults."""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from clockwork import FAILING, Clockwork, after, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.hpo.scheduling.events import (
    Action,
    Cancel,
    Ending,
    Event,
    Exhausted,
    Failed,
    Launched,
    Opened,
    Plan,
    Probe,
    Probed,
    Progressed,
    Proposed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
)
from hydragnn.hpo.scheduling.health import QUARANTINE
from hydragnn.hpo.scheduling.node_health import NodeStatus
from hydragnn.hpo.scheduling.scheduler import HOPELESS, State, decide
from hydragnn.hpo.scheduling.slowness import REASON
from hydragnn.hpo.scheduling.state import TrialStatus
from hydragnn.hpo.scheduling.trouble import LONGEST, PAUSE, TOGETHER
from hydragnn.hpo.simulation import Course


def proposed(trial: int, work: float | None = None) -> Proposed:
    return Proposed(trial=trial, values={"x": trial}, work=work)


def reached(trial: int, epochs: int = 1, attempt: int = 1, **more: Any) -> Reached:
    return Reached(trial=trial, attempt=attempt, epochs=epochs, value=0.5, **more)


def failed(trial: int, kind: Any = "preempted", attempt: int = 1, **more: Any) -> Failed:
    return Failed(trial=trial, attempt=attempt, kind=kind, message="", **more)


def launched(trial: int) -> Launched:
    return Launched(trial=trial, attempt=1, identity={})


def decisions(actions: Sequence[Action], state: State) -> str:
    words = []
    for action in actions:
        match action:
            case Start():
                words.append(f"start {action.trial} on {' '.join(action.slots)}")
            case Cancel():
                words.append(f"cancel {action.trial}: {action.reason}")
            case Probe():
                words.append(f"probe {action.node}")
            case Settle():
                words.append(f"{action.outcome} {action.trial}")
    return ", ".join([*words, *([f"close: {state.ending}"] if state.closed else [])])


Steps = list[tuple[float, Event, str]]
HOURS = Plan(trials=4, rungs=(1,), max_seconds=100.0)
PAIRS = Plan(trials=2, rungs=(1,), min_slots=2, max_slots=2)
TWO = [(0, proposed(0), "start 0 on a"), (0, proposed(1), "start 1 on b")]
SIZE_OF = {"n1": 0.5, "n2": 1.0, "n3": 0.5, "n4": 1.0}
SIZES = Plan(trials=2, rungs=(10, 20), reduction=1, finalists=2, min_slots=2, max_slots=2, sizes=SIZE_OF)


def balance(work: float, *then: tuple[float, Event, str], rungs: tuple[int, ...] = (10, 20)) -> Any:
    """Two trials that share ten slots; with ``rungs`` both are finalists."""
    halves = "start 0 on n1 n2 n3 n4 n5, start 1 on n6 n7 n8 n9 n10"
    first = [(0, proposed(0, work), ""), (0, proposed(1, work), halves), (0, launched(0), ""), (0, launched(1), "")]
    plan = Plan(trials=2, rungs=rungs, reduction=1, finalists=2, max_slots=10)
    return plan, nodes(10), [*first, *then], lambda state: state.trials[0].faults == 0


COURSES: dict[str, Any] = {
    "a node that only fails its probe comes back when it is well": (
        Plan(trials=3, rungs=(1,)),
        "ab",
        [
            (0, Probed(node="b", healthy=False, message="ECC errors"), ""),
            (0, proposed(0), ""),
            (0, proposed(1), "start 0 on a"),
            (QUARANTINE - 1, Tick(), ""),
            (QUARANTINE, Tick(), "probe b"),
            (QUARANTINE, Probed(node="b", healthy=False), ""),
            (2 * QUARANTINE - 1, Tick(), ""),
            (2 * QUARANTINE, Tick(), "probe b"),
            (1001, Probed(node="b", healthy=True), "start 1 on b"),
        ],
        lambda state: not state.free,
    ),
    "a sick node in use keeps its trial and leaves when that ends": (
        Plan(trials=1, rungs=(1, 2)),
        "ab",
        [
            (0, proposed(0), "start 0 on a"),
            (1, Probed(node="a", healthy=False), ""),
            (2, reached(0), "pruned 0, close: finished"),
        ],
        lambda state: state.health["a"].held == ("a",) and list(state.free) == ["b"],
    ),
    "preemption strikes nobody": (
        Plan(trials=1, rungs=(1,)),
        "a",
        [(0, proposed(0), "start 0 on a"), (1, failed(0), "start 0 on a")],
        lambda state: not state.health,
    ),
    "the only node comes back when its probe is good however often it failed": (
        Plan(trials=2, rungs=(1,), retries=9),
        "a",
        [
            (0, proposed(0), "start 0 on a"),
            (0, reached(0), "finished 0"),
            (0, proposed(1), "start 1 on a"),
            (1, failed(1, "lost_node"), "probe a"),
            (100, Tick(), ""),
            (100, Probed(node="a", healthy=True), "start 1 on a"),
            (101, failed(1, "lost_node", attempt=2), ""),
            (200, Tick(), ""),
            (200, Probed(node="a", healthy=True), "start 1 on a"),
        ],
    ),
    "another controller forgets nodes that are gone and keeps the strikes of the others": (
        PAIRS,
        "abcd",
        [
            (0, proposed(0), "start 0 on a b"),
            (0, proposed(1), "start 1 on c d"),
            (1, failed(0, "lost_node"), "probe a, probe b"),
            (2, Opened(plan=PAIRS, slots=tuple("bce")), "probe b, start 0 on c e"),
        ],
        lambda state: sorted(state.health) == ["b"] and len(state.health["b"].strikes) == 1,
    ),
    "a retry goes on elsewhere from the checkpoint that the failed attempt left": (
        Plan(trials=1, rungs=(9,)),
        "ab",
        [(0, proposed(0), "start 0 on a"), (1, failed(0, "lost_node", epochs=5), "probe a, start 0 on b")],
        lambda state: state.trials[0].epochs == 5,
    ),
    "retries count from the last rung that was passed": (
        Plan(trials=1, rungs=(1, 2, 3), reduction=1, retries=1),
        "a",
        [
            (0, proposed(0), "start 0 on a"),
            (1, failed(0), "start 0 on a"),
            (1, reached(0, 1, attempt=2), "start 0 on a"),
            (1, failed(0, attempt=3), "start 0 on a"),
            (1, reached(0, 2, attempt=4), "start 0 on a"),
            (1, failed(0, attempt=5), "start 0 on a"),
            (1, reached(0, 3, attempt=6), "finished 0, close: finished"),
        ],
    ),
    "faults beyond the retries are told as lost": (
        Plan(trials=1, rungs=(1,), retries=2),
        "abc",
        [
            (0, proposed(0), "start 0 on a"),
            (1, failed(0, "lost_node"), "probe a, start 0 on b"),
            (2, failed(0, "lost_node", attempt=2), "probe b, start 0 on c"),
            (3, failed(0, "lost_node", attempt=3), "probe c, lost 0, close: finished"),
        ],
    ),
    "the longest of the waiting trials goes first": (
        Plan(trials=4, rungs=(1,)),
        "abcd",
        [
            *((0, proposed(k, work), f"start {k} on {'abcd'[k]}") for k, work in enumerate((1.0, 9.0, 5.0, 3.0))),
            (1, Opened(plan=Plan(trials=4, rungs=(1,)), slots=("a", "b")), "start 1 on a, start 2 on b"),
        ],
    ),
    "after a kill what ran runs again first": (
        Plan(trials=4, rungs=(1, 2), retries=0),
        "ab",
        [
            *TWO,
            (1, Opened(plan=Plan(trials=4, rungs=(1, 2), retries=0), slots=("a", "b")), "start 0 on a, start 1 on b"),
        ],
        lambda state: all(trial.faults == 0 for trial in state.trials.values()),
    ),
    "stopping cancels what runs and keeps it for the next controller": (
        Plan(trials=4, rungs=(1, 2), retries=0),
        "ab",
        [
            *TWO,
            (1, Stopping(reason="SIGINT"), "cancel 0: SIGINT, cancel 1: SIGINT"),
            (1, failed(0), ""),
            (1, failed(1), "close: stopped"),
            (2, Opened(plan=Plan(trials=4, rungs=(1, 2), retries=0), slots=("a", "b")), "start 0 on a, start 1 on b"),
        ],
    ),
    "nothing starts after the hours are spent, and a pause between controllers costs nothing": (
        HOURS,
        "a",
        [
            (0, proposed(0), "start 0 on a"),
            (60, reached(0), "finished 0"),
            (60, proposed(1), "start 1 on a"),
            (120, Tick(), "cancel 1: max_hours is used up"),
            (120, reached(1), "finished 1, close: hours"),
            (5000, Opened(plan=replace(HOURS, max_seconds=1000.0), slots=("a",)), ""),
            (5000, proposed(2), "start 2 on a"),
        ],
    ),
    "a clock that jumps back neither extends nor spends the budget": (
        HOURS,
        "a",
        [(0, proposed(0), "start 0 on a"), (-10_000, reached(0), "finished 0")],
        lambda state: state.elapsed(-10_000.0) == 0.0,
    ),
    "a segment beyond its time is cancelled once and fails as timeout": (
        Plan(trials=2, rungs=(1,), timeout=10.0),
        "a",
        [
            (0, proposed(0), "start 0 on a"),
            (11, Tick(), "cancel 0: timeout"),
            (12, Tick(), ""),
            (12, failed(0), "failed 0"),
        ],
        lambda state: state.trials[0].failure.kind == "timeout",
    ),
    "an exhausted space ends the campaign after what was proposed": (
        Plan(trials=10, rungs=(1,)),
        "a",
        [(0, proposed(0), "start 0 on a"), (1, reached(0), "finished 0"), (1, Exhausted(trial=1), "close: finished")],
    ),
    "parts of batches that are searched are not doubled when memory runs out": (
        Plan(trials=1, rungs=(1,)),
        "a",
        [
            (0, Proposed(trial=0, values={"parallel.micro_batches": 2}), "start 0 on a"),
            (0, failed(0, "out_of_memory"), "failed 0, close: finished"),
        ],
    ),
    "idle slots go to an attempt that would run for long": balance(
        1000.0,
        (100, reached(1, 10, over=True, seconds=100.0), "finished 1, cancel 0: more slots"),
        (101, failed(0), "start 0 on n6 n7 n8 n9 n10 n1 n2 n3 n4 n5"),
    ),
    "and not to one that ends soon": balance(10.0, (5, reached(1, 10, over=True, seconds=5.0), "finished 1")),
    "a trial that begins anew takes the slots that are free": balance(
        250.0, (990, failed(1), "start 1 on n6 n7 n8 n9 n10"), rungs=(20,)
    ),
    "where nodes differ a trial has nodes of one size and its work counts by their speed": (
        SIZES,
        nodes(4),
        [
            (0, proposed(0), "start 0 on n2 n4"),
            (0, proposed(1), "start 1 on n1 n3"),
            (200, launched(0), ""),
            (200, launched(1), ""),
            (200, reached(0, 10, seconds=100.0), "start 0 on n2 n4"),
            (200, reached(1, 10, seconds=200.0), "start 1 on n1 n3"),
        ],
        lambda state: [state.trials[trial].work for trial in range(2)] == [20.0, 20.0],  # seconds on a fast node
    ),
}
"""A plan, its slots, times with events and their decisions, and what holds in the end."""


@pytest.mark.parametrize("course", COURSES)
def test_events_have_their_decisions(course: str) -> None:
    plan, slots, steps, *holds = COURSES[course]
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=tuple(slots)))
    made = [(now, event, decisions(after(state, float(now), event), state)) for now, event, _ in steps]
    assert made == steps
    assert all(one(state) for one in holds)


def course(value: float, epochs: int, **more: Any) -> Course:
    return Course(work=10.0, scaling=math.inf, curve=(value,) * epochs, **more)


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
    campaign = Clockwork(plan, 1, course_of=lambda trial: course(float(trial), plan.rungs[-1]))
    assert [sorted(start.trial for _, start in campaign.starts if start.until == rung) for rung in plan.rungs] == [
        list(range(count)) for count in passed
    ]
    assert [number for number, outcome in campaign.settled.items() if outcome == "finished"] == list(range(passed[-1]))
    assert sorted(campaign.settled) == list(range(plan.trials))


FAILED = [course(0.5, 1, fails_at=0.5 if fails else math.inf, failure="configuration") for fails in (False, True)]
EVER = ((0.0, math.inf),)
BAD = ("n0", "n1", "n2")


@pytest.mark.parametrize(
    ("plan", "nodes", "machine", "ending", "starts", "times"),
    [
        (Plan(trials=50, rungs=(1,)), 1, {"course_of": lambda trial: FAILED[1]}, "hopeless", HOPELESS, (0, 99)),
        (Plan(trials=200, rungs=(1,)), 100, {"course_of": lambda trial: FAILED[trial < HOPELESS + 5]}, "finished", 200, (0, 99)),
        (Plan(trials=9, rungs=(1,), retries=99), 1, {"bad": BAD}, "hopeless", 0, (0, 60)),
        (Plan(trials=9, rungs=(1,), retries=99), 3, {"bad": BAD}, "hopeless", 0, (LONGEST, math.inf)),
        (Plan(trials=200, rungs=(1,)), 12, {"storms": EVER}, "hopeless", 0, (LONGEST, LONGEST + 4 * PAUSE)),
    ],
    ids=["all trials fail", "a few early ones of many", "a bad node", "bad nodes, or victims of a storm", "nothing ever starts"],
)  # fmt: skip
def test_only_a_campaign_in_which_nothing_works_gives_up(
    plan: Plan, nodes: int, machine: dict[str, Any], ending: str, starts: int, times: tuple[float, float]
) -> None:
    campaign = Clockwork(plan, nodes, **machine)
    assert campaign.state.ending == ending
    assert len(campaign.starts) == starts if starts else not campaign.outcomes
    assert times[0] <= campaign.world.now <= times[1]


def test_thousands_of_faults_violate_nothing_and_reach_every_status_and_ending(root: Path) -> None:
    """In a process without the checks of shapes, which take most of the time."""
    script = root / "tests" / "benchmarks" / "million_faults.py"
    command = [sys.executable, str(script), "--faults", "2000", "--processes", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    seen = Counter(json.loads(ended.stdout))
    assert seen["faults"] >= 2000
    kinds = (("trial", TrialStatus), ("node", NodeStatus), ("ending", Ending))
    names = [f"{word} {name}" for word, kind in kinds for name in get_args(kind)]
    names += ["trouble", *(f"outcome {outcome}" for outcome in ("finished", "pruned", "failed", "lost"))]
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
    assert {name for name, node in campaign.state.health.items() if node.status != "pool"} == {"n5"}
    used = {slot for _, start in campaign.starts[-48:] for slot in start.slots}
    assert used == {f"n{k}" for k in range(24) if k != 5}, "those that worked with it stay in use"


@pytest.mark.parametrize(
    ("plan", "nodes", "end", "work", "ending"),
    [
        (Plan(trials=99, rungs=(4,), max_seconds=500.0), 3, 500.0, 37.0, "hours"),
        (Plan(trials=99, rungs=(4,), max_node_seconds=1500.0), 3, 500.0, 37.0, "node_hours"),
        (Plan(trials=99, rungs=(4,), max_seconds=900.0), 3, 500.0, 37.0, "walltime"),
        (Plan(trials=9, rungs=(1,)), 1, 100.0, 60.0, "walltime"),
    ],
)
def test_what_runs_is_saved_before_a_budget_ends(plan: Plan, nodes: int, end: float, work: float, ending: str) -> None:
    campaign = Clockwork(plan, nodes, work=lambda trial: work, hours=end / 3600 if ending == "walltime" else 100.0)
    assert campaign.state.ending == ending
    assert campaign.world.now <= end
    assert campaign.starts and all(now + work <= end - plan.grace for now, _ in campaign.starts)
    assert not campaign.outcomes["failed"] + campaign.outcomes["lost"]
    assert all(trial.faults == 0 for trial in campaign.state.trials.values())


@settings(max_examples=8, deadline=None)
@given(works=st.lists(st.floats(1.0, 30.0), min_size=3, max_size=15), per_trial=st.integers(4, 30))
def test_a_final_training_ends_for_all_at_once(works: list[float], per_trial: int) -> None:
    slots = per_trial * len(works)
    plan = Plan(trials=len(works), rungs=tuple(range(4, 44, 4)), reduction=1, max_slots=slots)
    campaign = Clockwork(plan, slots, work=lambda trial: works[trial])
    assert campaign.outcomes["finished"] == len(works)
    bound = 40 * sum(works) / slots
    assert sum(campaign.world.ledger.useful.values()) == pytest.approx(40 * sum(works))
    assert campaign.world.now <= 1.0 + 1.15 * bound + 40 * max(works) / slots


def test_time_that_passes_is_written_down_so_that_a_killed_controller_has_spent_it() -> None:
    state, plan = State(), Plan(trials=1, rungs=(1,), max_seconds=300.0)
    after(state, 0.0, Opened(plan=plan, slots=("a",)), proposed(0))
    for second in range(0, 200, 10):
        after(state, float(second), Tick())
    assert decide(state, Tick(), 190.5).changes is None, "nothing but a little time passed"
    after(state, 10_000.0, Opened(plan=plan, slots=("a",)))
    assert 190.0 <= state.elapsed(10_000.0) <= 250.0


@pytest.mark.parametrize(("speed", "moves"), [(1.0, False), (0.2, True)], ids=["as expected", "five times as slow"])
def test_an_attempt_is_judged_by_its_own_pace_not_by_what_was_expected_of_it(speed: float, moves: bool) -> None:
    plan, slots, steps, _ = balance(50.0, rungs=(20,))  # ten seconds an epoch
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=tuple(slots)), *(event for _, event, _ in steps))
    for now in (60.0, 120.0, 190.0):
        assert after(state, now, Progressed(trial=0, attempt=1, epochs=speed * now / 10)) == []
    for trial, attempt in ((0, 2), (7, 1)):
        over = Progressed(trial=trial, attempt=attempt, epochs=1.0)
        assert decide(state, over, 191.0) == (None, ()), "an attempt that is over changes nothing"
    actions = after(state, 195.0, reached(1, 20, over=True, seconds=195.0))
    assert [action.trial for action in actions if isinstance(action, Cancel)] == [0] * moves


MOVES = Plan(trials=4, rungs=(100,), min_slots=2, max_slots=2, moves=True)
Looks = list[tuple[float, tuple[float, float, float, float]]]
"""Times, with the epochs of all four attempts; ten seconds an epoch are usual."""
USUAL: Looks = [(60.0, (6, 6, 6, 6)), (360.0, (36, 36, 36, 36))]
AT_FIRST: Looks = [(120.0, (4, 12, 12, 12)), (240.0, (8, 24, 24, 24)), (480.0, (16, 48, 48, 48))]
LATER: Looks = [*USUAL, (660.0, (46, 66, 66, 50)), (960.0, (56, 96, 96, 66))]  # one at a third of its pace, one at half


def four_attempts(plan: Plan = MOVES) -> State:
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=nodes(8)), *(proposed(trial, 20.0) for trial in range(4)))
    return state


def cancels(state: State, looks: Looks) -> list[int]:
    counts = []
    for now, epochs in looks:
        shown = (Progressed(trial=trial, attempt=1, epochs=float(reached)) for trial, reached in enumerate(epochs))
        actions = after(state, now, *shown)
        assert all(action == Cancel(trial=0, attempt=1, reason=REASON) for action in actions)
        counts.append(len(actions))
    return counts


@pytest.mark.parametrize(
    ("plan", "looks", "expected"),
    [
        (MOVES, LATER, [0, 0, 0, 1]),
        (MOVES, AT_FIRST, [0, 0, 1]),
        (MOVES, [*USUAL, *((now, (epochs,) * 4) for now, epochs in ((660.0, 46), (960.0, 56), (1260.0, 66)))], [0] * 5),
        (replace(MOVES, moves=False), AT_FIRST, [0, 0, 0]),
    ],
    ids=["slower than before", "slower than forecast", "all are slow", "nowhere to go"],
)
def test_an_attempt_slow_at_two_looks_moves_while_most_are_not(plan: Plan, looks: Looks, expected: list[int]) -> None:
    assert cancels(four_attempts(plan), looks) == expected


def test_a_slow_node_is_out_until_it_is_fast_and_its_partner_is_not() -> None:
    state = four_attempts()
    cancels(state, LATER)
    slow, other = state.trials[0].slots
    actions = after(state, 965.0, failed(0, epochs=56))
    assert {action.node for action in actions if isinstance(action, Probe)} == {slow, other}
    assert (state.trials[0].faults, state.trials[0].status, state.trials[0].moved) == (0, "waiting", 1)
    after(state, 985.0, *(Probed(node=node, healthy=True, seconds=s) for node, s in ((slow, 0.3), (other, 0.1))))
    assert (state.health[slow].status, state.health[other].strikes) == ("quarantined", ())
    assert "3.0 times" in state.health[slow].message
    for now, seconds, status in ((2000.0, 0.29, "quarantined"), (9000.0, 0.11, "pool")):
        assert Probe(node=slow) in after(state, now, Tick())
        after(state, now + 1, Probed(node=slow, healthy=True, seconds=seconds))
        assert state.health[slow].status == status


def test_nodes_that_are_equally_fast_are_all_taken_back() -> None:
    state = four_attempts()
    cancels(state, AT_FIRST)
    after(state, 500.0, failed(0, epochs=16))
    after(state, 505.0, *(Probed(node=node, healthy=True, seconds=0.1) for node in list(state.health)))
    assert not [node for node in state.health.values() if node.status == "quarantined" and node.reference]


TICK = 1.0  # seconds between looks at the clock


def waves(seconds: float) -> float:
    """How often attempts can try the machine again."""
    return seconds / (PAUSE + FAILING) + 1


ONE, LATER_ONE, TWO_IN_A_ROW = [(0.0, 600.0)], [(95.0, 695.0)], [(0.0, 400.0), (450.0, 900.0)]


@pytest.mark.parametrize(
    ("count", "size", "rungs", "retries", "storms", "blind"),
    [
        *((count, min(size, count // 2), (1, 3), 1, [at], False) for count in (2, 6, 40) for size in (1, 3) for at in (*ONE, *LATER_ONE)),
        (40, 1, (1,), 3, ONE, True),
        (12, 1, (9,), 3, TWO_IN_A_ROW, False),
    ],
)  # fmt: skip
def test_a_storm_of_failing_launches_loses_no_trial_and_no_node_and_uses_up_no_retries(
    count: int, size: int, rungs: tuple[int, ...], retries: int, storms: list[tuple[float, float]], blind: bool
) -> None:
    """Those of which probes find nothing are blind."""
    plan = Plan(trials=4 * count, rungs=rungs, retries=retries, min_slots=size, max_slots=size)
    campaign = Clockwork(plan, count, work=lambda trial: 30.0 + trial % 7, storms=storms, blind=blind)
    in_vain = [now for now, _ in campaign.starts if any(begin <= now < end for begin, end in storms)]
    assert campaign.state.ending == "finished"
    assert set(campaign.outcomes) <= {"finished", "pruned"}
    assert all(node.status == "pool" for node in campaign.state.health.values())
    assert 2 <= len(in_vain) <= count // size + TOGETHER * sum(waves(end - begin) for begin, end in storms)
    works_again = min(now for now, _ in campaign.starts if now >= storms[-1][1])
    assert works_again <= storms[-1][1] + PAUSE + FAILING + TICK


@pytest.mark.parametrize(("hopeless", "retries"), [(range(0, 60, 3), 2), ([7], 3), ([7], 0)])
def test_trials_that_can_never_start_are_given_up_among_those_that_can(hopeless: Sequence[int], retries: int) -> None:
    campaign = Clockwork(Plan(trials=60, rungs=(2,), retries=retries), 12, hopeless=frozenset(hopeless))
    assert campaign.state.ending == "finished"
    assert {number for number, outcome in campaign.settled.items() if outcome == "lost"} == set(hopeless)
    assert campaign.outcomes["finished"] == 60 - len(hopeless)
    if len(hopeless) == 1:  # no outage, in which nothing counts
        assert campaign.state.trials[hopeless[0]].attempt == retries + 1
