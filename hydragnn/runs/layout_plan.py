"""Memory, time and efficiency of layouts, from costs of small steps."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.distributed.fabric import Collective, Fabric, Group, group_along
from hydragnn.distributed.mesh import check_layout
from hydragnn.parallel import AXES, Axis, ParallelSettings
from hydragnn.runs.step_costs import StepCosts
from hydragnn.training.buckets import BYTES

Limit = Literal["compute", "communication", "latency", "memory"]

AXES_IN_USE: tuple[Axis, ...] = ("replicate",)
"""Axes that are planned."""

SMALL_SUMS = 2
"""Sums of a few numbers over ranks in every step: labels that were counted, and signals."""


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
class DeviceMemory:
    """Bytes of one device, at most."""

    parameters: int
    gradients: int
    optimizer: int
    average_and_best: int
    data: int
    """Share of the validation part, and batches."""
    activations: int
    gathered_layers: int = 0
    halos: int = 0

    @property
    def total(self) -> int:
        """Return all bytes."""
        return sum(asdict(self).values())


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLayout:
    """What a layout takes and gives."""

    layout: ParallelSettings
    sizes: dict[Axis, int]
    memory: DeviceMemory
    compute: float
    """Seconds in which the largest share of a batch is read, computed and its weights moved."""
    communication: float
    """Seconds in which collectives move bytes and nothing is computed."""
    latency: float
    """Seconds of collectives without their bytes, and nothing is computed."""
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
        return self.compute + self.communication + self.latency

    @property
    def limited_by(self) -> Limit:
        """Return what takes most, or what does not fit."""
        if not self.fits:
            return "memory"
        parts: dict[Limit, float] = {
            "compute": self.compute,
            "communication": self.communication,
            "latency": self.latency,
        }
        return max(parts, key=lambda name: parts[name])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; bytes and seconds."""
        return {
            "parallel": {**self.sizes, "micro_batches": self.layout.micro_batches},
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "seconds": {
                "step": self.seconds,
                "compute": self.compute,
                "communication": self.communication,
                "latency": self.latency,
                "hidden": self.hidden,
            },
            "graphs_per_second": self.graphs / self.seconds,
            "efficiency": self.efficiency,
            "limited_by": self.limited_by,
            "fits": self.fits,
        }


