"""Attempts as job steps of an allocation, on nodes that we choose."""

import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_log
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.launching.allocation import Allocation, Node
from hydragnn.hpo.launching.attempts import Heartbeat, Witness, is_complete, seconds_between_beats, text_since
from hydragnn.hpo.launching.descriptors import readable
from hydragnn.hpo.launching.job_step import BURST, STEP_RATE, STEPS_AT_ONCE, StepProcess, TokenBucket, end_steps
from hydragnn.hpo.launching.launcher import MARK, Begun, Exit, Report, Task, importable, note_of
from hydragnn.hpo.launching.packs import MODULE
from hydragnn.hpo.launching.sites import Evidence, Site, Step
from hydragnn.hpo.launching.watchdog import AGAIN, AllocationLauncher, Probes
from hydragnn.hpo.scheduling.events import Identity

RANK = Path(__file__).with_name("rank.py")
PAUSE = 0.05  # seconds between looks at what runs; at most 90 processes are looked at
HEARTBEAT_EVERY = 2.0  # seconds between looks at a trial's heartbeat
LAST_WORDS = 15.0  # seconds that steps of an allocation that is over may take to end


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """A step and what we know of its end."""

    task: Task
    step: StepProcess
    log_from: int
    """Position in the log at which this attempt begins."""
    heartbeat: Heartbeat | None = None
    """Watched from the moment on at which the step starts."""
    begun: float = float("-inf")
    kill_at: float = float("inf")
    cancelled: bool = False
    hung: bool = False
    killed: bool = False
    """Because it hung, or because it was over and did not end."""
    lost: tuple[str, ...] = ()
    ended: float | None = None
    code: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    complete: bool = False
    """It left the record of its whole segment."""
    again_at: float | None = None
    """Time of a second start, because the scheduler did not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Patience of a launcher, and load on the scheduler."""

    at_once: int = STEPS_AT_ONCE
    rate: float = STEP_RATE
    hang_seconds: float = 600.0
    probe_seconds: float = 120.0
    """Python and torch may come from a cold file system."""


