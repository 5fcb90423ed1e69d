"""Steady conduction in a periodic image of anisotropic grains, by finite elements."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu


def fluxes(
    labels: Int[ndarray, "rows columns"], conductivity: Float[ndarray, "grains 2 2"]
) -> Float[ndarray, "pixels 2 2"]:
    """Return mean fluxes under unit gradients: [pixel, component, direction of the gradient].

    ``labels`` holds the grain of every pixel of a periodic unit square with the same number of rows and columns;
    ``conductivity`` is symmetric and positive definite. Bilinear elements, one per pixel, periodic fluctuation; the mean of
    the result over pixels is the effective conductivity.
    """
    side = labels.shape[0]
    corners = _corners(side)
    slopes = _slopes() * side
    local = conductivity[labels.ravel()]
    unit = np.einsum("qia,qjb->ijab", slopes, slopes) / 4 / side**2
    stiffness = np.einsum("eij,ijab->eab", local, unit)
    rows, columns = np.repeat(corners, 4, axis=1).ravel(), np.tile(corners, (1, 4)).ravel()
    matrix = csc_matrix((stiffness.ravel(), (rows, columns)), shape=(side**2, side**2))
    mean_slope = slopes.mean(axis=0)
    load = np.zeros((side**2, 2))
    np.add.at(load, corners, -np.einsum("ia,eij->eaj", mean_slope, local) / side**2)
    # the fluctuation is known up to a constant: its first value is set to zero
    solver = splu(matrix[1:, 1:], permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    fluctuation = np.zeros((side**2, 2))
    fluctuation[1:] = solver.solve(load[1:])
    gradient = np.eye(2) + np.einsum("ia,eaj->eij", mean_slope, fluctuation[corners])
    return np.einsum("eij,ejk->eik", local, gradient)


def _corners(side: int) -> Int[ndarray, "pixels 4"]:
    row, column = np.indices((side, side))

    def node(r: ndarray, c: ndarray) -> ndarray:
        return (r % side) * side + c % side

    corners = [node(row, column), node(row + 1, column), node(row + 1, column + 1), node(row, column + 1)]
    return np.stack(corners, axis=-1).reshape(-1, 4)


def _slopes() -> Float[ndarray, "points 2 4"]:
    """Return shape functions' gradients at the Gauss points of a unit square."""
    sides = []
    for x in (-(3**-0.5), 3**-0.5):
        for y in (-(3**-0.5), 3**-0.5):
            along_x = np.array([-(1 - y), 1 - y, 1 + y, -(1 + y)]) / 2
            along_y = np.array([-(1 - x), -(1 + x), 1 + x, 1 - x]) / 2
            sides.append([along_x, along_y])
    return np.array(sides)
