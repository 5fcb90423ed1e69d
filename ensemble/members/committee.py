"""Members of one shape, computed as one where batches are small."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from hydragnn.base.errors import InputError
from hydragnn.ensemble.members.member import Member, MemberOutcome, finished_outcome, is_lack_of_memory
from hydragnn.ensemble.members.plan import BYTES_PER_EDGE
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import TrainedModel
from hydragnn.models.graph_model import Predicted
from hydragnn.models.trained_stack import TrainedStack

WORK_OF_CPU = 1 << 18
"""Edges times channels of a member up to which members are computed as one on a CPU.

What is saved is the time of calls, which no longer matters beyond: eight members take .8 of their time one after the other at the limit, and up to twice that time in
large batches, whose filters members alone read from tables (docs/measurements/prediction.md).
"""

BYTES_PER_CHANNEL = BYTES_PER_EDGE / 128
"""Memory of a GPU per edge and channel of a member."""

WEIGHTS = 1 << 26
"""Bytes of weights up to which members are computed as one."""

OUTCOMES: tuple[str, Location] = ("outcomes", "graph")
"""Place in a batch of what members predict for it, by committee and member."""


MemberStack = tuple[Sequence[Member], TrainedStack]
"""Members that are computed as one."""


def is_small(model: TrainedModel, edges: int, members: int) -> bool:
    """Return True for a batch that these members compute as one."""
    work, device = edges * model.description.model.hidden_dim, model.device
    if device.type == "cuda":
        return members * work * BYTES_PER_CHANNEL <= torch.cuda.get_device_properties(device).total_memory
    return device.type == "cpu" and work <= WORK_OF_CPU


class Committee:
    """Members some of which are computed as one.

    Which, follows from the members, the kind of the device and the batch alone, so that all ranks and a resumed prediction give the same bits.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        """Stack nothing yet."""
        self.members = members
        self.groups: dict[int, MemberStack] | None = None
        """By member; None before they are needed."""

    def outcome(self, member: Member, batch: GraphBatch) -> MemberOutcome | None:
        """Return a member's predictions; None where it is computed alone.

        Those of its group are computed at once, and kept with the batch: None where each has to find the graph that it cannot predict.
        """
        if len(self.members) == 1 or not is_small(member.model, batch.num_edges, 2):
            return None
        self.groups = groups_of(self.members) if self.groups is None else self.groups
        group = self.groups.get(member.number)
        if group is None or not is_small(member.model, batch.num_edges, len(group[0])):
            return None
        outcomes: dict[int, MemberOutcome | None] = batch._derived.setdefault(OUTCOMES, {}).setdefault(self, {})
        if member.number in outcomes:
            return outcomes[member.number]
        together, stack = group
        outcomes |= {one.number: None for one in together}
        results: Sequence[Predicted] = ()
        try:
            results = stack.predict_with_states(batch)
        except (InputError, MemoryError, RuntimeError) as error:
            if not isinstance(error, InputError) and not is_lack_of_memory(error):
                raise
        for one, (predictions, states) in zip(together, results):
            outcomes[one.number] = finished_outcome(one, batch, predictions, states)
        return outcomes[member.number]

    def shared(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return the seconds of members, equal for those of a group."""
        means = list(seconds)
        for together, _ in (self.groups or {}).values():
            for member in together:
                means[member.number] = sum(seconds[one.number] for one in together) / len(together)
        return tuple(means)


def groups_of(members: Sequence[Member]) -> dict[int, MemberStack]:
    """Return the group of every member that can be computed with others."""
    alike: list[tuple[object, list[Member]]] = []
    for member in members:
        together = next((some for one, some in alike if one == member.model.alike), None)
        if together is None:
            alike.append((member.model.alike, together := []))
        together.append(member)
    groups: dict[int, MemberStack] = {}
    for _, some in alike:
        weights = len(some) * sum(weight.nbytes for weight in some[0].model.model.parameters())
        if len(some) > 1 and weights <= WEIGHTS:
            with suppress(NotStackable):
                stack = TrainedStack([member.model for member in some])
                groups |= dict.fromkeys((one.number for one in some), (some, stack))
    return groups


def in_committee(members: Sequence[Member]) -> tuple[list[Member], Committee]:
    """Return members that may be computed as one."""
    committee = Committee([replace(member, number=number) for number, member in enumerate(members)])
    return [replace(member, together=committee.outcome) for member in committee.members], committee
