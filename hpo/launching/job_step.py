"""Process of a job step, which waits for the journal."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, ClassVar

from hydragnn.base.errors import InputError
from hydragnn.hpo.launching.allocation import output_of
from hydragnn.hpo.launching.launcher import MARK, identity_of, is_alive
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.scheduling.events import Identity

GATE = 'read -r word && [ "$word" = go ] && exec "$@" {input}'
"""Shell line that becomes the launcher when it reads "go"."""
LAST_KILL = 2.0  # seconds that a launcher gets to end its step properly; where a node is lost, it never does
GONE_WAIT = 30.0  # seconds that what an earlier controller started may take to vanish
PAUSE = 0.1  # seconds between looks at what must vanish

ENDING = ((signal.SIGTERM, LAST_KILL), (signal.SIGKILL, GONE_WAIT))
"""Signals that end a launcher, with seconds to wait after each."""

STEPS_AT_ONCE = 90  # concurrent steps of a job; Frontier's Slurm carries about 100
STEP_RATE = 5.0  # steps per second: a tenth of what a small slurmctld starts
OWN_AT_ONCE, OWN_RATE = 500, 20.0  # the same where an allocation manages its own steps (Flux, ``--stepmgr``)
BURST = 10


class TokenBucket:
    """Limit of ``rate`` per second on average, and ``burst`` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._pause, self._ahead, self._next = 1.0 / rate, (burst - 1) / rate, float("-inf")

    def take(self, now: float) -> bool:
        """Return True where one may start now; if so it counts.

        >>> bucket = TokenBucket(rate=2.0, burst=1)
        >>> [bucket.take(now) for now in (0.0, 0.1, 0.5)]
        [True, False, True]
        """
        begin = max(self._next, now - self._ahead)
        if begin > now:
            return False
        self._next = begin + self._pause
        return True


class StepProcess:
    """Process of a job step, at its gate until ``go``."""

    _helpers: ClassVar[list[subprocess.Popen[bytes]]] = []
    """Programs that send signals to steps, kept until they end."""

    def __init__(
        self,
        site: Site,
        step: Step,
        output: IO[bytes] | int,
        environment: Mapping[str, str],
        errors: IO[bytes] | int = subprocess.STDOUT,
    ) -> None:
        campaign = environment.get(MARK)
        step = replace(step, name=f"{campaign}-{step.name}") if campaign else step
        self.name = step.name
        self._site, self._killed_at = site, float("inf")
        gate = GATE.format(input="" if step.resident else "< /dev/null")
        self.process = subprocess.Popen(
            ["sh", "-c", gate, "sh", *site.command(step)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            env={name: value for name, value in environment.items() if not name.startswith(site.contradicting)},
            bufsize=0,
        )
        assert self.process.stdin is not None
        self.input = self.process.stdin
        self.started = False

    def identity(self, job: str) -> Identity:
        """Return what identifies this step on this machine and to the scheduler."""
        return {**identity_of(self.process.pid), "job": job, "step": self.name}

    def go(self) -> None:
        """Open the gate."""
        self.started = True
        with suppress(BrokenPipeError):
            self.input.write(b"go\n")

    def ask(self) -> None:
        """Ask all ranks to leave; end a step that has not started."""
        if not self.started:
            self.kill()
            return
        command = self._site.signal(self.name, "USR1")
        if command is None:
            self._send(signal.SIGUSR1)
        else:
            self._help(command)

    def kill(self) -> None:
        """End the step: first through its launcher, then without."""
        if self._killed_at < float("inf"):
            return
        self._killed_at = time.monotonic() + LAST_KILL
        command = self._site.signal(self.name, "KILL") if self.started else None
        if command is not None:
            self._help(command)
        self._send(signal.SIGTERM)

    def poll(self) -> int | None:
        """The launcher's exit code, signals as negative numbers; None while it lives."""
        if time.monotonic() >= self._killed_at:
            self._killed_at = float("inf")
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.poll()
        if code is not None:
            self.input.close()
        return None if code is None else -(code - 128) if code > 128 else code

    def wait(self) -> None:
        """Return when the launcher is gone."""
        while self.poll() is None:
            time.sleep(PAUSE / 5)

    def _send(self, kind: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(kind)

    def _help(self, command: list[str]) -> None:
        self._helpers[:] = [helper for helper in self._helpers if helper.poll() is None]
        quiet = subprocess.DEVNULL
        with suppress(OSError):
            self._helpers.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet))


def end_steps(site: Site, job: str, names: set[str]) -> None:
    """End the steps of a job that have these names."""
    command, deadline = site.steps(job), time.monotonic() + GONE_WAIT
    while command is not None and time.monotonic() < deadline:
        try:
            rows = [line.split(maxsplit=1) for line in output_of(command).splitlines()]
        except InputError as error:
            if site.job_over(str(error)):
                return  # and its steps with it
            time.sleep(PAUSE)  # the scheduler does not answer; what it cannot end is fenced
            continue
        numbers = [row[0] for row in rows if len(row) == 2 and row[1].strip() in names]
        if not numbers:
            return
        with suppress(InputError):  # it may have ended in between
            output_of(site.end(numbers))
        time.sleep(PAUSE)


def end_process(identity: Identity, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Signal a process while it is the same; SIGKILL its group."""
    for kind, patience in signals:
        deadline = time.monotonic() + patience
        if is_alive(identity):
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if kind is signal.SIGKILL else os.kill)(int(identity["pid"]), kind)
        while is_alive(identity) and time.monotonic() < deadline:
            time.sleep(PAUSE)
    if is_alive(identity):
        raise InputError(f"process {identity['pid']} of an interrupted search does not end; kill it, then resume")
