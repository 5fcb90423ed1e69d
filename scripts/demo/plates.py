"""Continuum: heated plates with cooling pipes, solved on a finer mesh."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import meshio
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.spatial import Delaunay

from hydragnn.base.errors import as_missing
from hydragnn.graphs import Field, GraphBatch, from_mesh
from hydragnn.scripts.demo.writing import write_samples

LOSS = 10.0  # heat lost to the air per area and degree, over the plate's mean conductivity (1 / length^2)
FINER = 2  # times that every triangle is cut in four for the solution
SIZES, HOLES, RADII = (0.095, 0.15), (1, 3), (0.06, 0.12)  # of triangles' edges; of pipes, from least to most
FIELDS = (
    Field(name="place", on="node", classes=3, dtype="int64"),  # 0 inside, 1 outer edge, 2 on a pipe
    Field(name="pipe_distance", on="node"),
    Field(name="conductivity", on="node"),
    Field(name="source", on="node"),
    Field(name="share", on="node"),  # area that the vertex stands for
    Field(name="temperature", on="node", unit="K", role="target"),
    Field(name="compliance", on="graph", role="target"),  # source times temperature, over the plate
)


def make_plates(out: Path, *, samples: int = 600, seed: int = 0) -> None:
    """Make a store of plates with their temperature and thermal compliance.

    div(k grad T) + q = loss * T with T = 0 on the pipes and insulated outer edges; k and q vary smoothly. Solved by
    scikit-fem with linear elements on a mesh sixteen times finer than the graph's, whose vertices it contains.
    """
    attributes = {
        "source": "plates on irregular meshes made by hydragnn.scripts.demo.plates",
        "labels": "finite elements (scikit-fem), every triangle cut in 16",
        "length_unit": "height of the plate",
        "loss": LOSS,
        "seed": seed,
    }
    write_samples(out, partial(labelled_plate, seed=seed), samples, title="plates", attributes=attributes)


def labelled_plate(number: int, seed: int) -> GraphBatch:
    """Return a plate with pipes as a mesh, with the solution."""
    generator = np.random.default_rng([seed, number])
    plate = random_plate(generator)
    conductivity, source = smooth_fields(generator)
    temperature, compliance = solve_conduction(plate, conductivity, source)
    x, y = plate.points.T
    values = {
        "place": plate.place,
        "pipe_distance": pipe_distance(plate.points, plate.pipes),
        "conductivity": conductivity(x, y),
        "source": source(x, y),
        "share": shares(plate),
        "temperature": temperature,
    }
    mesh = meshio.Mesh(plate.points, [("triangle", plate.triangles)])
    return from_mesh(mesh, fields=FIELDS, nodes=values, graphs={"compliance": compliance}, name=f"plate {number}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plate:
    """Triangulated plate of height 1.

    ``place`` is 0 inside, 1 on the outer edge, 2 on a pipe (x, y, radius).
    """

    points: Float[ndarray, "vertices 2"]
    triangles: Int[ndarray, "triangles 3"]
    place: Int[ndarray, " vertices"]
    pipes: Float[ndarray, "pipes 3"]


def random_plate(generator: np.random.Generator) -> Plate:
    """A plate of random width, mesh size and pipes, triangulated irregularly."""
    width, size = generator.uniform(0.8, 1.4), generator.uniform(*SIZES)
    pipes = _pipes(width, generator)
    outer, rings = _outline(width, size), np.concatenate([_ring(pipe, size, generator) for pipe in pipes])
    inner = _scatter(width, size, generator)
    inside = (inner > 0.5 * size).all(axis=1) & (inner < np.array([width, 1.0]) - 0.5 * size).all(axis=1)
    inner = inner[inside & (pipe_distance(inner, pipes) > 0.55 * size)]
    points = np.concatenate([outer, rings, inner])
    triangles = Delaunay(points).simplices.astype(np.int64)
    centres = points[triangles].mean(axis=1)
    triangles_inside = triangles[(pipe_distance(centres, pipes) > 0) & (_areas(points, triangles) > 1e-3 * size**2)]
    used, compact = np.unique(triangles_inside, return_inverse=True)
    place = np.repeat([1, 2, 0], [len(outer), len(rings), len(inner)])
    return Plate(points=points[used], triangles=compact.reshape(-1, 3), place=place[used], pipes=pipes)


def _pipes(width: float, generator: np.random.Generator) -> Float[ndarray, "pipes 3"]:
    """Return circles apart from each other and the edges."""
    num_holes, holes = generator.integers(HOLES[0], HOLES[1] + 1), np.zeros((0, 3))
    for _ in range(30):
        radius = generator.uniform(*RADII)
        centre = generator.uniform(radius + 0.12, np.array([width, 1.0]) - radius - 0.12)
        if len(holes) < num_holes and (pipe_distance(centre[None], holes) > radius + 0.15).all():
            holes = np.concatenate([holes, [[*centre, radius]]])
    return holes


def pipe_distance(points: Float[ndarray, "points 2"], pipes: Float[ndarray, "pipes 3"]) -> Float[ndarray, " points"]:
    """Return the distance to the nearest pipe's wall, negative inside a pipe."""
    away = np.linalg.norm(points[:, None] - pipes[None, :, :2], axis=-1) - pipes[:, 2]
    return away.min(axis=1, initial=np.inf)


