"""Runs within limited memory, by measured batches.

The smallest and the largest batch are computed. A measured step is a step of the run without its update, so it is the same in every layout of ranks. It moves no parameter and no random state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from numpy.typing import NDArray

from hydragnn.base.errors import InputError, about
from hydragnn.base.machine import in_words
from hydragnn.distributed.ranks import Ranks
from hydragnn.graphs.coarse import Levels
from hydragnn.graphs.levels import LEVELS, levels_of
from hydragnn.models import ModelDescription
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.attempt import keep_beating
from hydragnn.runs.plan import RunPlan
from hydragnn.runs.preparation import placed_branch
from hydragnn.training.data import BranchData, Feed, Share
from hydragnn.training.loop import gradient_of_share

DEVICE_SHARE = 0.9
"""Share of an accelerator's memory for tensors, without libraries and gaps."""
EPOCHS = 16
"""Epochs, at most, whose batches are looked at for their sizes."""
LOOKED_AT = 500
"""Batches after which no further epoch is looked at."""

RECORDED = 3.0
"""Memory of recorded steps over that of plain ones.

Up to 2.5 on an H200, by padding, and recordings beside plain steps.
"""

AIM = 0.97
"""Share of the memory for which fewer parts are tried."""


def within_memory(run: Assembly, plan: RunPlan, ranks: Ranks, heartbeat: Callable[[], None]) -> Assembly:
    """Return the run with batches in parts that fit; collective."""
    limit, models = plan.budget.max_bytes, [branch.model for branch in plan.branches]
    if not limit:
        return run
    fixed = size_of_state(run) + sum(map(size_of_levels, run.data.branches, models))
    fixed, limit = (abs(int(value)) for value in ranks.largest(fixed, -limit))
    if fixed >= limit:
        problem = f"weights, optimizer and validation part alone take {in_words(fixed)} of {in_words(limit)}"
        raise InputError(f"{problem}; give more memory")
    if run.context.settings.graphs == "on":
        limit = int(fixed + (limit - fixed) / RECORDED)
    attention = models[0].model.global_attention
    pairs = attention is not None and attention.has_pairs
    shown = []
    for number, branch in enumerate(run.data.shown):
        scale = MemoryScale(run=run, ranks=ranks, number=number, pairs=pairs, fixed=fixed, limit=limit)
        with about(f"branch {branch.name}" if branch.name else ""), keep_beating(heartbeat):
            parts = fitting_parts(scale, [feed for feed in (branch.train, branch.valid_feed) if feed])
            shown.append(placed_branch(branch, replace(branch.train.placement, micro_batches=parts)))
    count = len(run.data.branches)
    return replace(
        run, data=replace(run.data, branches=tuple(shown[:count]), replay=shown[count] if run.data.replay else None)
    )


def size_of_state(run: Assembly) -> int:
    """Return the bytes of weights, optimizer and validation part."""
    buffers = sum(buffer.nbytes for buffer in run.state.model.buffers())
    valid = (part.size for branch in run.data.branches if isinstance(branch.valid, tuple) for part in branch.valid)
    return run.state.parameters.bytes + buffers + sum(valid)


