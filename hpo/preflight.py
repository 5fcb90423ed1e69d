"""Checks before the first trial of a campaign."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydragnn.base.errors import InputError, about
from hydragnn.base.files import check_own, check_utf8, write_sealed
from hydragnn.base.imports import allowed_code
from hydragnn.base.machine import visible_gpus
from hydragnn.base.places import StorePlace, stores_from_json, text_of
from hydragnn.base.settings import refuse_idle
from hydragnn.config import AnyConfig, BranchSettings
from hydragnn.datasets import open_store
from hydragnn.datasets.fit import check_elements, elements_of
from hydragnn.datasets.isolated_atoms import by_atomic_number
from hydragnn.distributed.ranks import CPU
from hydragnn.hpo.folder import NAME, SAMPLER_LOG, VERSION, campaign_table
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.launching.local import LocalLauncher
from hydragnn.hpo.objective import JOULES, NO_ENERGY, bounds_of, check_bounds, check_objective, goals_of
from hydragnn.hpo.sampling.sampler import sampler_class
from hydragnn.hpo.scheduling.events import Plan, node_of
from hydragnn.hpo.settings import CampaignSettings, campaign_settings
from hydragnn.hpo.space.able import check_model
from hydragnn.hpo.space.parameters import place_of
from hydragnn.hpo.space.points import Point, Space, check_conditions, ends_of
from hydragnn.hpo.trial_configs import check_space, check_values, valid_configs
from hydragnn.hpo.warm import first_points
from hydragnn.runs.cutoff import check_cutoff
from hydragnn.runs.energy import counter_of
from hydragnn.runs.folder import differences, write_places
from hydragnn.runs.plan import check_own_code

OWN = ("version", "enqueued", "stores", "left_out")
"""Members of campaign.json that are no settings: its version, configurations of earlier campaigns, fingerprints of the stores,
and what a default space leaves out."""
LEFTOVERS = ("journal.lock", "journal.jsonl", "jobs")
"""Files of a search that is killed in its very first moment, or that waits in a queue."""
EXTENSIBLE = (
    *("trials", "finalists", "retries", "warm_start"),
    *("max_hours", "max_node_hours", "timeout_minutes", "grace_seconds", "hang_minutes"),
    *("launcher", "workers", "nodes_per_trial", "trials_per_node", "trials_per_device", "ranks_per_node"),
)
"""Members of [search] that may change when a campaign is resumed; the rest decides what its results mean."""


def check_campaign(settings: CampaignSettings, space: Space, *, begun: bool = False) -> None:
    """Raise InputError for settings under which no trial could run.

    And for values, above all kinds of models, that cannot do what is asked with these data, unless the campaign has ``begun`` with them.
    """
    sampler, count = settings.search.sampler, len(goals_of(settings.search.objective))
    if sampler != "auto" and (words := sampler_class(sampler).problem(space, count)):
        raise InputError(f"{settings.source}: search.sampler = {sampler!r}: {words}")
    _check_sizes(settings)
    if settings.runs:
        configs = [run.config for run in settings.runs]
    else:
        check_space(settings, space, begun=begun)
        configs = [next(valid_configs(settings, space))]
        check_cutoffs(settings, space)
    rungs = settings.search.rungs
    for config in configs:
        if rungs and rungs[-1] >= config.train.epochs:
            problem = f"{settings.source}: search.rungs ends at {rungs[-1]}, but train.epochs = {config.train.epochs}"
            raise InputError(f"{problem}; keep rungs below it")
        classes = [name for branch in config.branches for name in _classes_of(settings, branch)]
        check_own_code(config)
        added = [name for one in config.train.callbacks for name in one.curves]
        check_objective(settings.search.objective, config.targets, settings.source, set(classes), added)
    if not settings.runs and not begun:
        check_conditions(space, settings.source)
        check_bounds(settings.search.objective, settings.source)
        for name, section in (("search", settings.search), ("job", settings.job)):
            if section is not None:
                refuse_idle(section, f"{settings.source}: [{name}]")
        check_models(settings, space)
        _check_references(settings, configs[0])
    _check_code_of_trials(f"{configs!r} {settings.search.space!r}")


def _check_code_of_trials(named: str) -> None:
    """Raise InputError for allowed modules that trials are ``named`` and do not find."""
    modules = [one for one in allowed_code() if re.search(rf"['\"]{re.escape(one)}[.:]", named)]
    packages = [module.partition(".")[0] for module in modules]
    if not packages:
        return
    find = "import sys, importlib.util as u; [u.find_spec(one) or sys.exit(one) for one in sys.argv[1:]]"
    ended = subprocess.run([sys.executable, "-P", "-c", find, *packages], stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        problem = f"trials, in processes of their own, do not find {ended.stderr.strip()}"
        raise InputError(
            f"{problem}; put its folder on PYTHONPATH (not on sys.path of the script alone), or install it"
        )


def check_models(settings: CampaignSettings, space: Space) -> None:
    """Raise InputError where a value of the space makes no model.

    What the base sets must act in one of the runs at least.
    """
    stores, searched = cache(open_store), {place_of(path) for path in space.parameters}
    idle: list[dict[str, str]] = []

    def check(config: AnyConfig) -> None:
        check_own_code(config)
        idle.append(check_model(config, stores))
        for path in searched & idle[-1].keys():
            raise InputError(f"{idle[-1][path]}; where others let it act, give it a when = {{...}}")

    check_values(settings, space, check)
    for path in (path for path in idle[0] if all(path in one for one in idle)):
        raise InputError(f"{settings.source}: {idle[0][path]}")


def check_cutoffs(settings: CampaignSettings, space: Space) -> None:
    """Raise InputError where a cutoff is larger than that of a store."""
    key = "model.cutoff"
    searched = {path: parameter for path, parameter in space.parameters.items() if place_of(path) == key}
    values = [(f'search.space."{path}"', value) for path, parameter in searched.items() for value in ends_of(parameter)]
    values = values or [(key, settings.base.get("model", {}).get("cutoff"))]
    for section in (settings.base, *settings.base.get("branches", [])):
        data = section.get("data", {})
        if "store" in data and data.get("edges", True):
            attributes = open_store(data["store"]).attributes
            for name, value in values:
                check_cutoff(value, attributes, f"{settings.source}: {name}")


def _check_sizes(settings: CampaignSettings) -> None:
    search, (least, most) = settings.search, settings.search.nodes_of_a_trial
    if not 1 <= least <= most:
        problem = f"{settings.source}: search.nodes_per_trial = {search.nodes_per_trial}"
        raise InputError(f"{problem}; give the smallest number of nodes, at least 1, before the largest")
    places = {"trials_per_node": "node", "trials_per_device": "GPU"}
    shared = [name for name in places if getattr(search, name) > 1]
    if shared and (most > 1 or (search.ranks_per_node or 1) > 1 or len(shared) > 1):
        count, place = getattr(search, shared[-1]), places[shared[-1]]
        raise InputError(
            f"{settings.source}: search.{shared[-1]} = {count} gives each trial one process on a part of a {place}; leave out "
            f"nodes_per_trial, ranks_per_node and other shares, or set {shared[-1]} = 1"
        )


def _check_references(settings: CampaignSettings, config: AnyConfig) -> None:
    """Raise InputError where energies of isolated atoms are incomplete."""
    for branch in config.branches:
        for head in branch.heads:
            references = getattr(head, "references", None)
            if isinstance(references, dict):
                energies = dict(by_atomic_number(references))
                with about(f"{settings.source}: {text_of(branch.data.store)}"):
                    check_elements(head.field, energies, elements_of(open_store(branch.data.store)))


def _classes_of(settings: CampaignSettings, branch: BranchSettings) -> list[str]:
    """Return a branch's categorical targets; InputError where its store lacks a field."""
    fields = {field.name: field for field in open_store(branch.data.store).fields()}
    missing = [name for name in [*branch.targets, *(branch.data.inputs or [])] if name not in fields]
    if missing:
        problem = f"{settings.source}: {text_of(branch.data.store)} has no field {missing[0]}"
        raise InputError(f"{problem}; it has {', '.join(sorted(fields))}")
    suffix = f"@{branch.name}" if branch.name else ""
    return [f"{name}{suffix}" for name in branch.targets if fields[name].classes]


