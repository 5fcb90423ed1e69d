"""Packs: resident workers of many nodes in few job steps.

A pack's step outlives its trials and the loss of its nodes; every trial has its own record, log, cores and GPUs. ``worker.py``
is the other side. The packs end with the controller, because their input then ends.
"""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from hydragnn.base.files import allow_many_files, open_log
from hydragnn.distributed.launch import RANK_VARIABLE
from hydragnn.hpo.launching.allocation import Allocation, Node
from hydragnn.hpo.launching.allocation_launcher import PAUSE, Launcher, Limits
from hydragnn.hpo.launching.attempts import LAST_WORDS, LastSigns, OpenEnds, seconds_between_beats
from hydragnn.hpo.launching.job_step import StepProcess
from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.verdict import text_since
from hydragnn.hpo.launching.watchdog import AGAIN
from hydragnn.hpo.scheduling.events import Identity, Probed, node_of

WORKER = Path(__file__).with_name("worker.py")
"""Program of workers, run by its path. ``-m`` would load the whole room, Optuna included, into every worker."""
SILENCE = 30.0  # seconds without a sign of life after which a node counts as lost; it gives one every five
LOOK_EVERY = 0.5  # seconds between looks for who is late


@dataclass(kw_only=True, slots=True)
class Pack:
    """One job step and the pipe from it."""

    step: StepProcess
    nodes: tuple[str, ...]
    reports: IO[bytes]
    log_from: int
    """Position in the log at which its own messages begin."""
    begun: float = float("-inf")
    """Time at which its gate was opened."""
    unread: bytes = b""
    unsent: bytearray = field(default_factory=bytearray)

    def send(self, slot: str, words: str) -> None:
        """Queue a line; it leaves when the pipe has room."""
        self.unsent += f"{slot} {words}\n".encode()
        self.flush()

    def flush(self) -> None:
        """Write as much as the pipe takes without waiting."""
        if not self.step.started:
            return  # the gate reads the first line
        with suppress(BlockingIOError, BrokenPipeError, ValueError):
            while self.unsent:
                del self.unsent[: os.write(self.step.input.fileno(), self.unsent[: select.PIPE_BUF])]

    def go(self, log: Path | None) -> None:
        """Open the gate, and send the lines that waited."""
        self.log_from, self.begun = log.stat().st_size if log else 0, time.monotonic()
        self.step.go()
        os.set_blocking(self.step.input.fileno(), False)
        self.flush()

    def end(self) -> None:
        """Make sure that the step runs no more."""
        if self.step.poll() is None:
            self.step.kill()
            self.step.wait()
        self.reports.close()