def size_of_levels(branch: BranchData, model: ModelDescription) -> int:
    """Return the bytes of the validation part's coarser levels."""
    pooling = model.model.pooling
    if pooling is None or not isinstance(branch.valid, tuple):
        return 0
    of_parts = [levels_of(part, pooling.levels, model.kind_fields) for part in branch.valid]
    return sum(Levels(levels=levels, fields=frozenset()).size for levels in of_parts)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryScale:
    """Measures steps on a branch against the limit of the run."""

    run: Assembly
    ranks: Ranks
    number: int
    pairs: bool
    """Attention reads pairs of nodes, which count as edges do."""
    fixed: int
    """Bytes of a rank between steps."""
    limit: int

    @property
    def room(self) -> int:
        """Return the bytes for steps."""
        return self.limit - self.fixed

    def peak(self, feed: Feed, batch: NDArray[np.int64]) -> float:
        """Return the most bytes of a rank in a step; collective."""
        peak = inf
        try:
            parts = feed.parts_of(batch)
            share = Share(branch=self.number, parts=parts, stand_ins=feed.stand_ins(len(parts)), graphs=len(batch))
            peak = measured_step(self.run, share)
        except torch.OutOfMemoryError:
            if self.ranks.size > 1:  # peers wait in a sum
                raise
            torch.cuda.empty_cache()
        return self.ranks.largest(peak)[0]

    def work(self, feed: Feed, graphs: NDArray[np.int64]) -> float:
        """Return the work of graphs in edges."""
        nodes = feed.loader.sizes.nodes[graphs].astype(np.float64)
        of_nodes = feed.loader.node_cost * nodes + (nodes**2 if self.pairs else 0.0)
        return float((feed.loader.sizes.edges[graphs] + of_nodes).sum())

    def extremes(self, feed: Feed) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the smallest and the largest batch of the first epochs."""
        batches: list[NDArray[np.int64]] = []
        for epoch in range(EPOCHS if feed.loader.shuffle else 1):
            batches += feed.loader.batches(epoch)
            if len(batches) >= LOOKED_AT:
                break
        works = [self.work(feed, batch) for batch in batches]
        return batches[int(np.argmin(works))], batches[int(np.argmax(works))]


def measured_step(run: Assembly, share: Share) -> float:
    """Return the most bytes of a step beside the state; collective."""
    device = run.context.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        levels = [part._derived.get(LEVELS) for part in share.parts]
        held = sum(part.size for part in share.parts) + sum(one.size for one in levels if one)
        peak = peak_of(lambda: gradient_of_share(run.state, share, run.context), device)
    run.state.totals.zero_()
    run.state.parameters.zero_gradient()
    return float(held + peak)


def fitting_parts(scale: MemoryScale, feeds: Sequence[Feed]) -> int:
    """Return the fewest parts in which the largest batch fits."""
    feed, small, large = max(
        ((feed, *scale.extremes(feed)) for feed in feeds if len(feed.loader)),
        key=lambda one: scale.work(one[0], one[2]),
    )

    def peak(parts: int, batch: NDArray[np.int64] = large) -> float:
        return scale.peak(replace(feed, placement=replace(feed.placement, micro_batches=parts)), batch)

    least = feed.placement.micro_batches
    most = max(least, len(large))
    needed = peak(least, small) * scale.work(feed, large) / max(scale.work(feed, small), 1.0)
    parts = int(min(most, max(least, least * needed // scale.room)))
    while (needed := peak(parts)) > scale.room and parts < most:
        parts = min(2 * parts, most)
    if needed > scale.room:
        sizes, graph = feed.loader.sizes, max(large.tolist(), key=lambda graph: scale.work(feed, np.array([graph])))
        raise InputError(
            f"graph {graph} ({sizes.nodes[graph]} nodes, {sizes.edges[graph]} edges) takes {in_words(scale.fixed + needed)} of memory, "
            f"more than the limit of {in_words(scale.limit)}; give more memory, take a smaller model or leave the graph out"
        )
    fewer = max(least, ceil(parts * needed / (AIM * scale.room)))
    return fewer if fewer < parts and peak(fewer) <= scale.room else parts


def peak_of(compute: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a computation has beside those of before."""
    if device.type != "cuda":
        return int(allocations(compute).cumsum().max(initial=0))
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    compute()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)  # the cost of a run is that of its own steps
    return peak


def allocations(compute: Callable[[], object]) -> Int64[ndarray, " changes"]:
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
    events = [event for thread in threads for event in thread if str(event.kind()) == "memory_alloc"]
    return np.array([change for event in events if (change := event.cpu_memory_usage())], dtype=np.int64)
