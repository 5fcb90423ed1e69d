"""A campaign as its journal tells it: decisions are put in place one after the other, and none is made anew.

Indexes (who runs, how many have a status, who stands on a rung) follow from the trials, once somebody asks for the state.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from immutables import Map
from msgspec import UNSET, Raw, Struct, UnsetType, defstruct, to_builtins
from msgspec.json import Decoder, decode
from msgspec.structs import asdict, replace

from hydragnn.base.errors import InputError
from hydragnn.hpo.scheduling.changes import INDEXED
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

Written = dict[str, Raw]
"""Changes as a journal has them: the text of each by its name."""


class Unread(Struct):
    """An object of which nothing is read."""


class FreeChange(Struct):
    """Which slots are free no more, which are again and at which seats, or all of them anew; and where seats begin and end."""

    head: int
    tail: int
    all: tuple[tuple[int, str], ...] | None = None
    came: tuple[tuple[int, str], ...] = ()
    gone: tuple[str, ...] = ()


def _decoder(key: type, cls: type[Struct], *, besides: str = "", **hints: Any) -> Decoder[dict[Any, Any]]:
    """Reads what of values changed (null: it is gone); members in the order of names, in which journals have them and they are read soonest."""
    hints = get_type_hints(cls) | hints
    members = [(name, hint | UnsetType, UNSET) for name, hint in sorted(hints.items()) if name != besides]
    changed: Any = defstruct(f"Changed{cls.__name__}", members, forbid_unknown_fields=True, gc=False)
    by_name: Any = dict
    return Decoder(by_name[key, changed | None], strict=False)


TRIALS = _decoder(int, Trial, besides="number")
BRIEF_TRIALS = _decoder(int, Trial, besides="number", identity=Unread | None)
NODES = _decoder(str, Node)
FREE = Decoder(FreeChange)
WAITING = Decoder(tuple[int, int, tuple[int, ...]])
"""Readers of the changes that have a place of their own; infinite numbers are words."""


class Replay:
    """A campaign while it is read, changed in place; ``state`` is the value that it has come to.

    What looks on sees ``trials``, ``health``, ``free``, ``plan``, ``slots`` and ``nodes`` under the names of a state. A ``brief`` one
    does not know the processes of attempts (``Trial.identity``), which only a controller needs to.
    """

    def __init__(self, *, brief: bool = False) -> None:
        self._brief = brief
        self.become(State())

    def become(self, state: State) -> None:
        """Be what the rules of version 1 decided about an event that is without decisions in its journal."""
        self._state: State | None = state
        self._own = False
        """True where trials, free slots and the line of those that wait are ours to change."""
        self.trials: Mapping[int, Trial] = state.trials
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

    @property
    def least(self) -> int:
        """Slots that every attempt gets at least."""
        return least_slots(self.plan, self.slots)

    @property
    def most(self) -> int:
        """Slots that an attempt gets at most."""
        return most_slots(self.plan, self.slots)

    def apply(self, event: Event, changes: Written) -> None:
        """Change what an event changed; InputError where that does not fit what was before, or is of a newer program."""
        if "whole" in changes:
            self.become(State())
        if not self._own:
            self._take_over()
        self._state = None
        try:
            if isinstance(event, Opened):
                self.plan, self.slots, self.nodes = event.plan, event.slots, nodes_of(event.slots)
                self._levels = self._levels or len(event.plan.rungs)
            self._members.update(changes)
            if len(self._members) != self._names:
                self._look_at_names()
            if "trials" in changes:
                self._change_trials(changes["trials"])
            if "free" in changes:
                self.free.change(FREE.decode(changes["free"]))
            if "nodes" in changes:
                self._change_nodes(changes["nodes"])
            if "waiting" in changes:
                start, stop, new = WAITING.decode(changes["waiting"])
                self._waiting[start:stop] = new
        except MISFITS as error:
            raise misfit(error) from error

    def _take_over(self) -> None:
        """Make what will change our own."""
        state = self.state
        self.trials = self._trials = dict(state.trials)
        self.free = FreeSlots(state.free)
        self._waiting = list(state.waiting)
        self._names, self._members = 0, Written()
        """The latest changes of all kinds; those that have a place of their own are in it too, and mean nothing there."""
        self._base, self._own = state, True

    def _look_at_names(self) -> None:
        """KeyError where a change is about nothing that is known."""
        if unknown := sorted(self._members.keys() - KNOWN):
            raise KeyError(*unknown)
        self._names = len(self._members)

    def _change_trials(self, written: Raw) -> None:
        """Give members of trials other values; None: the trial is gone. KeyError for one that is not there."""
        trials, brief = self._trials, self._brief
        for number, changed in (BRIEF_TRIALS if brief else TRIALS).decode(written).items():
            if changed is None:
                del trials[number]
                continue
            members = to_builtins(changed)
            if brief:
                members.pop("identity", None)
            if "failure" in members:
                members["failure"] = changed.failure
            before = trials.get(number)
            if before is None:
                trials[number] = Trial(number=number, **members)
            elif members:
                trials[number] = replace(before, **members)

    def _change_nodes(self, written: Raw) -> None:
        for name, changed in NODES.decode(written).items():
            if changed is None:
                self.health = self.health.without(name)
            else:
                members = {name: value for name, value in asdict(changed).items() if value is not UNSET}
                self.health = self.health.with_node(name, replace(self.health.get(name, Node()), **members))

    def _built(self) -> State:
        trials = self._trials
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
            **{
                name: decode(self._members[name], type=hint, strict=False)
                for name, hint in MEMBERS.items()
                if name in self._members
            },
        )


class FreeSlots:
    """Free slots in the order in which they are given out, changed in place."""

    def __init__(self, pool: Pool) -> None:
        self._at, self._seat = dict(pool.at), dict(pool.seat)
        self._head, self._tail = pool.head, pool.tail

    def __len__(self) -> int:
        return len(self._at)

    def change(self, free: FreeChange) -> None:
        """Let some slots go and others come to seats of their own, or take all of them anew; KeyError for one that is not there."""
        at, seat, came = self._at, self._seat, free.came
        if free.all is not None:
            at, seat, came = self._at, self._seat, came = {}, {}, free.all
        for slot in free.gone:
            del at[seat.pop(slot)]
        for place, slot in came:
            at[place], seat[slot] = slot, place
        self._head, self._tail = free.head, free.tail

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

MISFITS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError)
"""What goes wrong where changes are not those of the campaign before them, or of a newer program."""


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
