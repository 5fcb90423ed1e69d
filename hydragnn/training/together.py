"""Steps of several runs: stacked or in turn, whichever is faster."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import Distribution, GraphModel, ModelDescription
from hydragnn.training.context import StepResult, TrainingContext
from hydragnn.training.loop import StepRequest, move, take_step
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.stack import Stack, stackable
from hydragnn.training.state import TrainState

Way = Literal["stacked", "loop"]
WAYS: tuple[Way, ...] = ("stacked", "loop")
TRIALS = 4
"""Steps that each way is timed for; the first, in which memory is found, does not count."""
CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far stacked predictions of the first batch may lie from those of the members, relative to the largest."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Member:
    """One of the runs that are trained together."""

    state: TrainState
    context: TrainingContext
    note: Callable[[str], None]
    """Puts a sentence into its record."""


Outcome = StepResult | Exception


@dataclass(kw_only=True, slots=True, eq=False)
class Group:
    """Members whose models have one shape, and how their steps are taken."""

    members: tuple[Member, ...]
    description: ModelDescription | None = None
    """What all models are; None for a run with branches, which is alone."""
    known: Way | None = None
    """The faster way for as many models like these, where it was measured before."""
    way: Way | None = None
    """None while both are measured."""
    seconds: dict[Way, list[float]] = field(default_factory=lambda: {"stacked": [], "loop": []})
    stack: Stack | None = None

    def take(self, requests: Sequence[StepRequest]) -> list[Outcome]:
        """Take one step of every member; return results or errors."""
        if self.way is None and self.stack is None:
            self.begin(requests)
        fewest: Way = min(WAYS, key=lambda one: len(self.seconds[one]))
        way = self.way or fewest
        start = time.perf_counter()
        outcomes = self.take_stacked(requests) if way == "stacked" else self.take_each(requests)
        if self.way is None:
            if self.members[0].context.device.type == "cuda":
                torch.cuda.synchronize(self.members[0].context.device)
            self.note(way, time.perf_counter() - start)
        return outcomes

    def begin(self, requests: Sequence[StepRequest]) -> None:
        """Stack the models and compare them on their first batches."""
        reason = "this was faster for as many runs of this shape before"
        if self.known == "loop":
            self.settle("loop", reason)
            return
        try:
            self.stack = stack_of(self.members, requests)
        except Exception as problem:
            # not only NotStackable: without memory for all at once, steps one after the other show whose fault it is
            self.settle("loop", str(problem))
            return
        if self.known == "stacked":
            self.settle("stacked", reason)

    @property
    def measured(self) -> bool:
        """Return True where both ways were timed and one was chosen."""
        return self.way is not None and min(map(len, self.seconds.values())) >= TRIALS

    def note(self, way: Way, seconds: float) -> None:
        """Note the time of a step; choose the faster way."""
        self.seconds[way].append(seconds)
        if min(map(len, self.seconds.values())) < TRIALS:
            return
        stacked, loop = (median(self.seconds[one][1:]) for one in WAYS)
        reason = f"a step of all took {1e3 * stacked:.3g} ms as one and {1e3 * loop:.3g} ms one after the other"
        self.settle("stacked" if stacked < loop else "loop", reason)

    def take_each(self, requests: Sequence[StepRequest]) -> list[Outcome]:
        """The steps one after the other, as separate runs would."""
        return [take_alone(member, request) for member, request in zip(self.members, requests)]

    def take_stacked(self, requests: Sequence[StepRequest]) -> list[Outcome]:
        """Take the steps stacked; in turn where that fails."""
        assert self.stack is not None
        try:
            gradients = stacked_gradients(self.stack, self.members, requests)
        except Exception as error:
            self.settle("loop", f"a stacked step failed: {error}")
            return self.take_each(requests)
        return [gradient.follow(*each) for gradient, each in zip(gradients, zip(self.members, requests))]

    def settle(self, way: Way, reason: str) -> None:
        """Take all steps in this way, and record why."""
        self.way = way
        words = {"stacked": f"as one with {len(self.members) - 1} other runs'", "loop": "one after the other"}
        if len(self.members) > 1:
            for member in self.members:
                member.note(f"steps were taken {words[way]}: {reason}")


def take_alone(member: Member, request: StepRequest) -> Outcome:
    """One step of one member, or what it raised."""
    try:
        return take_step(member.state, request.share, member.context, request.rate)
    except Exception as error:
        return error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gradient:
    """Gradient of a member's step in the stack, with its loss."""

    sums: Float64[Tensor, " targets"]
    counts: Float64[Tensor, " targets"]
    loss: Float64[Tensor, ""]

    def follow(self, member: Member, request: StepRequest) -> Outcome:
        """Update a member's weights with its own optimizer."""
        try:
            member.state.totals += torch.stack([self.sums, self.counts])
            return move(member.state, request.rate, self.loss, self.counts)
        except Exception as error:
            return error


