"""Cheap solve of cantilevers: elasticity on triangles of four times the side.

Every fine triangle is a part of a coarse one.

Fine elements are linear, so on nested meshes the best answer in energy among displacements that are linear on coarse triangles
(Galerkin's) needs nothing but the mean stiffness of each coarse triangle. It is too stiff: what it misses is foretold by its residual on the
fine mesh, divided by the diagonal of the fine stiffness as one Jacobi step would (Verfuerth 1994, doi:10.1016/0377-0427(94)90290-9, has such estimates).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import splu

from hydragnn.scripts.recipes.simp import LOWEST, SYMMETRIC, Array, mean_cube

SIDE = 4  # fine triangles along a side of a coarse one
CORNERS = ((0, 0), (0, 1), (1, 1)), ((0, 0), (1, 1), (1, 0))  # rows and columns of a square's lower and upper triangle
ELASTICITY = np.array([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]])  # stress by strain where mu = 1, lambda = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CoarseAnswer:
    """Answer of the coarse solve at the nodes of the fine mesh."""

    displacement: Array
    """``[nodes, 2]``; linear on coarse triangles."""
    misfit: Array
    """``[nodes]``: square root of residual times Jacobi step, over that of the work of the load per node."""

    @property
    def error(self) -> float:
        """The estimated error of the work of the load, over that work."""
        return float(np.square(self.misfit).mean())


class CoarseCantilever:
    """Grid of nodes, clamped at its first column, under vertical nodal forces.

    It has ``rows`` x ``columns`` nodes and is coarser by ``side``.
    """

    def __init__(self, rows: int, columns: int, load: Array, side: int = SIDE) -> None:
        self.shape, self.side = (rows, columns), side
        coarse = (rows - 1) // side + 1, (columns - 1) // side + 1
        self.matrices = np.stack([triangle_stiffness(np.array(corners, dtype=np.float64)) for corners in CORNERS])
        self.fine, self.coarse = grid_triangles(rows, columns), grid_triangles(*coarse)
        self.dofs, self.coarse_dofs = degrees_of(self.fine), degrees_of(self.coarse)
        self.entries = np.repeat(self.coarse_dofs, 6, axis=2).ravel(), np.tile(self.coarse_dofs, (1, 1, 6)).ravel()
        self.parts = parts_of_triangles(side)
        self.interpolation = interpolation(rows, columns, side)
        self.free = np.repeat(np.arange(rows * columns) % columns > 0, 2)
        self.coarse_free = np.flatnonzero(np.repeat(np.arange(coarse[0] * coarse[1]) % coarse[1] > 0, 2))
        self.force = np.stack([np.zeros_like(load), load], axis=1).ravel()
        self.coarse_force = (self.interpolation.T @ self.force.reshape(-1, 2)).ravel()

    def solve(self, density: Array) -> CoarseAnswer:
        """Return the coarse displacement of a nodal density, and its residual.

        No density counts as less than that of void.
        """
        rows, columns = self.shape
        cubes = mean_cube(np.maximum(density, LOWEST)[self.fine.reshape(-1, 3)]).reshape(2, -1)  # [kinds, squares]
        squares = cubes.reshape(2, (rows - 1) // self.side, self.side, (columns - 1) // self.side, self.side)
        means = np.einsum("kicjd,Kkcd->Kij", squares, self.parts).reshape(2, -1) / self.side**2
        values = means[:, :, None, None] * self.matrices[:, None]
        size = len(self.coarse_force)
        matrix = csc_array((values.ravel(), self.entries), shape=(size, size))
        solution, free = np.zeros(size), self.coarse_free
        solution[free] = splu(matrix[free][:, free], **SYMMETRIC).solve(self.coarse_force[free])
        displacement = self.interpolation @ solution.reshape(-1, 2)
        return CoarseAnswer(displacement=displacement, misfit=self._misfit(cubes, displacement.ravel()))

    def _misfit(self, cubes: Array, flat: Array) -> Array:
        stress = np.einsum("ke,kab,keb->kea", cubes, self.matrices, flat[self.dofs], optimize=True)
        diagonal = cubes[:, :, None] * np.einsum("kaa->ka", self.matrices)[:, None]
        sums, of_diagonal = (np.bincount(self.dofs.ravel(), one.ravel()) for one in (stress, diagonal))
        residual = (self.force - sums) * self.free
        products = (np.square(residual) / of_diagonal).reshape(-1, 2).sum(axis=1)
        misfit: Array = np.sqrt(products * len(products) / (self.force @ flat))
        return misfit


def grid_triangles(rows: int, columns: int) -> NDArray[np.int64]:
    """Return nodes of both triangles of every square ``[2, squares, 3]``.

    Nodes are numbered row by row.
    """
    number = np.arange(rows * columns).reshape(rows, columns)
    first = number[:-1, :-1].ravel()
    return np.stack([np.stack([first + row * columns + column for row, column in kind], axis=1) for kind in CORNERS])


def degrees_of(triangles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Degrees of freedom of triangles ``[..., 6]``: x and y of each corner in turn."""
    return (2 * triangles[..., None] + np.arange(2)).reshape(*triangles.shape[:-1], 6)


def triangle_stiffness(corners: Array) -> Array:
    """Return the stiffness ``[6, 6]`` of a linear triangle.

    Corners are (row, column) ``[3, 2]``. It is the same for every size.
    """
    y, x = corners.T
    across, along = np.roll(y, -1) - np.roll(y, -2), np.roll(x, -2) - np.roll(x, -1)  # twice the area times gradients
    strain = np.zeros((3, 6))
    strain[0, 0::2], strain[1, 1::2] = across, along
    strain[2, 0::2], strain[2, 1::2] = along, across
    twice_area = float(across @ x)
    matrix: Array = strain.T @ ELASTICITY @ strain / (2 * twice_area)
    return matrix


def parts_of_triangles(side: int) -> Array:
    """Return which fine triangles are parts of which coarse triangle.

    1 where it is, ``[coarse kinds, fine kinds, rows, columns]``.
    """
    row, column = np.indices((side, side))
    return np.array([[row <= column, row < column], [row > column, row >= column]], dtype=np.float64)


def interpolation(rows: int, columns: int, side: int) -> csr_array:
    """Return the interpolation from coarse to fine nodes.

    ``[rows * columns, coarse nodes]``, linear on coarse triangles.
    """
    coarse = (rows - 1) // side + 1, (columns - 1) // side + 1
    y, x = (index.ravel() / side for index in np.indices((rows, columns)))
    row, column = np.minimum(y.astype(int), coarse[0] - 2), np.minimum(x.astype(int), coarse[1] - 2)
    y, x = y - row, x - column
    weights = {(0, 0): 1 - np.maximum(x, y), (1, 1): np.minimum(x, y), (0, 1): np.maximum(x - y, 0)}
    weights[1, 0] = np.maximum(y - x, 0)
    corners = np.concatenate([(row + r) * coarse[1] + column + c for r, c in weights])
    nodes = np.tile(np.arange(rows * columns), len(weights))
    matrix = csr_array((np.concatenate([*weights.values()]), (nodes, corners)), (rows * columns, coarse[0] * coarse[1]))
    matrix.eliminate_zeros()
    return matrix
