"""What one process of a suite makes for all of its processes."""

import fcntl
import os
import pickle
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
"""A call of the command line; gives exit code, output and errors."""


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return what the first process made under a name, pickled for the others; tests only read files that it leaves."""
    base = factory.getbasetemp()
    value = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}.pickle"
    with value.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not value.exists():
            value.write_bytes(pickle.dumps(make()))
        return pickle.loads(value.read_bytes())


def shared(make: Callable[..., Any]) -> Any:
    """Return a fixture of the session that is made once; ``make`` takes ``tmp_path_factory`` and other fixtures."""

    def once(**fixtures: Any) -> Any:
        return made_once(fixtures["tmp_path_factory"], f"{make.__module__}.{make.__name__}", lambda: make(**fixtures))

    once.__name__, once.__doc__ = make.__name__, make.__doc__
    once.__signature__ = signature(make)  # type: ignore[attr-defined]  # functools.wraps would be unwrapped by pytest
    return pytest.fixture(scope="session")(once)
