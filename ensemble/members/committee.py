"""Members of one shape, computed as one where batches are small."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hydragnn.base.errors import InputError
from hydragnn.distributed.graph_ranks import SharedPrediction
from hydragnn.ensemble.members.member import Member, MemberOutcome, finished_outcome, is_lack_of_memory, visible_batch
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemberStack:
    """Members that are computed as one."""

    numbers: tuple[int, ...]
    members: tuple[Member, ...]
    stack: TrainedStack

    def takes(self, edges: int) -> bool:
        """Return True where a batch is computed as one."""
        return is_small(self.stack.first, edges, len(self.numbers))


def is_small(model: TrainedModel, edges: int, members: int) -> bool:
    """Return True for a batch that these members compute as one."""
    work, device = edges * model.settings.hidden_dim, model.device
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

        Those of its group are computed at once, and kept with the batch.
        """
        if len(self.members) == 1 or not is_small(member.model, batch.num_edges, 2):
            return None
        self.groups = groups_of(self.members) if self.groups is None else self.groups
        group = self.groups.get(member.number)
        if group is None or not group.takes(batch.num_edges):
            return None
        return self._computed(group, batch)[member.number]

    def _computed(self, group: MemberStack, batch: GraphBatch) -> dict[int, MemberOutcome | None]:
        """Return outcomes by member, with those of the group.

        None where each member has to find the graph that it cannot predict.
        """
        outcomes: dict[int, MemberOutcome | None] = batch._derived.setdefault(OUTCOMES, {}).setdefault(self, {})
        if group.numbers[0] in outcomes:
            return outcomes
        outcomes |= dict.fromkeys(group.numbers)

        results: Sequence[Predicted] = ()
        try:
            results = group.stack.predict_with_states(visible_batch(group.members[0], batch))
        except (InputError, MemoryError, RuntimeError) as error:
            if not isinstance(error, InputError) and not is_lack_of_memory(error):
                raise
        for number, member, (predictions, states) in zip(group.numbers, group.members, results):
            outcomes[number] = finished_outcome(member, batch, predictions, states)
        return outcomes

    def shared(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return the seconds of members, equal for those of a group."""
        groups = self.groups or {}
        everyone = {number: groups[number].numbers if number in groups else (number,) for number in range(len(seconds))}
        return tuple(sum(seconds[one] for one in numbers) / len(numbers) for numbers in everyone.values())


def groups_of(members: Sequence[Member]) -> dict[int, MemberStack]:
    """Return the group of every member that has one."""
    alike: list[tuple[object, list[int]]] = []
    for number, member in enumerate(members):
        if 2 * weights_of(member.model) > WEIGHTS:
            continue
        key = (member.model.alike, member.config.data.edges, type(member.model.function))
        together = next((numbers for one, numbers in alike if one == key), None)
        if together is None:
            alike.append((key, together := []))
        together.append(number)
    groups: dict[int, MemberStack] = {}
    for _, numbers in alike:
        group = group_of(members, numbers)
        if group is not None:
            groups |= dict.fromkeys(numbers, group)
    return groups


def group_of(members: Sequence[Member], numbers: Sequence[int]) -> MemberStack | None:
    """Return these members as one; None where that cannot be."""
    first = members[numbers[0]].model
    if len(numbers) == 1 or isinstance(first.function, SharedPrediction) or len(numbers) * weights_of(first) > WEIGHTS:
        return None
    group_members = [members[number] for number in numbers]
    try:
        stack = TrainedStack([member.model for member in group_members])
    except NotStackable:
        return None
    return MemberStack(numbers=tuple(numbers), members=tuple(group_members), stack=stack)


def weights_of(model: TrainedModel) -> int:
    """Return the bytes of a model's weights."""
    return sum(weight.nbytes for weight in model.model.parameters())


def in_committee(members: Sequence[Member]) -> tuple[list[Member], Committee]:
    """Return members that may be computed as one."""
    committee = Committee(members)
    return [
        replace(member, number=number, together=committee.outcome) for number, member in enumerate(members)
    ], committee
