"""Waves on plates with holes that warm the plates by friction, as stores of pairs of frames on irregular meshes.

w_tt = c^2 div grad w - g w_t and T_t = k div grad T + b w_t^2 with insulated edges, by linear elements of scikit-fem on the graph's own mesh and the
trapezoidal rule; frames are ``STEP`` seconds apart. Every run has another mesh and another state at the beginning.
"""

from pathlib import Path

import meshio
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import bmat, eye
from scipy.sparse.linalg import splu
from skfem import Basis, ElementTriP1, MeshTri
from skfem.models.poisson import laplace, mass

from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, GraphBatch, concatenate, from_mesh
from hydragnn.scripts.demo.plates import random_plate

SPEED, FRICTION, DIFFUSION, HEATING = 1.0, 0.4, 0.01, 0.2
STEP, INNER = 0.02, 2
UNITS = {"height": "m", "rate": "m/s", "temperature": "K"}


def fields_of(names: tuple[str, ...]) -> list[Field]:
    """Return the fields of a store: inputs, the same later, and the lead time."""
    fields = [Field(name=name, on="node", unit=UNITS[name]) for name in names]
    fields += [Field(name=f"next_{name}", on="node", unit=UNITS[name], role="target") for name in names]
    lead = Field(name="lead_time", on="graph", unit="s")
    return [*fields, lead, Field(name="run", on="graph", role="auxiliary", classes=100_000, dtype="int64")]


def course(number: int, frames: int) -> tuple[meshio.Mesh, NDArray[np.float64]]:
    """Return the mesh of a run and its states ``[frames, fields, vertices]``."""
    random = np.random.default_rng([38, number])
    plate = random_plate(random)
    mesh = MeshTri(plate.points.T, plate.triangles.T)
    basis = Basis(mesh, ElementTriP1())
    capacity, stiffness = mass.assemble(basis), laplace.assemble(basis)
    x, y = mesh.p
    state = np.stack([bumps(x, y, random), np.zeros_like(x), bumps(x, y, random)])
    step, one = STEP / INNER, eye(len(x))
    waves = [
        bmat([[one, -s * one], [s * SPEED**2 * stiffness, (1 + s * FRICTION) * capacity]], format="csc")
        for s in (step / 2, -step / 2)
    ]
    # both rows in weak form: w - s v = ..., and M v + s (c^2 K w + g M v) = ...
    ahead, behind = splu(waves[0]), waves[1]
    heat = [(capacity + s * DIFFUSION * stiffness).tocsc() for s in (step / 2, -step / 2)]
    warmer, states = splu(heat[0]), [state]
    for number in range((frames - 1) * INNER):
        moved = ahead.solve(behind @ state[:2].ravel()).reshape(2, -1)
        source = HEATING * ((state[1] + moved[1]) / 2) ** 2
        warmed = warmer.solve(heat[1] @ state[2] + step * (capacity @ source))
        state = np.stack([*moved, warmed])
        states += [state] if (number + 1) % INNER == 0 else []
    return meshio.Mesh(plate.points, [("triangle", plate.triangles)]), np.stack(states)


def bumps(x: NDArray[np.float64], y: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return a sum of a few Gaussians of both signs."""
    total = np.zeros_like(x)
    for _ in range(random.integers(1, 4)):
        (a, b), width, height = random.uniform(0, 1, 2), random.uniform(0.15, 0.3), random.normal()
        total += height * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * width**2))
    return total


def pairs(number: int, frames: int, names: tuple[str, ...], leads: tuple[int, ...] = (1,)) -> list[GraphBatch]:
    """Return a graph per frame of a run and lead, with the state after so many frames."""
    mesh, states = course(number, frames)
    rows = [list(UNITS).index(name) for name in names]
    fields, graphs = fields_of(names), []
    for frame in range(frames - max(leads)):
        for lead in leads:
            now, later = states[frame, rows], states[frame + lead, rows]
            nodes = dict(zip(names, now)) | dict(zip((f"next_{name}" for name in names), later))
            of_graph = {"lead_time": lead * STEP, "run": number}
            label = f"run {number}, frame {frame}, {lead} ahead"
            graphs.append(from_mesh(mesh, fields=fields, nodes=nodes, graphs=of_graph, name=label))
    return graphs


def write_runs(out: Path, runs: range, frames: int, names: tuple[str, ...], leads: tuple[int, ...] = (1,)) -> None:
    """Write the pairs of some runs as a store."""
    with StoreWriter(out, fields_of(names), dim=2, attributes={"length_unit": "m"}) as store:
        for number in runs:
            store.write(concatenate(pairs(number, frames, names, leads)))
