"""Packs of many nodes begin at the rate that a scheduler can bear, and none is late before its turn."""

import time
from pathlib import Path

import pytest

from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.job_step import BURST
from hydragnn.hpo.launching.launcher import Exit, Task
from hydragnn.hpo.launching.packs import PackLauncher
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
    """When the packs of nodes were started."""
    lines = (tmp_path / "notes").read_text().splitlines() if (tmp_path / "notes").exists() else []
    return {node: float(at) for at, node, *_ in (line.split() for line in lines)}


def task(tmp_path: Path, number: int) -> Task:
    folder = tmp_path / f"{number:04d}"
    folder.mkdir()
    return Task(trial=number, attempt=1, until=1, folder=folder, slots=(f"{NODES[number]}",))


def test_packs_begin_at_the_rate_and_wait_for_their_turn_without_being_late(
    launcher: PackLauncher, tmp_path: Path
) -> None:
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
