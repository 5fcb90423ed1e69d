"""When a campaign ends if it goes on as so far."""

from dataclasses import dataclass

from hydragnn.hpo.scheduling.scheduler import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """When the campaign ends if it goes on as so far."""

    seconds: float
    by: str
    """``finished`` where all trials will be done, else the budget that ends it before."""


def seconds_left(state: State, seconds: float) -> float | None:
    """A forecast: epochs that the rungs will ask for, at the pace of campaign so far; None before the first result."""
    done = sum(trial.epochs for trial in state.trials.values())
    if not done or not state.plan.rungs:
        return None
    before, total, reaching = 0, 0.0, float(state.plan.trials)
    for rung in state.plan.rungs:
        total += reaching * (rung - before)
        floor = min(state.plan.finalists, state.plan.trials)
        before, reaching = rung, max(reaching / state.plan.reduction, float(floor))
    return max(0.0, (total - done) * seconds / done)


def forecast(state: State, now: float) -> Forecast | None:
    """The end at the pace so far, or the budget that comes before it; None before the first result and after the end."""
    left = seconds_left(state, state.elapsed(now))
    if left is None or state.closed:
        return None
    until = state.ends - now
    return (
        Forecast(seconds=max(0.0, until), by=state.ends_by) if until < left else Forecast(seconds=left, by="finished")
    )
