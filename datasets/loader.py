"""Batches of an epoch, ordered by its number and a seed."""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from hydragnn.datasets.formats.memory import MemoryStore
from hydragnn.datasets.packing import NODE_COST, Budget, costs_of, pack, share_of
from hydragnn.datasets.store import GraphStore
from hydragnn.graphs.batch import GraphBatch


@dataclass(eq=False, repr=False)
class Loader:
    """Global batches within a budget, of which each rank reads its share.

    With ``window`` (for stores larger than memory) graphs are read in blocks: the order of blocks and the order inside a
    window of several blocks are random, so that reads are contiguous and a window's graphs of this rank are in memory.
    """

    store: GraphStore
    indices: Int64[ndarray, " chosen"]
    budget: Budget
    _: KW_ONLY
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    ranks: int = 1
    fields: Collection[str] | None = None
    window: int | None = None
    """Graphs in memory; None for all."""
    node_cost: int = NODE_COST
    """Work of a node in edges, by which ranks get equal shares."""

    def __post_init__(self) -> None:
        """Raise InputError where a single graph exceeds the budget."""
        self.indices = np.asarray(self.indices, dtype=np.int64)
        self.sizes = self.store.sizes()
        self.costs = costs_of(self.sizes, self.node_cost) if self.ranks > 1 else np.zeros(0, dtype=np.int32)
        self._length = len(self.batches(0))

    def __len__(self) -> int:
        """Return the batches of epoch 0; other epochs may differ under budgets."""
        return self._length

    def batches(self, epoch: int) -> list[Int64[ndarray, " _"]]:
        """The global batches of an epoch, as graph numbers."""
        return [batch for window in self._windows(epoch) for batch in window]

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[int, GraphBatch]]:
        """Yield graphs of every batch from step ``start`` on, and own share."""
        step = 0
        for window in self._windows(number):
            rest = window[max(0, start - step) :]
            step = max(step, min(start, step + len(window)))
            shares = self._read(share_of(batch, self.costs, self.ranks, self.rank) for batch in rest)
            for batch, share in zip(rest, shares, strict=True):
                yield len(batch), share
                step += 1

    def _read(self, planned: Iterator[Int64[ndarray, " _"]]) -> Iterator[GraphBatch]:
        if getattr(self.store, "in_memory", False) and self.window is None:
            batches = (self.store.read(share, self.fields) for share in planned)
            yield from one_ahead(batches) if getattr(self.store, "fetched", False) else batches
            return
        for shares in [[*planned]] if self.window is not None else self._groups(planned):
            graphs_of_all = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *shares]))
            if shares:
                held = MemoryStore(self.store.read(graphs_of_all, self.fields))
                yield from (held.read(np.searchsorted(graphs_of_all, share)) for share in shares)

    def _groups(self, planned: Iterator[Int64[ndarray, " _"]]) -> Iterator[list[Int64[ndarray, " _"]]]:
        """Yield groups of shares that are read at once."""
        group: list[Int64[ndarray, " _"]] = []
        graphs = items = 0
        for share in planned:
            group.append(share)
            graphs += len(share)
            items += int(self.sizes.nodes[share].sum() + self.sizes.edges[share].sum())
            if graphs >= GRAPHS_AHEAD or items >= ITEMS_AHEAD:
                yield group
                group, graphs, items = [], 0, 0
        yield group

    def _windows(self, epoch: int) -> Iterator[list[Int64[ndarray, " _"]]]:
        generator = np.random.default_rng([self.seed, epoch])
        for window in self._ordered(generator):
            yield pack(self.sizes, window, self.budget)

    def _ordered(self, generator: np.random.Generator) -> Iterator[Int64[ndarray, " _"]]:
        size = self.window or max(len(self.indices), 1)
        if not self.shuffle:
            yield from (self.indices[a : a + size] for a in range(0, len(self.indices), size))
            return
        if self.window is None:
            yield generator.permutation(self.indices)
            return
        block = max(1, size // BLOCKS_PER_WINDOW)
        blocks = [self.indices[a : a + block] for a in range(0, len(self.indices), block)]
        shuffled = [blocks[number] for number in generator.permutation(len(blocks))]
        for first in range(0, len(shuffled), BLOCKS_PER_WINDOW):
            yield generator.permutation(np.concatenate(shuffled[first : first + BLOCKS_PER_WINDOW]))


def one_ahead(batches: Iterator[GraphBatch]) -> Iterator[GraphBatch]:
    """Yield batches; a thread fetches the next one meanwhile."""
    with ThreadPoolExecutor(1, "fetch") as thread:
        upcoming = thread.submit(next, batches, None)
        while (batch := upcoming.result()) is not None:
            upcoming = thread.submit(next, batches, None)
            yield batch


BLOCKS_PER_WINDOW = 16
GRAPHS_AHEAD = 1024  # graphs of this rank that are read at once where batches come from a disk without a window
ITEMS_AHEAD = 200_000  # nodes and edges that end such a read sooner
