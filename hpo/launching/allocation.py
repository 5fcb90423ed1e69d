"""What a search may use, read once from the scheduler: nodes, cores, GPUs, and until when.

The only module that reads a scheduler's variables; everything else sees an ``Allocation``.
"""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hydragnn.errors import InputError

Scheduler = Literal["local", "slurm", "pbs", "flux"]
Run = Callable[[Sequence[str]], str]
"""Runs a program and gives what it printed; InputError where it fails."""

ANSWER = 30.0  # seconds that a scheduler may take to answer
FOREVER = 2.0**32 - 1  # seconds that Flux shows for a job without an end
MARKS: dict[Scheduler, str] = {"flux": "FLUX_URI", "slurm": "SLURM_JOB_ID", "pbs": "PBS_NODEFILE"}
"""The variable by which an allocation shows; Flux first, because it is often started inside a job of another scheduler."""


SLURM_OVER: frozenset[str] = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "STAGE_OUT"),
        "TIMEOUT",
    }
)
"""States of a job of Slurm that has no nodes, or has them no more; one that waits again was put back into the queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Nodes that belong to this search, all alike."""

    by: Scheduler
    nodes: tuple[str, ...]
    cores: int
    """Per node, as the scheduler counts them."""
    gpus: int = 0
    """Per node."""
    deadline: float | None = None
    """When the allocation ends, in seconds since 1970; None where it does not."""
    job: str = ""
    """The scheduler's name for it."""
    managed: bool = False
    """Job steps are managed inside the job (``sbatch --stepmgr``), not by the machine's one controller."""


def read_allocation(
    environment: Mapping[str, str], run: Run | None = None, want: Literal["auto"] | Scheduler = "auto"
) -> Allocation:
    """The allocation that this process runs in; without any, this machine.

    InputError where the wanted scheduler has given none, or where it does not answer.
    """
    schedulers = [name for name, mark in MARKS.items() if environment.get(mark)]
    kind: Scheduler = want if want != "auto" else schedulers[0] if schedulers else "local"
    if kind != "local" and kind not in schedulers:
        raise InputError(
            f'launcher = "{kind}", but this is no allocation of it ({MARKS[kind]} is not set); start the search inside '
            'a job, with hydragnn search --submit, or set launcher = "local"'
        )
    readers = {"slurm": _slurm, "pbs": _pbs, "flux": _flux, "local": _local}
    return readers[kind](environment, run or output_of)


