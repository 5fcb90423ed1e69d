"""Slurm: allocation, command lines, words and batch jobs."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from hydragnn.base.errors import AllocationEnded, InputError
from hydragnn.base.machine import numbers_in
from hydragnn.hpo.launching.allocation import Allocation, Node, Run, hosts
from hydragnn.hpo.launching.sites import practice
from hydragnn.hpo.launching.sites.base import Batch, Evidence, Machine, NodeStates, Site, Step, short_name

_LISTED = 1000  # nodes that are asked for by name

_GONE = {"down", "drained", "fail", "error", "powered_down", "powering_down", "future"}

_OVER = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "STAGE_OUT"),
        "TIMEOUT",
    }
)
"""States of a job without nodes, requeued ones included."""

_UNREACHABLE = re.compile(
    r"Unable to (create step|confirm allocation).*"
    r"(Unable to contact slurm controller|timed out|Connection refused|Zero Bytes were transmitted)"
)

_FRONTIER = """#SBATCH --network=single_node_vni,job_vni
#SBATCH --stepmgr
{% if job.stages %}
#SBATCH --constraint=nvme
{% endif %}
"""

_SCRIPT = r"""{% extends "job.sh.j2" %}
{% block directives %}
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ job.nodes }}
#SBATCH --time={{ minutes // 60 }}:{{ "%02d" % (minutes % 60) }}:00
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@{{ lead }}
#SBATCH --output={{ log }}
{% endblock %}
{% block identity %}
id=$SLURM_JOB_ID
{% if staged %}
on_every_node() { srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "$@"; }
{% endif %}
{% endblock %}
{% block timer %}
{% if job.nodes > 1 %}

