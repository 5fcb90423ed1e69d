"""Attempts as processes of this machine, one thread and at most one GPU each; the embedded default.

No attempt outlives its controller, works before the journal knows it, or has a successor while it lives: see ``worker.py``.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import torch

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_log
from hydragnn.base.machine import visible_gpus
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.launching.attempts import Heartbeat, Witness, seconds_between_beats
from hydragnn.hpo.launching.descriptors import readable
from hydragnn.hpo.launching.launcher import MARK, Begun, Exit, Report, Task, importable, is_alive, is_ours, note_of
from hydragnn.hpo.scheduling.events import Identity, Probed, node_of

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
MODULE = "hydragnn.runs.run"
WORKER = Path(__file__).with_name("worker.py")
"""Run by its path, because ``-m`` would load the whole room, Optuna included, into every worker."""
NARROWING_ON_AMD = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The innermost first: HIP counts within what ROCR leaves, and reads CUDA's variable where its own is not set."""
PAUSE = 0.02  # seconds between looks at a process that must vanish
LAST_WAIT = 5.0  # seconds that a worker may take to leave when asked
GONE_WAIT = 60.0  # seconds that a killed process may take to vanish from a busy machine


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """What is known of an attempt; ``identity`` comes with the worker's first report."""

    task: Task
    kills_before: int
    identity: Identity | None = None
    killed_at: float | None = None
    """When the patience with a cancelled attempt ends."""
    heartbeat: Heartbeat | None = None
    """Watched from the moment on at which it works."""
    hung: bool = False


