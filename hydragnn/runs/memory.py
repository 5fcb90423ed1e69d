"""Runs within limited memory: batches that fill it, parts that fit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydragnn.base.errors import InputError, about
from hydragnn.datasets import MemoryStore, Sizes
from hydragnn.datasets.footprint import Footprint, MemoryLimit, bytes_of, footprint_from_json, in_words
from hydragnn.datasets.levels import pieces_of
from hydragnn.datasets.normalisation import normalise
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.coarse import Levels
from hydragnn.graphs.joining import concatenate
from hydragnn.graphs.levels import CLUSTERS, levels_of
from hydragnn.graphs.padding import STEP
from hydragnn.models import GraphModel, ModelDescription
from hydragnn.models.replay import NotRecordable, recorder_on, replays_of
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.plan import RunPlan
from hydragnn.training.data import BranchData, Feed
from hydragnn.training.loop import gradient_of
from hydragnn.training.memory import DEVICE_SHARE, footprint_of, with_fixed
from hydragnn.training.probe_levels import Shares, shares_of

SAMPLE = 8
"""Graphs of the data that probes look like."""

LEVELS_OF = 64
"""Graphs whose coarser levels stand for those of all, where levels are made in every step."""

COPIES = 64
"""Of the sample, at most, in a batch that is recorded to see what it takes."""

GAPS = 1.2
"""What recordings of several sizes take over the largest of them: on an H200 memory grew up to 2.5 times by padding and recordings."""

HELD = 16
"""Batches that recordings keep, of the size of the largest."""

BALANCED = 0.97
"""Of the memory of several ranks, what a batch fills: shares are not exactly equal."""


def within_memory(
    run: Assembly,
    plan: RunPlan,
    ranks: Ranks,
    earlier: dict[str, Any],
    heartbeat: Callable[[], None],
    sharing: int = 1,
) -> Assembly:
    """Return the run with batches and parts that fit; collective.

    ``earlier`` are the batches that the run began with; ``sharing`` processes share the device. InputError names a graph that does not fit.
    """
    device = run.context.device
    limit = memory_of(plan, device, sharing)
    if limit is None:
        return run
    if run.mesh.shares_model or run.mesh.size("graph") > 1:
        raise InputError(
            "parallel.shard, tensor, pipeline and graph let ranks compute the same parts of batches together, and parts that fill a memory differ "
            "from rank to rank; set batch.max_graphs and parallel.micro_batches instead of batch.memory"
        )
    models = [branch.model for branch in plan.branches]
    fixed = size_of_state(run) + sum(map(size_of_levels, run.data.branches, models))
    branches, budgets = [], {}
    for number, branch in enumerate(run.data.branches):
        heartbeat()
        with about(f"branch {branch.name}" if branch.name else ""):
            recorded = limit if run.context.settings.graphs == "on" else 0
            measure = partial(footprint_in_training, run, number, models[number], recorded)
            value = first_ranks_value(measure, ranks, device)
            within = MemoryLimit(footprint=with_fixed(footprint_from_json(value), fixed), size=limit)
            filled = None
            if plan.fills_memory:
                filled = filling(within, ranks.size, earlier.get(branch.name))
                budgets[branch.name] = {"size": filled.size, **filled.footprint.to_json()}
            branches.append(fitted(branch, within, filled, ranks.size))
    replay = run.data.replay
    data = replace(
        run.data,
        branches=tuple(branches),
        replay=None if replay is None else fitted(replay, within, filled, ranks.size),
    )
    return replace(run, data=data, record=replace(run.record, memory_budget=budgets))


def memory_of(plan: RunPlan, device: torch.device, sharing: int) -> int | None:
    """Return the bytes of a rank, None without limit."""
    if plan.memory:
        return bytes_of(plan.memory)
    if not plan.fills_memory:
        return None
    if device.type != "cuda":
        raise InputError(
            'batch.budget = "auto" fills the memory of an accelerator; on a CPU set batch.memory, for example "4 GB"'
        )
    part = 1.0 if sharing == 1 else DEVICE_SHARE / sharing
    return int(DEVICE_SHARE * part * torch.cuda.get_device_properties(device).total_memory)


def size_of_state(run: Assembly) -> int:
    """Return the bytes of weights, optimizer and validation part."""
    tensors = run.state.parameters.bytes
    buffers = sum(buffer.nbytes for buffer in run.state.model.buffers())
    return tensors + buffers + sum(part.size for branch in run.data.branches for part in branch.valid)


def size_of_levels(branch: BranchData, model: ModelDescription) -> int:
    """Return the bytes of the validation part's coarser levels."""
    pooling = model.model.pooling
    if pooling is None:
        return 0
    of_parts = [levels_of(part, pooling.levels, model.kind_fields) for part in branch.valid]
    return sum(Levels(levels=levels, fields=frozenset()).size for levels in of_parts)


def shares_of_levels(feed: Feed, model: ModelDescription) -> tuple[Shares, ...]:
    """Return the sizes of the training part's coarser levels.

    Where they are made in every step, a sample of graphs stands for all.
    """
    pooling, loader = model.model.pooling, feed.loader
    if pooling is None:
        return ()
    if isinstance(loader.store, MemoryStore) and loader.store.levels is not None:
        sizes = loader.store.sizes()
        return shares_of(loader.store.levels.levels, sizes.nodes, sizes.edges)
    order = loader.indices[np.argsort(loader.sizes.edges[loader.indices], kind="stable")]
    some = np.unique(order[np.linspace(0, len(order) - 1, LEVELS_OF).astype(np.int64)])
    graphs = loader.store.read(some, [CLUSTERS, *model.kind_fields])
    levels = pieces_of(graphs, levels_of(graphs, pooling.levels, model.kind_fields))
    return shares_of(levels, loader.sizes.nodes[some], loader.sizes.edges[some])


