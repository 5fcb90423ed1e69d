"""Chains of equal jobs, of which every one submits the next."""

import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import jinja2
from pydantic import Field as Setting

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed, write_atomically, write_sealed
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.base.limits import check_readable
from hydragnn.base.machine import Workers
from hydragnn.base.places import paths_of
from hydragnn.base.settings import Settings
from hydragnn.base.shown import Shown
from hydragnn.distributed.launch import environment_alone
from hydragnn.hpo.job import WORD, JobSettings
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import replay
from hydragnn.hpo.launching.allocation import output_of
from hydragnn.hpo.launching.sites import Batch, machine_named
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, is_begun, places_of
from hydragnn.hpo.settings import CampaignSettings, read_campaign
from hydragnn.hpo.space.points import space_of

NAME = "jobs/chain.json"
MARGIN = 60  # seconds between the last save and the end of the walltime
PATIENCE = 120.0  # seconds that a scheduler may take to answer


class SubmittedJob(Settings):
    """A job that the scheduler took."""

    removed: ClassVar = {"minutes": ..., "nodes": ...}

    serial: int = Setting(ge=1)
    id: str


class JobChain(Settings):
    """Content of ``chain.json``."""

    version: Literal[1]
    jobs: list[SubmittedJob]
    source: str
    overrides: list[str]
    workers: Workers | None
    directory: str
    python: str
    first: int = Setting(ge=1)
    """Serial of the first job of the chain."""
    allow_code: list[str] = Setting(default_factory=list)
    """Modules that the user lets files name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission(Shown):
    """Job in the queue, or one that would be submitted."""

    id: str | None
    """The scheduler's name of the job; None where nothing was submitted."""
    script: Path
    """The batch script."""
    log: Path
    """File with the job's output."""
    text: str
    """The batch script's text."""
    hours: float
    """Time limit of the job."""

    def to_json(self) -> dict[str, Any]:
        """The submission as plain JSON, without the script."""
        return {"job": self.id, "script": str(self.script), "log": str(self.log), "hours": self.hours}

    def __str__(self) -> str:
        """The job, its time limit and where its words go."""
        job = "not submitted" if self.id is None else f"job {self.id}"
        return f"{job}: {self.script}, {self.hours:g} h, log in {self.log}"


def submit_campaign(
    source: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    workers: Workers | None = None,
    resume: bool = False,
    dry_run: bool = False,
) -> Submission:
    """Submit the first job of a chain; with ``dry_run``, only return it.

    InputError for a file without [job], anything that the search itself would refuse, and what the scheduler refuses.
    """
    check_readable(source)  # its jobs read it again
    settings = as_begun(read_campaign(source, overrides), out)
    job_settings = _job_settings(settings)
    space = space_of(settings.search.space, settings.source)
    check_campaign(settings, space, begun=is_begun(out))
    check_folder(settings, space, out, resume=resume)
    earlier = read_chain(out).jobs if (out / NAME).exists() else []
    if earlier and not resume:
        raise InputError(f"{out} waits in a queue as job {earlier[-1].id}; submit again with --resume")
    chain = JobChain(
        version=1,
        jobs=earlier,
        source=str(source.resolve()),
        overrides=list(overrides),
        workers=workers,
        directory=str(Path.cwd()),
        python=job_settings.python or sys.executable,
        first=len(earlier) + 1,
        allow_code=allowed_code(),
    )
    if _is_spent(settings, out):
        raise InputError(
            f"{source}: the budget of [search] leaves no time for a job; raise max_hours or max_node_hours"
        )
    return _submit(settings, chain, out, predecessor=None, dry_run=dry_run)


def successor(out: Path, serial: int, id: str) -> Submission | None:
    """Submit the job after job ``serial``; None where there is none."""
    chain = read_chain(out)
    allow_code(chain.allow_code)
    source = Path(chain.source)
    settings = as_begun(read_campaign(source, chain.overrides), out)
    is_last = serial - chain.first + 1 >= _job_settings(settings).chain
    if serial != len(chain.jobs) or is_last or _is_spent(settings, out):
        return None
    return _submit(settings, chain, out, predecessor=id, dry_run=False)


