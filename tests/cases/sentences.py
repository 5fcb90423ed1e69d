"""Cases of the second look: sentences of commands."""

from collections.abc import Callable
from pathlib import Path

from tests.cases.running import Answer

CASES: dict[str, Callable[[Path], Answer]] = {}
