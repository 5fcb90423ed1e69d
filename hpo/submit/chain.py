"""Chains of jobs: every job submits the next, within budgets."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field as Setting

from hydragnn.base.errors import InputError
from hydragnn.base.files import open_regular, read_sealed, write_atomically, write_sealed
from hydragnn.base.imports import allow_code, allowed_code
from hydragnn.base.limits import check_readable
from hydragnn.base.machine import Workers
from hydragnn.base.places import paths_of
from hydragnn.base.settings import Settings, read_toml, with_overrides
from hydragnn.base.shown import Shown
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import read_journal
from hydragnn.hpo.preflight import as_begun, check_campaign, check_folder, is_begun
from hydragnn.hpo.scheduling.events import Opened, node_of
from hydragnn.hpo.settings import CampaignSettings, campaign_settings
from hydragnn.hpo.space.points import space_of
from hydragnn.hpo.stores import places_of
from hydragnn.hpo.submit.script import Job, batch_of, job_script, lead_seconds, submit_script

NAME = "jobs/chain.json"
VERSION = 1
UNSEEN = 120.0
"""Seconds that a killed job may have run after its last line."""


class SubmittedJob(Settings):
    """A job that the scheduler took."""

    serial: int = Setting(ge=1)
    id: str
    minutes: int = Setting(ge=1)
    nodes: int = Setting(ge=1)


class Chain(Settings):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Time in which nodes were held, in seconds since 1970."""

    begin: float
    end: float
    nodes: int


