"""Faults that come together over nodes are one fault of the machine: starts pause, no trial is lost, no node is blamed."""

import math
from collections.abc import Sequence

import pytest
from clockwork import FAILING, Clockwork

from hydragnn.hpo.scheduling.events import Plan
from hydragnn.hpo.scheduling.trouble import LONGEST, PAUSE, TOGETHER

TICK = 1.0  # seconds between looks at the clock


def waves(seconds: float) -> float:
    """How often attempts can try the machine again."""
    return seconds / (PAUSE + FAILING) + 1


@pytest.mark.parametrize("begin", [0.0, 95.0], ids=["at the beginning", "later"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("count", [2, 6, 40])
def test_a_storm_of_failing_launches_loses_no_trial_and_no_node(count: int, size: int, begin: float) -> None:
    size = min(size, count // 2)
    plan = Plan(trials=4 * count, rungs=(1, 3), retries=1, min_slots=size, max_slots=size)
    end = begin + 600.0
    campaign = Clockwork(plan, count, work=lambda trial: 30.0 + trial % 7, storms=((begin, end),))
    in_vain = [now for now, _ in campaign.starts if begin <= now < end]
    assert campaign.state.ending == "finished"
    assert set(campaign.outcomes) <= {"finished", "pruned"}
    assert all(node.status == "pool" for node in campaign.state.health.values())
    assert 2 <= len(in_vain) <= count // size + TOGETHER * waves(600.0)
    works_again = min(now for now, _ in campaign.starts if now >= end)
    assert works_again <= end + PAUSE + FAILING + TICK


@pytest.mark.parametrize(
    ("trials", "rung", "nodes", "storms", "blind"),
    [
        (60, 1, 40, ((0.0, 600.0),), True),
        (60, 1, 40, ((0.0, 600.0),), False),
        (60, 9, 12, ((0.0, 400.0), (450.0, 900.0)), False),
    ],
    ids=["probes find nothing", "probes fail", "two in a row"],
)
def test_storms_use_up_no_retries(
    trials: int, rung: int, nodes: int, storms: tuple[tuple[float, float], ...], blind: bool
) -> None:
    plan = Plan(trials=trials, rungs=(rung,))
    campaign = Clockwork(plan, nodes, work=lambda trial: 30.0, storms=storms, blind=blind)
    in_vain = [now for now, _ in campaign.starts if any(begin <= now < end for begin, end in storms)]
    assert campaign.outcomes == {"finished": trials}
    assert len(in_vain) <= nodes + TOGETHER * sum(waves(end - begin) for begin, end in storms)


def test_a_machine_that_never_starts_anything_ends_the_campaign_after_some_time_and_no_sooner() -> None:
    campaign = Clockwork(Plan(trials=200, rungs=(1,)), 12, storms=((0.0, math.inf),))
    assert campaign.state.ending == "hopeless"
    assert not campaign.outcomes
    assert LONGEST <= campaign.world.now <= LONGEST + 4 * PAUSE


@pytest.mark.parametrize(("hopeless", "retries"), [(range(0, 60, 3), 2), ([7], 3), ([7], 0)])
def test_trials_that_can_never_start_are_given_up_among_those_that_can(hopeless: Sequence[int], retries: int) -> None:
    campaign = Clockwork(Plan(trials=60, rungs=(2,), retries=retries), 12, hopeless=frozenset(hopeless))
    assert campaign.state.ending == "finished"
    assert {number for number, outcome in campaign.settled.items() if outcome == "lost"} == set(hopeless)
    assert campaign.outcomes["finished"] == 60 - len(hopeless)
    if len(hopeless) == 1:  # no outage, in which nothing counts
        assert campaign.state.trials[hopeless[0]].attempt == retries + 1


def test_an_end_that_is_reported_twice_counts_once() -> None:
    plan = Plan(trials=40, rungs=(1, 3), retries=1)
    once = Clockwork(plan, 12, bad=("n5",))
    twice = Clockwork(plan, 12, bad=("n5",), assume={"double_reports": 1.0})
    assert twice.settled == once.settled and twice.world.now == once.world.now
