"""Packs and workers of a node: rates, silence, pipes by the thousand, and attempts that end with what made them."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from campaigns import of_module

from hydragnn.base.files import allow_many_files
from hydragnn.hpo import LocalLauncher
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Launcher, Limits
from hydragnn.hpo.launching.attempts import STALLS, LastSigns
from hydragnn.hpo.launching.job_step import BURST
from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.packs import WORKER, PackLauncher
from hydragnn.hpo.launching.sites.pbs import Mpiexec

RATE, PATIENCE = 4.0, 1.5
NODES = tuple(f"n{number}" for number in range(BURST + 6))
MPIEXEC = """#!/bin/sh
# notes when it was started for which node, and reads what it is told until there is no more
date +"%s.%N $2 $4" >> {notes}
cat > /dev/null
"""


@pytest.fixture
def launcher(tmp_path: Path) -> PackLauncher:
    """Starts a pack for each node with a launcher that takes notes and says nothing."""
    program = tmp_path / "mpiexec"
    program.write_text(MPIEXEC.format(notes=tmp_path / "notes"))
    program.chmod(0o755)
    site = Mpiexec(hydra=True, program=str(program), pbsnodes=False)
    allocation = Allocation(by="pbs", nodes=alike(NODES, 4), job="7")
    return PackLauncher(
        site, allocation, shares=1, log=tmp_path / "packs.txt", limits=Limits(rate=RATE, probe_seconds=PATIENCE)
    )


def started(tmp_path: Path) -> dict[str, float]:
    lines = (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []
    return {node: float(at) for at, node, *_ in (line.split() for line in lines)}


def task(tmp_path: Path, number: int) -> Task:
    folder = tmp_path / f"{number:04d}"
    folder.mkdir()
    return Task(trial=number, attempt=1, until=1, folder=folder, slots=(f"{NODES[number]}",))


def test_packs_begin_at_the_rate_and_are_not_late_in_their_turn(launcher: PackLauncher, tmp_path: Path) -> None:
    begin, ends = time.time(), dict[str, float]()
    for number in range(len(NODES)):
        launcher.start(task(tmp_path, number))
    while len(ends) < len(NODES):
        assert time.time() < begin + 120
        for report in launcher.poll(0.2):
            if isinstance(report, Exit):
                ends[report.task.slots[0]] = time.time()
    times = started(tmp_path)
    launcher.close()
    assert set(times) == set(NODES)
    for number, at in enumerate(sorted(times.values())[BURST:], start=1):
        assert at > begin + (number - 0.5) / RATE
    for number, node in enumerate(NODES, start=1 - BURST):
        turn = begin + max(0.0, number - 0.5) / RATE  # a node's own time may be later, where the machine is busy
        # the pack says nothing, and is given up for it, but not before; looks are half a second apart
        assert ends[node] > turn + PATIENCE - 0.6


def test_packs_that_wait_end_with_the_launcher(launcher: PackLauncher, tmp_path: Path) -> None:
    for number in range(len(NODES)):
        launcher.start(task(tmp_path, number))
    launcher.close()
    time.sleep(2 / RATE)
    assert len(started(tmp_path)) <= BURST


HANG = 3.0  # seconds
WORKERS = 4
MODULE = """
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
for name in ("until", "attempt", "micro-batches", "ranks", "threads"):
    parser.add_argument(f"--{name}", type=float)
parser.add_argument("--beats", type=pathlib.Path)
options = parser.parse_args()
folder, beats = options.folder, options.beats or options.folder / "heartbeat"
(folder / "where").write_text(str(beats))
while not (folder.parent / "over").exists():
    if not any((folder.parent / name).exists() for name in ("frozen", f"frozen-{folder.name}")):
        beats.write_text(str(time.time()))
    time.sleep(0.1)
