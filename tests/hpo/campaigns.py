"""A campaign without real training, what tests ask of one, and waiting for reports of launchers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydragnn.hpo import CampaignSettings, CampaignStatus, LocalLauncher, campaign_history
from hydragnn.hpo.journal import entry_of, read_lines
from hydragnn.hpo.launching.allocation_launcher import Launcher
from hydragnn.hpo.launching.launcher import Begun, Exit, Report
from hydragnn.hpo.lines import LineChain
from hydragnn.hpo.scheduling.events import Event

Settings = Callable[..., CampaignSettings]
Search = Callable[..., CampaignStatus]
Launchers = Callable[..., LocalLauncher]


def course(out: Path) -> list[tuple[Any, ...]]:
    """What a campaign did, without times and attempts."""
    return [(t.number, t.status, t.values, t.rungs) for t in campaign_history(out).trials]


def weights_of(out: Path) -> dict[str, Any]:
    return {p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("trials/*/weights.json"))}


def read_journal(path: Path) -> list[tuple[float, Event]]:
    """Time and event of every line that counts."""
    entries = (entry_of(counted, path) for counted in read_lines(path, LineChain(path)))
    return [(entry.time, entry.event) for entry in entries]


HERE = Path(__file__).parent


def campaign_table(store: Path) -> dict[str, Any]:
    rate, width = {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}, {"type": "int", "low": 8, "high": 128}
    search = {"trials": 9, "sampler": "random", "seed": 3, "rungs": [1, 3], "reduction": 3, "finalists": 2}
    space = {"train.learning_rate": rate, "model.hidden_dim": width}
    base = {"data": {"store": str(store)}, "model": {"kind": "schnet"}, "train": {"epochs": 6}}
    return {**base, "heads": [{"kind": "scalar", "field": "moment"}], "search": {**search, "space": space}}


def environment(pause: float, fault: str) -> dict[str, str]:
    """What such attempts run in."""
    paths = f"{HERE.parents[1]}:{HERE}"
    return {"PYTHONPATH": paths, "FAKE_PAUSE": str(pause), "FAKE_FAULT": fault, "PYTHONHASHSEED": "0"}


def of_module(kind: type[Any], module: str, variables: Mapping[str, str] = MappingProxyType({})) -> type[Any]:
    """A launcher whose attempts run another program, with these variables."""
    return type(kind.__name__, (kind,), {"module": module, "variables": {**kind.variables, **variables}})


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
    return [report for report in reports if isinstance(report, Exit)]