def plan_of(settings: CampaignSettings) -> Plan:
    """Return the scheduler's part of the settings."""
    search = settings.search
    epochs = settings.base.get("train", {}).get("epochs", 100)
    epochs = settings.runs[0].config.train.epochs if settings.runs else epochs
    return Plan(
        trials=search.trials,
        rungs=(*search.rungs, epochs),
        reduction=search.reduction,
        finalists=search.finalists,
        bounds=bounds_of(search.objective),
        retries=search.retries,
        max_seconds=None if search.max_hours is None else search.max_hours * 3600,
        max_node_seconds=None if search.max_node_hours is None else search.max_node_hours * 3600,
        timeout=None if search.timeout_minutes is None else search.timeout_minutes * 60,
        min_slots=search.nodes_of_a_trial[0],
        max_slots=search.nodes_of_a_trial[1],
        grace=search.grace_seconds,
    )


def plan_on(launcher: Launcher, settings: CampaignSettings) -> Plan:
    """Return the plan for a launcher; InputError where trials need more nodes."""
    is_local, goals = isinstance(launcher, LocalLauncher), goals_of(settings.search.objective)
    plan = replace(plan_of(settings), sizes=launcher.sizes, moves=not is_local)
    if is_local and JOULES in [goal.of for goal in goals] and not visible_gpus() and counter_of(CPU) is None:
        raise InputError(f"{settings.source}: search.objective: {NO_ENERGY}")
    nodes = 1 if is_local else len({node_of(slot) for slot in launcher.slots})
    if plan.min_slots > nodes:
        problem = f"{settings.source}: search.nodes_per_trial = {settings.search.nodes_per_trial}"
        place = "this machine is one node" if is_local else f"the allocation has {nodes} node(s)"
        raise InputError(
            f"{problem}, but {place}; begin with --set search.nodes_per_trial={nodes}, or ask for more nodes"
        )
    return replace(plan, max_slots=1) if is_local else plan


