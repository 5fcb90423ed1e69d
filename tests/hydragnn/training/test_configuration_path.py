"""How a configuration comes from ``hydragnn.train`` to the loop: taken apart once, and its values handed on.

What is counted, in a real run up to its first call of ``train_epochs``: every call of a function of the package one of whose
arguments is the configuration, settings that belong to it (data, split, batch, model, heads, training, a branch), or a list of
such. What is not: ``self``, since a method of the settings hands them to nobody; functions that pydantic calls when it
validates or writes JSON, and its own; what no file of the package says: ``__init__`` of dataclasses, and the wrappers of shape
checks in tests; lambdas and comprehensions, which are part of the function around them. Budgets of batches that data
preparation makes for itself are no settings, so they need no exception.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hydragnn
from hydragnn.base.settings import Settings
from hydragnn.config import BranchedConfig
from tests.hydragnn.training.conftest import Configs

MOST = 41
"""The layout of ranks takes two of them, what an architecture asks of inputs eight."""
BEGIN = [
    "scripts.api.train",
    "scripts.run_sources.run_folder",  # whether it is a folder, which goes on
    "scripts.run_sources.run_of",
    "runs.session.train",
    "runs.session.ready_run",
    "runs.plan.plan_run",
    "runs.plan.described_branches",
    "runs.plan.idle_on_data",
]
"""Functions that get a whole configuration, in the order of their calls."""
HEAD = {"kind": "energy", "field": "energy", "references": True, "forces": "forces", "hidden_dims": [8]}

Call = tuple[str, tuple[Settings, ...]]
"""A function, and the settings among its arguments."""


def settings_in(value: object) -> list[Settings]:
    """The settings that an argument is or lists."""
    if isinstance(value, Settings):
        return [value]
    return [actual for item in value for actual in settings_in(item)] if isinstance(value, list | tuple) else []


def arguments_of(frame: FrameType) -> dict[str, Any]:
    """The arguments of a call that begins, by name, without ``self``."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = [name for name in code.co_varnames[:count] if name not in ("self", "cls")]
    return {name: frame.f_locals[name] for name in names}


def is_counted(frame: FrameType) -> bool:
    """Return True for a function that stands in a file of the package and was not called by pydantic."""
    code, caller = frame.f_code, frame.f_back
    while caller and (module_of(caller).partition(".")[0] in ("jaxtyping", "beartype") or is_check(caller)):
        caller = caller.f_back
    called_by_pydantic = caller is not None and module_of(caller).startswith("pydantic.")
    if module_of(frame) in ("hydragnn.base.settings", "hydragnn.base.arguments"):
        return False  # questions about settings take them nowhere
    in_package = module_of(frame).startswith("hydragnn.") and not code.co_filename.startswith("<")
    return in_package and not code.co_name.startswith("<") and not called_by_pydantic


def is_check(frame: FrameType) -> bool:
    """Return True for what beartype or tests/conftest.py puts around a function."""
    return frame.f_code.co_filename.startswith("<@beartype") or frame.f_code.co_filename.endswith("tests/conftest.py")


def module_of(frame: FrameType) -> str:
    """The module that a function belongs to."""
    return str(frame.f_globals.get("__name__"))


@contextmanager
def traced_calls() -> Iterator[list[Call]]:
    """The calls in the block that count, until the loop begins."""
    calls: list[Call] = []
    before = sys.getprofile()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not is_counted(frame):
            return
        if frame.f_code.co_name == "train_epochs":
            sys.setprofile(before)
        actual = [one for value in arguments_of(frame).values() for one in settings_in(value)]
        if actual:
            calls.append((f"{module_of(frame)}.{frame.f_code.co_qualname}", tuple(actual)))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def listed(calls: list[Call]) -> str:
    """The calls as lines, for whoever has to find the one too many."""
    lines = [f"{name}({', '.join(type(one).__name__ for one in actual)})" for name, actual in calls]
    return "\n".join([f"{len(calls)} calls:", *lines])


def test_the_count_sees_settings_wherever_they_stand(make_config: Configs) -> None:
    config = make_config()
    assert settings_in(config) == [config]
    assert settings_in([config.data, (config.split, 3)]) == [config.data, config.split]
    assert settings_in({"batch": 6}) == []


@pytest.mark.parametrize("branched", [False, True])
def test_a_configuration_comes_to_the_loop_in_few_calls_and_its_branches_are_taken_apart_once(
    branched: bool, stored: Path, make_config: Configs, tmp_path: Path
) -> None:
    config: Any = make_config(heads=[HEAD], train__epochs=1, data__store=str(stored))
    if branched:
        table = config.to_json()
        own = {key: table.pop(key) for key in ("data", "split", "heads")}
        config = BranchedConfig.parse({**table, "branches": [{"name": name, **own} for name in ("metals", "oxides")]})
    with traced_calls() as calls:
        hydragnn.train(config, tmp_path / "run")
    assert len(calls) <= MOST or branched, listed(calls)
    assert [name for name, actual in calls if config in actual] == [f"hydragnn.{name}" for name in BEGIN]
    split_off = [name for name, actual in calls if branched and any(one in config.branches for one in actual)]
    assert split_off == [], listed(calls)
