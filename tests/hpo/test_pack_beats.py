"""Runs in a pack show on their node that they live, and their controller hears of it through the pipe: no shared file is touched."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.launcher import Begun, Exit, Task
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites.pbs import Mpiexec

HANG = 3.0  # seconds
MPIEXEC = """#!/bin/sh
# starts the program on this machine, whatever nodes are asked for
until [ "${1#*python}" != "$1" ]; do shift; done
exec "$@"
"""
MODULE = """
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
for name in ("until", "attempt", "micro-batches", "ranks", "threads"):
    parser.add_argument(f"--{name}", type=float)
parser.add_argument("--beats", type=pathlib.Path)
options = parser.parse_args()
(options.folder / "beats").write_text(str(options.beats))
for beat in range(int(10 * options.until)):  # tenths of seconds
    options.beats.write_text(str(beat))
    time.sleep(0.1)
if options.folder.name == "hangs":
    time.sleep(600)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[PackLauncher]:
    """Two shares of one node, which is this machine."""
    (tmp_path / "beating.py").write_text(MODULE)
    program = tmp_path / "mpiexec"
    program.write_text(MPIEXEC)
    program.chmod(0o755)
    site = Mpiexec(hydra=True, program=str(program), pbsnodes=False)
    launcher = PackLauncher(
        site,
        Allocation(by="pbs", nodes=alike(("n1",), 2), job=""),
        shares=2,
        log=tmp_path / "packs.txt",
        hang_seconds=HANG,
        module="beating",
        environment={"PYTHONPATH": str(tmp_path)},
    )
    yield launcher
    launcher.close()


def test_runs_of_a_pack_are_heard_through_its_pipe_and_one_that_falls_silent_is_killed(
    launcher: PackLauncher, tmp_path: Path
) -> None:
    names, ends, began = ("lives", "hangs"), dict[str, Exit](), list[Task]()
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        epochs = int(3 * HANG) if name == "lives" else 1
        task = Task(trial=number, attempt=1, until=epochs, folder=tmp_path / name, slots=(f"n1/{number}",))
        launcher.start(task)
    deadline = time.monotonic() + 240
    while len(ends) < len(names):
        assert time.monotonic() < deadline, (tmp_path / "packs.txt").read_text()
        for report in launcher.poll(0.5):
            if isinstance(report, Begun):
                began.append(report.task)
                launcher.go(report.task)
            elif isinstance(report, Exit):
                ends[report.task.folder.name] = report
    assert (ends["hangs"].hung, ends["hangs"].code) == (True, -9)
    assert (ends["lives"].hung, ends["lives"].code) == (False, 0)
    for name in names:
        assert sorted(file.name for file in (tmp_path / name).iterdir()) == ["beats", "log.txt"]
        assert not Path((tmp_path / name / "beats").read_text()).exists(), "what lay on the node is gone with the run"
