"""Memory model of a step, from allocations of small batches.

Every tensor of a step has a size that is linear in graphs, nodes, edges and, with attention among all nodes, in the squares of nodes; so
is what lives at any moment. Probes of some sizes that allocate in the same order give these functions, all of them, and the
largest holds for batches of every size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import pad

from hydragnn.base.errors import InputError
from hydragnn.datasets.footprint import Footprint, Form
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.levels import known_levels
from hydragnn.graphs.topology import Topology, reverse_of
from hydragnn.graphs.wider import with_pairs_as_in
from hydragnn.layers.size_buckets import padded_sizes
from hydragnn.training.probe_levels import Shares, with_levels_as_in

DEVICE_SHARE = 0.9
"""Of an accelerator's memory, what tensors may take: the rest is for libraries and for gaps between tensors."""

SEVERAL = 1.1
"""Where probes did not allocate in the same order, so much more than the smallest plane above them."""

UNEQUAL = 1.001
"""Where graphs of different sizes take so many times what equal ones foretell, as attention among all nodes does, probes have different sizes, too."""

SPREAD = 1.02
"""And batches of such models take up to so many times what the worst of their probes do: how graphs lie together differs from batch to batch."""

SPARE = 2**16
"""Bytes for small tensors that probes do not have: batches of one graph, node or edge are computed in another way here and there."""

OF_PARTS = (8.0, 16.0)
"""Bytes for a node and an edge of a batch that is in parts: the graph of a node, and the ends of an edge as the part counts them."""

