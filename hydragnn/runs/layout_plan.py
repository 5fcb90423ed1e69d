"""Time and efficiency of layouts, from costs of small steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn.base.errors import InputError
from hydragnn.distributed.fabric import Collective, Fabric, Group, group_along
from hydragnn.distributed.mesh import check_layout
from hydragnn.distributed.pipeline import HEADER
from hydragnn.parallel import AXES, Axis, ParallelSettings
from hydragnn.runs.costs import RunCosts, kind_of
from hydragnn.runs.layout_memory import DeviceMemory, Shares, memory_of, memory_of_stages, shares_of, stages_of
from hydragnn.training.buckets import BYTES
from hydragnn.training.parameters import SHARDED_BLOCKS

Limit = Literal["compute", "communication", "latency", "bubble", "memory"]

PLANNED: tuple[Axis, ...] = ("shard", "graph", "tensor")
"""Axes that are planned, beside replicas and stages."""

CHUNKS = (1, 2)
"""Chunks of stages that are planned."""

WITHIN: tuple[Axis, ...] = ("graph", "tensor")
"""Axes of which only sizes within a node are planned; their ranks exchange in every layer."""

SMALL_SUMS = 2
"""Sums of a few numbers over ranks in every step: labels that were counted, and signals. Ranks with shares also sum the norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSize:
    """Devices on which a run is planned."""

    nodes: int
    ranks_per_node: int
    cores: int = 0
    """Cores of a node that its ranks share; 0: every rank has a device of its own."""
    measured: int = 1
    """Ranks of a node that computed while steps were measured."""
    memory: float | None = None
    """Bytes of a device; None without limit."""

    @property
    def ranks(self) -> int:
        """Return the number of all ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def slowdown(self) -> float:
        """Return the time of a computation over that when measured.

        >>> MachineSize(nodes=1, ranks_per_node=4, cores=2).slowdown
        2.0
        """
        if not self.cores:
            return 1.0
        return max(1.0, self.ranks_per_node / self.cores) / max(1.0, self.measured / self.cores)

    @property
    def overlap(self) -> float:
        """Return the share of communication that needs no computing core."""
        return 1.0 if not self.cores else float(np.clip(self.cores / self.ranks_per_node - 1.0, 0.0, 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLayout:
    """Memory and time of a layout."""

    layout: ParallelSettings
    sizes: dict[Axis, int]
    memory: DeviceMemory
    compute: float
    """Seconds in which the largest share of a batch is read, computed and its weights moved."""
    communication: float
    """Seconds in which collectives move bytes and nothing is computed."""
    latency: float
    """Seconds of collectives without their bytes, and nothing is computed."""
    bubble: float
    """Seconds in which the slowest stage waits for others to compute."""
    hidden: float
    """Seconds of collectives while the backward pass goes on."""
    efficiency: float
    """Time of one device without peers, over the time of all devices together."""
    graphs: float
    """Of a batch."""
    fits: bool

    @property
    def seconds(self) -> float:
        """Return the time of a step."""
        return self.compute + self.communication + self.latency + self.bubble

    @property
    def limited_by(self) -> Limit:
        """Return what takes most, or what does not fit."""
        if not self.fits:
            return "memory"
        parts: dict[Limit, float] = {
            "compute": self.compute,
            "communication": self.communication,
            "latency": self.latency,
            "bubble": self.bubble,
        }
        return max(parts, key=lambda name: parts[name])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; bytes and seconds."""
        return {
            "parallel": {**self.sizes, "chunks": self.layout.chunks, "micro_batches": self.layout.micro_batches},
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "seconds": {
                "step": self.seconds,
                "compute": self.compute,
                "communication": self.communication,
                "latency": self.latency,
                "bubble": self.bubble,
                "hidden": self.hidden,
            },
            "graphs_per_second": self.graphs / self.seconds,
            "efficiency": self.efficiency,
            "limited_by": self.limited_by,
            "fits": self.fits,
        }


