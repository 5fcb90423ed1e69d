"""Silence of one is news about it; silence of most at once is news about nobody."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hydragnn.hpo import LocalLauncher
from hydragnn.hpo.launching.allocation import Allocation, alike
from hydragnn.hpo.launching.allocation_launcher import Limits
from hydragnn.hpo.launching.attempts import STALLS, Witness
from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Task
from hydragnn.hpo.launching.packs import PackLauncher
from hydragnn.hpo.launching.sites.pbs import Mpiexec

HANG = 4.0  # seconds
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
MPIEXEC = """#!/bin/sh
# starts the program on this machine, whatever nodes are asked for
until [ "${1#*python}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture(params=["processes", "a pack"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """Processes of this machine, or a pack whose one node is this machine."""
    (tmp_path / "beating.py").write_text(MODULE)
    environment = {"PYTHONPATH": str(tmp_path)}
    launcher: Launcher
    if request.param == "processes":
        launcher = LocalLauncher(WORKERS, module="beating", environment=environment, hang_seconds=HANG)
    else:
        program = tmp_path / "mpiexec"
        program.write_text(MPIEXEC)
        program.chmod(0o755)
        launcher = PackLauncher(
            Mpiexec(hydra=True, program=str(program), pbsnodes=False),
            Allocation(by="pbs", nodes=alike(("n1",), 2)),
            shares=WORKERS,
            log=tmp_path / "packs.txt",
            limits=Limits(hang_seconds=HANG),
            module="beating",
            environment=environment,
        )
    yield launcher
    launcher.close()


def test_when_all_heartbeats_stop_nobody_is_killed_and_when_one_stops_it_alone_is(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Heartbeats of a pack lie on its node: no file that others share is touched."""
    folders, ends = [tmp_path / str(number) for number in range(WORKERS)], list[Exit]()
    for number, slot in enumerate(launcher.slots):
        folders[number].mkdir()
        launcher.start(Task(trial=number, attempt=1, until=1, folder=folders[number], slots=(slot,)))

    def follow(enough: Callable[[], bool], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not enough() and time.monotonic() < deadline:
            for report in launcher.poll(0.2):
                if isinstance(report, Begun):
                    launcher.go(report.task)
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
    if isinstance(launcher, LocalLauncher):
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
    witness = Witness()
    assert [witness.is_stall(*look) for look in looks] == stalls
