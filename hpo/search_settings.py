"""The [search] section of CAMPAIGN.toml, typed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from hydragnn.base.errors import InputError
from hydragnn.base.settings import ActsWith, Settings
from hydragnn.hpo.launching.sites import check_site
from hydragnn.hpo.objective import Objective, goals_of, quantity_text
from hydragnn.hpo.space.parameters import Parameter, parsed_parameter

DEFAULT = "default"  # word for the space that ships, as ``search.space`` in a file
PARALLEL = "parallel."  # beginning of the paths of layouts
WIDE = 64  # with so many attempts at once or more, ``auto`` is the Gaussian process; docs/search.md has what both find


class SearchSettings(Settings):
    """Number of trials, sampler, budgets and objective."""

    acts_with: ClassVar = {
        **dict.fromkeys(
            ("reduction", "finalists"),
            ActsWith(
                words="where trials are compared at rungs",
                remedy="set rungs",
                holds=lambda search: "rungs" in search.model_fields_set,
            ),
        ),
        "trials_per_node": ActsWith(
            words="in an allocation", remedy='set launcher = "auto"', holds=lambda search: search.launcher != "local"
        ),
        "workers": ActsWith(
            words="on this machine",
            remedy='set launcher = "auto" or "local"',
            holds=lambda search: search.launcher in ("auto", "local"),
        ),
    }

    removed: ClassVar = {"together": ..., "layout_trials": 0}

    trials: int = Field(default=24, ge=1)
    """Configurations to try, those that fail included."""

    sampler: str = "auto"
    """auto: gp where 64 trials or more can run at once and for several objectives, otherwise tpe; tpe: Parzen estimators; gp: Gaussian process; nsga2: a genetic algorithm; cmaes: covariance matrix adaptation;
    qmc: scrambled Sobol points; random: independent draws; or one that an installed package announces."""

    seed: int = Field(default=0, ge=0)
    """Seed of the sampler; with one worker the whole campaign is a function of it."""

    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Trials at once on this machine, or so many times ``trials_per_device``; each rank of a trial has one thread and, where there
    are GPUs, one GPU. auto: as many as this machine's GPUs, or its cores where it has none, and its free memory are enough for."""

    objective: Objective = "valid/loss"
    """Quantity that is minimised: ``valid/loss``, ``throughput`` (seconds per graph of training), one metric such as ``valid/energy/mae``, or a table of weights per field, whose mean
    absolute errors are divided by those of the trivial predictor: ``{energy = 1.0, forces = 2.0}``. A list has several, costs among them (``cost/ms_per_graph``,
    ``cost/memory_mb``, ``cost/parameters``, ``cost/joules_per_graph``), each alone or with a bound: ``{of = "cost/ms_per_graph", at_most = 2.0}``."""

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

    launcher: Annotated[str, AfterValidator(lambda name: name if name == "auto" else check_site(name))] = "auto"
    """Way to start trials; auto: as job steps of the allocation that the search runs in, else as local processes;
    local, slurm, pbs, flux; or a site that an installed package announces, or a class ``package.module:Name``."""

    nodes_per_trial: int | tuple[int, int] = 1
    """Nodes of one trial, or the smallest and the largest number; within these bounds they follow the cost and the idle nodes."""

    trials_per_node: int = Field(default=1, ge=1)
    """Small trials that share a node, for example one per GPU, started in packs, many in one job step; where nodes differ the largest has so many."""

    trials_per_device: int = Field(default=1, ge=1)
    """Small trials that share a GPU, each a process with its part of the memory. Without GPUs they share the thread of a worker, or a node."""

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

    @field_validator("workers", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value != "auto" and (type(value) is not int or value < 1):
            raise ValueError('give a number from 1, or "auto"')
        return value

    @model_validator(mode="after")
    def _check(self) -> "SearchSettings":
        if sorted(set(self.rungs)) != self.rungs or (self.rungs and self.rungs[0] < 1):
            raise ValueError(f"rungs = {self.rungs}: must be increasing numbers of epochs from 1")
        quantities = [goal.of for goal in goals_of(self.objective)]
        if isinstance(self.objective, list) and len(quantities) < 2:
            raise ValueError("objective: a list has two objectives or more; give the only one by itself")
        if any(isinstance(one, dict) and not any(one.values()) for one in quantities):
            raise ValueError("objective: no field has a positive weight; give at least one")
        shares = [
            q if isinstance(q, str) else {f: round(w / sum(q.values()), 12) for f, w in q.items() if w}
            for q in quantities
        ]
        if twice := next((one for one, share in zip(quantities, shares) if shares.count(share) > 1), None):
            raise ValueError(f"objective: {quantity_text(twice)} is given twice; give every objective once")
        return self

    @property
    def nodes_of_a_trial(self) -> tuple[int, int]:
        """Return the smallest and the largest number of nodes of one trial."""
        nodes = self.nodes_per_trial
        return (nodes, nodes) if isinstance(nodes, int) else nodes


def search_settings(table: object, source: str) -> SearchSettings:
    """Return the section of a table; InputError on anything wrong."""
    if not isinstance(table, Mapping):
        raise InputError(f"{source}: [search] must be a table of settings; correct it")
    space = table.get("space", {})
    if not isinstance(space, Mapping) or not space:
        problem = f"{source}: search.space is empty"
        raise InputError(f'{problem}; add for example [search.space."train.learning_rate"], or say space = "{DEFAULT}"')
    space = with_layouts(space)
    parameters = {path: parsed_parameter(path, value, source) for path, value in space.items()}
    return SearchSettings.parse({**table, "space": parameters}, source=f"{source}: [search]")


def with_layouts(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with the section ``parallel`` as parameters.

    A list is short for choices.

    >>> with_layouts({"parallel": {"shard": [1, 2]}})
    {'parallel.shard': {'type': 'categorical', 'choices': [1, 2]}}
    """
    layouts = space.get("parallel")
    if not isinstance(layouts, Mapping) or "type" in layouts:
        return dict(space)
    sizes = {
        f"{PARALLEL}{axis}": {"type": "categorical", "choices": size} if isinstance(size, list) else size
        for axis, size in layouts.items()
    }
    return {**{path: value for path, value in space.items() if path != "parallel"}, **sizes}


def sampler_for(sampler: str, width: int, objectives: int = 1) -> str:
    """Return the sampler for so many attempts at once, and objectives.

    >>> sampler_for("auto", 63), sampler_for("auto", 64), sampler_for("qmc", 64)
    ('tpe', 'gp', 'qmc')
    """
    return ("gp" if width >= WIDE or objectives > 1 else "tpe") if sampler == "auto" else sampler


def sampler_text(sampler: str, width: int, objectives: int) -> str:
    """Return the sampler of a campaign, and why, as text.

    >>> sampler_text("auto", 128, 1).partition(" (")[0]
    'gp, since 128 can run at once'
    """
    if sampler != "auto":
        return sampler
    if objectives > 1:
        return f"gp, since there are {objectives} objectives"
    rule = f'"auto" is gp where {WIDE} trials or more can run at once, otherwise tpe'
    return (
        f"{sampler_for(sampler, width)}, since {width} can run at once ({rule})" if width else f"not chosen yet: {rule}"
    )
