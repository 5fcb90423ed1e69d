"""Who trains next, and how far: a pure state machine with asynchronous successive halving.

``step(state, event, now) -> (state, actions)`` reads no clock, file or random number, so that a journal of events gives
back the state, and a simulator can drive the same decisions on a virtual clock. Rungs follow Li et al. 2020
(arXiv:1810.05934, algorithm 2): a free place goes to the best trial that a rung lets through, else to a new trial.
"""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hydragnn.hpo.events import (
    Action,
    Cancel,
    Close,
    Ending,
    Event,
    Exhausted,
    Failed,
    Launched,
    Opened,
    Origin,
    Plan,
    Propose,
    Proposed,
    Reached,
    Settle,
    Start,
    Stopping,
    Tick,
)
from hydragnn.record import Failure, FailureKind

MACHINE_FAULTS: frozenset[FailureKind] = frozenset({"lost_node", "launch", "preempted"})
"""Faults that say nothing about the configuration: retried, never told to the sampler."""

HOPELESS = 5
"""So many failures before the first success end the campaign: the fault is in what all trials share."""

TrialStatus = Literal["asked", "waiting", "running", "paused", "finished", "failed", "lost"]
Rung = tuple[tuple[float, int], ...]
"""(value, trial) of every trial that reached the rung, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One configuration on its way through the rungs."""

    number: int
    status: TrialStatus = "asked"
    values: dict[str, Any] = field(default_factory=dict)
    origin: Origin = "sampler"
    results: tuple[float, ...] = ()
    """The objective at every rung passed."""
    epochs: int = 0
    seconds: float = 0.0
    attempt: int = 0
    faults: int = 0
    failure: Failure | None = None
    places: tuple[str, ...] = ()
    begun: float = 0.0
    """When the first attempt started."""
    started: float = 0.0
    """When the latest attempt started."""
    identity: dict[str, Any] | None = None
    cancelled: str = ""

    @property
    def value(self) -> float | None:
        """The objective at the last rung passed; None before the first."""
        return self.results[-1] if self.results else None


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The whole campaign; made by ``step`` only."""

    plan: Plan = field(default_factory=lambda: Plan(trials=0, rungs=(1,)))
    places: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    trials: Mapping[int, Trial] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    waiting: tuple[int, ...] = ()
    asked: int = 0
    """Proposals that are still to come."""
    exhausted: bool = False
    succeeded: bool = False
    failures: int = 0
    """Failures since the campaign was opened, while nothing has succeeded yet."""
    ending: Ending | None = None
    """Why nothing more is started; the campaign is over once ``closed``."""
    closed: bool = False
    opened: float = 0.0
    last: float = 0.0
    spent: float = 0.0
    """Seconds under earlier controllers."""

    @property
    def running(self) -> list[Trial]:
        """Trials that are being trained."""
        return [trial for trial in self.trials.values() if trial.status == "running"]

    @property
    def best(self) -> Trial | None:
        """The trial with the lowest objective at the last rung it passed; None before the first result."""
        values = [(trial.results[-1], trial.number) for trial in self.trials.values() if trial.results]
        return self.trials[min(values)[1]] if values else None

    def elapsed(self, now: float) -> float:
        """Seconds of campaign up to now, pauses between controllers left out."""
        return self.spent + max(0.0, now - self.opened)


def step(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The state after an event, and what is to be done about it; an event that no longer matters changes nothing."""
    if state.closed and not isinstance(event, Opened):
        return state, ()
    match event:
        case Opened():
            after, actions = _opened(state, event, now)
        case Proposed() | Exhausted():
            after, actions = _answered(state, event)
        case Launched():
            after, actions = _launched(state, event)
        case Reached():
            after, actions = _reached(state, event)
        case Failed():
            after, actions = _failed(state, event)
        case Stopping():
            after, actions = _stop(state, "stopped", event.reason)
        case Tick():
            after, actions = _overdue(state, now)
    if after is state and not actions and not _out_of_time(state, now):
        return state, ()
    if not isinstance(event, Tick):
        after = replace(after, last=max(now, after.last))
    after, more = _fill(after, now)
    return after, (*actions, *more)


