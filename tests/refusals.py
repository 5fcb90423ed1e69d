"""Calls that end with a sentence."""

from collections.abc import Callable
from typing import Any

import pytest

from hydragnn.base.errors import InputError


def refuses(words: str, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Check that a call ends with a sentence that holds these words."""
    with pytest.raises(InputError, match=words):
        call(*arguments, **options)
