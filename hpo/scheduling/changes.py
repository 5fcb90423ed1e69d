"""What a decision changed, as plain JSON, and the state that follows: who reads a journal applies, and decides nothing anew.

``changes_between`` looks at what ``transition`` touched and knows no rule; ``apply_changes`` puts it into the state before. Indexes (who runs, how
many have a status, who stands on a rung) follow from the trials. So rules may change from version to version, and every
journal still tells the campaign that was.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from hydragnn.errors import InputError
from hydragnn.hpo.scheduling.events import Event, Opened
from hydragnn.hpo.scheduling.node_health import Node
from hydragnn.hpo.scheduling.ordered import Pool
from hydragnn.hpo.scheduling.state import (
    Rung,
    State,
    Touched,
    Trial,
    nodes_of,
    resting_entry,
    with_node,
    with_trial,
    without_node,
    without_trial,
)

Changes = dict[str, Any]
"""Of a state: ``trials`` and ``nodes`` by name, each with its changed members (null: it is gone), ``waiting`` and ``free``, and the rest as it is."""

INDEXED = frozenset(
    {"trials", "active", "counts", "rungs", "waiting", "free", "health", "touched", "plan", "slots", "nodes"}
)
"""Members of a state that follow from others, that an opening says, or that have a form of their own."""


def changes_between(before: State, event: Event, after: State) -> Changes:
    """What an event changed, as plain JSON; ``after`` is what ``transition`` made of ``before``."""
    touched = dict.fromkeys(_flat(after.touched))
    opening = isinstance(event, Opened)
    names = {*before.health, *after.health} if opening else {name for name in touched if isinstance(name, str)}
    numbers = sorted(number for number in touched if isinstance(number, int))
    pairs = ((number, before.trials.get(number), after.trials.get(number)) for number in numbers)
    nodes = ((name, before.health.get(name), after.health.get(name)) for name in sorted(names))
    parts: Changes = {
        "trials": {str(n): _members(old, new, Trial(number=n)) for n, old, new in pairs if old != new},
        "nodes": {name: _members(old, new, Node()) for name, old, new in nodes if old != new},
        "waiting": None if before.waiting == after.waiting else _edit(before.waiting, after.waiting),
        "free": None if before.free is after.free else _pool_changes(before, after, touched, opening),
    }
    changed = (
        (name, getattr(after, name)) for name in _readers(State) if getattr(before, name) != getattr(after, name)
    )
    return {name: part for name, part in parts.items() if part} | {name: _plain(value) for name, value in changed}


def whole_state(event: Opened, state: State) -> Changes:
    """The changes that make this state of the empty one: what was decided before is no more needed."""
    touched: Touched = None
    for number in state.trials:
        touched = (number, touched)
    return {"whole": True, **changes_between(State(), event, replace(state, touched=touched))}


def apply_changes(state: State, event: Event, changes: Changes) -> State:
    """The state after an event; InputError where what is written does not fit the state before, or is of a newer program."""
    if changes.get("whole"):
        state = State()
    if isinstance(event, Opened):
        rungs = state.rungs or (Rung(),) * len(event.plan.rungs)
        state = replace(state, plan=event.plan, slots=event.slots, nodes=nodes_of(event.slots), rungs=rungs)
    try:
        for number, members in changes.get("trials", {}).items():
            state = _with_trial(state, int(number), members)
        for name, members in changes.get("nodes", {}).items():
            state = _with_node(state, name, members)
        rest = {name: value for name, value in changes.items() if name not in ("trials", "nodes", "whole")}
        indexes: dict[str, Any] = {}
        if "waiting" in rest:
            start, stop, new = rest.pop("waiting")
            indexes["waiting"] = (*state.waiting[:start], *new, *state.waiting[stop:])
        if "free" in rest:
            indexes["free"] = _pool(state.free, **rest.pop("free"))
        return replace(state, touched=None, **indexes, **_read(State, rest))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, ValidationError) as error:
        raise InputError(f"its changes do not fit the campaign before them ({error})") from error


def _flat(touched: Touched) -> Iterator[int | str]:
    while touched is not None:
        name, touched = touched
        yield name


def _members(before: Struct | None, after: Struct | None, blank: Struct) -> dict[str, Any] | None:
    """The members of a trial or node that changed; None where it is gone."""
    if after is None:
        return None
    before = blank if before is None else before
    names = after.__struct_fields__
    return {name: _plain(value) for name in names if (value := getattr(after, name)) != getattr(before, name)}


def _edit(before: tuple[int, ...], after: tuple[int, ...]) -> list[Any]:
    """Which part of a line is replaced by what: [start, stop, numbers].

    >>> _edit((1, 2, 3, 4), (1, 9, 4))
    [1, 3, [9]]
    """
    least = min(len(before), len(after))
    start = _longest(least, lambda count: before[:count] == after[:count])
    end = _longest(least - start, lambda count: before[len(before) - count :] == after[len(after) - count :])
    return [start, len(before) - end, list(after[start : len(after) - end])]


def _longest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to a limit for which something holds that holds for 0 and all smaller ones."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _pool_changes(before: State, after: State, touched: Mapping[int | str, None], opening: bool) -> dict[str, Any]:
    """Which slots left the pool, and which came to its end."""
    old, new = before.free, after.free
    came = {seat: new.at[seat] for seat in range(old.tail, new.tail) if seat in new.at}
    gone = [
        slot for slot in _slots_of(before, after, touched) if old.seat.get(slot, -1) not in (-1, new.seat.get(slot))
    ]
    ends = {"head": new.head, "tail": new.tail}
    if opening or len(old) - len(gone) + len(came) != len(new):
        return {"all": sorted([seat, slot] for seat, slot in new.at.items()), **ends}
    return {"gone": gone, "came": [[seat, slot] for seat, slot in came.items()], **ends}


def _slots_of(before: State, after: State, touched: Mapping[int | str, None]) -> dict[str, None]:
    """The slots that touched trials had or have, and those of touched nodes."""
    slots: dict[str, None] = {}
    for name in touched:
        if isinstance(name, str):
            slots |= dict.fromkeys(after.nodes.get(name, ()))
            continue
        for trial in (before.trials.get(name), after.trials.get(name)):
            slots |= dict.fromkeys(() if trial is None else trial.slots)
    return slots


def _pool(pool: Pool, **changes: Any) -> Pool:
    if "all" in changes:
        pool, changes["came"], changes["gone"] = Pool(), changes["all"], ()
    return pool.moved(changes["gone"], map(tuple, changes["came"]), changes["head"], changes["tail"])


def _with_trial(state: State, number: int, members: dict[str, Any] | None) -> State:
    """The state with a changed trial; it stands on the rungs that it has results for, and rests on the last while it is paused."""
    if members is None:
        return without_trial(state, number)
    before = state.trials.get(number, Trial(number=number))
    after = replace(before, **_read(Trial, members))
    rested, rests = resting_entry(before), resting_entry(after)
    if after.results == before.results and rested == rests:
        return with_trial(state, after)
    rungs = list(state.rungs)
    for level, value in enumerate(after.results[len(before.results) :], start=len(before.results)):
        rungs[level] = replace(rungs[level], reached=rungs[level].reached.with_entry((value, number)))
    if rested != rests:
        for level, entry in (rested,) if rested else ():
            rungs[level] = replace(rungs[level], paused=rungs[level].paused.without_entry(entry))
        for level, entry in (rests,) if rests else ():
            rungs[level] = replace(rungs[level], paused=rungs[level].paused.with_entry(entry))
    return with_trial(replace(state, rungs=tuple(rungs)), after)


def _with_node(state: State, name: str, members: dict[str, Any] | None) -> State:
    if members is None:
        return without_node(state, name)
    return with_node(state, name, replace(state.health.get(name, Node()), **_read(Node, members)))


def _plain(value: Any) -> Any:
    """A value as JSON has it; infinite numbers as words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _read(cls: type[Struct], members: Mapping[str, Any]) -> dict[str, Any]:
    """The values of named members of a struct, from JSON."""
    readers = _readers(cls)
    return {name: readers[name](value) for name, value in members.items()}


@cache
def _readers(cls: type[Struct]) -> dict[str, Callable[[Any], Any]]:
    """How each member of a struct is read from JSON."""
    hints = get_type_hints(cls)
    names = [name for name in hints if cls is not State or name not in INDEXED]
    return {name: _reader(hints[name]) for name in names}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value of a type is read; a plain one that has the type already is taken as it is."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return lambda value: hint(**_read(hint, value))
    if get_origin(hint) is tuple and isinstance(get_args(hint)[0], type) and issubclass(get_args(hint)[0], Struct):
        member = _reader(get_args(hint)[0])
        return lambda value: tuple(map(member, value))
    validate = TypeAdapter(hint).validate_python
    if hint not in (int, float, bool, str):
        return validate
    return lambda value: value if type(value) is hint else validate(value)