def _opened(state: State, event: Opened, now: float) -> tuple[State, list[Action]]:
    """Take over from an earlier controller: what ran waits for a new attempt, open requests are made again."""
    lost = [trial.number for trial in state.running]
    trials = {
        number: replace(trial, status="waiting", places=(), cancelled="") if trial.status == "running" else trial
        for number, trial in state.trials.items()
    }
    asked: list[Action] = [Propose(trial=t.number) for t in trials.values() if t.status == "asked"]
    after = replace(
        state,
        plan=event.plan,
        places=event.places,
        free=event.places,
        trials=trials,
        rungs=state.rungs or ((),) * len(event.plan.rungs),
        waiting=(*sorted({*lost, *state.waiting}),),
        failures=0,
        ending=None,
        closed=False,
        opened=now,
        last=now,
        spent=state.spent + max(0.0, state.last - state.opened),
    )
    return after, asked


def _answered(state: State, event: Proposed | Exhausted) -> tuple[State, list[Action]]:
    trial = state.trials.get(event.trial)
    if trial is None or trial.status != "asked":
        return state, []
    trials = dict(state.trials)
    if isinstance(event, Exhausted):
        del trials[event.trial]
        return replace(state, trials=trials, asked=state.asked - 1, exhausted=True), []
    trials[event.trial] = replace(trial, status="waiting", values=event.values, origin=event.origin)
    return replace(state, trials=trials, asked=state.asked - 1, waiting=(*state.waiting, event.trial)), []


def _launched(state: State, event: Launched) -> tuple[State, list[Action]]:
    trial = _current(state, event.trial, event.attempt)
    return (state, []) if trial is None else (_with(state, replace(trial, identity=event.identity)), [])


def _reached(state: State, event: Reached) -> tuple[State, list[Action]]:
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return state, []
    rung = len(trial.results)
    over = event.over or rung == len(state.plan.rungs) - 1
    after = _vacate(
        state,
        replace(
            trial,
            status="finished" if over else "paused",
            results=(*trial.results, event.value),
            epochs=event.epochs,
            seconds=event.seconds,
            failure=None,
        ),
    )
    reached = list(after.rungs[rung])
    insort(reached, (event.value, event.trial))
    rungs = (*after.rungs[:rung], tuple(reached), *after.rungs[rung + 1 :])
    after = replace(after, rungs=rungs, succeeded=True)
    return after, [Settle(trial=event.trial, outcome="finished")] if over else []


def _failed(state: State, event: Failed) -> tuple[State, list[Action]]:
    """A machine fault is retried, a cancelled attempt waits for the next controller, the rest is the trial's own."""
    trial = _current(state, event.trial, event.attempt)
    if trial is None:
        return state, []
    kind: FailureKind = "timeout" if trial.cancelled == "timeout" else event.kind
    trial = replace(trial, failure=Failure(kind=kind, message=event.message))
    if kind in MACHINE_FAULTS:
        stopped = bool(trial.cancelled)
        if stopped or trial.faults < state.plan.retries:
            again = replace(trial, status="waiting", faults=trial.faults + (not stopped))
            after = _vacate(state, again)
            return replace(after, waiting=tuple(sorted((*after.waiting, trial.number)))), []
        after = _vacate(state, replace(trial, status="lost"))
        return after, [Settle(trial=trial.number, outcome="lost")]
    after = _vacate(state, replace(trial, status="failed"))
    settle = Settle(trial=trial.number, outcome="failed")
    if after.succeeded or after.failures + 1 < HOPELESS:
        return replace(after, failures=after.failures + (not after.succeeded)), [settle]
    after, cancels = _stop(replace(after, failures=after.failures + 1), "hopeless", "every trial fails")
    return after, [settle, *cancels]


def _stop(state: State, ending: Ending, reason: str) -> tuple[State, list[Action]]:
    """Start nothing more and let everything that runs save itself."""
    if state.ending in ("stopped", "hopeless"):
        return state, []
    trials = dict(state.trials)
    cancels: list[Action] = []
    for trial in state.running:
        trials[trial.number] = replace(trial, cancelled=trial.cancelled or reason)
        cancels.append(Cancel(trial=trial.number, attempt=trial.attempt, reason=reason))
    return replace(state, ending=ending, trials=trials), cancels


