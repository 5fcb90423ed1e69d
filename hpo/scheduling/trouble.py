"""Outages of the machine: faults on many nodes at once.

A failure that names no node and gained no epoch is news about its trial and its nodes as long as others get through. Half of the
attempts started in a row, on different nodes, are no accident: nothing starts for a pause, then a few attempts at a time try the
machine again. One of them that shows progress ends the outage, and so does ``LONGEST``.
"""

import math

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import MACHINE_FAULTS, Failed, node_of
from hydragnn.hpo.scheduling.state import State, Trial, Trouble, VainAttempt

TOGETHER = 8
"""Number of unexplained failures that, among twice as many attempts started in a row, are an outage; half of those that can run at once, where that is less."""

PAUSE = 30.0
"""Seconds without a start after each failure in an outage; then ``TOGETHER`` attempts at most run at a time."""

LONGEST = 1200.0  # seconds of an outage after which all may start again; before the first success: the end of hope


def note_failure(state: State, trial: Trial, event: Failed, now: float) -> bool:
    """Note a failed attempt; True where an outage is to blame."""
    outage = state.trouble
    if event.kind not in MACHINE_FAULTS:
        note_life(state, trial)
        return False
    explained = event.kind == "preempted" or event.suspects or trial.cancelled or event.epochs > trial.epochs
    count = _num_together(state)
    if explained or count == 1:
        return False
    if trial.turn < outage.first:
        return outage.since < math.inf
    if outage.since < math.inf:
        _pause(state, outage, now)
    else:
        node = node_of(trial.slots[0])
        others = (one for one in outage.latest if one.trial != trial.number and one.node != node)
        attempt = VainAttempt(trial=trial.number, attempt=trial.attempt, turn=trial.turn, node=node)
        latest = (*others, attempt)[-count:]
        state.set(trouble=replace(outage, latest=latest))
        if len(latest) == count and trial.turn - min(one.turn for one in latest) < 2 * count:
            begin_trouble(state, now)
    return state.trouble.since < math.inf


def begin_trouble(state: State, now: float) -> None:
    """Begin an outage, and take the latest faults and strikes back."""
    outage = state.trouble
    number = outage.number + 1
    for one in outage.latest:
        fault = (one.trial, one.attempt)
        for name in sorted(state.health.together.get(fault, ())):
            node = state.health[name]
            state.put_node(name, replace(node, strikes=tuple(s for s in node.strikes if s.fault != fault)))
        trial = state.trials[one.trial]
        if trial.status in ("waiting", "running"):
            faults = trial.faults if trial.trouble else max(0, trial.faults - 1)
            state.put_trial(replace(trial, trouble=number, faults=faults))
    _pause(state, Trouble(number=number, since=now, first=state.starts), now)


def note_life(state: State, trial: Trial) -> None:
    """End the outage where an attempt that began after it shows progress."""
    if state.trouble.since < math.inf and trial.turn >= state.trouble.first:
        end_trouble(state)


def is_too_long(state: State, now: float) -> bool:
    """Return True after the longest time of an outage."""
    return now >= state.trouble.since + LONGEST


def num_startable(state: State, now: float) -> int:
    """Return how many attempts may start now."""
    outage = state.trouble
    if outage.since == math.inf:
        return len(state.slots)
    trying = sum(state.trials[number].turn >= outage.first for number in state.active)
    return 0 if now < outage.until else max(0, _num_together(state) - trying)


def next_look(state: State, now: float) -> float:
    """Return when the clock alone changes something about an outage."""
    return min((time for time in (state.trouble.until, state.trouble.since + LONGEST) if time > now), default=math.inf)


def _num_together(state: State) -> int:
    """Return how many unexplained failures make an outage."""
    at_once = min(len(state.nodes), state.at_once)
    return min(TOGETHER, at_once, max(2, at_once // 2))


def _pause(state: State, outage: Trouble, now: float) -> None:
    state.set(trouble=replace(outage, until=now + PAUSE), due=min(state.due, now + PAUSE))


def end_trouble(state: State) -> None:
    """End an outage."""
    state.set(trouble=Trouble(number=state.trouble.number, first=state.starts))
