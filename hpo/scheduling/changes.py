"""What a decision changed, as plain JSON: who reads a journal puts it in place (``replay.py``) and decides nothing anew.

``changes_between`` looks at what ``transition`` touched and knows no rule. So rules may change from version to version, and
every journal still tells the campaign that was.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Event, Opened
from hydragnn.hpo.scheduling.node_health import Node
from hydragnn.hpo.scheduling.state import (
    State,
    Touched,
    Trial,
)

Changes = dict[str, Any]
"""Of a state: ``trials`` and ``nodes`` by name, each with its changed members (null: it is gone), ``waiting`` and ``free``, and the rest as it is."""

INDEXED = frozenset(
    {"trials", "active", "counts", "rungs", "waiting", "free", "health", "touched", "plan", "slots", "nodes"}
)
"""Members of a state that follow from others, that an opening says, or that have a form of their own."""

MEMBERS = tuple(name for name in State.__struct_fields__ if name not in INDEXED)
"""Those that are written as they are."""


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
    changed = ((name, getattr(after, name)) for name in MEMBERS if getattr(before, name) != getattr(after, name))
    return {name: part for name, part in parts.items() if part} | {name: _plain(value) for name, value in changed}


def whole_state(event: Opened, state: State) -> Changes:
    """The changes that make this state of the empty one: what was decided before is no more needed."""
    touched: Touched = None
    for number in state.trials:
        touched = (number, touched)
    return {"whole": True, **changes_between(State(), event, replace(state, touched=touched))}


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


def _plain(value: Any) -> Any:
    """A value as JSON has it; infinite numbers as words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
