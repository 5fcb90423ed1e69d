"""Recorded steps of a run, on all ranks or none."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise

import numpy as np
import torch
from torch import Tensor

from hydragnn.datasets.normalisation import normalise
from hydragnn.datasets.packing import NODE_COST, share_of
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import shared_problem
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.padding import Shape, best_shapes
from hydragnn.models import replay
from hydragnn.models.replay import NotRecordable, Recorder, has_dropout, recorder_on, replays_of
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.attempt import keep_beating
from hydragnn.runs.memory import EPOCHS, LOOKED_AT
from hydragnn.runs.preparation import ValidationParts, placed_branch
from hydragnn.training.data import BranchData, Feed, even_cuts
from hydragnn.training.executor import EagerSteps, RecordedSteps

FEWEST = 500
"""Steps of a run that records by itself.

264 steps of PaiNN and their recordings took 13 s on an H200, and 18 s without.
"""

NOT_REPLAYED = "steps are not replayed as graphs of the device: "


def with_replays(run: Assembly, ranks: Ranks, heartbeat: Callable[[], None], *, limited: bool = False) -> Assembly:
    """Return the run with recorded steps where it asks for them; collective."""
    setting, device = run.context.settings.graphs, run.context.device
    if setting == "off" or (setting == "auto" and device.type != "cuda"):
        return run
    reason: str | None = reason_against(run, ranks.size, limited=limited) if setting == "auto" else ""
    reason = next((one.unrecorded for one in run.context.executors), "") or reason
    if reason:
        return with_note(run, NOT_REPLAYED + reason)
    executors: tuple[RecordedSteps, ...] = ()
    with keep_beating(heartbeat):
        try:
            executors, reason = recorded_branches(run, recorder_on(device)), None
        except (NotRecordable, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
        reason = shared_problem(reason, ranks)
    if reason is not None:
        return with_note(run, NOT_REPLAYED + reason)
    branches = []
    for branch, executor in zip(run.data.branches, executors, strict=True):
        own = executor.replays
        own.lenient = (NotRecordable, RuntimeError)
        branches.append(placed_branch(branch, replace(branch.train.placement, pad=own.pad)))
    return replace(
        run,
        data=replace(run.data, branches=tuple(branches)),
        context=replace(run.context, executors=executors),
        record=replace(run.record, graphs=True),
    )


def reason_against(run: Assembly, ranks: int, *, limited: bool) -> str:
    """Return why steps are not recorded, or an empty text."""
    steps = run.context.settings.epochs * run.data.steps(0)
    if steps < FEWEST:
        return f"{steps} steps are too few to gain by it"
    if limited:
        return 'batches that fill a memory keep the device busy; graphs = "on" does so all the same'
    return 'of several ranks this was not seen; graphs = "on" does so' if ranks > 1 else ""


def with_note(run: Assembly, note: str) -> Assembly:
    """Return the run with one more note in its record."""
    return replace(run, record=replace(run.record, notes=[*run.record.notes, note]))


def recorded_branches(run: Assembly, record: Recorder) -> tuple[RecordedSteps, ...]:
    """Return executors that record, each compared on a small batch."""
    recorded = []
    for branch, plain in zip(run.data.branches, run.context.executors, strict=True):
        shapes = [*islice(chain.from_iterable(parts_of(branch.train, epoch) for epoch in range(EPOCHS)), LOOKED_AT)]
        if isinstance(branch.valid, ValidationParts):
            shapes += islice(parts_of(branch.valid.feed, 0), LOOKED_AT)
        else:
            shapes += ((part.num_nodes, part.num_edges, len(part)) for part in branch.valid)
        replays = replays_of(plain.model, record, best_shapes(shapes))  # which pad a rank's batches least
        replays.lenient = ()  # where all must be right
        recorded.append(RecordedSteps(**vars(plain), replays=replays))
        check_equal(run, branch, plain, recorded[-1])
    return tuple(recorded)


def parts_of(feed: Feed, epoch: int) -> Iterator[Shape]:
    """Yield nodes, edges and graphs of a rank's parts, in turn."""
    loader = feed.loader
    for batch in loader.batches(epoch):
        share = share_of(batch, loader.costs, loader.ranks, loader.rank)
        nodes, edges = loader.sizes.nodes[share], loader.sizes.edges[share]
        number = feed.placement.micro_batches
        cuts = even_cuts((edges + NODE_COST * nodes).tolist(), number) if number > 1 else [0, len(share)]
        for first, last in pairwise(cuts):
            yield int(nodes[first:last].sum()), int(edges[first:last].sum()), last - first


def check_equal(run: Assembly, branch: BranchData, plain: EagerSteps, recorded: RecordedSteps) -> None:
    """Raise NotRecordable unless replays and steps give the same numbers.

    The tolerance is the root of the arithmetic's step. Without dropout, which draws others for a padded batch.
    """
    state, batch = run.state, sample_of(branch.train)
    scale = run.context.loss_weights[run.context.branches[plain.branch]] / len(batch)
    state.model.train(not has_dropout(state.model))
    try:
        ours = numbers_of(run, plain, batch, scale)
        for _ in range(replay.USES + 1):
            theirs = numbers_of(run, recorded, batch, scale)
    finally:
        state.model.train()
        state.parameters.zero_gradient()
    tolerance = torch.finfo(torch.bfloat16 if plain.precision == "bf16" else batch.positions.dtype).eps ** 0.5
    for name, values in ours.items():
        error = float((theirs[name] - values).norm() / values.norm().clamp_min(1e-30))
        if not error <= tolerance:
            raise NotRecordable(f"{name} would be wrong by {error:.1e}")


SAMPLE = 8
"""Graphs of the batch that is compared."""


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


def numbers_of(run: Assembly, executor: EagerSteps, batch: GraphBatch, scale: Tensor) -> dict[str, Tensor]:
    """Return losses, gradient and predictions of a batch by name."""
    state = run.state
    state.parameters.zero_gradient()
    sums, _ = executor.add_gradient(batch, scale)
    numbers = {"losses": sums.double().clone()}
    gradients = [weight.grad.double().flatten() for weight in state.model.parameters() if weight.grad is not None]
    numbers["gradient"] = torch.cat(gradients)
    predictions, _ = executor.predict(batch)
    for name, prediction in predictions.items():
        numbers |= {f"{name} ({part})": values.double().clone() for part, values in prediction.tensors().items()}
    return numbers
