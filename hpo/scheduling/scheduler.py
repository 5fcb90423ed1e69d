"""Decisions: a pure state machine of events, changes and actions.

``decide`` reads no clock, file or random number, so that a simulator can drive the same decisions on a virtual clock. Free
slots go to trials that wait, then to the best trials that a rung lets through, then to new trials.
"""

import math
from typing import NamedTuple

from msgspec.structs import replace

from hydragnn.hpo.scheduling import events, health, trouble
from hydragnn.hpo.scheduling.events import MACHINE_FAULTS, Action, Cancel, Ending, Event, Plan, Propose, Settle
from hydragnn.hpo.scheduling.filling import fill_slots, pending
from hydragnn.hpo.scheduling.sizing import loss
from hydragnn.hpo.scheduling.slowness import REASON, move_if_slow
from hydragnn.hpo.scheduling.state import Changes, State, Trial, Trouble, line_up, put_in_line, put_result, speed_of
from hydragnn.record import Failure, FailureKind

HOPELESS = 5
"""Trials that fail by themselves before the first success and end the campaign, with as many as still run: the fault is in what all share."""

MOST_PARTS = 16  # a batch is computed in so many parts at most; a trial that runs out of memory even so has failed
PULSE = 60.0  # seconds after which the passing of time is written down, so that a kill forgets no more of the budget

REASONS: dict[Ending, str] = {
    "hours": "max_hours is used up",
    "node_hours": "max_node_hours is used up",
    "walltime": "the allocation ends",
}


class Decision(NamedTuple):
    """The answer to an event."""

    changes: Changes | None = None
    """Changes of the campaign as plain JSON; None where the event changed nothing and is not for the journal."""
    actions: tuple[Action, ...] = ()


def decide(state: State, event: Event, now: float) -> Decision:
    """Change the campaign by an event; return the changes and actions."""
    if state.closed and not isinstance(event, events.Opened):
        state.ended = ()
        return Decision()
    state.begin(event)
    actions = _dispatch(state, event, now)
    if not state.changed and not actions and not (state.ending is None and _time_is_up(state, now)):
        return Decision()
    state.set(last=max(now, state.last))
    actions += _fill_or_close(state, now)
    return Decision(state.changes(), tuple(actions))


def _dispatch(state: State, event: Event, now: float) -> list[Action]:
    match event:
        case events.Opened():
            return _on_opened(state, event, now)
        case events.Proposed() | events.Exhausted():
            _on_proposal(state, event)
        case events.Launched():
            if (trial := _current(state, event)) is not None:
                state.put_trial(replace(trial, identity=event.identity))
        case events.Progressed():
            return _on_progress(state, event, now)
        case events.Reached():
            return _on_reached(state, event, now)
        case events.Failed():
            return _on_failed(state, event, now)
        case events.Probed():
            health.apply_probe(state, event, now)
            return _stop_if_hopeless(state, now)
        case events.Stopping():
            return _stop(state, event.ending, event.reason)
        case events.Tick():
            return _on_tick(state, now)
    return []


