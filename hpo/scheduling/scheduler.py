"""Who trains next, where, and how far: a pure state machine with asynchronous successive halving.

``transition(state, event, now) -> (state, actions)`` reads no clock, file or random number, so that a journal of events gives
back the state, and a simulator can drive the same decisions on a virtual clock. Rungs follow Li et al. 2020
(arXiv:1810.05934, algorithm 2): free slots go to the best trials that a rung lets through, else to new trials.
"""

import math

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import (
    MACHINE_FAULTS,
    Action,
    Cancel,
    Close,
    Ending,
    Event,
    Exhausted,
    Failed,
    Launched,
    Opened,
    Plan,
    Probed,
    Progressed,
    Propose,
    Proposed,
    Reached,
    Settle,
    Stopping,
    Tick,
)
from hydragnn.hpo.scheduling.filling import fill_slots, pending
from hydragnn.hpo.scheduling.health import (
    add_strikes,
    all_out,
    apply_probe,
    clear_strikes,
    next_visit,
    release_slots,
    reopen_nodes,
    revisit_nodes,
)
from hydragnn.hpo.scheduling.node_health import Node, NodeStatus
from hydragnn.hpo.scheduling.sizing import loss
from hydragnn.hpo.scheduling.slowness import REASON, move_if_slow
from hydragnn.hpo.scheduling.state import (
    Rung,
    State,
    Trial,
    TrialStatus,
    Trouble,
    in_line,
    nodes_of,
    speed_of,
    with_entry,
    with_trial,
    with_waiting,
    without_trial,
)
from hydragnn.hpo.scheduling.trouble import (
    begin_trouble,
    excused_trial,
    follow_trouble,
    is_bad_luck,
    is_beyond_hope,
    next_look,
    note_failure,
    note_life,
    note_probe,
)
from hydragnn.record import Failure, FailureKind

__all__ = ["HOPELESS", "MACHINE_FAULTS", "Node", "NodeStatus", "Rung", "State", "Trial", "TrialStatus", "transition"]

HOPELESS = 5
"""So many trials that come to nothing by themselves before the first success, and as many as still run, end the campaign: the fault is in what all share."""

MOST_PARTS = 16
"""A batch is computed in so many parts at most; a trial that runs out of memory even so has failed."""

PULSE = 60.0
"""Seconds after which the passing of time is written down, so that a kill forgets no more of the budget."""

REASONS: dict[Ending, str] = {
    "hours": "max_hours is used up",
    "node_hours": "max_node_hours is used up",
    "walltime": "the allocation ends",
}