APPENDED = ("journal.jsonl", "journal.lock", SAMPLER_LOG, "optuna.log", "packs.txt")
"""Files that a controller opens in a campaign's folder to write to; never through links."""


def check_folder(
    settings: CampaignSettings, space: Space, out: Path, *, resume: bool, on_note: Callable[[str], None] | None = None
) -> list[Point]:
    """Check the campaign's folder and return the first configurations.

    ``on_note`` is called with what was left out of earlier campaigns. InputError for a folder that holds something else, or a campaign that is not to be resumed or has other settings.
    """
    check_utf8(out)
    path = out / NAME
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(entry.name not in LEFTOVERS for entry in out.iterdir())):
            raise InputError(f"{out} exists and is not a campaign; choose another folder")
        return first_points(settings, space, on_note)
    if not resume:
        raise InputError(f"{out} holds a campaign; continue it with --resume, or choose another folder")
    saved, begun = campaign_table(out), open_campaign(out)
    tables = (saved, *(run["config"] for run in saved.get("runs", [])))
    if "auto" in [table.get("batch", {}).get("budget") for table in tables]:
        problem = f'{out} was begun with batch.budget = "auto", which is gone'
        raise InputError(f"{problem}; begin a new campaign with batch.max_graphs in another folder")
    for name in APPENDED:
        check_own(out / name)
    _check_unchanged(settings, begun)
    check_stores(settings, begun, saved.get("stores", {}), out)
    enqueued: list[Point] = saved["enqueued"]
    return enqueued


def is_begun(out: Path) -> bool:
    """Return True where a folder holds a campaign."""
    return (out / NAME).is_file()


