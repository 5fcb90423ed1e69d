"""Statistics of what nodes receive, in the form in which neighbours come and go without a step."""

import pytest
import torch
from torch import Tensor

from hydragnn.kernels import Topology
from hydragnn.layers import smooth_statistics


def star(neighbours: int) -> Topology:
    """A node with so many neighbours, and one without any."""
    senders, receivers = torch.zeros(neighbours, dtype=torch.int64), torch.zeros(neighbours, dtype=torch.int64)
    return Topology.square(senders, receivers, 2)


def messages_of(count: int) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def weights_of(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def test_a_neighbour_at_the_cutoff_is_as_if_it_were_not_there() -> None:
    messages, weights = messages_of(4), weights_of(0.7, 1.0, 0.2, 0.0)
    messages[3] = 1e3  # far beyond all others, and of no weight
    there = smooth_statistics(messages, weights, star(4))
    gone = smooth_statistics(messages[:3], weights[:3], star(3))
    for ours, theirs in zip((*there.statistics, there.presence, there.degrees), (*gone.statistics, *gone[1:])):
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("weight", [1e-3, 1e-6, 0.0])
def test_what_is_left_vanishes_as_the_last_neighbours_do(weight: float) -> None:
    left = smooth_statistics(messages_of(2), weights_of(weight, weight / 2), star(2))
    for statistic in (*left.statistics, left.presence):
        assert float(statistic.abs().max()) <= 100 * weight  # t^4 of messages of order 1 is of order 10
    torch.testing.assert_close(left.degrees, torch.ones(2, 1, dtype=torch.float64), rtol=0, atol=2 * weight**2 + 1e-15)


def test_many_neighbours_that_are_alike_have_their_message_as_mean_least_and_largest() -> None:
    mean, least, largest, deviation = smooth_statistics(
        torch.full((200, 3), 5.0, dtype=torch.float64), None, star(200)
    ).statistics
    for statistic in (mean, least, largest):  # n is D but for a share of 1 / (2 D^2)
        torch.testing.assert_close(statistic[0], torch.full_like(statistic[0], 5.0), rtol=1e-4, atol=0)
    assert float(deviation.abs().max()) < 1e-6


def test_the_least_and_the_largest_are_led_by_the_one_that_stands_out() -> None:
    """Of D messages, one far above the others: largest grows as it does, by its share D^(-1/4)."""
    messages = torch.zeros(16, 1, dtype=torch.float64)
    messages[3] = 1e4
    mean, least, largest, _ = smooth_statistics(messages, None, star(16)).statistics
    assert float((largest - mean)[0]) == pytest.approx((1e4 - 1e4 / 16) / 16**0.25, rel=1e-2)
    assert 0 < float((mean - least)[0]) < 1e4 / 16 * 1.01
    _, mirrored, _, _ = smooth_statistics(-messages, None, star(16)).statistics
    torch.testing.assert_close(mirrored, -largest)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e6])
def test_messages_of_any_size_are_finite_with_their_gradients_in_float32(size: float) -> None:
    messages = (size * messages_of(6)).float().requires_grad_()
    weights = weights_of(1.0, 0.5, 1e-30, 0.0, 1.0, 0.3).float().requires_grad_()
    statistics = smooth_statistics(messages, weights, star(6)).statistics
    gradients = torch.autograd.grad(sum(s.sum() for s in statistics), (messages, weights))  # type: ignore[arg-type]
    assert all(tensor.isfinite().all() for tensor in (*statistics, *gradients))