# with --no-kill, a job whose first node is lost holds the others idle until its walltime ends: the last node ends it
srun --overlap --no-kill --nodes=1 --ntasks=1 --mem=256M --input=none --output=/dev/null \
    --nodelist="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)" bash -c '
        while sleep 15; do
            left=$(squeue --noheader --jobs="$0" --format=%N)
            [ -z "$left" ] || scontrol show hostnames "$left" | grep -qxF "$1" || scancel "$0"
        done' "$id" "$SLURMD_NODENAME" 2>"$jobs/{{ serial }}.guard" &
{% endif %}
{% endblock %}
{% block unpack %}
    on_every_node mkdir -p "$storage/$1" && sbcast --force "$jobs/$1.tar" "$storage/$1.tar" &&
        on_every_node tar -C "$storage/$1" -xf "$storage/$1.tar"
{% endblock %}
{% block cancel %}scancel{% endblock %}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm(Site):
    """``srun`` on named nodes.

    ``--overlap``, because a step that lost a node keeps the others busy for minutes.
    """

    name: ClassVar = "slurm"
    mark: ClassVar = "SLURM_JOB_ID"
    machines: ClassVar = {
        "slurm": Machine(),
        "frontier": Machine(storage="/mnt/bb/$USER", directives=_FRONTIER, setup=practice.FRONTIER),
        "lumi": Machine(directives="#SBATCH --gpus-per-node=8\n", setup=practice.LUMI),
        "perlmutter": Machine(
            directives="#SBATCH --constraint=gpu\n#SBATCH --gpus-per-node=4\n", setup=practice.PERLMUTTER
        ),
    }
    batch: ClassVar = Batch(
        directive="#SBATCH",
        account="--account=",
        queue="--partition=",
        submit=("sbatch", "--parsable"),
        submit_from_job=("sbatch", "--parsable"),
        after="--dependency=afterany:{}",
        inherited="SLURM_(?!CONF$)",
        script=_SCRIPT,
    )
    node_variable: ClassVar = "SLURMD_NODENAME"
    rank_variables: ClassVar = ("SLURM_PROCID",)
    local_rank_variables: ClassVar = ("SLURM_LOCALID",)
    contradicting: ClassVar = ("SLURM_GPUS", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_HINT")

    @classmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return the allocation that this process runs in."""
        job = environment["SLURM_JOB_ID"]
        try:
            printed = run(["scontrol", "show", "job", "-d", "-o", job])
        except InputError as error:
            if "invalid job id" not in str(error).lower():
                raise
            printed = "JobState=UNKNOWN"  # slurmctld forgets a job some minutes after its end
        shown = _members(printed)
        state = shown.get("JobState", "")
        if state in {*_OVER, "UNKNOWN"} - {"PENDING"}:
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
            nodes=_nodes(names, environment, shown, _details(printed)),
            deadline=_deadline(environment, shown),
            job=job,
            managed="SLURM_STEPMGR" in environment or shown.get("StepMgrEnabled") == "Yes",
        )

    def command(self, step: Step) -> list[str]:
        """Return the command that starts a step."""
        count = len(step.nodes)
        line = ["srun", f"--job-name={step.name}", "--overlap", "--exact", "--export=ALL", "--mem=0", "--cpu-bind=none"]
        line += [f"--nodelist={','.join(step.nodes)}", f"--nodes={count}", f"--ntasks={count * step.ranks}"]
        line += [f"--ntasks-per-node={step.ranks}", f"--cpus-per-task={max(1, step.cores // step.ranks)}"]
        line += [f"--gpus-per-node={step.gpus}", "--gpu-bind=none"] if step.gpus else []
        if step.resident:
            line += ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
        else:
            line += ["--kill-on-bad-exit=1", "--input=none"]
        return [*line, *step.program]

    def steps(self, job: str) -> list[str] | None:
        """Return the command that prints the job's steps."""
        return ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]

    def end(self, numbers: Sequence[str]) -> list[str]:
        """Return the command that kills steps."""
        return ["scancel", "--signal=KILL", *numbers]

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """Return the command that prints states of nodes."""
        some = [f"--nodes={','.join(nodes)}"] if len(nodes) <= _LISTED else []
        return ["sinfo", "--noheader", "--Node", *some, "--format=%N %T"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """Return the states of nodes.

        A star marks a node that does not answer; a slurmctld that has just started calls all unknown.
        """
        states: NodeStates = {}
        for line in printed.splitlines():
            name, _, state = line.strip().partition(" ")
            word = state.rstrip("*~#!%$@^-+")
            if word and word != "unknown":
                states[short_name(name)] = "lost" if word in _GONE else "silent" if "*" in state else "well"
        return states

    def look_at_job(self, job: str) -> list[str] | None:
        """Return the command that prints the state of the job."""
        return ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T"] if job else None

    def job_over(self, printed: str) -> str | None:
        """Return how a job ended; slurmctld forgets jobs after some minutes."""
        if "Invalid job id specified" in printed:
            return "the scheduler does not know it any more"
        words = printed.split()
        if len(words) != 1 or not words[0].isupper():
            return None
        return words[0] if words[0] in _OVER else ""

    def evidence(self, log: str) -> Evidence:
        """Return what lines of srun and slurmstepd reveal."""
        lines = [line for line in log.splitlines() if re.match(r"(srun|slurmstepd\S*): ", line)]
        text = "\n".join(lines)
        lost = re.findall(r"Node failure on (\S+)", text) + re.findall(r"failed on node ([^\s:]+):", text)
        lost += re.findall(r"srun: error: ([^\s:]+): tasks? [\d,-]+: unknown", text)
        refused = [
            line
            for line in lines
            if re.search(r"Unable to (create step|confirm allocation)|Task launch|has expired", line)
        ]
        codes = re.findall(r"srun: error: \S+: tasks? [\d,-]+: Exited with exit code (\d+)", text)
        return Evidence(
            suspects=tuple(dict.fromkeys(name for names in lost for name in hosts(names))),
            started=not refused,
            unreachable=any(_UNREACHABLE.search(line) for line in refused),
            out_of_memory=re.search(r"oom[_-]kill|Out Of Memory", text) is not None,
            code=int(codes[0]) if codes else None,
            message=(refused or lines or [""])[-1],
        )


def _nodes(
    names: tuple[str, ...], environment: Mapping[str, str], shown: Mapping[str, str], details: Mapping[str, Node]
) -> tuple[Node, ...]:
    """Return nodes by the job's variables and Slurm's details."""
    of_job, counts = hosts(environment.get("SLURM_JOB_NODELIST", "")), []
    if environment.get("SLURM_JOB_CPUS_PER_NODE"):
        counts = counts_of(environment["SLURM_JOB_CPUS_PER_NODE"])
    # of all nodes that the job began with, of which it may have lost some
    cpus = dict(zip(of_job, counts)) if len(of_job) == len(counts) else {}
    least = int(environment.get("SLURM_CPUS_ON_NODE", 0)) or min(counts, default=1)
    gpus = 0 if any(node.gpus for node in details.values()) else _gpus(environment, shown)
    return tuple(
        Node(
            name=name,
            cores=cpus.get(name) or (details[name].cores if name in details else least),
            gpus=gpus or (details[name].gpus if name in details else 0),
            memory=details[name].memory if name in details else None,
        )
        for name in names
    )


def _details(printed: str) -> dict[str, Node]:
    """Return what ``scontrol show job --details`` says of groups of nodes.

    >>> _details("A=b Nodes=n[1-2] CPU_IDs=0-3,8 Mem=4000 GRES=gpu:a100:2(IDX:0,3),mps:1 Nodes=n3 CPU_IDs=0 Mem=0 GRES=")["n2"]
    Node(name='n2', cores=5, gpus=2, memory=4194304000)
    """
    nodes_by_name: dict[str, Node] = {}
    for nodes, cpus, memory, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", printed):
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,(]+)?:(\d+)(?=\(|,|$)", gres))
        size = int(memory) * 2**20 or None
        for name in hosts(nodes):
            nodes_by_name[name] = Node(name=name, cores=len(numbers_in(cpus)), gpus=gpus, memory=size)
    return nodes_by_name


def _members(line: str) -> dict[str, str]:
    """Return the members of a line of ``scontrol -o``.

    >>> _members("JobId=7 TimeLimit=UNLIMITED EndTime=Unknown")["EndTime"]
    'Unknown'
    """
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def counts_of(text: str) -> list[int]:
    """Return a number per node from Slurm's short form.

    >>> counts_of("8,4(x2)"), counts_of("4")
    ([8, 4, 4], [4])
    """
    parts = (re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(","))
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def _deadline(environment: Mapping[str, str], shown: Mapping[str, str]) -> float | None:
    if shown.get("TimeLimit") == "UNLIMITED":
        return None
    if environment.get("SLURM_JOB_END_TIME", "").isdigit():
        return float(environment["SLURM_JOB_END_TIME"])
    with suppress(ValueError):
        return time.mktime(time.strptime(shown.get("EndTime", ""), "%Y-%m-%dT%H:%M:%S"))
    return None


def _gpus(environment: Mapping[str, str], shown: Mapping[str, str]) -> int:
    """Return GPUs per node from ``8``, ``a100:4`` or ``gres/gpu:8``."""
    if environment.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(environment["SLURM_GPUS_ON_NODE"])
    request = environment.get("SLURM_GPUS_PER_NODE", "")
    if not request and environment.get("SLURM_JOB_GPUS"):
        return len(environment["SLURM_JOB_GPUS"].split(","))
    if not request:
        request = ",".join(part for part in shown.get("TresPerNode", "").split(",") if "gpu" in part)
    return sum(int(part.rpartition(":")[2].rpartition("=")[2]) for part in request.split(",") if part[-1:].isdigit())
