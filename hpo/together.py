"""Number of trials that share a process."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import torch

from hydragnn.base.machine import ROOM, Machine, Workers
from hydragnn.config import AnyConfig
from hydragnn.datasets import Budget, Sizes, open_store
from hydragnn.graphs.batch import GraphBatch
from hydragnn.hpo.sampling.sampler import num_random
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Space
from hydragnn.hpo.trial_configs import valid_configs
from hydragnn.layers.stacked import NotStackable
from hydragnn.models.build import build_from_description
from hydragnn.models.description import degree_statistics
from hydragnn.runs.compile_choice import choose_compiling
from hydragnn.runs.plan import BranchPlan, described_branches, plan_run
from hydragnn.training.stack import check_trained

MOST = 8
"""Trials of a process, which is how many were measured."""

WORK = 40_000
"""Edges of a batch times channels: up to here steps taken as one were faster by a fifth at least, of two models or of eight (docs/measurements/training.md)."""

POINTS = 16
"""Configurations of a space that are looked at."""

SAMPLE = 8
"""Graphs that are read, to know what a graph takes of memory."""


def with_together(
    settings: CampaignSettings, space: Space, workers: Workers | None, machine: Machine | None
) -> CampaignSettings:
    """Return the campaign with its number of trials per process.

    The same for the same campaign, data and machine (None: trials are not processes of this one). Whatever speaks against it makes it one.
    """
    try:
        if machine is None:
            raise NotStackable("in an allocation each has cores of its own, which they would have to share")
        number, reason = chosen_number(settings, space, workers or settings.search.workers, machine)
    except NotStackable as problem:
        number, reason = 1, str(problem)
    search = settings.search.model_copy(update={"together": number})
    return replace(settings, search=search, together_because=reason)


def chosen_number(settings: CampaignSettings, space: Space, workers: Workers, machine: Machine) -> tuple[int, str]:
    """Return trials per worker, and why; NotStackable where sharing gains nothing."""
    if machine.gpus:
        raise NotStackable("what trials gain by sharing a GPU was not measured")
    branch, sample = one_shape(list(islice(valid_configs(settings, space), POINTS)))
    processes = machine.workers() if workers == "auto" else workers
    copy = sample.size * len(branch.split.train) // sample.num_graphs
    limits = (
        (MOST, "so many small trials were measured to gain"),
        (num_random(settings) // processes, "more at once would be proposed before the sampler has learned"),
        ((machine.memory // processes - ROOM) // copy, "memory is enough for so many copies of the training part"),
    )
    number, reason = min(limits, key=lambda limit: limit[0])
    return max(1, number), reason


def one_shape(configs: Sequence[AnyConfig]) -> tuple[BranchPlan, GraphBatch]:
    """Return the shared data set and a sample; NotStackable without a gain."""
    first, stores = configs[0], cache(open_store)
    if len(first.branches) > 1:
        raise NotStackable("models with branches are trained one after the other")
    opened = {branch.name: stores(branch.data.store) for branch in first.branches}
    models = [described_branches(config, opened, begun=True)[0].model for config in configs]
    if any(model != models[0] for model in models):
        raise NotStackable("trials differ in the shape of their models")
    if any(config.train.compile == "on" or config.train.precision in ("bf16", "tf32") for config in configs):
        raise NotStackable("compiled steps, bf16 and tf32 are trained one after the other")
    if any(config.batch.budget == "auto" or config.batch.memory for config in configs):
        raise NotStackable("batch.memory is that of a process, of which each trial would get a part")
    plan = plan_run(first, opened, begun=True)
    branch = plan.branches[0]
    if choose_compiling(plan, torch.device("cpu"), 1)[0]:
        raise NotStackable("compiled steps gain more")
    work = (
        max(edges_of_a_batch(config.batch.limits, branch.store.sizes()) for config in configs) * first.model.hidden_dim
    )
    if work > WORK:
        raise NotStackable(f"batches are large: {work:,.0f} edges times channels, and above {WORK:,} the gain is small")
    some = np.linspace(0, len(branch.store) - 1, SAMPLE).astype(np.int64)
    sample = branch.store.read(np.unique(some), list(branch.model.fields))
    check_trained(build_from_description(replace(branch.model, statistics=degree_statistics([sample])), seed=0))
    return branch, sample


def edges_of_a_batch(budget: Budget, sizes: Sizes) -> float:
    """Mean edges of a batch.

    >>> edges_of_a_batch(Budget(max_graphs=3), Sizes(nodes=np.array([2, 4]), edges=np.array([10, 30])))
    60.0
    """
    nodes, edges = float(sizes.nodes.mean()), float(sizes.edges.mean())
    limits = ((budget.max_graphs, edges), (budget.max_nodes, edges / max(nodes, 1.0)), (budget.max_edges, 1.0))
    return min((limit * per for limit, per in limits if limit), default=float(sizes.edges.sum()))
