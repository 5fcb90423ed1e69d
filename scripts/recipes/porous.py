"""Fresh porous squares like the published ones, with their pressures.

A random field parts two phases.

    -div(a grad u) = f on the unit square, u = 0 on its boundary

Everything that the published file does not say was fitted on its training part only: the points lie at (i + 1/64) / 16; f / a
and the contrast of a are the medians of the five-point Laplacian where the 25 points around are of one phase; the random field
has no mean, cosines as eigenfunctions and the spectrum (k^2 + ROUGHNESS^2)^-DECAY, whose two numbers fit the products of phases at all
pairs of points as closely as the number of fields allows.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from hydragnn.scripts.recipes.simp import SYMMETRIC

Array = NDArray[np.float64]
Phases = NDArray[np.bool_]
OFFSET = 1 / 1024  # of the first point from the boundary, whatever the number of points
CONTRAST, RATE = 18.05, 50.25  # a where True over a where False; f over a where False
DECAY, ROUGHNESS, WAVES = 2.79, 9.13, 64
FINE = 128  # points a side of a fresh solve; 512 move the pressure by 0.5 %


def places(points: int) -> Array:
    """Coordinates along one side.

    >>> places(2) * 1024
    array([  1., 513.])
    """
    return OFFSET + np.arange(points) / points


def cosines(points: int) -> Array:
    """The eigenfunctions along one side ``[points, WAVES]``, of unit mean square."""
    waves = np.arange(WAVES)
    values: Array = np.cos(np.pi * np.outer(places(points), waves)) * np.where(waves == 0, 1.0, np.sqrt(2))
    return values


def spread() -> Array:
    """Standard deviations of the random field's waves ``[WAVES, WAVES]``; it has no mean."""
    square = np.square(np.pi * np.arange(WAVES))
    values: Array = (square[:, None] + square + ROUGHNESS**2) ** (-DECAY / 2)
    values[0, 0] = 0.0
    return values


def random_phases(points: int, generator: np.random.Generator) -> Phases:
    """The sign of a random field ``[points, points]``; the same field whatever the number of points."""
    side, waves = cosines(points), spread()
    phases: Phases = side @ (waves * generator.standard_normal(waves.shape)) @ side.T > 0
    return phases


def pressure(phases: Phases) -> Array:
    """The pressure ``[points, points]`` by finite volumes around the points; what flows between two sees their harmonic mean.

    On 16 points this is the coarse solve, on many a fresh label.
    """
    points = len(phases)
    step, last = 1 / points, 1 / points - OFFSET
    width = np.full(points, step)  # of the volumes; those at the boundary reach to it
    width[[0, -1]] = step / 2 + OFFSET, step / 2 + last
    permeability = np.where(phases, CONTRAST, 1.0)
    rows, row_sums = _links(permeability, width, last)
    columns, column_sums = _links(permeability.T, width, last)
    number = np.arange(points**2).reshape(points, points)
    ends = [(number[1:], number[:-1], rows), (number[:, 1:], number[:, :-1], columns.T)]
    first, second, flow = (np.concatenate([part.ravel() for part in parts]) for parts in zip(*ends))
    values = np.concatenate([-flow, -flow, (row_sums + column_sums.T).ravel()])
    entries = np.concatenate([first, second, number.ravel()]), np.concatenate([second, first, number.ravel()])
    matrix = csc_array((values, entries), shape=(points**2, points**2))
    solution: Array = splu(matrix, **SYMMETRIC).solve(RATE * np.outer(width, width).ravel())
    return solution.reshape(points, points)


def fresh_square(points: int, generator: np.random.Generator) -> tuple[Phases, Array]:
    """Phases and pressure, solved on ``FINE`` points a side, of which ``points`` are kept."""
    phases = random_phases(FINE, generator)
    every = FINE // points
    return phases[::every, ::every], pressure(phases)[::every, ::every]


def _links(permeability: Array, width: Array, last: float) -> tuple[Array, Array]:
    """Return the flow between neighbours and its sum per point.

    Along the first axis, for one unit of pressure; the sum counts walls, too.
    """
    before, after = permeability[:-1], permeability[1:]
    between = 2 * before * after / (before + after) * len(width) * width
    sums = np.zeros_like(permeability)
    sums[1:] += between
    sums[:-1] += between
    sums[0] += permeability[0] / OFFSET * width
    sums[-1] += permeability[-1] / last * width
    return between, sums
