"""Nonlinear shallow water in basins with islands, as stores of pairs of frames on irregular meshes.

h_t + div(h u) = 0 and (h u)_t + div(h u u) + g h grad(h + b) = 0 between walls, by finite volumes of first order on the median duals of a mesh: HLL fluxes
(Harten, Lax, van Leer 1983) after hydrostatic reconstruction (Audusse et al. 2004, doi:10.1137/S1064827503431090), in time by Heun's rule. A mesh four times
finer in each direction than the graph's, whose vertices it contains, carries the solution. Every run has another mesh, bed and beginning, at rest.
"""

from dataclasses import dataclass

import meshio
import numpy as np
from numpy.typing import NDArray
from skfem import MeshTri

from hydragnn.graphs import Field, GraphBatch, from_mesh
from hydragnn.scripts.demo.plates import random_plate
from tests.benchmarks.mesh_forecasts import STEP, bumps

GRAVITY = 9.81  # m/s^2
COURANT = 0.9  # part of a cell's water that waves may carry off in a step
FINER = 2  # times that every triangle is cut in four for the solution
DRY = 1e-9  # depth without a velocity, m

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Duals:
    """Median dual cells of a mesh of triangles."""

    areas: Array
    """``[vertices]``"""
    ends: NDArray[np.int64]
    """Both vertices of every edge ``[2, edges]``."""
    normals: Array
    """Normals ``[edges, 2]`` of the facets from the first to the second vertex, as long as these."""
    walls: Array
    """Outward normals ``[vertices, 2]`` of a cell's part of the boundary."""


def duals_of(mesh: MeshTri) -> Duals:
    """Return the cells around the vertices, each bounded by midpoints and centroids."""
    points, triangles = mesh.p.T, mesh.t.T
    first, second, third = points[triangles].transpose(1, 0, 2)
    doubled = np.linalg.det(np.stack([second - first, third - first], axis=1))
    triangles = np.where((doubled > 0)[:, None], triangles, triangles[:, ::-1])  # counterclockwise
    centres, count = points[triangles].mean(1), len(points)
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    across = np.tile(centres, (3, 1)) - points[sides].mean(1)
    normals = np.stack([across[:, 1], -across[:, 0]], axis=1)
    normals[sides[:, 0] > sides[:, 1]] *= -1
    ends, edge, times = np.unique(np.sort(sides, axis=1), axis=0, return_inverse=True, return_counts=True)
    edge = edge.reshape(-1)
    outer = sides[times[edge] == 1]  # with the mesh on the left
    along = (points[outer[:, 1]] - points[outer[:, 0]]) / 2
    outward = np.stack([along[:, 1], -along[:, 0]], axis=1)
    areas = np.bincount(triangles.ravel(), np.repeat(np.abs(doubled) / 6, 3), count)
    walls = sums(np.concatenate([outward, outward]), outer.T.ravel(), count)
    return Duals(areas=areas, ends=ends.T, normals=sums(normals, edge, len(ends)), walls=walls)


def sums(values: Array, rows: NDArray[np.int64], count: int) -> Array:
    """Return the sum of values ``[items, columns]`` of every row."""
    return np.column_stack([np.bincount(rows, column, count) for column in values.T])


def speeds(state: Array) -> Array:
    """Return velocities ``[vertices, 2]``; zero without water."""
    depth = state[:, :1]
    return np.where(depth > DRY, state[:, 1:] / np.maximum(depth, DRY), 0.0)