def layouts_on(machine: MachineSize, axes: Sequence[Axis] = PLANNED) -> Iterator[ParallelSettings]:
    """Yield every layout that the ranks can have, in one micro-batch.

    >>> [(one.shard, one.graph) for one in layouts_on(MachineSize(nodes=2, ranks_per_node=1))]
    [(1, 1), (2, 1)]
    """

    def extended(rest: Sequence[Axis], chosen: dict[str, int]) -> Iterator[ParallelSettings]:
        if not rest:
            settings = ParallelSettings.parse(chosen)
            try:
                check_layout(settings, machine.ranks, machine.ranks_per_node)
            except InputError:
                return
            yield settings
            return
        for size in divisors(machine.ranks_per_node if rest[0] in WITHIN else machine.ranks):
            yield from extended(rest[1:], {**chosen, rest[0]: size})

    yield from extended(axes, {})


def stages_on(machine: MachineSize, layers: int) -> Iterator[ParallelSettings]:
    """Yield all numbers of stages and chunks; other ranks are copies.

    >>> [(one.pipeline, one.chunks) for one in stages_on(MachineSize(nodes=1, ranks_per_node=4), layers=4)]
    [(2, 1), (2, 2), (4, 1)]
    """
    for stages in divisors(machine.ranks)[1:]:
        for chunks in CHUNKS:
            if stages * chunks <= layers:
                yield ParallelSettings(pipeline=stages, chunks=chunks)


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [size for size in range(1, number + 1) if number % size == 0]


def planned_layouts(costs: RunCosts, machine: MachineSize, fabric: Fabric) -> list[PlannedLayout]:
    """Return all layouts whose kind was measured, the fastest that fits first.

    Each has the fewest micro-batches with which it fits.
    """
    layouts = [one for one in layouts_on(machine) if kind_of(one) in costs.kinds]
    layouts += stages_on(machine, len(costs.layers))
    planned = [fitting(costs, settings, machine, fabric) for settings in layouts]
    return sorted(planned, key=lambda one: (not one.fits, one.seconds, one.memory.total))


