"""Fresh cantilevers: plane elasticity on triangles, and an optimiser that moves material to where it carries load (SIMP).

The finite elements are scikit-fem's; the stiffness of nodal density w is w^3 (Bendsoe and Sigmund 1999, doi:10.1007/s004190050248),
integrated exactly. Fresh solves agree with the published ones to 1e-6 of the largest displacement.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

from hydragnn.errors import MissingPackageError

Array = NDArray[np.float64]
LOWEST = 1e-3  # density of void


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
        from skfem.helpers import ddot, eye, sym_grad, trace

        mesh = skfem.MeshTri(np.ascontiguousarray(points.T), np.ascontiguousarray(triangles.T))
        self._solve, self._condense = skfem.solve, skfem.condense
        self.vectors = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementTriP1()), intorder=3)
        self.scalars = self.vectors.with_element(skfem.ElementTriP1())
        self.clamped = self.vectors.get_dofs(lambda x: x[0] < 1e-9)
        self.force = np.zeros(self.vectors.N)
        self.force[self.vectors.nodal_dofs[1]] = load

        def stress(u):  # type: ignore[no-untyped-def]
            strain = sym_grad(u)
            return 2.0 * eye(trace(strain), 2) + 2.0 * strain

        @skfem.BilinearForm
        def stiffness(u, v, w):  # type: ignore[no-untyped-def]
            return w["density"] ** 3 * ddot(stress(u), sym_grad(v))

        @skfem.LinearForm
        def sensitivity(v, w):  # type: ignore[no-untyped-def]
            return -3.0 * w["density"] ** 2 * ddot(stress(w["u"]), sym_grad(w["u"])) * v

        @skfem.BilinearForm
        def mass(u, v, w):  # type: ignore[no-untyped-def]
            return u * v

        @skfem.BilinearForm
        def gradient(u, v, w):  # type: ignore[no-untyped-def]
            return u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1]

        self._stiffness, self._sensitivity = stiffness, sensitivity
        self.mass = mass.assemble(self.scalars).tocsc()
        self.gradient = gradient.assemble(self.scalars).tocsc()
        self.weights = np.asarray(self.mass.sum(axis=1)).ravel()

    def displacement(self, density: Array) -> Array:
        """Nodal displacements ``[nodes, 2]`` of a nodal density."""
        matrix = self._stiffness.assemble(self.vectors, density=self.scalars.interpolate(density))
        solution = self._solve(*self._condense(matrix, self.force, D=self.clamped))
        return solution[self.vectors.nodal_dofs].T

    def filtered(self, values: Array, radius: float) -> Array:
        """Values smoothed over ``radius`` by the Helmholtz equation."""
        return splu((radius**2 * self.gradient + self.mass).tocsc()).solve(self.mass @ values)

    def volume(self, density: Array) -> float:
        """Fraction of the domain that is material."""
        return float(self.weights @ density / self.weights.sum())

    def optimised(self, density: Array, optimiser: Optimiser) -> Iterator[tuple[Array, Array]]:
        """Densities and their displacements, iteration by iteration, without end."""
        smooth = splu((optimiser.radius**2 * self.gradient + self.mass).tocsc())
        while True:
            displacement = self.displacement(density)
            yield density, displacement
            slope = self._slope(density, displacement) / self.weights
            slope = smooth.solve(self.mass @ (density * slope)) / np.maximum(density, 1e-2)
            slope = np.minimum(slope, -1e-12 * np.abs(slope).max())
            density = self._moved(density, slope, optimiser)

    def _slope(self, density: Array, displacement: Array) -> Array:
        flat = np.zeros(self.vectors.N)
        flat[self.vectors.nodal_dofs] = displacement.T
        slope: Array = self._sensitivity.assemble(
            self.scalars, density=self.scalars.interpolate(density), u=self.vectors.interpolate(flat)
        )
        return slope

    def _moved(self, density: Array, slope: Array, optimiser: Optimiser) -> Array:
        """The optimality criteria's next density; bisection finds the multiplier that keeps the volume."""
        low, high = 0.0, 10.0 * float(np.abs(slope).max())
        moved = density
        for _ in range(60):
            multiplier = 0.5 * (low + high)
            wanted = density * np.sqrt(-slope / multiplier)
            bounds = np.maximum(density - optimiser.move, LOWEST), np.minimum(density + optimiser.move, 1.0)
            moved = np.clip(wanted, *bounds)
            low, high = (multiplier, high) if self.volume(moved) > optimiser.volume else (low, multiplier)
        return moved


def random_density(cantilever: Cantilever, generator: np.random.Generator) -> Array:
    """A smooth random density: noise filtered over a random length, sharpened, often denser at top and bottom."""
    radius = 10 ** generator.uniform(-1.6, -0.5)
    noise = generator.standard_normal(len(cantilever.weights))
    field = cantilever.filtered(cantilever.filtered(noise, radius), radius)
    field = (field - field.mean()) / field.std()
    if generator.random() < 0.6:
        x, y = cantilever.scalars.mesh.p
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
    """Where an optimiser starts: 0 noise in every node, 1 uniform, 2 a smooth random density."""
    nodes = len(cantilever.weights)
    if kind == 0:
        return generator.uniform(0.01, 0.99, nodes) * min(1.0, volume / 0.5)
    return np.full(nodes, volume) if kind == 1 else random_density(cantilever, generator)