def change(state: Array, bed: Array, duals: Duals) -> Array:
    """Return the derivative in time of depth and discharges ``[vertices, 3]``."""
    lengths = np.linalg.norm(duals.normals, axis=1)
    units = duals.normals / lengths[:, None]
    highest, velocity = bed[duals.ends].max(0), speeds(state)
    sides, waves, inner = [], [], []
    for end in duals.ends:
        depth = np.maximum(state[end, 0] + bed[end] - highest, 0.0)  # hydrostatic reconstruction
        normal, sound = (velocity[end] * units).sum(1), np.sqrt(GRAVITY * depth)
        conserved = depth[:, None] * np.column_stack([np.ones(len(depth)), velocity[end]])
        pressure = GRAVITY / 2 * depth**2
        flux = conserved * normal[:, None]
        flux[:, 1:] += pressure[:, None] * units
        sides.append((conserved, flux))
        waves.append((normal - sound, normal + sound))
        inner.append((GRAVITY / 2 * state[end, 0] ** 2 - pressure)[:, None] * units)
    slowest = np.minimum(np.minimum(waves[0][0], waves[1][0]), 0.0)[:, None]
    fastest = np.maximum(np.maximum(waves[0][1], waves[1][1]), 0.0)[:, None]
    (left, left_flux), (right, right_flux) = sides
    between = fastest * left_flux - slowest * right_flux + slowest * fastest * (right - left)
    flux = between / np.maximum(fastest - slowest, DRY)
    total = np.zeros_like(state)
    for end, sign, own in zip(duals.ends, (-1.0, 1.0), inner):
        through = flux * lengths[:, None]
        through[:, 1:] += own * lengths[:, None]
        total += sign * sums(through, end, len(state))
    total[:, 1:] -= GRAVITY / 2 * state[:, :1] ** 2 * duals.walls
    return total / duals.areas[:, None]


def state_after(state: Array, bed: Array, duals: Duals, seconds: float) -> Array:
    """Return the state after so many seconds."""
    left, lengths = seconds, np.linalg.norm(duals.normals, axis=1)
    while left > 0:
        speed = np.linalg.norm(speeds(state), axis=1) + np.sqrt(GRAVITY * state[:, 0])
        crossed = np.bincount(duals.ends.ravel(), np.tile(lengths * speed[duals.ends].max(0), 2), len(state))
        step = COURANT * float((duals.areas / np.maximum(crossed, DRY)).min())
        step = left / np.ceil(left / step)
        ahead = state + step * change(state, bed, duals)
        state = (state + ahead + step * change(ahead, bed, duals)) / 2
        left = left - step if left > 1.5 * step else 0.0
    return state


def course(number: int, frames: int) -> tuple[meshio.Mesh, Array, Array]:
    """Return the mesh of a run, its still depths, and heights above still water ``[frames, vertices]``."""
    random = np.random.default_rng([39, number])
    plate = random_plate(random)
    fine = MeshTri(plate.points.T, plate.triangles.T).refined(FINER)
    still = 0.1 + 0.03 * np.tanh(bumps(*fine.p, random))  # m; waves of about 1 m/s
    height = 0.03 * np.tanh(bumps(*fine.p, random))
    state, duals = np.column_stack([still + height, np.zeros((len(still), 2))]), duals_of(fine)
    vertices, heights = len(plate.points), []
    for _ in range(frames):
        heights.append((state[:, 0] - still)[:vertices])
        state = state_after(state, -still, duals, STEP)
    return meshio.Mesh(plate.points, [("triangle", plate.triangles)]), still[:vertices], np.stack(heights)


FIELDS = [
    *(
        Field(name=name, on="node", unit=unit)
        for name, unit in (("height", "m"), ("rate", "m/s"), ("still_depth", "m"))
    ),
    *(
        Field(name=f"next_{name}", on="node", unit=unit, role="target")
        for name, unit in (("height", "m"), ("rate", "m/s"))
    ),
    Field(name="run", on="graph", role="auxiliary", classes=100_000, dtype="int64"),
]
"""Heights above still water with their mean rate since the frame before, the same a frame later, and the depth of still water."""


def water_pairs(number: int, frames: int) -> list[GraphBatch]:
    """Return a graph per frame of a run; water is at rest before the first."""
    mesh, still, heights = course(number, frames)
    rates, graphs = np.diff(heights, axis=0, prepend=heights[:1]) / STEP, []
    for frame in range(frames - 1):
        values = {"height": heights[frame], "rate": rates[frame], "still_depth": still}
        values |= {"next_height": heights[frame + 1], "next_rate": rates[frame + 1]}
        label = f"run {number}, frame {frame}"
        graphs.append(from_mesh(mesh, fields=FIELDS, nodes=values, graphs={"run": number}, name=label))
    return graphs