def output_of(command: Sequence[str]) -> str:
    """What a program printed; InputError where it is missing, fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER)
    except FileNotFoundError as error:
        raise InputError(f"{command[0]} is not on the PATH; load the scheduler's module") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{' '.join(command)} did not answer within {ANSWER:.0f} s; is the scheduler up?") from error
    if done.returncode:
        raise InputError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _local(environment: Mapping[str, str], run: Run) -> Allocation:
    return Allocation(by="local", nodes=(socket.gethostname(),), cores=_own_cores(), gpus=own_gpus())


def _slurm(environment: Mapping[str, str], run: Run) -> Allocation:
    job = environment["SLURM_JOB_ID"]
    shown = _members(run(["scontrol", "show", "job", "-o", job]))
    state = shown.get("JobState", "")
    if state in SLURM_OVER - {"PENDING"}:
        raise InputError(
            f"job {job} has ended ({state}); take a new allocation, and continue a search there with --resume"
        )
    # the job's own list goes stale as soon as the job loses a node
    nodelist = shown.get("NodeList", "(null)")
    nodelist = environment.get("SLURM_JOB_NODELIST", "") if nodelist == "(null)" else nodelist
    if not nodelist:
        raise InputError(f"job {job} has no nodes yet; start the search from the job's own shell or script")
    cores = environment.get("SLURM_CPUS_ON_NODE") or environment.get("SLURM_JOB_CPUS_PER_NODE", "1")
    return Allocation(
        by="slurm",
        nodes=tuple(run(["scontrol", "show", "hostnames", nodelist]).split()),
        cores=smallest_count(cores),
        gpus=_slurm_gpus(environment, shown),
        deadline=_slurm_deadline(environment, shown),
        job=job,
        managed="SLURM_STEPMGR" in environment or shown.get("StepMgrEnabled") == "Yes",
    )


def _members(line: str) -> dict[str, str]:
    """The members of a line of ``scontrol -o``.

    >>> _members("JobId=7 TimeLimit=UNLIMITED EndTime=Unknown")["EndTime"]
    'Unknown'
    """
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def smallest_count(text: str) -> int:
    """The smallest number of Slurm's short form for a number per node.

    >>> smallest_count("128(x3),64"), smallest_count("4")
    (64, 4)
    """
    return min(int(part.split("(")[0]) for part in text.split(","))


def _slurm_deadline(environment: Mapping[str, str], shown: Mapping[str, str]) -> float | None:
    if shown.get("TimeLimit") == "UNLIMITED":
        return None
    if environment.get("SLURM_JOB_END_TIME", "").isdigit():
        return float(environment["SLURM_JOB_END_TIME"])
    with suppress(ValueError):
        return time.mktime(time.strptime(shown.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    return None


def _slurm_gpus(environment: Mapping[str, str], shown: Mapping[str, str]) -> int:
    """GPUs of a node, from what the job asked for: ``8``, ``a100:4`` or ``gres/gpu:8``."""
    if environment.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(environment["SLURM_GPUS_ON_NODE"])
    asked = environment.get("SLURM_GPUS_PER_NODE", "")
    if not asked and environment.get("SLURM_JOB_GPUS"):
        return len(environment["SLURM_JOB_GPUS"].split(","))
    if not asked:
        asked = ",".join(part for part in shown.get("TresPerNode", "").split(",") if "gpu" in part)
    return sum(int(part.rpartition(":")[2].rpartition("=")[2]) for part in asked.split(",") if part[-1:].isdigit())


def _pbs(environment: Mapping[str, str], run: Run) -> Allocation:
    job, file = environment.get("PBS_JOBID", ""), Path(environment["PBS_NODEFILE"])
    try:
        nodes = tuple(dict.fromkeys(file.read_text(encoding="utf-8").split()))
    except OSError as error:
        raise InputError(
            f"PBS_NODEFILE = {file} cannot be read ({error.strerror}); start the search inside the job"
        ) from error
    if not nodes:
        raise InputError(f"PBS_NODEFILE = {file} names no node; start the search inside the job")
    shown: dict[str, str] = {}
    with suppress(InputError):  # some sites have no qstat on compute nodes; then the deadline is unknown
        shown = _attributes(run(["qstat", "-f", job]))
    chunks = int(shown.get("Resource_List.nodect", len(nodes)))
    asked = int(shown.get("Resource_List.ngpus", 0)) // max(1, chunks)
    cores = environment.get("NCPUS", "")
    return Allocation(
        by="pbs",
        nodes=nodes,
        cores=int(cores) if cores.isdigit() else _own_cores(),
        gpus=asked or own_gpus(),
        deadline=_pbs_deadline(shown),
        job=job,
    )


def _attributes(text: str) -> dict[str, str]:
    """The attributes of one job as ``qstat -f`` prints them, long ones over several lines."""
    pairs = (line.split(" = ", 1) for line in text.replace("\n\t", "").splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _pbs_deadline(shown: Mapping[str, str]) -> float | None:
    """Start plus asked walltime; None where PBS says neither."""
    with suppress(KeyError, ValueError):
        started = time.mktime(time.strptime(shown["stime"], "%a %b %d %H:%M:%S %Y"))
        seconds = 0
        for part in shown["Resource_List.walltime"].split(":"):
            seconds = 60 * seconds + int(part)
        return started + seconds
    return None


def _flux(environment: Mapping[str, str], run: Run) -> Allocation:
    words = run(["flux", "resource", "list", "-s", "up", "-n", "-o", "{nnodes} {ncores} {ngpus} {nodelist}"]).split()
    if len(words) < 4:
        raise InputError(
            "flux resource list names no node that is up; start the search inside flux alloc or flux batch"
        )
    count = max(1, int(words[0]))
    return Allocation(
        by="flux",
        nodes=hosts(words[3]),
        cores=int(words[1]) // count,
        gpus=int(words[2]) // count,
        deadline=_flux_deadline(run),
        job=environment.get("FLUX_JOB_ID", ""),
    )


def _flux_deadline(run: Run) -> float | None:
    with suppress(InputError, ValueError):  # an instance that is no job of another has no end
        left = float(run(["flux", "job", "timeleft"]))
        return None if left >= FOREVER else time.time() + left
    return None


def hosts(text: str) -> tuple[str, ...]:
    """The names that a compressed list stands for.

    >>> hosts("n[08-10,12],login1")
    ('n08', 'n09', 'n10', 'n12', 'login1')
    """
    names: list[str] = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", text):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else [None]
            names += [f"{prefix}{'' if n is None else f'{n:0{len(first)}d}'}{suffix}" for n in numbers]
    return tuple(names)


def _own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_gpus(root: Path = Path("/")) -> int:
    """GPUs of this machine, counted without starting their drivers."""
    nvidia = [path for path in (root / "dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    if nvidia:
        return len(nvidia)
    amd = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return sum(path.read_text(encoding="ascii").strip() not in ("", "0") for path in amd)
