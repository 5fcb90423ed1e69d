"""Cases of the second look: calculators of others, fine-tuning and dynamics."""

from collections.abc import Callable
from pathlib import Path

from tests.cases.running import Answer

CASES: dict[str, Callable[[Path], Answer]] = {}
