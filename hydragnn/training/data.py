"""Data of the loop: normalised batches in parts on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from fractions import Fraction
from functools import cached_property
from itertools import islice, pairwise
from math import ceil, floor

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import GraphStore, Loader, Normalisation, Split, normalise
from hydragnn.datasets.packing import NODE_COST, share_of
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.models import Target
from hydragnn.training.metrics import RunningMoments
from hydragnn.training.uploading import upload


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlacement:
    """Device, dtype and number of parts of batches."""

    device: torch.device
    dtype: torch.dtype
    micro_batches: int = 1
    """Parts in which a batch is computed, one after the other."""
    in_step: bool = False
    """Ranks compute equally many parts, since they gather weights together."""
    pad: Callable[[GraphBatch], GraphBatch] | None = None
    """Pads parts for steps that are replayed on the device."""
    cut: Callable[[GraphBatch], GraphBatch] | None = None
    """Returns this rank's part of graphs that ranks share."""

    def parts(self, batch: GraphBatch) -> tuple[GraphBatch, ...]:
        """Return the batch in parts on the device; none without graphs."""
        pieces = micro_batches(batch, self.micro_batches)
        if self.cut is not None:
            pieces = map(self.cut, pieces)
        if self.device.type != "cuda" and self.pad is None:
            return tuple(part.to(self.device, self.dtype) for part in pieces)
        parts = [part.to(dtype=self.dtype) for part in pieces]
        parts = parts if self.pad is None else [self.pad(part) for part in parts]
        return tuple(upload(part, self.device) if self.device.type == "cuda" else part for part in parts)


@dataclass(eq=False)
class Feed:
    """Shares of all batches of a store's part, for this rank."""

    loader: Loader
    normalisation: Normalisation | None
    """None where the store is normalised already."""
    placement: DevicePlacement
    _counted: tuple[int, int] = member(default=(-1, 0), init=False)

    @cached_property
    def stand_in(self) -> GraphBatch:
        """Return a graph for passes in which this rank has none."""
        graph = self.loader.store.read(self.loader.indices[:1], self.loader.fields)
        graph = graph if self.normalisation is None else normalise(graph, self.normalisation)
        return graph.to(self.placement.device, self.placement.dtype)

    def stand_ins(self, parts: int) -> tuple[GraphBatch, ...]:
        """Return graphs to compute beside so many parts, for peers with more."""
        return (self.stand_in,) * (self.placement.micro_batches - parts) if self.placement.in_step else ()

    def parts_of(self, graphs: NDArray[np.int64]) -> tuple[GraphBatch, ...]:
        """Return this rank's parts of a batch of these graphs."""
        loader = self.loader
        batch = loader.store.read(share_of(graphs, loader.costs, loader.ranks, loader.rank), loader.fields)
        return self.placement.parts(batch if self.normalisation is None else normalise(batch, self.normalisation))

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        budget = self.loader.budget
        if not (budget.max_nodes or budget.max_edges):
            return len(self.loader)
        if self._counted[0] != epoch:
            self._counted = (epoch, len(self.loader.batches(epoch)))
        return self._counted[1]

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[int, tuple[GraphBatch, ...]]]:
        """Return graphs and own parts of every batch from step ``start`` on."""
        for graphs, batch in self.loader.epoch(number, start):
            if self.normalisation is not None:
                batch = normalise(batch, self.normalisation)
            yield graphs, self.placement.parts(batch)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BranchData:
    """One data set of a run; nameless without branches."""

    name: str = ""
    weight: Fraction = Fraction(1)
    """Times that an epoch shows each training graph."""
    store: GraphStore
    fields: Mapping[str, Field]
    inputs: tuple[str, ...]
    targets: tuple[Target, ...]
    split: Split
    normalisation: Normalisation
    train: Feed
    valid: Iterable[GraphBatch]
    """This rank's shares of the validation part, in parts."""
    valid_feed: Feed | None = None
    """Batches of ``valid``; None without a validation part."""
    valid_passes: int = 0
    """Parts of a validation on every rank; 0 where numbers may differ."""
    valid_moments: Mapping[str, RunningMoments]
    """Moments of the whole validation part's labels, in the fields' units."""
    trivial: Mapping[str, float]
    """Errors of the trivial predictor on the validation part, by name."""
    notes: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, int]] = member(default_factory=dict)
    """Graphs of each part that have a label, by target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """This rank's share of a batch of one branch, in parts."""

    branch: int
    parts: tuple[GraphBatch, ...]
    stand_ins: tuple[GraphBatch, ...] = ()
    """Graphs without any weight, since peers compute more parts."""
    graphs: int = 0
    """Graphs of the whole batch, over all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunData:
    """Data sets of a run, in an order by seed and epoch."""

    branches: tuple[BranchData, ...]
    seed: int = 0
    replay: BranchData | None = None
    """Earlier data of a model that is fine-tuned, which epochs show beside those of the branches; nothing is validated on them."""

    @property
    def shown(self) -> tuple[BranchData, ...]:
        """Return the data whose batches make an epoch."""
        return self.branches if self.replay is None else (*self.branches, self.replay)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets of all branches, one after the other."""
        return tuple(target for branch in self.branches for target in branch.targets)

    @property
    def valid_moments(self) -> dict[str, RunningMoments]:
        """Return the validation moments of all branches."""
        return {name: moments for branch in self.branches for name, moments in branch.valid_moments.items()}

    @property
    def trivial(self) -> dict[str, float]:
        """Errors of the trivial predictor on the validation parts of all branches."""
        return {name: value for branch in self.branches for name, value in branch.trivial.items()}

    @property
    def graphs_per_step(self) -> float:
        """Return the mean number of graphs of a batch, over all ranks."""
        graphs = sum(one.weight * len(one.train.loader.indices) for one in self.shown)
        return float(graphs / max(1, sum(one.weight * one.train.steps(0) for one in self.shown)))

    def steps(self, epoch: int) -> int:
        """Batches of an epoch, over all ranks."""
        return len(self.turns(epoch))

    def turns(self, epoch: int) -> NDArray[np.int64]:
        """Return the branch of every batch of an epoch ``[steps]``.

        That of replayed data has the last number. Batch i of the n of a branch stands at (i + u) / n of the epoch, with one u in
        [0, 1) drawn per branch and epoch. In any order that is drawn, batches of one branch follow each other, and each of them
        moves the trunk away from the others.
        """
        counts = [sum(count for _, _, count in pieces_of(branch, epoch)) for branch in self.shown]
        offsets = np.random.default_rng([self.seed, epoch, len(counts)]).random(len(counts))
        places = [(np.arange(count) + offset) / max(count, 1) for count, offset in zip(counts, offsets)]
        return np.repeat(np.arange(len(counts)), counts)[np.argsort(np.concatenate(places), kind="stable")]

    def epoch(self, number: int, start: int = 0) -> Iterator[Share]:
        """Return this rank's shares of an epoch from ``start`` on."""
        turns = self.turns(number)
        skipped = np.bincount(turns[:start], minlength=len(self.shown)).tolist()
        feeds = [_batches(branch, number, first) for branch, first in zip(self.shown, skipped)]
        for turn in turns[start:].tolist():
            graphs, parts = next(feeds[turn])
            yield Share(branch=turn, parts=parts, stand_ins=self.shown[turn].train.stand_ins(len(parts)), graphs=graphs)


