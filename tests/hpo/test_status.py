"""How a campaign stands is read from its journal while it grows, and says the same as the campaign itself knows."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from world import after

from hydragnn.base.errors import InputError
from hydragnn.hpo import CampaignSettings, CampaignStatus, Follower, campaign_status
from hydragnn.hpo.preflight import write_settings
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State
from hydragnn.hpo.scheduling.state import Trouble
from hydragnn.hpo.status.facts import forecast, node_counts

PLAN = Plan(trials=40, rungs=(2, 6, 18), finalists=2, max_slots=2, max_node_seconds=90_000.0)


@pytest.fixture(scope="module")
def player(played: ModuleType) -> Any:
    """A campaign on six nodes, one of them bad, with faults."""
    names = played.nodes(6)
    player = played.Player(PLAN, names, seed=3, own=0.15, machine=0.08, bad=frozenset(names[2:3]), work=30.0)
    player.session(stop_after=1500)
    player.session()
    return player


@pytest.fixture
def folder(player: Any, settings: Callable[..., CampaignSettings], tmp_path: Path) -> Path:
    """The folder of that campaign."""
    place = tmp_path / "campaign"
    place.mkdir()
    write_settings(settings(trials=40, rungs=[2, 6]), [], place)
    player.write(place / "journal.jsonl")
    return place


def test_the_status_agrees_with_the_campaign(folder: Path, player: Any) -> None:
    status = campaign_status(folder)
    state = player.state
    assert status.status == "finished"
    assert (status.planned, sum(status.trials.values())) == (40, len(state.trials))
    assert status.trials["finished"] == sum(trial.status == "finished" for trial in state.trials.values())
    assert [rung.reached for rung in status.rungs] == [
        sum(len(trial.results) > level for trial in state.trials.values()) for level in range(3)
    ]
    assert status.best is not None
    assert (status.best.trial, status.best.value) == (state.best.number, state.best.value)
    assert status.goodput == status.node_hours.goodput
    assert 0.2 < (status.goodput or 0) < 1
    budgets = {budget.name: budget for budget in status.budgets}
    assert budgets["node-hours"].used == pytest.approx(status.node_hours.allocated)
    assert budgets["node-hours"].limit == 25.0
    assert {row.kind for row in status.faults} >= {"launch", "diverged"}
    assert status.forecast is None
    assert set(json.loads(json.dumps(status.to_json(), allow_nan=False))) == set(CampaignStatus.__dataclass_fields__)


def test_a_bad_node_is_named(folder: Path, player: Any) -> None:
    assert campaign_status(folder).nodes.quarantined in (("n3",), ())
    halfway = player.events[: len(player.events) // 4]
    state = State()
    seen = set()
    for now, event in halfway:
        after(state, now, event)
        nodes = node_counts(state)
        seen |= set(nodes.quarantined)
        assert nodes.busy + nodes.idle + nodes.probing + len(nodes.quarantined) == nodes.known == 6
    assert seen == {"n3"}


def test_a_machine_in_trouble_is_told_with_since_when_and_how_often(folder: Path) -> None:
    follower = Follower(folder)
    follower.update()
    assert follower.status().trouble is None
    state = follower.builder.state
    state.trouble = Trouble(number=2, since=50.0, until=80.0)
    assert follower.status().trouble == {"number": 2, "since": 50.0, "until": 80.0}
    state.trouble = Trouble(number=2)
    assert follower.status().trouble == {"number": 2, "since": None, "until": None}
    json.dumps(follower.status().to_json(), allow_nan=False)


def test_the_cost_model_says_how_wrong_it_is(folder: Path) -> None:
    costs = campaign_status(folder).costs
    assert costs.measured > 20
    assert costs.error is not None
    assert 0.02 < costs.error < 0.5  # the planted law has ten per cent of noise, which nothing can predict


def test_a_journal_is_followed_while_it_grows_and_a_torn_line_waits(folder: Path) -> None:
    whole = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(b"")
    follower = Follower(folder)
    assert not follower.update()
    assert follower.status().status == "begun"
    lines = whole.splitlines(keepends=True)
    written = b"".join(lines[:90]) + lines[90][:-9]
    (folder / "journal.jsonl").write_bytes(written)
    assert follower.update()
    assert not follower.update()
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(whole[len(written) :])
    assert follower.update()
    grown, at_once = follower.status().to_json(), campaign_status(folder).to_json()
    silence, costs = ("silence", "costs")
    assert {k: v for k, v in grown.items() if k not in (silence, costs)} == {
        k: v for k, v in at_once.items() if k not in (silence, costs)
    }


def test_a_folder_that_is_no_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a campaign"):
        campaign_status(tmp_path)


@pytest.mark.parametrize(("later", "status"), [(30.0, "running"), (1000.0, "silent")])
def test_a_controller_that_writes_no_more_is_thought_gone(folder: Path, player: Any, later: float, status: str) -> None:
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:101]))  # the first is the claim
    follower = Follower(folder, clock=lambda: player.events[99][0] + later)
    follower.update()
    found = follower.status()
    assert (found.status, found.silence) == (status, pytest.approx(later))


@pytest.mark.parametrize(("limit", "by", "seconds"), [(60.0, "hours", 50.0), (None, "finished", 200.0)])
def test_the_forecast_is_the_budget_that_ends_first_or_the_epochs_that_the_rungs_will_ask_for(
    limit: float | None, by: str, seconds: float
) -> None:
    plan = Plan(trials=9, rungs=(1, 3, 9), max_seconds=limit, grace=5.0)
    state = State()
    after(state, 0.0, Opened(plan=plan, slots=("n1",)))
    assert forecast(state, 5.0) is None
    after(state, 0.0, Proposed(trial=0, values={"model.hidden_dim": 32}))
    after(state, 10.0, Reached(trial=0, attempt=1, epochs=1, value=0.75))
    # 9 trials to epoch 1, 3 to epoch 3, 1 to epoch 9: 9 + 6 + 6 = 21 epochs, one done in ten seconds
    found = forecast(state, 10.0)
    assert found is not None
    assert (found.by, found.seconds) == (by, pytest.approx(seconds))
