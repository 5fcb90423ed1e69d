"""The search as a whole: a loop that feeds what happens to the scheduler and does what the scheduler asks for.

Every event is on disk before its consequences happen, so that the journal gives the campaign back after any kill.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.config import RunConfig
from hydragnn.errors import InputError
from hydragnn.files import write_atomically, write_json
from hydragnn.hpo.door import check_campaign, check_folder, plan_of, write_settings
from hydragnn.hpo.events import (
    Cancel,
    Close,
    Ending,
    Event,
    Exhausted,
    Failed,
    Launched,
    Opened,
    Plan,
    Propose,
    Proposed,
    Settle,
    Start,
    Stopping,
    Tick,
)
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import Journal, replayed
from hydragnn.hpo.launcher import Launcher, Task, verdict
from hydragnn.hpo.local import LocalLauncher
from hydragnn.hpo.mirror import NAME as MIRROR
from hydragnn.hpo.mirror import Mirror
from hydragnn.hpo.sampler import proposal
from hydragnn.hpo.scheduler import State, step
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space import Point, Space, space_of, trial_config

HEARTBEAT = 0.5  # seconds between looks at the clock while nothing happens
ROOM = 1 << 20  # bytes that must still fit on the disk after a failure
GRACE = 7.0  # seconds that a cancelled attempt gets to save itself

ENDINGS: dict[Ending, str] = {
    "finished": "all trials done",
    "hours": "max_hours spent",
    "stopped": "interrupted",
    "hopeless": "every trial failed",
}

OnEvent = Callable[[State, Event, float], None]
"""Called with the new state, the event and the seconds of campaign after every event, ticks included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignResult:
    """How a search ended."""

    folder: Path
    ending: Ending
    """finished, hours (budget spent), or stopped (interrupted; continue with resume)."""
    trials: int
    finished: int
    failed: int
    best_trial: int | None
    best_value: float | None
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The result as a plain table, for the command line and for machines."""
        ending = ENDINGS[self.ending]
        return {
            "campaign": str(self.folder),
            "ending": f"{ending}; continue with --resume" if self.ending in ("stopped", "hours") else ending,
            "trials": self.trials,
            "trained to the end": self.finished,
            "failed": self.failed,
            "best trial": self.best_trial,
            "best objective": self.best_value,
            "seconds": self.seconds,
        }


def run_search(
    settings: CampaignSettings,
    out: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    launcher: Launcher | None = None,
    on_event: OnEvent | None = None,
) -> CampaignResult:
    """Search in folder ``out`` until the budget is spent, or continue there; returns early on SIGINT and SIGTERM.

    InputError for anything wrong with the settings, for a folder in use, and where every trial fails. With ``resume``, a
    folder without a campaign is begun, and one whose campaign is complete gives its result.
    """
    space = space_of(settings.search.space, settings.source)
    check_campaign(settings, space)
    enqueued = check_folder(settings, space, out, resume=resume)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out / JOURNAL))
        write_settings(settings, enqueued, out)
        places = launcher or LocalLauncher(workers or settings.search.workers)
        stack.callback(places.close)
        controller = Controller(settings, space, out, journal, places, enqueued, on_event)
        with signals(controller.stop):
            return controller.run(plan_of(settings))


class Controller:
    """The one process that decides; everything it knows is in the journal."""

    def __init__(
        self,
        settings: CampaignSettings,
        space: Space,
        out: Path,
        journal: Journal,
        launcher: Launcher,
        enqueued: list[Point],
        on_event: OnEvent | None,
    ) -> None:
        self._settings, self._space, self._out = settings, space, out
        self._journal, self._launcher, self._enqueued, self._on_event = journal, launcher, enqueued, on_event
        self._configs: dict[int, RunConfig] = {}
        self._stop_reason: str | None = None
        self._clock = steady_clock()
        self.state = replayed(out / JOURNAL)
        self._mirror = Mirror(out / MIRROR, space, self.state)

    def stop(self, reason: str) -> None:
        """Ask the loop to leave; safe to call from a signal handler."""
        self._stop_reason = reason

    def run(self, plan: Plan) -> CampaignResult:
        """Work until the scheduler closes the campaign."""
        self._launcher.recover(trial.identity for trial in self.state.running if trial.identity)
        self.feed(Opened(plan=plan, places=self._launcher.places))
        while not self.state.closed:
            for end in self._launcher.poll(HEARTBEAT):
                outcome = verdict(end, self._config(end.task.trial).hash, self._settings.search.objective)
                if isinstance(outcome, Failed):
                    check_disk(end.task.folder)
                self.feed(outcome)
            leaving = self._stop_reason is not None and self.state.ending not in ("stopped", "hopeless")
            self.feed(Stopping(reason=self._stop_reason or "") if leaving else Tick())
        return result_of(self.state, self._out, self._settings.source, self._clock())

    def feed(self, event: Event) -> None:
        """Let an event happen: decide, write it down, act."""
        now = self._clock()
        state, actions = step(self.state, event, now)
        if state is not self.state or actions:
            self._journal.append(event, now)
            self.state = state
            self._mirror.follow(state, event, actions)
        if self._on_event is not None:
            self._on_event(state, event, state.elapsed(now))
        for action in actions:
            match action:
                case Propose():
                    self.feed(self._answer(action.trial))
                case Start():
                    self._start(action)
                case Cancel():
                    self._launcher.cancel(action.trial, GRACE)
                case Settle() | Close():
                    pass  # for those who keep statistics

    def _answer(self, number: int) -> Event:
        """The configuration of a new trial: the best of earlier campaigns first, then what the sampler says."""
        if number < len(self._enqueued):
            return Proposed(trial=number, values=self._enqueued[number], origin="warm start")
        if self.state.exhausted:
            return Exhausted(trial=number)
        point = proposal(self._settings, self._space, self.state, number)
        return Exhausted(trial=number) if point is None else Proposed(trial=number, values=point)

    def _start(self, action: Start) -> None:
        folder = trial_folder(self._out, action.trial)
        write_json(folder / "config.json", self._config(action.trial).to_json())
        task = Task(trial=action.trial, attempt=action.attempt, until=action.until, folder=folder, places=action.places)

        def announce(identity: dict[str, Any]) -> None:
            self.feed(Launched(trial=task.trial, attempt=task.attempt, identity=identity))

        self._launcher.start(task, announce)

    def _config(self, number: int) -> RunConfig:
        if number not in self._configs:
            values = self.state.trials[number].values
            self._configs[number] = trial_config(self._settings, self._space, values, number)
        return self._configs[number]


def trial_folder(out: Path, number: int) -> Path:
    """Where trial ``number`` of a campaign has its run.

    >>> trial_folder(Path("c"), 7).as_posix()
    'c/trials/0007'
    """
    return out / "trials" / f"{number:04d}"


def check_disk(folder: Path) -> None:
    """InputError where nothing can be written: a trial that fails for want of space has not failed, it waits for a resume."""
    try:
        write_atomically(folder / ".room", b"\0" * ROOM)
    except InputError as error:
        raise InputError(f"{error}; then continue with --resume") from error
    (folder / ".room").unlink(missing_ok=True)


def result_of(state: State, out: Path, source: str, now: float) -> CampaignResult:
    """The summary of a closed campaign; InputError where trials failed and none succeeded."""
    failures = [trial for trial in state.trials.values() if trial.failure and trial.status in ("failed", "lost")]
    best = state.best
    if best is None and failures and state.ending in ("finished", "hopeless"):
        first = failures[0]
        assert first.failure is not None
        raise InputError(
            f"{source}: all {len(failures)} trials failed; trial {first.number}: {first.failure.kind}: "
            f"{first.failure.message} (log: {trial_folder(out, first.number) / 'log.txt'})"
        )
    return CampaignResult(
        folder=out,
        ending=state.ending or "stopped",
        trials=len(state.trials),
        finished=sum(trial.status == "finished" for trial in state.trials.values()),
        failed=len(failures),
        best_trial=None if best is None else best.number,
        best_value=None if best is None else best.value,
        seconds=state.elapsed(now),
    )


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never jump while the controller lives, whatever happens to the machine's clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


@contextmanager
def signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into ``stop``; elsewhere than in the main thread, signals are not ours to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _: stop(signal.Signals(number).name)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before):
            signal.signal(kind, handler)
