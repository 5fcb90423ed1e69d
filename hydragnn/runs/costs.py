"""Costs of steps, layers and ranks, as functions of batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.datasets import Sizes
from hydragnn.datasets.footprint import Footprint
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.fabric import Collective
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.parallel import AXES, Axis, ParallelSettings

AGREEING = 1.5
"""Second least time over the least, beyond which the least was not seen twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Seconds or bytes as a function of a batch's cost in edges.

    It is straight between measurements. Beyond them it goes on with the slope of all, since single steps are disturbed.
    """

    costs: tuple[float, ...]
    values: tuple[float, ...]

    def least(self, other: "Curve") -> "Curve":
        """Return the lesser values of two curves over the same costs."""
        return replace(self, values=tuple(map(min, self.values, other.values)))

    def at(self, cost: float) -> float:
        """Return the value at a cost.

        >>> Curve(costs=(10.0, 20.0), values=(2.0, 3.0)).at(40.0)
        5.0
        """
        if cost <= 0 or len(self.costs) == 1:
            return 0.0 if cost <= 0 else self.values[0]
        if self.costs[0] <= cost <= self.costs[-1]:
            return float(np.interp(cost, self.costs, self.values))
        slope = max(0.0, self.values[-1] - self.values[0]) / (self.costs[-1] - self.costs[0])
        near = 0 if cost < self.costs[0] else -1
        return max(0.0, self.values[near] + slope * (cost - self.costs[near]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """Collectives of one kind along one axis, while a gradient is computed."""

    axis: Axis
    kind: Collective
    count: int
    size: Curve
    """Bytes of all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vectors:
    """Bytes of weights, copies and states, which ranks may share."""

    weights: int
    states: int
    """Moments, best and average weights."""
    moments: int
    """Of the states."""
    gathered: int = 0
    """Blocks of weights at hand, where ranks share them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Time and memory of the steps of one rank."""

    vectors: Vectors
    footprint: Footprint
    """Memory of the tensors of a step."""
    valid: int
    """Bytes of the validation part, undivided."""
    part: Curve
    """Seconds of the gradient of a part of a batch."""
    load: Curve
    """Seconds to read a share of a batch."""
    backward: float
    """Share of the gradient's time in its backward pass, in which sums over ranks begin."""
    update: float
    """Seconds in which all weights are moved."""
    exchanges: tuple[Exchange, ...] = ()
    of_nodes: float = 1.0
    """Share of the nodes of a graph that this rank holds, with copies of others."""
    of_edges: float = 1.0
    repeats: tuple[float, ...] = ()
    """Seconds of the gradient of the largest batch, in every turn."""

    @property
    def agrees(self) -> bool:
        """Return True where the largest batch's least time was seen twice.

        >>> from types import SimpleNamespace as Costs
        >>> [StepCosts.agrees.fget(Costs(repeats=times)) for times in ((3.0, 1.0, 1.2), (3.0, 1.0, 2.0))]
        [True, False]
        """
        least, *rest = sorted(self.repeats) or [0.0]
        return not rest or rest[0] <= AGREEING * least

    def least(self, later: "StepCosts") -> "StepCosts":
        """Return the lesser times of two turns."""
        better = min(self, later, key=lambda one: one.part.values[-1])
        return replace(
            self,
            part=self.part.least(later.part),
            load=self.load.least(later.load),
            backward=better.backward,
            update=min(self.update, later.update),
            repeats=(*self.repeats, *later.repeats),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Batches of a run."""

    sizes: Sizes
    batches: tuple[NDArray[np.int64], ...]
    """As numbers of graphs."""
    node_cost: int
    _shares: dict[int, list[list[NDArray[np.int64]]]] = field(default_factory=dict, init=False)

    def shares(self, ranks: int) -> list[list[NDArray[np.int64]]]:
        """Return the graphs of ranks, of many some, in each batch."""
        if ranks not in self._shares:
            costs = costs_of(self.sizes, self.node_cost)
            some = np.unique(np.linspace(0, ranks - 1, min(ranks, 64)).astype(int)).tolist()
            shares = [[share_of(batch, costs, ranks, rank) for rank in some] for batch in self.batches]
            self._shares[ranks] = shares
        return self._shares[ranks]

    def cost(self, graphs: NDArray[np.int64]) -> float:
        """Return the cost of graphs in edges."""
        return float((self.sizes.edges[graphs] + self.node_cost * self.sizes.nodes[graphs]).sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Shape of a traveller, for batches of any size."""

    on: Location
    width: tuple[int, ...]
    dtype: torch.dtype

    def drawn(self, batch: GraphBatch) -> Tensor:
        """Return random numbers for a batch."""
        return torch.randn(batch.num_items(self.on), *self.width, dtype=self.dtype, device=batch.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCosts:
    """Costs of a layer with what stands before or behind all layers."""

    steps: StepCosts
    waiting: Footprint
    """Memory of a part between its forward and backward pass."""
    sent: Mapping[str, Rows]

    def bytes_sent(self, sizes: Sizes, graphs: NDArray[np.int64]) -> int:
        """Return the bytes of a part that go to the next layer."""
        count = {"node": sizes.nodes[graphs].sum(), "edge": sizes.edges[graphs].sum(), "graph": len(graphs)}
        return int(sum(count[rows.on] * rows.dtype.itemsize * prod(rows.width) for rows in self.sent.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSteps:
    """Whole steps of one layout, with all that ranks wait for."""

    sizes: Mapping[Axis, int]
    chunks: int = 1
    first: Curve
    """Seconds of a step in as few parts as there are stages, by the cost of the largest part."""
    further: Curve
    """Seconds of every further part."""

    def seconds(self, cost: float, parts: int) -> float:
        """Return the time of a step in parts of a rank's share.

        >>> line = Curve(costs=(0.0, 1.0), values=(1.0, 2.0))
        >>> sizes = {"replicate": 2, "pipeline": 1}
        >>> RankSteps(sizes=sizes, first=line, further=Curve(costs=(0.0, 1.0), values=(0.0, 1.0))).seconds(4.0, 2)
        5.0
        """
        each = cost / parts
        return self.first.at(each) + (parts - self.sizes["pipeline"]) * self.further.at(each)


Kind = tuple[int, ...]
"""Sizes of the axes of a replica; 2 for all shards, whose steps are alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCosts:
    """Costs of a run in all kinds of layouts."""

    workload: Workload
    kinds: Mapping[Kind, StepCosts]
    accelerator: bool
    layers: tuple[LayerCosts, ...] = ()
    """None where stages are refused."""
    steps: tuple[RankSteps, ...] = ()
    """Of layouts in which ranks took steps together."""

    def steps_like(self, sizes: Mapping[Axis, int], chunks: int) -> RankSteps | None:
        """Return steps of the nearest number of shards; other axes are equal."""
        alike = [one for one in self.steps if (kind_in(one.sizes), one.chunks) == (kind_in(sizes), chunks)]
        return min(alike, key=lambda one: abs(one.sizes["shard"] - sizes["shard"]), default=None)


def kind_of(layout: ParallelSettings) -> Kind:
    """Return the kind of a layout."""
    return kind_in({axis: getattr(layout, axis) for axis in AXES[1:]})


def kind_in(sizes: Mapping[Axis, int]) -> Kind:
    """Return the kind of a layout by its sizes."""
    return tuple(min(sizes[axis], 2) if axis == "shard" else sizes[axis] for axis in AXES[1:])
