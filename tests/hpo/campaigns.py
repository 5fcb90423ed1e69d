"""A campaign without real training, what tests ask of one, and waiting for reports of launchers."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydragnn.hpo import campaign_history
from hydragnn.hpo.journal import entry_of, read_lines
from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Report
from hydragnn.hpo.lines import LineChain
from hydragnn.hpo.scheduling.events import Event


def course(out: Path) -> list[tuple[Any, ...]]:
    """What a campaign did, without times and attempts."""
    return [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials]


def weights_of(out: Path) -> dict[str, Any]:
    """What all trials of a campaign learned."""
    return {p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("trials/*/weights.json"))}


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """Time and event of every line that counts."""
    entries = (entry_of(counted, path) for counted in read_lines(path, LineChain(path)))
    return [(entry.time, entry.event) for entry in entries]


HERE = Path(__file__).parent


def campaign_table(store: Path) -> dict[str, Any]:
    """A campaign as it comes from TOML."""
    return {
        "data": {"store": str(store)},
        "model": {"kind": "schnet"},
        "heads": [{"kind": "scalar", "field": "energy"}],
        "train": {"epochs": 6},
        "search": {
            "trials": 9,
            "sampler": "random",
            "seed": 3,
            "rungs": [1, 3],
            "reduction": 3,
            "finalists": 2,
            "space": {
                "train.learning_rate": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
                "model.hidden_dim": {"type": "int", "low": 8, "high": 128},
            },
        },
    }


def environment(pause: float, fault: str) -> dict[str, str]:
    """What such attempts run in."""
    paths = f"{HERE.parents[1]}:{HERE}"
    return {"PYTHONPATH": paths, "FAKE_PAUSE": str(pause), "FAKE_FAULT": fault, "PYTHONHASHSEED": "0"}


PATIENCE = 300.0  # seconds for what a loaded machine does within a few


def reports_until(launcher: Launcher, enough: Callable[[list[Report]], bool], *, go: bool = True) -> list[Report]:
    """All reports until there are enough; what has begun may ``go``."""
    reports, deadline = list[Report](), time.monotonic() + PATIENCE
    while not enough(reports):
        assert time.monotonic() < deadline, reports[-5:]
        for report in launcher.poll(0.5):
            reports.append(report)
            if go and isinstance(report, Begun):
                launcher.go(report.task)
    return reports


def ends(reports: Sequence[Report]) -> list[Exit]:
    """The ends among them."""
    return [report for report in reports if isinstance(report, Exit)]
