"""Time, memory and losses of layouts on more devices than were measured.

A layout's step is that of the nearest measured layout at the cost of the largest share, with the traffic that larger groups have more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.datasets import Loader
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.mesh import check_layout, words
from hydragnn.distributed.pipeline import COSTS, force_schedule
from hydragnn.parallel import AXES, Axis, ParallelSettings
from hydragnn.runs.rank_steps import PARTS, Interconnect, Seconds, Steps, line
from hydragnn.training import buckets
from hydragnn.training.parameters import SHARDED_BLOCKS

DIFFERENCE = 0.25
"""Share by which repeats of a measurement may differ."""
HIDDEN = 0.5
"""Share of the computation in which an accelerator sums gradients."""
SUMS = 2
"""Sums of a few numbers in every step: labels and signals; ranks with other weights also sum the norm."""
RANKS = 64
"""Ranks, at most, whose shares of a batch are looked at."""
MANY = 2**19
"""Graphs, at most, that are dealt to ranks for a look at their shares."""

LOSSES = ("fixed work", "imbalance", "communication", "latency", "bubble")

DEVICES = tuple(2**power for power in range(17))


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolation:
    """Measured steps of a run, extrapolated to larger machines."""

    loader: Loader
    alone: Steps
    """Steps of one device without peers."""
    layouts: Sequence[Steps]
    network: Interconnect
    ranks: int
    """Devices of the planned machine."""
    per_node: int
    weights: int
    sent: float
    """Bytes that stages send for a node of a graph."""
    layers: int
    """Layers of the model; 0 where stages are refused."""
    blocks: int = SHARDED_BLOCKS
    """Blocks of weights that shards gather one after the other."""
    derives: bool = False
    """True for forces, which double sweeps of stages and gathers of weights."""
    accelerator: bool
    shared_weights: bool = True
    """Ranks may hold parts of weights."""
    memory: float = inf
    roofline: Mapping[str, Any] = field(default_factory=dict)
    """Operations and bytes of a step on one device, beside its peaks."""
    noise: Mapping[str, Any] = field(default_factory=dict)
    """Noise scale of the gradient, or why it is not measured."""
    _shares: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict, init=False)

    @property
    def graphs(self) -> int:
        """Return the graphs of a batch."""
        every = len(self.loader.indices)
        return min(self.loader.budget.max_graphs, every) or round(every / len(self.loader))

    def shares_of(self, graphs: int, shares: int) -> tuple[float, float]:
        """Return the costs of the mean and of the largest share."""
        while graphs > MANY and shares % 2 == 0:  # in memory; so many graphs of a rank are as even on half as many
            graphs, shares = graphs // 2, shares // 2
        if (graphs, shares) not in self._shares:
            costs = costs_of(self.loader.sizes, self.loader.node_cost)
            batch = np.resize(np.concatenate(self.loader.batches(0)), graphs)
            some = np.unique(np.linspace(0, shares - 1, min(shares, RANKS)).astype(int)).tolist()
            largest = max(int(costs[share_of(batch, costs, shares, rank)].sum()) for rank in some)
            largest = max(largest, int(costs[batch].max()))  # of many ranks, some have no graph
            self._shares[graphs, shares] = float(costs[batch].sum()) / shares, float(largest)
        return self._shares[graphs, shares]

    def traffic(self, sizes: Mapping[Axis, int], chunks: int, parts: int, share: float, backward: float) -> Seconds:
        """Return seconds of bytes and of latency of a step."""
        shard, stages, graph, tensor = (sizes[axis] for axis in AXES[1:])
        ranks, copies = prod(sizes.values()), sizes["replicate"] * graph
        own, network = self.weights / (stages * tensor), self.network
        # gradients of copies are summed block by block, each with its latency
        blocks = self.blocks if shard > 1 else max(1, int(own / buckets.BYTES))
        total = network.sums(copies, ranks // copies, self.per_node, own / shard) * np.array([1, blocks])
        shares_states = self.accelerator and own / shard > buckets.BYTES
        # copies that share states gather weights when the backward pass is over
        hidden = total * (0.5 if shares_states else 1.0)
        total = total - hidden * min(1.0, backward / max(hidden.sum(), 1e-12))
        total += (SUMS + (ranks > copies or shares_states)) * network.sums(ranks, 1, self.per_node, 0.0)
        # in every part each block is gathered, and its gradient scattered, which gloo does by a sum
        sweeps, inner = 4 if self.derives else 2, graph * tensor
        block = shard, stages * inner, self.per_node, own / self.blocks
        scatter = network.sums(*block, ways=1 if self.accelerator else 2)
        total += self.blocks * parts * (sweeps * network.sums(*block, ways=1) + scatter)
        if stages > 1:
            size = self.sent * float(self.loader.sizes.nodes[self.loader.indices].mean()) * share / (parts * graph)
            bandwidth, latency = network.within, network.inside
            if stages * inner > self.per_node:
                bandwidth, latency = min(bandwidth, network.between / inner), network.latency
            total += sweeps * chunks * (parts + stages - 1) * np.array([size / bandwidth, latency])
        return total

    def waits(self, stages: int, chunks: int, parts: int) -> float:
        """Return the waits of a stage over its work."""
        of_forces = self.derives and stages > 1
        return waits_of_forces(stages, chunks, parts) if of_forces else (stages - 1) / (chunks * parts)

    def row_of(self, layout: ParallelSettings, ranks: int, graphs: int, *, weak: bool = False) -> dict[str, Any] | None:
        """Return time, losses and memory of a layout as plain JSON.

        None where ranks that share graphs or channels like this were not measured. Efficiency compares with one device that has the whole
        batch, or, for ``weak`` scaling, a device's part of it.
        """
        sizes: dict[Axis, int] = {axis: getattr(layout, axis) for axis in AXES}
        sizes["replicate"] = ranks // layout.ranks_per_replica
        inner: tuple[Axis, ...] = ("graph", "tensor")
        like = [one for one in (*self.layouts, self.alone) if all(one.sizes[axis] == sizes[axis] for axis in inner)]
        if not like:
            return None
        near = min(like, key=lambda one: one.distance(sizes, layout.chunks))
        stages, chunks, shares = sizes["pipeline"], layout.chunks, sizes["replicate"] * sizes["shard"]
        mean, largest = self.shares_of(graphs, shares)
        is_like = near.sizes == sizes and near.chunks == chunks
        most = max(1, graphs // shares)
        parts = near.parts if is_like else min(PARTS * stages, most) if stages > 1 else 1
        state = near.state * (near.held / (sizes["shard"] * stages * sizes["tensor"]))
        activations = line(near.costs, near.memory, largest) * near.parts
        while state + activations / parts > self.memory and parts < most:  # the fewest parts that fit
            parts = min(2 * parts, most)
        divided = ranks // shares
        ideal = self.alone.seconds(mean / divided, 1) if weak else self.alone.seconds(mean * shares, 1) / ranks
        compute = self.alone.seconds(mean, parts) / divided
        imbalance = max(0.0, self.alone.seconds(largest, parts) / divided - compute)
        backward = HIDDEN * compute if self.accelerator else 0.0
        traffic = self.traffic(sizes, chunks, parts, graphs / shares, backward)
        then = self.traffic(near.sizes, near.chunks, near.parts, graphs / shares, backward)
        measured = near.sizes["pipeline"]
        busy = near.seconds(largest, parts) / (1.0 + self.waits(measured, near.chunks, near.parts)) * measured / stages
        bubble = busy * self.waits(stages, chunks, parts)
        least = min(busy, compute + imbalance)  # where the stated network is slower than the measured one
        own = max(busy + float(traffic.sum() - then.sum()), least, 1e-9)
        total = own + bubble
        scale = min(1.0, own / max(compute + imbalance, 1e-12))
        traffic[0] += 1e-15  # where it is nothing, what is not explained is communication
        waits = max(0.0, own - compute - imbalance) * (traffic / traffic.sum())
        spent = (compute * scale, imbalance * scale, *map(float, waits), bubble)
        losses = {name: value / total for name, value in zip(LOSSES, spent)}
        losses["fixed work"] -= ideal / total
        fits = state + activations / parts <= self.memory
        is_measured = is_like and parts == near.parts
        return {
            "parallel": {**sizes, "chunks": chunks, "micro_batches": parts},
            "measured": is_measured,
            "measured_seconds": min(near.repeats[-1]) if is_measured else None,
            "memory": {"state": state, "step": activations / parts, "total": state + activations / parts},
            "seconds": {"step": total, **dict(zip(("compute", *LOSSES[1:]), spent))},
            "losses": losses,
            "efficiency": ideal / total,
            "graphs_per_second": graphs / total,
            "limited_by": max(losses, key=lambda name: losses[name]) if fits else "memory",
            "fits": fits,
        }

    def best_first(self, ranks: int, graphs: int, *, weak: bool = False) -> list[dict[str, Any]]:
        """Return all layouts: those that fit first, and measured ones before others."""
        every = layouts_on(ranks, self.per_node, self.layers)
        layouts = (one for one in every if self.shared_weights or one.shard * one.tensor == 1)
        rows = [row for one in layouts if (row := self.row_of(one, ranks, graphs, weak=weak)) is not None]
        return sorted(
            rows,
            key=lambda row: (not row["fits"], not row["measured"], row["measured_seconds"] or row["seconds"]["step"]),
        )

    def curves(self, layout: ParallelSettings) -> list[dict[str, Any]]:
        """Return a layout with more and more copies, by both scalings.

        Strong scaling is None where devices have no graph. InputError where no time was measured.
        """
        if min(map(min, self.alone.repeats)) <= 0:
            raise InputError("--curves: no time was measured, as the clock stood; plan again, or use larger batches")
        each = max(1, round(self.graphs / self.ranks))
        inner = layout.ranks_per_replica // layout.shard  # devices that share graphs
        return [
            {
                "devices": count,
                "strong": self.row_of(layout, count, self.graphs) if count // inner <= self.graphs else None,
                "weak": self.row_of(layout, count, each * count, weak=True),
            }
            for count in DEVICES
            if count % layout.ranks_per_replica == 0
        ]

    @property
    def warning(self) -> str | None:
        """Return why times are not to be trusted; None where they are."""
        most = max(one.difference for one in (self.alone, *self.layouts))
        words = f"the machine was busy: repeated steps differ by {most:.0%}, more than {DIFFERENCE:.0%}; do not trust the order of layouts, and plan again later"
        return words if most > DIFFERENCE else None


def check_curves(
    layout: ParallelSettings, started: Iterable[ParallelSettings], per_node: int, batch: int, graphs: int
) -> None:
    """Raise InputError for a layout without curves on powers of two."""
    ranks, own = layout.ranks_per_replica, words(layout)
    if DEVICES[-1] % ranks:
        raise InputError(
            f"--curves: {own} takes {ranks:,} ranks, which do not divide powers of 2 up to {DEVICES[-1]:,} devices; change [parallel]"
        )
    check_layout(layout.model_copy(update={"replicate": "auto"}), ranks, per_node)
    alike = {(one.graph, one.tensor) for one in (ParallelSettings(), *started)}
    if (layout.graph, layout.tensor) not in alike:
        raise InputError(
            f"--curves: what {own} takes is only known where ranks measure it; start {layout.graph * layout.tensor} ranks or a multiple: "
            "torchrun --nproc-per-node N -m hydragnn plan"
        )
    if layout.shard > batch or graphs < 2:
        raise InputError(
            f"--curves: batches of {batch:,} of {graphs:,} training graphs are too few for {max(2, layout.shard):,} devices; "
            "use a store of more graphs, or raise batch.max_graphs"
        )


@cache
def waits_of_forces(stages: int, chunks: int, parts: int) -> float:
    """Return waits of stages that train on forces, over their work.

    >>> [round(waits_of_forces(4, chunks, 16), 2) for chunks in (1, 2)]
    [0.17, 0.34]
    """
    _, seconds = force_schedule(stages, chunks, parts, 2 * stages)
    return seconds / (chunks * parts * sum(COSTS)) - 1.0


def layouts_on(ranks: int, per_node: int, layers: int = 0) -> Iterator[ParallelSettings]:
    """Yield every layout of ranks.

    Stages have copies alone. Graphs and channels are divided within a node.

    >>> [(one.shard, one.graph, one.pipeline, one.chunks) for one in layouts_on(2, per_node=1, layers=4)]
    [(1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 2, 1), (1, 1, 2, 2)]
    """
    of_ranks, of_node = ([size for size in range(1, most + 1) if most % size == 0] for most in (ranks, per_node))
    for shard, graph, tensor in product(of_ranks, of_node, of_node):
        settings = ParallelSettings(shard=shard, graph=graph, tensor=tensor)
        with suppress(InputError):
            check_layout(settings, ranks, per_node)
            yield settings
    for stages, chunks in product(of_ranks[1:], (1, 2)):
        if stages * chunks <= layers:
            yield ParallelSettings(pipeline=stages, chunks=chunks)
