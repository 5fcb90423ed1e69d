"""Flux: allocation, command lines, words and batch jobs, after its manuals."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from hydragnn.base.errors import InputError
from hydragnn.base.machine import numbers_in
from hydragnn.hpo.launching.allocation import Allocation, Node, Run, alike, hosts
from hydragnn.hpo.launching.sites.base import Batch, Evidence, Machine, NodeStates, Site, Step, short_name

_FOREVER = 2.0**32 - 1  # seconds that Flux shows for a job without an end

_SCRIPT = """{% extends "job.sh.j2" %}
{% block directives %}
#flux: --job-name={{ name }}
#flux: --nodes={{ job.nodes }}
#flux: --exclusive
#flux: --time-limit={{ minutes }}m
#flux: --output={{ log }}
{% endblock %}
{% block identity %}
id=$(flux getattr jobid)
{% if staged %}
on_every_node() { flux exec -r all "$@"; }
{% endif %}
{% endblock %}
{% block cancel %}flux --parent cancel{% endblock %}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flux(Site):
    """``flux run`` inside a Flux instance."""

    name: ClassVar = "flux"
    mark: ClassVar = "FLUX_URI"
    machines: ClassVar = {"flux": Machine()}
    batch: ClassVar = Batch(
        directive="#flux:",
        account="--bank=",
        queue="--queue=",
        submit=("flux", "batch"),
        submit_from_job=("flux", "--parent", "batch"),
        after="--dependency=afterany:{}",
        script=_SCRIPT,
    )
    rank_variables: ClassVar = ("FLUX_TASK_RANK",)
    local_rank_variables: ClassVar = ("FLUX_TASK_LOCAL_ID",)
    own_steps: ClassVar = True

    @classmethod
    def allocation(cls, environment: Mapping[str, str], run: Run) -> Allocation:
        """Return the allocation that this process runs in."""
        nodes = _nodes(run)
        if not nodes:
            raise InputError(
                "flux resource list names no node that is up; start the search inside flux alloc or flux batch"
            )
        return Allocation(nodes=nodes, deadline=_deadline(run), job=environment.get("FLUX_JOB_ID", ""))

    def command(self, step: Step) -> list[str]:
        """Return the command that starts a step."""
        count = len(step.nodes)
        line = ["flux", "run", f"--job-name={step.name}", f"--requires=host:{','.join(step.nodes)}", f"--nodes={count}"]
        line += [f"--ntasks={count * step.ranks}", "--exclusive", "-o", "cpu-affinity=off", "-o", "gpu-affinity=off"]
        line += ["-o", "exit-timeout=none"] if step.resident else ["-o", "exit-on-error"]
        return [*line, "--unbuffered", *step.program] if step.resident else [*line, *step.program]

    def signal(self, name: str, signal: str) -> list[str] | None:
        """Return the command that signals all ranks; ``flux run`` passes nothing on."""
        job = f"$(flux jobs --no-header --format='{{id}}' --name={name})"
        return ["sh", "-c", f"flux job kill --signal={signal} {job}"]

    def steps(self, job: str) -> list[str] | None:
        """Return the command that prints the steps of this instance."""
        return ["flux", "jobs", "--no-header", "--format={id} {name}"]

    def end(self, numbers: Sequence[str]) -> list[str]:
        """Return the command that kills steps."""
        return ["flux", "cancel", *numbers]

    def look(self, nodes: Sequence[str]) -> list[str] | None:
        """Return the command of the system's view of nodes."""
        return ["flux", "resource", "status", "--states=online,offline", "--no-header", "--format={status} {nodelist}"]

    def states(self, printed: str, nodes: Sequence[str]) -> NodeStates:
        """Return the states of nodes."""
        states: NodeStates = {}
        for status, _, names in (line.strip().partition(" ") for line in printed.splitlines()):
            if status in ("online", "offline"):
                states |= {short_name(name): "well" if status == "online" else "lost" for name in hosts(names.strip())}
        return states

    def evidence(self, log: str) -> Evidence:
        """Return the lost nodes that exceptions name."""
        lost = re.findall(r"^flux-\S+: .*(?:lost contact with|node failure on) (\S+)", log, re.MULTILINE)
        return Evidence(suspects=tuple(dict.fromkeys(name for names in lost for name in hosts(names.rstrip(".,")))))


def _nodes(run: Run) -> tuple[Node, ...]:
    """Return nodes that are up, by resource set, else by list."""
    with suppress(InputError, ValueError, KeyError, TypeError):
        execution = json.loads(run(["flux", "resource", "R", "-s", "up"]))["execution"]
        children = {
            rank: {kind: len(numbers_in(ids)) for kind, ids in group["children"].items()}
            for group in execution["R_lite"]
            for rank in numbers_in(str(group["rank"]))
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


def _deadline(run: Run) -> float | None:
    with suppress(InputError, ValueError):  # an instance that is no job of another has no end
        seconds = float(run(["flux", "job", "timeleft"]))
        return None if seconds >= _FOREVER else time.time() + seconds
    return None
