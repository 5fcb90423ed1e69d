"""Cases of the second look: names, ids, labels and splits."""

from collections.abc import Callable
from pathlib import Path

from tests.cases.running import Answer

CASES: dict[str, Callable[[Path], Answer]] = {}