def pieces_of(branch: BranchData, epoch: int) -> list[tuple[int, int, int]]:
    """Return the pass, the first batch and the count of an epoch's batches.

    It begins where the epoch before ended, and covers ``weight`` passes. No batch of a pass is left out or taken twice, and a
    weight of 1 is one whole pass.
    """
    start, stop = epoch * branch.weight, (epoch + 1) * branch.weight
    pieces = []
    for number in range(floor(start), ceil(stop)):
        batches = branch.train.steps(number)
        first, last = (round(min(max(end - number, Fraction(0)), Fraction(1)) * batches) for end in (start, stop))
        pieces.append((number, first, last - first))
    return pieces


def _batches(branch: BranchData, epoch: int, skipped: int) -> Iterator[tuple[int, tuple[GraphBatch, ...]]]:
    """Return the branch's batches of an epoch after the first ones."""
    for number, first, count in pieces_of(branch, epoch):
        skip = min(skipped, count)
        skipped -= skip
        if skip < count:
            yield from islice(branch.train.epoch(number, first + skip), count - skip)


def micro_batches(batch: GraphBatch, number: int) -> Iterator[GraphBatch]:
    """Return at most ``number`` non-empty parts of consecutive graphs."""
    if number == 1 or batch.num_graphs <= 1:
        yield from [batch] if batch.num_graphs else []
        return
    cuts = even_cuts((batch.counts("edge") + NODE_COST * batch.counts("node")).tolist(), number)
    for first, last in pairwise(cuts):
        yield batch.select(slice(first, last))


def even_cuts(costs: Sequence[int], number: int) -> list[int]:
    """Return cuts of costs that minimise the largest piece.

    >>> even_cuts([1, 1, 1, 9, 1, 1], 3)
    [0, 3, 4, 6]
    >>> even_cuts([2, 2], 4), even_cuts([], 2)
    ([0, 1, 2], [0])
    """
    low, high = max([0, *costs]), sum(costs)
    while low < high:  # the smallest limit under which the pieces are few enough
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cuts_within(costs, middle)) - 1 <= number else (middle + 1, high)
    return _cuts_within(costs, low)


def _cuts_within(costs: Sequence[int], limit: int) -> list[int]:
    """Return cuts that fill every piece up to the limit."""
    cuts, filled = [0], 0
    for position, cost in enumerate(costs):
        if position > cuts[-1] and filled + cost > limit:
            cuts.append(position)
            filled = 0
        filled += cost
    return [*cuts, len(costs)] if costs else cuts