def as_begun(settings: CampaignSettings, out: Path) -> CampaignSettings:
    """Return the settings as a campaign in ``out`` was begun with.

    A default space is the one that the campaign began with, whatever it is by now, and a sampler that was the default then goes on.
    """
    search, train = settings.search, settings.base.get("train", {})
    names = ["sampler"] if search.sampler == "auto" else []
    if not is_begun(out):
        return settings
    begun = open_campaign(out)
    if isinstance(train, dict) and begun.base.get("train", {}).get("learning_rate") == 1e-3:  # the default of 0.2.0
        settings = replace(settings, base={**settings.base, "train": {"learning_rate": 1e-3, **train}})
    if settings.left_out is not None and begun.left_out is not None:
        names.append("space")
        settings = replace(settings, left_out=begun.left_out)
    return replace(settings, search=search.model_copy(update={name: getattr(begun.search, name) for name in names}))


def write_settings(settings: CampaignSettings, enqueued: list[Point], out: Path) -> None:
    """Write ``campaign.json`` and the stores' paths; needs the journal's lock."""
    if is_begun(out):
        places = dict(places_of(settings))
        if places != dict(places_of(open_campaign(out))):  # stores have moved: all trials read them there
            for config in sorted(out.glob("trials/*/config.json")):
                write_places(config.parent, places)
    own = {"version": VERSION, "enqueued": enqueued, "stores": fingerprints_of(settings)}
    default = {} if settings.left_out is None else {"left_out": dict(settings.left_out)}
    write_sealed(out / NAME, {**settings.to_json(), **own, **default})


def open_campaign(out: Path) -> CampaignSettings:
    """Return the settings of the campaign in a folder.

    InputError where there is none or it is from a newer version.
    """
    saved = campaign_table(out)
    settings = campaign_settings({key: value for key, value in saved.items() if key not in OWN}, out / NAME)
    return replace(settings, left_out=saved.get("left_out"))


def _check_unchanged(settings: CampaignSettings, saved: CampaignSettings) -> None:
    now, earlier = without_places(settings), without_places(saved)
    for one in (now, earlier):
        one.pop("job", None)
        one["runs"] = [run["config"] for run in one.get("runs", [])]
    for key in EXTENSIBLE:
        now["search"].pop(key), earlier["search"].pop(key)
    changed = differences(earlier, now)
    if changed and settings.runs:
        problem = f"{settings.source} holds trainings of other configurations, seeds or epochs"
        raise InputError(f"{problem}; repeat the command that began them, choose another --out, or delete that folder")
    if changed:
        problem = f"{settings.source}: the campaign was begun with other settings ({', '.join(changed[:3])})"
        raise InputError(f"{problem}; restore them, or begin in another folder (may change: {', '.join(EXTENSIBLE)})")


def places_of(settings: CampaignSettings) -> list[tuple[str, StorePlace]]:
    """Return branch and place of every store."""
    tables = [run.config.to_json() for run in settings.runs] or [settings.base]
    sections = [section for table in tables for section in table.get("branches") or [table]]
    return [
        (section.get("name", ""), stores_from_json(section["data"]["store"]))
        for section in sections
        if "data" in section
    ]


def fingerprints_of(settings: CampaignSettings) -> dict[str, str]:
    """Fingerprint of every store by its path."""
    places = {text_of(place): place for _, place in places_of(settings)}
    return {name: open_store(places[name]).fingerprint for name in sorted(places)}


def check_stores(now: CampaignSettings, saved: CampaignSettings, fingerprints: Mapping[str, str], out: Path) -> None:
    """Raise InputError where a store has other graphs than before."""
    for (_, before), (_, place) in zip(places_of(saved), places_of(now)):
        if open_store(place).fingerprint != fingerprints.get(text_of(before)):
            was = "" if place == before else f" (that was {text_of(before)})"
            raise InputError(
                f"{now.source}: the store {text_of(place)} holds other graphs than the one{was} with which the campaign in {out} began; give "
                "that store or a copy of it, or begin in another folder"
            )


def without_places(settings: CampaignSettings) -> dict[str, Any]:
    """The settings as JSON in which no place of a store stands."""
    table = deepcopy(settings.to_json())
    for part in (table, *(run["config"] for run in table.get("runs", []))):
        for section in (part, *part.get("branches", [])):
            section["data"] = {key: value for key, value in section.get("data", {}).items() if key != "store"}
    return table
