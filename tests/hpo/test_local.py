"""Trials on one machine: workers with GPUs of their own, runs of two ranks without orphans, and their probes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from campaigns import Settings, course, ends, of_module, read_journal, reports_until

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import Launch
from hydragnn.distributed.meeting import meeting_place
from hydragnn.hpo import LocalLauncher, campaign_history, campaign_settings, run_search
from hydragnn.hpo.campaign import launcher_of
from hydragnn.hpo.launching import local
from hydragnn.hpo.launching.launcher import Task
from hydragnn.hpo.launching.local import gpus_of_workers
from hydragnn.hpo.scheduling.events import Failed
from tests.forked import SERVER, Forked

PATIENCE = 240.0  # seconds for what a loaded machine does within ten
GROUPS = Path("/sys/fs/cgroup/memory")
HUNGRY = '''
"""Real training whose second rank runs out of memory in whole batches."""

import os, resource, runpy, sys
from functools import partial
from pathlib import Path

from hydragnn.training import loop

trial = int(Path(sys.argv[1]).name)
held = []

def hungry(*words):
    if not trial:
        resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
        held.append(bytearray(2**36))
    Path("{group}/tasks").write_text(str(os.getpid()))
    while True:
        held.append(b"x" * 2**22)

if os.environ["RANK"] == "1" and sys.argv[sys.argv.index("--micro-batches") + 1] == "1":
    loop.take_step = hungry
sys.argv[0] = "run"
runpy.run_module("hydragnn.runs.run", run_name="__main__", alter_sys=True)
'''
WAITING = """
import os, sys, time
from functools import partial
from pathlib import Path
Path(sys.argv[1], os.environ["RANK"]).write_text(" ".join([str(os.getpid()), os.environ["WORLD_SIZE"], *sys.argv[2:]]))
time.sleep(1000)
"""
ENDS = """
import os, signal, sys, time
from hydragnn.hpo.launching import worker
worker.RANKS_PATIENCE = 0.2
ends = os.pipe()
pids = worker.fork_ranks(3)
if pids:
    sys.exit(worker.first_end(pids))
read, write = ends
if os.environ["RANK"] == "1":
    os.close(write)
    {fault}
elif {others}:
    os.close(write)
    os.read(read, 1)  # nothing, once rank 1 has ended
    time.sleep(1000 if os.environ["RANK"] == "0" else 0.3)
    os._exit(5)
