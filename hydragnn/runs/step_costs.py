"""Costs of steps on one device, from a few small ones."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import Budget, Loader, Sizes
from hydragnn.datasets.footprint import Footprint, footprint_from_json
from hydragnn.datasets.packing import costs_of, share_of
from hydragnn.distributed.ranks import Ranks
from hydragnn.models import GraphModel
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.memory import footprint_in_training, size_of_levels
from hydragnn.runs.plan import RunPlan
from hydragnn.training.data import Feed
from hydragnn.training.loop import add_gradient, move
from hydragnn.training.state import TrainState

REPEATS = 3
"""Measurements of each size, of which the least counts."""

LONG = 0.2
"""Seconds of a step after which no larger one is measured."""

OnStep = Callable[[str, float | None], None]
"""Called with what is measured next, and about how many seconds are left."""

Clock = Callable[[], float]

BATCHES = 4
"""Batches that stand for all of an epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Seconds as a function of the cost of a batch in edges.

    It is straight between measurements, and beyond them.
    """

    costs: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, cost: float) -> float:
        """Return the time at a cost.

        >>> Curve(costs=(10.0, 20.0), seconds=(2.0, 3.0)).at(40.0)
        5.0
        """
        if cost <= 0 or len(self.costs) == 1:
            return 0.0 if cost <= 0 else self.seconds[0]
        number = int(np.clip(np.searchsorted(self.costs, cost), 1, len(self.costs) - 1))
        (low, high), (first, last) = self.costs[number - 1 : number + 1], self.seconds[number - 1 : number + 1]
        return max(0.0, first + (cost - low) / (high - low) * (last - first))


@dataclass(frozen=True, kw_only=True, slots=True)
class Vectors:
    """Bytes of what a rank keeps of all weights, undivided."""

    weights: int
    gradients: int
    optimizer: int
    kept: int
    """Best weights so far, and their average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Time and memory of a run's steps on one device."""

    vectors: Vectors
    layers: tuple[int, ...]
    """Bytes of the weights of every layer, heads and embeddings as one."""
    footprint: Footprint
    """Memory of the tensors of a step, without weights."""
    valid: int
    """Bytes of the validation part and of what a model without weights takes."""
    part: Curve
    """Gradient of a part of a batch."""
    load: Curve
    """Reading a share of a batch."""
    backward: float
    """Share of the gradient's time in its backward pass, in which sums over ranks begin."""
    update: float
    """Seconds in which all weights are moved."""
    state_width: int
    """Bytes of the states of a node between two layers."""
    sizes: Sizes
    batches: tuple[NDArray[np.int64], ...]
    """Global batches as numbers of graphs."""
    node_cost: int
    accelerator: bool

    def shares(self, ranks: int) -> list[list[NDArray[np.int64]]]:
        """Return the graphs of ranks, of many some, in each batch."""
        costs = costs_of(self.sizes, self.node_cost)
        some = np.unique(np.linspace(0, ranks - 1, min(ranks, 64)).astype(int)).tolist()
        return [[share_of(batch, costs, ranks, rank) for rank in some] for batch in self.batches]

    def cost(self, graphs: NDArray[np.int64]) -> float:
        """Return the cost of graphs in edges."""
        return float((self.sizes.edges[graphs] + self.node_cost * self.sizes.nodes[graphs]).sum())


