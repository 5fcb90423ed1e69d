"""On how many slots a trial starts: as many as let all unfinished trials end together, and what may jump the line meanwhile."""

import math
from dataclasses import dataclass

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Action, Cancel, Start
from hydragnn.hpo.scheduling.first.sizing import common_ending, fewest_slots, loss
from hydragnn.hpo.scheduling.sizing import Load
from hydragnn.hpo.scheduling.state import State, Target, Trial, remaining, with_trial, without_entry

CROWD = 128
"""Beyond so many unfinished trials, the common ending is found anew only when their number has changed by a tenth, and nobody waits."""

LATE = 15.0
"""Seconds that an attempt needs at least once its expected end has passed; more when it is later than that, as much as it is late."""

SOON = 30.0
"""Seconds after which the slots of nodes that are being probed are expected back."""

LEAVING = 30.0
"""Seconds that an attempt loses besides its start where it saves itself to go on elsewhere."""

PAUSE = 0.01
"""Seconds per running attempt between two looks for one that should have more slots."""

WORTH = 3.0
"""So many times what an attempt loses by moving to more slots must be won by it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots that the first in line will get."""

    time: float
    """When enough of them are expected to be free."""
    spare: int
    """Slots that will then be free besides."""


def start_attempt(state: State, trial: Trial, size: int, now: float) -> tuple[State, Start]:
    """The state in which a trial that was ready has its next attempt on the first free slots."""
    slots, free = state.free.take(size)
    if trial.status == "paused":
        state = without_entry(state, trial)
    trial = replace(
        trial,
        status="running",
        attempt=trial.attempt + 1,
        slots=slots,
        begun=trial.begun or now,
        started=now,
        turn=state.starts,
        shown=(),
        identity=None,
        cancelled="",
    )
    waiting = state.waiting
    if trial.number in waiting:
        at = waiting.index(trial.number)
        waiting = waiting[:at] + waiting[at + 1 :]
    due = state.due if state.plan.timeout is None else min(state.due, now + state.plan.timeout)
    start = Start(
        trial=trial.number,
        attempt=trial.attempt,
        until=state.plan.rungs[len(trial.results)],
        slots=slots,
        micro_batches=trial.micro_batches,
    )
    return replace(with_trial(state, trial), free=free, waiting=waiting, due=due, starts=state.starts + 1), start


def in_time(state: State, trial: Trial, slots: int, now: float) -> bool:
    """Return True where a trial that starts now is expected to save its first epoch before the budgets end; what is not known takes no time."""
    if state.ends == math.inf or state.simple:
        return True
    work = state.work.value if trial.work is None else trial.work
    epoch = work / slots * loss(slots, trial.scaling)
    return now + state.startup.value + epoch <= state.ends - state.plan.grace


def start_balanced(state: State, trials: list[Trial], now: float) -> tuple[State, list[Action]]:
    """Start trials on as many slots each as let all unfinished ones end together.

    One whose slots are not free yet starts on those that are, unless it ends its segment sooner by waiting; then the
    slots that it waits for are lent only to those that give them back in time.
    """
    work = _known_work(state, trials)
    state = _with_target(state, trials, work, now)
    loads = {trial.number: remaining(state, trial, work) for trial in trials}
    actions: list[Action] = []
    reservation: Reservation | None = None
    others = len(trials)
    for trial in sorted(trials, key=lambda trial: (-loads[trial.number].seconds, trial.number)):
        others -= 1
        target_size = fewest_slots(loads[trial.number], state.target.time - now, state.least, state.most)
        size = min(target_size, len(state.free) - others * state.least)
        if size < state.least or not in_time(state, trial, size, now):
            continue
        end = now + _segment_time(state, trial, size, work)
        if reservation is not None and end > reservation.time:
            size = min(size, reservation.spare)
            if size < state.least:
                continue
            reservation = Reservation(reservation.time, reservation.spare - size)
        elif reservation is None and size < target_size:
            reservation = _worth_waiting(state, trial, target_size, end, work, now)
            if reservation is not None:
                continue
        state, start = start_attempt(state, trial, size, now)
        actions.append(start)
    return state, actions