def layouts_on(machine: MachineSize, axes: Sequence[Axis] = AXES_IN_USE) -> Iterator[ParallelSettings]:
    """Yield every layout that the ranks can have, in one micro-batch.

    >>> [one.ranks_per_replica for one in layouts_on(MachineSize(nodes=2, ranks_per_node=2))]
    [1]
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
        for size in divisors(machine.ranks_per_node if rest[0] == "tensor" else machine.ranks):
            yield from extended(rest[1:], {**chosen, rest[0]: size})

    yield from extended([axis for axis in axes if axis != "replicate"], {})


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [size for size in range(1, number + 1) if number % size == 0]


def planned_layouts(costs: StepCosts, machine: MachineSize, fabric: Fabric) -> list[PlannedLayout]:
    """Return all layouts, the fastest that fits first.

    Each has the fewest micro-batches with which it fits.
    """
    planned = [fitting(costs, settings, machine, fabric) for settings in layouts_on(machine)]
    return sorted(planned, key=lambda one: (not one.fits, one.seconds, one.memory.total))


def fitting(costs: StepCosts, settings: ParallelSettings, machine: MachineSize, fabric: Fabric) -> PlannedLayout:
    """Return a layout in as many micro-batches as it needs."""
    while True:
        one = planned(costs, settings, machine, fabric)
        most = max(len(batch) for batch in costs.batches) // (one.sizes["replicate"] * one.sizes["shard"])
        if one.fits or settings.micro_batches >= most:
            return one
        settings = settings.model_copy(update={"micro_batches": 2 * settings.micro_batches})


def planned(costs: StepCosts, settings: ParallelSettings, machine: MachineSize, fabric: Fabric) -> PlannedLayout:
    """Return what a layout takes and gives."""
    rest = machine.ranks // settings.ranks_per_replica
    sizes: dict[Axis, int] = {axis: rest if axis == "replicate" else getattr(settings, axis) for axis in AXES}
    shares = costs.shares(sizes["replicate"] * sizes["shard"])
    memory = memory_of(costs, settings, sizes, shares)
    largest = [max(map(costs.cost, batch)) for batch in shares]
    parts = [part_seconds(costs, cost, settings) for cost in largest]
    reading = float(np.mean([costs.load.at(cost) for cost in largest])) * (not costs.accelerator)
    gradient = float(np.mean(parts))
    update = costs.update / (sizes["shard"] * sizes["tensor"] * sizes["pipeline"])
    compute = machine.slowdown * (gradient + reading + update)
    backward = machine.slowdown * costs.backward * gradient / settings.micro_batches * machine.overlap
    moving, latency, hidden = communication_of(costs, sizes, machine, fabric, backward)
    alone = [part_seconds(costs, float(sum(map(costs.cost, [batch]))), ParallelSettings()) for batch in costs.batches]
    ideal = float(np.mean(alone)) + costs.update
    seconds = compute + moving + latency
    return PlannedLayout(
        layout=settings,
        sizes=sizes,
        memory=memory,
        compute=compute,
        communication=moving,
        latency=latency,
        hidden=hidden,
        efficiency=machine.slowdown * ideal / (machine.ranks * seconds),
        graphs=float(np.mean([len(batch) for batch in costs.batches])),
        fits=machine.memory is None or memory.total <= machine.memory,
    )


def part_seconds(costs: StepCosts, cost: float, settings: ParallelSettings) -> float:
    """Return the time of the gradient of a share, in its micro-batches."""
    return settings.micro_batches * costs.part.at(cost / settings.micro_batches)


def memory_of(
    costs: StepCosts, settings: ParallelSettings, sizes: dict[Axis, int], shares: list[list[np.ndarray]]
) -> DeviceMemory:
    """Return the memory of the rank that needs most."""
    parts, footprint = settings.micro_batches, costs.footprint
    peak = held = 0.0
    for graphs in (graphs for batch in shares for graphs in batch if len(graphs)):
        own = footprint.held(costs.sizes, graphs)
        each = ceil(len(graphs) / parts)
        order = graphs[np.argsort(costs.sizes.edges[graphs], kind="stable")][::-1] if parts > 1 else graphs
        whole = footprint.bytes(costs.sizes, graphs if parts == 1 else order[::parts][:each])
        inside = footprint.held(costs.sizes, order[::parts][:each]) if parts > 1 else own
        if own + whole - inside > peak + held:
            peak, held = whole - inside, own
    vectors = costs.vectors
    return DeviceMemory(
        parameters=vectors.weights,
        gradients=vectors.gradients,
        optimizer=vectors.optimizer,
        average_and_best=vectors.kept,
        data=int(costs.valid / (sizes["replicate"] * sizes["shard"]) + held),
        activations=int(peak),
    )


def communication_of(
    costs: StepCosts, sizes: dict[Axis, int], machine: MachineSize, fabric: Fabric, backward: float
) -> tuple[float, float, float]:
    """Return seconds of bytes, of latency, and those that are hidden.

    The backward pass hides sums that begin while it goes on.
    """
    of_items = group_along(sizes, ("replicate", "shard", "graph"), machine.ranks_per_node)
    everyone = group_along(sizes, AXES, machine.ranks_per_node)
    size = costs.vectors.gradients
    buckets = max(1, size // BYTES)
    total, hops = times(fabric, "all-reduce", size / buckets, of_items, buckets)
    hidden = min(total * (buckets - 1) / buckets, backward)  # the last bucket is complete at the end
    share = 1.0 - hidden / total if total else 1.0
    small = SMALL_SUMS * fabric.hops("all-reduce", everyone)
    return (total - hops) * share, hops * share + small, hidden


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


def scaling_curve(
    costs: StepCosts, machine: MachineSize, fabric: Fabric, devices: Sequence[int], per_device: int
) -> list[Scaling]:
    """Return efficiencies; batches of weak scaling have ``per_device`` graphs on every device."""
    rows = []
    for count in devices:
        on = replace(machine, nodes=count // machine.ranks_per_node)
        grown = replace(costs, batches=tuple(np.resize(b, per_device * count) for b in costs.batches[:1]))
        rows.append([planned_layouts(one, on, fabric)[0].seconds for one in (costs, grown)])
    (strong, weak), first = rows[0], devices[0]
    return [
        Scaling(devices=count, strong=first * strong / (count * fixed), weak=weak / growing)
        for count, (fixed, growing) in zip(devices, rows)
    ]


def times(fabric: Fabric, kind: Collective, size: float, group: Group, count: int) -> tuple[float, float]:
    """Return the seconds of so many collectives, and those of their latency."""
    return count * fabric.seconds(kind, size, group), count * fabric.hops(kind, group)
