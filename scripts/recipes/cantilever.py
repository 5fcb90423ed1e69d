"""Displacement of cantilevers of changing density, correcting a coarse solve.

The model is a multilevel relational network on one mesh.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, StoreWriter, find_files, open_store, rule_of
from hydragnn.datasets.sources.table_files import read_npz
from hydragnn.ensemble import Ensemble, build_ensemble
from hydragnn.graphs import Field, GraphBatch, Topology, relation_field
from hydragnn.scripts.recipes.coarse import CoarseCantilever
from hydragnn.scripts.recipes.edge_kinds import direction_bins, multilevel_edges
from hydragnn.scripts.recipes.judging import (
    COVERED,
    EARLY,
    ORIGINS,
    TRAINING,
    carries_load,
    figures_of_row,
    honesty,
    relative_errors,
    rows_of,
    simple_errors,
)
from hydragnn.scripts.recipes.raw import array_like, raw_arrays
from hydragnn.scripts.recipes.simp import Array, Cantilever, Optimiser, first_density, random_density
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import make_store, subsets, train_recipe

SPACING, LEVELS, SECTORS = 0.025, 5, 8
ROWS, COLUMNS = 41, 121  # vertices of the published mesh
LOAD = -2e-4 / 3  # vertical force at a vertex amid the published load; half of it at its two ends
MEMBERS = 3
TRAIN_RUNS, CHOOSING_RUNS, CALIBRATING_RUNS, TRAIN_RANDOM = 40, 12, 24, 150
EARLY_RUNS, EARLY_STATES = 100, 4  # runs that end at early iterations, and what is kept of each
STARTS = (0, 0, 1, 2)  # of the runs, in turn; see first_density
STATES, ITERATIONS = 20, (20, 90)  # kept per training run, closer together at its start; length of such a run
TEST_ITERATIONS, DRAWN = (
    80,
    5,
)  # length of runs that choose, calibrate or judge; states drawn from each that chooses or calibrates
TEST_RUNS = (
    (0, Optimiser(volume=0.5, radius=0.003, move=0.2)),
    (0, Optimiser(volume=0.504, radius=0.005, move=0.05)),
    (0, Optimiser(volume=0.45, radius=0.03, move=0.1)),
    (1, Optimiser(volume=0.5, radius=0.02, move=0.05)),
    (2, Optimiser(volume=0.55, radius=0.012, move=0.1)),
)
NODE_INPUTS = ("density", "stiffness", "log_density", "x", "y", "clamped", "loaded")
MESH_INPUTS = (
    *(Field(name=name, on="node") for name in NODE_INPUTS),
    relation_field(SECTORS, "direction"),
    relation_field(LEVELS, "level"),
)
COARSE_INPUTS = (
    Field(name="coarse_displacement", on="node", shape=(2,), unit="domain heights"),
    Field(name="coarse_misfit", on="node"),
    Field(name="coarse_error", on="graph"),
)
INPUTS = (*MESH_INPUTS, *COARSE_INPUTS)
LABELS = (
    Field(name="displacement", on="node", shape=(2,), unit="domain heights", role="target"),
    Field(name="part", on="graph", classes=4, dtype="int64", role="auxiliary"),
    Field(name="origin", on="graph", classes=len(ORIGINS), dtype="int64", role="auxiliary"),
    Field(name="iteration", on="graph", classes=10_000, dtype="int64", role="auxiliary"),
)
FIELDS = (*INPUTS, *LABELS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One density and its displacement."""

    density: Array
    displacement: Array
    part: int
    origin: int
    iteration: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Mesh, levels and load that all samples share."""

    points: Array
    load: NDArray[Any]
    senders: NDArray[np.int64]
    receivers: NDArray[np.int64]
    level: NDArray[np.int64]
    direction: NDArray[np.int64]


def mesh_of(points: Array, load: NDArray[Any]) -> Mesh:
    """Return the vertices with edges on five levels, sorted by receiver.

    Each level reaches twice as far as the one below.
    """
    senders, receivers, level = multilevel_edges(points, SPACING, LEVELS)
    order = np.lexsort((level, receivers))
    senders, receivers, level = senders[order], receivers[order], level[order]
    direction = direction_bins(points[senders] - points[receivers], SECTORS)
    return Mesh(points=points, load=load, senders=senders, receivers=receivers, level=level, direction=direction)


class Densities(OwnBuild):
    """Source of densities in npz files.

    ``w`` [densities, nodes] lies on the published mesh; ``points`` and ``load_fy_nodes`` must be the mesh's where they are
    there.
    """

    kind: str = "hydragnn.scripts.recipes.cantilever:Densities"

    def graphs(self) -> Iterator[Make]:
        """One graph per density without displacement; InputError where a file has other arrays or another mesh."""
        points, loaded = published_points()
        mesh, coarse = mesh_of(points, loaded), coarse_cantilever()
        for path in find_files(self.files):
            table = read_npz(path)
            densities = array_like(table, "w", ("densities", len(points)), path)
            if "points" in table and not np.allclose(
                array_like(table, "points", points.shape, path), points, atol=1e-5
            ):
                raise InputError(f"{path}: points are another mesh than that of training; give densities on that one")
            if "load_fy_nodes" in table:
                load = array_like(table, "load_fy_nodes", loaded.shape, path)
                if not np.array_equal(load != 0, loaded):
                    raise InputError(f"{path}: load_fy_nodes pulls at other nodes than in training; leave the file out")
            for number, density in enumerate(densities.astype(np.float64)):
                yield partial(density_as_graph, density, mesh, coarse, f"{path.name}, density {number}")


def published_points() -> tuple[Array, NDArray[np.bool_]]:
    """Return the vertices of the published mesh, and where its load acts.

    Vertices come row by row. The load acts on the middle tenth of the right side.
    """
    row, column = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
    points = np.stack([column * SPACING, row * SPACING], axis=1).astype(np.float32).astype(np.float64)
    return points, (column == COLUMNS - 1) & (np.abs(points[:, 1] - 0.5) < 0.05 + 1e-6)


def coarse_cantilever() -> CoarseCantilever:
    """The coarse solve of the published mesh and load."""
    _, loaded = published_points()
    ends = loaded & (np.roll(loaded, COLUMNS) ^ np.roll(loaded, -COLUMNS))
    return CoarseCantilever(ROWS, COLUMNS, LOAD * np.where(ends, 0.5, loaded))


def density_as_graph(density: Array, mesh: Mesh, coarse: CoarseCantilever, name: str) -> GraphBatch:
    """One density as a graph without labels; InputError where it is no density."""
    wrong = np.flatnonzero(~((density >= 0) & (density <= 1 + 1e-6)))
    if len(wrong):
        raise InputError(f"{name}: w is {density[wrong[0]]:g} at node {wrong[0]}; a density lies between 0 and 1")
    return with_coarse(inputs_as_graph(density, mesh), density, coarse)


def with_coarse(graph: GraphBatch, density: Array, coarse: CoarseCantilever) -> GraphBatch:
    """Return the graph of a density with its coarse solve.

    The target is the error of the solve.
    """
    answer = coarse.solve(density)
    values = {
        "coarse_displacement": torch.tensor(answer.displacement, dtype=torch.float32),
        "coarse_misfit": torch.tensor(answer.misfit, dtype=torch.float32),
        "coarse_error": torch.tensor([answer.error], dtype=torch.float32),
    }
    return graph.with_fields(values, fields=COARSE_INPUTS)


def inputs_as_graph(density: Array, mesh: Mesh) -> GraphBatch:
    """Return a nodal density as a graph without solves.

    Coordinates are inputs, because clamp and load break every symmetry.
    """
    nodes, edges, (x, y) = len(mesh.points), len(mesh.senders), mesh.points.T
    w = density
    columns = (2 * w - 1, 2 * w**3 - 0.5, np.log(np.maximum(w, 1e-3)) / 3 + 0.5, x, y, x < 1e-6, mesh.load != 0)
    inputs = {name: torch.tensor(column, dtype=torch.float32) for name, column in zip(NODE_INPUTS, columns)}
    return GraphBatch(
        positions=torch.zeros(nodes, 0, dtype=torch.float64),
        topology=Topology.square(torch.from_numpy(mesh.senders), torch.from_numpy(mesh.receivers), nodes),
        edge_shifts=torch.zeros(edges, 0, dtype=torch.float64),
        cell=torch.zeros(1, 3, 3, dtype=torch.float64),
        periodic=torch.zeros(1, 3, dtype=torch.bool),
        node_offsets=torch.tensor([0, nodes]),
        edge_offsets=torch.tensor([0, edges]),
        fields={field.name: field for field in MESH_INPUTS},
        nodes=inputs,
        edges={"direction": torch.from_numpy(mesh.direction), "level": torch.from_numpy(mesh.level)},
        graphs={},
    )


def sample_as_graph(sample: Sample, mesh: Mesh, coarse: CoarseCantilever) -> GraphBatch:
    """One sample as a graph with its labels."""
    values = {
        "displacement": torch.tensor(sample.displacement, dtype=torch.float32),
        "part": torch.tensor([sample.part]),
        "origin": torch.tensor([sample.origin]),
        "iteration": torch.tensor([sample.iteration]),
    }
    return with_coarse(inputs_as_graph(sample.density, mesh), sample.density, coarse).with_fields(values, fields=LABELS)


def published_samples(raw: Path) -> Iterator[Sample]:
    """The published solves: training rows train, validation rows judge."""
    with raw_arrays(raw, "w", "u", "is_validation", "run_iter") as file:
        for w, u, validation, (_, iteration) in zip(file["w"], file["u"], file["is_validation"], file["run_iter"]):
            yield Sample(
                density=w.astype(np.float64),
                displacement=u.astype(np.float64),
                part=2 * int(validation),
                origin=0,
                iteration=int(iteration),
            )


def fresh_samples(cantilever: Cantilever, seed: int) -> Iterator[Sample]:
    """Our own solves: runs and random densities for training, runs that choose, that calibrate, and five that judge."""
    generator = np.random.default_rng(seed)
    for run in range(TRAIN_RUNS):
        length = int(generator.integers(*ITERATIONS))
        iterations = set(np.round(np.geomspace(1, length, STATES + 4) - 1).astype(int).tolist())
        yield from run_samples(cantilever, generator, run, iterations)
    for _ in range(TRAIN_RANDOM):
        w = random_density(cantilever, generator)
        yield Sample(density=w, displacement=cantilever.displacement(w), part=0, origin=TRAINING)
    for run in range(EARLY_RUNS):  # there densities differ most from run to run, so that many starts are needed
        iterations = set(generator.choice(EARLY, EARLY_STATES, replace=False).tolist())
        yield from run_samples(cantilever, generator, run, iterations)
    for part, runs in ((1, CHOOSING_RUNS), (3, CALIBRATING_RUNS)):
        for run in range(runs):  # few states of many runs, early ones as rare as among those that judge
            iterations = set(generator.choice(TEST_ITERATIONS, DRAWN, replace=False).tolist())
            yield from run_samples(cantilever, generator, run, iterations, part)
    judge = np.random.default_rng(seed + 999)
    for number, (kind, optimiser) in enumerate(TEST_RUNS):
        start = first_density(kind, cantilever, optimiser.volume, judge)
        for iteration, (w, u) in zip(range(TEST_ITERATIONS), cantilever.optimise(start, optimiser)):
            if iteration % 4 == 0 or iteration < EARLY:
                yield Sample(density=w, displacement=u, part=2, origin=1 + number, iteration=iteration)


def run_samples(
    cantilever: Cantilever, generator: np.random.Generator, run: int, iterations: set[int], part: int = 0
) -> Iterator[Sample]:
    """Return these iterations of a run with its own optimiser and start.

    Kinds of starts come in turn.
    """
    optimiser = random_optimiser(generator)
    start = first_density(STARTS[run % len(STARTS)], cantilever, optimiser.volume, generator)
    for iteration, (w, u) in zip(range(max(iterations) + 1), cantilever.optimise(start, optimiser)):
        if iteration in iterations:
            yield Sample(density=w, displacement=u, part=part, origin=TRAINING, iteration=iteration)


def random_optimiser(generator: np.random.Generator) -> Optimiser:
    """One of those that training, choosing and calibrating runs take."""
    return Optimiser(
        volume=generator.uniform(0.35, 0.6),
        radius=np.exp(generator.uniform(np.log(0.003), np.log(0.05))),
        move=np.exp(generator.uniform(np.log(0.02), np.log(0.3))),
    )


def read_mesh(raw: Path) -> tuple[Mesh, Cantilever]:
    """Return the shared mesh, and the solver on the same triangles."""
    with raw_arrays(raw, "points", "triangles", "load_fy_nodes") as file:
        points, triangles = file["points"].astype(np.float64), file["triangles"].astype(np.int64)
        load = file["load_fy_nodes"]
    return mesh_of(points, load), Cantilever(points, triangles, load)


def write_store(raw: Path, store: Path, seed: int = 0) -> None:
    """Published and fresh solves as one store."""
    mesh, cantilever = read_mesh(raw)
    write_samples(chain(published_samples(raw), fresh_samples(cantilever, seed)), mesh, store)


def write_samples(samples: Iterable[Sample], mesh: Mesh, store: Path) -> None:
    """Write a store of the samples.

    Samples that do not carry the load neither train nor choose; test parts keep them.
    """
    about = {
        "source": "github lorenzonebolosi/HydraGNN df609217, and fresh solves by scikit-fem",
        "build": rule_of(Densities(files=["cantilever_196.npz"])),
    }
    coarse = coarse_cantilever()
    with StoreWriter(store, FIELDS, dim=0, attributes=about) as writer:
        for sample in samples:
            if sample.part == 2 or carries_load(sample.displacement[None])[0]:
                writer.write(sample_as_graph(sample, mesh, coarse))


def run(data: Path, out: Path, epochs: int | None) -> None:
    """Build the store, three models and their ensemble, and return errors.

    On the published validation part and on fresh runs.
    """
    store = out / "cantilever.h5"
    make_store(store, FIELDS, partial(write_store, data / "cantilever_196.npz"))
    runs = [out / "members" / str(seed) for seed in range(MEMBERS)]
    records = [
        train_recipe("cantilever", store, folder, f"train.seed={seed}", epochs=epochs)
        for seed, folder in enumerate(runs)
    ]
    rows = rows_of(store)
    carrying = {name: row.graphs[row.carries] for name, row in rows.items()}
    if not (out / "ensemble").exists():
        build_ensemble(runs, out / "ensemble", others=subsets(store, {name: carrying[name] for name in COVERED}))
    errors = {
        "one model": relative_errors(hydragnn.load(runs[0]), store, rows),
        "ensemble": relative_errors(hydragnn.load(out / "ensemble"), store, rows),
    }
    figures = [
        figure for name, row in rows.items() for figure in figures_of_row(name, row, errors, simple_errors(store, row))
    ]
    figures += honesty(evaluation_of(out / "ensemble"))
    figures += costs(data / "cantilever_196.npz", store, hydragnn.load(runs[0]))
    show_figures("cantilever", figures, records, out, epochs=epochs)
    hydragnn.report(out / "ensemble", out / "report.html")


def costs(raw: Path, store: Path, model: Ensemble) -> list[Figure]:
    """Return CPU times of coarse solve, one prediction and full solve.

    On published densities.
    """
    densities = [sample.density for sample in islice(published_samples(raw), 10)]
    coarse, (_, full), reader = coarse_cantilever(), read_mesh(raw), open_store(store)
    seconds = {
        "one full solve": cpu_seconds([partial(full.displacement, one) for one in densities]),
        "one coarse solve with its estimated error": cpu_seconds([partial(coarse.solve, one) for one in densities]),
        "one model's prediction": cpu_seconds(
            [partial(model.predict, reader.read([n])) for n in range(len(densities))]
        ),
    }
    solve = seconds["one full solve"]
    return [
        Figure(
            what=f"CPU time of {what}",
            value=1e3 * time,
            unit="ms",
            beside=f"{100 * time / solve:.3g} % of a full solve",
        )
        for what, time in seconds.items()
    ]


def cpu_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median CPU time of these calls, after the first."""
    times = []
    for call in calls:
        start = process_time()
        call()
        times.append(process_time() - start)
    return float(np.median(times[1:]))
