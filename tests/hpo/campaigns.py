"""What several tests of campaigns ask."""

from pathlib import Path
from typing import Any

from hydragnn.hpo import campaign_history


def course(out: Path) -> list[tuple[Any, ...]]:
    """What a campaign did, without times and attempts."""
    return [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials]
