"""Slow attempts, and the nodes that are to blame.

An attempt is as slow as its slowest node. One that needs more than ``SLOW`` times as long as forecast saves itself and goes on elsewhere, and its nodes are probed: one whose probe takes more than ``SLOW`` times as long as that of another is kept out. Where many attempts are slow
at once, that is news about the machine, and nobody moves.
"""

from itertools import islice

from msgspec.structs import replace

from hydragnn.hpo.scheduling.events import Action, Cancel
from hydragnn.hpo.scheduling.sizing import loss
from hydragnn.hpo.scheduling.state import State, Trial, speed_of

SLOW = 2.0
"""Factor over the time before, the forecast or the time elsewhere that is slow; forecasts are off by 30 %, and stragglers take half as long again."""

WINDOW = 100.0  # seconds between two looks, at least, of which a pace is believed

LOOKS = 2
"""Looks in a row that find an attempt slow before it moves: by then others were looked at, too, if it is the machine that is slow."""

MOVES = 3  # most moves of a trial between two rungs: then its forecast was wrong
SAMPLE = 64  # other attempts that are looked at before one is moved
REASON = "slow nodes"  # why an attempt is cancelled that moves


def move_if_slow(state: State, trial: Trial) -> list[Action]:
    """Move an attempt that was slow twice, if most are not."""
    if not state.plan.moves or state.ending is not None or trial.moved >= MOVES or trial.cancelled:
        return []
    slow = trial.slow + 1 if is_slow(state, trial) else 0
    if slow != trial.slow:
        trial = replace(trial, slow=slow)
        state.put_trial(trial)
    if slow < LOOKS or _are_many_slow(state, trial):
        return []
    state.put_trial(replace(trial, cancelled=REASON, moved=trial.moved + 1))
    return [Cancel(trial=trial.number, attempt=trial.attempt, reason=REASON)]


def _are_many_slow(state: State, trial: Trial) -> bool:
    """Return True where a third of the others were slow."""
    running = (state.trials[number] for number in state.active if number != trial.number)
    others = list(islice((one for one in running if len(one.shown) > 1), SAMPLE))
    return 3 * sum(one.slow > 0 for one in others) > len(others)


def is_slow(state: State, trial: Trial) -> bool:
    """Return True where epochs took too long against earlier ones or forecasts."""
    pace = _pace(trial.shown[-2:])
    if pace is None:
        return False
    earlier = _pace(trial.shown[:2]) if len(trial.shown) > 2 else None
    if earlier is not None and pace > SLOW * earlier:
        return True
    if trial.work is None:
        return False
    return pace > SLOW * trial.work / speed_of(state.plan, trial.slots) * loss(len(trial.slots), trial.scaling)


def _pace(shown: tuple[tuple[float, float], ...]) -> float | None:
    """Return seconds per epoch between two looks, if measurable."""
    if len(shown) < 2:
        return None
    (since, first_epochs), (time, epochs) = shown
    return (time - since) / (epochs - first_epochs) if time - since >= WINDOW and epochs > first_epochs else None