"""


@pytest.fixture
def layouts(table: dict[str, Any]) -> dict[str, Any]:
    rate = table["search"]["space"]["train.learning_rate"]
    search = {"trials": 2, "sampler": "random", "rungs": [], "finalists": 1, "ranks_per_node": 2}
    space = {"parallel": {"shard": [1, 2], "graph": [1, 2]}, "train.learning_rate": rate}
    model = {"kind": "schnet", "hidden_dim": 8, "num_layers": 1, "cutoff": 2.0}
    return {**table, "model": model, "train": {"epochs": 2}, "search": {**search, "space": space}}


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[LocalLauncher, list[psutil.Process], list[str]]]:
    """A launcher, the two ranks of its attempt, and their arguments."""
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "waiting.py").write_text(WAITING)
    launcher = of_module(LocalLauncher, "waiting", {"PYTHONPATH": str(tmp_path / "module")})(1, ranks=2)
    (tmp_path / "trial").mkdir()
    task = local.Task(trial=0, attempt=1, until=1, folder=tmp_path / "trial", slots=launcher.slots)
    launcher.start(task)
    (begun,) = until(lambda: launcher.poll(0.2))
    launcher.go(begun.task)
    notes = until(lambda: launcher.poll(0.05) or [one for rank in "01" if (one := note(task.folder / rank))][:2:1], 2)
    pids, words = zip(*(one.split(" ", 1) for one in notes))
    yield launcher, [psutil.Process(int(pid)) for pid in pids], [*words]
    launcher.close()


def note(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def until(found: Callable[[], list[Any]], count: int = 1) -> list[Any]:
    deadline = time.monotonic() + PATIENCE
    while len(result := found()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def weights_of(out: Path) -> dict[str, bytes]:
    return {path.parts[-3]: path.read_bytes() for path in sorted(out.glob("trials/*/model/weights.safetensors"))}


def search_by_two_ranks(settings: Any, out: Path) -> None:
    result = run_search(settings, out, resume=True, launcher=LocalLauncher(1, ranks=2))
    assert (result.status, result.trials["failed"]) == ("finished", 0)


def test_a_search_by_two_ranks_has_the_same_bits_after_its_controller_was_killed(layouts: Any, tmp_path: Path) -> None:
    settings, out = campaign_settings(layouts, tmp_path / "CAMPAIGN.toml"), tmp_path / "killed"
    controller = SERVER.Process(target=search_by_two_ranks, args=(settings, out))
    controller.start()
    until(lambda: list(out.glob("trials/0000/heartbeat")))
    ranks = [one for worker in psutil.Process(controller.pid).children() for one in worker.children(recursive=True)]
    controller.kill()
    controller.join()
    assert len(ranks) >= 3 and not psutil.wait_procs(ranks, timeout=PATIENCE)[1]
    before = len(read_journal(out / "journal.jsonl"))
    for name in ("killed", "undisturbed"):
        search_by_two_ranks(settings, tmp_path / name)
    assert len(read_journal(out / "journal.jsonl")) > before
    assert course(out) == course(tmp_path / "undisturbed")
    assert weights_of(out) == weights_of(tmp_path / "undisturbed") != {}


def test_a_rank_without_memory_teaches_the_campaign_whoever_ends_it(layouts: dict[str, Any], tmp_path: Path) -> None:
    group = GROUPS / f"hydragnn-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2**26))
        kinds = 2
    except OSError:
        kinds = 1  # the system kills nobody here
    (tmp_path / "hungry").mkdir()
    (tmp_path / "hungry" / "__init__.py").touch()
    (tmp_path / "hungry" / "preload.py").write_text("from hydragnn.runs import preload, run")
    (tmp_path / "hungry" / "training.py").write_text(HUNGRY.replace("{group}", str(group)))
    layouts["search"] |= {"trials": kinds, "space": {"parallel": {"shard": [1, 2]}}}
    failures: list[Failed] = []

    def follow(state: Any, event: Any, seconds: float) -> None:
        failures.extend([event] if isinstance(event, Failed) else [])

    paths = os.pathsep.join([str(tmp_path), *sys.path])
    launcher = of_module(LocalLauncher, "hungry.training", {"PYTHONPATH": paths})(1, ranks=2)
    out = tmp_path / "campaign"
    try:
        result = run_search(campaign_settings(layouts, tmp_path / "C.toml"), out, launcher=launcher, on_event=follow)
    finally:
        if kinds == 2:
            group.rmdir()
    assert (result.trials["finished"], [failure.kind for failure in failures]) == (kinds, ["out_of_memory"] * kinds)
    assert [failure.suspects for failure in failures] == [()] * kinds
    assert "smaller batches" in failures[0].message
    assert kinds == 1 or "the system ran out of memory" in failures[1].message
    assert all(trial.attempt == 2 for trial in campaign_history(out).trials)


def kill(ranks: list[psutil.Process], rank: int) -> None:
    """End a rank and the process that all were forked from, while the other is deaf, as in a collective."""
    ranks[1 - rank].suspend()
    ranks[rank].kill()
    ranks[0].parent().kill()


@pytest.mark.parametrize(
    "end",
    [
        lambda launcher, ranks: kill(ranks, 0),
        lambda launcher, ranks: kill(ranks, 1),
        lambda launcher, ranks: launcher.cancel(0, PATIENCE),
        lambda launcher, ranks: ranks[0].parent().parent().kill(),
    ],
    ids=["rank 0 is killed", "rank 1 is killed", "the trial is cancelled", "the worker is killed"],
)
def test_ranks_end_together(waiting: Any, end: Callable[..., None]) -> None:
    launcher, ranks, words = waiting
    assert words == ["2 --until 1 --attempt 1 --micro-batches 1 --ranks 2"] * 2
    end(launcher, ranks)
    (report,) = until(lambda: launcher.poll(0.2))
    assert report.code == -signal.SIGKILL and not psutil.wait_procs(ranks, timeout=PATIENCE)[1]


@pytest.mark.parametrize(
    ("fault", "others", "code", "words"),
    [
        ("os._exit(7)", True, 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", False, 139, "was killed by SIGSEGV"),
        ("pass", False, 0, ""),
    ],
)
def test_the_first_rank_that_fails_decides_the_code(fault: str, others: bool, code: int, words: str) -> None:
    script = ENDS.format(fault=fault, others=others)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
    assert done.stdout == (f"rank 1 of 3 was the first to fail: it {words}\n" if words else "")


VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
SAYS = """import os, pathlib, sys
shared = sys.argv[sys.argv.index("--sharing") :] if "--sharing" in sys.argv else []
pathlib.Path(sys.argv[1], "gpu").write_text(" ".join([os.environ.get("CUDA_VISIBLE_DEVICES", "any"), *shared]))
"""
"""A training that notes which GPU it would use, and its options."""

Make = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes this machine one of so many NVIDIA GPUs whose environment has no other variables than these."""

    def make(gpus: int, **environment: str) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local, "visible_gpus", lambda: gpus)

    return make


