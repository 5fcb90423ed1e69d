"""The coarse solve of the recipe cantilever beside scikit-fem's on fine and coarse triangles, and what it foretells of its own error."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from hydragnn.scripts.recipes import cantilever
from hydragnn.scripts.recipes.coarse import CoarseCantilever, grid_triangles, interpolation
from hydragnn.scripts.recipes.simp import Array, Cantilever, mean_cube, random_density

ROWS, COLUMNS = 9, 25


@pytest.fixture(scope="module")
def load() -> Array:
    """Forces on the right side, somewhat above its middle."""
    load = np.zeros(ROWS * COLUMNS)
    load[COLUMNS * np.array([4, 5, 6]) + COLUMNS - 1] = -1e-4, -2e-4, -1e-4
    return load


def full_solve(rows: int, columns: int, load: Array) -> Cantilever:
    """The same problem for scikit-fem, on a domain of 3 x 1."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    points = np.stack([column, row], axis=1) / (rows - 1)
    return Cantilever(points.astype(np.float64), grid_triangles(rows, columns).reshape(-1, 3), load)


def stiffness(solver: Cantilever, density: Array) -> csr_array:
    """The assembled matrix of the fine mesh, x and y of each node in turn, as scikit-fem has it."""
    values = solver.matrices * mean_cube(density[solver.corners])[:, None, None]
    return csr_array((values.ravel(), solver.entries), shape=(solver.size, solver.size))


@pytest.fixture(scope="module")
def density(load: Array) -> Array:
    """A density without order."""
    return random_density(full_solve(ROWS, COLUMNS, load), np.random.default_rng(2))


def test_on_the_mesh_itself_the_coarse_solve_is_the_full_one_and_finds_no_error(load: Array, density: Array) -> None:
    answer = CoarseCantilever(ROWS, COLUMNS, load, side=1).solve(density)
    expected = full_solve(ROWS, COLUMNS, load).displacement(density)
    np.testing.assert_allclose(answer.displacement, expected, atol=1e-9 * np.abs(expected).max())
    assert answer.error < 1e-16


@pytest.mark.parametrize("side", [2, 4])
def test_of_one_density_everywhere_it_is_the_full_solve_on_coarse_triangles(load: Array, side: int) -> None:
    answer = CoarseCantilever(ROWS, COLUMNS, load, side).solve(np.full(ROWS * COLUMNS, 0.6))
    between = interpolation(ROWS, COLUMNS, side)
    rows, columns = (ROWS - 1) // side + 1, (COLUMNS - 1) // side + 1
    expected = between @ full_solve(rows, columns, between.T @ load).displacement(np.full(rows * columns, 0.6))
    np.testing.assert_allclose(answer.displacement, expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("side", [2, 4])
def test_what_the_coarse_solve_leaves_does_no_work_on_any_coarse_displacement(
    load: Array, density: Array, side: int
) -> None:
    answer, solver = CoarseCantilever(ROWS, COLUMNS, load, side).solve(density), full_solve(ROWS, COLUMNS, load)
    flat = np.zeros(solver.size)
    flat[solver.nodal] = answer.displacement.T
    left = (solver.force - stiffness(solver, density) @ flat)[solver.nodal].T
    work = interpolation(ROWS, COLUMNS, side).T @ left
    free = np.arange(len(work)) % ((COLUMNS - 1) // side + 1) > 0
    assert np.abs(work[free]).max() < 1e-12 * np.abs(load).max() < 1e-3 * np.abs(left).max()
    assert answer.displacement[:, 1] @ load < solver.displacement(density)[:, 1] @ load, "it is too stiff"


def test_the_estimated_error_is_at_most_six_times_what_the_coarse_solve_misses(load: Array) -> None:
    """No stretch of a triangle costs more than six times what its diagonal says: it has six degrees of freedom."""
    coarse, solver = CoarseCantilever(ROWS, COLUMNS, load, side=2), full_solve(ROWS, COLUMNS, load)
    generator = np.random.default_rng(0)
    for _ in range(30):
        one = random_density(solver, generator)
        answer, work = coarse.solve(one), solver.displacement(one)[:, 1] @ load
        said = answer.displacement[:, 1] @ load
        assert 0 < answer.error < 6 * (work / said - 1)
        assert np.square(answer.misfit).mean() == pytest.approx(answer.error)


def test_void_without_any_density_counts_as_void(load: Array, density: Array) -> None:
    coarse = CoarseCantilever(ROWS, COLUMNS, load)
    thin, none = density.copy(), density.copy()
    thin[:40], none[:40] = 1e-3, 0.0
    np.testing.assert_array_equal(coarse.solve(none).displacement, coarse.solve(thin).displacement)


def test_the_load_of_the_coarse_solve_is_the_published_one(real_data: Path) -> None:
    with np.load(real_data / "cantilever" / "cantilever_196.npz") as file:
        published = file["load_fy_nodes"]
    np.testing.assert_allclose(cantilever.coarse_cantilever().force.reshape(-1, 2)[:, 1], published, atol=1e-11)
