"""Faults that come together over nodes are one fault of the machine: no node is blamed, starts pause, and a few attempts try it again.

News about a node (a named suspect, a probe) is in ``health.py``. What nobody can explain, and came to nothing, is news about
its trial and its nodes as long as others get through, and about the machine where others do not: starts have numbers, and
half of those in a row that fail on different nodes are no accident. Attempts that live end a trouble, and probes, which say so sooner, where they failed in it.
"""

import math

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import MACHINE_FAULTS, Failed, node_of
from hydragnn.hpo.scheduling.node_health import Fault
from hydragnn.hpo.scheduling.state import State, Trial, Trouble, VainAttempt, with_node, with_trial

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


def note_failure(state: State, trial: Trial, event: Failed, now: float) -> tuple[State, bool]:
    """The state after an attempt failed, and True where that is put down to a machine in trouble, not to its nodes or its trial."""
    trouble = state.trouble
    if event.kind not in MACHINE_FAULTS:
        return note_life(state, trial), False
    tries = trouble.since < math.inf and trial.turn >= trouble.first
    trouble = replace(trouble, vain=trouble.vain + 1) if tries else trouble
    if not _is_in_vain(state, trial, event):
        return (replace(state, trouble=trouble) if tries else state), False
    if trouble.since == math.inf:
        state = _with_vain_attempt(state, trial, now)
    elif tries:
        state = replace(state, trouble=trouble)
    return state, state.trouble.since < math.inf


def _is_in_vain(state: State, trial: Trial, event: Failed) -> bool:
    """Return True where an attempt ended before it gained an epoch, and nobody can say why."""
    unexplained = event.kind in ("launch", "lost_node") and not event.suspects and not trial.cancelled
    return unexplained and event.epochs <= trial.epochs and _num_together(state) > 1


def _with_vain_attempt(state: State, trial: Trial, now: float) -> State:
    """The state after an attempt in vain, which may be one too many for a machine in order."""
    node, count = node_of(trial.slots[0]), _num_together(state)
    others = (one for one in state.trouble.latest if one.trial != trial.number and one.node != node)
    seconds = max(0.0, now - trial.started)
    attempt = VainAttempt(trial=trial.number, attempt=trial.attempt, turn=trial.turn, node=node, seconds=seconds)
    latest = (*others, attempt)[-count:]
    state = replace(state, trouble=replace(state.trouble, latest=latest))
    last_straw = trial.faults >= state.plan.retries and not trial.trouble
    enough = LAST_STRAW if last_straw else count
    turns = [one.turn for one in latest[-enough:]]
    return begin_trouble(state, now) if len(turns) == enough and max(turns) - min(turns) < 2 * enough else state


def begin_trouble(state: State, now: float) -> State:
    """The state in which the machine is in trouble: what the latest attempts in vain brought upon their trials and nodes is taken back."""
    trouble = state.trouble
    number = trouble.number + 1
    for one in trouble.latest:
        state = _without_strikes(state, (one.trial, one.attempt))
        trial = state.trials[one.trial]
        if trial.status in ("waiting", "running"):
            faults = trial.faults if trial.trouble else max(0, trial.faults - 1)
            state = with_trial(state, replace(trial, trouble=number, faults=faults))
    proof = PAUSE + 2 * min((one.seconds for one in trouble.latest), default=0.0)
    trouble = Trouble(number=number, since=now, spells=trouble.spells + 1, first=state.starts, proof=proof)
    return _with_pause(state, trouble, now)


def excused_trial(state: State, trial: Trial) -> Trial:
    """The trial after a fault of a machine in trouble: the first trouble since it gained an epoch costs nothing, later ones one retry each, never the last."""
    counts = trial.trouble not in (0, state.trouble.number)
    faults = min(state.plan.retries, trial.faults + 1) if counts else trial.faults
    return replace(trial, trouble=state.trouble.number, faults=faults)


