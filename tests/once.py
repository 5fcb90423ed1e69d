"""Fixtures that one process of a suite makes for all of its processes."""

import fcntl
import os
import pickle
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest


def shared(make: Callable[..., Any]) -> Any:
    """Return a fixture of the session, whose value is pickled for the other processes.

    ``make`` takes ``tmp_path_factory`` and other fixtures. Tests only read the files that it leaves.
    """

    def once(**fixtures: Any) -> Any:
        base = fixtures["tmp_path_factory"].getbasetemp()
        base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        value = base / f"{make.__module__}.{make.__name__}.pickle"
        with value.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not value.exists():
                value.write_bytes(pickle.dumps(make(**fixtures)))
            return pickle.loads(value.read_bytes())

    once.__name__, once.__doc__ = make.__name__, make.__doc__
    once.__signature__ = signature(make)  # type: ignore[attr-defined]  # functools.wraps would be unwrapped by pytest
    return pytest.fixture(scope="session")(once)
