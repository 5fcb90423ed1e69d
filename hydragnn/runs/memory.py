"""A run within the memory of its ranks: batches that fill it, and parts of batches that fit into it."""

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
from hydragnn.datasets.footprint import MemoryLimit, bytes_of, footprint_from_json, in_words
from hydragnn.datasets.levels import pieces_of
from hydragnn.datasets.normalisation import normalise
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import first_ranks_value
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.coarse import Levels
from hydragnn.graphs.levels import CLUSTERS, levels_of
from hydragnn.models import ModelDescription
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.plan import RunPlan
from hydragnn.training.data import BranchData, Feed
from hydragnn.training.loop import add_gradient
from hydragnn.training.memory import DEVICE_SHARE, footprint_of, with_fixed
from hydragnn.training.probe_levels import Shares, shares_of

SAMPLE = 8
"""Graphs of the data that probes look like."""

LEVELS_OF = 64
"""Graphs whose coarser levels stand for those of all, where levels are made in every step."""

BALANCED = 0.97
"""Of the memory of several ranks, what a batch fills: shares are not exactly equal."""


def within_memory(
    run: Assembly,
    plan: RunPlan,
    ranks: Ranks,
    earlier: dict[str, Any],
    heartbeat: Callable[[], None],
    members: int = 1,
) -> Assembly:
    """The run with batches, where the plan lets them fill memory, and parts of batches that fit; all ranks call it together.

    ``earlier`` are the batches that the run began with; a process that trains several ``members`` computes parts that leave each its
    share, and its batches are those of separate runs. InputError names a graph that does not fit.
    """
    device = run.context.device
    limit = memory_of(plan, device)
    if limit is None:
        return run
    models = [branch.model for branch in plan.branches]
    fixed = size_of_state(run) + sum(map(size_of_levels, run.data.branches, models))
    branches, budgets = [], {}
    for number, branch in enumerate(run.data.branches):
        heartbeat()
        with about(f"branch {branch.name}" if branch.name else ""):
            value = first_ranks_value(partial(footprint_in_training, run, number, models[number]), ranks, device)
            here = MemoryLimit(footprint=with_fixed(footprint_from_json(value), fixed), size=limit)
            filled, shared = None, replace(here, size=limit // members)
            if plan.fills_memory:
                filled = filling(here, ranks.size, earlier.get(branch.name))
                budgets[branch.name] = {"size": filled.size, **filled.footprint.to_json()}
            branches.append(fitted(branch, shared, filled, ranks.size))
    return replace(
        run, data=replace(run.data, branches=tuple(branches)), record=replace(run.record, memory_budget=budgets)
    )


def memory_of(plan: RunPlan, device: torch.device) -> int | None:
    """The bytes that a rank may take; None for no limit. InputError where batches fill memory that nobody knows."""
    if plan.memory:
        return bytes_of(plan.memory)
    if not plan.fills_memory:
        return None
    if device.type != "cuda":
        raise InputError(
            'batch.budget = "auto" fills the memory of an accelerator; on a CPU set batch.memory, for example "4 GB"'
        )
    return int(DEVICE_SHARE * torch.cuda.get_device_properties(device).total_memory)


def size_of_state(run: Assembly) -> int:
    """Bytes that are there in every step: weights with what belongs to them, and the validation part."""
    vectors = run.state.parameters.state().values()
    weights = sum(parameter.nbytes for parameter in run.state.model.parameters())
    # their gradient, and a copy of the weights while others are validated
    tensors = sum(vector.nbytes for vector in vectors) + 2 * weights
    buffers = sum(buffer.nbytes for buffer in run.state.model.buffers())
    return tensors + buffers + sum(part.size for branch in run.data.branches for part in branch.valid)


def size_of_levels(branch: BranchData, model: ModelDescription) -> int:
    """Bytes of the coarser levels of the validation part, which stay once they were made."""
    pooling = model.model.pooling
    if pooling is None:
        return 0
    made = [levels_of(part, pooling.levels, model.kind_fields) for part in branch.valid]
    return sum(Levels(levels=levels, fields=frozenset()).size for levels in made)


def shares_of_levels(feed: Feed, model: ModelDescription) -> tuple[Shares, ...]:
    """How large the coarser levels of the training part are; none for models without. Where they are made in every step, some graphs of all sizes stand for all."""
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


def footprint_in_training(run: Assembly, number: int, model: ModelDescription) -> dict[str, Any]:
    """The footprint of steps on batches of a branch, beside the state, as JSON; by probes."""
    branch, context, state = run.data.branches[number], run.context, run.state
    predict, own = context.predictor(state, number), context.branches[number]
    scale = torch.zeros_like(context.loss_weights[own])  # probes leave a gradient of zero

    def step(batch: GraphBatch) -> Tensor:
        return add_gradient(state, predict, branch.targets, batch, context, scale)[1]

    devices = [context.device] if context.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        state.parameters.zero_gradient()
        footprint = footprint_of(step, sample_of(branch.train), shares_of_levels(branch.train, model))
        state.parameters.zero_gradient()
    return footprint.to_json()


def sample_of(feed: Feed) -> GraphBatch:
    """Some of the smaller graphs of a training part that have edges, where there are such, as the model takes them."""
    loader = feed.loader
    edges = loader.sizes.edges[loader.indices]
    order = np.argsort(edges, kind="stable")
    order = order[np.searchsorted(edges[order], 1) :] if edges.any() else order
    picks = order[np.linspace(0, len(order) // 2, SAMPLE).astype(np.int64)]
    graphs = loader.store.read(np.unique(loader.indices[picks]), loader.fields)
    batch = graphs if feed.normalisation is None else normalise(graphs, feed.normalisation)
    return batch.to(feed.placement.device, feed.placement.dtype)


def filling(here: MemoryLimit, ranks: int, earlier: dict[str, Any] | None) -> MemoryLimit:
    """What a batch over all ranks may take, or what the run began with: that stays, also on another machine."""
    if earlier:
        return MemoryLimit(footprint=footprint_from_json(earlier), size=earlier["size"])
    fixed = min(form[0] for form in here.footprint.forms)
    if fixed >= here.size:
        raise InputError(
            f"weights and optimizer alone take {in_words(fixed)} of {in_words(here.size)}; give more memory"
        )
    if ranks == 1:
        return here
    return replace(here, size=int(fixed + BALANCED * ranks * (here.size - fixed)))


def fitted(branch: BranchData, here: MemoryLimit, filled: MemoryLimit | None, ranks: int) -> BranchData:
    """The branch with batches that fill memory, where there is such a budget, and in parts that fit. InputError for a graph that does not."""
    for part in (branch.split.train, branch.split.valid):
        check_fits(here, branch.store.sizes(), part, 0 if filled else branch.train.loader.budget.max_graphs, ranks)
    train = branch.train
    loader = train.loader
    if filled is not None:
        loader = loader.with_budget(replace(loader.budget, max_graphs=0, memory=filled))
    placement = replace(train.placement, memory=here)
    # a batch of the validation part may be smaller than memory allows
    valid = tuple(piece for part in branch.valid for piece in placement.parts(part))
    return replace(branch, train=Feed(loader, train.normalisation, placement), valid=valid)


def check_fits(here: MemoryLimit, sizes: Sizes, graphs: NDArray[np.int64], most: int, ranks: int) -> None:
    """InputError where a graph does not fit beside the tensors of the others in its batch, of ``most`` graphs (0: it fills memory)."""
    held = np.sort(here.footprint.each_held(sizes, graphs))[::-1]
    share = most if ranks == 1 else min(most, 3 * -(-most // ranks))  # shares have equal costs, not equal numbers
    here.check(sizes, graphs, beside=float(held[:share].sum()))