NARROWED = {"CUDA_VISIBLE_DEVICES": "6, GPU-b,MIG-c", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("gpus", "environment", "workers", "ranks", "devices"),
    [
        (4, {}, 4, 1, ["0", "1", "2", "3"]),
        (4, {}, 2, 1, ["0", "1"]),
        (5, {}, 2, 2, ["0,1", "2,3,4"]),
        (3, NARROWED, 3, 1, ["6", "GPU-b", "MIG-c"]),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, 3, 1, [None] * 3),
        (2, {}, 3, 1, r"3 workers, but .* 2 GPU.*at most 2 .*trials_per_device.*export CUDA_VISIBLE_DEVICES="),
        (5, {}, 3, 2, r"3 workers, .* 5 GPU.* each .* 2 of its own; set workers to at most 2"),
        (5, {}, 1, 8, r"each worker trains on 8 of its own; .*lower search\.ranks_per_node"),
    ],
)
def test_each_worker_sees_gpus_that_no_other_sees_or_is_refused(
    machine: Make, gpus: int, environment: dict[str, str], workers: int, ranks: int, devices: Any
) -> None:
    machine(gpus, **environment)
    if isinstance(devices, str):
        with pytest.raises(InputError, match=devices):
            gpus_of_workers(workers, ranks)
    else:
        assert [one.get("CUDA_VISIBLE_DEVICES") for one in gpus_of_workers(workers, ranks)] == devices


@pytest.mark.parametrize(("sharing", "gpus"), [(1, ["5", "7"] * 2), (3, ["5 --sharing 3", "7 --sharing 3"] * 3)])
def test_trials_at_once_run_on_different_gpus_or_share_one_and_the_next_trial_of_a_worker_runs_on_its_own(
    machine: Make, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: int, gpus: list[str]
) -> None:
    machine(2, CUDA_VISIBLE_DEVICES="5,7", PYTHONPATH=str(tmp_path))
    (tmp_path / "noting.py").write_text(SAYS)
    monkeypatch.setattr(local.LocalLauncher, "module", "noting")
    launcher = launcher_of(settings(launcher="local", trials_per_device=sharing), tmp_path, 2)
    assert len(launcher.slots) == 2 * sharing
    folders = [tmp_path / str(number) for number in range(len(gpus))]
    try:
        for first in range(0, len(gpus), len(launcher.slots)):
            for folder, slot in zip(folders[first:], launcher.slots):
                folder.mkdir()
                launcher.start(Task(trial=int(folder.name), attempt=1, until=1, folder=folder, slots=(slot,)))
            ended = ends(reports_until(launcher, lambda found: len(ends(found)) == len(launcher.slots)))
            assert {end.code for end in ended} == {0}
    finally:
        launcher.close()
    assert [(folder / "gpu").read_text() for folder in folders] == gpus
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,7"


PROBE = Path(__file__).parents[2] / "hpo" / "launching" / "probe.py"


def probes(folder: Path, started: int = 2) -> list[tuple[int, str]]:
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    words = [str(PROBE), "--ranks", "2", "--meet", "here", "--rank"]
    pair = [Forked([*words, str(rank)], environment) for rank in range(started)]
    return [(process.wait(240), process.communicate()[0]) for process in pair]


def test_two_ranks_of_a_healthy_node_say_so_and_leave_nothing(tmp_path: Path) -> None:
    (code, printed), (other, _) = probes(tmp_path)
    assert (code, other) == (0, 0)
    assert re.search(r"^seconds 0\.\d*[1-9]\d*\nhealthy$", printed, re.MULTILINE), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_meeting_place_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    place = meeting_place(Launch(by="torchrun", size=2, step="here"), tmp_path)
    place = tmp_path / place.name
    place.mkdir()
    place.chmod(mode)
    [(code, text)] = probes(tmp_path, 1)
    assert code == 1
    assert "others than this user could tell them where to connect" in text
