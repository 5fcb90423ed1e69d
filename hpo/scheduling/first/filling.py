"""Free slots get their next work: who is ready, the longest first, on how many slots, and what may jump the line.

In order: trials that wait, trials that a rung lets through (highest rung first), new trials, finalists. Nothing starts that
could not save its first epoch before the budgets end.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Action, Propose
from hydragnn.hpo.scheduling.first.balance import enlarge_attempt, in_time, probing_slots, start_attempt, start_balanced
from hydragnn.hpo.scheduling.state import State, Trial, segment, with_trial

LOOK = 64
"""So many trials that start too late are passed over in search for one that does not."""


def fill_slots(state: State, now: float) -> tuple[State, list[Action], bool]:
    """The state after every slot that can be used is; and whether something was left only because time is short."""
    room = len(state.free) // state.least - state.asked
    if room <= 0:
        return state, [], False
    together = state.most > state.least and pending(state) * state.least <= len(state.free) + sum(probing_slots(state))
    if together and state.asked:
        return state, [], False  # sizes are decided when all configurations are known
    selection: list[Trial] = []
    actions: list[Action] = []
    late = 0
    for number in ready_trials(state):
        if len(selection) + len(actions) >= room or late >= LOOK:
            break
        trial = Trial(number=len(state.trials)) if number is None else state.trials[number]
        if not in_time(state, trial, state.most if together else state.least, now):
            late += 1
        elif number is None:
            state = replace(with_trial(state, trial), asked=state.asked + 1)
            actions.append(Propose(trial=trial.number))
        else:
            selection.append(trial)
    if together and state.asked:
        return state, actions, False
    if together:
        state, launches = start_balanced(state, selection, now)
        if not selection:
            state, launches = enlarge_attempt(state, now)
        late += bool(selection) and not launches
        return state, [*actions, *launches], late > 0 and not probing_slots(state)
    for trial in sorted(selection, key=lambda trial: -(segment(state, trial) or 0.0)):
        state, start = start_attempt(state, trial, state.least, now)
        actions.append(start)
    return state, actions, late > 0


def ready_trials(state: State) -> Iterator[int | None]:
    """The trials that can go on, in the order of their rights; None for a new one."""
    yield from state.waiting
    below = state.rungs[-2::-1]
    promotable = [rung.promotable(state.plan.reduction) for rung in below]
    for rung, count in zip(below, promotable):
        yield from (number for _, number in rung.paused[:count])
    new = _num_unasked(state)
    yield from (None for _ in range(new))
    short = state.plan.finalists - state.count("finished", "running", "waiting", "asked") - sum(promotable) - new
    for rung, count in zip(below, promotable):
        for _, number in rung.paused[count : count + max(0, short)]:
            short -= 1
            yield number


def pending(state: State) -> int:
    """How many trials could start if there were slots enough, those still to be proposed included."""
    promotable = sum(rung.promotable(state.plan.reduction) for rung in state.rungs[:-1])
    new = _num_unasked(state) + state.asked
    short = state.plan.finalists - state.count("finished", "running", "waiting") - promotable - new
    resting = sum(len(rung.paused) for rung in state.rungs[:-1]) - promotable
    return len(state.waiting) + promotable + new + max(0, min(short, resting))


def _num_unasked(state: State) -> int:
    return 0 if state.exhausted else max(0, state.plan.trials - len(state.trials))
