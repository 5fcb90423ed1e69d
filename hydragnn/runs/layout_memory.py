"""Memory of the ranks of a layout, from costs of small steps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets import Sizes
from hydragnn.parallel import Axis, ParallelSettings
from hydragnn.runs.costs import RunCosts, Vectors, kind_of
from hydragnn.runs.stage_plan import StageCosts
from hydragnn.training.buckets import BYTES


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


def stages_of(costs: RunCosts, settings: ParallelSettings) -> StageCosts:
    """Return the costs of the stages of a layout."""
    whole = costs.kinds[kind_of(ParallelSettings())]
    return StageCosts(layers=costs.layers, whole=whole, stages=settings.pipeline, chunks=settings.chunks)


class Shares(NamedTuple):
    """Bytes of weights and states of one rank."""

    weights: float
    states: float
    are_of_copies: bool
    """Each copy keeps the states of a share of the weights."""


def shares_of(vectors: Vectors, sizes: Mapping[Axis, int], settings: ParallelSettings, *, on_devices: bool) -> Shares:
    """Return the shares of a rank, as ``parallelize`` divides them."""
    copies, shards = sizes["replicate"] * sizes["graph"], sizes["shard"]
    weights = vectors.weights / shards
    by_itself = on_devices and weights > BYTES
    shared = copies > 1 and (by_itself if settings.states == "auto" else settings.states == "shared")
    return Shares(weights, vectors.states / shards / (copies if shared else 1), shared)


def memory_of(
    costs: RunCosts,
    settings: ParallelSettings,
    sizes: dict[Axis, int],
    shares: list[list[NDArray[np.int64]]],
    *,
    on_devices: bool,
) -> DeviceMemory:
    """Return the memory of the rank that needs most."""
    own, parts, sizes_of_graphs = costs.kinds[kind_of(settings)], settings.micro_batches, costs.workload.sizes
    graph_sizes, without_copies = (
        Sizes(
            nodes=np.rint(share * sizes_of_graphs.nodes).astype(np.int64),
            edges=np.rint(own.of_edges * sizes_of_graphs.edges).astype(np.int64),
        )
        for share in (own.of_nodes, 1.0 / sizes["graph"])
    )
    peak = held = halos = 0.0
    for graphs in (graphs for batch in shares for graphs in batch if len(graphs)):
        whole = own.footprint.held(graph_sizes, graphs)
        largest = largest_part(graph_sizes, graphs, parts)
        inside = own.footprint.held(graph_sizes, largest)
        needed = own.footprint.bytes(graph_sizes, largest) - inside
        if whole + needed > peak + held:
            peak, held = needed, whole
            halos = own.footprint.bytes(graph_sizes, largest) - own.footprint.bytes(without_copies, largest)
    weights = shares_of(own.vectors, sizes, settings, on_devices=on_devices)
    gathered = min(peak, own.vectors.gathered)
    return replace(
        memory_of_weights(own.vectors, weights),
        data=int(own.valid / (sizes["replicate"] * sizes["shard"]) + held),
        activations=int(peak - gathered - halos),
        gathered_layers=int(gathered),
        halos=int(halos),
    )


def memory_of_stages(
    costs: RunCosts,
    settings: ParallelSettings,
    sizes: dict[Axis, int],
    shares: list[list[NDArray[np.int64]]],
    *,
    on_devices: bool,
) -> DeviceMemory:
    """Return the memory of the stage that needs most."""
    stages, parts, graph_sizes = stages_of(costs, settings), settings.micro_batches, costs.workload.sizes
    whole = stages.whole
    graphs = max((graphs for batch in shares for graphs in batch), key=costs.workload.cost)
    part = largest_part(graph_sizes, graphs, parts)
    data = whole.valid / sizes["replicate"] + whole.footprint.held(graph_sizes, graphs)

    def of(stage: int) -> DeviceMemory:
        vectors = stages.vectors(stage)
        weights = shares_of(vectors, sizes, settings, on_devices=on_devices)
        activations = stages.activations(stage, parts, graph_sizes, part)
        return replace(memory_of_weights(vectors, weights), data=int(data), activations=int(activations))

    return max(map(of, range(stages.stages)), key=lambda one: one.total)


def largest_part(sizes: Sizes, graphs: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Return the graphs of the largest of nearly equal parts."""
    order = graphs[np.argsort(sizes.edges[graphs], kind="stable")][::-1]
    return order[::parts][: ceil(len(graphs) / parts)]


def memory_of_weights(vectors: Vectors, shares: Shares) -> DeviceMemory:
    """Return the memory of weights and their states alone."""
    moments = shares.states * vectors.moments / vectors.states
    return DeviceMemory(
        parameters=int(shares.weights),
        gradients=int(shares.weights),
        optimizer=int(moments),
        average_and_best=int(shares.states - moments),
        data=0,
        activations=0,
    )
