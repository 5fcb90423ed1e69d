"""Chains of equal jobs: every job submits the next."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field as Setting

from hydragnn.base.errors import InputError
from hydragnn.base.files import read_sealed, write_atomically, write_sealed
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.base.limits import check_readable
from hydragnn.base.machine import Workers
from hydragnn.base.places import paths_of
from hydragnn.base.settings import Settings
from hydragnn.base.shown import Shown
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import replay
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, is_begun
from hydragnn.hpo.settings import CampaignSettings, read_campaign
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.stores import places_of
from hydragnn.hpo.submit.script import Job, batch_of, job_script, lead_seconds, submit_script

NAME = "jobs/chain.json"


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
    """Submit the next job; InputError where several stores are to be copied."""
    stores = [path for _, place in places_of(settings) for path in paths_of(place)]
    if len(stores) > 1 and _job_settings(settings).stage_data:
        raise InputError(
            f"{settings.source}: job.stage_data copies one store to the nodes, and there are {len(stores)}; leave it out"
        )
    minutes, serial, job_settings = minutes_of(settings), len(chain.jobs) + 1, _job_settings(settings)
    overrides = [word for assignment in chain.overrides for word in ("--set", assignment)]
    workers = [] if chain.workers is None else ["--workers", str(chain.workers)]
    allowed = [word for module in chain.allow_code for word in ("--allow-code", module)]
    job = Job(
        settings=job_settings,
        campaign=out.resolve(),
        serial=serial,
        position=serial - chain.first + 1,
        minutes=minutes,
        grace=settings.search.grace_seconds,
        arguments=[chain.source, "--out", str(out.resolve()), "--resume", *workers, *overrides, *allowed],
        directory=Path(chain.directory),
        python=chain.python,
        store=stores[0],
    )
    text, id = job_script(job), None
    if not dry_run:
        write_atomically(job.script, text)
        id = submit_script(batch_of(job_settings.site), str(job.script), predecessor)
        entry = SubmittedJob(serial=serial, id=id)
        write_sealed(out.resolve() / NAME, chain.model_copy(update={"jobs": [*chain.jobs, entry]}).to_json())
    return Submission(id=id, script=job.script, log=job.log, text=text, hours=minutes / 60)


def read_chain(out: Path) -> JobChain:
    """Return a campaign's chain."""
    return JobChain.parse(read_sealed(out / NAME), str(out / NAME))


def _job_settings(settings: CampaignSettings) -> JobSettings:
    if settings.job is None:
        raise InputError(f"{settings.source}: section [job] is missing; add site, nodes and hours")
    return settings.job