def measured_costs(
    run: Assembly,
    plan: RunPlan,
    ranks: Ranks,
    on_step: OnStep = lambda what, left: None,
    clock: Clock = time.perf_counter,
) -> StepCosts:
    """Return the costs of a run that one process holds.

    All ``ranks`` measure at the same time, and disturb each other as in training. Steps begin with one graph and double, while they are short and the batch has so many. ``on_step`` is called before each, with
    about how many seconds are left.
    """
    branch, model = run.data.branches[0], plan.branches[0].model
    on_step("memory of steps", None)
    footprint = footprint_from_json(footprint_in_training(run, 0, model))
    state, device = run.state, run.context.device
    batches = global_batches(branch.train.loader)
    largest = max(map(len, batches))
    costs, parts, loads, backward = list[float](), list[float](), list[float](), 0.5
    count, left = 1, None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        while True:
            on_step(f"steps of {count} graphs", left)
            begin = time.perf_counter()
            cost, load, part, backward = measured_step(run, count, ranks, clock)
            if not costs or cost > costs[-1]:
                costs, loads, parts = [*costs, cost], [*loads, load], [*parts, part]
            if count >= largest or part > LONG:
                break
            count = min(2 * count, largest)
            left = (time.perf_counter() - begin) * 2 * (min(largest / count, max(1.0, 2 * LONG / part)) - 0.5)
        update = least_seconds(partial(move, state, 0.0, state.totals[0, 0], state.totals[0]), ranks, device, clock)
    state.parameters.zero_gradient()
    named = state.parameters.state()
    weights = sum(parameter.nbytes for parameter in state.model.parameters())
    moments = sum(value.nbytes for name, value in named.items() if name.startswith("optimizer/"))
    kept = sum(named[name].nbytes for name in ("best", "average") if name in named)
    buffers = sum(buffer.nbytes for buffer in state.model.buffers())
    return StepCosts(
        vectors=Vectors(weights=named["weights"].nbytes, gradients=weights, optimizer=moments, kept=kept),
        layers=layers_of(state),
        footprint=footprint,
        valid=sum(part.size for part in branch.valid) + size_of_levels(branch, model) + buffers,
        part=Curve(costs=tuple(costs), seconds=tuple(parts)),
        load=Curve(costs=tuple(costs), seconds=tuple(loads)),
        backward=backward,
        update=update,
        state_width=plan.branches[0].model.model.hidden_dim * next(state.model.parameters()).element_size(),
        sizes=branch.store.sizes(),
        batches=tuple(batches),
        node_cost=branch.train.loader.node_cost,
        accelerator=device.type == "cuda",
    )


def global_batches(loader: Loader) -> list[NDArray[np.int64]]:
    """Return some batches; graphs are repeated where a batch has room."""
    batches, most = loader.batches(0)[:BATCHES], loader.budget.max_graphs
    full = [batch for batch in batches if len(batch) == most] or batches[:1]
    if len(full[0]) < most and not (loader.budget.max_nodes or loader.budget.max_edges):
        return [np.resize(full[0], most)]
    return full


def measured_step(run: Assembly, count: int, ranks: Ranks, clock: Clock) -> tuple[float, float, float, float]:
    """Return cost, seconds to read and of the gradient, and backward's share."""
    branch, context, state = run.data.branches[0], run.context, run.state
    feed, loader = branch.train, replace(branch.train.loader, budget=Budget(max_graphs=count))
    small = Feed(loader, feed.normalisation, replace(feed.placement, micro_batches=1, memory=None))
    (batch,) = next(small.epoch(0))
    scale, predict = torch.zeros_like(context.loss_weights[context.branches[0]]), context.predictor(state, 0)

    def gradient() -> None:
        add_gradient(state, predict, branch.targets, batch, context, scale)

    def forward() -> None:
        with context.arithmetic(), context.autocast():
            predict(batch)

    read = least_seconds(lambda: next(small.epoch(0)), ranks, context.device, clock)
    whole, ahead = (least_seconds(work, ranks, context.device, clock) for work in (gradient, forward))
    cost = float(batch.num_edges + loader.node_cost * batch.num_nodes)
    return cost, read, whole, max(0.0, 1.0 - ahead / whole)


def least_seconds(work: Callable[[], object], ranks: Ranks, device: torch.device, clock: Clock) -> float:
    """Return the least time of a call, on the slowest rank."""
    taken = torch.zeros(REPEATS + 1, dtype=torch.float64)
    for number in range(REPEATS + 1):
        ranks.wait()
        begin = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken[number] = clock() - begin
    own = taken[1:].min()  # kernels are made in the first call
    return float(ranks.gather(own.to(device)).max())


def layers_of(state: TrainState) -> tuple[int, ...]:
    """Return the bytes of every layer's weights, the rest last."""
    model = state.of_branch(0)
    assert isinstance(model, GraphModel)
    layers = [sum(weight.nbytes for weight in layer.parameters()) for layer in model.encoder.layers]
    return (*layers, sum(weight.nbytes for weight in model.parameters()) - sum(layers))
