"""The batch script of one job, from a template."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from hydragnn.base.errors import InputError
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.job import WORD, JobSettings
from hydragnn.hpo.launching.allocation import output_of
from hydragnn.hpo.launching.sites import Batch, machine_named

MARGIN = 60
"""Seconds between the last save and the end of the walltime."""

PATIENCE = 120.0  # seconds that a scheduler may take to answer
PLAIN = ("campaign", "log", "position", "minutes", "directory", "python", "store")  # of a job, as scripts name them


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job of a chain."""

    settings: JobSettings
    campaign: Path
    """Folder of the campaign; absolute."""
    serial: int
    """Number among all jobs of the campaign, from 1."""
    position: int
    """Number within its chain, from 1."""
    minutes: int
    """Walltime."""
    grace: float
    """Seconds that trials need to save themselves."""
    arguments: Sequence[str]
    """Arguments of ``hydragnn search``."""
    directory: Path
    """Folder of the command; relative paths count from there."""
    python: str
    store: Path

    @property
    def label(self) -> str:
        """The beginning of the names of the job's files."""
        return f"{self.serial:04d}"

    @property
    def script(self) -> Path:
        """File of its script."""
        return self.campaign / "jobs" / f"{self.label}.sh"

    @property
    def log(self) -> Path:
        """File of its output."""
        return self.campaign / "jobs" / f"{self.label}.log"


def lead_seconds(grace: float) -> int:
    """Return seconds before the end at which a job leaves.

    >>> lead_seconds(10.0)
    70
    """
    return int(grace) + MARGIN


def job_script(job: Job) -> str:
    """The batch script; InputError where a path cannot stand in a directive."""
    if not re.fullmatch(WORD, str(job.log)):
        raise InputError(
            f"{job.campaign}: schedulers' directives hold no such path; use letters, digits and . _ - only"
        )
    batch, machine = batch_of(job.settings.site), machine_named(job.settings.site)[1]
    values: dict[str, Any] = {
        "job": job.settings,
        "batch": batch,
        "name": job.settings.name or job.campaign.name,
        "staged": job.settings.stages,
        "setup": machine.setup,
        "storage": job.settings.local_storage or machine.storage,
        "serial": job.label,
        "lead": lead_seconds(job.grace),
        "arguments": shlex.join(job.arguments),
    }
    own = {name: getattr(job, name) for name in PLAIN}
    return _template(batch.script, machine.directives).render(own, **values)


def batch_of(site: str) -> Batch:
    """Return the batch jobs of a site; InputError where it has none."""
    batch = machine_named(site)[0].batch
    if batch is None:
        raise InputError(f"job.site = {site!r} has no batch jobs; give the class a `batch`")
    return batch


def submit_script(batch: Batch, script: str, predecessor: str | None = None) -> str:
    """Submit a script, and return the job's name; InputError if refused."""
    command = submit_command(batch, script, predecessor)
    inherited = re.compile(batch.inherited or r"(?!)")
    environment = {key: value for key, value in environment_alone().items() if not inherited.match(key)}
    lines = output_of(command, seconds=PATIENCE, environment=environment).split()
    if not lines:
        raise InputError(
            f"{command[0]} names no job for {script}; look at the queue, and submit again if it is not there"
        )
    return lines[-1].partition(";")[0]  # Slurm adds ;cluster


def submit_command(batch: Batch, script: str, predecessor: str | None) -> list[str]:
    """Return the command that submits a script behind job ``predecessor``.

    >>> submit_command(batch_of("pbs"), "job.sh", predecessor="7.server")
    ['qsub', '-W', 'depend=afterany:7.server', 'job.sh']
    """
    waits = [] if predecessor is None else batch.after.format(predecessor).split()
    return [*(batch.submit if predecessor is None else batch.submit_from_job), *waits, script]


def _template(script: str, directives: str) -> jinja2.Template:
    """Return a script's template, with directives in its block ``site``."""
    of_machine = f'{{% extends "scheduler.sh.j2" %}}{{% block site %}}\n{directives}{{% endblock %}}\n'
    texts = {"scheduler.sh.j2": script, "machine.sh.j2": of_machine}
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.DictLoader(texts), jinja2.PackageLoader("hydragnn.hpo.submit")]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: values pass through the filter q or are plain words
    )
    environment.filters["q"] = lambda value: shlex.quote(str(value))
    return environment.get_template("machine.sh.j2")
