"""What a search may use, read once from the scheduler: nodes, cores, GPUs, and until when.

The only module that reads a scheduler's variables; everything else sees an ``Allocation``.
"""

import json
import math
import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from hydragnn.base.errors import AllocationEnded, InputError
from hydragnn.distributed.launch import ALLOCATIONS

Scheduler = Literal["local", "slurm", "pbs", "flux"]
Run = Callable[[Sequence[str]], str]
"""Runs a program and gives what it printed; InputError where it fails."""

ANSWER = 30.0  # seconds that a scheduler may take to answer
FOREVER = 2.0**32 - 1  # seconds that Flux shows for a job without an end
ALIKE = 0.1
"""Part of a share that may be missing: memory of nodes that are alike differs by some MB."""


SLURM_OVER: frozenset[str] = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "STAGE_OUT"),
        "TIMEOUT",
    }
)
"""States of a job of Slurm that has no nodes, or has them no more; one that waits again was put back into the queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One machine of an allocation, as far as it belongs to the job."""

    name: str
    cores: int
    """As the scheduler counts them."""
    gpus: int = 0
    memory: int | None = None
    """Bytes; None where the scheduler does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Nodes that belong to this search, each of its own size."""

    by: Scheduler
    nodes: tuple[Node, ...]
    deadline: float | None = None
    """When the allocation ends, in seconds since 1970; None where it does not."""
    job: str = ""
    """The scheduler's name for it."""
    unused: tuple[str, ...] = ()
    """Names of further nodes, which take no part."""
    managed: bool = False
    """Job steps are managed inside the job (``sbatch --stepmgr``), not by the machine's one controller."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, in the scheduler's order."""
        return tuple(node.name for node in self.nodes)

    @property
    def sizes(self) -> dict[str, int]:
        """GPUs of every node, or cores where no node has a GPU: what makes it fast."""
        has_gpus = any(node.gpus for node in self.nodes)
        return {node.name: node.gpus if has_gpus else node.cores for node in self.nodes}

    def fastest_kind(self) -> "Allocation":
        """Return the allocation without nodes that have no GPU, where others have: a trial would take a hundred times as long there."""
        slow = tuple(node.name for node in self.nodes if not node.gpus)
        if not slow or len(slow) == len(self.nodes):
            return self
        return replace(self, nodes=tuple(node for node in self.nodes if node.gpus), unused=slow)

    def least(self, names: Collection[str]) -> tuple[int, int]:
        """Return the cores and GPUs that each of these nodes has at least: one job step takes as much from each."""
        wanted = set(names)
        chosen = [node for node in self.nodes if node.name in wanted] or self.nodes
        return min(node.cores for node in chosen), min(node.gpus for node in chosen)

    def shares(self, of_largest: int, multiple: int = 1) -> dict[str, int]:
        """Return into how many shares each node is divided, where the largest has ``of_largest``, a multiple of ``multiple``.

        Every share is about as large as those of the largest node, in GPUs or cores and in memory, where it is known.

        >>> nodes = (Node(name="a", cores=8), Node(name="b", cores=4), Node(name="c", cores=3))
        >>> Allocation(by="slurm", nodes=nodes).shares(8), Allocation(by="slurm", nodes=nodes).shares(8, multiple=2)
        ({'a': 8, 'b': 4, 'c': 3}, {'a': 8, 'b': 4, 'c': 2})
        """
        sizes = self.sizes
        largest = max(self.nodes, key=lambda node: (sizes[node.name], -(node.memory or math.inf)))
        shares: dict[str, int] = {}
        for node in self.nodes:
            ratio = sizes[node.name] / max(1, sizes[largest.name])
            if node.memory and largest.memory:
                ratio = min(ratio, node.memory / largest.memory)
            fitting = int(of_largest * ratio + ALIKE) // multiple * multiple
            shares[node.name] = max(multiple, fitting) if node is not largest else of_largest
        return shares

    def __str__(self) -> str:
        """Sizes of the nodes, in words.

        >>> str(Allocation(by="slurm", nodes=(*alike(["a"], 8, 4), *alike(["b", "c"], 4))))
        '1 node with 8 cores and 4 GPUs, 2 nodes with 4 cores and 0 GPUs'
        """
        counts, has_gpus = (
            Counter((node.cores, node.gpus) for node in self.nodes),
            any(node.gpus for node in self.nodes),
        )
        return ", ".join(
            f"{count} node{'s' * (count > 1)} with {cores} cores{f' and {gpus} GPUs' if has_gpus else ''}"
            for (cores, gpus), count in counts.items()
        )


def alike(names: Iterable[str], cores: int, gpus: int = 0) -> tuple[Node, ...]:
    """Return nodes of one size."""
    return tuple(Node(name=name, cores=cores, gpus=gpus) for name in names)


