"""The controller: a loop of events, decisions and actions.

All events of one look are decided one after the other, written to the journal with one flush, and only then acted upon;
so the journal gives the campaign back after any kill, and a thousand nodes that report at once wait for one flush. What is
slow (proposals, folders of attempts, the Optuna study) is worked off between the looks, a little at a time.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from hydragnn.base.errors import InputError
from hydragnn.base.files import check_no_link, check_own, write_atomically, write_json, write_sealed
from hydragnn.config import AnyConfig, stored_config
from hydragnn.hpo.costs import Estimates
from hydragnn.hpo.folder import SAMPLER_LOG
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import Entry, Journal, replay, young_garbage_only
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.launching.launcher import Begun, Exit, Report, Task
from hydragnn.hpo.launching.progress import AttemptProgress
from hydragnn.hpo.launching.verdict import verdict
from hydragnn.hpo.objective import goals_of, quantity_text
from hydragnn.hpo.sampling.proposals import Proposals
from hydragnn.hpo.scheduling import events
from hydragnn.hpo.scheduling.events import Action, Cancel, Event, Plan, Probe, Propose, Settle, Start
from hydragnn.hpo.scheduling.scheduler import State, Trial, decide
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.points import Point, Space
from hydragnn.hpo.study_log import NAME as STUDY_LOG
from hydragnn.hpo.study_log import StudyLog
from hydragnn.hpo.trial_configs import trial_config
from hydragnn.runs.attempt import BEAT_SECONDS, SECONDS_BETWEEN_BEATS

HEARTBEAT = 0.5  # seconds between looks at the clock while nothing happens
LOOK = 5.0  # seconds between looks for another controller that has taken the campaign over
ROUND = 0.003  # seconds that each kind of slow work may take between two looks; an event may wait for a round of each, twice
LAST_ROUND = 3.0  # seconds for the study of a campaign that is left before its end
SAVING = 0.7  # part of the grace period that attempts get to save themselves; killing and writing take the rest
AT_ONCE = 64  # folders of attempts made ready at once
FILES = 32  # files read or written side by side, because those of a shared file system take their time
ROOM = 1 << 20  # bytes that must still fit on the disk after a failure

OnEvent = Callable[[State, Event, float], None]
"""Called with the new state, the event and the seconds of campaign after every event, ticks included."""


class Controller:
    """Runs one campaign; everything it knows is in the journal."""

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
        self._journal, self._launcher, self._on_event = journal, launcher, on_event
        self._hashes: dict[int, str] = {}
        self._stop_reason: str | None = None
        self._clock = steady_clock()
        self._next_tick = self._next_look = 0.0
        self._decisions: list[tuple[float, Event, tuple[Trial, ...]]] = []
        self._unwritten: list[Entry] = []
        self._actions: list[Action] = []
        self._estimates = Estimates(space)
        self.state = replay(out / JOURNAL, self._estimates.follow)
        self._files = ThreadPoolExecutor(FILES, "files")
        objectives = [quantity_text(goal.of) for goal in goals_of(settings.search.objective)]
        self._study_log = StudyLog(out / STUDY_LOG, space, self.state, self._files, objectives)
        log = out / SAMPLER_LOG
        self._proposals = Proposals(settings, space, enqueued, self.state, self._estimates, log, launcher.wake)
        store_copy = None if settings.job is None else settings.job.store_copy
        beats = launcher.beat_seconds
        self._launch_queue = LaunchQueue(launcher, self._config, self._files, store_copy, beats)
        self._progress = AttemptProgress(partial(trial_folder, out), self._files, beat_seconds=beats)

    def stop(self, reason: str) -> None:
        """Ask the loop to leave; safe to call from a signal handler."""
        self._stop_reason = reason

    def run(self, plan: Plan) -> State:
        """Work until the scheduler closes the campaign."""
        with ExitStack() as stack:
            stack.enter_context(young_garbage_only())
            stack.callback(self._study_log.close)
            stack.callback(self._files.shutdown, cancel_futures=True)
            stack.callback(self._proposals.close)
            identities = [trial.identity for trial in self.state.running if trial.identity]
            self._launcher.recover(self._journal.campaign, identities)
            self._take(events.Opened(plan=plan, slots=self._launcher.slots, deadline=self._launcher.deadline))
            self._commit()
            while not self.state.closed:
                proposing = self._proposals.busy and self.state.ending is None
                busy = proposing or self._launch_queue.busy or self._study_log.busy or self._decisions
                patience = 0.0 if busy else max(0.0, self._next_tick - self._clock())
                reports = self._launcher.poll(patience)
                self.handle([*self._launch_queue.withdrawals(), *reports])
                self.work()
            self._study_log.complete(self.state, math.inf if self.state.ending == "finished" else LAST_ROUND)
        return self.state

    def handle(self, reports: list[Report]) -> None:
        """Decide about reports, write the decisions down, and act."""
        for event in self._events(reports):
            self._take(event)
        if self._clock() >= self._next_tick or self._stop_reason is not None:
            self._next_tick = self._clock() + HEARTBEAT
            leaving = self._stop_reason is not None and self.state.ending is None
            self._take(events.Stopping(reason=self._stop_reason or "") if leaving else events.Tick())
        self._commit()
        for task in (report.task for report in reports if isinstance(report, Begun)):
            if self._runs(task.trial, task.attempt) and not self.state.trials[task.trial].cancelled:
                self._launcher.go(task)

    def work(self) -> None:
        """Do a little of the work that no event waits for."""
        if self._clock() >= self._next_look or self._launch_queue.busy:
            self._journal.check()  # who slept meanwhile makes nothing ready for trials that are another's now
            self._next_look = self._clock() + LOOK
        deadline = time.monotonic() + ROUND
        while self.state.ending is None and (event := self._proposals.answer(self.state, deadline)) is not None:
            self._take(event)
        for progress in self._progress.changes(self._runs):
            self._take(progress)
        self._launch_queue.work(time.monotonic() + ROUND)
        self._study_log.write(self.state, ROUND)

    def _take(self, event: Event) -> None:
        """Decide about an event; actions follow once it is on disk."""
        now = self._clock()
        changes, actions = decide(self.state, event, now)
        ended: tuple[Trial, ...] = ()
        if changes is not None:
            ended = self.state.ended
            self._unwritten.append(Entry(now, event, changes))
            self._estimates.follow(event, self.state)
        self._actions += actions
        self._decisions.append((now, event, ended))

    def _commit(self) -> None:
        """Write down what was decided, then do what follows from it."""
        decisions, self._decisions = self._decisions, []
        actions, self._actions = self._actions, []
        if self._unwritten:
            self._journal.extend(self._unwritten)
            self._unwritten = []
        for action in actions:
            self._act(action)
        state = self.state
        for now, event, ended in decisions:
            state.ended = ended
            self._study_log.follow(event)
            if state.most > state.least:  # sizes can change while trials run
                self._progress.follow(event)
            if self._on_event is not None:
                self._on_event(state, event, state.elapsed(now))

    def _act(self, action: Action) -> None:
        match action:
            case Propose():
                self._proposals.ask(action.trial)
            case Start():
                folder = trial_folder(self._out, action.trial)
                self._launch_queue.add(Task(**structs.asdict(action), folder=folder))
            case Cancel():
                if not self._launch_queue.withdraw(action.trial):
                    self._launcher.cancel(action.trial, SAVING * self.state.plan.grace)
            case Probe():
                self._launcher.probe(action.node)
            case Settle():
                self._study_log.settle(action)

    def _events(self, reports: list[Report]) -> Iterable[Event]:
        """Yield the events of reports; records are read in parallel."""
        verdicts = {
            id(report): self._files.submit(
                verdict, report, self._hash(report.task.trial), self._settings.search.objective
            )
            for report in reports
            if isinstance(report, Exit)
        }
        checked = False
        for report in reports:
            if isinstance(report, Begun):
                yield events.Launched(trial=report.task.trial, attempt=report.task.attempt, identity=report.identity)
            elif isinstance(report, Exit):
                outcome = verdicts[id(report)].result()
                if isinstance(outcome, events.Failed) and not checked:
                    check_disk(report.task.folder)
                    checked = True
                yield outcome
            else:
                yield report

    def _runs(self, trial: int, attempt: int) -> bool:
        return self.state.active.get(trial) == attempt

    def _config(self, number: int) -> AnyConfig:
        config = trial_config(self._settings, self._space, self.state.trials[number].values, number)
        self._hashes[number] = config.hash
        return config

    def _hash(self, number: int) -> str:
        return self._hashes.get(number) or self._config(number).hash


class LaunchQueue:
    """Attempts on their way to the launcher, one per trial.

    Before an attempt starts, ``attempt.json`` in its folder names it, so that an earlier attempt that was thought dead
    writes nothing any more.
    """

    def __init__(
        self,
        launcher: Launcher,
        config_of: Callable[[int], AnyConfig],
        files: Executor,
        store_copy: Path | None = None,
        beat_seconds: float = SECONDS_BETWEEN_BEATS,
    ) -> None:
        """``files`` writes folders; ``store_copy``: a copy of the store on nodes."""
        self._launcher, self._config_of, self._files = launcher, config_of, files
        self._facts: dict[str, Any] = {} if store_copy is None else {"store": str(store_copy)}
        if beat_seconds > SECONDS_BETWEEN_BEATS:
            self._facts[BEAT_SECONDS] = float(beat_seconds)
        self._waiting: dict[int, Task] = {}
        self._preparing: dict[int, tuple[Task, Future[None]]] = {}
        self._to_withdraw: set[int] = set()
        self._withdrawals: list[Exit] = []
        self._configured: set[int] = set()

    @property
    def busy(self) -> bool:
        """Return True where something can be done at once."""
        begin = bool(self._waiting) and len(self._preparing) < AT_ONCE
        return begin or bool(self._withdrawals) or any(ready.done() for _, ready in self._preparing.values())

    def add(self, task: Task) -> None:
        """Take an attempt."""
        self._waiting[task.trial] = task

    def withdraw(self, trial: int) -> bool:
        """Withdraw a trial's attempt; False where none is on its way."""
        if trial in self._waiting:
            self._end(self._waiting.pop(trial))
        elif trial in self._preparing:
            self._to_withdraw.add(trial)  # it ends once nothing of it can be written any more
        else:
            return False
        return True

    def withdrawals(self) -> list[Exit]:
        """Return the ends of attempts that were withdrawn since the last call."""
        ends, self._withdrawals = self._withdrawals, []
        return ends

    def work(self, deadline: float) -> None:
        """Prepare folders and start attempts until the deadline, at least one."""
        while self._waiting and len(self._preparing) < AT_ONCE and time.monotonic() < deadline:
            task = self._waiting.pop(next(iter(self._waiting)))
            config = None if task.trial in self._configured else self._config_of(task.trial).to_json()
            self._configured.add(task.trial)
            ready = self._files.submit(write_folder, task, config, self._facts)
            ready.add_done_callback(lambda _: self._launcher.wake())
            self._preparing[task.trial] = task, ready
        for trial, (task, ready) in list(self._preparing.items()):
            if not ready.done():
                continue
            del self._preparing[trial]
            try:
                ready.result()
            except InputError as error:
                raise InputError(f"{error}; then continue with --resume") from error
            if trial in self._to_withdraw:
                self._to_withdraw.remove(trial)
                self._end(task)
            else:
                self._launcher.start(task)
            if time.monotonic() >= deadline:
                break

    def _end(self, task: Task) -> None:
        self._withdrawals.append(Exit(task=task, code=-signal.SIGTERM))


