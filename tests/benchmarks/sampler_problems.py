"""What bench_samplers lets samplers search: spaces with conditions, each with a function that stands for trials.

``bowls`` is made: seven numbers, three of which belong to one choice each of a category; a sum of squares whose optimum is 0.
``grid`` is one of 1,875 points, so that configurations come again: four whole numbers and a category, with the same sum of squares.
``alloys`` was recorded: a random forest fitted to the 120 trials of ``alloys-search.toml``, which are in ``alloys-trials.csv``. This writes that file:

    PYTHONPATH=. python tests/benchmarks/sampler_problems.py CAMPAIGN tests/benchmarks/alloys-trials.csv
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from hydragnn.hpo import campaign_history, read_campaign
from hydragnn.hpo.costs import features
from hydragnn.hpo.settings import campaign_settings
from hydragnn.hpo.space.points import Point, Space, all_points, random_point, space_of

HERE = Path(__file__).resolve().parent

KINDS = ["a", "b", "c"]
NUMBER = {"type": "float", "low": 0.0, "high": 1.0}
BOWLS: dict[str, Any] = {
    "kind": {"type": "categorical", "choices": KINDS},
    **{f"x{number}": NUMBER for number in range(4)},
    **{f"only_{kind}": {**NUMBER, "when": {"kind": kind}} for kind in KINDS},
}

GRID: dict[str, Any] = {
    "kind": {"type": "categorical", "choices": KINDS},
    **{f"x{number}": {"type": "int", "low": 0, "high": 4, "step": 1} for number in range(4)},
}

TREES = 300

DRAWS = 20_000
"""So many configurations drawn at random say what the lowest value of a surrogate is; who finds a lower one has a negative regret."""

Value = Callable[[Point], float]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A space, and for every seed a function on it, above 0 or nearly so."""

    space: Space
    table: Mapping[str, Any]
    """The space as a campaign's file has it."""
    of_seed: Callable[[int], Value]
    noise: float = 0.01
    """Of what a sampler is told."""


def bowls() -> Problem:
    """A bowl for each kind, of which one reaches 0, and the others 0.1 and 0.2."""

    def of_seed(seed: int) -> Value:
        draw = np.random.default_rng([seed, 99])
        centres, floors = draw.uniform(0.2, 0.8, (3, 5)), np.array([0.0, 0.1, 0.2])[draw.permutation(3)]
        weights = draw.uniform(0.5, 2.0, 5)

        def value(point: Point) -> float:
            kind = KINDS.index(point["kind"])
            row = np.array([*(point[f"x{number}"] for number in range(4)), point[f"only_{point['kind']}"]])
            return float(floors[kind] + (weights * (row - centres[kind]) ** 2).sum())

        return value

    settings = campaign_settings({"search": {"space": BOWLS}}, Path("BOWLS.toml"))
    return Problem(space=space_of(settings.search.space), table=BOWLS, of_seed=of_seed)


def grid() -> Problem:
    """A bowl for each kind on whole numbers, less the lowest value of all points."""
    settings = campaign_settings({"search": {"space": GRID}}, Path("GRID.toml"))
    space = space_of(settings.search.space)

    def of_seed(seed: int) -> Value:
        draw = np.random.default_rng([seed, 97])
        centres, floors = draw.uniform(0.5, 3.5, 4) / 4, np.array([0.0, 0.1, 0.2])[draw.permutation(3)]

        def value(point: Point) -> float:
            row = np.array([point[f"x{number}"] for number in range(4)]) / 4
            return float(floors[KINDS.index(point["kind"])] + ((row - centres) ** 2).sum())

        lowest = min(map(value, all_points(space) or []))
        return lambda point: value(point) - lowest

    return Problem(space=space, table=GRID, of_seed=of_seed)


def alloys() -> Problem:
    """A forest of other trees for every seed, less its lowest value over many random configurations."""
    settings = read_campaign(HERE / "alloys-search.toml")
    space = space_of(settings.search.space)
    points, values = recorded_trials(HERE / "alloys-trials.csv")
    rows = np.array([features(space, point) for point in points])

    def of_seed(seed: int) -> Value:
        forest = RandomForestRegressor(TREES, random_state=seed, n_jobs=1).fit(rows, values)
        draw = np.random.default_rng([seed, 98])
        drawn = [features(space, random_point(space, draw)) for _ in range(DRAWS)]
        lowest = float(forest.predict(np.array(drawn)).min())
        return lambda point: float(forest.predict(np.array([features(space, point)]))[0]) - lowest

    return Problem(space=space, table=settings.search.to_json()["space"], of_seed=of_seed)


PROBLEMS: dict[str, Callable[[], Problem]] = {"bowls": bowls, "grid": grid, "alloys": alloys}


def recorded_trials(file: Path) -> tuple[list[Point], list[float]]:
    """Configurations and what they came to; an error above that of the trivial predictor, or none, counts as 1."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    points = [{name[2:]: json.loads(text) for name, text in row.items() if name[:2] == "p:" and text} for row in rows]
    return points, [min(1.0, float(row["error"] or 1.0)) for row in rows]


def write_trials(campaign: Path, file: Path) -> None:
    """Write what a campaign's trials came to, one in a line; a failed one has no error."""
    history = campaign_history(campaign)
    paths = list(history.settings.search.space)
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([*(f"p:{path}" for path in paths), "error"])
        for trial in history.trials:
            values = (json.dumps(trial.values[path]) if path in trial.values else "" for path in paths)
            writer.writerow([*values, "" if trial.value is None else repr(trial.value)])


if __name__ == "__main__":
    write_trials(Path(sys.argv[1]), Path(sys.argv[2]))
