"""Table of an ensemble's errors and coverage for the terminal."""

import math
from pathlib import Path

from rich.table import Table

from hydragnn.base.errors import InputError
from hydragnn.ensemble import TargetEvaluation
from hydragnn.scripts.report.collect import ensemble_facts
from hydragnn.scripts.report.facts import best_baseline, better_baseline, error, is_categorical, metric, ratio
from hydragnn.scripts.report.words import join, measured, with_unit
from hydragnn.training.baselines import BASELINES

COLUMNS = ("field", "trivial", "best\nsimple", "best\nsingle", "ensemble", "ratio", "covered")


def summary_table(ensemble_folder: Path, title: str | None = None) -> Table:
    """Return errors and coverage of an ensemble beside simpler predictors.

    Of the test part, else of graphs that members held out, else of validation. InputError where the folder is no ensemble or was
    never evaluated.
    """
    facts = ensemble_facts(ensemble_folder)
    part = facts.part
    if part is None:
        raise InputError(
            f"{ensemble_folder} was never evaluated (no evaluation.json); build it with data that has labels"
        )
    title = title or f"{ensemble_folder.resolve().name}: mean absolute errors on the {part.name} part"
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "field" else "right", overflow="fold")
    table.caption = (
        f"ratio: ensemble / trivial predictor; covered: share inside the {facts.evaluation.nominal * 100:.0f} % "
        + ("interval or set of classes" if any(map(is_categorical, part.scores.values())) else "interval")
    )
    simple = {name for one in part.scores.values() for name in one.baselines}
    words = {**BASELINES, **{name: name for name in sorted(simple - BASELINES.keys())}}
    table.caption += (
        f"; best simple of: {join([what for name, what in words.items() if name in simple])}" if simple else ""
    )
    lost = [f"{field} ({better})" for field, one in part.scores.items() if (better := better_baseline(one))]
    table.caption += f". One of these is better for {join(lost)}" if lost else ""
    for field, one in part.scores.items():
        table.add_row(*_cells(field, one))
    return table


def _cells(field: str, one: TargetEvaluation) -> tuple[str, ...]:
    best, simple = one.members.get(one.best_member), one.baselines.get(best_baseline(one))
    share, covered = ratio(one) if one.ensemble else math.nan, metric(one.ensemble, "coverage")
    return (
        with_unit(field, one.unit),
        measured(error(one.trivial)),
        measured(error(simple)) if simple else "–",
        measured(error(best)) if best else "–",
        measured(error(one.ensemble)) if one.ensemble else "–",
        f"{share:.3f}" if math.isfinite(share) else "–",
        f"{covered * 100:.1f} %" if math.isfinite(covered) else "–",
    )
