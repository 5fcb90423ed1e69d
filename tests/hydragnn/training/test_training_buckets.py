"""Gradients are summed over ranks while the backward pass goes on, in one order on all ranks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hydragnn.config import TrainSettings
from hydragnn.training import buckets
from hydragnn.training.parameters import FlatParameters, Sharing


class OtherRank:
    """A peer that has the same gradient: sums are begun at once and are there after the wait."""

    number, count = 0, 2

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.backward_ends = False
        self.during: list[bool] = []

    def begin_sum(self, values: Tensor) -> Callable[[], object]:
        self.begun.append((values.storage_offset(), len(values)))
        self.during.append(not self.backward_ends)
        seen = values.clone()

        def wait() -> None:
            assert torch.equal(values, seen)  # what was begun is complete: nothing is added later
            values.mul_(2.0)

        return wait

    def begin_scatter(self, values: Tensor, own: Tensor) -> Callable[[], object]:
        return self.begin_sum(own)

    def begin_gather(self, values: Tensor, own: Tensor) -> Callable[[], object]:
        raise NotImplementedError


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> OtherRank:
    monkeypatch.setattr(buckets, "BYTES", 100)
    return OtherRank()


def test_buckets_begin_within_the_last_backward_pass_and_hold_every_weight_once(peer: OtherRank) -> None:
    model, plain = network(), network()
    weights = FlatParameters(model, TrainSettings(), Sharing(copies=peer))
    parts = torch.randn(2, 7, 6)
    for part in parts:
        plain(part).square().sum().backward()
    for step in range(2):
        weights.zero_gradient()
        for number, part in enumerate(parts):
            peer.backward_ends = False
            if number == 1:
                weights.expect_sum()
            model(part).square().sum().backward(inputs=list(model.parameters()))
            peer.backward_ends = True
            assert len(peer.begun) == (step + number) * 5, "the first part begins none, the second all"
        weights.sum_gradient()
        for one, other in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(one.grad, 2 * other.grad)
    order = peer.begun[:5]
    assert peer.begun[5:] == order == sorted(order, reverse=True) and all(peer.during)
    assert sum(length for _, length in order) == len(weights.gradient)


def test_ranks_that_use_other_weights_sum_in_the_same_order(peer: OtherRank) -> None:
    """A rank without graphs, and one whose batch leaves a layer out."""
    orders = []
    for used in (range(5), [], [0, 1, 3, 4], [0]):
        model = network()
        weights = FlatParameters(model, TrainSettings(), Sharing(copies=peer))
        peer.begun.clear()
        weights.zero_gradient()
        weights.expect_sum()
        states = torch.randn(3, 6)
        for number in used:
            states = model[number](states)
        if used:
            states.sum().backward()
        gradient = weights.gradient.clone()
        weights.sum_gradient()
        assert torch.equal(weights.gradient, 2 * gradient)
        orders.append(list(peer.begun))
    assert all(order == orders[0] for order in orders)
