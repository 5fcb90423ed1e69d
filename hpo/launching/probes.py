"""Probes of nodes as job steps: ``probe.py`` on one node, judged by what it printed."""

import itertools
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.stepprocess import StepProcess
from hydragnn.hpo.launching.watchdog import AGAIN, SchedulerWatch
from hydragnn.hpo.scheduling.events import Probed

PROBE = Path(__file__).with_name("probe.py")
HEALTHY = "healthy"
LAST_WORDS = 300  # characters of what a failed probe printed


@dataclass(kw_only=True, slots=True)
class _Probe:
    step: StepProcess
    printed: IO[bytes]
    deadline: float
    begun: float
    given_up: bool = False


class Probes:
    """Probes that run."""

    def __init__(
        self,
        site: Site,
        rank_line: tuple[str, ...],
        ranks: int,
        environment: Mapping[str, str],
        patience: float,
        watch: SchedulerWatch,
    ) -> None:
        """``watch`` tells whether the scheduler answers; while it does not, no node is to blame for a probe that fails."""
        self._watch = watch
        self._site, self._ranks, self._environment, self._patience = site, ranks, environment, patience
        self._line, self._numbers = rank_line, itertools.count()
        self._probes: dict[str, _Probe] = {}
        self._again: dict[str, float] = {}
        """When probes are begun again."""
        self._reports: list[Probed] = []

    def start(self, node: str) -> None:
        """Begin to probe a node; one that is being probed already needs no second."""
        if node in self._probes or node in self._again:
            return
        name = f"probe-{os.getpid()}-{next(self._numbers)}"
        program = [*self._line, "-P", str(PROBE), "--rank", "{part}", "--ranks", str(self._ranks)]
        program += ["--meet", name, "--threads", "{threads}"]
        step = Step(name=name, nodes=(node,), ranks=self._ranks, program=tuple(program))
        printed = tempfile.TemporaryFile()  # noqa: SIM115, closed when the answer was read
        try:
            process = StepProcess(self._site, step, printed, self._environment)
        except OSError as error:
            printed.close()
            self._reports.append(Probed(node=node, healthy=False, message=f"cannot start a probe: {error}"))
            return
        process.go()
        now = time.monotonic()
        self._probes[node] = _Probe(step=process, printed=printed, begun=now, deadline=now + self._patience)

    def results(self) -> list[Probed]:
        """What probes found that have ended, or took too long, since the last call."""
        now = time.monotonic()
        for node in [node for node, when in self._again.items() if now >= when]:
            del self._again[node]
            self.start(node)
        results, self._reports = self._reports, []
        for node, probe in list(self._probes.items()):
            if not self._watch.answering and not probe.given_up:
                probe.deadline = now + self._patience
            late = now > probe.deadline
            if late:
                probe.step.kill()
            if probe.step.poll() is not None:
                del self._probes[node]
                results += self._result(node, probe, late)
        return results

    def give_up(self, node: str) -> None:
        """End the probe of a node that is known to be lost."""
        if self._again.pop(node, None) is not None:
            self._reports.append(Probed(node=node, healthy=False, message="it was lost before it could be probed"))
        if node in self._probes:
            self._probes[node].given_up, self._probes[node].deadline = True, 0.0

    def close(self) -> None:
        """End all probes."""
        self._again.clear()
        for probe in self._probes.values():
            probe.step.kill()
        for probe in self._probes.values():
            probe.step.wait()
            probe.printed.close()
        self._probes.clear()

    def _result(self, node: str, probe: _Probe, late: bool) -> list[Probed]:
        """What a probe says about its node: nothing where the scheduler did not start it; then it is begun again."""
        with probe.printed as file:
            file.seek(0)
            printed = file.read().decode(errors="replace")
        lines = printed.strip().splitlines()
        if HEALTHY in lines:
            return [Probed(node=node, healthy=True)]
        evidence = self._site.evidence(printed)
        refused = not evidence.started and not evidence.suspects
        if not late and (evidence.unreachable or (refused and not self._watch.in_order([node], probe.begun))):
            self._again[node] = time.monotonic() + AGAIN
            return []
        output = "\n".join(lines)[-LAST_WORDS:] or "nothing"
        message = f"no answer within {self._patience:.0f} s" if late else f"the probe failed; it said: {output}"
        return [Probed(node=node, healthy=False, message=message)]
