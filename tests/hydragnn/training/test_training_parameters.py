"""Weights, schedules, clipping and averages."""

import math

import pytest
import torch
from torch import nn

from hydragnn.config import TrainSettings
from hydragnn.training.parameters import FlatParameters, average_in_place, clip_in_place
from hydragnn.training.schedule import best_epoch, learning_rate, out_of_patience, plateaus


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_one_flat_vector_moves_like_separate_parameters(optimizer: str) -> None:
    ours, theirs = network(), network()
    flat = FlatParameters(ours, TrainSettings(optimizer=optimizer, weight_decay=0.1))
    kind, options = {
        "adamw": (torch.optim.AdamW, {}),
        "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    }[optimizer]
    reference = kind(theirs.parameters(), lr=0.05, weight_decay=0.1, **options)
    for _ in range(5):
        inputs = torch.randn(7, 3)
        flat.zero_gradient()
        reference.zero_grad()
        for model in (ours, theirs):
            model(inputs).square().sum().backward()
        flat.step(0.05)
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other)


def test_parameters_stay_views_of_the_vector_and_begin_on_aligned_boundaries() -> None:
    model = network()
    before = [value.clone() for value in model.parameters()]
    weights = FlatParameters(model, TrainSettings())
    model(torch.randn(2, 3)).sum().backward()
    for old, new in zip(before, model.parameters()):
        assert torch.equal(old, new)
        assert new.untyped_storage().data_ptr() == weights.vector.untyped_storage().data_ptr()
        assert new.grad.untyped_storage().data_ptr() == weights.gradient.untyped_storage().data_ptr()
    assert all(start * 4 % 64 == 0 for _, _, start in weights.layout)
    assert weights.count == sum(value.numel() for value in before)


def test_the_best_weights_are_those_that_were_validated_and_come_for_a_block_only() -> None:
    model = network()
    weights = FlatParameters(model, TrainSettings(ema_decay=0.5))
    start = weights.vector.clone()
    weights.vector.add_(1.0)
    weights.average(steps=1)
    expected = start.lerp(start + 1.0, 1 - 2 / 11)
    with weights.swap_in_eval_parameters():
        torch.testing.assert_close(weights.vector, expected)
        weights.keep_best()
    weights.average(steps=1)
    assert torch.equal(weights.vector, start + 1.0)
    with weights.best():
        torch.testing.assert_close(weights.vector, expected)
    assert torch.equal(weights.vector, start + 1.0)
    of_optimizer = {f"optimizer/{name}" for name in ("exp_avg", "exp_avg_sq", "step")}
    assert set(weights.state()) == {"weights", "best", "average", *of_optimizer}


COSINE = TrainSettings(epochs=12, warmup_epochs=2, learning_rate=0.4)
PLATEAU = TrainSettings(schedule="plateau", plateau_patience=2, learning_rate=0.8)
RATES: list[tuple[TrainSettings, float, list[float], float]] = [
    *((COSINE, epoch, [], rate) for epoch, rate in ((0.01, 0.002), (1.0, 0.2), (2.0, 0.4), (7.0, 0.2), (12.0, 0.0))),
    (COSINE, 9.5, [], 0.2 * (1 + math.cos(0.75 * math.pi))),
    (PLATEAU, 3.0, [5.0, 4.0, 3.0], 0.8),
    (PLATEAU, 5.0, [5.0, 4.0, 4.0, 4.5], 0.4),
    (PLATEAU, 7.0, [5.0, 4.0, 4.0, 4.5, 4.1, 4.2], 0.2),
    *((TrainSettings(schedule="constant", learning_rate=0.3), epoch, [], 0.3) for epoch in (0.1, 50.0, 100.0)),
]


@pytest.mark.parametrize(("settings", "epoch", "losses", "rate"), RATES)
def test_rates_rise_from_zero_and_fall_to_it_or_halve_after_every_wait_or_stay(
    settings: TrainSettings, epoch: float, losses: list[float], rate: float
) -> None:
    assert learning_rate(settings, epoch, losses) == pytest.approx(rate, abs=1e-12)


def test_patience_counts_epochs_since_the_best() -> None:
    assert not out_of_patience([], 3)
    assert not out_of_patience([1.0, 2.0, 2.0], 3)
    assert out_of_patience([1.0, 2.0, 2.0, 1.0], 3)
    assert not out_of_patience([1.0] * 50, 0)
    assert plateaus([1.0, None, None], patience=2) == 1
    assert best_epoch([None, 2.0, 1.0, 1.0]) == 2


def test_clipping_shortens_long_gradients_only() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert clip_in_place(gradient, 10.0) == 5.0 and gradient.tolist() == [3.0, 4.0]
    assert clip_in_place(gradient, 0.0) == 5.0 and gradient.tolist() == [3.0, 4.0]
    assert clip_in_place(gradient, 1.0) == 5.0 and gradient.tolist() == pytest.approx([0.6, 0.8])
    assert clip_in_place(torch.tensor([float("nan"), 1.0]), 1.0).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_has_the_bits_of_a_division_of_numbers(dtype: torch.dtype) -> None:
    for seed in range(50):
        gradient = torch.randn(30, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        norm = torch.linalg.vector_norm(gradient).item()
        expected = gradient * (0.3 / norm)
        clip_in_place(gradient, 0.3)
        assert torch.equal(gradient, expected)


def test_the_average_follows_the_weights_and_forgets_the_start() -> None:
    average = torch.zeros(1)
    for step in range(1, 4):
        average_in_place(average, torch.ones(1), 0.999, step)
    decays = [2 / 11, 3 / 12, 4 / 13]
    assert average.item() == pytest.approx(1 - math.prod(decays))
    late = torch.zeros(1)
    average_in_place(late, torch.ones(1), 0.9, 10**6)
    assert late.item() == pytest.approx(0.1)
