"""Cases of the second look: geometry and structures of files."""

from collections.abc import Callable
from pathlib import Path

from tests.cases.running import Answer

CASES: dict[str, Callable[[Path], Answer]] = {}
