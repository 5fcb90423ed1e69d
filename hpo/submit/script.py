"""The batch script of one job, from a template."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from hydragnn.base.errors import InputError
from hydragnn.hpo.job import JobSettings, is_word
from hydragnn.hpo.submit.sites import SCHEDULERS, SITES

MARGIN = 60
"""Seconds between the last save of the trials and the end of the walltime."""

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("hydragnn.hpo.submit"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # shell, not HTML: values pass through the filter q or are plain words
)
TEMPLATES.filters["q"] = lambda value: shlex.quote(str(value))


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
    """What ``hydragnn search`` is called with."""
    directory: Path
    """Where the command was given; relative paths in it count from there."""
    python: str
    store: Path

    @property
    def label(self) -> str:
        """The beginning of the names of the job's files."""
        return f"{self.serial:04d}"

    @property
    def script(self) -> Path:
        """Where its script lies."""
        return self.campaign / "jobs" / f"{self.label}.sh"

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.campaign / "jobs" / f"{self.label}.log"


def lead_seconds(grace: float) -> int:
    """How long before the end of the walltime a job begins to leave.

    >>> lead_seconds(10.0)
    70
    """
    return int(grace) + MARGIN


def job_script(job: Job) -> str:
    """The batch script; InputError where a path cannot stand in a directive."""
    if not is_word(str(job.log)):
        raise InputError(
            f"{job.campaign}: schedulers' directives hold no such path; use letters, digits and . _ - only"
        )
    site = SITES[job.settings.site]
    values: dict[str, Any] = {
        "job": job.settings,
        "prefix": SCHEDULERS[site.scheduler].directive,
        "name": job.settings.name or job.campaign.name,
        "staged": job.settings.stage_environment or job.settings.stage_data,
        "storage": job.settings.local_storage or site.storage,
        "campaign": job.campaign,
        "log": job.log,
        "serial": job.label,
        "position": job.position,
        "minutes": job.minutes,
        "lead": lead_seconds(job.grace),
        "arguments": shlex.join(job.arguments),
        "directory": job.directory,
        "python": job.python,
        "store": job.store,
    }
    return TEMPLATES.get_template(f"{job.settings.site}.sh.j2").render(values)