def minutes_of(settings: CampaignSettings) -> int:
    """Return the walltime of jobs; InputError where [job] asks for too little."""
    job = _job_settings(settings)
    shortest = 2 * lead_seconds(settings.search.grace_seconds) / 60
    if job.hours * 60 < shortest:
        raise InputError(
            f"{settings.source}: job.hours = {job.hours:g} is too short; give at least {shortest / 60:.2f}"
        )
    return int(job.hours * 60 + 1e-6)


def _is_spent(settings: CampaignSettings, out: Path) -> bool:
    """Return True where a budget leaves no time to train."""
    state, search = replay(out / JOURNAL), settings.search
    seconds = [] if search.max_hours is None else [search.max_hours * 3600 - state.elapsed(state.last)]
    if search.max_node_hours is not None:
        node_seconds = search.max_node_hours * 3600 - state.node_seconds(state.last)
        seconds.append(node_seconds / _job_settings(settings).nodes)
    return min(seconds, default=math.inf) <= search.grace_seconds


def _submit(
    settings: CampaignSettings, chain: JobChain, out: Path, *, predecessor: str | None, dry_run: bool
) -> Submission:
    """Submit the next job; InputError where its script cannot be written."""
    minutes, script, id = minutes_of(settings), _file(chain, out, "sh"), None
    text = job_script(settings, chain, out, minutes)
    if not dry_run:
        write_atomically(script, text)
        id = submit_script(batch_of(_job_settings(settings).site), str(script), predecessor)
        entry = SubmittedJob(serial=len(chain.jobs) + 1, id=id)
        write_sealed(out.resolve() / NAME, chain.model_copy(update={"jobs": [*chain.jobs, entry]}).to_json())
    return Submission(id=id, script=script, log=_file(chain, out, "log"), text=text, hours=minutes / 60)


def job_script(settings: CampaignSettings, chain: JobChain, out: Path, minutes: int) -> str:
    """Return the batch script of a chain's next job, with its walltime.

    InputError where a path cannot stand in a directive, or several stores are to be copied.
    """
    job, log = _job_settings(settings), _file(chain, out, "log")
    stores = [path for _, place in places_of(settings) for path in paths_of(place)]
    if len(stores) > 1 and job.stage_data:
        problem = f"{settings.source}: job.stage_data copies one store to the nodes, and there are {len(stores)}"
        raise InputError(f"{problem}; leave it out")
    if not re.fullmatch(WORD, str(log)):
        raise InputError(f"{out}: schedulers' directives hold no such path; use letters, digits and . _ - only")
    overrides = [word for assignment in chain.overrides for word in ("--set", assignment)]
    workers = [] if chain.workers is None else ["--workers", str(chain.workers)]
    allowed = [word for module in chain.allow_code for word in ("--allow-code", module)]
    batch, machine = batch_of(job.site), machine_named(job.site)[1]
    return _template(batch.script, machine.directives).render(
        job=job,
        batch=batch,
        name=job.name or out.resolve().name,
        campaign=out.resolve(),
        serial=log.stem,
        position=len(chain.jobs) + 2 - chain.first,
        log=log,
        minutes=minutes,
        lead=lead_seconds(settings.search.grace_seconds),
        directory=Path(chain.directory),
        python=chain.python,
        setup=machine.setup,
        staged=job.stages,
        storage=job.local_storage or machine.storage,
        store=stores[0],
        arguments=shlex.join([chain.source, "--out", str(out.resolve()), "--resume", *workers, *overrides, *allowed]),
    )


def _file(chain: JobChain, out: Path, kind: str) -> Path:
    """Return a file of the next job, which counts all jobs of the campaign."""
    return out.resolve() / "jobs" / f"{len(chain.jobs) + 1:04d}.{kind}"


def read_chain(out: Path) -> JobChain:
    """Return a campaign's chain."""
    return JobChain.parse(read_sealed(out / NAME), str(out / NAME))


def _job_settings(settings: CampaignSettings) -> JobSettings:
    if settings.job is None:
        raise InputError(f"{settings.source}: section [job] is missing; add site, nodes and hours")
    return settings.job


def lead_seconds(grace: float) -> int:
    """Return seconds before the end at which a job leaves.

    >>> lead_seconds(10.0)
    70
    """
    return int(grace) + MARGIN


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
