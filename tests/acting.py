"""Functions that do something more at one of their calls."""

from collections.abc import Callable
from typing import Any

import pytest


def first_acts(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Any], after: int = 0
) -> list[None]:
    """Act before the first call of a function, or ``after`` so many calls; gives the list of all calls."""
    original, calls = getattr(owner, name), list[None]()

    def acting(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == after + 1:
            act()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, acting)
    return calls
