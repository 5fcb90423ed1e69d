"""Findings of all laws, and their page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn.base.settings import read_toml
from hydragnn.ensemble.checking.laws import LAWS, Figures
from hydragnn.ensemble.checking.subject import DoesNotApply, Subject

TITLE = "# Laws checked"
TABLE = Path(__file__).with_name("laws.toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Verdict and figure of one law for a model."""

    law: str
    verdict: str
    """``passed``, ``failed`` or ``does not apply``."""
    figure: float | None
    limit: str
    where: str
    """Where the worst figure was seen, or why there is none."""
    meaning: str
    failures: tuple[int, ...]
    """Numbers in the field's table of silent failures."""


def findings_of(subject: Subject, tell: Callable[[str, int, int], None] = lambda *_: None) -> tuple[Finding, ...]:
    """Return a finding for every law; ``tell`` has its name, its number and the number of all."""
    table, findings = read_toml(TABLE), []
    for number, (name, figures) in enumerate(LAWS.items()):
        tell(name, number, len(LAWS))
        findings.append(_finding(name, subject, figures, **table[name]))
    return tuple(findings)


def _finding(
    name: str,
    subject: Subject,
    figures: Figures,
    *,
    limit: float,
    unit: str,
    meaning: str,
    failures: Sequence[int],
    above: bool = False,
) -> Finding:
    """Return the worst figure with its verdict."""
    figure, verdict = None, "failed"
    try:
        every = list(figures(subject))
        if not every:
            raise DoesNotApply("no structure or field that it is about")
        bad = [f"{where}: not finite" for one, where in every if not math.isfinite(one)]
        worst, where = (min if above else max)(every)
        if bad:
            where = bad[0]
        else:
            figure, verdict = worst, "passed" if (worst > limit if above else worst <= limit) else "failed"
    except DoesNotApply as reason:
        verdict, where = "does not apply", str(reason)
    except Exception as error:  # code of others raises anything, and other laws are checked all the same
        where = f"{type(error).__name__}: {error}"
    words, place = f"{'>' if above else '<='} {limit:g} {unit}".rstrip(), " ".join(where.split())
    return Finding(
        law=name, verdict=verdict, figure=figure, limit=words, where=place, meaning=meaning, failures=tuple(failures)
    )


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
