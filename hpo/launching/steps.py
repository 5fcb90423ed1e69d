"""Attempts as job steps of an allocation, on nodes that we choose."""

import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from hydragnn.base.errors import InputError
from hydragnn.hpo.launching.allocation import Allocation, Node
from hydragnn.hpo.launching.allocation_launcher import Launcher, Limits
from hydragnn.hpo.launching.attempts import Attempt, seconds_between_beats
from hydragnn.hpo.launching.job_step import StepProcess
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.launching.sites import Evidence, Site, Step
from hydragnn.hpo.launching.verdict import is_complete, text_since
from hydragnn.hpo.launching.watchdog import AGAIN
from hydragnn.hpo.launching.worker import probe_report, stamp_of
from hydragnn.hpo.scheduling.events import Probed
from hydragnn.record import read_record

RANK = Path(__file__).with_name("rank.py")
PROBE = Path(__file__).with_name("probe.py")
HEARTBEAT_EVERY = 2.0  # seconds between looks at a trial's heartbeat
LINGER = 10.0  # seconds that an attempt's processes may take to end once its record is complete


@dataclass(kw_only=True, slots=True)
class _TrialStep:
    """Job step of an attempt, and how it ended."""

    step: StepProcess
    log_from: int
    """Position in the log at which this attempt begins."""
    begun: float = float("-inf")
    """Time at which its gate was opened."""
    heartbeat: tuple[int, int] | None = None
    next_look: float = 0.0
    next_record: float = 0.0
    lost: tuple[str, ...] = ()
    ended: float | None = None
    code: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    complete: bool = False
    """It left the record of its whole segment."""
    again_at: float | None = None
    """Time of a second start, because the scheduler did not answer."""


@dataclass(kw_only=True, slots=True)
class _ProbeStep:
    """Job step that probes a node."""

    step: StepProcess
    printed: IO[bytes]
    deadline: float
    begun: float
    given_up: bool = False