def enlarge_attempt(state: State, now: float) -> tuple[State, list[Action]]:
    """Let the attempt that gains most from idle slots save itself, so that it goes on with more of them.

    For the time when nothing is left to start but what runs will run for long. One at a time, and only where the idle slots
    do much more work up to the end of the segment than the move costs.
    """
    if not state.active or len(state.free) < state.least or now < state.looked + len(state.active) * PAUSE:
        return state, []
    running = state.running
    state = replace(state, looked=now)
    if any(trial.cancelled for trial in running):
        return state, []
    work = _known_work(state, running)
    state = _with_target(state, [], work, now)
    gain, trial = max(((_gain(state, trial, work, now), trial) for trial in running), key=lambda pair: pair[0])
    if gain <= 0:
        return state, []
    state = with_trial(state, replace(trial, cancelled="more slots"))
    return state, [Cancel(trial=trial.number, attempt=trial.attempt, reason="more slots")]


def _gain(state: State, trial: Trial, work: float, now: float) -> float:
    """Slot-seconds that a running trial wins by going on with idle slots, less what the move costs several times over."""
    slots, cost = len(trial.slots), state.startup.value + LEAVING
    target_size = fewest_slots(_load_left(state, trial, work, now), state.target.time - now, state.least, state.most)
    more = min(target_size, slots + len(state.free)) - slots
    return more * (_segment_end(state, trial, work, now) - now - cost) - WORTH * slots * cost


def _with_target(state: State, trials: list[Trial], work: float, now: float) -> State:
    """The state with a target that serves: the smallest time in which the slots do all that is left."""
    unfinished, slots = len(state.active) + len(trials), state.healthy + sum(probing_slots(state))
    if unfinished > CROWD and now < state.target.time < math.inf and state.target.serves(unfinished, slots):
        return state
    loads = [remaining(state, trial, work) for trial in trials]
    loads += [_load_left(state, trial, work, now) for trial in state.running]
    time = now + common_ending(loads, slots, state.least, state.most)
    return replace(state, target=Target(time, unfinished, slots))


def _worth_waiting(state: State, trial: Trial, slots: int, end: float, work: float, now: float) -> Reservation | None:
    """The reservation with which a trial ends its segment soonest, before ``end``; None where none does.

    Nobody waits for longer than a move costs: it is better to start now and to move later.
    """
    if len(state.active) > CROWD:
        return None
    free, best = len(state.free), None
    latest = now + max(SOON, state.startup.value + LEAVING)
    ends = [(_segment_end(state, other, work, now), len(other.slots)) for other in state.running]
    ends += [(now + SOON, count) for count in probing_slots(state)]
    for time, count in sorted(ends):
        free += count
        size = min(free, slots)
        expected = time + _segment_time(state, trial, size, work)
        if time > latest:
            break
        if expected < end:
            best, end = Reservation(time, free - size), expected
    return best


def probing_slots(state: State) -> list[int]:
    """The slots of every node that is being probed."""
    return [len(node.held) for node in state.health.values() if node.status == "probing"]


def _known_work(state: State, trials: list[Trial]) -> float:
    """Seconds per epoch for trials of which nothing is known: the mean of the others, else a unit."""
    if state.work.count:
        return state.work.value
    known = [trial.work for trial in trials if trial.work is not None]
    return sum(known) / len(known) if known else 1.0


def _segment_time(state: State, trial: Trial, slots: int, work: float) -> float:
    """Expected seconds from a start to the next rung."""
    until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
    epoch = (work if trial.work is None else trial.work) / slots * loss(slots, trial.scaling)
    return state.startup.value + epoch * max(0, until - trial.epochs)


def _segment_end(state: State, trial: Trial, work: float, now: float) -> float:
    """When a running trial is expected to reach its next rung, by its own pace where it has shown one; a late one gets as late again."""
    end = trial.started + _segment_time(state, trial, len(trial.slots), work)
    if len(trial.shown) > 1 and trial.shown[0][1] < trial.shown[1][1]:
        (first, begun), (last, epochs) = trial.shown
        left = max(0.0, state.plan.rungs[len(trial.results)] - epochs)
        end = last + left * (last - first) / (epochs - begun)
    return end if end > now else max(now + min(LATE, now - trial.started), 2 * now - end)


def _load_left(state: State, trial: Trial, work: float, now: float) -> Load:
    """What is left of a running trial, its progress judged by the clock."""
    load, slots = remaining(state, trial, work), len(trial.slots)
    speed = slots / loss(slots, trial.scaling)
    whole = (_segment_time(state, trial, slots, work) - state.startup.value) * speed
    part = max(0.0, _segment_end(state, trial, work, now) - max(now, trial.started + state.startup.value)) * speed
    return Load(load.seconds - whole + part, trial.scaling)