def footprint_in_training(run: Assembly, number: int, model: ModelDescription, recorded: int = 0) -> dict[str, Any]:
    """Return the footprint of steps on a branch as JSON, by probes.

    ``recorded`` is the limit of memory where steps are recorded.
    """
    branch, context, state = run.data.branches[number], run.context, run.state
    scale = torch.zeros_like(context.loss_weights[context.branches[number]])  # probes leave a gradient of zero

    def step(batch: GraphBatch) -> Tensor:
        return gradient_of(state, number, batch, context, scale)[1]

    devices = [context.device] if context.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        state.parameters.zero_gradient()
        footprint = footprint_of(step, sample_of(branch.train), shares_of_levels(branch.train, model))
        if recorded:
            footprint = with_recordings(footprint, run, number, step, recorded)
        state.parameters.zero_gradient()
    return footprint.to_json()


def with_recordings(
    footprint: Footprint, run: Assembly, number: int, step: Callable[[GraphBatch], Tensor], limit: int
) -> Footprint:
    """Return the footprint with what recordings keep, if there are any.

    Steps before a recording keep their memory beside it. The recordings share theirs, which is that of the largest and gaps; a batch of about an eighth of
    the ``limit`` is recorded to see what the allocator takes for it. Each has a batch of its own.
    """
    model = run.state.of_branch(number)
    assert isinstance(model, GraphModel)
    sample = sample_of(run.data.branches[number].train)
    copies = int(max(1, min(COPIES, limit / 8 // max(1.0, bytes_for(footprint, sample)))))
    try:
        record = recorder_on(run.context.device)
        replays = replays_of(model, record)
        batch = replays.pad(concatenate([sample] * copies))
        step(batch)
        before = record.reserved()
        replays.recorded(step, batch, ())
        share = (record.reserved() - before) / bytes_for(footprint, batch)
    except (NotRecordable, RuntimeError):  # then with_replays will say why
        return footprint
    factor = (1 + STEP) * (1 + GAPS * max(1.0, share))
    return replace(
        footprint,
        forms=tuple(tuple(factor * a + HELD * b for a, b in zip(form, footprint.kept)) for form in footprint.forms),
    )


def bytes_for(footprint: Footprint, batch: GraphBatch) -> float:
    """Return the peak memory of a batch."""
    nodes, edges = (batch.counts(location).cpu().numpy() for location in ("node", "edge"))
    return footprint.bytes(Sizes(nodes=nodes, edges=edges), np.arange(len(nodes)))


def sample_of(feed: Feed) -> GraphBatch:
    """Return some of the smaller training graphs with edges."""
    loader = feed.loader
    edges = loader.sizes.edges[loader.indices]
    order = np.argsort(edges, kind="stable")
    order = order[np.searchsorted(edges[order], 1) :] if edges.any() else order
    picks = order[np.linspace(0, len(order) // 2, SAMPLE).astype(np.int64)]
    graphs = loader.store.read(np.unique(loader.indices[picks]), loader.fields)
    batch = graphs if feed.normalisation is None else normalise(graphs, feed.normalisation)
    return batch.to(feed.placement.device, feed.placement.dtype)


def filling(limit: MemoryLimit, ranks: int, earlier: dict[str, Any] | None) -> MemoryLimit:
    """Return the budget of batches, kept from the run's beginning."""
    if earlier:
        return MemoryLimit(footprint=footprint_from_json(earlier), size=earlier["size"])
    fixed = min(form[0] for form in limit.footprint.forms)
    if fixed >= limit.size:
        raise InputError(
            f"weights and optimizer alone take {in_words(fixed)} of {in_words(limit.size)}; give more memory"
        )
    if ranks == 1:
        return limit
    return replace(limit, size=int(fixed + BALANCED * ranks * (limit.size - fixed)))


def fitted(branch: BranchData, limit: MemoryLimit, filled: MemoryLimit | None, ranks: int) -> BranchData:
    """Return the branch with batches and parts that fit."""
    for part in (branch.split.train, branch.split.valid):
        check_fits(limit, branch.store.sizes(), part, 0 if filled else branch.train.loader.budget.max_graphs, ranks)
    train = branch.train
    loader = train.loader
    if filled is not None:
        loader = loader.with_budget(replace(loader.budget, max_graphs=0, memory=filled))
    placement = replace(train.placement, memory=limit)
    # a batch of the validation part may be smaller than memory allows
    valid = tuple(piece for part in branch.valid for piece in placement.parts(part))
    return replace(branch, train=Feed(loader, train.normalisation, placement), valid=valid)


def check_fits(limit: MemoryLimit, sizes: Sizes, graphs: NDArray[np.int64], most: int, ranks: int) -> None:
    """Raise InputError for a graph that does not fit its batch.

    ``most`` graphs are in it; 0: it fills memory.
    """
    held = np.sort(limit.footprint.each_held(sizes, graphs))[::-1]
    share = most if ranks == 1 else min(most, 3 * -(-most // ranks))  # shares have equal costs, not equal numbers
    limit.check(sizes, graphs, beside=float(held[:share].sum()))
