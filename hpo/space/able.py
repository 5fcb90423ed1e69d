"""Architectures that are able to do a campaign's task."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from hydragnn.architectures import architecture_of, architectures
from hydragnn.base.errors import InputError, about
from hydragnn.base.places import StorePlace
from hydragnn.base.settings import idle_settings
from hydragnn.config import AnyConfig, parse_config
from hydragnn.datasets import GraphStore, open_store
from hydragnn.datasets.fit import check_references
from hydragnn.models import check
from hydragnn.runs.plan import described_branches, idle_on_data, plan_run


def check_model(config: AnyConfig, stores: Callable[[StorePlace], GraphStore]) -> dict[str, str]:
    """Raise InputError where a run's model does not fit its data.

    Gives the settings that cannot act on these data, by path, each with the sentence that refuses it.
    """
    opened = {branch.name: stores(branch.data.store) for branch in config.branches}
    described = described_branches(config, opened, begun=True)
    for branch in described:
        with about(f"branch {branch.settings.name}" if branch.settings.name else ""):
            check(branch.model, measured=False)
            for target in branch.model.targets:
                if target.references:
                    check_references(target.field, branch.store)
    if config.batch.max_nodes or config.batch.max_edges or getattr(config, "start", None):
        plan_run(config, opened, begun=True)  # these depend on the split
    return idle_settings(config) | idle_on_data(config, described)


def known_keys(model: dict[str, Any], kind: str, kinds: Iterable[str]) -> dict[str, Any]:
    """Return a [model] table without keys of other kinds."""
    known = {
        name: set(architecture_of(name).Settings.model_fields) for name in [kind, *kinds]
    }  # in this order, so that errors do not depend on the run
    foreign = set().union(*known.values()) - known[kind]
    return {key: value for key, value in model.items() if key not in foreign}


def able_kinds(base: Mapping[str, Any], source: str) -> tuple[list[str], dict[str, str]]:
    """Return able architectures, and why others are not; InputError without any."""
    able, left_out, stores = [], {}, cache(open_store)
    for kind in architectures():
        table = json.loads(json.dumps(base))
        try:
            table["model"] = {**known_keys(table.get("model", {}), kind, architectures()), "kind": kind}
            check_model(parse_config(table, source), stores)
        except InputError as error:
            left_out[kind] = str(error).removeprefix(f"{source}: ")
        else:
            able.append(kind)
    if not able:
        reasons = dict.fromkeys(left_out.values())
        raise InputError(f"{source}: {next(iter(reasons))}")
    return able, left_out


def has_positions(base: Mapping[str, Any], kind: str) -> bool:
    """Return True where graphs have positions, or cannot be read."""
    try:
        branches = parse_config({**base, "model": {"kind": kind}}).branches
        return any(open_store(branch.data.store).dim for branch in branches)
    except InputError:
        return True
