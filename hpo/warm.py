"""First configurations: every architecture, then the best known ones."""

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn.base.errors import InputError
from hydragnn.base.limits import check_readable
from hydragnn.hpo.costs import is_number
from hydragnn.hpo.fronts import places
from hydragnn.hpo.journal import NAME as JOURNAL
from hydragnn.hpo.journal import replay
from hydragnn.hpo.settings import CampaignSettings
from hydragnn.hpo.space.parameters import Choice, Choices, IntRange, Parameter
from hydragnn.hpo.space.points import NUMBER, Point, Space, contains, is_point, point_key, value_at
from hydragnn.hpo.trial_configs import problem_of

SHARE = 4  # one of so many trials may come from earlier campaigns
OBJECTIVE = re.compile(r"objective(_\d+)?")  # columns of results, one for each objective
PUBLIC = {
    "model.kind": ("mpnn_type", "model_type"),
    "model.num_layers": ("num_conv_layers",),
    "batch.max_graphs": ("batch_size",),
}
"""Names of parameters in searches of the public HydraGNN."""

OnNote = Callable[[str], None]


def first_points(settings: CampaignSettings, space: Space, on_note: OnNote | None = None) -> list[Point]:
    """Return the first configurations of a campaign.

    That of an architecture has the middle of every range and the first of all choices. ``on_note`` is called with what was left out.
    """
    kinds = space.parameters.get("model.kind")
    if settings.left_out is None or not isinstance(kinds, Choices):
        return warm_points(settings, space, on_note)

    def middle(kind: Choice) -> Point:
        return space.point(
            lambda path, parameter: (
                kind if parameter is kinds else value_at(parameter, 0.0 if isinstance(parameter, Choices) else 0.5)
            )
        )

    points = {point_key(point): point for point in map(middle, kinds.choices) if not problem_of(settings, space, point)}
    warm = warm_points(settings, space, on_note)
    return list({**points, **{point_key(point): point for point in warm}}.values())


