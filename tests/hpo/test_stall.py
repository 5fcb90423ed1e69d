"""Silence of one is news about it; silence of most at once, or of the file system, is news about nobody."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hydragnn.hpo import LocalLauncher
from hydragnn.hpo.launching import attempts
from hydragnn.hpo.launching.attempts import STALLS, Witness
from hydragnn.hpo.launching.launcher import Begun, Exit, Task

HANG = 4.0  # seconds
WORKERS = 4
MODULE = """
import argparse, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
for name in ("until", "attempt", "micro-batches", "ranks", "threads"):
    parser.add_argument(f"--{name}", type=float)
options = parser.parse_args()
while not (options.folder.parent / "over").exists():
    if not any((options.folder.parent / name).exists() for name in ("frozen", f"frozen-{options.folder.name}")):
        (options.folder / "heartbeat").write_text(str(time.time()))
    time.sleep(0.1)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    (tmp_path / "beating.py").write_text(MODULE)
    launcher = LocalLauncher(WORKERS, module="beating", environment={"PYTHONPATH": str(tmp_path)}, hang_seconds=HANG)
    yield launcher
    launcher.close()


def test_when_all_heartbeats_stop_nobody_is_killed_and_when_one_stops_it_alone_is(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    for number, slot in enumerate(launcher.slots):
        (tmp_path / str(number)).mkdir()
        launcher.start(Task(trial=number, attempt=1, until=1, folder=tmp_path / str(number), slots=(slot,)))
    begun, ends = 0, list[Exit]()

    def follow(seconds: float) -> None:
        nonlocal begun
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for report in launcher.poll(0.2):
                if isinstance(report, Begun):
                    begun += 1
                    launcher.go(report.task)
                elif isinstance(report, Exit):
                    ends.append(report)

    deadline = time.monotonic() + 240
    while begun < WORKERS or not all((tmp_path / str(number) / "heartbeat").exists() for number in range(WORKERS)):
        assert time.monotonic() < deadline
        follow(0.2)
    (tmp_path / "frozen").touch()
    follow(2 * HANG)
    assert ends == []
    (tmp_path / "frozen").unlink()
    (tmp_path / "frozen-2").touch()
    while not ends:
        assert time.monotonic() < deadline
        follow(0.2)
    (tmp_path / "over").touch()
    while len(ends) < WORKERS:
        assert time.monotonic() < deadline
        follow(0.2)
    assert [end.task.trial for end in ends if end.hung] == [2]


def test_those_who_are_silent_together_for_ever_hang_after_all(tmp_path: Path) -> None:
    witness = Witness()
    judgements = [witness.judge(0, 9, tmp_path) for _ in range(STALLS + 1)]
    assert judgements == ["stall"] * STALLS + ["hung"]
    assert witness.judge(5, 9, tmp_path) == "hung", "most live, so that it is news about the silent one"
    assert witness.judge(0, 1, tmp_path) == "hung", "alone, but files are answered for"
    assert list(tmp_path.iterdir()) == []


def test_while_the_file_system_does_not_answer_not_even_a_single_run_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, now = threading.Event(), [0.0]
    monkeypatch.setattr(attempts, "AT_ONCE", 0.0)
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: goes_on.wait(60) and 0)
    witness = Witness(clock=lambda: now[0])
    assert witness.judge(0, 1, tmp_path) == "wait"
    now[0] = attempts.FILE_PATIENCE + 1
    assert [witness.judge(0, 1, tmp_path) for _ in range(2 * STALLS)] == ["stall"] * 2 * STALLS
    goes_on.set()
    monkeypatch.undo()
    deadline = time.monotonic() + 60
    while witness.judge(0, 1, tmp_path) != "hung":  # what was late is thrown away, and asked again
        assert time.monotonic() < deadline
        time.sleep(0.01)