def _outline(width: float, size: float) -> Float[ndarray, "points 2"]:
    x = np.linspace(0.0, width, int(np.ceil(width / size)) + 1)
    y = np.linspace(0.0, 1.0, int(np.ceil(1.0 / size)) + 1)[1:-1]
    sides = [(x, 0 * x), (x, 0 * x + 1.0), (0 * y, y), (0 * y + width, y)]
    return np.concatenate([np.column_stack(side) for side in sides])


def _ring(pipe: ndarray, size: float, generator: np.random.Generator) -> Float[ndarray, "points 2"]:
    count = max(8, int(np.ceil(2 * np.pi * pipe[2] / size)))
    angle = 2 * np.pi * (np.arange(count) + generator.random()) / count
    return pipe[:2] + pipe[2] * np.column_stack([np.cos(angle), np.sin(angle)])


def _scatter(width: float, size: float, generator: np.random.Generator) -> Float[ndarray, "points 2"]:
    """Return a hexagonal lattice with randomly displaced points."""
    height = size * 3**0.5 / 2
    row, column = np.indices((int(1 / height) + 2, int(width / size) + 2))
    lattice = np.column_stack([((column + row % 2 / 2) * size).ravel(), (row * height).ravel()])
    return lattice + generator.uniform(-0.25, 0.25, lattice.shape) * size


def _areas(points: ndarray, triangles: ndarray) -> Float[ndarray, " triangles"]:
    (x1, y1), (x2, y2) = (np.moveaxis(points[triangles[:, k]] - points[triangles[:, 0]], -1, 0) for k in (1, 2))
    return np.abs(x1 * y2 - x2 * y1) / 2


def shares(plate: Plate) -> Float[ndarray, " vertices"]:
    """Return a third of every triangle's area for each of its corners."""
    thirds = np.repeat(_areas(plate.points, plate.triangles) / 3, 3)
    return np.bincount(plate.triangles.ravel(), weights=thirds, minlength=len(plate.points))


def smooth_fields(generator: np.random.Generator) -> tuple[Any, Any]:
    """Return conductivity and heat source as functions of x and y."""
    slope, phase = generator.normal(0.0, 2.0, (2, 2)), generator.uniform(0, 2 * np.pi, 2)
    spots = generator.integers(1, 4)
    centres, powers = generator.random((spots, 2)), generator.uniform(5.0, 20.0, spots)
    radius, base = generator.uniform(0.15, 0.3, spots), generator.uniform(0.0, 4.0)

    def conductivity(x: ndarray, y: ndarray) -> ndarray:
        waves = [np.sin(slope[k, 0] * x + slope[k, 1] * y + phase[k]) for k in (0, 1)]
        return np.exp(np.log(2.0) * (waves[0] + waves[1]) / 2)

    def source(x: ndarray, y: ndarray) -> ndarray:
        heat = np.full_like(x, base)
        for centre, power, size in zip(centres, powers, radius):
            heat = heat + power * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * size**2))
        return heat

    return conductivity, source


def solve_conduction(plate: Plate, conductivity: Any, source: Any) -> tuple[Float[ndarray, " vertices"], float]:
    """Temperature at the plate's vertices and the integral of source times temperature."""
    with as_missing("scikit-fem", "demo", "the quickstart's plates"):
        from skfem import Basis, BilinearForm, ElementTriP1, LinearForm, MeshTri, condense, solve
        from skfem.helpers import dot, grad

    def balance(u: Any, v: Any, w: Any) -> Any:
        return conductivity(*w.x) * dot(grad(u), grad(v)) + LOSS * u * v

    def heat(v: Any, w: Any) -> Any:
        return source(*w.x) * v

    mesh = MeshTri(plate.points.T, plate.triangles.T).refined(FINER)
    basis = Basis(mesh, ElementTriP1())
    load = LinearForm(heat).assemble(basis)
    temperature = solve(*condense(BilinearForm(balance).assemble(basis), load, D=held(mesh, plate)))
    return temperature[: len(plate.points)], float(load @ temperature)


def held(mesh: Any, plate: Plate) -> Int[ndarray, " nodes"]:
    """Return the nodes of the finer mesh on the walls of pipes."""
    boundary = mesh.boundary_nodes()
    x, y = mesh.p[:, boundary]
    width = plate.points[:, 0].max()
    outline: Bool[ndarray, " nodes"] = np.minimum.reduce([x, width - x, y, 1.0 - y]) < 1e-9
    return boundary[~outline]
