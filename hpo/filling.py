"""Free places get their next work: who is ready, the longest first, on how many places, and what may jump the line.

In order: trials that wait, trials that a rung lets through (highest rung first), new trials, finalists. Nothing starts that
could not save its first epoch before the budgets end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hydragnn.hpo.events import Action, Propose, Start
from hydragnn.hpo.sizing import Load, common_ending, fewest_places, loss
from hydragnn.hpo.state import State, Trial, remaining, segment, with_trial, without_standing
from hydragnn.hpo.values import replace

LOOK = 64
"""So many trials that start too late are passed over in search for one that does not."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places that the first in line will get."""

    time: float
    """When enough of them are expected to be free."""
    spare: int
    """Places that will then be free besides."""


def filled(state: State, now: float) -> tuple[State, list[Action], bool]:
    """The state after every place that can be used is; and whether something was left only because time is short."""
    room = len(state.free) // state.least - state.asked
    if room <= 0:
        return state, [], False
    together = state.most > state.least and pending(state) * state.least <= len(state.free)
    chosen: list[Trial] = []
    actions: list[Action] = []
    late = 0
    for number in ready(state):
        if len(chosen) + len(actions) >= room or late >= LOOK:
            break
        trial = Trial(number=len(state.trials)) if number is None else state.trials[number]
        if not in_time(state, trial, state.most if together else state.least, now):
            late += 1
        elif number is None:
            state = replace(with_trial(state, trial), asked=state.asked + 1)
            actions.append(Propose(trial=trial.number))
        else:
            chosen.append(trial)
    if together and state.asked:
        return state, actions, False  # sizes are decided when all configurations are known
    if together:
        state, starts = _balanced(state, chosen, now)
        return state, [*actions, *starts], late > 0 or (bool(chosen) and not starts)
    for trial in sorted(chosen, key=lambda trial: -(segment(state, trial) or 0.0)):
        state, start = started(state, trial, state.least, now)
        actions.append(start)
    return state, actions, late > 0


def ready(state: State) -> Iterator[int | None]:
    """The trials that can go on, in the order of their rights; None for a new one."""
    yield from state.waiting
    below = state.rungs[-2::-1]
    promotable = [rung.promotable(state.plan.reduction) for rung in below]
    for rung, count in zip(below, promotable):
        yield from (number for _, number in rung.paused[:count])
    new = _unasked(state)
    yield from (None for _ in range(new))
    short = state.plan.finalists - state.count("finished", "running", "waiting", "asked") - sum(promotable) - new
    for rung, count in zip(below, promotable):
        for _, number in rung.paused[count : count + max(0, short)]:
            short -= 1
            yield number


def pending(state: State) -> int:
    """How many trials could start if there were places enough, those still to be proposed included."""
    promotable = sum(rung.promotable(state.plan.reduction) for rung in state.rungs[:-1])
    new = _unasked(state) + state.asked
    short = state.plan.finalists - state.count("finished", "running", "waiting") - promotable - new
    resting = sum(len(rung.paused) for rung in state.rungs[:-1]) - promotable
    return len(state.waiting) + promotable + new + max(0, min(short, resting))


def in_time(state: State, trial: Trial, places: int, now: float) -> bool:
    """Whether a trial that starts now is expected to save its first epoch before the budgets end; what is not known takes no time."""
    if state.ends == math.inf or state.simple:
        return True
    work = state.work.value if trial.work is None else trial.work
    epoch = work / places * loss(places, trial.scaling)
    return now + state.startup.value + epoch <= state.ends - state.plan.grace


def started(state: State, trial: Trial, size: int, now: float) -> tuple[State, Start]:
    """The state in which a trial that was ready has its next attempt on the first free places."""
    places, free = state.free.taken(size)
    if trial.status == "paused":
        state = without_standing(state, trial)
    trial = replace(
        trial,
        status="running",
        attempt=trial.attempt + 1,
        places=places,
        begun=trial.begun or now,
        started=now,
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
        places=places,
        split=trial.split,
    )
    return replace(with_trial(state, trial), free=free, waiting=waiting, due=due), start


def _unasked(state: State) -> int:
    return 0 if state.exhausted else max(0, state.plan.trials - len(state.trials))


def _balanced(state: State, chosen: list[Trial], now: float) -> tuple[State, list[Action]]:
    """Start trials on as many places each as let all unfinished ones end together.

    One whose places are not free yet starts on those that are, unless it ends its segment sooner by waiting; then the
    places that it waits for are lent only to those that give them back in time.
    """
    work = _known_work(state, chosen)
    loads = {trial.number: remaining(state, trial, work) for trial in chosen}
    running = [_left(state, trial, work, now) for trial in state.running]
    ending = common_ending([*running, *loads.values()], state.healthy, state.least, state.most)
    chosen = sorted(chosen, key=lambda trial: (-loads[trial.number].seconds, trial.number))
    actions: list[Action] = []
    reservation: Reservation | None = None
    for after, trial in enumerate(chosen, start=1 - len(chosen)):
        wanted = fewest_places(loads[trial.number], ending, state.least, state.most)
        size = min(wanted, len(state.free) + after * state.least)
        if size < state.least or not in_time(state, trial, size, now):
            continue
        duration = _segment_time(state, trial, size, work)
        if reservation is not None and now + duration > reservation.time:
            size = min(wanted, size, reservation.spare)
            if size < state.least:
                continue
            reservation = replace(reservation, spare=reservation.spare - size)
        elif reservation is None and size < wanted:
            reservation = _worth_waiting(state, trial, wanted, now + duration, work, now)
            if reservation is not None:
                continue
        state, start = started(state, trial, size, now)
        actions.append(start)
    return state, actions


def _worth_waiting(state: State, trial: Trial, places: int, end: float, work: float, now: float) -> Reservation | None:
    """The reservation with which a trial ends its segment before ``end``; None where it does not."""
    free = len(state.free)
    ends = sorted((_segment_end(state, other, work, now), len(other.places)) for other in state.running)
    for time, count in ends:
        free += count
        if free >= places:
            sooner = time + _segment_time(state, trial, places, work) < end
            return Reservation(time, free - places) if sooner else None
    return None


def _known_work(state: State, chosen: list[Trial]) -> float:
    """Seconds per epoch for trials of which nothing is known: the mean of the others, else a unit."""
    if state.work.count:
        return state.work.value
    known = [trial.work for trial in chosen if trial.work is not None]
    return sum(known) / len(known) if known else 1.0


def _segment_time(state: State, trial: Trial, places: int, work: float) -> float:
    """Expected seconds from a start to the next rung."""
    until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
    epoch = (work if trial.work is None else trial.work) / places * loss(places, trial.scaling)
    return state.startup.value + epoch * max(0, until - trial.epochs)


def _segment_end(state: State, trial: Trial, work: float, now: float) -> float:
    """When a running trial is expected to reach its next rung; now for one that should have."""
    return max(now, trial.started + _segment_time(state, trial, len(trial.places), work))


def _left(state: State, trial: Trial, work: float, now: float) -> Load:
    """What is left of a running trial, its progress judged by the clock."""
    load = remaining(state, trial, work)
    places = len(trial.places)
    speed = places / loss(places, trial.scaling)
    until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
    part = (work if trial.work is None else trial.work) * max(0, until - trial.epochs)
    done = min(part, max(0.0, now - trial.started - state.startup.value) * speed)
    return Load(load.seconds - done, trial.scaling)
