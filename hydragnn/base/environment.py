"""The process environment: the one module that reads or writes it.

Exempt are the programs of ``hpo/launching`` that run by their path with the standard library alone. Ruff checks it (TID251).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def environment() -> Mapping[str, str]:
    """Return the variables of this process."""
    return os.environ


def change_environment(changes: Mapping[str, str | None]) -> None:
    """Set variables of this process; None removes one."""
    for name, value in changes.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@contextmanager
def changed_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for the length of the block, then restore them."""
    previous = {name: os.environ.get(name) for name in changes}
    change_environment(changes)
    try:
        yield
    finally:
        change_environment(previous)
