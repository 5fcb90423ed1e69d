"""A rank runs on the cores beside its GPU, unless its launcher has chosen others."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydragnn.distributed.ranks import bind_near, cores_given_back

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
def test_only_a_rank_that_may_use_all_cores_beside_its_gpu_is_bound(
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