def is_bad_luck(state: State, trial: Trial) -> bool:
    """Return True where a machine that disturbs as many attempts as this one brings so many faults in a row to more than ``CHANCE`` of the trials asked for.

    What it did to others counts. Where it disturbs most of them, or this trial three times as often as it may, luck is no reason.
    """
    faults = trial.faults + 1
    share = max(0, state.disturbed - trial.faults) / max(1, state.starts - faults)
    return share <= 0.5 and state.plan.trials * share**faults > CHANCE and faults <= 3 * state.plan.retries


def note_life(state: State, trial: Trial) -> State:
    """The state after an attempt showed that it works: one that was started since the trouble began ends it."""
    if not state.trouble.spells or trial.turn < state.trouble.first:
        return state
    return _calm(state, 0)


def note_probe(state: State, healthy: bool) -> State:
    """The state after the answer of a node's probe. As many as speak against the machine, all failed in its trouble, and half as many answered well one after the other say that it is over."""
    trouble, enough = state.trouble, _num_together(state)
    if trouble.since == math.inf:
        return state
    if trouble.sick < enough:
        return replace(state, trouble=replace(trouble, sick=0 if healthy else trouble.sick + 1))
    well = trouble.well + 1 if healthy else 0
    return _calm(state, 0) if 2 * well >= enough else replace(state, trouble=replace(trouble, well=well))


def follow_trouble(state: State, now: float) -> State:
    """The state after the clock ended the trouble: an attempt that lives long enough has proved the machine; and nothing lasts for ever."""
    trouble = state.trouble
    if trouble.since == math.inf:
        return state
    trying = (trial for trial in state.running if trial.turn >= trouble.first)
    if any(now - trial.started >= trouble.proof for trial in trying):
        return _calm(state, 0)
    if state.succeeded and now >= trouble.since + LONGEST * 2.0 ** (trouble.spells - 1):
        return _calm(state, trouble.spells)
    return state


def is_beyond_hope(state: State, now: float) -> bool:
    """Return True where nothing ever worked, and the machine has been in trouble for too long."""
    return not state.succeeded and now >= state.trouble.since + LONGEST


def num_startable(state: State, now: float) -> int:
    """How many attempts may start or run to try a machine in trouble; any number on one that is not."""
    trouble = state.trouble
    if trouble.since == math.inf:
        return len(state.slots)
    trying = state.starts - trouble.first - trouble.vain
    return 0 if now < trouble.until or trying >= _num_together(state) else 1


def note_try(state: State, now: float) -> State:
    """The state after an attempt was started that tries a machine in trouble; the next follows a while later, so that they are of all ages and one begins soon after the trouble ends.

    They are as many as if all began at once, a pause after the last had failed.
    """
    failing = (state.trouble.proof - PAUSE) / 2
    return _with_pause(state, state.trouble, now, (PAUSE + failing) / _num_together(state))


def next_look(state: State, now: float) -> float:
    """When the clock alone changes something about a trouble."""
    if state.trouble.since == math.inf:
        return math.inf
    return state.trouble.until if now < state.trouble.until else now + PAUSE


def _num_together(state: State) -> int:
    """How many attempts in vain speak against the machine; 1 where so few run at once that none does."""
    return min(TOGETHER, len(state.nodes), len(state.slots) // state.least)


def _with_pause(state: State, trouble: Trouble, now: float, seconds: float = PAUSE) -> State:
    trouble = replace(trouble, until=now + seconds)
    return replace(state, trouble=trouble, due=min(state.due, trouble.until))


def _calm(state: State, spells: int) -> State:
    trouble = state.trouble
    return replace(state, trouble=Trouble(number=trouble.number, spells=spells, first=trouble.first))


def _without_strikes(state: State, fault: Fault) -> State:
    for name in sorted(state.health.together.get(fault, ())):
        node = state.health[name]
        kept = tuple(strike for strike in node.strikes if strike.fault != fault)
        state = with_node(state, name, replace(node, strikes=kept))
    return state
