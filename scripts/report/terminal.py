"""The one table that a person sees at the end of a run: is it better than nothing, and are its intervals honest?"""

import math
from pathlib import Path

from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.scripts.report.canvas import measured
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.facts import FieldScores, Part
from hydragnn.scripts.report.verdict import with_unit

COLUMNS = ("field", "trivial", "best single", "ensemble", "ratio", "covered")


def summary_table(ensemble_folder: Path, title: str | None = None) -> Table:
    """Errors of trivial predictor, best single model and ensemble per field (of classes the share of wrong ones), with coverage.

    The test part is shown, or where there is none what members held out, or validation. InputError where the folder is no ensemble or was
    never evaluated.
    """
    facts = ensemble_facts(ensemble_folder)
    part = facts.parts.get("test") or facts.parts.get("held-out") or facts.parts.get("valid")
    if part is None:
        raise InputError(
            f"{ensemble_folder} was never evaluated (no evaluation.json); build it with data that has labels"
        )
    table = Table(title=title or _title(ensemble_folder, part), title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "field" else "right", overflow="fold")
    table.caption = f"ratio: ensemble / trivial predictor; covered: share inside the {facts.nominal * 100:.0f} % " + (
        "interval or set of classes" if any(scores.categorical for scores in part.scores) else "interval"
    )
    for scores in part.scores:
        table.add_row(*_cells(scores))
    return table


def _title(folder: Path, part: Part) -> str:
    return f"{folder.resolve().name}: mean absolute errors on the {part.name} part"


def _cells(scores: FieldScores) -> tuple[str, ...]:
    ensemble, best = scores.ensemble, scores.best_member
    ratio = ensemble.error / scores.trivial.error if ensemble and scores.trivial.error > 0 else math.nan
    covered = scores.uncertainty.get("coverage", math.nan)
    return (
        with_unit(scores.field, scores.unit),
        measured(scores.trivial.error),
        measured(best.error) if best else "–",
        measured(ensemble.error) if ensemble else "–",
        f"{ratio:.3f}" if math.isfinite(ratio) else "–",
        f"{covered * 100:.1f} %" if math.isfinite(covered) else "–",
    )