def write_folder(task: Task, config: dict[str, Any] | None, facts: Mapping[str, Any]) -> None:
    """Write what an attempt reads first; InputError where a link leads elsewhere."""
    for place in (task.folder.parent, task.folder):
        check_no_link(place)
    for name in ("log.txt", "heartbeat"):
        check_own(task.folder / name)
    if config is not None and not _is_there(task.folder / "config.json", config):
        write_json(task.folder / "config.json", config)
    write_sealed(task.folder / "attempt.json", {"attempt": task.attempt, **facts})


def _is_there(path: Path, config: dict[str, Any]) -> bool:
    """Return True where a file has this content, perhaps in fewer keys."""
    with suppress(InputError):
        return path.is_file() and stored_config(path).to_json() == config
    return False


def trial_folder(out: Path, number: int) -> Path:
    """Return the folder of trial ``number``.

    >>> trial_folder(Path("c"), 7).as_posix()
    'c/trials/0007'
    """
    return out / "trials" / f"{number:04d}"


def check_disk(folder: Path) -> None:
    """Raise InputError where the disk is full."""
    try:
        write_atomically(folder / ".room", b"\0" * ROOM)
    except InputError as error:
        raise InputError(f"{error}; then continue with --resume") from error
    (folder / ".room").unlink(missing_ok=True)


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never jumps."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
