"""Findings of all laws, and their page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn.conformance.law import Verdict
from hydragnn.conformance.structures import LAWS
from hydragnn.ensemble.checking import laws  # noqa: F401  (it registers laws of committees)
from hydragnn.ensemble.checking.subject import Subject

TITLE = "# Laws checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Verdict and figure of one law for a model."""

    law: str
    verdict: Verdict
    figure: float | None
    limit: str
    where: str
    """Where the worst figure was seen, or why there is none."""
    meaning: str
    failures: tuple[int, ...]
    """Numbers in the field's table of silent failures."""


def findings_of(subject: Subject, tell: Callable[[str, int, int], None] = lambda *_: None) -> tuple[Finding, ...]:
    """Return a finding for every law; ``tell`` has name and numbers."""
    findings = []
    for number, (name, law) in enumerate(LAWS.items()):
        tell(name, number, len(LAWS))
        verdict, figure, where = law.outcome(subject)
        facts: dict[str, Any] = {"limit": law.bound, "meaning": law.meaning, "failures": law.failures}
        findings.append(Finding(law=name, verdict=verdict, figure=figure, where=" ".join(where.split()), **facts))
    return tuple(findings)


def findings_page(name: str, findings: Sequence[Finding], command: str) -> str:
    """Return the table in Markdown."""
    words = ("passed", "failed", "does not apply")
    counts = ", ".join(f"{sum(one.verdict == word for one in findings)} {word}" for word in words)
    lines = [f"{TITLE}\n\n`{name}`: {counts}. Made by `{command}`.\n"]
    lines += ["| law | verdict | figure | limit | where | what it means | silent failures |", f"|{'---|' * 7}"]
    for one in findings:
        verdict = f"**{one.verdict}**" if one.verdict == "failed" else one.verdict
        figure, failures = shown(one.figure), ", ".join(map(str, one.failures))
        cells = (one.law, verdict, figure, one.limit, one.where, one.meaning, failures)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def shown(figure: float | None) -> str:
    """Return a figure with three digits, or nothing."""
    return "" if figure is None else f"{figure:.3g}"
