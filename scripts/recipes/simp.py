"""Fresh cantilevers: plane elasticity on triangles, and an optimiser that moves material to where it carries load (SIMP).

Element matrices are scikit-fem's; the stiffness of nodal density w is w^3 (Bendsoe and Sigmund 1999,
doi:10.1007/s004190050248), integrated exactly. Fresh solves agree with the published ones to 1e-6 of the largest
displacement.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from hydragnn.base.errors import MissingPackageError

Array = NDArray[np.float64]
LOWEST = 1e-3  # density of void
SYMMETRIC = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 1e-3, "options": {"SymmetricMode": True}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimiser:
    """Optimality criteria with a filtered sensitivity."""

    volume: float
    """Fraction of the domain that is material."""
    radius: float
    """Length of the Helmholtz filter, in units of the domain's height."""
    move: float
    """Largest change of a nodal density in one iteration."""


class Cantilever:
    """A mesh clamped at x = 0 under fixed nodal forces; densities in, displacements out."""

    def __init__(self, points: Array, triangles: NDArray[np.int64], load: Array) -> None:
        """``points [nodes, 2]``, ``triangles [cells, 3]``, ``load [nodes]``: vertical nodal forces."""
        try:
            import skfem
        except ImportError:
            raise MissingPackageError("scikit-fem", "demo", "making fresh cantilevers") from None
        from skfem.models.elasticity import linear_elasticity
        from skfem.models.poisson import laplace, mass

        mesh = skfem.MeshTri(np.ascontiguousarray(points.T), np.ascontiguousarray(triangles.T))
        vectors = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementTriP1()))
        scalars = vectors.with_element(skfem.ElementTriP1())
        local = linear_elasticity(2.0, 1.0).coo_data(vectors)
        self.points, self.corners, self.nodal = points, mesh.t.T, vectors.nodal_dofs
        self.dofs, self.matrices, self.size = vectors.element_dofs.T, local.tolocal(), vectors.N
        self.mass, self.gradient = mass.assemble(scalars).tocsc(), laplace.assemble(scalars).tocsc()
        self.weights = np.asarray(self.mass.sum(axis=1)).ravel()
        self.force = np.zeros(self.size)
        self.force[self.nodal[1]] = load
        self.free = np.setdiff1d(np.arange(self.size), vectors.get_dofs(lambda x: x[0] < 1e-9).all())
        self.entries = np.repeat(self.dofs, 6, axis=1).ravel(), np.tile(self.dofs, (1, 6)).ravel()

    def displacement(self, density: Array) -> Array:
        """Nodal displacements ``[nodes, 2]`` of a nodal density."""
        values = self.matrices * mean_cube(density[self.corners])[:, None, None]
        matrix = csc_array((values.ravel(), self.entries), shape=(self.size, self.size))
        solution = np.zeros(self.size)
        solution[self.free] = splu(matrix[self.free][:, self.free], **SYMMETRIC).solve(self.force[self.free])
        return solution[self.nodal].T

    def slope(self, density: Array, displacement: Array) -> Array:
        """Derivative of the work of the load, by nodal density."""
        flat = np.zeros(self.size)
        flat[self.nodal] = displacement.T
        here = flat[self.dofs]
        energy = np.einsum("ea,eab,eb->e", here, self.matrices, here)
        a, b, c = (np.roll(density[self.corners], -turn, axis=1) for turn in range(3))
        change = (3 * a**2 + 2 * a * (b + c) + b**2 + b * c + c**2) / 10  # of mean_cube, by each corner
        slope = np.zeros(len(density))
        np.subtract.at(slope, self.corners, energy[:, None] * change)
        return slope

    def filter(self, values: Array, radius: float) -> Array:
        """Values smoothed over ``radius`` by the Helmholtz equation."""
        return splu((radius**2 * self.gradient + self.mass).tocsc()).solve(self.mass @ values)

    def volume(self, density: Array) -> float:
        """Fraction of the domain that is material."""
        return float(self.weights @ density / self.weights.sum())

    def optimise(self, density: Array, optimiser: Optimiser) -> Iterator[tuple[Array, Array]]:
        """Densities and their displacements, iteration by iteration, without end."""
        smooth = splu((optimiser.radius**2 * self.gradient + self.mass).tocsc())
        while True:
            displacement = self.displacement(density)
            yield density, displacement
            slope = self.slope(density, displacement) / self.weights
            slope = smooth.solve(self.mass @ (density * slope)) / np.maximum(density, 1e-2)
            slope = np.minimum(slope, -1e-12 * np.abs(slope).max())
            density = self._moved(density, slope, optimiser)

    def _moved(self, density: Array, slope: Array, optimiser: Optimiser) -> Array:
        """The optimality criteria's next density; bisection finds the multiplier that keeps the volume."""
        low, high = 0.0, 10.0 * float(np.abs(slope).max())
        target = density * np.sqrt(-slope)
        bounds = np.maximum(density - optimiser.move, LOWEST), np.minimum(density + optimiser.move, 1.0)
        moved = density
        for _ in range(60):
            multiplier = 0.5 * (low + high)
            moved = np.clip(target / np.sqrt(multiplier), *bounds)
            low, high = (multiplier, high) if self.volume(moved) > optimiser.volume else (low, multiplier)
        return moved


def mean_cube(corners: Array) -> Array:
    """Mean of w^3 over triangles where w is linear, from its values at the corners ``[triangles, 3]``.

    >>> float(mean_cube(np.array([[2.0, 2.0, 2.0]]))[0]), float(mean_cube(np.array([[1.0, 0.0, 0.0]]))[0])
    (8.0, 0.1)
    """
    a, b, c = corners.T
    return (a**3 + b**3 + c**3 + a**2 * (b + c) + b**2 * (a + c) + c**2 * (a + b) + a * b * c) / 10


def random_density(cantilever: Cantilever, generator: np.random.Generator) -> Array:
    """A smooth random density: noise filtered over a random length, sharpened, often denser at top and bottom."""
    radius = 10 ** generator.uniform(-1.6, -0.5)
    noise = generator.standard_normal(len(cantilever.weights))
    field = cantilever.filter(cantilever.filter(noise, radius), radius)
    field = (field - field.mean()) / field.std()
    if generator.random() < 0.6:
        x, y = cantilever.points.T
        field += generator.uniform(0, 3) * (np.abs(y - 0.5) * 2 - 0.5) * (1 - 0.3 * x)
    sharpness, volume, lowest = (
        generator.uniform(0.3, 4),
        generator.uniform(0.35, 0.65),
        generator.uniform(LOWEST, 0.05),
    )
    low, high = -10.0, 10.0
    density = field
    for _ in range(40):
        shift = 0.5 * (low + high)
        density = 1 / (1 + np.exp(-sharpness * (field + shift)))
        low, high = (low, shift) if cantilever.volume(density) > volume else (shift, high)
    return np.clip(density, lowest, 1.0)


def first_density(kind: int, cantilever: Cantilever, volume: float, generator: np.random.Generator) -> Array:
    """Return a first density: 0 noise, 1 uniform, 2 smooth and random."""
    nodes = len(cantilever.weights)
    if kind == 0:
        return generator.uniform(0.01, 0.99, nodes) * min(1.0, volume / 0.5)
    return np.full(nodes, volume) if kind == 1 else random_density(cantilever, generator)