@dataclass(kw_only=True, slots=True)
class _Worker:
    """A process that makes attempts, one at a time in each of its slots, and the pipes to and from it."""

    process: subprocess.Popen[bytes]
    requests: IO[bytes]
    reports: IO[bytes]
    unread: bytes = b""

    def send(self, slot: str, words: str) -> None:
        """Write to the worker; a dead one is noticed by its closed output."""
        with suppress(BrokenPipeError):
            self.requests.write(f"{slot} {words}\n".encode())

    def wait(self) -> int:
        """Close its input, wait for its end and give its exit code."""
        self.requests.close()
        try:
            code = self.process.wait(timeout=LAST_WAIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.reports.close()
        return code


class LocalLauncher:
    """Runs ``hydragnn.runs.run FOLDER --until N --attempt A --micro-batches M`` for each attempt, by ``workers`` processes."""

    def __init__(
        self,
        workers: int,
        *,
        together: int = 1,
        hang_seconds: float = 600.0,
        module: str = MODULE,
        environment: Mapping[str, str] | None = None,
        gpus: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """``together``: so many trials share one process of each worker; ``gpus``: what shows each worker its own."""
        self._hang_seconds, self._together, self._module = hang_seconds, together, module
        self._witness = Witness()
        self._slots = shares_of({f"worker-{number}": together for number in range(workers)})
        self._environment = {**environment_alone(), **importable(), **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
        self._environment.update(environment or {})
        self._gpus = {f"worker-{number}": variables for number, variables in enumerate(gpus)}
        self._workers: dict[str, _Worker] = {}
        self._attempts: dict[str, _Attempt] = {}
        """What each slot's worker was asked for and has not ended."""
        self._reports: list[Report] = []

    @property
    def slots(self) -> tuple[str, ...]:
        """One per worker, or as many as share its process."""
        return self._slots

    @property
    def deadline(self) -> float | None:
        """None: a machine of one's own has no end."""
        return None

    @property
    def beat_seconds(self) -> float:
        """As rare as so many workers ask for."""
        return seconds_between_beats(len(self.slots), self._hang_seconds)

    def recover(self, campaign: str, identities: Iterable[Identity]) -> None:
        """Kill attempts that an earlier controller of the campaign started on this machine and that still exist, and wait for their end."""
        self._environment[MARK] = campaign
        for identity in identities:
            if is_ours(identity, campaign):
                _end(identity)

    def start(self, task: Task) -> None:
        """Ask the slot's worker for an attempt; ``poll`` reports that it began, or that it never started."""
        slot = task.slots[0]
        try:
            with open_log(task.folder / "log.txt") as log:
                log.write(note_of(task))
            worker = self._workers.get(node_of(slot)) or self._new_worker(node_of(slot))
        except (OSError, InputError) as error:
            self._reports.append(Exit(task=task, code=None, message=f"cannot start a process: {error}"))
            return
        self._attempts[slot] = _Attempt(task=task, kills_before=_kills_for_memory())
        worker.send(slot, json.dumps({"arguments": task.arguments, "log": str(task.folder / "log.txt")}))

    def go(self, task: Task) -> None:
        """Let an attempt work that has begun."""
        attempt = self._attempts.get(task.slots[0])
        if attempt is not None and attempt.task == task:
            patience, runs = self._hang_seconds, len(self.slots)
            attempt.heartbeat = Heartbeat(folder=task.folder, patience=patience, runs=runs)
            self._send(task.slots[0], "go")

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        """What happened, after waiting up to so many seconds for the first, or until the bell rings."""
        deadline = time.monotonic() + seconds
        while True:
            reports, self._reports = self._reports, []
            self._kill_the_late()
            self._kill_the_hung()
            wait = 0.0 if reports else max(0.0, min(deadline, self._next_kill()) - time.monotonic())
            nodes = {worker.reports.fileno(): node for node, worker in self._workers.items()}
            ready = readable((*nodes, *([] if bell is None else [bell])), wait)
            for descriptor in ready:
                if descriptor != bell:
                    reports += self._read_reports(nodes[descriptor])
            if reports or bell in ready or time.monotonic() >= deadline:
                return reports

    def probe(self, node: str) -> None:
        """Find the slot healthy: a machine that runs this code computes."""
        self._reports.append(Probed(node=node, healthy=True))

    def cancel(self, trial: int, grace: float) -> None:
        """Send SIGTERM to the attempt's process, and SIGKILL to its group once ``grace`` seconds have passed."""
        for slot, attempt in self._attempts.items():
            if attempt.task.trial == trial and attempt.killed_at is None:
                attempt.killed_at = time.monotonic() + grace
                if attempt.identity is not None:
                    self._send(slot, "term")

    def close(self) -> None:
        """End the workers, and with them every attempt."""
        for worker in self._workers.values():
            worker.requests.close()
        for node in list(self._workers):
            self._worker_lost(node)

    def _send(self, slot: str, words: str) -> None:
        worker = self._workers.get(node_of(slot))
        if worker is not None:
            worker.send(slot, words)

    def _new_worker(self, node: str) -> _Worker:
        options = ["--nodes", node, "--shares", str(self._together), "--together", str(self._together)]
        process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), *options, "--hang-seconds", str(self._hang_seconds), self._module],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # attempts have their logs
            start_new_session=True,
            env={**self._environment, **self._gpus.get(node, {})},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        worker = _Worker(process=process, requests=process.stdin, reports=process.stdout)
        self._workers[node] = worker
        return worker

    def _read_reports(self, node: str) -> list[Report]:
        """Act on what a worker says: an attempt began, an attempt ended, or the worker itself is gone."""
        worker = self._workers[node]
        received = os.read(worker.reports.fileno(), 65536)
        if not received:
            return self._worker_lost(node)
        *lines, worker.unread = (worker.unread + received).split(b"\n")
        words = (line.decode().partition(" ") for line in lines)
        return [report for slot, _, said in words for report in self._handle_report(slot, json.loads(said))]

    def _handle_report(self, slot: str, report: dict[str, Any]) -> list[Report]:
        attempt = self._attempts.get(slot)
        if attempt is not None and "pid" in report:
            pid = report["pid"]
            attempt.identity = {"host": socket.gethostname(), "pid": pid, "created": _creation_time(pid)}
            if attempt.killed_at is not None:  # cancelled before it began
                self._send(slot, "term")
            return [Begun(task=attempt.task, identity=attempt.identity)]
        if attempt is not None and "code" in report:
            return [self._exit(self._attempts.pop(slot), report["code"])]
        return []

    def _worker_lost(self, node: str) -> list[Report]:
        """A worker ends, and with it its attempts."""
        code = self._workers.pop(node).wait()
        attempts = [self._attempts.pop(slot) for slot in list(self._attempts) if node_of(slot) == node]
        for attempt in attempts:
            if attempt.identity is not None:
                _end(attempt.identity)
        return [self._exit(attempt, code) for attempt in attempts]

    def _next_kill(self) -> float:
        times = (attempt.killed_at for attempt in self._attempts.values())
        return min((time for time in times if time is not None), default=float("inf"))

    def _kill_the_late(self) -> None:
        for slot, attempt in self._attempts.items():
            if attempt.killed_at is not None and time.monotonic() >= attempt.killed_at:
                attempt.killed_at = float("inf")
                self._send(slot, "kill")

    def _kill_the_hung(self) -> None:
        beats = {slot: one.heartbeat for slot, one in self._attempts.items() if one.heartbeat and not one.hung}
        silent = [slot for slot, heartbeat in beats.items() if heartbeat.stopped()]
        if not silent:
            return
        recent = sum(heartbeat.is_recent for heartbeat in beats.values())
        judgement = self._witness.judge(recent, len(beats), self._attempts[silent[0]].task.folder)
        for slot in silent if judgement == "hung" else ():
            self._attempts[slot].hung = True
            self._send(slot, "kill")
        for heartbeat in beats.values() if judgement == "stall" else ():
            heartbeat.begin_anew()

    def _exit(self, attempt: _Attempt, code: int) -> Exit:
        killed_by_us = attempt.hung or attempt.killed_at == float("inf")
        starved = code == -signal.SIGKILL and not killed_by_us and _kills_for_memory() > attempt.kills_before
        message = f"no heartbeat for {self._hang_seconds / 60:.3g} minutes" if attempt.hung else ""
        if killed_by_us and not attempt.hung:
            message = "it did not save itself within grace_seconds, and goes on from its last checkpoint"
        return Exit(task=attempt.task, code=code, out_of_memory=starved, hung=attempt.hung, message=message)


def shares_of(shares: Mapping[str, int]) -> tuple[str, ...]:
    """The slots of nodes, each with its number of shares; first one of each node, so that few trials spread over many.

    >>> shares_of({"n1": 2, "n2": 2, "n3": 1})
    ('n1/0', 'n2/0', 'n3', 'n1/1', 'n2/1')
    """
    return tuple(
        node if count == 1 else f"{node}/{share}"
        for share in range(max(shares.values(), default=0))
        for node, count in shares.items()
        if share < count
    )


def gpus_of_workers(workers: int) -> tuple[dict[str, str], ...]:
    """For each worker the variable that shows it one GPU, which no other worker sees; empty ones on a machine without GPUs.

    InputError for more workers than GPUs: two trainings on one GPU by accident run out of memory, or take turns.
    """
    gpus = visible_gpus()
    if not gpus:
        return ({},) * workers
    if workers > gpus:
        raise InputError(
            f"{workers} workers, but this process sees {gpus} GPU(s), and each worker trains on one of its own; set workers "
            f"to at most {gpus} (search.together lets several trials share one), or hide the GPUs to train on the CPU: "
            "export CUDA_VISIBLE_DEVICES="
        )
    on_amd = torch.version.hip is not None
    return tuple(one_gpu(os.environ, worker, on_amd=on_amd) for worker in range(workers))


def one_gpu(environment: Mapping[str, str], worker: int, *, on_amd: bool) -> dict[str, str]:
    """The variable through which a worker sees the GPU with its number among those that are left by the environment.

    >>> one_gpu({"CUDA_VISIBLE_DEVICES": "4,GPU-a"}, 1, on_amd=False), one_gpu({}, 1, on_amd=True)
    ({'CUDA_VISIBLE_DEVICES': 'GPU-a'}, {'ROCR_VISIBLE_DEVICES': '1'})
    """
    names = NARROWING_ON_AMD if on_amd else ("CUDA_VISIBLE_DEVICES",)
    name = next((name for name in names if environment.get(name)), names[-1])
    listed = environment.get(name)
    return {name: listed.split(",")[worker].strip() if listed else str(worker)}


def _creation_time(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0  # it ended at once; the worker's next report says so


def _end(identity: Identity) -> None:
    """Kill a process with its group, if it still is the same one, and wait until it is gone."""
    deadline = time.monotonic() + GONE_WAIT
    while is_alive(identity):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(identity["pid"]), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise InputError(f"process {identity['pid']} of an interrupted search does not end; kill it, then resume")
        time.sleep(PAUSE)


def _kills_for_memory() -> int:
    """How many processes this machine has killed for want of memory so far; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
