"""Cases of the second look: searches, and faults while files are written."""

from collections.abc import Callable
from pathlib import Path

from tests.cases.running import Answer

CASES: dict[str, Callable[[Path], Answer]] = {}