def _overdue(state: State, now: float) -> tuple[State, list[Action]]:
    """Cancel attempts that run longer than a segment may."""
    limit = state.plan.timeout
    if limit is None:
        return state, []
    late = [t for t in state.running if not t.cancelled and now - t.started > limit]
    if not late:
        return state, []
    trials = {**state.trials, **{t.number: replace(t, cancelled="timeout") for t in late}}
    cancels: list[Action] = [Cancel(trial=t.number, attempt=t.attempt, reason="timeout") for t in late]
    return replace(state, trials=trials), cancels


def _fill(state: State, now: float) -> tuple[State, list[Action]]:
    """Give every free place its next work; close the campaign where nothing runs and nothing is left to do."""
    actions: list[Action] = []
    if state.ending is None and _out_of_time(state, now):
        state = replace(state, ending="hours")
    while state.ending is None and len(state.free) > state.asked:
        number = state.waiting[0] if state.waiting else _promotable(state)
        if number is None and not state.exhausted and len(state.trials) < state.plan.trials:
            number = len(state.trials)
            state = replace(_with(state, Trial(number=number)), asked=state.asked + 1)
            actions.append(Propose(trial=number))
            continue
        number = _finalist(state) if number is None else number
        if number is None:
            break
        state, start = _started(state, number, now)
        actions.append(start)
    if len(state.free) == len(state.places) and (state.ending is not None or not (state.asked or state.waiting)):
        ending: Ending = state.ending or "finished"
        state = replace(state, ending=ending, closed=True)
        actions += _settled(state) if ending == "finished" else []
        actions.append(Close(ending=ending))
    return state, actions


def _settled(state: State) -> list[Action]:
    paused = (trial.number for trial in state.trials.values() if trial.status == "paused")
    return [Settle(trial=number, outcome="pruned") for number in paused]


def _promotable(state: State) -> int | None:
    """The best trial that a rung lets through and that has not gone on yet, highest rung first."""
    for level, rung in _below_the_top(state):
        for _, number in rung[: len(rung) // state.plan.reduction]:
            if _rests_at(state.trials[number], level):
                return number
    return None


def _finalist(state: State) -> int | None:
    """The best paused trial of the highest rung, where fewer than ``finalists`` trials finished or are on their way."""
    ahead = sum(trial.status in ("finished", "running", "waiting", "asked") for trial in state.trials.values())
    if ahead >= state.plan.finalists:
        return None
    for level, rung in _below_the_top(state):
        for _, number in rung:
            if _rests_at(state.trials[number], level):
                return number
    return None


def _below_the_top(state: State) -> list[tuple[int, Rung]]:
    """The rungs from which trials can go on, highest first."""
    return list(enumerate(state.rungs[:-1]))[::-1]


def _rests_at(trial: Trial, level: int) -> bool:
    return trial.status == "paused" and len(trial.results) == level + 1


def _started(state: State, number: int, now: float) -> tuple[State, Start]:
    trial = state.trials[number]
    places, free = state.free[:1], state.free[1:]
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
    waiting = tuple(other for other in state.waiting if other != number)
    start = Start(trial=number, attempt=trial.attempt, until=state.plan.rungs[len(trial.results)], places=places)
    return replace(_with(state, trial), free=free, waiting=waiting), start


def _vacate(state: State, trial: Trial) -> State:
    """The state in which a trial that was running gave its places back, and became ``trial``."""
    after = _with(state, replace(trial, places=(), identity=None))
    return replace(after, free=(*state.free, *trial.places))


def _with(state: State, trial: Trial) -> State:
    return replace(state, trials={**state.trials, trial.number: trial})


def _current(state: State, number: int, attempt: int) -> Trial | None:
    """The running trial that an event speaks of; None for an attempt that is no longer the valid one."""
    trial = state.trials.get(number)
    return trial if trial is not None and trial.status == "running" and trial.attempt == attempt else None


def _out_of_time(state: State, now: float) -> bool:
    limit = state.plan.max_seconds
    return limit is not None and state.ending is None and state.elapsed(now) >= limit
