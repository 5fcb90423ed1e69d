"""A campaign as CAMPAIGN.toml describes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.places import at_home
from hydragnn.base.settings import read_toml, with_overrides
from hydragnn.config import AnyConfig, parse_config, with_isolated_atoms
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.search_settings import DEFAULT, SearchSettings, search_settings
from hydragnn.hpo.space.default import default_space
from hydragnn.start import with_start


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenRun:
    """A given run, which a campaign only trains."""

    config: AnyConfig
    work: float | None = None
    """Seconds per epoch on one slot, where known."""
    scaling: float | None = None
    """Slots at which half of the speed is lost, where known."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"config": self.config.to_json(), "work": self.work, "scaling": self.scaling}


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignSettings:
    """A campaign: a shared configuration, and what is searched around it.

    ``base`` stays a table because it is complete only together with the sampled values.
    """

    base: dict[str, Any]
    search: SearchSettings
    job: JobSettings | None = None
    """The batch jobs that carry the campaign; nothing that is found depends on it."""
    runs: tuple[GivenRun, ...] = ()
    """Trials that are given instead of searched: the space then only numbers them, and there is no base."""
    source: str = "campaign"
    left_out: Mapping[str, str] | None = None
    """Architectures that a default space leaves out, each with the reason; None where the space was given."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``campaign_settings`` makes the same object."""
        job = {} if self.job is None else {"job": self.job.to_json()}
        runs = {"runs": [run.to_json() for run in self.runs]} if self.runs else {}
        return {**self.base, "search": self.search.to_json(), **job, **runs}


def read_campaign(path: Path, assignments: Sequence[str] = ()) -> CampaignSettings:
    """Return the campaign of a TOML file; paths count from its folder."""
    return campaign_settings(with_overrides(read_toml(path), assignments), path)


def campaign_settings(table: Mapping[str, Any], path: Path) -> CampaignSettings:
    """Return the campaign of a parsed table.

    Relative paths count from the folder of ``path``, which names it in errors.
    """
    shared = {key: value for key, value in table.items() if key not in ("search", "job", "runs")}
    base = json.loads(json.dumps(with_start(with_isolated_atoms(shared, path), path)))
    if not isinstance(table.get("search"), Mapping):
        raise InputError(f"{path}: section [search] is missing; add trials and [search.space]")
    branches = base.get("branches")
    for section in (base, *(branches if isinstance(branches, list) else ())):
        data = section.get("data") if isinstance(section, dict) else None
        if isinstance(data, dict) and isinstance(store := data.get("store"), str | list):
            places = [
                str((path.parent / at_home(str(one))).resolve())
                for one in ([store] if isinstance(store, str) else store)
            ]
            data["store"] = places[0] if isinstance(store, str) else places
    section, left_out = dict(table["search"]), None
    space = section.setdefault("space", {})
    if isinstance(space, str):
        if space != DEFAULT:
            raise InputError(f'{path}: search.space = "{space}"; {nearest(space, [DEFAULT])}, or give a table')
        section["space"], left_out = default_space(base, str(path))
    search = search_settings(section, str(path))
    search = search.model_copy(update={"warm_start": [(path.parent / at_home(s)).resolve() for s in search.warm_start]})
    job = JobSettings.parse(table["job"], source=f"{path}: [job]") if "job" in table else None
    runs = []
    for number, run in enumerate(table.get("runs", [])):
        where = f"{path}: runs.{number}"
        if not isinstance(run, Mapping) or "config" not in run:
            raise InputError(f"{where} has no config; runs are written by the final training, and not by hand")
        config = parse_config(run["config"], source=where)
        runs.append(GivenRun(config=config, work=run.get("work"), scaling=run.get("scaling")))
    return CampaignSettings(base=base, search=search, job=job, runs=tuple(runs), source=str(path), left_out=left_out)