def read_allocation(
    environment: Mapping[str, str], run: Run | None = None, want: Literal["auto"] | Scheduler = "auto"
) -> Allocation:
    """The allocation that this process runs in; without any, this machine.

    InputError where the wanted scheduler has given none, or where it does not answer.
    """
    schedulers = [name for name, mark in ALLOCATIONS.items() if environment.get(mark)]
    kind: Scheduler = want if want != "auto" else cast("Scheduler", schedulers[0]) if schedulers else "local"
    if kind != "local" and kind not in schedulers:
        raise InputError(
            f'launcher = "{kind}", but this is no allocation of it ({ALLOCATIONS[kind]} is not set); start the search inside '
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
    return Allocation(by="local", nodes=alike([socket.gethostname()], _own_cores(), own_gpus()))


def _slurm(environment: Mapping[str, str], run: Run) -> Allocation:
    job = environment["SLURM_JOB_ID"]
    try:
        said = run(["scontrol", "show", "job", "-d", "-o", job])
    except InputError as error:
        if "invalid job id" not in str(error).lower():
            raise
        said = "JobState=UNKNOWN"  # slurmctld forgets a job some minutes after its end
    shown = _members(said)
    state = shown.get("JobState", "")
    if state in {*SLURM_OVER, "UNKNOWN"} - {"PENDING"}:
        raise AllocationEnded(
            f"job {job} has ended ({state}); take a new allocation, and continue a search there with --resume"
        )
    # the job's own list goes stale as soon as the job loses a node
    nodelist = shown.get("NodeList", "(null)")
    nodelist = environment.get("SLURM_JOB_NODELIST", "") if nodelist == "(null)" else nodelist
    if not nodelist:
        raise InputError(f"job {job} has no nodes yet; start the search from the job's own shell or script")
    names = tuple(run(["scontrol", "show", "hostnames", nodelist]).split())
    return Allocation(
        by="slurm",
        nodes=_slurm_nodes(names, environment, shown, _slurm_details(said)),
        deadline=_slurm_deadline(environment, shown),
        job=job,
        managed="SLURM_STEPMGR" in environment or shown.get("StepMgrEnabled") == "Yes",
    )


def _slurm_nodes(
    names: tuple[str, ...], environment: Mapping[str, str], shown: Mapping[str, str], details: Mapping[str, Node]
) -> tuple[Node, ...]:
    """Nodes with the CPUs that the job's variable gives for each, else those that Slurm shows in detail; GPUs the other way round."""
    of_job, counts = hosts(environment.get("SLURM_JOB_NODELIST", "")), []
    if environment.get("SLURM_JOB_CPUS_PER_NODE"):
        counts = counts_of(environment["SLURM_JOB_CPUS_PER_NODE"])
    # of all nodes that the job began with, of which it may have lost some
    given = dict(zip(of_job, counts)) if len(of_job) == len(counts) else {}
    least = int(environment.get("SLURM_CPUS_ON_NODE", 0)) or min(counts, default=1)
    gpus = 0 if any(node.gpus for node in details.values()) else _slurm_gpus(environment, shown)
    return tuple(
        Node(
            name=name,
            cores=given.get(name) or (details[name].cores if name in details else least),
            gpus=gpus or (details[name].gpus if name in details else 0),
            memory=details[name].memory if name in details else None,
        )
        for name in names
    )


def _slurm_details(said: str) -> dict[str, Node]:
    """Return what ``scontrol show job --details`` says of groups of nodes.

    >>> _slurm_details("A=b Nodes=n[1-2] CPU_IDs=0-3,8 Mem=4000 GRES=gpu:a100:2(IDX:0,3),mps:1 Nodes=n3 CPU_IDs=0 Mem=0 GRES=")["n2"]
    Node(name='n2', cores=5, gpus=2, memory=4194304000)
    """
    found: dict[str, Node] = {}
    for nodes, cpus, memory, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", said):
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,(]+)?:(\d+)(?=\(|,|$)", gres))
        size = int(memory) * 2**20 or None
        for name in hosts(nodes):
            found[name] = Node(name=name, cores=len(numbers(cpus)), gpus=gpus, memory=size)
    return found


def _members(line: str) -> dict[str, str]:
    """The members of a line of ``scontrol -o``.

    >>> _members("JobId=7 TimeLimit=UNLIMITED EndTime=Unknown")["EndTime"]
    'Unknown'
    """
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def counts_of(text: str) -> list[int]:
    """Return the numbers that Slurm's short form for a number per node stands for.

    >>> counts_of("8,4(x2)"), counts_of("4")
    ([8, 4, 4], [4])
    """
    parts = (re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(","))
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def numbers(text: str) -> list[int]:
    """Return the numbers that a list of ranges stands for.

    >>> numbers("0-2,7")
    [0, 1, 2, 7]
    """
    ranges = (part.partition("-") for part in text.split(",") if part)
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]


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
        lines = Counter(file.read_text(encoding="utf-8").split())
    except OSError as error:
        raise InputError(
            f"PBS_NODEFILE = {file} cannot be read ({error.strerror}); start the search inside the job"
        ) from error
    if not lines:
        raise InputError(f"PBS_NODEFILE = {file} names no node; start the search inside the job")
    shown: dict[str, str] = {}
    with suppress(InputError):  # some sites have no qstat on compute nodes; then the deadline is unknown
        shown = _attributes(run(["qstat", "-f", job]))
    return Allocation(by="pbs", nodes=_pbs_nodes(lines, environment, shown), deadline=_pbs_deadline(shown), job=job)


