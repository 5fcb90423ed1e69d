"""Ranks that share a graph, as threads of one process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Thread
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from hydragnn.conformance.cases import loss_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.cutting import part_of_rank
from hydragnn.models import Distribution, GraphModel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadPeers:
    """Peers that are threads, for tests of exchanges."""

    rank: int
    size: int
    barrier: Barrier
    table: dict[int, tuple[str, Tensor, tuple[int, ...]]]
    """What every rank sends, and how many rows to each other one."""
    numbers: list[int] = field(default_factory=lambda: [0, 0])
    """Exchanges of this rank, and rows that it sent to others."""

    def _all(self, what: str, values: Tensor, counts: tuple[int, ...]) -> list[tuple[str, Tensor, tuple[int, ...]]]:
        """Return what all ranks send, which must be of one kind."""
        self.table[self.rank] = (what, values.detach(), counts)
        self.barrier.wait(30)
        entries = [self.table[rank] for rank in range(self.size)]
        self.barrier.wait(30)
        self.numbers[0] += 1
        assert {name for name, _, _ in entries} == {what}, "ranks exchange in different orders"
        return entries

    def swap(self, rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...]) -> Callable[[], Tensor]:
        """Exchange rows with the others at once."""
        self.numbers[1] += len(rows)
        parts = [values.split(list(counts))[self.rank] for _, values, counts in self._all("swap", rows, sent)]
        assert tuple(map(len, parts)) == received
        return lambda: torch.cat(parts)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the threads, in the order of ranks."""
        return torch.stack([one for _, one, _ in self._all("total", values, ())]).sum(0)


def on_parts(
    batch: GraphBatch, rank_of_node: Int[Tensor, " nodes"], size: int, work: Callable[[GraphBatch], T]
) -> list[T]:
    """Return the result of ``work`` on the part of every rank."""
    barrier, table, results, errors = Barrier(size), {}, {}, []  # type: ignore[var-annotated]

    def run(rank: int) -> None:
        try:
            peers = ThreadPeers(rank=rank, size=size, barrier=barrier, table=table)
            results[rank] = work(part_of_rank(batch, rank_of_node, peers))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, BrokenBarrierError)), errors[0])
    return [results[rank] for rank in range(size)]


def counted(predictions: dict[str, Distribution], part: GraphBatch, model: GraphModel) -> dict[str, Distribution]:
    """Return the predictions whose labels count on the part's rank."""
    assert part.halo is not None
    locations = {target.name: target.field.on for target in model.description.targets}
    return {
        name: value.rows(part.halo.counted(locations[name], part.num_items(locations[name])))
        for name, value in predictions.items()
    }


def loss_and_gradients(
    model: GraphModel, batch: GraphBatch
) -> tuple[dict[str, Distribution], Tensor, tuple[Tensor, ...]]:
    """Return predictions, loss and gradients of a whole batch or a part."""
    predictions = model(batch)
    if batch.halo is not None:
        predictions = counted(predictions, batch, model)
    loss = loss_of(predictions)
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return {name: value.detach() for name, value in predictions.items()}, loss.detach(), gradients
