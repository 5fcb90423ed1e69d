"""How a job step is started, signalled and found under each scheduler: command lines and how to read answers, and nothing else.

What a scheduler's tool cannot say (``unknown``, an error, nothing) is no news; no reader here takes it for bad news. Slurm and MPICH's mpiexec were run; PALS's mpiexec and Flux follow their manuals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from hydragnn.errors import InputError
from hydragnn.hpo.launching.allocation import SLURM_OVER, Allocation, Run, hosts, output_of

NodeState = Literal["well", "silent", "lost"]
"""What a scheduler says of a node: silent where it only does not answer at the moment."""

NodeStates = dict[str, NodeState]
"""Nodes by their short names; of a node that is not in it there is no news."""

PACK_NODES = 128
"""Nodes of one resident step: 9,408 nodes are 74 steps, below what a job may have, and a step that breaks takes few with it."""

LISTED = 1000  # nodes that are asked for by name

CONTRADICTING = ("SLURM_GPUS", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_HINT")
"""Beginnings of variables by which a job's own options reach its steps, against what a step's command line says."""

_GONE = {"down", "drained", "fail", "error", "powered_down", "powering_down", "future"}

_PBS_OVER = frozenset("EFHMQWX")
"""States of a job without nodes: exiting, finished, held, moved, queued, waiting, expired."""

_UNREACHABLE = re.compile(
    r"Unable to (create step|confirm allocation).*"
    r"(Unable to contact slurm controller|timed out|Connection refused|Zero Bytes were transmitted)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """So many ranks on each of these nodes, and what each rank runs."""

    name: str
    nodes: tuple[str, ...]
    program: tuple[str, ...]
    ranks: int = 1
    """Per node."""
    resident: bool = False
    """Ranks are independent, outlive each other and the loss of nodes, and all read the launcher's standard input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a launcher's own messages say about how a step ended."""

    suspects: tuple[str, ...] = ()
    started: bool = True
    unreachable: bool = False
    """It did not start because the scheduler did not answer, which says nothing about its nodes."""
    out_of_memory: bool = False
    code: int | None = None
    """Exit code of the first rank that failed; launchers themselves return that of the last, or of the signal they sent."""
    message: str = ""


@runtime_checkable
class Site(Protocol):
    """The command lines of one scheduler."""

    @property
    def pack_nodes(self) -> int:
        """How many nodes one resident step may have, given that all its ranks must read the launcher's input."""

    def command(self, step: Step) -> list[str]:
        """What starts a step and stays until it ends."""

    def signal(self, name: str, signal: str) -> list[str] | None:
        """What sends a signal to all ranks of a step; None where the process of ``command`` passes on what it gets."""

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """What prints the state of nodes; None where the scheduler has no cheap way to tell."""

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """The states of nodes in what ``look`` printed about these ``nodes``; without those that it says nothing about."""

    def look_at_job(self, job: str) -> list[str] | None:
        """What prints whether a job still has its nodes; None where the scheduler has no way to tell."""

    def job_over(self, printed: str) -> str | None:
        """What became of a job, in what ``look_at_job`` printed, errors included; empty where it has its nodes, None for no news."""

    def steps(self, job: str) -> list[str] | None:
        """What prints a job's steps, one ``number name`` per line; None where a step is its process and no more."""

    def end(self, numbers: Sequence[str]) -> list[str]:
        """What kills steps."""

    def evidence(self, log: str) -> Evidence:
        """What the launcher wrote about a step into its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm:
    """Job steps: ``srun`` on named nodes. ``--overlap``, because a step that lost a node keeps the others busy for minutes."""

    cores: int
    gpus: int = 0
    pack_nodes: int = PACK_NODES

    def command(self, step: Step) -> list[str]:
        """See ``Site``; all cores, memory and GPUs of the nodes, which the ranks share out among themselves."""
        count = len(step.nodes)
        line = ["srun", f"--job-name={step.name}", "--overlap", "--exact", "--export=ALL", "--mem=0", "--cpu-bind=none"]
        line += [f"--nodelist={','.join(step.nodes)}", f"--nodes={count}", f"--ntasks={count * step.ranks}"]
        line += [f"--ntasks-per-node={step.ranks}", f"--cpus-per-task={max(1, self.cores // step.ranks)}"]
        line += [f"--gpus-per-node={self.gpus}", "--gpu-bind=none"] if self.gpus else []
        if step.resident:
            line += ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
        else:
            line += ["--kill-on-bad-exit=1", "--input=none"]
        return [*line, *step.program]

    def signal(self, name: str, signal: str) -> list[str] | None:
        """None: srun passes SIGUSR1 on to all ranks, and ends the step at SIGTERM."""
        return None

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Site``; of all nodes of the machine where the list would be too long for a command line."""
        some = [f"--nodes={','.join(nodes)}"] if len(nodes) <= LISTED else []
        return ["sinfo", "--noheader", "--Node", *some, "--format=%N %T"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Site``; a star marks a node that does not answer, and a slurmctld that has just started knows no node yet.

        >>> Slurm(cores=1).states("n1 allocated\\nn2 down*\\nn3 mixed*\\nn4 draining\\nn5 unknown*\\n", [])
        {'n1': 'well', 'n2': 'lost', 'n3': 'silent', 'n4': 'well'}
        """
        states: NodeStates = {}
        for line in printed.splitlines():
            name, _, state = line.strip().partition(" ")
            word = state.rstrip("*~#!%$@^-+")
            if word and word != "unknown":
                states[short_name(name)] = "lost" if word in _GONE else "silent" if "*" in state else "well"
        return states

    def look_at_job(self, job: str) -> list[str] | None:
        """See ``Site``."""
        return ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T"] if job else None

    def job_over(self, printed: str) -> str | None:
        """See ``Site``; slurmctld forgets a job some minutes after its end.

        >>> site = Slurm(cores=1)
        >>> site.job_over("RUNNING\\n"), site.job_over("CANCELLED\\n"), site.job_over("")
        ('', 'CANCELLED', None)
        """
        if "Invalid job id specified" in printed:
            return "the scheduler does not know it any more"
        words = printed.split()
        if len(words) != 1 or not words[0].isupper():
            return None
        return words[0] if words[0] in SLURM_OVER else ""

    def steps(self, job: str) -> list[str] | None:
        """See ``Site``."""
        return ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]

    def end(self, numbers: Sequence[str]) -> list[str]:
        """See ``Site``."""
        return ["scancel", "--signal=KILL", *numbers]

    def evidence(self, log: str) -> Evidence:
        """See ``Site``; only lines that srun and slurmstepd wrote themselves."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpiexec:
    """PBS: ``mpiexec`` of PALS (Aurora, Polaris) or of MPICH (Hydra); both pass SIGUSR1 on to all ranks."""

    hydra: bool
    options: tuple[str, ...] = ()
    """Further options, for example ``("-launcher", "fork")`` where all nodes are this machine."""
    program: str = "mpiexec"
    pbsnodes: bool = True

    @property
    def pack_nodes(self) -> int:
        """One: mpiexec of PALS and of MPICH feeds its input to the first rank only."""
        return 1

    def command(self, step: Step) -> list[str]:
        """See ``Site``."""
        line = [self.program, *self.options]
        total, names = str(len(step.nodes) * step.ranks), ",".join(step.nodes)
        if self.hydra:
            line += ["-hosts", names, "-n", total, "-ppn", str(step.ranks), "-bind-to", "none"]
            line += ["-disable-auto-cleanup"] if step.resident else []
        else:
            line += ["--hosts", names, "-n", total, "--ppn", str(step.ranks), "--cpu-bind", "none", "--line-buffer"]
        return [*line, *step.program]

    def signal(self, name: str, signal: str) -> list[str] | None:
        """None: passed on."""
        return None

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Site``."""
        return ["pbsnodes", "-l"] if self.pbsnodes else None

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Site``; ``pbsnodes -l`` lists what is not well. A server that has just started calls all nodes down and unknown.

        >>> printed = "x1  down,offline  memory errors\\nx2  offline\\nx3  state-unknown,down\\n"
        >>> Mpiexec(hydra=True).states(printed, ["x1.site", "x2.site", "x3.site", "x4.site"])
        {'x1': 'lost', 'x2': 'well', 'x4': 'well'}
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
        """See ``Site``."""
        return ["qstat", "-f", job] if job else None

    def job_over(self, printed: str) -> str | None:
        """See ``Site``.

        >>> site = Mpiexec(hydra=True)
        >>> site.job_over("Job Id: 7.pbs\\n    job_state = R\\n"), site.job_over("qstat: 7.pbs Job has finished, use -x")
        ('', 'it has finished')
        >>> site.job_over("qstat: cannot connect to server pbs (errno=15010)") is None
        True
        """
        if "Job has finished" in printed:
            return "it has finished"
        if re.search("Unknown Job Id", printed, re.IGNORECASE):
            return "the scheduler does not know it any more"
        state = re.search(r"^\s*job_state = (\w)", printed, re.MULTILINE)
        if state is None:
            return None
        return f"state {state[1]}" if state[1] in _PBS_OVER else ""

    def steps(self, job: str) -> list[str] | None:
        """None: a step is its ``mpiexec``."""
        return None

    def end(self, numbers: Sequence[str]) -> list[str]:
        """There is nothing to kill beside the process."""
        return ["true"]

    def evidence(self, log: str) -> Evidence:
        """See ``Site``; MPICH names the first rank's code in its banner."""
        codes = re.findall(r"^=   EXIT CODE: (\d+)$", log, re.MULTILINE)
        signals = re.findall(
            r"^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)$", log, re.MULTILINE
        )
        code = -int(signals[0]) if signals else int(codes[0]) if codes else None
        return Evidence(code=code)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flux:
    """``flux run`` inside a Flux instance."""

    cores: int
    gpus: int = 0
    pack_nodes: int = PACK_NODES

    def command(self, step: Step) -> list[str]:
        """See ``Site``."""
        count = len(step.nodes)
        line = ["flux", "run", f"--job-name={step.name}", f"--requires=host:{','.join(step.nodes)}", f"--nodes={count}"]
        line += [f"--ntasks={count * step.ranks}", "--exclusive", "-o", "cpu-affinity=off", "-o", "gpu-affinity=off"]
        line += ["-o", "exit-timeout=none"] if step.resident else ["-o", "exit-on-error"]
        return [*line, "--unbuffered", *step.program] if step.resident else [*line, *step.program]

    def signal(self, name: str, signal: str) -> list[str] | None:
        """See ``Site``; ``flux run`` passes nothing on."""
        job = f"$(flux jobs --no-header --format='{{id}}' --name={name})"
        return ["sh", "-c", f"flux job kill --signal={signal} {job}"]

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Site``; the system's view, because the scheduler's calls nodes down that are only drained."""
        return ["flux", "resource", "status", "--states=online,offline", "--no-header", "--format={status} {nodelist}"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Site``.

        >>> Flux(cores=1).states("online n[1-2]\\noffline n3\\nonline \\n", [])
        {'n1': 'well', 'n2': 'well', 'n3': 'lost'}
        """
        states: NodeStates = {}
        for status, _, names in (line.strip().partition(" ") for line in printed.splitlines()):
            if status in ("online", "offline"):
                states |= {short_name(name): "well" if status == "online" else "lost" for name in hosts(names.strip())}
        return states

    def look_at_job(self, job: str) -> list[str] | None:
        """None: the search is a process of the instance, and ends with it."""
        return None

    def job_over(self, printed: str) -> str | None:
        """See ``Site``; nothing is asked."""
        return None

    def steps(self, job: str) -> list[str] | None:
        """See ``Site``; within the instance, whose number therefore is not needed."""
        return ["flux", "jobs", "--no-header", "--format={id} {name}"]

    def end(self, numbers: Sequence[str]) -> list[str]:
        """See ``Site``."""
        return ["flux", "cancel", *numbers]

    def evidence(self, log: str) -> Evidence:
        """See ``Site``; Flux names lost nodes in its exceptions."""
        lost = re.findall(r"^flux-\S+: .*(?:lost contact with|node failure on) (\S+)", log, re.MULTILINE)
        return Evidence(suspects=tuple(dict.fromkeys(name for names in lost for name in hosts(names.rstrip(".,")))))


def short_name(node: str) -> str:
    """A node's name without its domain, which not all tools of a scheduler print.

    >>> short_name("x1001.hsn.site")
    'x1001'
    """
    return node.partition(".")[0]


def site_of(allocation: Allocation, run: Run = output_of) -> Site:
    """The command lines of an allocation's scheduler; which mpiexec there is, it says itself."""
    if allocation.by == "slurm":
        return Slurm(cores=allocation.cores, gpus=allocation.gpus)
    if allocation.by == "flux":
        return Flux(cores=allocation.cores, gpus=allocation.gpus)
    version = run(["mpiexec", "--version"])
    if "Open MPI" in version or "OpenRTE" in version:
        raise InputError("mpiexec is Open MPI's, which names its options otherwise; load PALS or MPICH")
    return Mpiexec(hydra=re.search("hydra", version, re.IGNORECASE) is not None, pbsnodes=_answers(run, "pbsnodes"))


def _answers(run: Run, program: str) -> bool:
    try:
        run([program, "-l"])
    except InputError:
        return False
    return True
