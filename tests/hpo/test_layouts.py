"""Campaigns search layouts that fit, and use the fastest."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clockwork import after

from hydragnn.base.errors import InputError
from hydragnn.hpo.costs import Estimates
from hydragnn.hpo.objective import objective_value
from hydragnn.hpo.sampling.proposals import Proposals
from hydragnn.hpo.sampling.sampler import History, history_of, proposals
from hydragnn.hpo.sampling.tpe import ParzenEstimators
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.space.able import check_model
from hydragnn.hpo.space.points import point_key, random_point, space_of
from hydragnn.hpo.trial_configs import check_space
from hydragnn.record import Cost, Failure, RunRecord
from tests.hydragnn.distributed.splitting import configuration
from tests.hydragnn.training.worker import clusters

SIZES = {"shard": [1, 2, 4], "tensor": [1, 2], "graph": [1, 2]}
RATE = {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}
Settings = Callable[..., Any]


def seconds_of(values: dict[str, Any]) -> float:
    """Return seconds per graph; shard = 2 and tensor = 2 is the fastest."""
    return 1.0 + abs(values["parallel.shard"] - 2) + abs(values["parallel.tensor"] - 2) + values["parallel.graph"]


def course_of(campaign: Any, trials: int) -> list[dict[str, Any]]:
    """Return the configurations of a campaign of equal errors."""
    space, state = space_of(campaign.search.space), State()
    after(state, 0.0, Opened(plan=Plan(trials=trials, rungs=(1,)), slots=("p",)))
    for number in range(trials):
        (point,) = proposals(campaign, history_of(campaign, space, state), number, 1, keys_of(state))
        speed = 1.0 / seconds_of(point)
        after(
            state,
            0.0,
            Proposed(trial=number, values=point),
            Reached(trial=number, attempt=1, epochs=1, value=0.5, speed=speed),
        )
    return [trial.values for trial in state.trials.values()]


def keys_of(state: State) -> set[str]:
    return {point_key(trial.values) for trial in state.trials.values()}


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"ranks_per_node": None}, "set search.ranks_per_node"),
        ({"space": {"parallel": {"shard": [1, 3]}}}, r"shard = 3 takes 3 ranks, which do not divide the 4"),
        ({"space": {"parallel": {"tensor": [1, 8]}}, "nodes_per_trial": 2}, "would share channels between nodes"),
        ({"space": {"parallel": {"shard": [1, 8]}}, "nodes_per_trial": (1, 2)}, "trials on 1 node"),
        ({"layout_trials": 9, "trials": 12}, "8 layouts of search.space.parallel fit"),
    ],
)
def test_a_layout_that_does_not_fit_the_ranks_of_a_trial_is_one_sentence(
    settings: Settings, search: dict[str, Any], words: str
) -> None:
    campaign = settings(**{"space": {"parallel": SIZES}, "ranks_per_node": 4, "trials": 2, **search})
    with pytest.raises(InputError, match=words) as caught:
        check_space(campaign, space_of(campaign.search.space))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "layout", "words"),
    [
        ("schnet", {"pipeline": 2}, "stages cannot divide the model; leave parallel.pipeline = 2 out"),
        ("dimenet", {"graph": 2}, "so that ranks cannot share one graph"),
        ("schnet", {"tensor": 3}, "does not divide model.hidden_dim"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused_before_a_search(
    kind: str, layout: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check_model(configuration(kind, {}, parallel=layout), lambda place: clusters(4))


def test_chunks_are_searched_beside_stages(settings: Settings) -> None:
    sizes = {"parallel": {"pipeline": [1, 2], "chunks": [1, 2]}}
    campaign = settings(space=sizes, ranks_per_node=2, trials=3, sampler="tpe")
    for layers, fit in {4: [(1, 1), (2, 1), (2, 2)], 3: [(1, 1), (2, 1)]}.items():  # every chunk takes a layer
        campaign.base["model"]["num_layers"] = layers
        check_space(campaign, space_of(campaign.search.space))
        layouts = proposals(campaign, History(space=space_of(campaign.search.space)), 0, 20, set())
        assert sorted((one["parallel.pipeline"], one["parallel.chunks"]) for one in layouts) == fit


def test_proposed_layouts_divide_the_ranks_until_none_is_left(settings: Settings) -> None:
    campaign = settings(space={"parallel": SIZES}, ranks_per_node=4, trials=8, sampler="tpe")
    layouts = proposals(campaign, History(space=space_of(campaign.search.space)), 0, 20, set())
    products = [one["parallel.shard"] * one["parallel.tensor"] * one["parallel.graph"] for one in layouts]
    assert len(layouts) == 8
    assert all(4 % product == 0 for product in products)


def test_the_fastest_of_the_first_layouts_is_that_of_all_later_trials(settings: Settings) -> None:
    space = {"parallel": SIZES, "train.learning_rate": RATE}
    points = course_of(settings(space=space, ranks_per_node=4, trials=12, layout_trials=8, sampler="tpe"), 12)
    layouts = [{path: value for path, value in point.items() if path != "train.learning_rate"} for point in points]
    rates = [point["train.learning_rate"] for point in points]
    assert rates[:8] == pytest.approx([1e-3] * 8)  # the middle of the range
    assert len({str(layout) for layout in layouts[:8]}) == 8
    assert all(one == {"parallel.shard": 2, "parallel.tensor": 2, "parallel.graph": 1} for one in layouts[8:])
    assert len(set(rates[8:])) == 4


def test_with_many_workers_later_trials_wait_for_the_layout(settings: Settings, tmp_path: Path) -> None:
    space = {"parallel": {"shard": [1, 2]}, "train.learning_rate": RATE}
    campaign = settings(space=space, ranks_per_node=2, trials=6, layout_trials=2, sampler="random")
    own, state = space_of(campaign.search.space), State()
    after(state, 0.0, Opened(plan=Plan(trials=6, rungs=(1,)), slots=("a", "b", "c", "d")))
    requests = Proposals(campaign, own, [], state, Estimates(own), tmp_path / "log")
    for number in range(4):
        requests.ask(number)

    def answers(count: int) -> list[Any]:
        events: list[Any] = []
        while len(events) < count:
            if (event := requests.answer(state, math.inf)) is not None:
                events.append(event)
        return events

    for event in answers(2):
        after(state, 0.0, event)
    speeds = {0: 1.0, 1: 2.0}
    for number, speed in speeds.items():
        assert requests.answer(state, math.inf) is None and not requests.busy
        after(state, 0.0, Reached(trial=number, attempt=1, epochs=1, value=0.5, speed=speed))
    later = answers(2)
    requests.close()
    assert [event.values["parallel.shard"] for event in later] == [state.trials[1].values["parallel.shard"]] * 2


def test_throughput_is_minimised_as_seconds_per_graph() -> None:
    record = RunRecord(config={}, config_hash="", data_hash="", seed=0, cost=Cost(graphs_per_second=40.0))
    assert objective_value(record, "throughput") == 0.025


def test_layouts_that_ran_out_of_memory_become_improbable(settings: Settings) -> None:
    campaign = settings(space={"train.learning_rate": RATE, "parallel": {"shard": [1, 2, 4]}}, ranks_per_node=4)
    space = space_of(campaign.search.space)
    failure = Failure(kind="out_of_memory", message="no memory")

    def trial(number: int) -> Trial:
        history = History(space=space)
        values = random_point(space, history.generator(number))
        if values["parallel.shard"] == 1:
            return Trial(number=number, status="failed", values=values, failure=failure)
        return Trial(number=number, status="finished", values=values, results=(1.0 + number % 3,))

    history = History(space=space, startup=4, trials=tuple(map(trial, range(30))), rungs=(1,))
    sampler = ParzenEstimators()
    drawn = [sampler.propose(history, number)["parallel.shard"] for number in range(30, 60)]
    assert drawn.count(1) <= 2  # of 30; ten without the constraint
