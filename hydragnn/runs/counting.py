"""Operations and bytes of a step of a run, counted once."""

from dataclasses import fields, replace

import numpy as np
import torch

from hydragnn.datasets.packing import costs_of
from hydragnn.distributed.ranks import Ranks
from hydragnn.kernels.counting import Counter, Counts
from hydragnn.runs.assembly import Assembly
from hydragnn.training.data import BranchData, Share
from hydragnn.training.executor import EagerSteps, RecordedSteps
from hydragnn.training.loop import gradient_of_share
from hydragnn.training.parameters import FlatParameters, average_in_place, clip_in_place


def step_totals(run: Assembly, ranks: Ranks) -> tuple[float, float]:
    """Return operations and bytes of the mean step over all ranks, or zeros where they cannot be counted; collective."""
    try:
        counts = counts_of_step(run)
    except Exception:  # what is wrong with the step itself, the first one says
        if ranks.size > 1:  # peers wait in a sum
            raise
        counts = Counts(by_op={})
    own = torch.tensor([counts.flops, counts.bytes], dtype=torch.float64, device=ranks.device)
    flops, moved = ranks.sum_in_place(own).tolist()
    return flops, moved


def counts_of_step(run: Assembly) -> Counts:
    """Return operations and bytes of this rank in the mean step of an epoch; collective.

    The first batch of each branch is computed and scaled by the work of the mean one.
    """
    turns = np.bincount(run.data.turns(0), minlength=len(run.data.shown)) / max(1, run.data.steps(0))
    counts = counts_of_update(run.state.parameters)
    for number, (branch, part) in enumerate(zip(run.data.shown, turns.tolist())):
        share, ratio = first_share(branch, number)
        counts = counts.plus(counts_of_gradient(run, share), part * ratio)
    return counts


def counts_of_gradient(run: Assembly, share: Share) -> Counts:
    """Return those of the gradient of a share, without replays; collective.

    Weights, their states, totals and random numbers stay as they are.
    """
    state, device = run.state, run.context.device
    names = [one.name for one in fields(EagerSteps)]
    plain = tuple(
        EagerSteps(**{name: getattr(one, name) for name in names}) if isinstance(one, RecordedSteps) else one
        for one in run.context.executors
    )
    context, totals = replace(run.context, executors=plain), state.totals.clone()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), Counter() as counter:
            gradient_of_share(state, share, context)
    finally:
        state.totals.copy_(totals)
        state.parameters.zero_gradient()
    return counter.counts


def first_share(branch: BranchData, number: int) -> tuple[Share, float]:
    """Return a rank's share of the first batch, and the work of the mean batch over that of this one."""
    feed = branch.train
    batches, costs = feed.loader.batches(0), costs_of(feed.loader.sizes, feed.loader.node_cost)
    parts = feed.parts_of(batches[0])
    share = Share(branch=number, parts=parts, stand_ins=feed.stand_ins(len(parts)), graphs=len(batches[0]))
    mean = float(costs[feed.loader.indices].sum()) / len(batches)
    return share, mean / max(1.0, float(costs[batches[0]].sum()))


def counts_of_update(parameters: FlatParameters) -> Counts:
    """Return those of the clip, the optimizer and the average of weights, which are not done."""
    with Counter(dry=True) as counter:
        for rows in parameters.own:
            clip_in_place(parameters.gradient[rows.at], parameters.clip_norm)
            if parameters.average_vector is not None:
                average_in_place(parameters.average_vector[rows.own], parameters.vector[rows.at], parameters.decay, 1)
        parameters.optimizer.step(0.0, parameters.groups)
    return counter.counts