class PackLauncher(Launcher):
    """Runs ``hydragnn.runs.run`` once per share of a node, by workers that stay."""

    def __init__(
        self,
        site: Site,
        allocation: Allocation,
        *,
        shares: int,
        log: Path | None,
        sharing: int = 1,
        limits: Limits = Limits(),  # noqa: B008, frozen
    ) -> None:
        """``shares`` of the largest node, ``sharing`` of which share a GPU.

        Messages of the steps go to ``log``.
        """
        allow_many_files()  # two pipes per pack, and where a launcher feeds its first rank only, one pack per node
        super().__init__(site, allocation, limits)
        self._log, self._sharing = log, sharing
        self._shares = allocation.shares(shares)
        self._pack_of: dict[str, Pack] = {}
        self._packs: list[Pack] = []
        self._at_gates = deque[Pack]()
        self._open_ends = OpenEnds(self._watch, self._pipes.wake)
        self._last_signs = LastSigns()  # of nodes, whose lines come through pipes
        self._probes: dict[str, float] = {}  # deadlines of probes by node
        self._ended_packs: list[tuple[Pack, float]] = []  # ended packs with their times, until the scheduler confirms
        self._next_look = self._next_rest = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """Shares of all nodes, first one of each node and GPU."""
        return tuple(
            node if count == 1 else f"{node}/{share}"
            for share in sorted(range(max(self._shares.values())), key=lambda share: share % self._sharing)
            for node, count in self._shares.items()
            if share < count
        )

    def size_of(self, slots: int, node: Node) -> float:
        """Return a slot's speed; a trial has at most one GPU."""
        return min(1.0, node.gpus / slots) or node.cores / slots

    @property
    def beat_seconds(self) -> float:
        """Rare, because what decides comes through the pipes."""
        return seconds_between_beats(len(self.slots), math.inf)

    def go(self, task: Task) -> None:
        """Let an attempt work that has begun."""
        if self._attempts.holds(task):
            self._attempts.running.note(task.slots[0])
            self._send(task.slots[0], "go")

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial to save itself; it is killed after ``grace`` seconds."""
        if (slot := self._attempts.cancel(trial, grace)) is not None:
            self._send(slot, "term")

    def probe(self, node: str) -> None:
        """Probe a node by its worker, in a new pack if necessary."""
        if self._revoked:
            return
        try:
            pack = self._pack(node)
        except OSError as error:
            self._reports.append(Probed(node=node, healthy=False, message=f"cannot start a probe: {error}"))
            return
        self._probes[node] = time.monotonic() + self._limits.probe_seconds
        pack.send(node, "probe")

    def close(self) -> None:
        """End all packs, first by the end of their input."""
        for pack in self._packs:
            pack.step.input.close()
        deadline = time.monotonic() + LAST_WORDS
        for pack in self._packs:
            self._pipes.close(pack.reports.fileno())
            while pack.step.poll() is None and time.monotonic() < deadline:
                time.sleep(PAUSE)
            pack.end()
        self._packs, self._ended_packs, self._pack_of = [], [], {}
        self._attempts.clear()
        self._open_ends.close()
        self._pipes.end()

    def _begin(self, task: Task, log: IO[bytes]) -> None:
        """Request an attempt from the slot's worker."""
        pack = self._pack(node_of(task.slots[0]))
        self._attempts.ask(task)
        pack.send(task.slots[0], self._request(task))

    def _pack(self, node: str) -> Pack:
        if node not in self._pack_of:
            self._start_packs(node)
        return self._pack_of[node]

    def _start_packs(self, node: str) -> None:
        """Start the packs of all nodes, later only this node's."""
        if self._packs or self._ended_packs:
            self._new_pack((node,))
            return
        sizes: dict[tuple[int, int, int], list[str]] = {}  # a step takes as much of each of its nodes
        for one in self._allocation.nodes:
            sizes.setdefault((one.cores, one.gpus, self._shares[one.name]), []).append(one.name)
        for names, size in ((tuple(names), self._site.pack_nodes) for names in sizes.values()):
            for begin in range(0, len(names), size):
                self._new_pack(names[begin : begin + size])

    def _new_pack(self, nodes: tuple[str, ...]) -> None:
        cores, gpus = self._allocation.least(nodes)
        options = {"nodes": nodes, "shares": self._shares[nodes[0]], "hang_seconds": self._limits.hang_seconds}
        words = json.dumps(options | self._worker_options(nodes), separators=(",", ":"))
        step = Step(
            name=f"pack-{os.getpid()}-{next(self._numbers)}",
            nodes=nodes,
            cores=cores,
            gpus=gpus,
            program=(sys.executable, "-P", str(WORKER), words, self.module),
            resident=True,
        )
        pack = pack_at_gate(self._site, step, self._environment_of(nodes), self._log)
        self._packs.append(pack)
        self._pipes.open(pack.reports.fileno(), partial(self._receive, pack))
        self._at_gates.append(pack)
        self._next_rest = 0.0
        self._pack_of.update(dict.fromkeys(nodes, pack))

    def _worker_options(self, nodes: tuple[str, ...]) -> dict[str, Any]:
        variables = {"rank_variables": self._site.rank_variables, "node_variable": self._site.node_variable}
        return {"gpus": self._allocation.least(nodes)[1], "forget": RANK_VARIABLE.pattern, **variables}

    def _environment_of(self, nodes: tuple[str, ...]) -> dict[str, str]:
        return self._environment

    def _arguments(self, task: Task) -> list[str]:
        return [*task.arguments, "--ranks", "1", "--threads", "{threads}", "--beats", "{beats}"]

    def _request(self, task: Task) -> str:
        sharing = ["--sharing", str(self._sharing)] if self._sharing > 1 else []
        return json.dumps({"arguments": [*self._arguments(task), *sharing], "log": str(task.folder / "log.txt")})

    def _identity(self, pack: Pack, slot: str, pid: int) -> Identity:
        return {**pack.step.identity(self._allocation.job), "slot": slot, "worker": pid}

    def _send(self, slot: str, words: str) -> None:
        pack = self._pack_of.get(node_of(slot))
        if pack is not None:
            pack.send(slot, words)

    def _open_gates(self, now: float) -> None:
        """Start packs whose turn it is, and write what waits for pipes."""
        if now < self._next_rest:
            return
        self._next_rest = now + PAUSE
        while self._at_gates and self._bucket.take(now):
            pack = self._at_gates.popleft()
            if pack.step.poll() is None:
                pack.go(self._log)
        for pack in self._packs:
            if pack.unsent:
                pack.flush()

    def _receive(self, pack: Pack) -> None:
        received = os.read(pack.reports.fileno(), 1 << 16)
        if not received:
            self._packs.remove(pack)
            self._pipes.close(pack.reports.fileno())
            pack.end()
            self._ended_packs.append((pack, time.monotonic()))
            self._watch.hurry()
            return
        *lines, pack.unread = (pack.unread + received).split(b"\n")
        for line in lines:
            slot, _, text = line.decode(errors="replace").partition(" ")
            if self._pack_of.get(node_of(slot)) is pack:
                self._last_signs.note(node_of(slot))
                with suppress(ValueError):  # a line of somebody else, for example of a library
                    self._handle_report(pack, slot, json.loads(text))

    def _handle_report(self, pack: Pack, slot: str, report: dict[str, Any]) -> None:
        if "healthy" in report and self._probes.pop(slot, None) is not None:
            self._reports.append(Probed(node=slot, **report))
        attempt = self._attempts.get(slot)
        if attempt is None:
            return
        if "beat" in report:
            self._attempts.beat(slot)
        elif "pid" in report:
            self._reports.append(self._attempts.begin(slot, self._identity(pack, slot, report["pid"])))
        elif "code" in report:
            self._end(slot, report["code"], out_of_memory=report["oom"] and attempt.killed is None)

    def _look(self, now: float) -> None:
        """Act on lost nodes and on attempts that are late or hang."""
        self._reports += self._open_ends.ready(self._revoked)
        if self._revoked:  # what has ended is reported at once, the rest when its pack has ended
            for slot in list(self._attempts) if not self._packs or now >= self._leave_by else ():
                self._end(slot, -9, self._revoked)
            return
        ended, self._ended_packs = self._ended_packs, []
        self._ended_packs += [(pack, since) for pack, since in ended if not self._settle(pack, since, now)]
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        self._look_at_nodes(now)
        for slot in self._attempts.to_kill(now):
            self._send(slot, "kill")
        for slot in self._attempts.unanswered(now):
            self._end(slot, -9, "killed; its worker did not answer")

    def _look_at_nodes(self, now: float) -> None:
        """Lose nodes that are silent or late."""
        for node in self._last_signs.hung(SILENCE):
            self._lose(node, f"no sign of life for {SILENCE:.0f} s")
            self._reports.append(Probed(node=node, healthy=False, message="no sign of life"))
        waiting = {node for pack in self._at_gates for node in pack.nodes}
        waiting = waiting if self._watch.answering else set(self._allocation.names)
        for node in self._probes.keys() & waiting:
            self._probes[node] = now + self._limits.probe_seconds
        self._attempts.be_patient(waiting)
        patience = self._limits.probe_seconds
        for node in [node for node, deadline in self._probes.items() if now > deadline]:
            self._lose(node, f"no answer within {patience:.0f} s")
        for slot in self._attempts.unbegun.silent(patience):
            self._lose(node_of(slot), f"its pack did not begin the attempt within {patience:.0f} s")

    def _leave(self) -> None:
        while self._at_gates:
            self._at_gates.popleft().step.input.close()
        self._probes.clear()

    def _lose(self, node: str, why: str) -> None:
        """Drop a node from its pack; its next use starts another."""
        pack = self._pack_of.pop(node, None)
        self._last_signs.pop(node, None)
        if pack is not None:
            pack.send(node, "leave")  # in case that it is alive after all
        if self._probes.pop(node, None) is not None:
            self._reports.append(Probed(node=node, healthy=False, message=why))
        for slot in [node, *(f"{node}/{share}" for share in range(self._shares[node]))]:
            if slot in self._attempts:
                self._end(slot, -9, why, suspects=(node,))

    def _settle(self, pack: Pack, since: float, now: float) -> bool:
        """Replace an ended pack, or report its attempts; False if undecided."""
        began = any(node in self._last_signs for node in pack.nodes)
        evidence = self._site.evidence(text_since(self._log, pack.log_from) if self._log else "")
        if not began and self._watch.excuses(evidence, pack.nodes, pack.begun):
            if now < since + AGAIN:
                return False
            self._begin_again(pack, [pack.nodes])
        elif not self._watch.has_spoken((), since):
            return False
        elif len(pack.nodes) > 1 and not began:
            half = len(pack.nodes) // 2  # it names no culprit: two smaller ones start without it, or find it
            self._begin_again(pack, [pack.nodes[:half], pack.nodes[half:]])
        else:
            self._give_up(pack)
        return True

    def _begin_again(self, pack: Pack, groups: Iterable[tuple[str, ...]]) -> None:
        """New packs instead of one that did not start."""
        for nodes in groups:
            self._new_pack(nodes)
        self._attempts.be_patient(pack.nodes)
        for slot, attempt in self._attempts.items():
            if node_of(slot) in pack.nodes:
                self._send(slot, self._request(attempt.task))
        for node in self._probes.keys() & set(pack.nodes):
            self._send(node, "probe")

    def _give_up(self, pack: Pack) -> None:
        """Report the attempts of a pack that cannot be replaced."""
        for node in [node for node, one in self._pack_of.items() if one is pack]:
            del self._pack_of[node]
            self._last_signs.pop(node, None)
            if self._probes.pop(node, None) is not None:
                self._reports.append(Probed(node=node, healthy=False, message=self._ended_text))
        for slot, attempt in list(self._attempts.items()):
            if node_of(slot) in pack.nodes and node_of(slot) not in self._pack_of:
                self._end(slot, None if attempt.identity is None else -9, self._ended_text)

    @property
    def _ended_text(self) -> str:
        return "its worker ended" + (f"; see {self._log}" if self._log else "")

    def _end(self, slot: str, code: int | None, message: str = "", **facts: Any) -> None:
        """End an attempt; the report may wait for its record."""
        ours = self._revoked or self._attempts[slot].ended_by_us
        end = self._attempts.end(slot, code, message, interrupted=bool(self._revoked), **facts)
        if ours or end.suspects:
            self._reports.append(end)
        else:
            self._open_ends.add(end)


def pack_at_gate(site: Site, step: Step, environment: Mapping[str, str], log: Path | None) -> Pack:
    """Return a pack's job step at its gate; OSError where none starts."""
    with open_log(log) if log else Path(os.devnull).open("wb") as file:
        log_from = file.tell()
        process = StepProcess(site, step, subprocess.PIPE, environment, file)
    reports = process.process.stdout
    assert reports is not None
    return Pack(step=process, nodes=step.nodes, reports=reports, log_from=log_from)
