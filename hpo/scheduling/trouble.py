"""Outages of the machine: faults on many nodes at once.

News about a node (a named suspect, a probe) is in ``health.py``. What nobody can explain, and came to nothing, is news about
its trial and its nodes as long as others get through, and about the machine where others do not: starts have numbers, and
half of those in a row that fail on different nodes are no accident. Attempts that live end a trouble, and probes, which say so sooner, where they failed in it.
"""

import math

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import MACHINE_FAULTS, Failed, node_of
from hydragnn.hpo.scheduling.state import State, Trial, Trouble, VainAttempt

TOGETHER = 8
"""So many attempts in vain, among twice as many that were started in a row, are a fault of the machine; fewer where not so many run at once."""

CHANCE = 0.01
"""So many trials expected to meet as many faults in a row by chance say that one that does is nothing special."""

LAST_STRAW = 2
"""The same where a trial would be given up, and was never excused."""

PAUSE = 30.0
"""Seconds without a start after a fault of the machine; then one attempt after the other tries it again, ``TOGETHER`` of them at most at a time."""

LONGEST = 1200.0
"""Seconds of trouble after which all may start again; twice as long each time that this shows nothing. Before the first success: the end of hope."""


def note_failure(state: State, trial: Trial, event: Failed, now: float) -> bool:
    """Note a failed attempt; True where an outage is to blame."""
    outage = state.trouble
    if event.kind not in MACHINE_FAULTS:
        note_life(state, trial)
        return False
    if outage.since < math.inf and trial.turn >= outage.first:
        state.set(trouble=replace(outage, vain=outage.vain + 1))
    if not _is_in_vain(state, trial, event):
        return False
    if outage.since == math.inf:
        _note_vain_attempt(state, trial, now)
    return state.trouble.since < math.inf


def _is_in_vain(state: State, trial: Trial, event: Failed) -> bool:
    """Return True for an unexplained failure without progress."""
    unexplained = event.kind in ("launch", "lost_node") and not event.suspects and not trial.cancelled
    return unexplained and event.epochs <= trial.epochs and _num_together(state) > 1


def _note_vain_attempt(state: State, trial: Trial, now: float) -> None:
    """Note an unexplained failure; too many begin an outage."""
    node, count = node_of(trial.slots[0]), _num_together(state)
    others = (one for one in state.trouble.latest if one.trial != trial.number and one.node != node)
    seconds = max(0.0, now - trial.started)
    attempt = VainAttempt(trial=trial.number, attempt=trial.attempt, turn=trial.turn, node=node, seconds=seconds)
    latest = (*others, attempt)[-count:]
    state.set(trouble=replace(state.trouble, latest=latest))
    last_straw = trial.faults >= state.plan.retries and not trial.trouble
    enough = LAST_STRAW if last_straw else count
    turns = [one.turn for one in latest[-enough:]]
    if len(turns) == enough and max(turns) - min(turns) < 2 * enough:
        begin_trouble(state, now)


def begin_trouble(state: State, now: float) -> None:
    """Begin an outage, and take the latest faults and strikes back."""
    outage = state.trouble
    number = outage.number + 1
    for one in outage.latest:
        fault = (one.trial, one.attempt)
        for name in sorted(state.health.together.get(fault, ())):
            node = state.health[name]
            strikes = tuple(strike for strike in node.strikes if strike.fault != fault)
            state.put_node(name, replace(node, strikes=strikes))
        trial = state.trials[one.trial]
        if trial.status in ("waiting", "running"):
            faults = trial.faults if trial.trouble else max(0, trial.faults - 1)
            state.put_trial(replace(trial, trouble=number, faults=faults))
    proof = PAUSE + 2 * min((one.seconds for one in outage.latest), default=0.0)
    _pause(state, Trouble(number=number, since=now, spells=outage.spells + 1, first=state.starts, proof=proof), now)


def excused_trial(state: State, trial: Trial) -> Trial:
    """Return the trial after a fault during an outage.

    The first outage since it gained an epoch costs nothing, later ones one retry each, never the last.
    """
    counts = trial.trouble not in (0, state.trouble.number)
    faults = min(state.plan.retries, trial.faults + 1) if counts else trial.faults
    return replace(trial, trouble=state.trouble.number, faults=faults)


def is_bad_luck(state: State, trial: Trial) -> bool:
    """Return True where chance explains a trial's faults in a row.

    Then more than ``CHANCE`` trials of the campaign are expected to meet as many. Where most attempts are disturbed, or the
    trial has three times its retries, luck is no reason.
    """
    faults = trial.faults + 1
    share = max(0, state.disturbed - trial.faults) / max(1, state.starts - faults)
    return share <= 0.5 and state.plan.trials * share**faults > CHANCE and faults <= 3 * state.plan.retries


def note_life(state: State, trial: Trial) -> None:
    """End the outage where an attempt that began after it shows progress."""
    if state.trouble.spells and trial.turn >= state.trouble.first:
        _end(state, 0)


def note_probe(state: State, healthy: bool) -> None:
    """End the outage once enough probes failed and then succeeded."""
    outage, enough = state.trouble, _num_together(state)
    if outage.since == math.inf:
        return
    if outage.sick < enough:
        state.set(trouble=replace(outage, sick=0 if healthy else outage.sick + 1))
        return
    well = outage.well + 1 if healthy else 0
    if 2 * well >= enough:
        _end(state, 0)
    else:
        state.set(trouble=replace(outage, well=well))


def follow_trouble(state: State, now: float) -> None:
    """End the outage by the clock.

    An attempt lasted long enough, or the longest time is over.
    """
    outage = state.trouble
    if outage.since == math.inf:
        return
    trying = (trial for trial in state.running if trial.turn >= outage.first)
    if any(now - trial.started >= outage.proof for trial in trying):
        _end(state, 0)
    elif state.succeeded and now >= outage.since + LONGEST * 2.0 ** (outage.spells - 1):
        _end(state, outage.spells)


def is_beyond_hope(state: State, now: float) -> bool:
    """Return True where nothing ever worked and the outage is too long."""
    return not state.succeeded and now >= state.trouble.since + LONGEST


def num_startable(state: State, now: float) -> int:
    """Return how many attempts may start now."""
    outage = state.trouble
    if outage.since == math.inf:
        return len(state.slots)
    trying = state.starts - outage.first - outage.vain
    return 0 if now < outage.until or trying >= _num_together(state) else 1


def note_try(state: State, now: float) -> None:
    """Note a start during an outage, and schedule the next."""
    failing = (state.trouble.proof - PAUSE) / 2
    _pause(state, state.trouble, now, (PAUSE + failing) / _num_together(state))


def next_look(state: State, now: float) -> float:
    """Return when the clock alone changes something about an outage."""
    if state.trouble.since == math.inf:
        return math.inf
    return state.trouble.until if now < state.trouble.until else now + PAUSE


def _num_together(state: State) -> int:
    """Return how many unexplained failures make an outage."""
    return min(TOGETHER, len(state.nodes), len(state.slots) // state.least)


def _pause(state: State, outage: Trouble, now: float, seconds: float = PAUSE) -> None:
    outage = replace(outage, until=now + seconds)
    state.set(trouble=outage, due=min(state.due, outage.until))


def _end(state: State, spells: int) -> None:
    outage = state.trouble
    state.set(trouble=Trouble(number=outage.number, spells=spells, first=outage.first))
