"""The nodes' side of packs by the hundred, in one process: workers that begin, show that they live, and end at random moments.

``PackLauncher`` is the real one; only the steps are missing, whose pipes lead here.
"""

import io
import json
import multiprocessing
import os
import random
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn.hpo.launching import packs
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.packs import Pack, PackLauncher
from hydragnn.hpo.launching.sites import Site, Step
from hydragnn.hpo.launching.sites.pbs import Mpiexec

ALIVE, BEATS = 5.0, 30.0
"""Seconds between signs of life of a node, and of an attempt, as ``worker.py`` has them."""


@dataclass
class VirtualStep:
    """A step whose processes are elsewhere."""

    name: str
    input: io.FileIO
    started: bool = False

    def go(self) -> None:
        """Open the gate."""
        self.started = True

    def poll(self) -> int | None:
        """It runs as long as it is asked for anything."""
        return 0 if self.input.closed else None

    def identity(self, job: str) -> dict[str, Any]:
        """What names it."""
        return {"host": "here", "pid": os.getpid(), "created": 1.0, "job": job, "step": self.name}


@dataclass
class Nodes:
    """All nodes of all packs."""

    pipes: Sequence[tuple[int, int]]
    """Of every pack, the end from which requests are read, and the one that reports are written into."""
    nodes: Sequence[Sequence[str]]
    slots: int
    due: Any
    """Where to say when an attempt ended, by trial."""
    pace: float
    chance: random.Random
    write_record: Callable[[Task, float], None]
    asked: dict[str, tuple[int, Task]] = field(default_factory=dict)
    running: list[tuple[int, str, Task]] = field(default_factory=list)
    full: bool = False
    signs: int = 0
    beats: int = 0

    def serve(self) -> None:
        """Answer until all requests have ended."""
        selector, unread = selectors.DefaultSelector(), [b""] * len(self.pipes)
        for pack, (requests, _) in enumerate(self.pipes):
            selector.register(requests, selectors.EVENT_READ, pack)
        begun, next_end = time.perf_counter(), 0.0
        while selector.get_map():
            for key, _ in selector.select(0.001):
                received = os.read(key.fd, 1 << 20)
                if not received:
                    selector.unregister(key.fd)
                *lines, unread[key.data] = (unread[key.data] + received).split(b"\n")
                for line in lines:
                    self.obey(key.data, *line.decode().split(" ", 1))
            now = time.perf_counter()
            self.show_life(now - begun)
            self.full = self.full or len(self.running) == self.slots
            next_end = next_end if self.full else now
            while self.full and self.running and next_end <= now:
                self.end()
                next_end += self.chance.expovariate(self.pace)

    def show_life(self, seconds: float) -> None:
        """The signs of life that are due after so many seconds, one node and one attempt after the other."""
        while self.signs < seconds * self.slots / ALIVE:
            pack, place = divmod(self.signs % self.slots, len(self.nodes[0]))
            self.say(pack, self.nodes[pack][place], {"alive": True})
            self.signs += 1
        while self.running and self.beats < seconds * len(self.running) / BEATS:
            pack, slot, _ = self.running[self.beats % len(self.running)]
            self.say(pack, slot, {"beat": True})
            self.beats += 1

    def obey(self, pack: int, slot: str, words: str) -> None:
        """Do what a line asks for."""
        if words.startswith("{"):
            folder, *rest = json.loads(words)["arguments"]
            until, attempt = (int(rest[rest.index(name) + 1]) for name in ("--until", "--attempt"))
            task = Task(trial=int(Path(folder).name), attempt=attempt, until=until, folder=Path(folder), slots=(slot,))
            self.asked[slot] = pack, task
            self.say(pack, slot, {"pid": 1})
        elif words == "go":
            pack, task = self.asked.pop(slot)
            self.write_record(task, self.chance.random())
            self.running.append((pack, slot, task))
        elif words == "probe":
            self.say(pack, slot, {"healthy": True, "message": ""})

    def end(self) -> None:
        """Let some attempt end."""
        index = self.chance.randrange(len(self.running))
        self.running[index], self.running[-1] = self.running[-1], self.running[index]
        pack, slot, task = self.running.pop()
        self.due[task.trial] = time.perf_counter()
        self.say(pack, slot, {"code": 0, "oom": False})

    def say(self, pack: int, slot: str, report: Mapping[str, Any]) -> None:
        """One line to the controller."""
        with suppress(BrokenPipeError):  # the controller has gone
            os.write(self.pipes[pack][1], f"{slot} {json.dumps(report)}\n".encode())


def virtual_packs(
    count: int, slots: int, trials: int, pace: float, seed: int, log: Path, write_record: Callable[[Task, float], None]
) -> tuple[PackLauncher, Any]:
    """A launcher of so many packs with so many slots together, and the array that says when the attempts of each trial ended."""
    size = slots // count
    names = tuple(f"n{number:05d}" for number in range(count * size))
    theirs, ours = [], []
    for _ in range(count):
        (requests, to_them), (from_them, reports) = os.pipe(), os.pipe()
        theirs.append((requests, reports))
        ours.append((to_them, from_them))
    due = multiprocessing.get_context("fork").Array("d", trials, lock=False)
    groups = [names[begin : begin + size] for begin in range(0, len(names), size)]
    nodes = Nodes(theirs, groups, len(names), due, pace, random.Random(seed), write_record)

    def far_side() -> None:
        for pair in ours:
            for end in pair:
                os.close(end)
        nodes.serve()

    multiprocessing.get_context("fork").Process(target=far_side, daemon=True).start()
    for pair in theirs:
        for end in pair:
            os.close(end)
    pipes = iter(ours)

    def pack_of(site: Site, step: Step, environment: Mapping[str, str], log: Path) -> Pack:
        to_them, from_them = next(pipes)
        virtual: Any = VirtualStep(step.name, io.FileIO(to_them, "w"))
        return Pack(step=virtual, nodes=step.nodes, reports=io.FileIO(from_them, "r"), log_from=0)  # type: ignore[arg-type]

    vars(packs)["pack_at_gate"] = pack_of
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()

    site = Mpiexec(hydra=True, program="true", pbsnodes=False, pack_nodes=size)
    allocation = Allocation(by="pbs", nodes=alike(names, 1), job="")
    return PackLauncher(site, allocation, shares=1, log=log, limits=Limits(rate=1e6)), due
