"""One process of a node makes the attempts of all its slots: each is bound, told and ended by itself, and none outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hydragnn.hpo.launching.packs import WORKER

PATIENCE = 240.0  # seconds for what a loaded machine does within few
SLOTS = ("n1/0", "n1/1", "n1/2")
MODULE = """
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
        (folder / "lasting.py").write_text(MODULE)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PMI_RANK": "0", "CUDA_VISIBLE_DEVICES": "4,5,6"}
        command = [
            sys.executable,
            "-P",
            str(WORKER),
            "--nodes",
            "n1",
            "--shares",
            "3",
            "--gpus",
            "3",
            "--forget",
            "PMI_.*",
        ]
        command.append("lasting")
        pipe = subprocess.PIPE
        self.folder = folder
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment)

    def say(self, name: str, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {words}\n".encode())

    def report(self, name: str, key: str) -> Any:
        """What the next report of a slot about something says."""
        assert self.process.stdout is not None
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
        deadline = time.monotonic() + PATIENCE
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
        assert pipe is not None
        pipe.close()


def close_input(node: Node) -> None:
    assert node.process.stdin is not None
    node.process.stdin.close()


@pytest.mark.parametrize(
    "end",
    [close_input, lambda node: node.process.kill(), lambda node: node.say("n1", "leave")],
    ids=["the controller is gone", "the worker is killed", "the node is to leave"],
)
def test_no_attempt_outlives_the_process_that_made_them_all(node: Node, end: Callable[[Node], None]) -> None:
    processes = [process for slot in SLOTS for process in node.begin(slot, slot[-1])]
    end(node)
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive


def all_threads_stopped(pid: int) -> bool:
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_an_attempt_that_is_stuck_keeps_no_other_alive(node: Node) -> None:
    """Those that were forked later hold nothing of the earlier ones."""
    well, stuck = [*node.begin(SLOTS[0], "0"), *node.begin(SLOTS[1], "1")], node.begin(SLOTS[2], "2")
    stuck[0].suspend()
    deadline = time.monotonic() + PATIENCE
    while not all_threads_stopped(stuck[0].pid):  # one that still runs would end its own attempt
        assert time.monotonic() < deadline
    node.process.kill()
    _, alive = psutil.wait_procs(well, timeout=PATIENCE)
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
    _, alive = psutil.wait_procs([*first, *others[:2]], timeout=PATIENCE)
    assert not alive
    assert all(process.is_running() for process in [*again, *others[2:]])
