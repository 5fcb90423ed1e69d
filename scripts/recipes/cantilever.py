"""Displacement of cantilevers of changing density: a multilevel relational network on one mesh."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import Make, OwnBuild, StoreWriter, find_files, open_store, rule_of
from hydragnn.datasets.tables import read_npz
from hydragnn.errors import InputError
from hydragnn.graphs import Field, GraphBatch, Topology, direction_bins, multilevel_edges, relation_field
from hydragnn.scripts import api
from hydragnn.scripts.recipes.raw import array_like, raw_arrays
from hydragnn.scripts.recipes.simp import Array, Cantilever, Optimiser, first_density, random_density
from hydragnn.scripts.recipes.table import Figure, show_figures
from hydragnn.scripts.recipes.training import model_of, predictions, train_recipe

SPACING, LEVELS, SECTORS = 0.025, 5, 8
ROWS, COLUMNS = 41, 121  # vertices of the published mesh
BROKEN = 0.1  # root mean square displacement above which a density does not carry the load
TRAIN_RUNS, CHOOSING_RUNS, TRAIN_RANDOM = 40, 4, 150
STARTS = (0, 0, 1, 2)  # of the runs, in turn; see first_density
STATES, ITERATIONS = 20, (20, 90)  # kept per run, closer together at its start; length of a run
TEST_RUNS = (
    (0, Optimiser(volume=0.5, radius=0.003, move=0.2)),
    (0, Optimiser(volume=0.504, radius=0.005, move=0.05)),
    (0, Optimiser(volume=0.45, radius=0.03, move=0.1)),
    (1, Optimiser(volume=0.5, radius=0.02, move=0.05)),
    (2, Optimiser(volume=0.55, radius=0.012, move=0.1)),
)
NODE_INPUTS = ("density", "stiffness", "log_density", "x", "y", "clamped", "loaded")
ORIGINS = ("published", "fresh run 1", "fresh run 2", "fresh run 3", "fresh run 4", "fresh run 5", "fresh training")
HELD_OUT, TRAINING = range(len(ORIGINS) - 1), len(ORIGINS) - 1
INPUTS = (
    *(Field(name=name, on="node") for name in NODE_INPUTS),
    relation_field(SECTORS, "direction"),
    relation_field(LEVELS, "level"),
)
LABELS = (
    Field(name="displacement", on="node", shape=(2,), unit="domain heights", role="target"),
    Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary"),
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
    """What all samples share."""

    points: Array
    load: NDArray[Any]
    senders: NDArray[np.int64]
    receivers: NDArray[np.int64]
    level: NDArray[np.int64]
    direction: NDArray[np.int64]


def mesh_of(points: Array, load: NDArray[Any]) -> Mesh:
    """The vertices with edges on five levels, each reaching twice as far as the one below; edges sorted by receiver."""
    senders, receivers, level = multilevel_edges(points, SPACING, LEVELS)
    order = np.lexsort((level, receivers))
    senders, receivers, level = senders[order], receivers[order], level[order]
    direction = direction_bins(points[senders] - points[receivers], SECTORS)
    return Mesh(points=points, load=load, senders=senders, receivers=receivers, level=level, direction=direction)


class Densities(OwnBuild):
    """Densities in npz files: ``w`` [densities, nodes] on the published mesh; ``points`` and ``load_fy_nodes``, where they are, have to be its."""

    kind: str = "hydragnn.scripts.recipes.cantilever:Densities"

    def graphs(self) -> Iterator[Make]:
        """One graph per density without displacement; InputError where a file has other arrays or another mesh."""
        points, loaded = published_points()
        mesh = mesh_of(points, loaded)
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
                yield partial(density_as_graph, density, mesh, f"{path.name}, density {number}")


def published_points() -> tuple[Array, NDArray[np.bool_]]:
    """The vertices of the published mesh, row by row, and where its load acts: the middle tenth of the right side."""
    row, column = np.divmod(np.arange(ROWS * COLUMNS), COLUMNS)
    points = np.stack([column * SPACING, row * SPACING], axis=1).astype(np.float32).astype(np.float64)
    return points, (column == COLUMNS - 1) & (np.abs(points[:, 1] - 0.5) < 0.05 + 1e-6)


def density_as_graph(density: Array, mesh: Mesh, name: str) -> GraphBatch:
    """One density as a graph without labels; InputError where it is no density."""
    wrong = np.flatnonzero(~((density >= 0) & (density <= 1 + 1e-6)))
    if len(wrong):
        raise InputError(f"{name}: w is {density[wrong[0]]:g} at node {wrong[0]}; a density lies between 0 and 1")
    return inputs_as_graph(density, mesh)


def inputs_as_graph(density: Array, mesh: Mesh) -> GraphBatch:
    """A nodal density as a graph; coordinates are inputs, because clamp and load break every symmetry."""
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
        fields={field.name: field for field in INPUTS},
        nodes=inputs,
        edges={"direction": torch.from_numpy(mesh.direction), "level": torch.from_numpy(mesh.level)},
        graphs={},
    )


def sample_as_graph(sample: Sample, mesh: Mesh) -> GraphBatch:
    """One sample as a graph with its labels."""
    values = {
        "displacement": torch.tensor(sample.displacement, dtype=torch.float32),
        "part": torch.tensor([sample.part]),
        "origin": torch.tensor([sample.origin]),
        "iteration": torch.tensor([sample.iteration]),
    }
    return inputs_as_graph(sample.density, mesh).with_fields(values, fields=LABELS)


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
    """Our own solves: optimiser runs and random densities for training, four runs that choose, five runs that judge."""
    generator = np.random.default_rng(seed)
    for run in range(TRAIN_RUNS + CHOOSING_RUNS):
        optimiser = Optimiser(
            volume=generator.uniform(0.35, 0.6),
            radius=np.exp(generator.uniform(np.log(0.003), np.log(0.05))),
            move=np.exp(generator.uniform(np.log(0.02), np.log(0.3))),
        )
        length = int(generator.integers(*ITERATIONS))
        iterations = set(np.round(np.geomspace(1, length, STATES + 4) - 1).astype(int).tolist())
        start = first_density(STARTS[run % len(STARTS)], cantilever, optimiser.volume, generator)
        for iteration, (w, u) in zip(range(length), cantilever.optimise(start, optimiser)):
            if iteration in iterations:
                part = int(run >= TRAIN_RUNS)
                yield Sample(density=w, displacement=u, part=part, origin=TRAINING, iteration=iteration)
    for _ in range(TRAIN_RANDOM):
        w = random_density(cantilever, generator)
        yield Sample(density=w, displacement=cantilever.displacement(w), part=0, origin=TRAINING)
    judge = np.random.default_rng(seed + 999)
    for number, (kind, optimiser) in enumerate(TEST_RUNS):
        start = first_density(kind, cantilever, optimiser.volume, judge)
        for iteration, (w, u) in zip(range(80), cantilever.optimise(start, optimiser)):
            if iteration % 4 == 0:
                yield Sample(density=w, displacement=u, part=2, origin=1 + number, iteration=iteration)


def read_mesh(raw: Path) -> tuple[Mesh, Cantilever]:
    """What all samples share, and the solver on the same triangles."""
    with raw_arrays(raw, "points", "triangles", "load_fy_nodes") as file:
        points, triangles = file["points"].astype(np.float64), file["triangles"].astype(np.int64)
        load = file["load_fy_nodes"]
    return mesh_of(points, load), Cantilever(points, triangles, load)


def write_store(raw: Path, store: Path, seed: int = 0) -> None:
    """Published and fresh solves as one store."""
    mesh, cantilever = read_mesh(raw)
    write_samples(chain(published_samples(raw), fresh_samples(cantilever, seed)), mesh, store)


def write_samples(samples: Iterable[Sample], mesh: Mesh, store: Path) -> None:
    """A store of the samples; those that do not carry the load neither train nor choose, but stay where they judge."""
    about = {
        "source": "github lorenzonebolosi/HydraGNN df609217, and fresh solves by scikit-fem",
        "build": rule_of(Densities(files=["cantilever_196.npz"])),
    }
    with StoreWriter(store, FIELDS, dim=0, attributes=about) as writer:
        for sample in samples:
            if sample.part == 2 or np.sqrt(np.square(sample.displacement).sum(axis=1).mean()) < BROKEN:
                writer.write(sample_as_graph(sample, mesh))


def run(data: Path, out: Path, epochs: int | None) -> None:
    """The store, one model, and its relative errors on the published validation part and on five fresh optimiser runs."""
    store = out / "cantilever.h5"
    if not store.exists():
        write_store(data / "cantilever_196.npz", store)
    record = train_recipe("cantilever", store, out / "run", epochs=epochs)
    errors = relative_errors(out / "run", store)
    simple = mean_and_copy(store)
    held_out = held_out_by_origin(store)
    figures = []
    for number in HELD_OUT:
        beside = f"worst density {errors[number].max():.3g} %; mean field {simple['mean'][number]:.3g} %"
        if number:
            beside += f", same iteration of the published run {simple['copy'][number]:.3g} %"
        if broken := len(held_out[number]) - len(errors[number]):
            beside += f"; {broken} densities that do not carry the load left out"
        name = "published validation part" if number == 0 else ORIGINS[number]
        what = f"{name}: mean relative L2 of the displacement"
        goal = 6.0 if number else 3.0
        figures.append(Figure(what=what, value=float(errors[number].mean()), unit="%", goal=goal, beside=beside))
    fresh = float(np.concatenate([errors[number] for number in HELD_OUT if number]).mean())
    figures.append(Figure(what="all fresh runs together", value=fresh, unit="%", goal=6.0))
    show_figures("cantilever", figures, record.cost.cpu_seconds / 60, out)
    api.report(out / "run", out / "report.html")


def held_out_by_origin(store: Path) -> dict[int, NDArray[np.int64]]:
    """Graphs of the test part, by where they come from."""
    reader = open_store(store)
    part, origin = (reader.column(name).values.reshape(-1) for name in ("part", "origin"))
    return {number: np.flatnonzero((part == 2) & (origin == number)) for number in HELD_OUT}


def relative_errors(run: Path, store: Path) -> dict[int, Array]:
    """Per cent relative L2 error of every tested graph, by origin; a density that does not carry the load is left out."""
    model, nodes = model_of(run), int(open_store(store).sizes().nodes[0])
    result = {}
    for number, graphs in held_out_by_origin(store).items():
        blocks = predictions(model, store, graphs.tolist())
        rows = [
            torch.cat([block["displacement"][which] for block in blocks]).reshape(-1, nodes * 2) for which in (0, 1)
        ]
        mean, label = (row.numpy() for row in rows)
        result[number] = _relative(mean, label)[_carries(label)]
    return result


def mean_and_copy(store: Path) -> dict[str, dict[int, float]]:
    """Two simple predictors: the mean displacement of training, and the published displacement of the same iteration."""
    reader = open_store(store)
    nodes = int(reader.sizes().nodes[0])
    part, origin, iteration = (reader.column(name).values.reshape(-1) for name in ("part", "origin", "iteration"))
    fields = reader.column("displacement").values.reshape(len(reader), nodes * 2).astype(np.float64)
    mean = fields[(part == 0) & (origin == 0)].mean(axis=0)
    published = np.flatnonzero(origin == 0)
    result: dict[str, dict[int, float]] = {"mean": {}, "copy": {}}
    for number, graphs in held_out_by_origin(store).items():
        label = fields[graphs]
        keep = _carries(label)
        nearest = published[np.abs(iteration[published] - iteration[graphs][:, None]).argmin(axis=1)]
        result["mean"][number] = float(_relative(mean[None], label)[keep].mean())
        result["copy"][number] = float(_relative(fields[nearest], label)[keep].mean())
    return result


def _relative(mean: Array, label: Array) -> Array:
    return 100 * np.linalg.norm(mean - label, axis=1) / np.linalg.norm(label, axis=1)


def _carries(label: Array) -> NDArray[np.bool_]:
    return np.sqrt(2 * np.square(label).mean(axis=1)) < BROKEN
