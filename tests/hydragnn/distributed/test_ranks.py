"""What a rank does for its peers and its machine: its cores, a neighbour that is stopped, and errors that all of them have."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from hydragnn.base.errors import Busy, InputError
from hydragnn.distributed.ranks import LOOKS, Ranks, _watch, bind_near, cores_given_back, said_once, watch_neighbour
from hydragnn.runs.failures import of_peer

GPU = torch.device("cuda", 1)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[set[int]]:
    (tmp_path / "0000:c1:00.0").mkdir()
    (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text("4-6,12\n")
    known = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    calls: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: calls.append(cores))
    return calls


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(range(16), [{4, 5, 6, 12}]), ([4, 5], []), ([0, 1, 2], []), ([4, 5, 6, 12], [])],
    ids=["whole node", "some beside it", "others", "just these"],
)
def test_a_rank_that_may_use_all_cores_beside_its_gpu_is_bound(
    bound: list[set[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: Any, expected: list[set[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    bind_near(GPU, tmp_path)
    assert bound == expected


def test_a_system_that_does_not_tell_binds_nothing(bound: list[set[int]], tmp_path: Path) -> None:
    bind_near(GPU, tmp_path / "nothing")
    (tmp_path / "0000:c1:00.0" / "local_cpulist").write_text("all of them")
    bind_near(GPU, tmp_path)
    assert not bound


def test_a_process_and_the_threads_of_a_run_have_their_cores_back_after_it() -> None:
    before, done = os.sched_getaffinity(0), threading.Event()
    if len(before) < 2:
        pytest.skip("one core cannot be left out")
    with cores_given_back():
        os.sched_setaffinity(0, {min(before)})
        thread = threading.Thread(target=done.wait)  # which is bound as the run is
        thread.start()
        assert os.sched_getaffinity(thread.native_id or 0) == {min(before)}
    after = os.sched_getaffinity(0), os.sched_getaffinity(thread.native_id or 0)
    done.set()
    thread.join()
    assert after == (before, before)


EVERY = 0.02


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr("hydragnn.distributed.ranks.LOOK_EVERY", EVERY)
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_rank_that_stays_stopped_is_ended(
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


@pytest.mark.parametrize(
    ("errors", "kinds"),
    [
        ([InputError("a"), InputError("a")], ["InputError: a", "SaidByFirst: a"]),
        ([InputError("a"), InputError("b")], ["InputError: a", "InputError: b"]),
        ([Busy("a"), Busy("a")], ["Busy: a", "Busy: a"]),
    ],
    ids=["same", "others", "of a kind"],
)
def test_the_first_rank_alone_says_what_all_would_say(errors: list[InputError], kinds: list[str]) -> None:
    store = dist.HashStore()

    def end_of(rank: int) -> str:
        try:
            with said_once(store, Ranks(rank=rank, size=2)):
                raise errors[rank]
        except InputError as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(end_of, range(2))) == kinds


def test_a_lost_peer_is_one_sentence_and_a_defect_is_none() -> None:
    lost = of_peer(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection reset by peer\nThis is GLHF"))
    assert lost is not None and "--resume" in lost and "\n" not in lost
    assert of_peer(RuntimeError("shapes differ")) is None
