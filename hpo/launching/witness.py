"""What a scheduler says of nodes, of the job and of how a step ended: what to ask, and how to read the answer.

What a scheduler's tool cannot say (``unknown``, an error, nothing) is no news; no reader here takes it for bad news. Slurm and MPICH's mpiexec were run; PALS's mpiexec and Flux follow their manuals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from hydragnn.hpo.launching.allocation import SLURM_OVER, hosts

NodeState = Literal["well", "silent", "lost"]
"""What a scheduler says of a node: silent where it only does not answer at the moment."""

NodeStates = dict[str, NodeState]
"""Nodes by their short names; of a node that is not in it there is no news."""

LISTED = 1000  # nodes that are asked for by name

_GONE = {"down", "drained", "fail", "error", "powered_down", "powering_down", "future"}

_PBS_OVER = frozenset("EFHMQWX")
"""States of a job without nodes: exiting, finished, held, moved, queued, waiting, expired."""

_UNREACHABLE = re.compile(
    r"Unable to (create step|confirm allocation).*"
    r"(Unable to contact slurm controller|timed out|Connection refused|Zero Bytes were transmitted)"
)


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
class Witness(Protocol):
    """The words of one scheduler."""

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """What prints the state of nodes; None where the scheduler has no cheap way to tell."""

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """The states of nodes in what ``look`` printed about these ``nodes``; without those that it says nothing about."""

    def look_at_job(self, job: str) -> list[str] | None:
        """What prints whether a job still has its nodes; None where the scheduler has no way to tell."""

    def job_over(self, printed: str) -> str | None:
        """What became of a job, in what ``look_at_job`` printed, errors included; empty where it has its nodes, None for no news."""

    def evidence(self, log: str) -> Evidence:
        """What the launcher wrote about a step into its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmWords:
    """``sinfo``, ``squeue``, and what ``srun`` and slurmstepd write into logs."""

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Witness``; of all nodes of the machine where the list would be too long for a command line."""
        some = [f"--nodes={','.join(nodes)}"] if len(nodes) <= LISTED else []
        return ["sinfo", "--noheader", "--Node", *some, "--format=%N %T"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Witness``; a star marks a node that does not answer, and a slurmctld that has just started knows no node yet.

        >>> SlurmWords().states("n1 allocated\\nn2 down*\\nn3 mixed*\\nn4 draining\\nn5 unknown*\\n", [])
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
        """See ``Witness``."""
        return ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T"] if job else None

    def job_over(self, printed: str) -> str | None:
        """See ``Witness``; slurmctld forgets a job some minutes after its end.

        >>> words = SlurmWords()
        >>> words.job_over("RUNNING\\n"), words.job_over("CANCELLED\\n"), words.job_over("")
        ('', 'CANCELLED', None)
        """
        if "Invalid job id specified" in printed:
            return "the scheduler does not know it any more"
        words = printed.split()
        if len(words) != 1 or not words[0].isupper():
            return None
        return words[0] if words[0] in SLURM_OVER else ""

    def evidence(self, log: str) -> Evidence:
        """See ``Witness``; only lines that srun and slurmstepd wrote themselves."""
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
class PbsWords:
    """``pbsnodes`` and ``qstat`` of PBS, and the banner of MPICH."""

    pbsnodes: bool = True

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Witness``."""
        return ["pbsnodes", "-l"] if self.pbsnodes else None

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Witness``; ``pbsnodes -l`` lists what is not well. A server that has just started calls all nodes down and unknown.

        >>> printed = "x1  down,offline  memory errors\\nx2  offline\\nx3  state-unknown,down\\n"
        >>> PbsWords().states(printed, ["x1.site", "x2.site", "x3.site", "x4.site"])
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
        """See ``Witness``."""
        return ["qstat", "-f", job] if job else None

    def job_over(self, printed: str) -> str | None:
        """See ``Witness``.

        >>> words = PbsWords()
        >>> words.job_over("Job Id: 7.pbs\\n    job_state = R\\n"), words.job_over("qstat: 7.pbs Job has finished, use -x")
        ('', 'it has finished')
        >>> words.job_over("qstat: cannot connect to server pbs (errno=15010)") is None
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

    def evidence(self, log: str) -> Evidence:
        """See ``Witness``; MPICH names the first rank's code in its banner."""
        codes = re.findall(r"^=   EXIT CODE: (\d+)$", log, re.MULTILINE)
        signals = re.findall(
            r"^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)$", log, re.MULTILINE
        )
        code = -int(signals[0]) if signals else int(codes[0]) if codes else None
        return Evidence(code=code)


@dataclass(frozen=True, kw_only=True, slots=True)
class FluxWords:
    """``flux resource``, and the exceptions in logs."""

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """See ``Witness``; the system's view, because the scheduler's calls nodes down that are only drained."""
        return ["flux", "resource", "status", "--states=online,offline", "--no-header", "--format={status} {nodelist}"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """See ``Witness``.

        >>> FluxWords().states("online n[1-2]\\noffline n3\\nonline \\n", [])
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
        """See ``Witness``; nothing is asked."""
        return None

    def evidence(self, log: str) -> Evidence:
        """See ``Witness``; Flux names lost nodes in its exceptions."""
        lost = re.findall(r"^flux-\S+: .*(?:lost contact with|node failure on) (\S+)", log, re.MULTILINE)
        return Evidence(suspects=tuple(dict.fromkeys(name for names in lost for name in hosts(names.rstrip(".,")))))


def short_name(node: str) -> str:
    """A node's name without its domain, which not all tools of a scheduler print.

    >>> short_name("x1001.hsn.site")
    'x1001'
    """
    return node.partition(".")[0]
