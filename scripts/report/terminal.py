"""Table of an ensemble's errors and coverage for the terminal."""

import math
from pathlib import Path

from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.facts import FieldScores, evaluation_part
from hydragnn.scripts.report.words import join, measured, with_unit
from hydragnn.training.baselines import BASELINES

COLUMNS = ("field", "trivial", "best\nsimple", "best\nsingle", "ensemble", "ratio", "covered")


def summary_table(ensemble_folder: Path, title: str | None = None) -> Table:
    """Return errors and coverage of an ensemble beside simpler predictors.

    Of the test part, else of graphs that members held out, else of validation. InputError where the folder is no ensemble or was
    never evaluated.
    """
    facts = ensemble_facts(ensemble_folder)
    part = evaluation_part(facts.parts)
    if part is None:
        raise InputError(
            f"{ensemble_folder} was never evaluated (no evaluation.json); build it with data that has labels"
        )
    title = title or f"{ensemble_folder.resolve().name}: mean absolute errors on the {part.name} part"
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "field" else "right", overflow="fold")
    table.caption = f"ratio: ensemble / trivial predictor; covered: share inside the {facts.nominal * 100:.0f} % " + (
        "interval or set of classes" if any(scores.categorical for scores in part.scores) else "interval"
    )
    simple = {one.name for scores in part.scores for one in scores.baselines}
    words = {**BASELINES, **{name: name for name in sorted(simple - BASELINES.keys())}}
    table.caption += (
        f"; best simple of: {join([what for name, what in words.items() if name in simple])}" if simple else ""
    )
    lost = [f"{scores.field} ({scores.lost_to.name})" for scores in part.scores if scores.lost_to]
    table.caption += f". One of these is better for {join(lost)}" if lost else ""
    for scores in part.scores:
        table.add_row(*_cells(scores))
    return table


def _cells(scores: FieldScores) -> tuple[str, ...]:
    ensemble, best, simple = scores.ensemble, scores.best_member, scores.best_baseline
    ratio = scores.ratio if ensemble else math.nan
    covered = scores.uncertainty.get("coverage", math.nan)
    return (
        with_unit(scores.field, scores.unit),
        measured(scores.trivial.error),
        measured(simple.error) if simple else "–",
        measured(best.error) if best else "–",
        measured(ensemble.error) if ensemble else "–",
        f"{ratio:.3f}" if math.isfinite(ratio) else "–",
        f"{covered * 100:.1f} %" if math.isfinite(covered) else "–",
    )