def _on_opened(state: State, event: events.Opened, now: float) -> list[Action]:
    """Take over: running trials wait, open requests are made again."""
    lost = [replace(trial, status="waiting", slots=(), cancelled="") for trial in state.running]
    asked = sorted(number for number, trial in state.trials.items() if trial.status == "asked") if state.asked else []
    last = state.last  # of a controller that was killed, the next line would have come within a pulse
    if not state.closed and state.slots:
        last = max(last, min(now, last + PULSE))
    earlier = max(0.0, last - state.session_start)
    spent, spent_node = state.spent + earlier, state.spent_node + earlier * len(state.nodes)
    state.open(event.plan, event.slots)
    ends, ends_by = _budgets_end(event, len(state.nodes), now, spent, spent_node)
    state.set(
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
        state.put_trial(trial)
    line_up(state, (*state.waiting, *(trial.number for trial in lost)))
    return [*health.reopen_nodes(state, now), *(Propose(trial=number) for number in asked)]


def _budgets_end(event: events.Opened, nodes: int, now: float, spent: float, spent_node: float) -> tuple[float, Ending]:
    """Return when the first budget is used up, and which it is."""
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
    return now >= state.ends - state.plan.grace


def _on_proposal(state: State, event: events.Proposed | events.Exhausted) -> None:
    trial = state.trials.get(event.trial)
    if trial is None or trial.status != "asked":
        return
    state.set(asked=state.asked - 1)
    if isinstance(event, events.Exhausted):
        state.drop_trial(event.trial)
        state.set(exhausted=True)
        return
    trial = replace(
        trial, status="waiting", values=event.values, origin=event.origin, work=event.work, scaling=event.scaling
    )
    put_in_line(state, trial)


def _on_progress(state: State, event: events.Progressed, now: float) -> list[Action]:
    """Note the first and the two latest signs of progress."""
    trial = _current(state, event)
    if trial is None or trial.cancelled:
        return []
    trial = replace(trial, shown=(*trial.shown[:1], *trial.shown[1:][-1:], (now, event.epochs)))
    state.put_trial(trial)
    trouble.note_life(state, trial)
    return move_if_slow(state, trial)


def _on_reached(state: State, event: events.Reached, now: float) -> list[Action]:
    trial = _current(state, event)
    if trial is None:
        return []
    over = event.over or len(trial.results) == len(state.plan.rungs) - 1
    trouble.note_life(state, trial)
    slots, trial = trial.slots, _with_measurement(state, trial, event, now)
    trial = replace(
        trial,
        status="finished" if over else "paused",
        results=(*trial.results, event.value),
        others=(*trial.others, event.others) if event.others else (),
        epochs=event.epochs,
        passed=event.epochs,
        seconds=event.seconds,
        memory_mb=event.memory_mb or trial.memory_mb,
        speed=trial.speed or event.speed,
        faults=0,
        moved=0,
        trouble=0,
        failure=None,
        slots=(),
        identity=None,
    )
    put_result(state, trial)
    health.clear_strikes(state, slots)
    health.release_slots(state, slots)
    state.set(succeeded=True)
    return [Settle(trial=event.trial, outcome="finished")] if over else []


def _with_measurement(state: State, trial: Trial, event: events.Reached, now: float) -> Trial:
    """Return the trial with its measured seconds per epoch."""
    seconds, epochs, slots = event.seconds - trial.seconds, event.epochs - trial.passed, len(trial.slots)
    undisturbed = trial.epochs == trial.passed
    if seconds <= 0 or epochs <= 0 or not (undisturbed or trial.work is None):  # the parts can have had other sizes
        return trial
    work = seconds / epochs * speed_of(state.plan, trial.slots) / loss(slots, trial.scaling)
    if undisturbed:
        state.set(startup=state.startup.with_value(max(0.0, now - trial.started - seconds)))
    state.set(work=state.work.with_value(work))
    return replace(trial, work=work, measured=True)


def _on_failed(state: State, event: events.Failed, now: float) -> list[Action]:
    """Retry after machine faults; settle the trial's own failures.

    A fault with suspects counts against them, an unexplained one against the machine where others fail as well, and else
    against all nodes of the attempt and the trial.
    """
    trial = _current(state, event)
    if trial is None:
        return []
    kind: FailureKind = "timeout" if trial.cancelled == "timeout" else event.kind
    slots = trial.slots
    actions: list[Action] = []
    in_trouble = trouble.note_failure(state, trial, event, now)
    is_slow = trial.cancelled == REASON
    if (event.kind in ("lost_node", "launch") and not in_trouble) or is_slow:
        actions = health.add_strikes(state, trial, event.suspects, now, slow=is_slow)
    gained = event.epochs > trial.epochs
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
    actions += _settle_failure(state, trial, kind, in_trouble)
    health.release_slots(state, slots)
    return [*actions, *_stop_if_hopeless(state, now)]


def _settle_failure(state: State, trial: Trial, kind: FailureKind, in_trouble: bool) -> list[Action]:
    """Let a trial wait again, or give it up."""
    stopped = bool(trial.cancelled)
    if in_trouble:
        put_in_line(state, replace(trial, trouble=state.trouble.number))
    elif kind in MACHINE_FAULTS and (stopped or trial.faults < state.plan.retries):
        put_in_line(state, replace(trial, faults=trial.faults + (not stopped)))
    elif (
        kind == "out_of_memory" and trial.micro_batches < MOST_PARTS and "parallel.micro_batches" not in trial.values
    ):  # where parts are searched, it is a result
        put_in_line(state, replace(trial, micro_batches=2 * trial.micro_batches))
    else:
        lost = kind in MACHINE_FAULTS
        put_result(state, replace(trial, status="lost" if lost else "failed"))
        state.set(failures=state.failures + (not state.succeeded))
        return [Settle(trial=trial.number, outcome="lost" if lost else "failed")]
    return []


def _stop_if_hopeless(state: State, now: float) -> list[Action]:
    """End a campaign without a success in which too much has failed.

    That all of several nodes are out speaks against the machine, whose outages pass.
    """
    if state.succeeded or state.ending is not None:
        return []
    if state.failures >= max(HOPELESS, len(state.active)):
        return _stop(state, "hopeless", "every trial fails")
    if (health.all_out(state) and len(state.nodes) == 1) or trouble.is_too_long(state, now):
        return _stop(state, "hopeless", "no node works")
    if health.all_out(state) and state.trouble.since == math.inf:
        trouble.begin_trouble(state, now)
    return []


def _stop(state: State, ending: Ending, reason: str) -> list[Action]:
    """Start nothing more and let everything that runs save itself."""
    if state.ending is not None:
        return []
    running = state.running
    for trial in running:
        state.put_trial(replace(trial, cancelled=trial.cancelled or reason))
    state.set(ending=ending)
    return [Cancel(trial=trial.number, attempt=trial.attempt, reason=reason) for trial in running]


def _on_tick(state: State, now: float) -> list[Action]:
    """Cancel late attempts, probe nodes and write the pulse."""
    actions: list[Action] = []
    if now >= state.due:
        actions += _cancel_overdue(state, now)
        if state.succeeded and trouble.is_too_long(state, now):
            trouble.end_trouble(state)
        actions += health.revisit_nodes(state, now)
        state.set(due=_next_due(state, now))
        actions += _stop_if_hopeless(state, now)
    if now - state.last >= PULSE:
        state.set(last=now)
    return actions


def _cancel_overdue(state: State, now: float) -> list[Action]:
    """Cancel attempts that run longer than a segment may."""
    limit = math.inf if state.plan.timeout is None else state.plan.timeout
    late = [trial for trial in state.running if not trial.cancelled and trial.started + limit <= now]
    for trial in late:
        state.put_trial(replace(trial, cancelled="timeout"))
    return [Cancel(trial=trial.number, attempt=trial.attempt, reason="timeout") for trial in late]


def _next_due(state: State, now: float) -> float:
    visits = (node.until for node in state.health.values() if node.status != "pool")
    visit, limit = min([trouble.next_look(state, now), *visits]), state.plan.timeout
    begun = (trial.started for trial in state.running if not trial.cancelled)
    return visit if limit is None else min(visit, min(begun, default=math.inf) + limit)


def _fill_or_close(state: State, now: float) -> list[Action]:
    """Fill free slots; close the campaign where nothing is left."""
    actions: list[Action] = []
    late = False
    if state.ending is None and _time_is_up(state, now):
        actions = _stop(state, state.ends_by, REASONS[state.ends_by])
    if state.ending is None:
        actions, late = fill_slots(state, now)
    if state.active:
        return actions
    if state.ending is None and late and not state.asked:
        state.set(ending=state.ends_by)
    if state.ending is None and pending(state):
        return actions
    ending: Ending = state.ending or "finished"
    state.set(ending=ending, closed=True)
    if ending == "finished":
        paused = sorted(number for rung in state.rungs for _, number in rung.paused)
        actions += [Settle(trial=number, outcome="pruned") for number in paused]
    return actions


def _current(state: State, event: events.Launched | events.Progressed | events.Reached | events.Failed) -> Trial | None:
    """Return the running trial of an event; None for an old attempt."""
    return state.trials[event.trial] if state.active.get(event.trial) == event.attempt else None
