"""A campaign as its journal tells it: decisions are put in place one after the other, and none is made anew.

Indexes (who runs, how many have a status, who stands on a rung) follow from the trials, once somebody asks for the state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from immutables import Map
from msgspec import ValidationError, convert
from msgspec.structs import asdict, replace

from hydragnn.errors import InputError
from hydragnn.hpo.scheduling.changes import INDEXED, Changes
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Reached
from hydragnn.hpo.scheduling.node_health import Node, NodeHealth
from hydragnn.hpo.scheduling.ordered import Pool, Ranking
from hydragnn.hpo.scheduling.state import Rung, State, Trial, least_slots, most_slots, nodes_of

PLACED = frozenset({"trials", "nodes", "waiting", "free", "whole"})
"""Changes that have a place of their own; the others are members of a state."""

MEMBERS = {name: hint for name, hint in get_type_hints(State).items() if name not in INDEXED}
"""The types of those."""

KNOWN = PLACED | MEMBERS.keys()
"""Everything that a change can be about."""


class Replay:
    """A campaign while it is read, changed in place; ``state`` is the value that it has come to.

    What looks on sees ``trials``, ``health``, ``free``, ``plan``, ``slots`` and ``nodes`` under the names of a state.
    """

    def __init__(self, state: State | None = None) -> None:
        self.become(State() if state is None else state)

    def become(self, state: State) -> None:
        """Be what the rules of version 1 decided about an event that is without decisions in its journal."""
        self._state: State | None = state
        self._own = False
        """True where trials, free slots and the line of those that wait are ours to change."""
        self.trials: Mapping[int, Trial] | Trials = state.trials
        self.free: Any = state.free
        self.health: NodeHealth = state.health
        self.plan, self.slots, self.nodes = state.plan, state.slots, state.nodes
        self._levels = len(state.rungs)

    @property
    def state(self) -> State:
        """The campaign as a value; InputError where members of it are not what they should be."""
        if self._state is None:
            try:
                self._state = self._built()
            except InputError:
                raise
            except MISFITS as error:
                raise misfit(error) from error
        return self._state

    @property
    def running(self) -> list[Trial]:
        """Trials that are being trained, by number."""
        if self._state is not None:
            return self._state.running
        return [self.trials[number] for number in sorted(self.trials) if self.trials[number].status == "running"]

    def status(self, number: int) -> str:
        """The status of a trial, as its latest change says; KeyError for one that there is not."""
        return self.trials.status(number) if isinstance(self.trials, Trials) else self.trials[number].status

    @property
    def least(self) -> int:
        """Slots that every attempt gets at least."""
        return least_slots(self.plan, self.slots)

    @property
    def most(self) -> int:
        """Slots that an attempt gets at most."""
        return most_slots(self.plan, self.slots)

    def apply(self, event: Event, changes: Changes) -> None:
        """Change what an event changed; InputError where that does not fit what was before, or is of a newer program."""
        if changes.get("whole"):
            self.become(State())
        if not self._own:
            self._take_over()
        self._state = None
        try:
            if isinstance(event, Opened):
                self.plan, self.slots, self.nodes = event.plan, event.slots, nodes_of(event.slots)
                self._levels = self._levels or len(event.plan.rungs)
            if not changes.keys() <= KNOWN:
                raise KeyError(*sorted(changes.keys() - KNOWN))
            self._members.update(changes)
            if "trials" in changes:
                self._trials.change(changes["trials"])
            if "free" in changes:
                self.free.change(**changes["free"])
            if "nodes" in changes:
                self._change_nodes(changes["nodes"])
            if "waiting" in changes:
                start, stop, new = changes["waiting"]
                self._waiting[start:stop] = new
        except MISFITS as error:
            raise misfit(error) from error

    def _take_over(self) -> None:
        """Make what will change our own."""
        state = self.state
        self.trials = self._trials = Trials(state.trials)
        self.free = FreeSlots(state.free)
        self._waiting = list(state.waiting)
        self._members: Changes = {}
        """The latest changes of all kinds; those that have a place of their own are in it too, and mean nothing there."""
        self._base, self._own = state, True

    def _change_nodes(self, nodes: Mapping[str, dict[str, Any] | None]) -> None:
        for name, members in nodes.items():
            if members is None:
                self.health = self.health.without(name)
            else:
                before = asdict(self.health.get(name, Node()))
                self.health = self.health.with_node(name, _value(Node, before | members))

    def _built(self) -> State:
        trials = self._trials.built()
        return replace(
            self._base,
            plan=self.plan,
            slots=self.slots,
            nodes=self.nodes,
            free=self.free.pool(),
            health=self.health,
            trials=Map(trials),
            active=Map({trial.number: trial.attempt for trial in trials.values() if trial.status == "running"}),
            counts=Map(Counter(trial.status for trial in trials.values())),
            rungs=_rungs(trials.values(), self._levels),
            waiting=tuple(self._waiting),
            touched=None,
            **{name: _value(hint, self._members[name]) for name, hint in MEMBERS.items() if name in self._members},
        )


class Trials(Mapping[int, Trial]):
    """Trials that change in place: a change is members in a table, and a value is made of them where somebody asks for it."""

    def __init__(self, trials: Mapping[int, Trial]) -> None:
        self._values = dict(trials)
        """Those that did not change since they were made."""
        self._members: dict[int, dict[str, Any]] = {number: {} for number in trials}
        """Members of those that changed; empty for the others."""

    def __getitem__(self, number: int) -> Trial:
        members = self._members[number]
        trial = self._values.get(number)
        if trial is None:
            try:
                trial = self._values[number] = _value(Trial, members)
            except ValueError as error:
                raise misfit(error, f"trial {number}: ") from error
        return trial

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def change(self, changes: Mapping[str, dict[str, Any] | None]) -> None:
        """Give members of trials, by their numbers, other values; None: the trial is gone. KeyError for one that is not there."""
        for key, changed in changes.items():
            number = int(key)
            value = self._values.pop(number, None)
            if changed is None:
                del self._members[number]
                continue
            members = self._members.get(number)
            if not members:
                members = self._members[number] = {"number": number} if value is None else asdict(value)
            members.update(changed)

    def status(self, number: int) -> str:
        """The status of a trial, without making a value of it."""
        return str(self._members[number]["status"]) if number not in self._values else self._values[number].status

    def built(self) -> dict[int, Trial]:
        """All of them as values."""
        return {number: self[number] for number in self._members}


class FreeSlots:
    """Free slots in the order in which they are given out, changed in place."""

    def __init__(self, pool: Pool) -> None:
        self._at, self._seat = dict(pool.at), dict(pool.seat)
        self._head, self._tail = pool.head, pool.tail

    def __len__(self) -> int:
        return len(self._at)

    def change(
        self,
        *,
        head: int,
        tail: int,
        came: Iterable[Sequence[Any]] = (),
        gone: Iterable[str] = (),
        all: Iterable[Sequence[Any]] | None = None,
    ) -> None:
        """Let some slots go and others come to seats of their own, or take all of them anew; KeyError for one that is not there."""
        if all is not None:
            self._at, self._seat, came = {}, {}, all
        for slot in gone:
            del self._at[self._seat.pop(slot)]
        for seat, slot in came:
            self._at[seat], self._seat[slot] = slot, seat
        self._head, self._tail = head, tail

    def pool(self) -> Pool:
        """The value that they are."""
        return Pool(Map(self._at), Map(self._seat), self._head, self._tail)


def concerned(campaign: State | Replay, event: Event) -> tuple[Trial, ...]:
    """The trials whose attempts an event ends, as they are before: all that run where a controller begins; none where it no longer matters."""
    if isinstance(event, ENDS):
        trial = campaign.trials.get(event.trial)
        if trial is not None and trial.status == "running" and trial.attempt == event.attempt:
            return (trial,)
    elif isinstance(event, Opened):
        return tuple(campaign.running)
    return ()


ENDS = (Reached, Failed)

MISFITS = (KeyError, ValueError, TypeError, AttributeError, IndexError)
"""What goes wrong where changes are not those of the campaign before them, or of a newer program."""


def misfit(error: Exception, whose: str = "") -> InputError:
    """What to raise where changes cannot be put in place."""
    return InputError(f"{whose}its changes do not fit the campaign before them ({error})")


def _rungs(trials: Iterable[Trial], levels: int) -> tuple[Rung, ...]:
    """Every trial stands on the rungs that it has results for, and rests on the last while it is paused."""
    reached: list[list[tuple[float, int]]] = [[] for _ in range(levels)]
    paused: list[list[tuple[float, int]]] = [[] for _ in range(levels)]
    for trial in trials:
        for level, value in enumerate(trial.results):
            reached[level].append((value, trial.number))
        if trial.status == "paused":
            paused[len(trial.results) - 1].append((trial.results[-1], trial.number))
    return tuple(Rung(Ranking.of(all_), Ranking.of(resting)) for all_, resting in zip(reached, paused))


def _value(hint: Any, plain: Any) -> Any:
    """A value of a type from JSON, in which infinite numbers are words."""
    try:
        return convert(plain, hint)
    except ValidationError:
        return convert(plain, hint, strict=False)
