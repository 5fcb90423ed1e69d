"""Cantilevers on a coarse mesh for ``bench_domain``: later iterations of an optimiser that starts from noise, and others.

Labels are solves of our own, in which neighbouring iterations of a run are alike: parts are of whole runs.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import skfem
import torch
from numpy.typing import NDArray

from hydragnn.graphs import Field, GraphBatch
from hydragnn.scripts.recipes.cantilever import SECTORS, Mesh, inputs_as_graph
from hydragnn.scripts.recipes.edge_kinds import direction_bins, multilevel_edges
from hydragnn.scripts.recipes.simp import Cantilever, Optimiser, first_density, random_density
from tests.benchmarks.domain_sets import ASKED, DomainSet, member_table

SPACING, LEVELS = 1 / 12, 4
LOAD = -2.6667e-4
RUNS, STATES = 120, 3
"""Runs of the data set, and iterations that are kept of each."""
EARLY, LONGEST = 5, 40
"""Iterations that are early, and those of a run."""
DISPLACEMENT = Field(name="displacement", on="node", shape=(2,), unit="domain heights", role="target")
PART = Field(name="part", on="graph", classes=4, dtype="int64", role="auxiliary")
NOISE, UNIFORM, SMOOTH = 0, 1, 2
"""Where an optimiser starts, see ``first_density``."""

Density = NDArray[np.float64]
State = tuple[Density, NDArray[np.float64]]


def cantilevers(data: Path) -> DomainSet:
    """Iterations 10 to 39 of runs that start from noise; asked of earlier ones, of other starts, and of densities of no optimiser."""
    mesh, solver = coarse_mesh()
    random = np.random.default_rng(0)
    graphs = []
    for run in range(RUNS):
        part = (0, 0, 0, 1, 3, 2)[run % 6]  # half of the runs train, the others validate, calibrate and test
        graphs += [graph_of(*state, mesh, part) for state in some_of(solver, NOISE, random, 2 * EARLY, STATES)]

    def asked(states: Callable[[], list[State]]) -> list[GraphBatch]:
        found: list[State] = []
        while len(found) < ASKED:
            found += states()
        return [graph_of(*state, mesh, 0) for state in found[:ASKED]]

    def undesigned() -> list[State]:
        density = random_density(solver, random)
        return [(density, solver.displacement(density))]

    return DomainSet(
        graphs=graphs,
        table=member_table(
            {
                "kind": "hydragnn.scripts.recipes.multilevel:Multilevel",
                "relation": "direction",
                "reduce": "sum",
                "hidden_dim": 16,
                "num_layers": 8,
                "cycle": [0, 1, 2, 3, 3, 2, 1, 0],
            },
            [{"kind": "scalar", "field": "displacement", "loss": "relative", "graph_scale": True}],
            {"kind": "given", "field": "part"},
            batch=2,
            epochs=12,
        ),
        target="displacement",
        probes={
            "iterations 0-4": asked(lambda: some_of(solver, NOISE, random, 0, 2, EARLY)),
            "from a uniform density": asked(lambda: some_of(solver, UNIFORM, random, 2 * EARLY, 2)),
            "from a smooth random one": asked(lambda: some_of(solver, SMOOTH, random, 2 * EARLY, 2)),
            "densities of no optimiser": asked(undesigned),
        },
    )


def coarse_mesh() -> tuple[Mesh, Cantilever]:
    """The domain 3 x 1 in triangles, with edges on four levels, and what solves on it."""
    grid = skfem.MeshTri.init_tensor(np.arange(37) * SPACING, np.arange(13) * SPACING)
    points = np.ascontiguousarray(grid.p.T)
    loaded = (points[:, 0] > 3 - 1e-6) & (np.abs(points[:, 1] - 0.5) < SPACING + 1e-6)
    load = np.where(loaded, LOAD / loaded.sum(), 0.0)
    senders, receivers, level = multilevel_edges(points, SPACING, LEVELS)
    order = np.lexsort((level, receivers))
    senders, receivers, level = senders[order], receivers[order], level[order]
    direction = direction_bins(points[senders] - points[receivers], SECTORS)
    mesh = Mesh(points=points, load=load, senders=senders, receivers=receivers, level=level, direction=direction)
    return mesh, Cantilever(points, np.ascontiguousarray(grid.t.T), load)


def some_of(
    solver: Cantilever, start: int, random: np.random.Generator, first: int, count: int, end: int = LONGEST
) -> list[State]:
    """So many iterations from ``first`` to ``end`` of a run with an optimiser of its own."""
    volume = random.uniform(0.45, 0.55)
    optimiser = Optimiser(volume=volume, radius=10 ** random.uniform(-1.5, -1.1), move=random.uniform(0.05, 0.2))
    states: Iterator[State] = solver.optimise(first_density(start, solver, volume, random), optimiser)
    kept = np.sort(random.choice(np.arange(first, end), count, replace=False)).tolist()
    return [state for number, state in enumerate(islice(states, kept[-1] + 1)) if number in kept]


def graph_of(density: Density, displacement: NDArray[np.float64], mesh: Mesh, part: int) -> GraphBatch:
    """A density as a graph with its label."""
    values = {"displacement": torch.tensor(displacement, dtype=torch.float32), "part": torch.tensor([part])}
    return inputs_as_graph(density, mesh).with_fields(values, fields=[DISPLACEMENT, PART])