class StepLauncher(AllocationLauncher):
    """Runs ``hydragnn.runs.run`` on whole nodes of an allocation, ``ranks`` processes on each."""

    def __init__(
        self,
        site: Site,
        allocation: Allocation,
        *,
        ranks: int | None,
        limits: Limits | None = None,
        module: str = MODULE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``ranks`` on each node of a trial, None: one per GPU; ``module`` is the program."""
        super().__init__(site, allocation)
        self._ranks, self._limits, self._module = ranks, limits or Limits(), module
        self._environment = {**environment_alone(), **importable(), "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._attempts: dict[int, _Attempt] = {}
        self._witness = Witness()
        self._queue: deque[_Attempt] = deque()
        self._bucket = TokenBucket(self._limits.rate, BURST)
        self._probes = Probes(
            site, self._step_on, self._ranks_on, self._environment, self._limits.probe_seconds, self._watch
        )
        self._closed_until = float("-inf")

    @property
    def slots(self) -> tuple[str, ...]:
        """The nodes."""
        return self._allocation.names

    def size_of(self, slots: int, node: Node) -> float:
        """Return how fast a slot is; GPUs beyond ``ranks`` stay idle."""
        return float(min(node.gpus, self._ranks or node.gpus) or node.cores)

    @property
    def beat_seconds(self) -> float:
        """As rare as so many steps at once ask for."""
        return seconds_between_beats(self._runs, self._limits.hang_seconds)

    @property
    def _runs(self) -> int:
        return min(self._limits.at_once, len(self.slots))

    def recover(self, campaign: str, identities: Iterable[Identity]) -> None:
        """End the steps of a dead controller, by name and by process."""
        self._environment[MARK] = campaign
        end_steps(self._site, campaign, identities)

    def start(self, task: Task) -> None:
        """Put the step's launcher at its gate; ``poll`` reports a failure."""
        if self._revoked:
            self._reports.append(self._never_started(task, self._revoked))
            return
        try:
            with open_log(task.folder / "log.txt") as log:
                log.write(note_of(task))
                log.flush()
                log_from = log.tell()
                step = StepProcess(self._site, self._step(task), log, self._environment)
        except (OSError, InputError) as error:
            self._reports.append(self._never_started(task, f"cannot start a step: {error}"))
            return
        self._attempts[task.trial] = _Attempt(task=task, step=step, log_from=log_from)
        self._reports.append(Begun(task=task, identity=step.identity(self._allocation.job)))

    def go(self, task: Task) -> None:
        """Let the step start as soon as the limits allow."""
        attempt = self._attempts.get(task.trial)
        if attempt is not None and attempt.task == task:
            self._queue.append(attempt)
            self._open_gates()

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        """Return reports, after waiting up to ``seconds`` or for ``bell``."""
        deadline, rung = time.monotonic() + seconds, False
        while True:
            self._work()
            rest = deadline - time.monotonic()
            if self._reports or rest <= 0 or rung:
                reports, self._reports = self._reports, []
                return reports
            rung = bool(readable([] if bell is None else [bell], min(PAUSE, rest)))

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's ranks to save themselves, by SIGUSR1.

        srun ends its step at once at SIGTERM.
        """
        attempt = self._attempts.get(trial)
        if attempt is not None and not attempt.cancelled:
            attempt.cancelled, attempt.kill_at = True, time.monotonic() + grace
            attempt.step.ask()

    def probe(self, node: str) -> None:
        """Probe a node with as many ranks as a trial has there."""
        if not self._revoked:
            self._probes.start(node)

    def close(self) -> None:
        """End all steps."""
        steps = [attempt.step for attempt in self._attempts.values() if attempt.ended is None]
        for step in steps:
            step.kill()
        self._probes.close()
        self._watch.close()
        for step in steps:
            step.wait()
        self._attempts.clear()
        self._queue.clear()

    def _ranks_on(self, nodes: Collection[str]) -> int:
        return self._ranks or max(1, self._allocation.least(nodes)[1])

    def _step_on(self, name: str, nodes: tuple[str, ...], program: Sequence[str]) -> Step:
        (cores, gpus), ranks = self._allocation.least(nodes), self._ranks_on(nodes)
        options = ["--rank-variables", ",".join(self._site.local_rank_variables), "--parts", str(ranks)]
        line = (sys.executable, "-P", str(RANK), *options, "--gpus", str(gpus), sys.executable, "-P")
        return Step(name=name, nodes=nodes, cores=cores, gpus=gpus, ranks=ranks, program=(*line, *program))

    def _step(self, task: Task) -> Step:
        ranks = len(task.slots) * self._ranks_on(task.slots)
        program = ["-m", self._module, *task.arguments, "--ranks", str(ranks), "--threads", "{threads}"]
        return self._step_on(f"trial-{task.trial}-{task.attempt}", task.slots, program)

    def _work(self) -> None:
        """Do what is due, without waiting."""
        if not self._revoked:
            self._open_gates()
            self._read_scheduler()
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            self._follow(attempt, now)
        self._reports += self._probes.results()

    def _leave(self) -> None:
        """The allocation is over: its steps end by themselves."""
        self._queue.clear()
        self._probes.close()
        for attempt in self._attempts.values():
            attempt.cancelled, attempt.kill_at = True, min(attempt.kill_at, time.monotonic() + LAST_WORDS)
            if not attempt.step.started:
                attempt.step.kill()

    def _open_gates(self) -> None:
        running = sum(attempt.step.started and attempt.ended is None for attempt in self._attempts.values())
        while self._queue and running < self._limits.at_once and time.monotonic() >= self._closed_until:
            if self._queue[0].cancelled:
                self._queue.popleft()
                continue
            if not self._bucket.take(time.monotonic()):
                return
            attempt = self._queue.popleft()
            patience = self._limits.hang_seconds
            every = min(HEARTBEAT_EVERY, patience / 10)
            folder = attempt.task.folder
            attempt.heartbeat = Heartbeat(folder=folder, patience=patience, every=every, runs=self._runs)
            attempt.begun = time.monotonic()
            attempt.step.go()
            running += 1

    def _lose(self, node: str, why: str) -> None:
        self._probes.give_up(node)
        for attempt in self._attempts.values():
            if node in attempt.task.slots and attempt.ended is None:
                attempt.lost = (*attempt.lost, node)
                attempt.step.kill()

    def _follow(self, attempt: _Attempt, now: float) -> None:
        """Kill an attempt that is late, and report one that has ended."""
        if attempt.ended is None:
            if now >= attempt.kill_at:
                attempt.step.kill()
            elif attempt.heartbeat is not None and not attempt.killed:
                attempt.hung = attempt.heartbeat.stopped() and self._is_hung(attempt)
                attempt.killed = attempt.hung or attempt.heartbeat.lingers(attempt.task.attempt)
                if attempt.killed:
                    attempt.step.kill()
            code = attempt.step.poll()
            if code is None:
                return
            self._note_end(attempt, code, now)
        if attempt.again_at is not None and not attempt.cancelled:
            if now >= attempt.again_at:
                del self._attempts[attempt.task.trial]
                self.start(attempt.task)
        elif self._was_refused(attempt):
            attempt.again_at = self._closed_until = now + AGAIN
        elif self._is_explained(attempt):
            del self._attempts[attempt.task.trial]
            self._reports.append(self._exit(attempt))

    def _is_hung(self, attempt: _Attempt) -> bool:
        """Return True where a silent attempt is to blame, and nothing stalls."""
        running = (one for one in self._attempts.values() if one.ended is None and not one.killed)
        beats = [one.heartbeat for one in running if one.heartbeat is not None]
        judgement = self._witness.judge(sum(beat.is_recent for beat in beats), len(beats), attempt.task.folder)
        for beat in beats if judgement == "stall" else ():
            beat.begin_anew()
        return judgement == "hung"

    def _note_end(self, attempt: _Attempt, code: int, now: float) -> None:
        attempt.ended, attempt.code = now, code
        attempt.evidence = self._site.evidence(text_since(attempt.task.folder / "log.txt", attempt.log_from))
        attempt.complete = code == 0 and is_complete(attempt.task)
        if not self._is_explained(attempt):
            self._watch.hurry()

    def _was_refused(self, attempt: _Attempt) -> bool:
        ours = self._revoked or attempt.cancelled or attempt.killed or attempt.lost
        return not ours and self._watch.excuses(attempt.evidence, attempt.task.slots, attempt.begun)

    def _is_explained(self, attempt: _Attempt) -> bool:
        if self._revoked or attempt.cancelled or attempt.lost or attempt.complete:
            return True
        assert attempt.ended is not None
        return self._watch.has_spoken(attempt.task.slots, attempt.ended)

    def _exit(self, attempt: _Attempt) -> Exit:
        task, evidence, states = attempt.task, attempt.evidence, self._watch.states
        if self._revoked:
            return Exit(task=task, code=-9, interrupted=True, message=self._revoked)
        silent = {node for node, state in states.items() if state == "lost" or (attempt.code and state == "silent")}
        lost_nodes = silent | {*evidence.suspects, *attempt.lost}
        code = evidence.code if evidence.code is not None else attempt.code
        if attempt.cancelled or attempt.killed or attempt.lost:
            code = -9  # we ended it
        message = evidence.message
        if attempt.hung:
            message = f"no heartbeat for {self._limits.hang_seconds:.0f} s"
        suspects = tuple(node for node in task.slots if node in lost_nodes)
        if suspects:
            message = f"lost {', '.join(suspects)}. {message}".strip()
        return Exit(
            task=task,
            code=code if evidence.started or attempt.cancelled else None,
            out_of_memory=evidence.out_of_memory,
            hung=attempt.hung,
            suspects=suspects,
            message=message,
        )
