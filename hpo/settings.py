"""What a campaign searches: the [search] section of CAMPAIGN.toml, typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn.config import AnyConfig, parse_config, with_isolated_atoms
from hydragnn.errors import InputError, nearest
from hydragnn.hpo.default_space import DEFAULT, default_space
from hydragnn.hpo.job import JobSettings
from hydragnn.hpo.parameters import Parameter, parsed_parameter
from hydragnn.settings import Settings, read_toml, with_overrides

VERSION = 3
"""Of campaigns on disk. 1: keys that came later mean what was computed then (``Settings.before``, ``Settings.former``); 2: those of heads do."""


class SearchSettings(Settings):
    """How many configurations are tried, which, for how long, and what makes one better than another."""

    trials: int = Field(default=24, ge=1)
    """Configurations to try, those that fail included."""

    sampler: Literal["auto", "tpe", "gp", "qmc", "random"] = "auto"
    """auto: gp where 64 trials or more can run at once, otherwise tpe; tpe: Parzen estimators; gp: Gaussian process;
    qmc: scrambled Sobol points; random: independent draws."""

    seed: int = Field(default=0, ge=0)
    """Seed of the sampler; with one worker the whole campaign is a function of it."""

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Processes that train trials, on one thread and, where there are GPUs, one GPU each; of one trial, or of so many as are
    ``together``. auto: as many as this machine's GPUs, or its cores where it has none, and its free memory are enough for."""

    objective: str | dict[str, float] = "valid/loss"
    """What is minimised: ``valid/loss``, one metric such as ``valid/energy/mae``, or a table of weights per field, whose mean
    absolute errors are divided by those of the trivial predictor: ``{energy = 1.0, forces = 2.0}``."""

    rungs: list[int] = Field(default_factory=list)
    """Epochs after which trials are compared and only the best go on; the last segment ends at ``train.epochs``."""

    reduction: int = Field(default=3, ge=1)
    """At every rung the best ``1 / reduction`` of the trials that reached it go on; 1: all of them."""

    finalists: int = Field(default=5, ge=0)
    """At least so many trials are trained to the end, however few the rungs let through, so that an ensemble finds members."""

    retries: int = Field(default=3, ge=0)
    """Further attempts that one trial gets after faults of the machine; faults of the configuration are not repeated."""

    max_hours: float | None = Field(default=None, gt=0)
    """Budget of time; what runs is saved shortly before, and a resume with a larger budget goes on."""

    max_node_hours: float | None = Field(default=None, gt=0)
    """Budget of nodes times hours, idle nodes included, because that is what a site bills."""

    launcher: Literal["auto", "local", "slurm", "pbs", "flux"] = "auto"
    """How trials are started; auto: as job steps of the allocation that the search runs in, else as local processes."""

    nodes_per_trial: int | tuple[int, int] = 1
    """Nodes of one trial, or the smallest and the largest number; within these bounds they follow the cost and the idle nodes."""

    trials_per_node: int = Field(default=1, ge=1)
    """Small trials that share a node, for example one per GPU; they are started in packs, many in one job step."""

    together: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    """So many trials share a process, and its thread or GPU: ``workers`` processes with so many trials each, or so many of
    ``trials_per_node``. Where models have one shape their steps are taken as one, if that is measured to be faster. auto: as many as
    are known to gain by it, which is decided before the first trial and kept."""

    ranks_per_node: int | None = Field(default=None, ge=1)
    """Processes of one trial on each of its nodes; one per GPU, or one, if absent."""

    grace_seconds: float = Field(default=10.0, gt=0)
    """Time that trials get to save themselves before a budget or the allocation ends."""

    hang_minutes: float = Field(default=10.0, gt=0)
    """A trial that takes no step for so long is killed and tried on other nodes."""

    timeout_minutes: float | None = Field(default=None, gt=0)
    """A segment that takes longer fails with ``timeout``."""

    warm_start: list[Path] = Field(default_factory=list)
    """Earlier campaign folders or DeepHyper ``results.csv`` files; their best configurations are tried first."""

    space: dict[str, Parameter] = Field(min_length=1)
    """Configuration path -> parameter, for example ``"model.hidden_dim"`` or ``"heads.0.weight"``; in a file also ``space = "default"``."""

    @property
    def members(self) -> int:
        """Trials that share a process; one where nothing was decided."""
        return 1 if self.together == "auto" else self.together

    @field_validator("workers", "together", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value != "auto" and (type(value) is not int or value < 1):
            raise ValueError('give a number from 1, or "auto"')
        return value

    @model_validator(mode="after")
    def _check(self) -> "SearchSettings":
        if sorted(set(self.rungs)) != self.rungs or (self.rungs and self.rungs[0] < 1):
            raise ValueError(f"rungs = {self.rungs}: must be increasing numbers of epochs from 1")
        if isinstance(self.objective, dict) and not any(weight > 0 for weight in self.objective.values()):
            raise ValueError("objective: no field has a positive weight; give at least one")
        if isinstance(self.objective, dict) and min(self.objective.values()) < 0:
            raise ValueError("objective: a negative weight rewards errors; use weights of 0 or more")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenRun:
    """A run that is given completely, so that a campaign only trains it."""

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
    """A campaign: the configuration that all trials share, and what is searched around it.

    ``base`` stays a table because it is complete only together with the sampled values.
    """

    base: dict[str, Any]
    search: SearchSettings
    job: JobSettings | None = None
    """The batch jobs that carry the campaign; nothing that is found depends on it."""
    runs: tuple[GivenRun, ...] = ()
    """Trials that are given instead of searched: the space then only numbers them, and there is no base."""
    source: str = "campaign"
    together_because: str = ""
    """Why so many trials share a process, where the program chose the number."""
    left_out: Mapping[str, str] | None = None
    """Architectures that a default space leaves out, each with the reason; None where the space was given."""
    version: int = VERSION
    """Of the program that began the campaign: keys that came later and that ``base`` lacks mean what was computed then."""

    @property
    def together_text(self) -> str:
        """How many trials share a process and why, where the program chose the number; otherwise empty."""
        number = self.search.members
        who = f"{number} trials share" if number > 1 else "no trials share"
        return f"{who} a process: {self.together_because}" if self.together_because else ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``campaign_settings`` makes the same object."""
        job = {} if self.job is None else {"job": self.job.to_json()}
        runs = {"runs": [run.to_json() for run in self.runs]} if self.runs else {}
        return {**self.base, "search": self.search.to_json(), **job, **runs}


def read_campaign(path: Path, assignments: Sequence[str] = ()) -> CampaignSettings:
    """The campaign that a TOML file and ``--set key=value`` assignments describe; relative paths count from the file."""
    return campaign_settings(with_overrides(read_toml(path), assignments), path)


def campaign_settings(table: Mapping[str, Any], path: Path) -> CampaignSettings:
    """The campaign in a parsed table; relative paths count from the folder of ``path``, which also names it in errors."""
    shared = {key: value for key, value in table.items() if key not in ("search", "job", "runs")}
    base = json.loads(json.dumps(with_isolated_atoms(shared, path)))
    if not isinstance(table.get("search"), Mapping):
        raise InputError(f"{path}: section [search] is missing; add trials and [search.space]")
    branches = base.get("branches")
    for section in (base, *(branches if isinstance(branches, list) else ())):
        data = section.get("data") if isinstance(section, dict) else None
        if isinstance(data, dict) and isinstance(data.get("store"), str):
            data["store"] = str((path.parent / data["store"]).resolve())
    search, left_out = _search_settings(dict(table["search"]), base, str(path))
    search = search.model_copy(update={"warm_start": [(path.parent / s).resolve() for s in search.warm_start]})
    job = JobSettings.parse(table["job"], source=f"{path}: [job]") if "job" in table else None
    runs = tuple(_given_run(run, f"{path}: runs.{number}") for number, run in enumerate(table.get("runs", [])))
    return CampaignSettings(base=base, search=search, job=job, runs=runs, source=str(path), left_out=left_out)


def _search_settings(
    table: dict[str, Any], base: dict[str, Any], source: str
) -> tuple[SearchSettings, Mapping[str, str] | None]:
    """The section, and what a default space leaves out."""
    space, left_out = table.get("space", {}), None
    if isinstance(space, str):
        if space != DEFAULT:
            raise InputError(f'{source}: search.space = "{space}"; {nearest(space, [DEFAULT])}, or give a table')
        space, left_out = default_space(base, source)
    if not isinstance(space, Mapping) or not space:
        raise InputError(
            f'{source}: search.space is empty; add for example [search.space."train.learning_rate"], or say space = "{DEFAULT}"'
        )
    parameters = {path: parsed_parameter(path, value, source) for path, value in space.items()}
    return SearchSettings.parse({**table, "space": parameters}, source=f"{source}: [search]"), left_out


def _given_run(value: Any, source: str) -> GivenRun:
    if not isinstance(value, Mapping) or "config" not in value:
        raise InputError(f"{source} has no config; runs are written by the final training, and not by hand")
    config = parse_config(value["config"], source=source, stored=True)
    return GivenRun(config=config, work=value.get("work"), scaling=value.get("scaling"))
