"""What several tests of campaigns ask."""

from pathlib import Path
from typing import Any

from hydragnn.hpo import campaign_history
from hydragnn.hpo.journal import entry_of, read_lines
from hydragnn.hpo.lines import LineChain
from hydragnn.hpo.scheduling.events import Event


def course(out: Path) -> list[tuple[Any, ...]]:
    """What a campaign did, without times and attempts."""
    return [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials]


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """Time and event of every line that counts."""
    entries = (entry_of(counted, path) for counted in read_lines(path, LineChain(path)))
    return [(entry.time, entry.event) for entry in entries]
