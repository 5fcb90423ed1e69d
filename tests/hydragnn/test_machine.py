"""What a process may use of its machine: limits of jobs and containers count, and workers follow from what is left."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hydragnn.base.machine import ProcessMachine, free_memory

GB = 10**9


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 64 * GB

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/system.slice/job_7/step_0\n",
    "sys/fs/cgroup/system.slice/job_7/step_0/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/job_7/step_0/memory.current": f"{GB}\n",
    "sys/fs/cgroup/system.slice/job_7/step_0/memory.stat": "inactive_file 0\n",
    "sys/fs/cgroup/system.slice/job_7/memory.max": f"{8 * GB}\n",
    "sys/fs/cgroup/system.slice/job_7/memory.current": f"{3 * GB}\n",
    "sys/fs/cgroup/system.slice/job_7/memory.stat": f"anon 5\ninactive_file {GB}\n",
}
V1 = {
    "proc/self/cgroup": "7:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{5 * GB}\n",
    "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{4 * GB}\n",
    "sys/fs/cgroup/memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {GB}\n",
}


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(("files", "left"), [(V2, 6 * GB), (V1, 2 * GB), ({}, 64 * GB)], ids=["v2", "v1", "none"])
def test_free_memory_is_what_the_narrowest_group_has_left(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert free_memory(write(tmp_path, files)) == left


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("text", ["", "nonsense", "4:memory\n", "0::/gone\n", "0::/../../etc\n"])
def test_files_that_say_nothing_leave_the_memory_of_the_machine(tmp_path: Path, text: str) -> None:
    assert free_memory(write(tmp_path, {"proc/self/cgroup": text})) == 64 * GB


def test_workers_are_one_per_gpu_or_core_that_has_memory() -> None:
    here = ProcessMachine(cores=16, memory=64 * GB, gpus=0)
    assert here.workers() == 16
    assert replace(here, gpus=4).workers() == 4
    assert here.workers(20 * GB) == 3
    assert replace(here, gpus=4).workers(20 * GB) == 4  # its batches lie on the GPUs
    assert replace(here, memory=1).workers() == 1


PROGRAM = """
import sys
from hydragnn.base.forked import load_early, workers_context

def tell(pipe):
    pipe.send("colorsys" in sys.modules)

if __name__ == "__main__":
    if EARLY:
        load_early("colorsys")
    context = workers_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(sender,))
    process.start()
    print(context.get_start_method(), receiver.recv())
    process.join()
"""


@pytest.mark.parametrize(("early", "said"), [(True, "forkserver True"), (False, "spawn False")])
def test_workers_have_what_was_loaded_early_and_start_anew_otherwise(early: bool, said: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("EARLY", str(early)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == said, done.stderr