def stacked_gradients(stack: Stack, members: Sequence[Member], requests: Sequence[StepRequest]) -> list[Gradient]:
    """Compute the gradients of every member's step.

    Members share no weight and no edge, so that the gradient of the sum of their losses is the gradient of each.
    """
    parts = [request.share.parts[0] for request in requests]
    losses: list[Tensor] = []
    gradients: list[Gradient] = []
    for member, part, predictions in zip(members, parts, stack.predict(parts)):
        targets = member.context.targets
        sums, counts = loss_sums(targets, predictions, part), label_counts(targets, part)
        scale = member.context.weights_in(member.state.epoch) / counts.clamp(min=1.0)
        losses.append((sums * scale.to(sums.dtype)).sum())
        values = (sums.detach().to(torch.float64), losses[-1].detach().to(torch.float64))
        gradients.append(Gradient(sums=values[0], counts=counts, loss=values[1]))
    stack.differentiate(torch.stack(losses).sum())
    return gradients


def stack_of(members: Sequence[Member], requests: Sequence[StepRequest]) -> Stack:
    """Return the members' models as one; NotStackable if different."""
    if len(members) < 2:
        raise NotStackable("a single run is trained as ever")
    if not all(stackable(member.context) for member in members):
        raise NotStackable("compiled steps, bf16, frozen layers and replayed data are trained one after the other")
    if any(len(request.share.parts) != 1 for request in requests):
        raise NotStackable("batches in parts are computed one after the other")
    stack = Stack([member.state for member in members])
    parts = [request.share.parts[0] for request in requests]
    for member, part, predictions in zip(members, parts, stack.predict(parts)):
        check_predictions(predictions, member.state.model, part)
    return stack


def check_predictions(predictions: Mapping[str, Distribution], model: torch.nn.Module, batch: GraphBatch) -> None:
    """Raise NotStackable unless predictions agree to rounding."""
    for name, distribution in model(batch).items():
        others = predictions[name].detach().tensors()
        for what, value in distribution.detach().tensors().items():
            if value.numel() and float((value - others[what]).abs().max() / value.abs().max()) > CLOSE[value.dtype]:
                raise NotStackable(f"stacked models predict another {name} than each of them")


class Together:
    """Takes the steps of several runs, in the faster way."""

    def __init__(self) -> None:
        """No member yet."""
        self.groups: list[Group] = []
        self.active: tuple[Member, ...] = ()
        self.known: list[tuple[ModelDescription | None, int, Way]] = []

    def take(self, requests: Mapping[Member, StepRequest]) -> dict[Member, Outcome]:
        """One step of every member that asks for one."""
        if tuple(requests) != self.active:
            self.regroup(tuple(requests))
        outcomes: dict[Member, Outcome] = {}
        for group in self.groups:
            results = group.take([requests[member] for member in group.members])
            outcomes.update(zip(group.members, results))
        return {member: outcomes[member] for member in requests}

    def regroup(self, members: tuple[Member, ...]) -> None:
        """Return groups of present members, keeping unchanged ones."""
        previous = {group.members: group for group in self.groups}
        for group in self.groups:
            if group.measured and group.way is not None and self.way_of(group) is None:
                self.known.append((group.description, len(group.members), group.way))
        self.active, self.groups = members, [previous.get(group.members, group) for group in groups_of(members)]
        for group in self.groups:
            group.known = self.way_of(group)

    def way_of(self, group: Group) -> Way | None:
        """Return the faster way of models like these, if known."""
        alike = (way for what, size, way in self.known if (what, size) == (group.description, len(group.members)))
        return next(alike, None)


def groups_of(members: Sequence[Member]) -> list[Group]:
    """The members by what their models are; those with branches each alone."""
    groups: list[tuple[ModelDescription | None, list[Member]]] = []
    for member in members:
        model = member.state.model
        own = model.description if isinstance(model, GraphModel) else None
        alike = [group for description, group in groups if own is not None and description == own]
        if alike:
            alike[0].append(member)
        else:
            groups.append((own, [member]))
    return [Group(members=tuple(group), description=own) for own, group in groups]
