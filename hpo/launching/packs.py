"""Small trials by the thousand: few job steps, each of which carries resident workers of many nodes, one per share of a node.

A pack's step outlives its trials and the loss of its nodes; every trial has its own record, log, cores and GPUs. ``pack.py``
is the other side. The packs end with the controller, because their input then ends.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from hydragnn.hpo.launching.allocation import Allocation
from hydragnn.hpo.launching.attempts import Beats, seconds_between_beats, text_since
from hydragnn.hpo.launching.descriptors import Ears, allow_many_files
from hydragnn.hpo.launching.launcher import Begun, Exit, Report, Task
from hydragnn.hpo.launching.local import MODULE, shares_of
from hydragnn.hpo.launching.packstep import GoodEnds, Pack, PackAttempt, PackQueue, pack_at_gate, request_of
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.stepprocess import STEP_RATE, end_steps
from hydragnn.hpo.launching.steps import AllocationLauncher
from hydragnn.hpo.launching.watchdog import AGAIN
from hydragnn.hpo.scheduling.events import Identity, Probed, node_of

PACK = Path(__file__).with_name("pack.py")
SILENCE = 30.0  # seconds without a sign of life after which a node counts as lost; it gives one every five
LAST_WORDS = 5.0  # seconds that a killed attempt's worker may take to say so
LEAVE = 15.0  # seconds that packs of an allocation that is over may take to end
LOOK_EVERY = 0.5  # seconds between looks at all attempts
PAUSE = 0.05  # seconds between looks at the steps themselves


class PackLauncher(AllocationLauncher):
    """Runs ``hydragnn.runs.run`` once per share of a node, by workers that stay."""

    def __init__(
        self,
        site: Site,
        allocation: Allocation,
        *,
        shares: int,
        log: Path,
        together: int = 1,
        rate: float = STEP_RATE,
        hang_seconds: float = 600.0,
        probe_seconds: float = 120.0,
        module: str = MODULE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``shares`` of a node, of which so many that are ``together`` share a process; at most ``rate`` steps begin per second."""
        allow_many_files()  # two pipes per pack, and where a launcher feeds its first rank only, one pack per node
        super().__init__(site, allocation, module, environment)
        self._shares, self._log, self._together = shares, log, together
        self._hang, self._patience = hang_seconds, probe_seconds
        self._numbers, self._queue = itertools.count(), PackQueue(rate)
        self._pack_of: dict[str, Pack] = {}
        self._packs: list[Pack] = []
        self._ears = Ears()
        self._good_ends = GoodEnds(self._ears.ring)
        self._last_signs: dict[str, float] = {}
        """When a node last gave a sign of life."""
        self._attempts: dict[str, PackAttempt] = {}
        self._slot_of: dict[int, str] = {}
        self._probes: dict[str, float] = {}
        self._ended_packs: list[tuple[Pack, float]] = []
        """Packs whose steps have ended, and when: they wait for the scheduler's word, like ends without a result."""
        self._open_ends: list[tuple[Exit, float]] = []
        self._leave_by = float("inf")
        self._next_look = self._next_rest = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """The shares of all nodes; first one of each node, so that few trials spread over many."""
        return shares_of(self._allocation.nodes, self._shares)

    @property
    def beat_seconds(self) -> float:
        """Rare, because what decides comes through the pipes."""
        return seconds_between_beats(len(self.slots), math.inf)

    def recover(self, identities: Iterable[Identity]) -> None:
        """End the packs of a dead controller, and with them all of its attempts."""
        unique = {(one.get("job"), one.get("step"), one.get("pid")): one for one in identities}
        end_steps(self._site, unique.values())

    def _begin(self, task: Task, log: IO[bytes]) -> None:
        """Ask the slot's worker for an attempt."""
        slot, request = task.slots[0], request_of(task)
        pack = self._pack(node_of(slot))
        self._slot_of[task.trial] = slot
        self._attempts[slot] = PackAttempt(task=task, request=request, asked=time.monotonic())
        pack.send(slot, request)

    def go(self, task: Task) -> None:
        """Let an attempt work that has begun."""
        attempt = self._attempts.get(task.slots[0])
        if attempt is not None and attempt.task == task:
            attempt.heartbeat = Beats(patience=self._hang)
            self._send(task.slots[0], "go")

    def poll(self, seconds: float, bell: int | None = None) -> list[Report]:
        """What happened, after waiting up to so many seconds for the first, or until the bell rings."""
        deadline = time.monotonic() + seconds
        while True:
            self._send_rest()
            rung = self._hear(0.0 if self._reports else max(0.0, min(PAUSE, deadline - time.monotonic())), bell)
            complete, incomplete = self._good_ends.read()
            self._reports += complete
            self._wait_for_word(*incomplete)
            self._look()
            if self._reports or rung or time.monotonic() >= deadline:
                reports, self._reports = self._reports, []
                return reports

    def cancel(self, trial: int, grace: float) -> None:
        """Ask a trial to save itself; it is killed after ``grace`` seconds."""
        slot = self._slot_of.get(trial, "")
        attempt = self._attempts.get(slot)
        if attempt is not None and attempt.task.trial == trial and not attempt.asked_to_leave:
            attempt.asked_to_leave, attempt.kill_at = True, time.monotonic() + grace
            self._send(slot, "term")

    def probe(self, node: str) -> None:
        """Let a node's part of the pack probe it; a node without one gets a pack of its own."""
        if self._revoked:
            return
        try:
            pack = self._pack(node)
        except OSError as error:
            self._reports.append(Probed(node=node, healthy=False, message=f"cannot start a probe: {error}"))
            return
        self._probes[node] = time.monotonic() + self._patience
        pack.send(node, "probe")

    def close(self) -> None:
        """End all packs: first by the end of their input, so that nothing of them stays behind."""
        self._watch.close()
        for pack in self._packs:
            pack.step.input.close()
        deadline = time.monotonic() + LAST_WORDS
        for pack in self._packs:
            self._ears.close(pack.reports.fileno())
            while pack.step.poll() is None and time.monotonic() < deadline:
                time.sleep(PAUSE)
            pack.end()
        self._packs, self._ended_packs, self._pack_of = [], [], {}
        self._attempts.clear()
        self._good_ends.close()
        self._ears.end()

    def _pack(self, node: str) -> Pack:
        """The pack that serves a node; the first call starts those of all nodes, later ones that of a single node."""
        if not self._packs and not self._ended_packs:
            nodes, size = self._allocation.nodes, self._site.pack_nodes
            for begin in range(0, len(nodes), size):
                self._new_pack(nodes[begin : begin + size])
        elif node not in self._pack_of:
            self._new_pack((node,))
        return self._pack_of[node]

    def _new_pack(self, nodes: tuple[str, ...]) -> None:
        options = ["--nodes", ",".join(nodes), "--shares", str(self._shares), "--gpus", str(self._allocation.gpus)]
        options += ["--together", str(self._together), "--hang-seconds", str(self._hang)]
        step = Step(
            name=f"pack-{os.getpid()}-{next(self._numbers)}",
            nodes=nodes,
            program=(sys.executable, "-P", str(PACK), *options, self._module),
            resident=True,
        )
        pack = pack_at_gate(self._site, step, self._environment, self._log)
        self._packs.append(pack)
        self._ears.open(pack.reports.fileno(), pack)
        self._queue.open(self._log, pack)
        self._pack_of.update(dict.fromkeys(nodes, pack))

    def _send(self, slot: str, words: str) -> None:
        pack = self._pack_of.get(node_of(slot))
        if pack is not None:
            pack.send(slot, words)

    def _send_rest(self) -> None:
        """Start the packs whose turn it is, and send what pipes had no room for; at every pause, not at every sign of life of thousands of nodes."""
        now = time.monotonic()
        if now < self._next_rest:
            return
        self._next_rest = now + PAUSE
        self._queue.open(self._log)
        for pack in self._packs:
            if pack.unsent:
                pack.flush()

    def _hear(self, wait: float, bell: int | None) -> bool:
        """Hear all packs that have something to say, after waiting for the first; True where the bell rings."""
        packs, rung = self._ears.listen(wait, bell)
        for pack in packs:
            self._receive(pack)
        return rung

    def _receive(self, pack: Pack) -> None:
        received = os.read(pack.reports.fileno(), 1 << 20)
        if not received:
            self._pack_ended(pack)
            return
        *lines, pack.unread = (pack.unread + received).split(b"\n")
        for line in lines:
            slot, _, text = line.decode(errors="replace").partition(" ")
            if self._pack_of.get(node_of(slot)) is pack:
                self._last_signs[node_of(slot)] = time.monotonic()
                with suppress(ValueError):  # a line of somebody else, for example of a library
                    self._handle_report(pack, slot, json.loads(text))

    def _handle_report(self, pack: Pack, slot: str, report: dict[str, Any]) -> None:
        if "healthy" in report and self._probes.pop(slot, None) is not None:
            self._reports.append(Probed(node=slot, healthy=report["healthy"], message=report["message"]))
        attempt = self._attempts.get(slot)
        if attempt is None:
            return
        if "beat" in report and attempt.heartbeat is not None:
            attempt.heartbeat.beat()
        elif "pid" in report:
            attempt.identity = {**pack.step.identity(self._allocation.job), "slot": slot, "worker": report["pid"]}
            self._reports.append(Begun(task=attempt.task, identity=attempt.identity))
        elif "code" in report or "lost" in report:
            code = report.get("code", report.get("lost"))
            self._end(slot, code=code, starved=report["oom"] and not attempt.killed, message="")

    def _look(self) -> None:
        """Act on lost nodes and on attempts that are late, hang, or never begin."""
        now = time.monotonic()
        if not self._revoked:
            self._hear_scheduler()
        if self._revoked:
            self._end_revoked(now)
            return
        self._release(now)
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        for node, last_sign in list(self._last_signs.items()):
            if now - last_sign > SILENCE:
                self._lose(node, f"no sign of life for {SILENCE:.0f} s")
                self._reports.append(Probed(node=node, healthy=False, message="no sign of life"))
        self._be_patient(now, self._queue.nodes() if self._watch.answering else set(self._allocation.nodes))
        for node, deadline in list(self._probes.items()):
            if now > deadline:
                del self._probes[node]
                message = f"no answer within {self._patience:.0f} s"
                self._reports.append(Probed(node=node, healthy=False, message=message))
                self._lose(node, message)
        for slot, attempt in list(self._attempts.items()):
            self._follow(slot, attempt, now)

    def _leave(self) -> None:
        """The allocation is over: its packs end by themselves."""
        self._leave_by = time.monotonic() + LEAVE
        self._queue.clear()
        self._probes.clear()

    def _end_revoked(self, now: float) -> None:
        """Tell what ended with the allocation: at once what has, the rest when its pack has."""
        self._release(now)
        if not self._packs or now >= self._leave_by:
            for slot in list(self._attempts):
                self._end(slot, code=-9, message=self._revoked)

    def _release(self, now: float) -> None:
        """Go on with what waited for the scheduler's word."""
        open_ends, self._open_ends = self._open_ends, []
        for end, since in open_ends:
            if self._revoked:
                self._reports.append(replace(end, interrupted=True, message=self._revoked))
            elif self._watch.has_spoken((), since):  # of its nodes, the workers themselves tell
                self._reports.append(end)
            else:
                self._open_ends.append((end, since))
        ended, self._ended_packs = self._ended_packs, []
        for pack, since in ended:
            if not self._revoked and not self._settle(pack, since, now):
                self._ended_packs.append((pack, since))

    def _be_patient(self, now: float, nodes: set[str]) -> None:
        """Nobody is late whom the scheduler has to start, while it does not answer or has not been asked."""
        for node in self._probes.keys() & nodes:
            self._probes[node] = now + self._patience
        for slot, attempt in self._attempts.items() if nodes else ():
            if node_of(slot) in nodes:
                attempt.asked = now

    def _follow(self, slot: str, attempt: PackAttempt, now: float) -> None:
        if attempt.identity is None and now - attempt.asked > self._patience:
            self._lose(node_of(slot), f"its pack did not begin the attempt within {self._patience:.0f} s")
        elif attempt.killed is not None:
            if now - attempt.killed > LAST_WORDS:
                self._end(slot, code=-9, message="killed; its worker did not answer")
        elif now >= attempt.kill_at or (attempt.heartbeat is not None and attempt.heartbeat.stopped()):
            attempt.hung = now < attempt.kill_at
            attempt.killed = now
            self._send(slot, "kill")

    def _lose(self, node: str, why: str) -> None:
        """A node's part of its pack is no more; it gets a new one when it is used again."""
        pack = self._pack_of.pop(node, None)
        self._last_signs.pop(node, None)
        if pack is not None:
            pack.send(node, "leave")  # in case that it is alive after all
        if self._probes.pop(node, None) is not None:
            self._reports.append(Probed(node=node, healthy=False, message=why))
        for slot in [node, *(f"{node}/{share}" for share in range(self._shares))]:
            if slot in self._attempts:
                self._end(slot, code=-9, message=why, suspects=(node,))

    def _pack_ended(self, pack: Pack) -> None:
        """A whole step is gone; what follows waits for the scheduler's word."""
        self._packs.remove(pack)
        self._ears.close(pack.reports.fileno())
        pack.end()
        self._ended_packs.append((pack, time.monotonic()))
        self._watch.hurry()

    def _settle(self, pack: Pack, since: float, now: float) -> bool:
        """Give the nodes of an ended pack new ones, and let what ran there be tried again; False where it is too early to say."""
        began = any(node in self._last_signs for node in pack.nodes)
        evidence = self._site.evidence(text_since(self._log, pack.log_from))
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
        for slot, attempt in self._attempts.items():
            if node_of(slot) in pack.nodes:
                attempt.asked = time.monotonic()
                self._send(slot, attempt.request)
        for node in self._probes.keys() & set(pack.nodes):
            self._send(node, "probe")

    def _give_up(self, pack: Pack) -> None:
        """A pack is gone that had started, or that is a single node's."""
        for node in [node for node, one in self._pack_of.items() if one is pack]:
            del self._pack_of[node]
            self._last_signs.pop(node, None)
            if self._probes.pop(node, None) is not None:
                self._reports.append(Probed(node=node, healthy=False, message=f"its step ended; see {self._log}"))
        for slot, attempt in list(self._attempts.items()):
            if node_of(slot) in pack.nodes and node_of(slot) not in self._pack_of:
                code = None if attempt.identity is None else -9
                self._end(slot, code=code, message=f"the pack's step ended; see {self._log}")

    def _end(
        self, slot: str, *, code: int | None, starved: bool = False, message: str, suspects: tuple[str, ...] = ()
    ) -> None:
        attempt = self._attempts.pop(slot)
        hung = attempt.hung
        if attempt.killed is not None or (attempt.asked_to_leave and code not in (0, None)):
            code = -9
        message = f"no heartbeat for {self._hang:.0f} s" if hung else message
        end = Exit(
            task=attempt.task,
            code=code,
            out_of_memory=starved,
            hung=hung,
            suspects=suspects,
            interrupted=bool(self._revoked),
            message=message,
        )
        ours = self._revoked or suspects or attempt.killed is not None or attempt.asked_to_leave
        if ours:
            self._reports.append(end)
        elif code == 0:
            self._good_ends.add(end)
        else:
            self._wait_for_word(end)

    def _wait_for_word(self, *ends: Exit) -> None:
        """Keep ends without a result until the scheduler has said that the allocation lives."""
        for end in ends:
            self._open_ends.append((end, time.monotonic()))
            self._watch.hurry()
