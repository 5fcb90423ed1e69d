"""A campaign as its journal tells it: decisions are put in place one after the other, and none is made anew.

Indexes (who runs, how many have a status, who stands on a rung) follow from the trials, once somebody asks for the state.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from hydragnn.errors import InputError
from hydragnn.hpo.scheduling.changes import INDEXED, Changes
from hydragnn.hpo.scheduling.events import Event, Failed, Opened, Reached
from hydragnn.hpo.scheduling.node_health import Node, NodeHealth
from hydragnn.hpo.scheduling.ordered import Pool, Ranking
from hydragnn.hpo.scheduling.state import Rung, State, Trial, least_slots, most_slots, nodes_of

PLACED = ("trials", "nodes", "waiting", "free", "whole")
"""Changes that have a place of their own; the others are members of a state."""


class Replay:
    """A campaign while it is read, changed in place; ``state`` is the value that it has come to.

    What looks on sees ``trials``, ``health``, ``free``, ``plan``, ``slots`` and ``nodes`` under the names of a state.
    """

    def __init__(self, state: State | None = None) -> None:
        self.become(State() if state is None else state)

    def become(self, state: State) -> None:
        """Be what the rules decided about an event that is without decisions in its journal."""
        self._state: State | None = state
        self._own = False
        """True where trials, free slots and the line of those that wait are ours to change."""
        self.trials: Any = state.trials
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
            except (KeyError, ValueError, TypeError, AttributeError, IndexError, ValidationError) as error:
                raise misfit(error) from error
        return self._state

    @property
    def running(self) -> list[Trial]:
        """Trials that are being trained, by number."""
        if self._state is not None:
            return self._state.running
        return [self.trials[number] for number in sorted(self.trials) if self.trials[number].status == "running"]

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
            for number, members in changes.get("trials", {}).items():
                self._change_trial(int(number), members)
            for name, members in changes.get("nodes", {}).items():
                self._change_node(name, members)
            if "waiting" in changes:
                start, stop, new = changes["waiting"]
                self._waiting[start:stop] = new
            if "free" in changes:
                self.free.change(**changes["free"])
            for name, value in changes.items():
                if name not in PLACED:
                    self._members[name] = STATE[name], value
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, ValidationError) as error:
            raise misfit(error) from error

    def _take_over(self) -> None:
        """Make what will change our own."""
        state = self.state
        self.trials = dict(state.trials)
        self.free = FreeSlots(state.free)
        self._waiting = list(state.waiting)
        self._members: dict[str, tuple[Reader, Any]] = {}
        self._base, self._own = state, True

    def _change_trial(self, number: int, members: dict[str, Any] | None) -> None:
        if members is None:
            del self.trials[number]
        else:
            before = self.trials.get(number)
            self.trials[number] = replace(Trial(number=number) if before is None else before, **_read(TRIAL, members))

    def _change_node(self, name: str, members: dict[str, Any] | None) -> None:
        if members is None:
            self.health = self.health.without(name)
        else:
            node = replace(self.health.get(name, Node()), **_read(NODE, members))
            self.health = self.health.with_node(name, node)

    def _built(self) -> State:
        trials: dict[int, Trial] = self.trials
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
            **{name: read(value) for name, (read, value) in self._members.items()},
        )


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
    if isinstance(event, Opened):
        return tuple(campaign.running)
    if isinstance(event, Reached | Failed):
        trial = campaign.trials.get(event.trial)
        if trial is not None and trial.status == "running" and trial.attempt == event.attempt:
            return (trial,)
    return ()


def misfit(error: Exception) -> InputError:
    """What to raise where changes cannot be put in place."""
    return InputError(f"its changes do not fit the campaign before them ({error})")


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


Reader = Callable[[Any], Any]


def _read(readers: Mapping[str, tuple[frozenset[type], Reader]], members: Mapping[str, Any]) -> dict[str, Any]:
    """The values of named members of a struct, from JSON; one that has a type that needs no reading is taken as it is."""
    return {
        name: value if type(value) in readers[name][0] else readers[name][1](value) for name, value in members.items()
    }


@cache
def _reader(hint: Any) -> Reader:
    """How a value of a type is read from JSON."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        members = _readers(hint)
        return lambda value: hint(**_read(members, value))
    arguments = get_args(hint)
    validate = TypeAdapter(hint).validate_python if not _holds_structs(hint) else None
    if get_origin(hint) is Literal:
        words = frozenset(arguments)
        return lambda value: value if value in words else validate(value)  # type: ignore[misc]
    if get_origin(hint) is tuple:
        member, plain = _reader(arguments[0]), _plain_types(arguments[0])
        if validate is None:
            return lambda value: tuple(map(member, value))
        return lambda value: (
            tuple(value) if type(value) is list and plain.issuperset(map(type, value)) else validate(value)
        )
    assert validate is not None
    return validate


def _holds_structs(hint: Any) -> bool:
    arguments = get_args(hint)
    return get_origin(hint) is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], Struct)


def _plain_types(hint: Any) -> frozenset[type]:
    """Types of JSON values that are values of a type as they are."""
    if hint in (int, float, bool, str):
        return frozenset((hint,))
    if hint == dict[str, Any]:
        return frozenset((dict,))
    options = [option for option in get_args(hint) if option is not type(None)]
    if len(options) == 1 and len(get_args(hint)) == 2:
        return _plain_types(options[0]) | {type(None)}
    return frozenset()


def _readers(cls: type[Struct]) -> dict[str, tuple[frozenset[type], Reader]]:
    """How each member of a struct is read from JSON."""
    return {name: (_plain_types(hint), _reader(hint)) for name, hint in get_type_hints(cls).items()}


TRIAL, NODE = _readers(Trial), _readers(Node)
STATE = {name: _reader(hint) for name, hint in get_type_hints(State).items() if name not in INDEXED}
