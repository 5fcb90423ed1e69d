"""Configurations worth trying first: every architecture once, the best of earlier campaigns and of DeepHyper's result files."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn.errors import InputError
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import replay
from hydragnn.hpo.parameters import Choice, Choices, IntRange, Parameter
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space import NUMBER, Point, Space, contains, is_point, point_key, value_at
from hydragnn.hpo.trial_configs import trial_config

SHARE = 4
"""One of so many trials may come from earlier campaigns."""


def first_points(settings: CampaignSettings, space: Space) -> list[Point]:
    """The configurations that are tried first: in a default space every architecture once, then the best of earlier campaigns.

    That of an architecture has the middle of every range and the first of all choices.
    """
    kinds = space.parameters.get("model.kind")
    if settings.left_out is None or not isinstance(kinds, Choices):
        return warm_points(settings, space)

    def middle(kind: Choice) -> Point:
        return space.point(
            lambda path, parameter: (
                kind if parameter is kinds else value_at(parameter, 0.0 if isinstance(parameter, Choices) else 0.5)
            )
        )

    points = {point_key(point): point for point in map(middle, kinds.choices) if _is_valid(settings, space, point)}
    return list({**points, **{point_key(point): point for point in warm_points(settings, space)}}.values())


def warm_points(settings: CampaignSettings, space: Space) -> list[Point]:
    """The best configurations of ``search.warm_start`` that are points of the space, source by source in turn.

    Given runs, all in their order; else at most a quarter of the trials. InputError for a source that is not one, or that has no point of the space.
    """
    if settings.runs:
        return [{NUMBER: number} for number in range(len(settings.runs))]
    sources = [_best_first(path, space) for path in settings.search.warm_start]
    limit = max(1, settings.search.trials // SHARE)
    selection: dict[str, Point] = {}
    for rank in range(max(map(len, sources), default=0)):
        for points in sources:
            if rank < len(points) and len(selection) < limit and _is_valid(settings, space, points[rank]):
                selection.setdefault(point_key(points[rank]), points[rank])
    return list(selection.values())


def _best_first(path: Path, space: Space) -> list[Point]:
    if (path / JOURNAL).is_file():
        scored = _from_campaign(path)
    elif path.suffix == ".csv" and path.is_file():
        scored = _from_deephyper(path, space)
    else:
        raise InputError(f"search.warm_start: {path} is neither a campaign's folder nor a CSV file; check the path")
    points = [values for _, values in sorted(scored, key=lambda pair: pair[0]) if is_point(space, values)]
    if not points:
        raise InputError(f"search.warm_start: no configuration in {path} lies in the search space; remove it or widen")
    return points


def _from_campaign(folder: Path) -> list[tuple[float, Point]]:
    trials = replay(folder / JOURNAL).trials.values()
    return [(trial.value, trial.values) for trial in trials if trial.value is not None]


def _from_deephyper(path: Path, space: Space) -> list[tuple[float, Point]]:
    """DeepHyper maximises ``objective`` and writes parameters as ``p:name``; failures have ``F...`` as objective."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"search.warm_start: cannot read {path}: {error}") from error
    if not rows or "objective" not in rows[0]:
        raise InputError(f"search.warm_start: {path} has no column objective; is it DeepHyper's results.csv?")
    columns = {path_: column for path_ in space.parameters if (column := _column(path_, list(rows[0]), space))}
    scored: list[tuple[float, Point]] = []
    for row in rows:
        score = _number(row["objective"])
        if score is not None:
            scored.append((-score, space.point(_reader(row, columns))))
    return [(score, {k: v for k, v in values.items() if v is not None}) for score, values in scored]


def _column(path: str, columns: list[str], space: Space) -> str | None:
    """The column of a parameter: its whole path, or its last word where that is unambiguous."""
    last = path.rpartition(".")[2]
    alone = sum(other.rpartition(".")[2] == last for other in space.parameters) == 1
    names = [f"p:{path}", *([f"p:{last}"] if alone else [])]
    return next((name for name in names if name in columns), None)


def _reader(row: dict[str, str], columns: dict[str, str]) -> Callable[[str, Parameter], Any]:
    def value_of(path: str, parameter: Parameter) -> Any:
        return None if path not in columns else _value(parameter, row[columns[path]])

    return value_of


def _value(parameter: Parameter, text: str) -> Any:
    """The value that a cell stands for; None where it is none of the parameter's."""
    if isinstance(parameter, Choices):
        return next((c for c in parameter.choices if text in (str(c), json.dumps(c))), None)
    number = _number(text)
    if number is None or not contains(parameter, number):
        return None
    return int(number) if isinstance(parameter, IntRange) else number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_valid(settings: CampaignSettings, space: Space, point: Point) -> bool:
    try:
        trial_config(settings, space, point, 0)
    except InputError:
        return False
    return True