def warm_points(settings: CampaignSettings, space: Space, on_note: OnNote | None = None) -> list[Point]:
    """Return the best points of ``search.warm_start``.

    Given runs, all in their order; else at most a quarter of the trials. InputError for a source that is not one, or that has no point of the space.
    """
    if settings.runs:
        return [{NUMBER: number} for number in range(len(settings.runs))]
    sources = [warm_source(path, space) for path in settings.search.warm_start]
    limit = max(1, settings.search.trials // SHARE)
    selection: dict[str, Point] = {}
    for rank in range(max((len(source.points) for source in sources), default=0)):
        for source in (source for source in sources if rank < len(source.points)):
            point = source.points[rank]
            if point_key(point) in selection:
                source.leave("tried already")
            elif len(selection) >= limit:
                source.leave(f"beyond a quarter of the trials, {limit}")
            elif sentence := problem_of(settings, space, point):
                source.leave("cannot be trained", sentence)
            else:
                selection[point_key(point)] = point
    for source in sources:
        if on_note is not None and source.reasons:
            on_note(
                f"search.warm_start: {sum(map(len, source.reasons.values()))} of {source.total} configurations in {source.path} "
                f"are not tried first: {source.why}"
            )
    return list(selection.values())


@dataclass(kw_only=True, slots=True)
class WarmSource:
    """Configurations of an earlier campaign, and why others are skipped."""

    path: Path
    total: int
    points: list[Point]
    reasons: dict[str, list[str]]
    """Examples of every reason, one per configuration."""

    @property
    def why(self) -> str:
        """The reasons, each with its count and first example."""
        return "; ".join(
            f"{len(examples)} {reason}" + (f" ({examples[0]})" if examples[0] else "")
            for reason, examples in self.reasons.items()
        )

    def leave(self, reason: str, example: str = "") -> None:
        """Note a configuration that is not tried."""
        self.reasons.setdefault(reason, []).append(example)


def warm_source(path: Path, space: Space) -> WarmSource:
    """Return the configurations of a source; InputError without any."""
    source = WarmSource(path=path, total=0, points=[], reasons={})
    if (path / JOURNAL).is_file():
        scored = _from_campaign(path, source)
    elif path.suffix == ".csv" and path.is_file():
        scored = _from_deephyper(path, space, source)
    else:
        raise InputError(
            f"search.warm_start: {path} is neither a campaign's folder nor a CSV file; check the path, or import "
            "trials of the public HydraGNN (hydragnn import), which writes results.csv"
        )
    for _, example, values in sorted(scored, key=lambda one: one[0]):
        if is_point(space, values):
            source.points.append(values)
        else:
            source.leave("outside the search space", example)
    if not source.points:
        why = f" ({source.why})" if source.reasons else ""
        raise InputError(
            f"search.warm_start: no configuration in {path} lies in the search space{why}; remove it or widen"
        )
    return source


Scored = list[tuple[float, str, Point]]  # score to be minimised, where the configuration stands, and its values


def _from_campaign(folder: Path, source: WarmSource) -> Scored:
    state = replay(folder / JOURNAL)
    source.total = len(state.trials)
    trials = [trial for trial in state.trials.values() if trial.results]
    for number in (number for number, trial in state.trials.items() if not trial.results):
        source.leave("without a result", f"trial {number}")
    scores = [trial.results[-1] for trial in trials]
    if bounds := state.plan.bounds:
        scores = places([trial.values_at(-1) for trial in trials], bounds)
    return [(score, f"trial {trial.number}", trial.values) for score, trial in zip(scores, trials)]


def results(path: Path) -> list[tuple[float | None, dict[str, str]]]:
    """Return the rows of DeepHyper's results with scores to be minimised.

    None for failures. Of several objectives the score is the place by fronts.
    """
    check_readable(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            rows, names = list(reader), [name for name in reader.fieldnames or () if OBJECTIVE.fullmatch(name)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"search.warm_start: cannot read {path}: {error}; give CSV in UTF-8") from error
    if not rows or not names:
        raise InputError(f"search.warm_start: {path} has no column objective; is it DeepHyper's results.csv?")
    values = np.array([[number_in(row[name]) for name in names] for row in rows], dtype=float)  # NaN for None
    good = np.isfinite(values).all(axis=1)
    points = (-values[good]).tolist()
    scores = iter(places(points, (None,) * len(names)) if len(names) > 1 else [point[0] for point in points])
    return [(next(scores) if is_good else None, row) for is_good, row in zip(good, rows)]


def _from_deephyper(path: Path, space: Space, source: WarmSource) -> Scored:
    """Return the configurations of DeepHyper's results."""
    rows = results(path)
    header = list(rows[0][1])
    columns = {path_: column for path_ in space.parameters if (column := _column(path_, header, space))}
    source.total = len(rows)
    scored: Scored = []
    for line, (score, row) in enumerate(rows, start=2):
        if score is None:
            words = ", ".join(f"{name} {row[name]!r}" for name in header if OBJECTIVE.fullmatch(name))
            source.leave("without a result", f"line {line}: {words}")
            continue
        values = space.point(partial(_cell, row, columns))
        wrong = [f"{name} = {row.get(columns.get(name, ''), '')!r}" for name, value in values.items() if value is None]
        example = f"line {line}: {', '.join(wrong)}"
        scored.append((score, example, {name: value for name, value in values.items() if value is not None}))
    return scored


def _column(path: str, columns: list[str], space: Space) -> str | None:
    """Return the column of a parameter."""
    last = path.rpartition(".")[2]
    alone = sum(other.rpartition(".")[2] == last for other in space.parameters) == 1
    names = [path, *([last] if alone else []), *PUBLIC.get(path, ())]
    return next((f"p:{name}" for name in names if f"p:{name}" in columns), None)


def _cell(row: dict[str, str], columns: dict[str, str], path: str, parameter: Parameter) -> Any:
    """Return the value of a cell; None where it is none."""
    if path not in columns:
        return None
    text = row[columns[path]]
    if isinstance(parameter, Choices):
        if columns[path][2:] in PUBLIC["model.kind"]:
            from hydragnn.frozen.settings import OWN_KINDS

            text = OWN_KINDS.get(text, text)
        exact = (c for c in parameter.choices if text in (str(c), json.dumps(c)))
        return next(exact, next((c for c in parameter.choices if is_number(c) and c == number_in(text)), None))
    number = number_in(text)
    if number is None or not contains(parameter, number):
        return None
    return int(number) if isinstance(parameter, IntRange) else number


def number_in(text: str) -> float | None:
    """Return a finite number; None for other texts."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