class StepLauncher(Launcher):
    """Runs ``hydragnn.runs.run`` on whole nodes of an allocation, ``ranks`` processes on each."""

    def __init__(
        self,
        site: Site,
        allocation: Allocation,
        *,
        ranks: int | None,
        limits: Limits = Limits(),  # noqa: B008, frozen
    ) -> None:
        """``ranks`` on each node of a trial, None: one per GPU."""
        super().__init__(site, allocation, limits)
        self._ranks = ranks
        self._runs: dict[str, _TrialStep] = {}  # by the first slots of their attempts
        self._queue: deque[Task] = deque()
        self._closed_until = float("-inf")
        self._probes: dict[str, _ProbeStep] = {}
        self._probe_again: dict[str, float] = {}  # times of second starts, because the scheduler did not answer

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
        return seconds_between_beats(min(self._limits.at_once, len(self.slots)), self._limits.hang_seconds)

    def go(self, task: Task) -> None:
        """Let the step start as soon as the limits allow."""
        if self._attempts.holds(task):
            self._queue.append(task)
            self._open_gates(time.monotonic())

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial's ranks to save themselves, by SIGUSR1.

        srun ends its step at once at SIGTERM.
        """
        if (slot := self._attempts.cancel(trial, grace)) is not None:
            self._runs[slot].step.ask()

    def probe(self, node: str) -> None:
        """Probe a node with as many ranks as a trial has there."""
        if self._revoked or node in self._probes or node in self._probe_again:
            return
        name = f"probe-{os.getpid()}-{next(self._numbers)}"
        program = ["-P", str(PROBE), "--rank", "{part}", "--ranks", str(self._ranks_on([node]))]
        step = self._step_on(name, (node,), [*program, "--meet", name, "--threads", "{threads}"])
        printed = tempfile.TemporaryFile()  # noqa: SIM115, closed when the answer was read
        try:
            process = StepProcess(self._site, step, printed, self._environment)
        except OSError as error:
            printed.close()
            self._reports.append(Probed(node=node, healthy=False, message=f"cannot start a probe: {error}"))
            return
        process.go()
        now = time.monotonic()
        deadline = now + self._limits.probe_seconds
        self._probes[node] = _ProbeStep(step=process, printed=printed, begun=now, deadline=deadline)

    def close(self) -> None:
        """End all steps."""
        steps = [run.step for run in self._runs.values() if run.ended is None]
        for step in steps:
            step.kill()
        self._end_probes()
        for step in steps:
            step.wait()
        self._attempts.clear()
        self._runs.clear()
        self._queue.clear()
        self._pipes.end()

    def _ranks_on(self, nodes: Collection[str]) -> int:
        return self._ranks or max(1, self._allocation.least(nodes)[1])

    def _step_on(self, name: str, nodes: tuple[str, ...], program: Sequence[str]) -> Step:
        (cores, gpus), ranks = self._allocation.least(nodes), self._ranks_on(nodes)
        share = (",".join(self._site.local_rank_variables), str(ranks), str(gpus))
        line = (sys.executable, "-P", str(RANK), *share, sys.executable, "-P")
        return Step(name=name, nodes=nodes, cores=cores, gpus=gpus, ranks=ranks, program=(*line, *program))

    def _begin(self, task: Task, log: IO[bytes]) -> None:
        ranks, log_from = len(task.slots) * self._ranks_on(task.slots), log.tell()
        program = ["-m", self.module, *task.arguments, "--ranks", str(ranks), "--threads", "{threads}"]
        step = self._step_on(f"trial-{task.trial}-{task.attempt}", task.slots, program)
        process = StepProcess(self._site, step, log, self._environment)
        self._runs[task.slots[0]] = _TrialStep(step=process, log_from=log_from)
        if self._attempts.holds(task):  # the attempt began before; its step is known by the same name
            self._queue.append(task)
            return
        self._attempts.ask(task)
        self._reports.append(self._attempts.begin(task.slots[0], process.identity(self._allocation.job)))

    def _open_gates(self, now: float) -> None:
        running = sum(run.step.started and run.ended is None for run in self._runs.values())
        while self._queue and running < self._limits.at_once and now >= self._closed_until:
            task = self._queue[0]
            slot = task.slots[0]
            if self._attempts.holds(task) and not self._attempts[slot].asked_to_leave:
                if not self._bucket.take(now):
                    return
                run = self._runs[slot]
                run.begun, run.heartbeat = now, stamp_of(task.folder / "heartbeat")
                self._attempts.running.note(slot)
                run.step.go()
                running += 1
            self._queue.popleft()

    def _leave(self) -> None:
        self._queue.clear()
        self._end_probes()
        for slot, run in self._runs.items():
            self._attempts[slot].asked_to_leave = True
            if not run.step.started:
                run.step.kill()

    def _lose(self, node: str, why: str) -> None:
        if self._probe_again.pop(node, None) is not None:
            self._reports.append(Probed(node=node, healthy=False, message="it was lost before it could be probed"))
        if node in self._probes:
            self._probes[node].given_up, self._probes[node].deadline = True, 0.0
        for slot, run in self._runs.items():
            if node in self._attempts[slot].task.slots and run.ended is None:
                run.lost = (*run.lost, node)
                run.step.kill()

    def _look(self, now: float) -> None:
        for slot in self._attempts.to_kill(now):
            self._runs[slot].step.kill()
        for slot, run in list(self._runs.items()):
            self._follow(slot, run, now)
        for node in [node for node, when in self._probe_again.items() if now >= when]:
            del self._probe_again[node]
            self.probe(node)
        for node, probe in list(self._probes.items()):
            self._follow_probe(node, probe, now)

    def _follow(self, slot: str, run: _TrialStep, now: float) -> None:
        """Kill an attempt that lingers, and report one that has ended."""
        attempt = self._attempts[slot]
        if run.ended is None:
            if run.begun > float("-inf") and attempt.killed is None:
                self._look_at_files(attempt, run, now)
            if now >= self._leave_by:
                run.step.kill()
            code = run.step.poll()
            if code is None:
                return
            run.ended, run.code = now, code
            self._attempts.running.pop(slot, None)
            run.evidence = self._site.evidence(text_since(attempt.task.folder / "log.txt", run.log_from))
            run.complete = code == 0 and is_complete(attempt.task)
            if not self._is_explained(attempt, run):
                self._watch.hurry()
        ours = self._revoked or attempt.ended_by_us or run.lost
        if run.again_at is not None and not attempt.asked_to_leave:
            if now >= run.again_at:
                del self._runs[slot]
                self.start(attempt.task)
                if slot not in self._runs:  # ``start`` has reported why
                    self._attempts.end(slot, None, "")
        elif not ours and self._watch.excuses(run.evidence, attempt.task.slots, run.begun):
            run.again_at = self._closed_until = now + AGAIN
        elif self._is_explained(attempt, run):
            del self._runs[slot]
            self._reports.append(self._exit(slot, run))

    def _look_at_files(self, attempt: Attempt, run: _TrialStep, now: float) -> None:
        """Note a changed heartbeat; kill processes that outlive a complete record."""
        slot, folder, beats = attempt.task.slots[0], attempt.task.folder, self.beat_seconds
        if now >= run.next_look:
            run.next_look = now + max(beats, min(HEARTBEAT_EVERY, self._limits.hang_seconds / 10))
            if (stamp := stamp_of(folder / "heartbeat")) != run.heartbeat:
                run.heartbeat = stamp
                self._attempts.beat(slot)
        linger = max(LINGER, 2 * beats)
        if now >= run.next_record and self._attempts.running.silence(slot) >= linger:
            run.next_record = now + linger
            with suppress(InputError):
                record = read_record(folder)
                if record.attempt == attempt.task.attempt and record.status != "running":
                    attempt.killed = now
                    run.step.kill()

    def _is_explained(self, attempt: Attempt, run: _TrialStep) -> bool:
        if self._revoked or attempt.asked_to_leave or run.lost or run.complete:
            return True
        assert run.ended is not None
        return self._watch.has_spoken(attempt.task.slots, run.ended)

    def _exit(self, slot: str, run: _TrialStep) -> Exit:
        attempt, evidence, states = self._attempts[slot], run.evidence, self._watch.states
        if self._revoked:
            return self._attempts.end(slot, -9, self._revoked, interrupted=True)
        silent = {node for node, state in states.items() if state == "lost" or (run.code and state == "silent")}
        lost_nodes = silent | {*evidence.suspects, *run.lost}
        suspects = tuple(node for node in attempt.task.slots if node in lost_nodes)
        code = evidence.code if evidence.code is not None else run.code
        code = -9 if attempt.ended_by_us or run.lost else code
        lost = f"lost {', '.join(suspects)}. " if suspects else ""
        end = self._attempts.end(slot, code, evidence.message, out_of_memory=evidence.out_of_memory, suspects=suspects)
        started = evidence.started or attempt.asked_to_leave
        return replace(end, code=code if started else None, message=f"{lost}{end.message}".strip())

    def _follow_probe(self, node: str, probe: _ProbeStep, now: float) -> None:
        """End a probe that is late, and report one that has ended."""
        if not self._watch.answering and not probe.given_up:
            probe.deadline = now + self._limits.probe_seconds
        late = now > probe.deadline
        if late:
            probe.step.kill()
        if probe.step.poll() is None:
            return
        del self._probes[node]
        with probe.printed as file:
            file.seek(0)
            printed = file.read().decode(errors="replace")
        report = probe_report(printed)
        refused = not late and self._watch.excuses(self._site.evidence(printed), [node], probe.begun)
        if report["healthy"] or not refused:
            if late and not report["healthy"]:
                report["message"] = f"no answer within {self._limits.probe_seconds:.0f} s"
            self._reports.append(Probed(node=node, **report))
        else:
            self._probe_again[node] = now + AGAIN

    def _end_probes(self) -> None:
        self._probe_again.clear()
        for probe in self._probes.values():
            probe.step.kill()
        for probe in self._probes.values():
            probe.step.wait()
            probe.printed.close()
        self._probes.clear()
