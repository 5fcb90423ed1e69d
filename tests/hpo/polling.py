"""Waiting for reports of launchers."""

import time
from collections.abc import Callable, Sequence

from hydragnn.hpo.launching.launcher import Begun, Exit, Launcher, Report

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
