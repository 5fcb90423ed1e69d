"""PBS: allocation, command lines, words and batch jobs.

PALS follows its manual; it was not run.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hydragnn.base.errors import InputError
from hydragnn.base.machine import cores as cores_here
from hydragnn.base.machine import visible_gpus
from hydragnn.hpo.launching.allocation import Allocation, Node, Run
from hydragnn.hpo.launching.sites import practice
from hydragnn.hpo.launching.sites.base import Batch, Evidence, Machine, NodeStates, Site, Step, short_name

_OVER = frozenset("EFHMQWX")  # states of a job without nodes

_SCRIPT = """{% extends "job.sh.j2" %}
{% block directives %}
#PBS -N {{ name }}
#PBS -l select={{ job.nodes }}
#PBS -l walltime={{ "%02d:%02d:00" % (minutes // 60, minutes % 60) }}
#PBS -l place=scatter:excl
#PBS -r n
#PBS -W tolerate_node_failures=all
#PBS -j oe
#PBS -o {{ log }}
{% endblock %}
{% block identity %}
id=$PBS_JOBID
{% if staged %}
on_every_node() { mpiexec -n "$(sort -u "$PBS_NODEFILE" | wc -l)" -ppn 1 "$@"; }
{% endif %}
{% endblock %}
{% block cancel %}qdel{% endblock %}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpiexec(Site):
    """``mpiexec`` of PALS or of MPICH (Hydra); both pass SIGUSR1 on."""

    name: ClassVar = "pbs"
    mark: ClassVar = "PBS_NODEFILE"
    machines: ClassVar = {
        "pbs": Machine(),
        "aurora": Machine(directives="#PBS -l filesystems=home:flare\n#PBS -k doe\n", setup=practice.AURORA),
    }
    batch: ClassVar = Batch(
        directive="#PBS",
        account="-A ",
        queue="-q ",
        submit=("qsub",),
        submit_from_job=("qsub",),
        after="-W depend=afterany:{}",
        script=_SCRIPT,
    )
    rank_variables: ClassVar = ("PALS_RANKID", "PMI_RANK", "PMIX_RANK")
    local_rank_variables: ClassVar = ("PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
    hydra: bool
    options: tuple[str, ...] = ()
    """Further options, for example ``("-launcher", "fork")`` where all nodes are this machine."""
    program: str = "mpiexec"
    pbsnodes: bool = True
    """PBS answers ``pbsnodes``."""
    pack_nodes: int = 1  # both feed their input to the first rank only

    @classmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return the allocation that this process runs in."""
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
        return Allocation(nodes=_nodes(lines, environment, shown), deadline=_deadline(shown), job=job)

    @classmethod
    def here(cls, run: Run) -> Site:
        """Return PALS or MPICH, whichever ``mpiexec --version`` names."""
        version = run(["mpiexec", "--version"])
        if "Open MPI" in version or "OpenRTE" in version:
            raise InputError("mpiexec is Open MPI's, which names its options otherwise; load PALS or MPICH")
        pbsnodes = True
        try:
            run(["pbsnodes", "-l"])
        except InputError:
            pbsnodes = False
        return cls(hydra=re.search("hydra", version, re.IGNORECASE) is not None, pbsnodes=pbsnodes)

    def command(self, step: Step) -> list[str]:
        """Return the command that starts a step."""
        line = [self.program, *self.options]
        total, names = str(len(step.nodes) * step.ranks), ",".join(step.nodes)
        if self.hydra:
            line += ["-hosts", names, "-n", total, "-ppn", str(step.ranks), "-bind-to", "none"]
            line += ["-disable-auto-cleanup"] if step.resident else []
        else:
            line += ["--hosts", names, "-n", total, "--ppn", str(step.ranks), "--cpu-bind", "none", "--line-buffer"]
        return [*line, *step.program]

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """Return the command that prints states of nodes."""
        return ["pbsnodes", "-l"] if self.pbsnodes else None

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """Return the states of nodes; ``pbsnodes -l`` lists the bad ones.

        A server that has just started calls all nodes down and unknown.
        """
        states: NodeStates = {short_name(node): "well" for node in nodes}
        for row in (line.split() for line in printed.splitlines()):
            words = set(row[1].split(",")) if len(row) > 1 else set()
            if words & {"unknown", "state-unknown"}:
                states.pop(short_name(row[0]), None)
            elif "down" in words:
                states[short_name(row[0])] = "lost"
        return states

    def look_at_job(self, job: str) -> list[str] | None:
        """Return the command that prints the state of the job."""
        return ["qstat", "-f", job] if job else None

    def job_over(self, printed: str) -> str | None:
        """Return how a job ended."""
        if "Job has finished" in printed:
            return "it has finished"
        if re.search("Unknown Job Id", printed, re.IGNORECASE):
            return "the scheduler does not know it any more"
        state = re.search(r"^\s*job_state = (\w)", printed, re.MULTILINE)
        if state is None:
            return None
        return f"state {state[1]}" if state[1] in _OVER else ""

    def evidence(self, log: str) -> Evidence:
        """Return the exit code of the first rank, from MPICH's banner."""
        codes = re.findall(r"^=   EXIT CODE: (\d+)$", log, re.MULTILINE)
        signals = re.findall(
            r"^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)$", log, re.MULTILINE
        )
        code = -int(signals[0]) if signals else int(codes[0]) if codes else None
        return Evidence(code=code)


def _nodes(lines: Counter[str], environment: Mapping[str, str], shown: Mapping[str, str]) -> tuple[Node, ...]:
    """Return nodes from ``exec_vnode``, ``exec_host`` or the node file."""
    own, resources, cores = environment.get("NCPUS", ""), _vnodes(shown.get("exec_vnode", "")), Counter[str]()
    for host, count in re.findall(r"([^/+\s]+)/\d+(?:\*(\d+))?", shown.get("exec_host", "")):
        cores[host.partition(".")[0]] += int(count or 1)
    count = max(1, int(shown.get("Resource_List.nodect", len(lines))))
    gpus_per_node = int(shown.get("Resource_List.ngpus", 0)) // count
    gpus = 0 if any(one["ngpus"] for one in resources.values()) else gpus_per_node or visible_gpus()
    first = int(own) if own.isdigit() else cores_here()
    line = first / lines[next(iter(lines))]  # the script runs on the first node
    nodes: list[Node] = []
    for name, count in lines.items():
        short = name.partition(".")[0]
        of_node = resources.get(short, Counter())
        number = of_node["ncpus"] or cores[short] or max(1, round(count * line))
        nodes.append(Node(name=name, cores=number, gpus=gpus or of_node["ngpus"], memory=of_node["mem"] or None))
    return tuple(nodes)


def _vnodes(text: str) -> dict[str, Counter[str]]:
    """Return CPUs, GPUs and bytes of memory per host in ``exec_vnode``.

    Virtual nodes of a host are numbered in brackets.

    >>> _vnodes("(x1[0]:ncpus=2:mem=1kb+x1[1]:ncpus=2)+(x2:ncpus=1:ngpus=4)")
    {'x1': Counter({'mem': 1024, 'ncpus': 4}), 'x2': Counter({'ngpus': 4, 'ncpus': 1})}
    """
    hosts: dict[str, Counter[str]] = {}
    for chunk in text.replace("(", "").replace(")", "").split("+") if text else []:
        name, *resources = chunk.split(":")
        of_host = hosts.setdefault(re.split(r"[.\[]", name)[0], Counter())
        for resource, amount, unit in re.findall(r"\b(ncpus|ngpus|mem)=(\d+)([kmgt]?)b?", ":".join(resources)):
            of_host[resource] += int(amount) * 1024 ** " kmgt".index(unit or " ")
    return hosts


def _attributes(text: str) -> dict[str, str]:
    pairs = (line.split(" = ", 1) for line in text.replace("\n\t", "").splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _deadline(shown: Mapping[str, str]) -> float | None:
    """Return start plus walltime; None where PBS prints neither."""
    with suppress(KeyError, ValueError):
        started = time.mktime(time.strptime(shown["stime"], "%a %b %d %H:%M:%S %Y"))
        seconds = 0
        for part in shown["Resource_List.walltime"].split(":"):
            seconds = 60 * seconds + int(part)
        return started + seconds
    return None
