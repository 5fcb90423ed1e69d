"""Next work for free slots: which trials, on how many slots.

In order: trials that wait, trials that a rung lets through (highest rung first), new trials, finalists. Nothing starts that
could not save its first epoch before the budgets end, and on a machine in trouble only what tries whether it works again.
Where sizes may differ, a trial starts on as many slots as let all unfinished trials end together.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Action, Cancel, Propose, Start, node_of
from hydragnn.hpo.scheduling.sizing import Load, common_ending, fewest_slots, loss
from hydragnn.hpo.scheduling.state import CommonEnd, State, Trial, remaining, segment, speed_of
from hydragnn.hpo.scheduling.trouble import num_startable

LOOK = 64  # most trials that start too late and are passed over in search for one that does not

CROWD = 128
"""Beyond so many unfinished trials, the common ending is found anew only when their number has changed by a tenth."""

LATE = 15.0
"""Seconds that an attempt needs at least once its expected end has passed; more when it is later than that, as much as it is late."""

LEAVING = 30.0  # seconds that an attempt loses besides its start where it saves itself to go on elsewhere
PAUSE = 0.01  # seconds per running attempt between two looks for one that should have more slots
WORTH = 3.0  # factor by which an attempt must gain more from more slots than it loses by moving


def fill_slots(state: State, now: float) -> tuple[list[Action], bool]:
    """Start what free slots allow; True where time is too short."""
    room = min(len(state.free) // state.least, num_startable(state, now)) - state.asked
    if room <= 0:
        return [], False
    together = state.most > state.least and pending(state) * state.least <= len(state.free) + sum(probing_slots(state))
    if together and state.asked:
        return [], False  # sizes are decided when all configurations are known
    selection: list[Trial] = []
    actions: list[Action] = []
    late = 0
    for number in untried_first(state) if state.trouble.since < math.inf else ready_trials(state):
        if len(selection) + len(actions) >= room or late >= LOOK:
            break
        trial = Trial(number=len(state.trials)) if number is None else state.trials[number]
        if not in_time(state, trial, state.most if together else state.least, now):
            late += 1
        elif number is None:
            state.put_trial(trial)
            state.set(asked=state.asked + 1)
            actions.append(Propose(trial=trial.number))
        else:
            selection.append(trial)
    if together and state.asked:
        return actions, False
    if together:
        launches = start_balanced(state, selection, now)
        if not selection and state.trouble.since == math.inf:
            launches = enlarge_attempt(state, now)
        late += bool(selection) and not launches
        return [*actions, *launches], late > 0 and not probing_slots(state)
    for trial in sorted(selection, key=lambda trial: -(segment(state, trial) or 0.0)):
        actions.append(start_attempt(state, trial, state.least, now))
    return actions, late > 0


def ready_trials(state: State) -> Iterator[int | None]:
    """Yield the trials that can go on; None: a new one."""
    below = state.rungs[-2::-1]
    counts = promotable_counts(state)[::-1]
    new = _num_unasked(state)
    short = state.plan.finalists - state.count("finished", "running", "waiting", "asked") - sum(counts) - new
    yield from state.waiting
    for rung, count in zip(below, counts):
        yield from (number for _, number in islice(rung.paused, count))
    yield from (None for _ in range(new))
    for rung, count in zip(below, counts):
        for _, number in rung.paused[count : count + max(0, short)]:
            short -= 1
            yield number


def promotable_counts(state: State) -> list[int]:
    """Return how many resting trials every rung but the last lets through."""
    return [rung.promotable(state.plan.reduction) for rung in state.rungs[:-1]]


def untried_first(state: State) -> Iterator[int | None]:
    """Yield ready trials; those that met the outage are last."""
    tried = {number for number in state.waiting if state.trials[number].trouble == state.trouble.number}
    yield from (number for number in ready_trials(state) if number not in tried)
    yield from (number for number in state.waiting if number in tried)


def pending(state: State) -> int:
    """Return how many trials could start if slots were enough."""
    promotable = sum(promotable_counts(state))
    new = _num_unasked(state) + state.asked
    short = state.plan.finalists - state.count("finished", "running", "waiting") - promotable - new
    resting = sum(len(rung.paused) for rung in state.rungs[:-1]) - promotable
    return len(state.waiting) + promotable + new + max(0, min(short, resting))


def _num_unasked(state: State) -> int:
    return 0 if state.exhausted else max(0, state.plan.trials - len(state.trials))


def start_attempt(state: State, trial: Trial, size: int, now: float) -> Start:
    """Start the next attempt of a trial on the first free slots."""
    slots = _take_slots(state, trial, size)
    trial = replace(
        trial,
        status="running",
        attempt=trial.attempt + 1,
        slots=slots,
        begun=trial.begun or now,
        started=now,
        turn=state.starts,
        shown=(),
        slow=0,
        identity=None,
        cancelled="",
    )
    state.put_trial(trial)
    if trial.number in state.waiting:
        state.put_waiting(number for number in state.waiting if number != trial.number)
    due = state.due if state.plan.timeout is None else min(state.due, now + state.plan.timeout)
    state.set(due=due, starts=state.starts + 1)
    return Start(
        trial=trial.number,
        attempt=trial.attempt,
        until=state.plan.rungs[len(trial.results)],
        slots=slots,
        micro_batches=trial.micro_batches,
    )


def in_time(state: State, trial: Trial, slots: int, now: float) -> bool:
    """Return True where a trial can save an epoch before the end."""
    if state.ends == math.inf:
        return True
    work = state.work.value if trial.work is None else trial.work
    return now + state.startup.value + Load(work, trial.scaling).on(slots) <= state.ends - state.plan.grace


def start_balanced(state: State, trials: list[Trial], now: float) -> list[Action]:
    """Start trials on as many slots as let all end together."""
    work = _known_work(state, trials)
    _aim(state, trials, work, now)
    loads = {trial.number: remaining(state, trial, work) for trial in trials}
    actions: list[Action] = []
    others = len(trials)
    for trial in sorted(trials, key=lambda trial: (-loads[trial.number].seconds, trial.number)):
        others -= 1
        target_size = fewest_slots(loads[trial.number], state.target.time - now, state.least, state.most)
        size = min(target_size, len(state.free) - others * state.least)
        if size >= state.least and in_time(state, trial, size, now):
            actions.append(start_attempt(state, trial, size, now))
    return actions


def enlarge_attempt(state: State, now: float) -> list[Action]:
    """Move the attempt that gains most to more slots.

    For the time when nothing is left to start but what runs will run for long. One at a time, and only where the idle slots
    do much more work up to the end of the segment than the move costs.
    """
    if not state.active or len(state.free) < state.least or now < state.looked + len(state.active) * PAUSE:
        return []
    running = state.running
    state.set(looked=now)
    if any(trial.cancelled for trial in running):
        return []
    work = _known_work(state, running)
    _aim(state, [], work, now)
    gain, trial = max(((_gain(state, trial, work, now), trial) for trial in running), key=lambda pair: pair[0])
    if gain <= 0:
        return []
    state.put_trial(replace(trial, cancelled="more slots"))
    return [Cancel(trial=trial.number, attempt=trial.attempt, reason="more slots")]


def _take_slots(state: State, trial: Trial, size: int) -> tuple[str, ...]:
    """Take free slots; a retry prefers those of nodes without strikes."""
    if not trial.faults and not state.plan.sizes:
        return state.free.take(size)
    slots = list(state.free)
    if trial.faults:
        sound = [slot for slot in slots if node_of(slot) not in state.health]
        slots = sound if len(sound) >= size else slots
    selection = _alike(state, slots, size)
    state.free.remove(selection)
    return selection


def _alike(state: State, slots: Iterable[str], size: int) -> tuple[str, ...]:
    """Return the first slots, or the fastest of one size."""
    if not state.plan.sizes:
        return tuple(islice(slots, size))
    by_speed: dict[float, list[str]] = {}
    for slot in slots:
        by_speed.setdefault(state.plan.sizes.get(node_of(slot), 1.0), []).append(slot)
    fastest = [some for _, some in sorted(by_speed.items(), reverse=True)]
    alike = next((some for some in fastest if len(some) >= size), list(chain.from_iterable(fastest)))
    return tuple(alike[:size])


def _gain(state: State, trial: Trial, work: float, now: float) -> float:
    """Return the slot-seconds that a move to idle slots wins."""
    slots, cost = len(trial.slots), state.startup.value + LEAVING
    target_size = fewest_slots(_load_left(state, trial, work, now), state.target.time - now, state.least, state.most)
    more = min(target_size, slots + len(state.free)) - slots
    return more * (_segment_end(state, trial, work, now) - now - cost) - WORTH * slots * cost


def _aim(state: State, trials: list[Trial], work: float, now: float) -> None:
    """Set the time in which slots can do all remaining work."""
    unfinished, slots = len(state.active) + len(trials), state.healthy + sum(probing_slots(state))
    if unfinished > CROWD and now < state.target.time < math.inf and state.target.serves(unfinished, slots):
        return
    loads = [remaining(state, trial, work) for trial in trials]
    loads += [_load_left(state, trial, work, now) for trial in state.running]
    time = now + common_ending(loads, slots, state.least, state.most)
    state.set(target=CommonEnd(time, unfinished, slots))


def probing_slots(state: State) -> list[int]:
    """The slots of every node that is being probed."""
    return [len(node.held) for node in state.health.values() if node.status == "probing"]


def _known_work(state: State, trials: list[Trial]) -> float:
    """Return the assumed seconds per epoch of trials without an estimate."""
    if state.work.count:
        return state.work.value
    estimates = [trial.work for trial in trials if trial.work is not None]
    return sum(estimates) / len(estimates) if estimates else 1.0


def _segment_time(state: State, trial: Trial, work: float) -> float:
    """Return the expected seconds of a trial from start to rung."""
    until = state.plan.rungs[min(len(trial.results), len(state.plan.rungs) - 1)]
    epoch = (work if trial.work is None else trial.work) / speed_of(state.plan, trial.slots)
    epoch *= loss(len(trial.slots), trial.scaling)
    return state.startup.value + epoch * max(0, until - trial.epochs)


def _segment_end(state: State, trial: Trial, work: float, now: float) -> float:
    """Return when a running trial should reach its next rung."""
    end = trial.started + _segment_time(state, trial, work)
    if len(trial.shown) > 1 and trial.shown[0][1] < trial.shown[-1][1]:
        (first, begun), (last, epochs) = trial.shown[0], trial.shown[-1]
        rest = max(0.0, state.plan.rungs[len(trial.results)] - epochs)
        end = last + rest * (last - first) / (epochs - begun)
    return end if end > now else max(now + min(LATE, now - trial.started), 2 * now - end)


def _load_left(state: State, trial: Trial, work: float, now: float) -> Load:
    """Return the remaining load of a running trial."""
    load = remaining(state, trial, work)
    speed = speed_of(state.plan, trial.slots) / loss(len(trial.slots), trial.scaling)
    whole = (_segment_time(state, trial, work) - state.startup.value) * speed
    part = max(0.0, _segment_end(state, trial, work, now) - max(now, trial.started + state.startup.value)) * speed
    return Load(load.seconds - whole + part, trial.scaling)