def fitting(costs: RunCosts, settings: ParallelSettings, machine: MachineSize, fabric: Fabric) -> PlannedLayout:
    """Return a layout in as many micro-batches as it needs.

    Stages have as many as make the step shortest, and fit.
    """
    sizes = sizes_on(machine, settings)
    most = max(1, max(map(len, costs.workload.batches)) // (sizes["replicate"] * sizes["shard"]))
    parts, tried = min(settings.pipeline, most), list[PlannedLayout]()
    while True:
        one = planned(costs, settings.model_copy(update={"micro_batches": parts}), machine, fabric)
        tried.append(one)
        if (one.fits and settings.pipeline == 1) or parts == most:
            break
        parts = min(2 * parts, most)
    return tried[-1] if settings.pipeline == 1 else min(tried, key=lambda one: (not one.fits, one.seconds))


def planned(costs: RunCosts, settings: ParallelSettings, machine: MachineSize, fabric: Fabric) -> PlannedLayout:
    """Return what a layout takes and gives.

    Where ranks took steps in such a layout, their times count, and the model gives what other sizes of groups change.
    """
    sizes = sizes_on(machine, settings)
    alone, work = costs.kinds[kind_of(ParallelSettings())], costs.workload
    shares = work.shares(sizes["replicate"] * sizes["shard"])
    largest = [max(batch, key=work.cost) for batch in shares]
    model = modelled if settings.pipeline == 1 else modelled_stages
    step = model(costs, settings, sizes, largest, machine, fabric)
    steps = costs.steps_like(sizes, settings.chunks) if machine.measured == machine.ranks_per_node else None
    if steps is not None:
        nearest = model(costs, settings, steps.sizes, largest, machine, fabric)
        seconds = mean(steps.seconds(work.cost(graphs), settings.micro_batches) for graphs in largest)
        step = step.with_seconds(max(0.0, seconds + step.seconds - nearest.seconds))
    ideal = mean(alone.part.at(work.cost(batch)) for batch in work.batches) + alone.update
    needed = memory_of if settings.pipeline == 1 else memory_of_stages
    memory = needed(costs, settings, sizes, shares, on_devices=not machine.cores)
    return PlannedLayout(
        layout=settings,
        sizes=sizes,
        memory=memory,
        compute=step.compute,
        communication=step.moving,
        latency=step.latency,
        bubble=step.bubble,
        hidden=step.hidden,
        efficiency=machine.slowdown * ideal / (machine.ranks * step.seconds),
        graphs=mean(float(len(batch)) for batch in work.batches),
        fits=machine.memory is None or memory.total <= machine.memory,
    )


def sizes_on(machine: MachineSize, settings: ParallelSettings) -> dict[Axis, int]:
    """Return the ranks along every axis."""
    rest = machine.ranks // settings.ranks_per_replica
    return {axis: rest if axis == "replicate" else getattr(settings, axis) for axis in AXES}


class Times(NamedTuple):
    """Seconds of a step by what they are for."""

    compute: float
    moving: float
    latency: float
    hidden: float
    bubble: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the time of a step."""
        return self.compute + self.moving + self.latency + self.bubble

    def with_seconds(self, total: float) -> "Times":
        """Return the parts of a step of another length.

        What is not computed is waited for; a shorter step has computed less.

        >>> Times(3.0, 1.0, 1.0, 0.0).with_seconds(7.0)
        Times(compute=3.0, moving=2.0, latency=2.0, hidden=0.0, bubble=0.0)
        """
        compute, bubble = min(self.compute, total), min(self.bubble, max(0.0, total - self.compute))
        rest, waits = total - compute - bubble, self.moving + self.latency
        share = self.moving / waits if waits else 0.0
        return Times(compute, share * rest, (1.0 - share) * rest, self.hidden, bubble)


def modelled(
    costs: RunCosts,
    settings: ParallelSettings,
    sizes: Mapping[Axis, int],
    largest: Sequence[NDArray[np.int64]],
    machine: MachineSize,
    fabric: Fabric,
) -> Times:
    """Return times by steps without peers, and by the fabric.

    ``largest`` are the graphs of the largest share of every batch.
    """
    own, parts = costs.kinds[kind_of(settings)], settings.micro_batches
    amounts = list(map(costs.workload.cost, largest))
    weights = shares_of(own.vectors, sizes, settings, on_devices=not machine.cores)
    gradient = parts * mean(own.part.at(cost / parts) for cost in amounts)
    reading = 0.0 if costs.accelerator else mean(map(own.load.at, amounts))
    update = own.update * weights.states * kind_of(settings)[0] / own.vectors.states
    compute = machine.slowdown * (gradient + reading + update)
    backward = machine.slowdown * own.backward * gradient / parts * machine.overlap
    moving, latency, hidden = communication_of(sizes, machine, fabric, weights, backward)
    for exchange in own.exchanges:
        group = group_along(sizes, (exchange.axis,), machine.ranks_per_node)
        size = parts * mean(exchange.size.at(cost / parts) for cost in amounts)
        count = parts * exchange.count
        total, hops = times(fabric, exchange.kind, size / count, group, count)
        moving, latency = moving + total - hops, latency + hops
    return Times(compute, moving, latency, hidden)


def modelled_stages(
    costs: RunCosts,
    settings: ParallelSettings,
    sizes: Mapping[Axis, int],
    largest: Sequence[NDArray[np.int64]],
    machine: MachineSize,
    fabric: Fabric,
) -> Times:
    """Return the same for stages: the schedule, with and without messages.

    A message is a header and the states of a part; every stage waits for it, and sends while it computes.
    """
    stages, parts, work = stages_of(costs, settings), settings.micro_batches, costs.workload
    cost = mean(map(work.cost, largest)) / parts
    vectors = max((stages.vectors(stage) for stage in range(stages.stages)), key=lambda one: one.weights)
    weights = shares_of(vectors, sizes, settings, on_devices=not machine.cores)
    update = max(map(stages.update, range(stages.stages))) * weights.states / vectors.states
    reading = 0.0 if costs.accelerator else mean(stages.whole.load.at(work.cost(graphs)) for graphs in largest)
    whole = stages.makespan(cost, parts)
    busy = stages.busy(cost, parts)
    group = group_along(sizes, ("pipeline",), machine.ranks_per_node)
    pair = Group(size=2, nodes=min(2, group.nodes), sharing=group.sharing)
    size = mean(max(layer.bytes_sent(work.sizes, graphs) for layer in costs.layers) for graphs in largest) / parts
    hops = 2 * fabric.seconds("all-gather", 0.0, pair)
    message = hops + fabric.seconds("all-gather", 2 * (size + HEADER), pair) - fabric.seconds("all-gather", 0.0, pair)
    waits = stages.makespan(cost, parts, message) - whole
    moving, latency, hidden = communication_of(sizes, machine, fabric, weights, 0.0)
    return Times(
        compute=machine.slowdown * (busy + reading + update),
        moving=moving + waits * (1.0 - hops / message),
        latency=latency + waits * hops / message,
        hidden=hidden,
        bubble=machine.slowdown * (whole - busy),
    )


def communication_of(
    sizes: Mapping[Axis, int],
    machine: MachineSize,
    fabric: Fabric,
    weights: Shares,
    backward: float,
) -> tuple[float, float, float]:
    """Return seconds of bytes, of latency, and those that are hidden.

    The backward pass hides sums of gradients that begin while it goes on. Weights that other copies have moved are gathered after it.
    """
    copies = group_along(sizes, ("replicate", "graph"), machine.ranks_per_node)
    everyone = group_along(sizes, AXES, machine.ranks_per_node)
    size = weights.weights
    blocks = SHARDED_BLOCKS if sizes["shard"] > 1 else max(1, int(size // BYTES))
    kind: Collective = "all-gather" if weights.are_of_copies else "all-reduce"
    total, hops = times(fabric, kind, size / blocks, copies, blocks)
    hidden = min(total * (blocks - 1) / blocks, backward)  # the last block is complete at the end
    share = 1.0 - hidden / total if total else 1.0
    moving, latency = (total - hops) * share, hops * share
    if weights.are_of_copies:
        moving, latency = moving + total - hops, latency + hops
    sums = SMALL_SUMS + (weights.are_of_copies or sizes["shard"] * sizes["tensor"] > 1)
    return moving, latency + sums * fabric.seconds("all-reduce", 0.0, everyone), hidden


def mean(values: Iterable[float]) -> float:
    """Return the mean of some numbers."""
    return float(np.mean(list(values)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """Efficiency of the best layouts, relative to the fewest devices; simulated.

    That is the speed over the number of devices, over the same of the fewest.
    """

    devices: int
    strong: float
    """The batch stays as it is."""
    weak: float
    """The batch grows with the devices."""
    strong_layout: dict[Axis, int]
    strong_limit: Limit
    weak_layout: dict[Axis, int]
    weak_limit: Limit


def scaling_curve(
    costs: RunCosts, machine: MachineSize, fabric: Fabric, devices: Sequence[int], per_device: int
) -> list[Scaling]:
    """Return efficiencies; batches of weak scaling have ``per_device`` graphs on every device."""
    rows = []
    for count in devices:
        on = replace(machine, nodes=count // machine.ranks_per_node)
        batches = tuple(np.resize(batch, per_device * count) for batch in costs.workload.batches[:1])
        grown = replace(costs, workload=replace(costs.workload, batches=batches))
        rows.append([planned_layouts(one, on, fabric)[0] for one in (costs, grown)])
    (strong, weak), first = rows[0], devices[0]
    return [
        Scaling(
            devices=count,
            strong=first * strong.seconds / (count * fixed.seconds),
            weak=weak.seconds / growing.seconds,
            strong_layout=fixed.sizes,
            strong_limit=fixed.limited_by,
            weak_layout=growing.sizes,
            weak_limit=growing.limited_by,
        )
        for count, (fixed, growing) in zip(devices, rows)
    ]


def times(fabric: Fabric, kind: Collective, size: float, group: Group, count: int) -> tuple[float, float]:
    """Return the seconds of so many collectives, and those of their latency."""
    return count * fabric.seconds(kind, size, group), count * fabric.seconds(kind, 0.0, group)