def transition(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The state after an event, and what is to be done about it; an event that no longer matters changes nothing."""
    if state.closed and not isinstance(event, Opened):
        return state, ()
    begun = replace(state, touched=None) if state.touched else state
    after, actions = _dispatch(begun, event, now)
    if after is begun and not actions and not (state.ending is None and _time_is_up(state, now)):
        return state, ()
    after = replace(after, last=max(now, after.last))
    after, more = _fill_or_close(after, now)
    return after, (*actions, *more)


def _dispatch(state: State, event: Event, now: float) -> tuple[State, list[Action]]:
    match event:
        case Opened():
            return _on_opened(state, event, now)
        case Proposed() | Exhausted():
            return _on_proposal(state, event)
        case Launched():
            trial = _current(state, event.trial, event.attempt)
            return (state if trial is None else with_trial(state, replace(trial, identity=event.identity))), []
        case Progressed():
            return _on_progress(state, event, now)
        case Reached():
            return _on_reached(state, event, now)
        case Failed():
            return _on_failed(state, event, now)
        case Probed():
            state, actions = apply_probe(state, event, now)
            return _stop_if_hopeless(note_probe(state, event.healthy), actions, now)
        case Stopping():
            return _stop(state, event.ending, event.reason)
        case Tick():
            return _on_tick(state, now)


def _on_opened(state: State, event: Opened, now: float) -> tuple[State, list[Action]]:
    """Take over from an earlier controller: what ran waits for a new attempt, open requests are made again."""
    nodes = nodes_of(event.slots)
    lost = [replace(trial, status="waiting", slots=(), cancelled="") for trial in state.running]
    asked = sorted(number for number, trial in state.trials.items() if trial.status == "asked") if state.asked else []
    before = max(0.0, _previous_end(state, now) - state.session_start)
    spent, spent_node = state.spent + before, state.spent_node + before * len(state.nodes)
    ends, ends_by = _budgets_end(event, len(nodes), now, spent, spent_node)
    state = replace(
        state,
        plan=event.plan,
        slots=event.slots,
        nodes=nodes,
        rungs=state.rungs or (Rung(),) * len(event.plan.rungs),
        failures=0,
        trouble=Trouble(number=state.trouble.number),
        ending=None,
        closed=False,
        session_start=now,
        last=now,
        spent=spent,
        spent_node=spent_node,
        ends=ends,
        ends_by=ends_by,
        due=math.inf,
    )
    for trial in lost:
        state = with_trial(state, trial)
    state = in_line(state, (*state.waiting, *(trial.number for trial in lost)))
    state, probes = reopen_nodes(state, now)
    return state, [*probes, *(Propose(trial=number) for number in asked)]


def _previous_end(state: State, now: float) -> float:
    """When the controller before ended; one that was killed may have lived for a pulse after the last that it wrote."""
    written_to_the_end = state.closed or state.simple or not state.slots
    return state.last if written_to_the_end else max(state.last, min(now, state.last + PULSE))


def _budgets_end(event: Opened, nodes: int, now: float, spent: float, spent_node: float) -> tuple[float, Ending]:
    """When the first budget is used up, and which it is."""
    plan: Plan = event.plan
    ends: list[tuple[float, Ending]] = [(math.inf, "walltime")]
    if event.deadline is not None:
        ends.append((event.deadline, "walltime"))
    if plan.max_seconds is not None:
        ends.append((now + plan.max_seconds - spent, "hours"))
    if plan.max_node_seconds is not None and nodes:
        ends.append((now + (plan.max_node_seconds - spent_node) / nodes, "node_hours"))
    return min(ends, key=lambda end: end[0])


def _time_is_up(state: State, now: float) -> bool:
    return now >= state.ends - (0.0 if state.simple else state.plan.grace)


def _on_proposal(state: State, event: Proposed | Exhausted) -> tuple[State, list[Action]]:
    trial = state.trials.get(event.trial)
    if trial is None or trial.status != "asked":
        return state, []
    state = replace(state, asked=state.asked - 1)
    if isinstance(event, Exhausted):
        return replace(without_trial(state, event.trial), exhausted=True), []
    trial = replace(
        trial,
        status="waiting",
        values=event.values,
        origin=event.origin,
        work=event.work,
        scaling=event.scaling,
    )
    return with_waiting(state, trial), []


def _on_progress(state: State, event: Progressed, now: float) -> tuple[State, list[Action]]:
    """Remember where an attempt was first and last seen, and before; its pace lies between."""
    trial = _current(state, event.trial, event.attempt)
    if trial is None or trial.cancelled:
        return state, []
    shown = (*trial.shown[:1], *trial.shown[1:][-1:], (now, event.epochs))
    trial = replace(trial, shown=shown)
    return move_if_slow(note_life(with_trial(state, trial), trial), trial)


def _on_reached(state: State, event: Reached, now: float) -> tuple[State, list[Action]]:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return state, []
    level = len(trial.results)
    over = event.over or level == len(state.plan.rungs) - 1
    state = _with_measurement(note_life(state, trial), trial, event, now)
    slots, trial = trial.slots, state.trials[trial.number]
    trial = replace(
        trial,
        status="finished" if over else "paused",
        results=(*trial.results, event.value),
        epochs=event.epochs,
        passed=event.epochs,
        seconds=event.seconds,
        memory_mb=event.memory_mb or trial.memory_mb,
        faults=trial.faults if state.simple else 0,
        moved=0,
        trouble=0,
        failure=None,
        slots=(),
        identity=None,
    )
    state = with_entry(with_trial(state, trial), trial, level)
    state = release_slots(clear_strikes(state, slots), slots)
    return replace(state, succeeded=True), [Settle(trial=event.trial, outcome="finished")] if over else []


def _with_measurement(state: State, trial: Trial, event: Reached, now: float) -> State:
    """What a segment teaches: the trial's seconds per epoch on one slot, and how long a start takes."""
    seconds, epochs, slots = event.seconds - trial.seconds, event.epochs - trial.passed, len(trial.slots)
    undisturbed = trial.epochs == trial.passed
    if seconds <= 0 or epochs <= 0 or not (undisturbed or trial.work is None):  # the parts can have had other sizes
        return state
    work = seconds / epochs * speed_of(state.plan, trial.slots) / loss(slots, trial.scaling)
    startup = state.startup.with_value(max(0.0, now - trial.started - seconds)) if undisturbed else state.startup
    state = with_trial(state, replace(trial, work=work, measured=True))
    return replace(state, work=state.work.with_value(work), startup=startup)


def _on_failed(state: State, event: Failed, now: float) -> tuple[State, list[Action]]:
    """A machine fault is retried, a cancelled attempt waits for the next controller, the rest is the trial's own.

    What is known of a node is held against that node, what nobody can explain against the machine where others fail as well, and
    else against all nodes of the attempt and the trial.
    """
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return state, []
    kind: FailureKind = "timeout" if trial.cancelled == "timeout" else event.kind
    slots = trial.slots
    actions: list[Action] = []
    state, in_trouble = note_failure(state, trial, event, now)
    is_slow = trial.cancelled == REASON
    if (event.kind in ("lost_node", "launch") and not in_trouble) or is_slow:
        state, actions = add_strikes(state, trial, event.suspects, now, slow=is_slow)
    gained = event.epochs > trial.epochs and not state.simple
    trial = replace(
        trial,
        failure=Failure(kind=kind, message=event.message),
        epochs=event.epochs or trial.epochs,
        faults=0 if gained else trial.faults,
        trouble=0 if gained else trial.trouble,
        slots=(),
        identity=None,
        status="waiting",
    )
    state, more = _fate(state, trial, kind, in_trouble)
    state, hopeless = _stop_if_hopeless(release_slots(state, slots), [], now)
    return state, [*actions, *more, *hopeless]


def _fate(state: State, trial: Trial, kind: FailureKind, in_trouble: bool) -> tuple[State, list[Action]]:
    """What becomes of a trial whose attempt failed; ``in_trouble``: because the machine is."""
    stopped = bool(trial.cancelled)
    if in_trouble:
        return with_waiting(state, excused_trial(state, trial)), []
    if kind in MACHINE_FAULTS and (stopped or trial.faults < state.plan.retries or is_bad_luck(state, trial)):
        state = replace(state, disturbed=state.disturbed + (not stopped))
        return with_waiting(state, replace(trial, faults=trial.faults + (not stopped))), []
    if kind == "out_of_memory" and trial.micro_batches < MOST_PARTS and not state.simple:
        return with_waiting(state, replace(trial, micro_batches=2 * trial.micro_batches)), []
    lost = kind in MACHINE_FAULTS
    state = with_trial(state, replace(trial, status="lost" if lost else "failed"))
    if not state.succeeded and not (lost and state.simple):
        state = replace(state, failures=state.failures + 1)
    return state, [Settle(trial=trial.number, outcome="lost" if lost else "failed")]


def _stop_if_hopeless(state: State, actions: list[Action], now: float) -> tuple[State, list[Action]]:
    """End a campaign in which nothing ever succeeded, where too much has failed to believe that something will.

    That all of several nodes are out says something about the machine, whose troubles pass.
    """
    if state.succeeded or state.ending is not None:
        return state, actions
    cancels: list[Action] = []
    if state.failures >= max(HOPELESS, len(state.active)):
        state, cancels = _stop(state, "hopeless", "every trial fails")
    elif (all_out(state) and len(state.nodes) == 1) or is_beyond_hope(state, now):
        state, cancels = _stop(state, "hopeless", "no node works")
    elif all_out(state) and state.trouble.since == math.inf:
        state = begin_trouble(state, now)
    return state, [*actions, *cancels]


def _stop(state: State, ending: Ending, reason: str) -> tuple[State, list[Action]]:
    """Start nothing more and let everything that runs save itself."""
    if state.ending is not None:
        return state, []
    cancels: list[Action] = []
    for trial in state.running:
        state = with_trial(state, replace(trial, cancelled=trial.cancelled or reason))
        cancels.append(Cancel(trial=trial.number, attempt=trial.attempt, reason=reason))
    return replace(state, ending=ending), cancels


def _on_tick(state: State, now: float) -> tuple[State, list[Action]]:
    """What the clock alone brings about: attempts that take too long, nodes that are due, the pulse."""
    actions: list[Action] = []
    if now >= state.due:
        state, actions = _cancel_overdue(state, now)
        state, probes = revisit_nodes(follow_trouble(state, now), now)
        state, actions = _stop_if_hopeless(replace(state, due=_next_due(state, now)), [*actions, *probes], now)
    return (replace(state, last=now) if now - state.last >= PULSE else state), actions


def _cancel_overdue(state: State, now: float) -> tuple[State, list[Action]]:
    """Cancel attempts that run longer than a segment may."""
    cancels: list[Action] = []
    limit = math.inf if state.plan.timeout is None else state.plan.timeout
    for trial in state.running:
        if not trial.cancelled and trial.started + limit <= now:
            state = with_trial(state, replace(trial, cancelled="timeout"))
            cancels.append(Cancel(trial=trial.number, attempt=trial.attempt, reason="timeout"))
    return state, cancels


def _next_due(state: State, now: float) -> float:
    visit, limit = min(next_visit(state), next_look(state, now)), state.plan.timeout
    begun = (trial.started for trial in state.running if not trial.cancelled)
    return visit if limit is None else min(visit, min(begun, default=math.inf) + limit)


def _fill_or_close(state: State, now: float) -> tuple[State, list[Action]]:
    """Give every free slot its next work; close the campaign where nothing runs and nothing is left to do."""
    actions: list[Action] = []
    late = False
    if state.ending is None and _time_is_up(state, now):
        state, actions = _stop(state, state.ends_by, REASONS[state.ends_by])
    if state.ending is None:
        state, actions, late = fill_slots(state, now)
    if state.active:
        return state, actions
    if state.ending is None and late and not state.asked:
        state = replace(state, ending=state.ends_by)
    if state.ending is None and pending(state):
        return state, actions
    ending: Ending = state.ending or "finished"
    state = replace(state, ending=ending, closed=True)
    return state, [*actions, *(_settle_pruned(state) if ending == "finished" else []), Close(ending=ending)]


def _settle_pruned(state: State) -> list[Action]:
    paused = sorted(number for rung in state.rungs for _, number in rung.paused)
    return [Settle(trial=number, outcome="pruned") for number in paused]


def _current(state: State, number: int, attempt: int) -> Trial | None:
    """The running trial that an event speaks of; None for an attempt that is no longer the valid one."""
    return state.trials[number] if state.active.get(number) == attempt else None
