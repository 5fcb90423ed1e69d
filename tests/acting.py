"""Functions that do something more when they are first called."""

from collections.abc import Callable
from typing import Any

import pytest


def first_acts(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> list[None]:
    """The first call of a function does something more; gives the list of all calls."""
    original, calls = getattr(owner, name), list[None]()

    def acting(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            act()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, acting)
    return calls
