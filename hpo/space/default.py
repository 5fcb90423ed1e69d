"""The default space: all able architectures and their training."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hydragnn.architectures import architecture_of
from hydragnn.architectures.base import Searched
from hydragnn.config import RunConfig, parse_config
from hydragnn.datasets import open_store
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.hpo.space.able import able_kinds, has_positions
from hydragnn.models.heads.kinds import ScalarHeadSettings

KIND = "model.kind"

TRAINING: dict[str, dict[str, Any]] = {
    "train.learning_rate": {"type": "float", "low": 3e-4, "high": 1e-2, "log": True},
    "train.weight_decay": {"type": "float", "low": 1e-6, "high": 1e-3, "log": True},
    "train.ema_decay": {"type": "categorical", "choices": [0.0, 0.99]},
    "batch.max_graphs": {"type": "categorical", "choices": [8, 16, 32]},
}
"""Parameters of the training of every architecture that are searched."""


def default_space(base: Mapping[str, Any], source: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the default space, and why architectures are left out.

    What the configuration gives is not searched. InputError where no architecture can do what it asks.
    """
    given = _value(base, KIND)
    kinds, left_out = ([str(given)], {}) if given is not None else able_kinds(base, source)
    positions = has_positions(base, kinds[0])
    searched: dict[str, Searched] = {}
    for kind in kinds:
        settings = architecture_of(kind).Settings
        of_kind = settings.searched.items()
        searched[kind] = {key: one for key, one in of_kind if positions or settings.acts_on.get(key) != "lengths"}
    of_model = {
        path: parameter
        for path, parameter in _model_parameters(searched).items()
        if _value(base, path.partition("#")[0]) is None and not base.get("start")  # which decides the architecture
    }
    of_training = {
        path: parameter
        for path, parameter in TRAINING.items()
        if _value(base, path) is None
        and not (path == "batch.max_graphs" and base.get("batch") is not None)  # limits stay as they are
    }
    choice = {} if given is not None else {KIND: {"type": "categorical", "choices": kinds}}
    of_heads = {} if base.get("start") else _head_parameters(base, kinds[0])
    return {**choice, **of_model, **of_heads, **of_training}, left_out


def _head_parameters(base: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Return the pool of intensive numbers where nodes have no species.

    Grains and cells differ in size, and weights of attention learn it; where values add up, or nodes are alike, a mean is better.
    """
    config = parse_config({**base, "model": {"kind": kind}})
    if not isinstance(config, RunConfig):
        return {}
    fields = {field.name: field for field in open_store(config.data.store).fields()}
    if ATOMIC_NUMBERS in fields:
        return {}
    return {
        f"heads.{number}.pool": {"type": "categorical", "choices": ["mean", "attention"]}
        for number, head in enumerate(config.heads)
        if isinstance(head, ScalarHeadSettings) and fields[head.field].on == "graph"
        if head.pool is None and not head.extensive
    }


def left_out_words(left_out: Mapping[str, str]) -> str:
    """Architectures with the reasons why they are left out, without the remedies.

    >>> left_out_words({"rings": "model rings needs positions, and these graphs have none; use others"})
    'rings (model rings needs positions, and these graphs have none)'
    """
    return ", ".join(f"{kind} ({reason.partition('; ')[0]})" for kind, reason in left_out.items())


def _model_parameters(searched: Mapping[str, Searched]) -> dict[str, dict[str, Any]]:
    """Return the searched settings; kinds with one range share it."""
    parameters: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for ranges in searched.values() for key in ranges):
        groups = list(_groups({kind: ranges[key] for kind, ranges in searched.items() if key in ranges}))
        for number, (parameter, members) in enumerate(sorted(groups, key=lambda group: -len(group[1]))):
            path = f"model.{key}" if number == 0 else f"model.{key}#{'+'.join(members)}"
            when = {} if len(members) == len(searched) else {"when": {KIND: members}}
            parameters[path] = {**parameter, **when}
    return parameters


def _groups(ranges: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Return the ranges of a setting, with their kinds."""
    distinct = {json.dumps(dict(one)): dict(one) for one in ranges.values()}
    for text, parameter in distinct.items():
        yield parameter, [kind for kind, one in ranges.items() if json.dumps(dict(one)) == text]


def _value(base: Mapping[str, Any], path: str) -> Any:
    """Return a configuration's value at a path, or None."""
    section: Any = base
    for key in path.split("."):
        section = section.get(key) if isinstance(section, Mapping) else None
    return section
