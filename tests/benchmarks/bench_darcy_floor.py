"""How far phases at 16 x 16 points can tell the pressure of a Darcy square at all, with no network.

    python -m tests.benchmarks.bench_darcy_floor DATA [--fields N] [--draws N]

``DATA`` holds the folder ``darcy`` of raw data. The random field of the recipe's fresh squares (``scripts/recipes/porous.py``) is drawn given its
signs at the published points: Gibbs sampling of its values there, and a conditional draw everywhere else (Matheron's rule). Every draw is solved on 64 x 64
points. Fields that agree at the points differ between them, so the mean over draws is the best that can be said of the pressure; errors are relative L2,
of the first fields that judge and of fresh ones, of one draw, of the mean, and of the mean of endless draws (squared errors fall as 1 + 1 / draws).
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from hydragnn.scripts.recipes.darcy import CALIBRATION, POINTS, RAW, TRAINING, VALID, relative_l2
from hydragnn.scripts.recipes.porous import cosines, fresh_square, pressure, spread

Array = NDArray[np.float64]
SOLVED, FIRST_SWEEPS, SWEEPS = 64, 60, 5  # points a side of the solves; sweeps before the first draw and between draws
NUGGET = 1e-6  # of the values' unit variances, for their inverse


def covariance(first: int, second: int) -> Array:
    """Of the random field's values on ``first`` points a side ``[first^2, second^2]`` with those on ``second``."""
    products = cosines(first)[:, None] * cosines(second)  # [first, second, waves]
    flat = products.reshape(first * second, -1)
    table = (flat @ np.square(spread()) @ flat.T).reshape(first, second, first, second)
    values: Array = table.transpose(0, 2, 1, 3).reshape(first**2, second**2)
    return values


def swept(values: Array, signs: Array, precision: Array, generator: np.random.Generator) -> Array:
    """Values ``[fields, points]`` after every one of them was drawn anew given the others and its sign."""
    values = values.copy()
    for point, row in enumerate(precision):
        deviation = row[point] ** -0.5
        mean = values[:, point] - values @ row / row[point]
        below = ndtr(-mean / deviation)
        low, high = np.where(signs[:, point] > 0, below, 0.0), np.where(signs[:, point] > 0, 1.0, below)
        drawn = mean + deviation * ndtri(np.clip(low + (high - low) * generator.random(len(mean)), 1e-12, 1 - 1e-12))
        values[:, point] = np.where(drawn * signs[:, point] > 0, drawn, 1e-6 * signs[:, point])
    return values


def drawn_pressures(phases: NDArray[np.bool_], draws: int, generator: np.random.Generator) -> Array:
    """Pressures ``[draws, fields, points]`` of fine fields that have the given phases at the points."""
    signs = 2.0 * phases.reshape(len(phases), -1) - 1
    known = covariance(POINTS, POINTS)
    deviations = np.sqrt(np.diag(known))
    precision = np.linalg.inv(known / np.outer(deviations, deviations) + NUGGET * np.eye(len(known)))
    weights = covariance(SOLVED, POINTS) / deviations @ precision
    fine, coarse, every = cosines(SOLVED), cosines(POINTS), SOLVED // POINTS
    values = 0.5 * signs
    for _ in range(FIRST_SWEEPS):
        values = swept(values, signs, precision, generator)
    pressures = []
    for _ in range(draws):
        for _ in range(SWEEPS):
            values = swept(values, signs, precision, generator)
        for known_values in values:
            waves = spread() * generator.standard_normal(spread().shape)
            missing = known_values - (coarse @ waves @ coarse.T).ravel() / deviations
            field = fine @ waves @ fine.T + (weights @ missing).reshape(SOLVED, SOLVED)
            pressures.append(pressure(field > 0)[::every, ::every].ravel())
    return np.array(pressures).reshape(draws, len(phases), -1)


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--fields", type=int, default=200)
    parser.add_argument("--draws", type=int, default=12)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    with np.load(options.data / "darcy" / RAW, allow_pickle=False) as file:
        judging = slice(TRAINING + VALID + CALIBRATION, None)
        published = file["x"][judging][: options.fields], file["y"][judging][: options.fields].astype(np.float64)
    fresh = [fresh_square(POINTS, generator) for _ in range(options.fields)]
    squares = {"published": published, "fresh": tuple(np.array(arrays) for arrays in zip(*fresh))}
    for name, (phases, labels) in squares.items():
        flat = labels.reshape(len(labels), -1)
        said = drawn_pressures(phases, options.draws, generator)
        mean = float(relative_l2(said.mean(axis=0), flat).mean())
        one = float(np.mean([relative_l2(draw, flat).mean() for draw in said]))
        endless = mean * (1 + 1 / options.draws) ** -0.5
        print(
            f"{name}, {len(flat)} fields: one draw {one:.2f} %, mean of {options.draws} {mean:.2f} %, of endless {endless:.2f} %"
        )


if __name__ == "__main__":
    main()
