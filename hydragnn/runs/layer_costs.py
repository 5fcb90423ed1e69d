"""Costs of every layer, as a stage of its own.

One process computes one stage after the other. What a stage would receive is drawn at random in the shapes that came from the layer before.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor, nn

from hydragnn.distributed.pipeline import Pipeline, Predictions, Travellers
from hydragnn.distributed.ranks import Ranks
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import LOCATIONS, Location
from hydragnn.parallel import ParallelSettings
from hydragnn.runs.assembly import Assembly
from hydragnn.runs.costs import LayerCosts, Rows, StepCosts
from hydragnn.runs.memory import sample_of
from hydragnn.runs.plan import RunPlan
from hydragnn.runs.step_costs import TURNS, Clock, OnStep, as_rank_of, is_possible, measured_costs
from hydragnn.training.memory import footprint_of


def rows_of(travellers: Mapping[str, Tensor], batch: GraphBatch) -> dict[str, Rows]:
    """Return the shapes of travellers; sizes tell what rows belong to."""
    items: dict[int, Location] = {batch.num_items(on): on for on in LOCATIONS}
    return {
        name: Rows(on=items[len(one)], width=tuple(one.shape[1:]), dtype=one.dtype) for name, one in travellers.items()
    }


@dataclass(kw_only=True, slots=True, eq=False)
class LoneStage(Pipeline):
    """A stage without peers, which draws what it would receive."""

    incoming: Mapping[str, Rows] = field(default_factory=dict)
    outgoing: Mapping[str, Rows] = field(default_factory=dict)
    batch: GraphBatch | None = None

    def forward(self, model: nn.Module, batch: GraphBatch, chunk: int) -> tuple[Travellers, Travellers, Predictions]:
        """Compute the stage; remember batch and shapes."""
        self.batch = batch
        received, sent, predictions = super(LoneStage, self).forward(model, batch, chunk)
        if not self.outgoing:
            self.outgoing = rows_of(sent, batch)
        return received, sent, predictions

    def finish(self) -> None:
        """Forget the batch of a pass."""
        super(LoneStage, self).finish()
        self.batch = None

    def receive(self, *, back: bool = False) -> Travellers:
        """Return random states, or gradients of what was sent."""
        assert self.batch is not None
        drawn = {name: rows.drawn(self.batch) for name, rows in (self.outgoing if back else self.incoming).items()}
        return {name: one.requires_grad_(not back and torch.is_grad_enabled()) for name, one in drawn.items()}


def costs_of_layers(
    run: Assembly, plan: RunPlan, on_step: OnStep = lambda what, left: None, clock: Clock = time.perf_counter
) -> tuple[LayerCosts, ...]:
    """Return the costs of all layers; none where stages are refused."""
    count = plan.branches[0].model.model.num_layers
    each = ParallelSettings(pipeline=count)
    layers: list[LayerCosts] = []
    incoming: Mapping[str, Rows] = {}
    for number in range(count if count > 1 and is_possible(plan, each) else 0):
        on_step(f"layer {number + 1} of {count}", None)
        with as_rank_of(run, plan, each, number) as rank:
            own = as_lone(rank, incoming)
            layers.append(costs_of_layer(own, plan, clock))
            incoming = layers[-1].sent
    return tuple(layers)


def as_lone(run: Assembly, incoming: Mapping[str, Rows]) -> Assembly:
    """Return the run of a stage without its peers."""
    stage = run.context.stages
    assert isinstance(stage, Pipeline)
    values = {one.name: getattr(stage, one.name) for one in fields(Pipeline)}
    return replace(run, context=replace(run.context, stages=LoneStage(**values, incoming=incoming)))


def costs_of_layer(run: Assembly, plan: RunPlan, clock: Clock) -> LayerCosts:
    """Return the costs of the only layer of a stage."""
    stage, sample = run.context.stages, sample_of(run.data.branches[0].train)
    assert isinstance(stage, LoneStage)

    def forward(batch: GraphBatch) -> object:
        with run.context.autocast():
            outcome = stage.forward(run.state.model, batch, 0)
        stage.finish()
        return outcome

    waiting = footprint_of(forward, sample)
    steps: StepCosts | None = None
    for _ in range(TURNS):
        steps = measured_costs(run, plan, Ranks(), clock, steps)
    assert steps is not None
    return LayerCosts(steps=steps, waiting=waiting, sent=stage.outgoing)
