"""The forest: points as numbers and back, what it learns from, and many points from one fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hydragnn.hpo.forest import Axes, lessons_of, on_a_scale
from hydragnn.hpo.parameters import Parameter, parsed_parameter
from hydragnn.hpo.sampler import MODELS, History, history_of, proposals
from hydragnn.hpo.scheduling.events import Opened, Plan, Proposed, Reached
from hydragnn.hpo.scheduling.scheduler import State, Trial, transition
from hydragnn.hpo.space import Point, Space, is_point, point_key, random_point, space_of
from hydragnn.record import Failure

TABLES: dict[str, dict[str, Any]] = {
    "model.kind": {"type": "categorical", "choices": ["schnet", "egnn"]},
    "model.attention": {"type": "categorical", "choices": [True, False], "when": {"model.kind": "egnn"}},
    "model.hidden_dim": {"type": "int", "low": 8, "high": 128, "log": True},
    "model.num_radial": {"type": "int", "low": 4, "high": 16, "step": 4, "when": {"model.kind": ["schnet"]}},
    "heads.0.hidden_dims": {"type": "categorical", "choices": [[32], [64, 64]]},
    "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "train.clip_norm": {"type": "float", "low": 0.5, "high": 2.5, "step": 0.5},
}
PARAMETERS: dict[str, Parameter] = {path: parsed_parameter(path, table, "test") for path, table in TABLES.items()}


@pytest.fixture
def space() -> Space:
    return space_of(PARAMETERS)


def some_points(space: Space, count: int, seed: int = 0) -> list[Point]:
    generator = np.random.default_rng(seed)
    return [random_point(space, generator) for _ in range(count)]


def told(points: list[Point], error: Callable[[Point], float]) -> tuple[Trial, ...]:
    return tuple(
        Trial(number=number, status="finished", values=point, results=(error(point),))
        for number, point in enumerate(points)
    )


def test_points_become_numbers_and_come_back(space: Space) -> None:
    points, axes = some_points(space, 200), Axes(space)
    numbers = axes.fractions(points, np.random.default_rng(1))
    for point, row in zip(points, numbers):
        back = axes.point(row)
        assert back.keys() == point.keys() and back["train.learning_rate"] == pytest.approx(
            point["train.learning_rate"], rel=1e-9
        )
        assert {**back, "train.learning_rate": 0} == {**point, "train.learning_rate": 0}


def test_a_value_that_was_rounded_on_its_way_is_the_nearest_of_its_grid(space: Space) -> None:
    point = {**some_points(space, 1)[0], "train.clip_norm": 1.5 + 1e-10}
    axes = Axes(space)
    assert axes.point(axes.fractions([point], np.random.default_rng(0))[0])["train.clip_norm"] == 1.5


def test_trees_see_what_is_active_and_nothing_of_what_is_not(space: Space) -> None:
    axes = Axes(space)
    point = {
        "model.kind": "schnet",
        "model.hidden_dim": 128,
        "model.num_radial": 16,
        "heads.0.hidden_dims": [64, 64],
        "train.learning_rate": 1e-3,
        "train.clip_norm": 0.5,
    }
    one, other = (axes.inputs(axes.fractions([point], np.random.default_rng(seed)))[0] for seed in (0, 1))
    np.testing.assert_array_equal(one, other)  # the numbers of inactive parameters differ, the inputs do not
    order = list(space.parameters)
    widths = [2 if "choices" in TABLES[path] else 1 for path in order]
    columns = dict(zip(order, np.split(one, np.cumsum(widths)[:-1])))
    assert columns["model.kind"].tolist() == [1, 0] and columns["heads.0.hidden_dims"].tolist() == [0, 1]
    assert columns["model.attention"].tolist() == [-1, -1]
    assert columns["model.num_radial"].tolist() == [1] and columns["train.clip_norm"].tolist() == [0]
    assert columns["train.learning_rate"] == pytest.approx(0.5)


def test_one_answer_holds_many_points_that_differ_and_are_new(space: Space, settings: Any) -> None:
    campaign = settings(sampler="forest", space=TABLES)
    points = some_points(space, 20)
    history = History(trials=told(points, lambda point: float(point["model.hidden_dim"])), rungs=(1,))
    known = {point_key(point) for point in points}
    answer = proposals(campaign, space, history, 20, 50, known)
    keys = {point_key(point) for point in answer}
    assert len(answer) == len(keys) == 50 and not keys & known
    assert all(is_point(space, point) for point in answer)
    assert answer == proposals(campaign, space, history, 20, 50, known)


def test_failed_trials_are_as_bad_as_the_worst(space: Space, settings: Any) -> None:
    campaign = settings(sampler="forest", space=TABLES)
    failed = Failure(kind="diverged", message="nan")
    trials = tuple(
        Trial(number=number, status="failed", values=point, failure=failed)
        if point["model.kind"] == "egnn"
        else Trial(number=number, status="finished", values=point, results=(1.0 + 0.01 * number,))
        for number, point in enumerate(some_points(space, 40))
    )
    answer = proposals(campaign, space, History(trials=trials, rungs=(1,)), 40, 32, set())
    assert sum(point["model.kind"] == "egnn" for point in answer) < 8, "half of them by chance"


def test_no_choice_is_given_up_however_bad_it_looks(space: Space, settings: Any) -> None:
    campaign = settings(sampler="forest", space=TABLES)
    trials = told(some_points(space, 60), lambda point: 1.0 + 9.0 * (point["model.kind"] == "egnn"))
    answer = proposals(campaign, space, History(trials=trials, rungs=(1,)), 60, 128, set())
    assert 2 <= sum(point["model.kind"] == "egnn" for point in answer) < 32


def test_a_trial_teaches_with_each_of_its_rungs() -> None:
    trials = [
        Trial(number=0, status="finished", values={}, results=(0.5, 0.3)),
        Trial(number=1, status="paused", values={}, results=(0.7,)),
        Trial(number=2, status="failed", values={}, results=(0.6,)),
    ]
    lessons = lessons_of(trials, (1, 9))
    assert lessons.rows.tolist() == [0, 0, 1, 2, 2]
    assert lessons.stage.tolist() == [0, 1, 0, 0, 1]
    assert lessons.values.argmin() == 1 and lessons.values[4] == lessons.values[2] == lessons.values.max()


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [-5.0, -4.0, 1e300], [1e-300, 2e-300, 3e-300]])
def test_any_objective_has_a_finite_logarithm_in_its_order(values: list[float]) -> None:
    scaled = on_a_scale(np.array(values))
    assert np.isfinite(scaled).all() and (np.diff(scaled) >= 0).all()


def test_a_finite_space_is_used_up_without_repetition(settings: Any) -> None:
    table = {"model.hidden_dim": {"type": "int", "low": 4, "high": 48, "step": 4}}
    campaign = settings(sampler="forest", trials=1, rungs=[], space=table)
    space, state = space_of(campaign.search.space), State()
    state, _ = transition(state, Opened(plan=Plan(trials=99, rungs=(1,)), slots=("p",)), 0.0)
    seen: list[int] = []
    while answer := proposals(
        campaign,
        space,
        history_of(campaign, state),
        len(seen),
        5,
        {point_key(trial.values) for trial in state.trials.values()},
    ):
        for point in answer:
            state, _ = transition(state, Proposed(trial=len(seen), values=point), 0.0)
            state, _ = transition(state, Reached(trial=len(seen), attempt=1, epochs=1, value=1.0), 0.0)
            seen.append(point["model.hidden_dim"])
    assert sorted(seen) == list(range(4, 49, 4))


def test_what_the_forest_is_told_has_a_limit_of_its_own(settings: Any) -> None:
    campaign = settings(sampler="forest", trials=5000, space={"train.learning_rate": TABLES["train.learning_rate"]})
    state, _ = transition(State(), Opened(plan=Plan(trials=5000, rungs=(1, 2), reduction=9999), slots=("a", "b")), 0.0)
    for number in range(1500):
        state, _ = transition(state, Proposed(trial=number, values={"train.learning_rate": 1e-5 * (1 + number)}), 0.0)
        state, _ = transition(state, Reached(trial=number, attempt=1, epochs=1, value=float(-number)), 0.0)
    history = history_of(campaign, state)
    assert 400 < len(history.trials) <= MODELS["forest"] and history.trials[-1].number == 1499
