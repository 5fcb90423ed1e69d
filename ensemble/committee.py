"""Members of one shape, computed as one where batches are small."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydragnn.base.errors import InputError
from hydragnn.ensemble.latent import LatentSpace
from hydragnn.ensemble.members import Company, Member, Outcome, finished_outcome, is_lack_of_memory, seen
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Location
from hydragnn.layers.stacked import NotStackable
from hydragnn.models import TrainedModel
from hydragnn.models.compiled_prediction import CompiledPrediction
from hydragnn.models.trained_stack import TrainedStack

WORK = {"cpu": 1 << 17, "cuda": 1 << 21}
"""Edges of a batch times channels: up to here members are computed as one. On a CPU eight took at most .7 of their time one after the other (docs/measurements/prediction.md)."""

WEIGHTS = 1 << 26
"""Bytes of weights up to which members are computed as one: all are in memory then, whatever ``held`` says."""


OUTCOMES: tuple[str, Location] = ("outcomes", "graph")
"""Where a batch keeps what members predict for it, by committee and member."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Members that are computed as one."""

    numbers: tuple[int, ...]
    stack: TrainedStack
    latents: tuple[LatentSpace | None, ...]


class Committee(Company):
    """Members some of which are computed as one.

    Which, follows from the members, the kind of the device and the batch alone, so that all ranks and a resumed prediction give the same bits.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        """Stack nothing yet."""
        self.members = members
        self.groups: dict[int, Group] | None = None
        """By member; None before the first small batch."""

    def outcome(self, member: Member, batch: GraphBatch) -> Outcome | None:
        """Return a member's predictions; None where it is computed alone.

        Those of its group are computed at once, and kept with the batch.
        """
        model, number = member.model, member.number
        small = batch.num_edges * model.settings.hidden_dim <= WORK.get(model.device.type, 0)
        if not small or len(self.members) == 1:
            return None
        if self.groups is None:
            self.groups = groups_of(self.members)
        group = self.groups.get(number)
        if group is None:
            return None
        of_members: dict[int, Outcome | None] = batch._derived.setdefault(OUTCOMES, {}).setdefault(self, {})
        if number not in of_members:
            of_members |= self._compute(member, group, batch)
        return of_members[number]

    def _compute(self, member: Member, group: Group, batch: GraphBatch) -> dict[int, Outcome | None]:
        """Return the outcomes of a group; None where each member has to find the graph that it cannot predict."""
        try:
            results = group.stack.predict_with_states(seen(member, batch))
        except (InputError, MemoryError, RuntimeError) as error:
            if not isinstance(error, InputError) and not is_lack_of_memory(error):
                raise
            return dict.fromkeys(group.numbers)
        return {
            number: finished_outcome(member.targets, latent, batch, predictions, states)
            for number, latent, (predictions, states) in zip(group.numbers, group.latents, results)
        }

    def shared(self, seconds: Sequence[float]) -> tuple[float, ...]:
        """Return the seconds of members, equal for those of a group, whose first one took them all."""
        groups = self.groups or {}
        everyone = {number: groups[number].numbers if number in groups else (number,) for number in range(len(seconds))}
        return tuple(sum(seconds[one] for one in numbers) / len(numbers) for numbers in everyone.values())


def groups_of(members: Sequence[Member]) -> dict[int, Group]:
    """Return the group of every member that has one.

    Of members that are loaded when they are needed no more are held than belong to a small group.
    """
    alike: list[tuple[object, list[int]]] = []
    for number, member in enumerate(members):
        if 2 * weights_of(member.model) > WEIGHTS:
            continue
        key = (member.model.alike, member.config.data.edges, type(member.model.function))
        known = next((numbers for one, numbers in alike if one == key), None)
        if known is None:
            alike.append((key, known := []))
        known.append(number)
    groups: dict[int, Group] = {}
    for _, numbers in alike:
        group = group_of(members, numbers)
        if group is not None:
            groups |= dict.fromkeys(numbers, group)
    return groups


def group_of(members: Sequence[Member], numbers: Sequence[int]) -> Group | None:
    """Return these members as one; None where that cannot be."""
    first = members[numbers[0]].model
    if (
        len(numbers) == 1
        or isinstance(first.function, CompiledPrediction)
        or len(numbers) * weights_of(first) > WEIGHTS
    ):
        return None
    chosen = [members[number] for number in numbers]
    try:
        stack = TrainedStack([member.model for member in chosen])
    except NotStackable:
        return None
    return Group(numbers=tuple(numbers), stack=stack, latents=tuple(member.latent for member in chosen))


def weights_of(model: TrainedModel) -> int:
    """Return the bytes of a model's weights."""
    return sum(weight.nbytes for weight in model.model.parameters())


def in_company(members: Sequence[Member]) -> tuple[list[Member], Committee]:
    """Return members that may be computed as one."""
    committee = Committee(members)
    return [replace(member, number=number, company=committee) for number, member in enumerate(members)], committee
