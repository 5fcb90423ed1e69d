"""Weights of a model: schedules, clipping, averages, and sums and gathering over ranks."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest
import torch
from pytorch_optimizer import LARS, Lamb
from torch import Tensor, nn

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.config import TrainSettings
from hydragnn.conformance.cases import AROUND, CORNERS, loss_of, make_graph, make_model, no_nodes
from hydragnn.graphs.joining import concatenate
from hydragnn.training import buckets
from hydragnn.training.buckets import Wait
from hydragnn.training.parameters import FlatParameters, Sharing, average_in_place, clip_in_place
from hydragnn.training.schedule import best_epoch, learning_rate, out_of_patience, plateaus


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "lars"])
def test_one_flat_vector_moves_like_separate_parameters(optimizer: str) -> None:
    ours, theirs = network(), network()
    flat = FlatParameters(ours, TrainSettings(optimizer=optimizer, learning_rate=0.05, weight_decay=0.1))
    for layer in (theirs[0], theirs[2]):  # as rows: LARS of the library gives other biases the whole rate
        layer.bias = nn.Parameter(layer.bias.detach()[None])
    options = {"momentum": 0.9, "nesterov": True} if optimizer == "sgd" else {}
    options |= {"adam_debias": True} if optimizer == "lamb" else {}
    libraries = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "lamb": Lamb, "lars": LARS}
    kind: Any = libraries[optimizer]
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
        torch.testing.assert_close(one.view_as(other), other)


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
def test_weights_have_rates_by_their_norms_and_by_their_factors(optimizer: str) -> None:
    factors, moves = {"0.weight": 0.5, "0.bias": 0.0}, []
    for chosen in ({}, factors):
        model = network()
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        settings = TrainSettings(optimizer=optimizer, learning_rate=0.1, weight_decay=0.0)
        flat = FlatParameters(model, settings, rate_factors=chosen)
        model(torch.ones(7, 3)).square().sum().backward()
        flat.step(0.1)
        moves.append({name: value.detach() - before[name] for name, value in model.named_parameters()})
        rate = (
            0.1 if optimizer == "lamb" else 1e-4
        )  # eq. 4 and algorithm 1: biases, too, move by a rate times their norm
        for name in before if not chosen else ():
            torch.testing.assert_close(moves[0][name].norm(), rate * before[name].norm(), rtol=1e-3, atol=0.0)
    for name, move in moves[0].items():
        torch.testing.assert_close(moves[1][name], factors.get(name, 1.0) * move)


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
def test_rates_follow_their_schedule(settings: TrainSettings, epoch: float, losses: list[float], rate: float) -> None:
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
    for longest, clipped in ((10.0, [3.0, 4.0]), (0.0, [3.0, 4.0]), (1.0, [0.6, 0.8])):
        assert clip_in_place(gradient, longest) == 5.0 and gradient.tolist() == pytest.approx(clipped)
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


def chain() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))


def through(model: nn.Sequential, used: Sequence[int], states: Tensor) -> Tensor:
    for number in used:
        states = model[number](states).tanh()
    return states


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> OtherRank:
    monkeypatch.setattr(buckets, "BYTES", 100)
    return OtherRank()


def test_buckets_begin_within_the_last_backward_pass_and_hold_every_weight_once(peer: OtherRank) -> None:
    model, plain = chain(), chain()
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
        model = chain()
        weights = FlatParameters(model, TrainSettings(), Sharing(copies=peer))
        peer.begun.clear()
        weights.zero_gradient()
        weights.expect_sum()
        if used:
            through(model, used, torch.randn(3, 6)).sum().backward()
        gradient = weights.gradient.clone()
        weights.sum_gradient()
        assert torch.equal(weights.gradient, 2 * gradient)
        orders.append(list(peer.begun))
    assert all(order == orders[0] for order in orders)


@dataclass(kw_only=True, slots=True)
class Threads:
    number: int
    barrier: Barrier
    table: dict[int, Tensor]
    count: int = 2

    def every(self, values: Tensor) -> list[Tensor]:
        self.table[self.number] = values.detach().clone()
        self.barrier.wait(20)
        every = [self.table[rank] for rank in range(self.count)]
        self.barrier.wait(20)
        return every

    def begin_sum(self, values: Tensor) -> Wait:
        values.copy_(sum(self.every(values)))
        return lambda: None

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        own.copy_(sum(self.every(values)).chunk(self.count)[self.number])
        return lambda: None

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        values.copy_(torch.cat(self.every(own)))
        return lambda: None


def gradients(passes: Sequence[list[bool]]) -> list[Any]:
    """Return what two ranks get of these passes: rows of gradients, or an error."""
    barrier, table, models = Barrier(2), dict[int, Tensor](), [chain(), chain()]

    def run(rank: int) -> Any:
        shards = Threads(number=rank, barrier=barrier, table=table)
        weights = FlatParameters(models[rank], TrainSettings(), Sharing(shards=shards))
        try:
            for whole in passes[rank]:
                weights.zero_gradient()
                with weights.in_use():
                    used = range(5) if whole else [0, 2, 3, 4]
                    weights.add_gradient(through(models[rank], used, torch.ones(2, 6)).sum())
        except Exception as error:  # a refusal, or that of a broken barrier
            barrier.abort()  # as the end of a process closes its connections
            return error
        return weights.gradient.clone()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (0, 1)))


def test_passes_that_agree_give_the_gradient_of_one_rank_twice() -> None:
    model = chain()
    through(model, range(5), torch.ones(2, 6)).sum().backward()
    wanted = sorted(float(one) for p in model.parameters() if p.grad is not None for one in 2 * p.grad.flatten())
    found = torch.cat(gradients([[True, True], [True, True]]))
    assert sorted(found[found != 0].tolist()) == pytest.approx(sorted(one for one in wanted if one), rel=1e-6)


@pytest.mark.parametrize(
    "passes",
    # which would mix weights, or wait for ever
    [([True], [False]), ([False], [True]), ([True, True], [True, False]), ([True, False], [True, False])],
)
def test_other_weights_than_on_other_ranks_or_before_are_an_error(passes: Sequence[list[bool]]) -> None:
    errors = gradients(passes)
    assert any(isinstance(one, InputError) for one in errors)
    assert all(isinstance(one, Exception) for one in errors)
    assert "use all weights in every batch" in str(next(one for one in errors if isinstance(one, InputError)))


@pytest.mark.parametrize(
    ("kind", "around"), [*((kind, "") for kind in architectures()), *(("painn", name) for name in AROUND)]
)
def test_every_architecture_takes_the_same_weights_whatever_the_batch(kind: str, around: str) -> None:
    """With forces where there are any; a pass that differed would raise."""
    model, alone = make_model(kind, **AROUND.get(around, {})), Threads(number=0, barrier=Barrier(1), table={}, count=1)
    weights = FlatParameters(model, TrainSettings(), Sharing(shards=alone))
    sizes = concatenate([make_graph(8, 30), make_graph(9, 2), make_graph(10, 3, edges=0)])
    for batch in (CORNERS["one graph"](), CORNERS["no edges"](), no_nodes(), sizes):
        with weights.in_use():
            weights.add_gradient(loss_of(model(batch.to(dtype=torch.float64))))
        with torch.no_grad(), weights.in_use():
            model(batch.to(dtype=torch.float64))