def _pbs_nodes(lines: Counter[str], environment: Mapping[str, str], shown: Mapping[str, str]) -> tuple[Node, ...]:
    """Nodes with what ``exec_vnode`` gives each, else ``exec_host``; else with CPUs as the node file has lines for each."""
    own, taken, cores = environment.get("NCPUS", ""), _pbs_vnodes(shown.get("exec_vnode", "")), Counter[str]()
    for host, count in re.findall(r"([^/+\s]+)/\d+(?:\*(\d+))?", shown.get("exec_host", "")):
        cores[host.partition(".")[0]] += int(count or 1)
    asked = int(shown.get("Resource_List.ngpus", 0)) // max(1, int(shown.get("Resource_List.nodect", len(lines))))
    gpus = 0 if any(one["ngpus"] for one in taken.values()) else asked or own_gpus()
    first = int(own) if own.isdigit() else _own_cores()
    line = first / lines[next(iter(lines))]  # the script runs on the first node
    nodes: list[Node] = []
    for name, count in lines.items():
        short = name.partition(".")[0]
        of_node = taken.get(short, Counter())
        number = of_node["ncpus"] or cores[short] or max(1, round(count * line))
        nodes.append(Node(name=name, cores=number, gpus=gpus or of_node["ngpus"], memory=of_node["mem"] or None))
    return tuple(nodes)


def _pbs_vnodes(text: str) -> dict[str, Counter[str]]:
    """Return CPUs, GPUs and bytes of memory that ``exec_vnode`` takes of each host, whose virtual nodes are numbered in brackets.

    >>> _pbs_vnodes("(x1[0]:ncpus=2:mem=1kb+x1[1]:ncpus=2)+(x2:ncpus=1:ngpus=4)")
    {'x1': Counter({'mem': 1024, 'ncpus': 4}), 'x2': Counter({'ngpus': 4, 'ncpus': 1})}
    """
    found: dict[str, Counter[str]] = {}
    for chunk in text.replace("(", "").replace(")", "").split("+") if text else []:
        name, *resources = chunk.split(":")
        of_host = found.setdefault(re.split(r"[.\[]", name)[0], Counter())
        for resource, amount, unit in re.findall(r"\b(ncpus|ngpus|mem)=(\d+)([kmgt]?)b?", ":".join(resources)):
            of_host[resource] += int(amount) * 1024 ** " kmgt".index(unit or " ")
    return found


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
    nodes = _flux_nodes(run)
    if not nodes:
        raise InputError(
            "flux resource list names no node that is up; start the search inside flux alloc or flux batch"
        )
    return Allocation(by="flux", nodes=nodes, deadline=_flux_deadline(run), job=environment.get("FLUX_JOB_ID", ""))


def _flux_nodes(run: Run) -> tuple[Node, ...]:
    """Nodes that are up, by their resource set (Flux RFC 20), or by the list where this Flux gives no set."""
    with suppress(InputError, ValueError, KeyError, TypeError):
        execution = json.loads(run(["flux", "resource", "R", "-s", "up"]))["execution"]
        children = {
            rank: {kind: len(numbers(ids)) for kind, ids in group["children"].items()}
            for group in execution["R_lite"]
            for rank in numbers(str(group["rank"]))
        }
        names = hosts(",".join(execution["nodelist"]))  # in the order of ranks
        return tuple(
            Node(name=name, cores=children[rank]["core"], gpus=children[rank].get("gpu", 0))
            for name, rank in zip(names, sorted(children), strict=True)
        )
    command = ["flux", "resource", "list", "-s", "up", "-n", "-o", "{nnodes} {ncores} {ngpus} {nodelist}"]
    rows = [line.split() for line in run(command).splitlines()]
    return tuple(
        node
        for count, cores, gpus, names, *_ in (row for row in rows if len(row) >= 4)
        for node in alike(hosts(names), int(cores) // max(1, int(count)), int(gpus) // max(1, int(count)))
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
