"""Faults that come together over nodes are one fault of the machine: starts pause, no trial is lost, no node is blamed."""

import math
from dataclasses import dataclass, field

import pytest
from test_faults import Clockwork

from hydragnn.hpo.scheduling.events import Failed, Plan, Probed, Start
from hydragnn.hpo.scheduling.trouble import LONGEST, PAUSE, TOGETHER

FAILING = 20.0  # seconds that a launch takes to fail


@dataclass
class Stormy(Clockwork):
    """All launches and probes fail in storms, and the launches of some trials always."""

    storms: tuple[tuple[float, float], ...] = ()
    """From when to when."""
    hopeless: frozenset[int] = frozenset()
    vain: list[float] = field(default_factory=list, init=False)

    @property
    def is_storm(self) -> bool:
        return any(begin <= self.now < end for begin, end in self.storms)

    def train(self, start: Start) -> None:
        if not (self.is_storm or start.trial in self.hopeless):
            super().train(start)
            return
        self.vain.append(self.now)
        self.later(FAILING, Failed(trial=start.trial, attempt=start.attempt, kind="launch", message="no answer"))

    def probe(self, node: str) -> None:
        self.later(1.0, Probed(node=node, healthy=not self.is_storm, message="no answer"))


def nodes(count: int) -> tuple[str, ...]:
    return tuple(f"n{k}" for k in range(count))


@pytest.mark.parametrize("begin", [0.0, 95.0], ids=["at the beginning", "later"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("count", [2, 6, 40])
def test_a_storm_of_failing_launches_loses_no_trial_and_no_node(count: int, size: int, begin: float) -> None:
    size = min(size, count // 2)
    plan = Plan(trials=4 * count, rungs=(1, 3), retries=1, min_slots=size, max_slots=size)
    end = begin + 600.0
    campaign = Stormy(plan, nodes(count), work=lambda trial: 30.0 + trial % 7, storms=((begin, end),)).run()
    assert campaign.state.ending == "finished"
    assert set(campaign.outcomes) <= {"finished", "pruned"}
    assert all(node.status == "pool" for node in campaign.state.health.values())
    waves = 600.0 / (PAUSE + FAILING) + 1
    assert 2 <= len(campaign.vain) <= count // size + TOGETHER * waves
    works_again = min(now for now, _ in campaign.starts if now >= end and now not in campaign.vain)
    assert works_again <= end + PAUSE + FAILING


def test_probes_that_find_nothing_in_a_storm_do_not_end_it() -> None:
    @dataclass
    class Blind(Stormy):
        def probe(self, node: str) -> None:
            self.later(1.0, Probed(node=node, healthy=True))

    campaign = Blind(Plan(trials=60, rungs=(1,)), nodes(40), work=lambda trial: 30.0, storms=((0.0, 600.0),)).run()
    assert campaign.outcomes == {"finished": 60}
    assert len(campaign.vain) <= 40 + TOGETHER * (600.0 / (PAUSE + FAILING) + 1)


def test_two_storms_in_a_row_do_not_use_up_the_retries() -> None:
    campaign = Stormy(
        Plan(trials=60, rungs=(9,)), nodes(12), work=lambda trial: 30.0, storms=((0.0, 400.0), (450.0, 900.0))
    ).run()
    assert campaign.outcomes == {"finished": 60}


def test_a_machine_that_never_starts_anything_ends_the_campaign_after_some_time_and_no_sooner() -> None:
    campaign = Stormy(Plan(trials=200, rungs=(1,)), nodes(12), storms=((0.0, math.inf),)).run()
    assert campaign.state.ending == "hopeless"
    assert not campaign.outcomes
    assert LONGEST <= campaign.now <= LONGEST + 4 * PAUSE


def test_trials_that_can_never_start_are_given_up_among_those_that_can() -> None:
    hopeless = frozenset(range(0, 60, 3))
    campaign = Stormy(Plan(trials=60, rungs=(2,), retries=2), nodes(12), hopeless=hopeless).run()
    assert campaign.state.ending == "finished"
    assert {number for number, outcome in campaign.settled.items() if outcome == "lost"} == hopeless
    assert campaign.outcomes["finished"] == 40


def test_an_end_that_is_reported_twice_or_late_counts_once() -> None:
    class Twice(Clockwork):
        def later(self, seconds: float, event: object) -> None:
            super().later(seconds, event)  # type: ignore[arg-type]
            if isinstance(event, Failed) or type(event).__name__ == "Reached":
                super().later(seconds + 600.0, event)  # type: ignore[arg-type]

    plan = Plan(trials=40, rungs=(1, 3), retries=1)
    once = Clockwork(plan, nodes(12), bad=("n5",)).run()
    twice = Twice(plan, nodes(12), bad=("n5",)).run()
    assert twice.settled == once.settled and twice.now == once.now