def submit_campaign(
    source: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    workers: Workers | None = None,
    resume: bool = False,
    dry_run: bool = False,
    now: float,
) -> Submission:
    """Submit the first job of a chain; with ``dry_run``, only return it.

    InputError for a file without [job], anything that the search itself would refuse, and what the scheduler refuses.
    """
    check_readable(source)  # its jobs read it again
    settings = as_begun(campaign_settings(with_overrides(read_toml(source), overrides), source), out)
    job_settings = _job_settings(settings)
    space = space_of(settings.search.space, settings.source)
    check_campaign(settings, space, begun=is_begun(out))
    check_folder(settings, space, out, resume=resume)
    earlier = read_chain(out).jobs if (out / NAME).exists() else []
    if earlier and not resume:
        raise InputError(f"{out} waits in a queue as job {earlier[-1].id}; submit again with --resume")
    chain = Chain(
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
    submission = _submit(settings, chain, out, _spans(out, earlier, now), after=None, dry_run=dry_run)
    if submission is None:
        raise InputError(
            f"{source}: the budget of [search] leaves no time for a job; raise max_hours or max_node_hours"
        )
    return submission


def successor(out: Path, serial: int, id: str, *, over: bool, now: float) -> Submission | None:
    """Submit the job after job ``serial``; None where there is none.

    As long as the job is not ``over``, all of its walltime counts as spent, so that budgets hold whatever happens.
    """
    chain = read_chain(out)
    allow_code(chain.allow_code)
    source = Path(chain.source)
    settings = as_begun(campaign_settings(with_overrides(read_toml(source), chain.overrides), source), out)
    if serial != len(chain.jobs) or serial - chain.first + 1 >= _job_settings(settings).chain:
        return None
    spans = _spans(out, chain.jobs, now, full=None if over else serial)
    return _submit(settings, chain, out, spans, after=id, dry_run=False)


def walltime(settings: CampaignSettings, spans: Sequence[Span]) -> int | None:
    """Return minutes of the next job; None where budgets leave too few.

    InputError where [job] itself asks for too little.
    """
    job, search = _job_settings(settings), settings.search
    shortest = 2 * lead_seconds(search.grace_seconds) / 60
    if job.hours * 60 < shortest:
        raise InputError(
            f"{settings.source}: job.hours = {job.hours:g} is too short; give at least {shortest / 60:.2f}"
        )
    hours = [job.hours]
    if search.max_hours is not None:
        hours.append(search.max_hours - sum(span.end - span.begin for span in spans) / 3600)
    if search.max_node_hours is not None:
        spent = sum((span.end - span.begin) * span.nodes for span in spans) / 3600
        hours.append((search.max_node_hours - spent) / job.nodes)
    minutes = int(min(hours) * 60 + 1e-6)
    return minutes if minutes >= shortest else None


def _spans(out: Path, jobs: Sequence[SubmittedJob], now: float, full: int | None = None) -> list[Span]:
    """Return times of held nodes: jobs, and searches outside of them.

    Job ``full`` counts to its limit.
    """
    events = read_journal(out / JOURNAL)
    begun = [(job, start) for job in jobs if (start := _stamp(out, job, "begun")) is not None]
    next_begins = [start for _, start in begun[1:]] + [now]
    held: list[Span] = []
    for (job, start), following in zip(begun, next_begins):
        latest = start + job.minutes * 60
        if job.serial == full:
            end = latest
        else:
            times = [time for time, _ in events if start <= time < following]
            end = _stamp(out, job, "ended") or min(latest, following, max(times, default=following) + UNSEEN)
        held.append(Span(begin=start, end=end, nodes=job.nodes))
    return [*held, *(s for s in _sessions(events) if not any(h.begin <= s.begin <= h.end for h in held))]


def _sessions(events: Sequence[tuple[float, Any]]) -> list[Span]:
    """One span per controller."""
    sessions: list[Span] = []
    for time, event in events:
        if isinstance(event, Opened):
            sessions.append(Span(begin=time, end=time, nodes=len({node_of(slot) for slot in event.slots})))
        elif sessions:
            last = sessions[-1]
            sessions[-1] = Span(begin=last.begin, end=max(last.end, time), nodes=last.nodes)
    return sessions


def _stamp(out: Path, job: SubmittedJob, what: str) -> float | None:
    """Return when a job began or ended; None without two equal times."""
    path = out / "jobs" / f"{job.serial:04d}.{what}"
    try:
        with os.fdopen(open_regular(path), encoding="ascii") as file:
            times = {float(line) for line in file}
    except (OSError, ValueError):
        return None
    return times.pop() if len(times) == 1 else None


def _submit(
    settings: CampaignSettings, chain: Chain, out: Path, spans: Sequence[Span], *, after: str | None, dry_run: bool
) -> Submission | None:
    """Submit the next job; None where budgets leave too little."""
    minutes, serial, job_settings = walltime(settings, spans), len(chain.jobs) + 1, _job_settings(settings)
    if minutes is None:
        return None
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
        store=_store_to_stage(settings, job_settings),
    )
    text, id = job_script(job), None
    if not dry_run:
        write_atomically(job.script, text)
        id = submit_script(batch_of(job_settings.site), str(job.script), after)
        entry = SubmittedJob(serial=serial, id=id, minutes=minutes, nodes=job_settings.nodes)
        write_sealed(out.resolve() / NAME, chain.model_copy(update={"jobs": [*chain.jobs, entry]}).to_json())
    return Submission(id=id, script=job.script, log=job.log, text=text, hours=minutes / 60)


def _store_to_stage(settings: CampaignSettings, job: JobSettings) -> Path:
    """Return the store that a job may copy to its nodes.

    InputError where there are several and they are to be copied.
    """
    stores = [path for _, place in places_of(settings) for path in paths_of(place)]
    if len(stores) > 1 and job.stage_data:
        raise InputError(
            f"{settings.source}: job.stage_data copies one store to the nodes, and there are {len(stores)}; leave it out"
        )
    return stores[0]


def read_chain(out: Path) -> Chain:
    """Return a campaign's chain."""
    path = out / NAME
    chain = read_sealed(path)
    if not isinstance(chain, dict) or chain.get("version") != VERSION:
        raise InputError(f"{path} was not written by this version of the program; update it, or delete the file")
    return Chain.parse(chain, str(path))


def _job_settings(settings: CampaignSettings) -> JobSettings:
    if settings.job is None:
        raise InputError(f"{settings.source}: section [job] is missing; add site, nodes and hours")
    return settings.job