"""
RUNS_HERE = """#!/bin/sh
# starts the program on this machine, whatever nodes are asked for
until [ "${1#*python}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture(params=["processes", "a pack"])
def silent_launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """Processes of this machine, or a pack whose one node is this machine."""
    (tmp_path / "beating.py").write_text(MODULE)
    environment = {"PYTHONPATH": str(tmp_path)}
    silent_launcher: Launcher
    if request.param == "processes":
        silent_launcher = of_module(LocalLauncher, "beating", environment)(WORKERS, hang_seconds=HANG)
    else:
        program = tmp_path / "mpiexec"
        program.write_text(RUNS_HERE)
        program.chmod(0o755)
        silent_launcher = of_module(PackLauncher, "beating", environment)(
            Mpiexec(hydra=True, program=str(program), pbsnodes=False),
            Allocation(by="pbs", nodes=alike(("n1",), 2)),
            shares=WORKERS,
            log=tmp_path / "packs.txt",
            limits=Limits(hang_seconds=HANG),
        )
    yield silent_launcher
    silent_launcher.close()


def test_an_attempt_is_killed_where_its_heartbeat_alone_stops(silent_launcher: Launcher, tmp_path: Path) -> None:
    """Heartbeats of a pack lie on its node: no file that others share is touched."""
    folders, ends = [tmp_path / str(number) for number in range(WORKERS)], list[Exit]()
    for number, slot in enumerate(silent_launcher.slots):
        folders[number].mkdir()
        silent_launcher.start(Task(trial=number, attempt=1, until=1, folder=folders[number], slots=(slot,)))

    def follow(enough: Callable[[], bool], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not enough() and time.monotonic() < deadline:
            for report in silent_launcher.poll(0.2):
                if isinstance(report, Begun):
                    silent_launcher.go(report.task)
                elif isinstance(report, Exit):
                    ends.append(report)

    follow(lambda: all((folder / "where").exists() for folder in folders))
    beats = [Path((folder / "where").read_text()) for folder in folders]
    follow(lambda: all(path.exists() and path.read_text() for path in beats))
    (tmp_path / "frozen").touch()
    follow(lambda: False, 1.5 * HANG)  # silence is judged at once and twice the patience, so that neither is near
    assert ends == []
    (tmp_path / "frozen").unlink()
    (tmp_path / "frozen-2").touch()
    follow(lambda: bool(ends))
    (tmp_path / "over").touch()
    follow(lambda: len(ends) == WORKERS)
    assert {end.task.trial: (end.hung, end.code) for end in ends} == {
        number: (number == 2, -9 if number == 2 else 0) for number in range(WORKERS)
    }
    if isinstance(silent_launcher, LocalLauncher):
        assert beats == [folder / "heartbeat" for folder in folders]
    else:
        assert {file.name for folder in folders for file in folder.iterdir()} == {"where", "log.txt"}
        assert not any(path.exists() for path in beats), "what lay on the node is gone with the runs"


@pytest.mark.parametrize(
    ("looks", "stalls"),
    [
        ([(0, 9)] * (STALLS + 1), [True] * STALLS + [False]),
        ([(0, 9), (5, 9), *[(0, 9)] * (STALLS + 1)], [True, False, *[True] * STALLS, False]),
        ([(0, 1)], [False]),
    ],
    ids=["together for ever", "most live in between", "alone"],
)
def test_silence_of_most_at_once_is_a_stall_for_some_time(looks: list[tuple[int, int]], stalls: list[bool]) -> None:
    signs = LastSigns()
    assert [signs.is_stall(*look) for look in looks] == stalls


LONG = 240.0  # seconds for what a loaded machine does within few
SLOTS = ("n1/0", "n1/1", "n1/2")
LASTING = """
import json, os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
child = subprocess.Popen(["sleep", "1000"])
note = {"cores": sorted(os.sched_getaffinity(0)), "threads": sys.argv[3], "omp": os.environ["OMP_NUM_THREADS"],
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "step": os.environ.get("PMI_RANK"), "child": child.pid}
(folder / "note.tmp").write_text(json.dumps(note))
(folder / "note.tmp").rename(folder / "note")
time.sleep(1000)
"""


class Node:
    """A worker with three slots, spoken to as a launcher does."""

    def __init__(self, folder: Path) -> None:
        (folder / "lasting.py").write_text(LASTING)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PMI_RANK": "0", "CUDA_VISIBLE_DEVICES": "4,5,6"}
        options = {"nodes": ["n1"], "shares": 3, "gpus": 3, "forget": "PMI_.*", "hang_seconds": 600.0}
        command = [sys.executable, "-P", str(WORKER), json.dumps(options), "lasting"]
        pipe = subprocess.PIPE
        self.folder = folder
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment)

    def say(self, name: str, words: str) -> None:
        self.process.stdin.write(f"{name} {words}\n".encode())

    def report(self, name: str, key: str) -> Any:
        """What the next report of a slot about something says."""
        while True:
            slot, _, words = self.process.stdout.readline().decode().partition(" ")
            if slot == name and key in json.loads(words):
                return json.loads(words)[key]

    def begin(self, slot: str, name: str) -> list[psutil.Process]:
        """The process of an attempt that works, and the one that it has started."""
        folder = self.folder / name
        folder.mkdir()
        request = {"arguments": [str(folder), "--threads", "{threads}"], "log": str(folder / "log.txt")}
        self.say(slot, json.dumps(request))
        attempt = psutil.Process(self.report(slot, "pid"))
        self.say(slot, "go")
        deadline = time.monotonic() + LONG
        while not (folder / "note").exists():
            assert time.monotonic() < deadline, (folder / "log.txt").read_text()
            time.sleep(0.02)
        return [attempt, psutil.Process(self.note(name)["child"])]

    def note(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name / "note").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.process.kill()
    node.process.wait()
    for pipe in (node.process.stdin, node.process.stdout):
        pipe.close()


@pytest.mark.parametrize(
    "end",
    [lambda node: node.process.stdin.close(), lambda node: node.process.kill(), lambda node: node.say("n1", "leave")],
    ids=["the controller is gone", "the worker is killed", "the node is to leave"],
)
def test_no_attempt_outlives_the_process_that_made_them_all(node: Node, end: Callable[[Node], None]) -> None:
    processes = [process for slot in SLOTS for process in node.begin(slot, slot[-1])]
    end(node)
    _, alive = psutil.wait_procs(processes, timeout=LONG)
    assert not alive


def all_threads_stopped(pid: int) -> bool:
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_an_attempt_that_is_stuck_keeps_no_other_alive(node: Node) -> None:
    """Those that were forked later hold nothing of the earlier ones."""
    well, stuck = [*node.begin(SLOTS[0], "0"), *node.begin(SLOTS[1], "1")], node.begin(SLOTS[2], "2")
    stuck[0].suspend()
    deadline = time.monotonic() + LONG
    while not all_threads_stopped(stuck[0].pid):  # one that still runs would end its own attempt
        assert time.monotonic() < deadline
    node.process.kill()
    _, alive = psutil.wait_procs(well, timeout=LONG)
    assert not alive and stuck[0].is_running()
    for process in stuck:
        process.kill()


def test_each_slot_has_its_part_of_the_node_and_no_peers(node: Node) -> None:
    for slot in SLOTS:
        node.begin(slot, slot[-1])
    notes = [node.note(slot[-1]) for slot in SLOTS]
    assert [note["gpus"] for note in notes] == ["4", "5", "6"]
    for note in notes:
        assert note["threads"] == note["omp"] and set(note["cores"]) <= os.sched_getaffinity(0)
        assert note["step"] is None


def test_an_attempt_ends_alone_and_a_slot_that_is_asked_again_begins_anew(node: Node) -> None:
    first, others = node.begin(SLOTS[0], "0"), [*node.begin(SLOTS[1], "1"), *node.begin(SLOTS[2], "2")]
    node.say(SLOTS[0], "kill")
    assert node.report(SLOTS[0], "code") == -signal.SIGKILL
    again = node.begin(SLOTS[1], "again")
    _, alive = psutil.wait_procs([*first, *others[:2]], timeout=LONG)
    assert not alive
    assert all(process.is_running() for process in [*again, *others[2:]])


def test_as_many_files_may_be_open_as_the_system_grants() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
