"""A rank that stays stopped is ended by its neighbour; one that works, waits for a disk, or is stopped for a moment is not."""

import signal
import subprocess
import threading
from collections.abc import Iterator

import psutil
import pytest

from hydragnn.distributed.ranks import LOOKS, _watch, watch_neighbour

EVERY = 0.02


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr("hydragnn.distributed.ranks.LOOK_EVERY", EVERY)
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_rank_that_stays_stopped_is_named_and_ended(
    process: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    noted: list[tuple[int, str]] = []
    with watch_neighbour(2, process.pid, lambda rank, sentence: noted.append((rank, sentence))):
        process.send_signal(signal.SIGSTOP)
        assert process.wait(60) == -signal.SIGKILL
    ((rank, sentence),) = noted
    assert rank == 2 and f"(process {process.pid}) was stopped for" in sentence and sentence in capsys.readouterr().err


class Scripted(psutil.Process):
    """Stands in for a process with these states, after which it is gone."""

    def __init__(self, states: list[str]) -> None:
        self._pid, self._states, self.killed = 4711, iter(states), False

    def status(self) -> str:
        state = next(self._states, None)
        if state is None:
            raise psutil.NoSuchProcess(self.pid)
        return state

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(
    ("states", "ended"),
    [
        ([psutil.STATUS_STOPPED] * LOOKS, True),
        ([*[psutil.STATUS_STOPPED] * (LOOKS - 1), psutil.STATUS_RUNNING] * 3, False),
        ([psutil.STATUS_DISK_SLEEP] * 3 * LOOKS, False),  # a file system that stalls
        ([psutil.STATUS_TRACING_STOP] * 3 * LOOKS, False),  # a debugger
    ],
)
def test_only_what_stays_stopped_is_ended(states: list[str], ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.distributed.ranks.LOOK_EVERY", 0.0)
    process = Scripted(states)
    _watch(process, 1, lambda rank, sentence: None, threading.Event())
    assert process.killed == ended


def test_one_that_has_died_is_nobodys_to_end() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with watch_neighbour(1, process.pid, lambda rank, sentence: pytest.fail(sentence)):
        pass
