"""Ranks that gather weights notice when they would gather different ones."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydragnn.architectures import architectures
from hydragnn.base.errors import InputError
from hydragnn.config import TrainSettings
from hydragnn.conformance.cases import AROUND, CORNERS, loss_of, make_graph, make_model, no_nodes
from hydragnn.graphs.joining import concatenate
from hydragnn.training.buckets import Wait
from hydragnn.training.parameters import FlatParameters, Sharing


@dataclass(kw_only=True, slots=True)
class Threads:
    """Two ranks as threads."""

    number: int
    barrier: Barrier
    table: dict[int, Tensor]
    count: int = field(default=2, init=False)

    def every(self, values: Tensor) -> list[Tensor]:
        self.table[self.number] = values.detach().clone()
        self.barrier.wait(20)
        both = [self.table[0], self.table[1]]
        self.barrier.wait(20)
        return both

    def begin_sum(self, values: Tensor) -> Wait:
        values.copy_(sum(self.every(values)))
        return lambda: None

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        own.copy_(sum(self.every(values)).chunk(2)[self.number])
        return lambda: None

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        values.copy_(torch.cat(self.every(own)))
        return lambda: None


class Alone:
    """One rank, which gathers from itself."""

    number, count = 0, 1

    def begin_sum(self, values: Tensor) -> Wait:
        return lambda: None

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        own.copy_(values)
        return lambda: None

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        values.copy_(own)
        return lambda: None


class Choosing(nn.Module):
    """Leaves out its second map where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, rows: Tensor, *, whole: bool) -> Tensor:
        for number, one in enumerate(self.maps):
            if whole or number != 1:
                rows = one(rows).tanh()
        return rows


def gradients(passes: dict[int, list[bool]]) -> list[Any]:
    """Return what two ranks get of these passes: rows of gradients, or an error."""
    barrier, table = Barrier(2), dict[int, Tensor]()
    torch.manual_seed(0)
    models = [Choosing(), Choosing()]
    models[1].load_state_dict(models[0].state_dict())

    def run(rank: int) -> Any:
        shards = Threads(number=rank, barrier=barrier, table=table)
        weights = FlatParameters(models[rank], TrainSettings(), Sharing(shards=shards))
        try:
            for whole in passes[rank]:
                weights.zero_gradient()
                with weights.in_use():
                    weights.add_gradient(models[rank](torch.ones(2, 4), whole=whole).sum())
        except InputError as error:
            barrier.abort()  # as the end of a process closes its connections
            return error
        except Exception as error:  # that of a broken barrier
            return error
        return weights.gradient.clone()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (0, 1)))


def test_passes_that_agree_give_the_gradient_of_one_rank_twice() -> None:
    torch.manual_seed(0)
    model = Choosing()
    model(torch.ones(2, 4), whole=True).sum().backward()
    wanted = sorted(float(one) for p in model.parameters() if p.grad is not None for one in 2 * p.grad.flatten())
    found = torch.cat(gradients({0: [True, True], 1: [True, True]}))
    assert sorted(found[found != 0].tolist()) == pytest.approx(sorted(one for one in wanted if one), rel=1e-6)


@pytest.mark.parametrize(
    "passes",
    [
        {0: [True], 1: [False]},  # which would mix weights, or wait for ever
        {0: [False], 1: [True]},
        {0: [True, True], 1: [True, False]},
        {0: [True, False], 1: [True, False]},
    ],
)
def test_other_weights_than_on_other_ranks_or_before_are_an_error(passes: dict[int, list[bool]]) -> None:
    errors = gradients(passes)
    assert any(isinstance(one, InputError) for one in errors)
    assert all(isinstance(one, Exception) for one in errors)
    assert "use all weights in every batch" in str(next(one for one in errors if isinstance(one, InputError)))


@pytest.mark.parametrize(
    ("kind", "around"), [*((kind, "") for kind in architectures()), *(("painn", name) for name in AROUND)]
)
def test_every_architecture_takes_the_same_weights_whatever_the_batch(kind: str, around: str) -> None:
    """With forces where there are any; a pass that differed would raise."""
    model = make_model(kind, **AROUND.get(around, {}))
    weights = FlatParameters(model, TrainSettings(), Sharing(shards=Alone()))
    sizes = concatenate([make_graph(8, 30), make_graph(9, 2), make_graph(10, 3, edges=0)])
    for batch in (CORNERS["one graph"](), CORNERS["no edges"](), no_nodes(), sizes):
        with weights.in_use():
            weights.add_gradient(loss_of(model(batch.to(dtype=torch.float64))))
        with torch.no_grad(), weights.in_use():
            model(batch.to(dtype=torch.float64))
