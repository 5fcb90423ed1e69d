"""The critical batch is that of the gradient's noise (McCandlish et al. 2018, arXiv:1812.06162)."""

from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.parallel import AXES
from hydragnn.runs.rank_steps import Steps, measured_noise, noise_scale
from hydragnn.training.data import Share
from hydragnn.training.loop import gradient_of_share
from tests.hydragnn.training.conftest import PLAIN_ENERGY, STORE, assembled, make_config

SEEDS = 40


def regression(seed: int, distance: float, steps: int = 16, parts: int = 8, size: int = 4) -> tuple[Any, float]:
    """Return squared gradients of a linear regression ``distance`` away from its solution, and its noise scale."""
    random, dim = np.random.default_rng(seed), 20
    x = random.normal(size=(steps, parts, size, dim))
    away = np.full(dim, distance)
    gradients = (2 * x * (x @ away - random.normal(size=x.shape[:3]))[..., None]).mean(2)
    squares = np.stack([(gradients**2).sum(-1).mean(1), (gradients.mean(1) ** 2).sum(-1)], axis=1)
    length = dim * distance**2  # the covariance of a gradient is known in closed form
    scale = ((dim + 1) * length + dim) / length if length else np.inf
    return squares, scale


@pytest.mark.parametrize("distance", [0.2, 0.4, 1.0])
def test_the_estimate_is_the_truth_within_its_standard_error(distance: float) -> None:
    errors = []
    for seed in range(SEEDS):
        squares, scale = regression(seed, distance)
        found = noise_scale(squares, 4, 32)
        assert found["graphs"] is not None and found["standard_error"] is not None
        errors.append((found["graphs"] - scale) / found["standard_error"])
    assert abs(np.mean(errors)) < 3 / np.sqrt(SEEDS) and 0.7 < np.std(errors) < 1.4
    assert np.mean(np.abs(errors) < 2) > 0.85


def test_of_a_solved_problem_there_is_a_bound_alone() -> None:
    found = [noise_scale(regression(seed, 0.0)[0], 4, 32) for seed in range(SEEDS)]
    hidden = [one for one in found if one["graphs"] is None]
    assert len(hidden) > 0.8 * SEEDS and all(one["standard_error"] is None for one in hidden)
    assert min(one["at_least"] or 0.0 for one in hidden) > 32


def test_noise_that_outweighs_the_gradient_by_chance_bounds_nothing_beyond_its_error() -> None:
    squares = np.array([[100.0, 1.0], [120.0, 1.0]])  # the mean gradient's square would be negative
    assert noise_scale(squares, 4, 32)["at_least"] == pytest.approx(174.4)


def alone(seconds: float) -> Steps:
    """Return steps of a device that take so long for an edge."""
    sizes = dict.fromkeys(AXES, 1)
    return Steps(sizes=sizes, chunks=1, parts=1, costs=(1.0,), repeats=((seconds,),), memory=(0.0,), state=0)


def noise_of(**changes: Any) -> tuple[Any, dict[str, Any]]:
    run = assembled(make_config("schnet", [PLAIN_ENERGY], **changes), STORE)
    return run, measured_noise(run, alone(1e-9), 256, 1, lambda what, left: None)


def test_the_noise_of_a_run_is_that_of_the_gradients_of_its_graphs() -> None:
    """At weights that do not move."""
    run, found = noise_of(train__learning_rate=1e-30)
    feed, gradients = run.data.branches[0].train, []
    for graph in feed.loader.indices:
        gradient_of_share(run.state, Share(branch=0, parts=feed.parts_of(np.array([graph]))), run.context)
        gradients.append(run.state.parameters.gradient.clone())
    each = torch.stack(gradients)
    mean = each.mean(0)
    exact = float(((each - mean) ** 2).sum(1).mean() / mean.square().sum())
    assert found["graphs"] == pytest.approx(exact, abs=3 * found["standard_error"])
    assert found["standard_error"] < 0.3 * exact and found["batch"] == 28


def test_a_measurement_has_the_same_bits_twice_and_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.runs.rank_steps.WIDE", 16)
    (run, first), (_, second) = noise_of(train__precision="fp32"), noise_of(train__precision="fp32")
    assert first == second and run.state.step == 56
    assert noise_of(train__precision="fp32", train__seed=7)[1]["at_least"] != first["at_least"]


@pytest.mark.parametrize(
    ("batch", "devices", "seconds", "graphs"), [(512, 1, 1e-9, 256), (6, 1, 1e-9, 252), (6, 9, 1.0, 8)]
)
def test_parts_are_those_of_a_device_and_long_steps_have_fewer(
    batch: int, devices: int, seconds: float, graphs: int
) -> None:
    run = assembled(make_config("schnet", [PLAIN_ENERGY]), STORE)
    found = measured_noise(run, alone(seconds), batch, devices, lambda what, left: None)
    assert (found["graphs_per_step"], found["batch"]) == (graphs, min(batch, 28))
