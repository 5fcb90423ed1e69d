"""The cost model finds a planted law, says how wrong it is, and never predicts nonsense."""

import math

import numpy as np
import pytest
from clockwork import Clockwork
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.hpo.costs import FEWEST, CostLaw, Estimates, Sized, law_of, scaling_of
from hydragnn.hpo.scheduling.events import Plan
from hydragnn.hpo.scheduling.scheduler import State, decide
from hydragnn.hpo.scheduling.sizing import Load
from hydragnn.hpo.simulation import Course
from hydragnn.hpo.space.parameters import Choices, FloatRange, IntRange
from hydragnn.hpo.space.points import Point, Space, random_point, space_of

SPACE = space_of(
    {
        "model.kind": Choices(choices=["schnet", "egnn", "mace"]),
        "model.hidden_dim": IntRange(low=16, high=256, log=True),
        "model.layers": IntRange(low=1, high=6),
        "model.order": IntRange(low=1, high=3, when={"model.kind": "mace"}),
        "batch.graphs": Choices(choices=[16, 32, 64]),
        "heads.0.hidden_dims": Choices(choices=[[32], [64, 64]]),
        "train.learning_rate": FloatRange(low=1e-5, high=1e-1, log=True),
    }
)
FACTOR = {"schnet": 1.0, "egnn": 2.5, "mace": 9.0}


def planted(values: Point) -> float:
    """Costs as they are: powers of widths and depths, another power for one kind, more for the higher order."""
    power = 2.0 if values["model.kind"] == "mace" else 1.2
    width = (values["model.hidden_dim"] / 64) ** power
    return 3.0 * FACTOR[values["model.kind"]] * width * values["model.layers"] * 1.5 ** values.get("model.order", 0)


def points(count: int, seed: int) -> list[Point]:
    generator = np.random.default_rng(seed)
    return [random_point(SPACE, generator) for _ in range(count)]


def measured(count: int, noise: float, seed: int = 0) -> list[tuple[Point, float]]:
    generator = np.random.default_rng(seed + 1)
    return [(p, planted(p) * math.exp(noise * generator.normal())) for p in points(count, seed)]


def fitted(history: list[tuple[Point, float]], space: Space = SPACE) -> CostLaw:
    law = law_of(history, space)
    assert law is not None
    return law


@pytest.mark.parametrize(("count", "noise", "bound"), [(60, 0.0, 0.10), (60, 0.1, 0.25), (400, 0.1, 0.10)])
def test_new_configurations_cost_what_was_predicted(count: int, noise: float, bound: float) -> None:
    model = fitted(measured(count, noise))
    assert np.mean([abs(model(p) / planted(p) - 1) for p in points(200, 99)]) < bound


def test_the_stated_error_is_the_error_on_new_configurations() -> None:
    model = fitted(measured(120, 0.1), SPACE)
    fresh = measured(400, 0.1, seed=50)
    wrong = np.mean([abs(model(p) / cost - 1) for p, cost in fresh])
    assert model.error == pytest.approx(wrong, rel=0.35)


def test_costs_that_have_nothing_to_do_with_the_configuration_are_predicted_by_their_middle() -> None:
    generator = np.random.default_rng(0)
    model = fitted([(p, math.exp(generator.normal())) for p in points(100, 0)], SPACE)
    spread = [model(p) for p in points(50, 1)]
    assert max(spread) < 4 * min(spread) and model.error > 0.5


def test_too_few_measurements_predict_nothing() -> None:
    unusable = [(p, cost) for p, cost in zip(points(9, 0), [0.0, -1.0, math.nan, math.inf] * 2)]
    for history in (measured(FEWEST - 1, 0.0), unusable):
        assert law_of(history, SPACE) is None


ODD: list[Point] = [
    {},
    {"model.kind": "unheard of", "model.hidden_dim": 64},
    {"model.kind": "mace", "model.hidden_dim": 10**9, "model.layers": 10**6},
    {"model.hidden_dim": "wide", "model.layers": math.nan, "batch.graphs": -3, "unknown.path": 1},
]


@given(costs=st.lists(st.floats(1e-6, 1e6), min_size=FEWEST, max_size=30), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_any_configuration_gets_a_cost_near_those_measured(costs: list[float], seed: int) -> None:
    known = points(len(costs), seed)
    model = fitted(list(zip(known, costs)), SPACE)
    for point in [*known[:3], *points(3, seed + 1), *ODD]:
        predicted = model(point)
        assert min(costs) / 3.01 < predicted < max(costs) * 3.01
    assert model.error >= 0


def test_what_segments_measured_becomes_the_model() -> None:
    plan = Plan(trials=12, rungs=(2, 4, 6, 8), reduction=1, max_slots=6)

    def course_of(trial: int) -> Course:
        return Course(work=float(2 ** (trial % 4)), scaling=8.0, curve=(0.5,) * 8)

    campaign = Clockwork(plan, 12, course_of=course_of, values_of=lambda trial: {"model.hidden_dim": 2 ** (trial % 4)})
    estimates = Estimates(Space(parameters={"model.hidden_dim": IntRange(low=1, high=8, log=True)}))
    state = State()
    for now, event in campaign.events:
        decide(state, event, now)
        estimates.follow(event, state)
    estimates.fit(state)
    assert len(estimates.measured) == 12
    assert estimates.scaling == pytest.approx(8.0, rel=0.05)
    work, scaling = estimates.of({"model.hidden_dim": 4})
    assert work == pytest.approx(4.0, rel=0.3) and scaling == estimates.scaling


@given(scaling=st.floats(1.0, 500.0), seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_the_loss_by_more_slots_is_found_from_trials_on_several_sizes(scaling: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    works = np.exp(generator.normal(3, 1, size=6))
    exact = [
        Sized(trial=number, slots=p, seconds=Load(work, scaling).on(p))
        for number, work in enumerate(works)
        for p in generator.choice([1, 2, 4, 8, 16], size=3, replace=False).tolist()
    ]
    assert scaling_of(exact) == pytest.approx(scaling, rel=0.02)
    assert scaling_of([]) is scaling_of(Sized(trial=k, slots=2**k, seconds=1.0) for k in range(4)) is None


def test_equal_configurations_cost_the_mean_of_their_logarithms_also_where_there_are_no_others() -> None:
    one = Space(parameters={"model.hidden_dim": IntRange(low=8, high=8)})
    for space, point in ((SPACE, points(1, 0)[0]), (one, {"model.hidden_dim": 8})):
        for costs, mean in (([1.0, 1.0, 4.0, 4.0], 2.0), ([2.0] * 5, 2.0)):
            model = fitted([(point, cost) for cost in costs], space)
            assert model(point) == pytest.approx(mean)
    assert model.error == pytest.approx(0.0, abs=1e-9)
