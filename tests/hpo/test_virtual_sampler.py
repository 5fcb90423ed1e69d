"""The sampler of a simulation takes the time of a real one: in batches, ahead where it is slow, with stand-ins where it is slower."""

from pathlib import Path
from typing import Any

from hydragnn.hpo import campaign_settings
from hydragnn.hpo.scheduling.events import Event, Proposed, Tick
from hydragnn.hpo.simulation import Assumptions, scenario_of
from hydragnn.hpo.simulation.campaign import VirtualSampler
from hydragnn.hpo.simulation.world import World

TABLE: dict[str, Any] = {
    "data": {"store": "nowhere.h5"},
    "model": {"kind": "schnet"},
    "heads": [{"kind": "scalar", "field": "energy"}],
    "search": {"trials": 10, "space": {"train.learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2}}},
}


class Asked:
    """A sampler in a world where nothing else happens, and when it answered whom."""

    def __init__(self, **seconds: float) -> None:
        settings = campaign_settings(TABLE, Path("CAMPAIGN.toml"))
        assumptions = Assumptions(node_mtbf_hours=0, **seconds)
        self.world = World(scenario_of(settings, assumptions, nodes=16, seed=0))
        self.world.open(0, 0.0, 0.0)
        self.sampler = VirtualSampler(self.world, lambda trial: Proposed(trial=trial, values={}))
        self.answers: dict[int, float] = {}

    def ask(self, *trials: int, learns: bool = True, wide: bool = True) -> None:
        for trial in trials:
            self._note(self.sampler.ask(trial, learns=learns, wide=wide))

    def wait(self, until: float) -> None:
        while self.world.next_time() <= until:
            self._note([event for event in self.world.advance() if not isinstance(event, Tick)])

    def _note(self, events: list[Event]) -> None:
        for event in events:
            assert isinstance(event, Proposed) and event.trial not in self.answers
            self.answers[event.trial] = round(self.world.now, 6)


def test_what_was_asked_while_the_sampler_thought_is_answered_together() -> None:
    asked = Asked(seconds_per_proposal=0.25)
    asked.ask(0, 1, 2, learns=False)
    assert asked.answers == {0: 0.0, 1: 0.0, 2: 0.0}, "random draws take no time"
    asked.ask(*range(3, 8))
    asked.wait(5.0)
    assert asked.answers == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.25, **dict.fromkeys(range(4, 8), 1.25)}


def test_random_configurations_stand_in_for_a_slow_sampler_which_is_asked_ahead() -> None:
    asked = Asked(proposal_seconds=6.0, seconds_per_proposal=0.0)
    asked.ask(0, 1, 2, 3)
    asked.wait(11.0)
    assert asked.answers == {0: 6.0, 1: 10.0, 2: 10.0, 3: 10.0}
    asked.wait(13.0)
    asked.ask(4, 5)
    assert asked.answers[4] == asked.answers[5], "they were worked out ahead"


def test_a_campaign_of_one_worker_waits_for_its_sampler() -> None:
    asked = Asked(proposal_seconds=60.0, seconds_per_proposal=0.5)
    asked.ask(0, wide=False)
    asked.wait(100.0)
    assert asked.answers == {0: 60.5}