Sample = tuple[int, int, int]
"""Graphs, and nodes and edges of each."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Probe:
    """A measured batch: its amounts, and bytes after every allocation."""

    amounts: Float64[ndarray, " 5"]
    alive: Int64[ndarray, " moments"]
    given: int
    """Bytes of the batch itself, with the coarser levels that it comes with."""


def footprint_of(compute: Callable[[GraphBatch], object], like: GraphBatch, shares: Sequence[Shares] = ()) -> Footprint:
    """Return the memory function of ``compute`` for batches like ``like``.

    ``like`` is from the data, with two graphs or more; where it takes more itself than probes foretell, so will all batches. ``shares`` are those of the
    coarser levels that are made of a batch.
    """
    like = replace(like)  # what follows from edges is not there yet
    probes, spread = [_probe(compute, like)], 1.0

    def probe(batch: GraphBatch) -> Probe:
        return _probe(compute, with_levels_as_in(with_pairs_as_in(batch, like), like, shares))

    footprint = fitted([probe(probe_batch(like, sample)) for sample in samples_for(like)])
    first, *samples = samples_for(like)
    if len(like.counts("node").unique()) > 1:
        ragged = probe(ragged_batch(like, first))
        if _beyond(footprint, ragged) > UNEQUAL:
            footprint = fitted([ragged, *(probe(ragged_batch(like, sample)) for sample in samples)])
            probes, spread = [*probes, *map(probe, padded_batches(like))], SPREAD
    factor = spread * max(_beyond(footprint, one) for one in probes)
    return footprint if factor <= 1 else _times(footprint, factor)


def _beyond(footprint: Footprint, probe: Probe) -> float:
    """Return the bytes beyond the prediction."""
    return float(probe.alive.max()) / max(float(np.max(np.array(footprint.forms) @ probe.amounts)), 1.0)


def _times(footprint: Footprint, factor: float) -> Footprint:
    def scaled(form: Form) -> Form:
        return tuple(factor * number for number in form)

    return replace(footprint, forms=tuple(map(scaled, footprint.forms)))


def with_fixed(footprint: Footprint, size: int) -> Footprint:
    """The footprint with so many bytes that are there all the time."""
    size += SPARE
    return replace(footprint, forms=tuple((form[0] + size, *form[1:]) for form in footprint.forms))


def _probe(compute: Callable[[GraphBatch], object], batch: GraphBatch) -> Probe:
    nodes = batch.node_offsets.diff().to("cpu", torch.float64)
    amounts = [1.0, batch.num_graphs, batch.num_nodes, batch.num_edges, float(nodes.square().sum())]
    levels = known_levels(batch)
    given = batch.size + (levels.size if levels else 0)
    changes = allocations(lambda: compute(batch), batch.device)
    return Probe(amounts=np.array(amounts), alive=given + np.concatenate([[0], changes]).cumsum(), given=given)


def allocations(compute: Callable[[], object], device: torch.device) -> Int64[ndarray, " changes"]:
    """Return the bytes of allocations in order; releases are negative."""
    from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    # not torch.profiler: it prints on stderr where others look for errors, and does not know the order of simultaneous events
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    _enable_profiler_legacy(config)
    try:
        compute()
    finally:
        threads = _disable_profiler_legacy()
    events = [event for thread in threads for event in thread]
    begin = events[0]
    if sum(any(str(event.kind()) == "memory_alloc" for event in thread) for thread in threads) > 1:
        events.sort(key=begin.cpu_elapsed_us)  # a thread of its own computes gradients on accelerators
    of_device = (lambda event: event.cuda_memory_usage()) if device.type == "cuda" else (lambda e: e.cpu_memory_usage())
    changes = [of_device(event) for event in events if str(event.kind()) == "memory_alloc"]
    return np.array([change for change in changes if change], dtype=np.int64)


def fitted(probes: Sequence[Probe]) -> Footprint:
    """The largest of the functions that went through the probes."""
    amounts = np.stack([probe.amounts for probe in probes])
    outside = _solved(amounts, np.array([[probe.given] for probe in probes], dtype=np.float64))[0]
    kept = tuple((outside + np.array([0.0, 0.0, *OF_PARTS, 0.0])).tolist())
    if len({len(probe.alive) for probe in probes}) == 1:
        forms = _solved(amounts, np.stack([probe.alive for probe in probes]).astype(np.float64))
        return Footprint(forms=_largest(forms), kept=kept)
    peaks = np.array([probe.alive.max() for probe in probes], dtype=np.float64)
    plane = _solved(amounts, peaks[:, None])[0]
    factor = SEVERAL * float((peaks / np.maximum(amounts @ plane, 1.0)).max())
    return Footprint(forms=(tuple((factor * plane).tolist()),), kept=kept)


def _solved(
    amounts: Float64[ndarray, "probes 5"], alive: Float64[ndarray, "probes moments"]
) -> Float64[ndarray, "moments 5"]:
    """Return the functions through the probes, without zeros."""
    scale = amounts.max(axis=0).clip(min=1.0)
    forms = np.linalg.lstsq(amounts / scale, alive, rcond=1e-9)[0].T
    # at least: rounding must not make a batch larger than its parts
    return np.where(forms < 0.5, 0.0, forms) / scale


def _largest(forms: Float64[ndarray, "moments 5"]) -> tuple[Form, ...]:
    """Return the functions that are largest somewhere, with a margin."""
    forms = np.unique(forms.round(6), axis=0)
    looked_at, others = _all_sizes(0), _all_sizes(1)
    largest = forms[np.unique((looked_at @ forms.T).argmax(axis=1))]
    factor = float(((others @ forms.T).max(axis=1) / (others @ largest.T).max(axis=1).clip(min=1.0)).max())
    return tuple(tuple(form) for form in (max(1.0, factor) * largest).tolist())


def _all_sizes(seed: int, count: int = 4096) -> Float64[ndarray, "count 5"]:
    """Return amounts of batches of all sizes.

    1 to 100,000 graphs of 1 to 30,000 nodes with 0 to 300 edges.
    """
    random = np.random.default_rng(seed)
    graphs, nodes = 10 ** random.uniform(0, 5, count), 10 ** random.uniform(0, 4.5, count)
    degrees = np.where(random.random(count) < 0.1, 0.0, 10 ** random.uniform(-1, 2.5, count))
    return np.stack([np.ones(count), graphs, graphs * nodes, graphs * nodes * degrees, graphs * nodes**2], axis=1)


def samples_for(like: GraphBatch) -> list[Sample]:
    """Return sizes of probes, with equal nodes if ``like`` has."""
    counts = like.counts("node").unique().tolist()
    size = max(1, counts[0]) if len(counts) == 1 else 20
    first = max(3, 100 // size)
    more, edges = 2 * first, max(2, 2 * (300 // first))
    base: list[Sample] = [
        (first, size, edges),
        (more, size, edges),
        (first, size, 2 * edges),
        (first + 1, size, edges + 40),
    ]
    if len(counts) > 1:
        base += [(first, 2 * size, edges), (more, 3 * size, edges), (first + 1, size // 2, edges + 20)]
    return base if like.num_edges else [(graphs, nodes, 0) for graphs, nodes, _ in base]


def probe_batch(like: GraphBatch, sample: Sample) -> GraphBatch:
    """Return a fixed batch of equal graphs like ``like``."""
    random = torch.Generator().manual_seed(0)
    graphs, size, edges = sample
    paired = bool(like.num_edges) and is_paired(like)

    def draw(values: Tensor, count: int) -> Tensor:
        rows = torch.randint(max(1, len(values)), (count,), generator=random)
        return (
            values.index_select(0, rows.to(values.device))
            if len(values)
            else values.new_zeros(count, *values.shape[1:])
        )

    half = torch.randint(size, (2, graphs * edges // 2), generator=random)
    half = half + size * torch.arange(graphs).repeat_interleave(edges // 2)
    shifts = torch.rand(half.shape[1], like.dim, generator=random) + 1
    senders, receivers = torch.cat([half, half.flip(0)], dim=1)
    order = receivers.argsort(stable=True)
    both = torch.cat([shifts, -shifts if paired else 2 + shifts])[order].to(like.edge_shifts)
    counts = {"node": graphs * size, "edge": len(order), "graph": graphs}
    values = {at: {name: draw(value, counts[at]) for name, value in like.on(at).items()} for at in LOCATIONS}
    device = like.device
    topology = Topology.square(senders[order], receivers[order], graphs * size).to(device)
    result = GraphBatch(
        positions=torch.rand(graphs * size, like.dim, generator=random).to(like.positions),
        topology=topology,
        edge_shifts=both,
        cell=draw(like.cell, graphs),
        periodic=draw(like.periodic, graphs),
        node_offsets=(size * torch.arange(graphs + 1)).to(device),
        edge_offsets=pad(torch.full((graphs,), 2 * (edges // 2)).cumsum(0), (1, 0)).to(device),
        fields=like.fields,
        nodes=values["node"],
        edges=values["edge"],
        graphs=values["graph"],
        masks={name: draw(mask, graphs) for name, mask in like.masks.items()},
    )
    return result


def ragged_batch(like: GraphBatch, sample: Sample) -> GraphBatch:
    """Return twice the graphs, half of them twice as large.

    Amounts of both halves have one ratio, so that memory stays linear.
    """
    graphs, size, edges = sample
    return concatenate([probe_batch(like, (graphs, nodes, edges)) for nodes in (size, 2 * size)])


def padded_batches(like: GraphBatch) -> list[GraphBatch]:
    """Return batches with the most padding that attention can have."""
    smallest = max(1, int(like.counts("node").min()))
    degree = 2 * (like.num_edges // max(2 * like.num_nodes, 1))
    batches = []
    for size in sorted({smallest, *(size for _, size, _ in samples_for(like))}):
        *many, large = padded_sizes(size, max(3, 100 // size))
        parts = ((len(many), size, size * degree), (1, large, large * degree))
        batches.append(concatenate([probe_batch(like, part) for part in parts]))
    return batches


def is_paired(batch: GraphBatch) -> bool:
    """Return True where every edge has a reverse."""
    try:
        reverse_of(batch.topology, batch.edge_shifts)
    except InputError:
        return False
    return True
