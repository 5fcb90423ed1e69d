"""Judgement of the recipe ``cantilever`` on held-out densities."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn.datasets import open_store
from hydragnn.ensemble import Ensemble, NumberEstimate
from hydragnn.scripts.recipes.simp import Array
from hydragnn.scripts.recipes.table import Figure
from hydragnn.scripts.recipes.training import BLOCK

BROKEN = 0.1  # root mean square displacement above which a density does not carry the load
EARLY = 10  # iterations that are early
ORIGINS = ("published", "fresh run 1", "fresh run 2", "fresh run 3", "fresh run 4", "fresh run 5", "fresh training")
HELD_OUT, TRAINING = range(len(ORIGINS) - 1), len(ORIGINS) - 1
PUBLISHED, FRESH = "published validation part", "all fresh runs"
FRESH_EARLY, FRESH_LATER = "early iterations of fresh runs", "later iterations of fresh runs"
COVERED = (PUBLISHED, FRESH, FRESH_EARLY)  # rows with coverage of the ensemble's intervals


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Held-out densities that are a row of the table."""

    graphs: NDArray[np.int64]
    carries: NDArray[np.bool_]
    """Which of them carry the load: the others are left out of means."""
    goal: float | None = None
    """Largest mean error that the recipe promises, per cent."""


def rows_of(store: Path) -> dict[str, Row]:
    """Return groups of held-out densities by name.

    The published validation part; every fourth iteration of each fresh run and of all; early iterations and later ones.
    """
    reader = open_store(store)
    part, origin, iteration = (reader.column(name).values.reshape(-1) for name in ("part", "origin", "iteration"))
    labels = reader.column("displacement").values.reshape(len(reader), -1, 2).astype(np.float64)
    fresh, fourth = (part == 2) & (origin > 0), iteration % 4 == 0
    masks: dict[str, tuple[NDArray[np.bool_], float | None]] = {PUBLISHED: ((part == 2) & (origin == 0), 2.0)}
    masks |= {ORIGINS[number]: (fresh & (origin == number) & fourth, 5.0) for number in HELD_OUT if number}
    masks |= {FRESH: (fresh & fourth, 2.0)}
    masks |= {
        FRESH_EARLY: (fresh & (iteration < EARLY), 5.0),
        FRESH_LATER: (fresh & fourth & (iteration >= EARLY), None),
    }
    rows = {name: (np.flatnonzero(mask), goal) for name, (mask, goal) in masks.items()}
    return {
        name: Row(graphs=graphs, carries=carries_load(labels[graphs]), goal=goal)
        for name, (graphs, goal) in rows.items()
    }


def relative_errors(ensemble: Ensemble, store: Path, rows: Mapping[str, Row]) -> dict[str, Array]:
    """Per cent relative L2 error of every density of every row that carries the load."""
    reader = open_store(store)
    graphs = np.unique(np.concatenate([row.graphs[row.carries] for row in rows.values()]))
    errors = np.full(len(reader), np.nan)
    for block in np.array_split(graphs, -(-len(graphs) // BLOCK)):
        batch = reader.read(block)
        estimate = ensemble.predict(batch)["displacement"]
        assert isinstance(estimate, NumberEstimate)
        mean = estimate.mean.reshape(len(block), -1)
        errors[block] = _relative(mean, batch["displacement"].double().numpy().reshape(len(block), -1))
    return {name: errors[row.graphs[row.carries]] for name, row in rows.items()}


def figures_of_row(
    name: str, row: Row, errors: Mapping[str, Mapping[str, Array]], simple: Mapping[str, float]
) -> list[Figure]:
    """Return mean errors of a member, the ensemble and simple predictors.

    The promise is about the first member.
    """
    figures = []
    for what in ("one model", "ensemble"):
        beside = f"worst density {errors[what][name].max():.3g} %"
        goal = None
        if what == "one model":
            goal = row.goal
            beside = "; ".join([beside, *(f"{other} {value:.3g} %" for other, value in simple.items())])
            if broken := int((~row.carries).sum()):
                beside += f"; {broken} densities that do not carry the load left out"
        value = float(errors[what][name].mean())
        text = f"{name} ({int(row.carries.sum())} densities): mean relative L2 of the displacement, {what}"
        figures.append(Figure(what=text, value=value, unit="%", goal=goal, beside=beside))
    return figures


def honesty(evaluation: dict[str, Any]) -> list[Figure]:
    """Return coverage of the ensemble's intervals, and flagged densities."""
    figures = []
    for name in COVERED:
        scores = evaluation["parts"][name]["displacement"]["ensemble"]
        beside = f"Spearman of spread and error {scores['spearman']:.2f}"
        for end, score in ((" (90 nominal)", "coverage"), (" unknown", "unknown")):
            if score in scores:  # no coverage where all densities lie too far outside for intervals
                what = f"{name}: coverage of the displacement{end}"
                figures.append(Figure(what=what, value=100 * scores[score], unit="%", beside=beside))
        flagged = 100 * evaluation["domain"]["flagged"][name]
        figures.append(
            Figure(what=f"{name}: densities flagged as outside the training domain", value=flagged, unit="%")
        )
    return figures


def simple_errors(store: Path, row: Row) -> dict[str, float]:
    """Mean errors of simple predictors of a row.

    The mean displacement of training; of fresh runs the published displacement of the same iteration; the coarse solve, that times one number
    fitted to training, and times a factor that two fitted numbers make of its estimated error.
    """
    reader = open_store(store)
    part, origin, iteration, error = (
        reader.column(name).values.reshape(-1) for name in ("part", "origin", "iteration", "coarse_error")
    )
    fields, coarse = (
        reader.column(name).values.reshape(len(reader), -1).astype(np.float64)
        for name in ("displacement", "coarse_displacement")
    )
    graphs, trained = row.graphs[row.carries], np.flatnonzero(part == 0)
    predicted = {"mean field": np.broadcast_to(fields[(part == 0) & (origin == 0)].mean(axis=0), fields[graphs].shape)}
    if (origin[graphs] > 0).all():
        published = np.flatnonzero(origin == 0)
        nearest = published[np.abs(iteration[published] - iteration[graphs][:, None]).argmin(axis=1)]
        predicted["same iteration of the published run"] = fields[nearest]
    factors = (fields[trained] * coarse[trained]).sum(axis=1) / np.square(coarse[trained]).sum(axis=1)
    factor, line = float(np.exp(np.log(factors).mean())), np.polyfit(error[trained], np.log(factors), 1)
    predicted["coarse solve"] = coarse[graphs]
    predicted[f"coarse solve times {factor:.3f}"] = factor * coarse[graphs]
    by_error = np.exp(np.polyval(line, error[graphs]))[:, None]
    predicted["coarse solve times what its estimated error tells"] = by_error * coarse[graphs]
    return {name: float(_relative(mean, fields[graphs]).mean()) for name, mean in predicted.items()}


def _relative(mean: Array, label: Array) -> Array:
    return 100 * np.linalg.norm(mean - label, axis=1) / np.linalg.norm(label, axis=1)


def carries_load(displacements: Array) -> NDArray[np.bool_]:
    """Return True for densities that carry the load."""
    carries: NDArray[np.bool_] = np.sqrt(np.square(displacements).sum(axis=2).mean(axis=1)) < BROKEN
    return carries
