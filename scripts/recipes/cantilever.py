"""Displacement of cantilevers of changing density: a multilevel relational network on one mesh."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import StoreWriter
from hydragnn.graphs import Field, GraphBatch, direction_bins, multilevel_edges, relation_field
from hydragnn.scripts.recipes.simp import Array, Cantilever, Optimiser, first_density, random_density

SPACING, LEVELS, SECTORS = 0.025, 5, 8
BROKEN = 0.1  # root mean square displacement above which a density does not carry the load
TRAIN_RUNS, TRAIN_RANDOM, CHOOSING_RUNS = 28, 220, 2
TEST_RUNS = (
    (0, Optimiser(volume=0.504, radius=0.005, move=0.05)),
    (0, Optimiser(volume=0.45, radius=0.03, move=0.1)),
    (1, Optimiser(volume=0.5, radius=0.02, move=0.05)),
    (2, Optimiser(volume=0.55, radius=0.012, move=0.1)),
)
NODE_INPUTS = ("density", "stiffness", "log_density", "x", "y", "clamped", "loaded")
ORIGINS = ("published", "fresh run 1", "fresh run 2", "fresh run 3", "fresh run 4", "fresh training")
FIELDS = (
    *(Field(name=name, on="node") for name in NODE_INPUTS),
    relation_field(SECTORS, "direction"),
    relation_field(LEVELS, "level"),
    Field(name="displacement", on="node", shape=(2,), unit="domain heights", role="target"),
    Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary"),
    Field(name="origin", on="graph", classes=len(ORIGINS), dtype="int64", role="auxiliary"),
    Field(name="iteration", on="graph", classes=10_000, dtype="int64", role="auxiliary"),
)


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
    load: Array
    senders: NDArray[np.int64]
    receivers: NDArray[np.int64]
    level: NDArray[np.int64]
    direction: NDArray[np.int64]


def mesh_of(points: Array, load: Array) -> Mesh:
    """The vertices with edges on five levels, each reaching twice as far as the one below; edges sorted by receiver."""
    senders, receivers, level = multilevel_edges(points, SPACING, LEVELS)
    order = np.lexsort((level, receivers))
    senders, receivers, level = senders[order], receivers[order], level[order]
    direction = direction_bins(points[senders] - points[receivers], SECTORS)
    return Mesh(points=points, load=load, senders=senders, receivers=receivers, level=level, direction=direction)


def sample_as_graph(sample: Sample, mesh: Mesh) -> GraphBatch:
    """One sample as a graph; coordinates are inputs, because clamp and load break every symmetry."""
    nodes, edges, (x, y) = len(mesh.points), len(mesh.senders), mesh.points.T
    w = sample.density
    columns = (2 * w - 1, 2 * w**3 - 0.5, np.log(np.maximum(w, 1e-3)) / 3 + 0.5, x, y, x < 1e-6, mesh.load != 0)
    inputs = {name: torch.tensor(column, dtype=torch.float32) for name, column in zip(NODE_INPUTS, columns)}
    labels = {"part": sample.part, "origin": sample.origin, "iteration": sample.iteration}
    return GraphBatch(
        positions=torch.zeros(nodes, 0, dtype=torch.float64),
        senders=torch.from_numpy(mesh.senders),
        receivers=torch.from_numpy(mesh.receivers),
        edge_shifts=torch.zeros(edges, 0, dtype=torch.float64),
        cell=torch.zeros(1, 3, 3, dtype=torch.float64),
        periodic=torch.zeros(1, 3, dtype=torch.bool),
        node_offsets=torch.tensor([0, nodes]),
        edge_offsets=torch.tensor([0, edges]),
        fields={field.name: field for field in FIELDS},
        nodes={**inputs, "displacement": torch.tensor(sample.displacement, dtype=torch.float32)},
        edges={"direction": torch.from_numpy(mesh.direction), "level": torch.from_numpy(mesh.level)},
        graphs={name: torch.tensor([value]) for name, value in labels.items()},
    )


def published_samples(raw: Path) -> Iterator[Sample]:
    """The published solves: training rows train, validation rows judge."""
    with np.load(raw, allow_pickle=False) as file:
        for w, u, validation, (_, iteration) in zip(file["w"], file["u"], file["is_validation"], file["run_iter"]):
            yield Sample(
                density=w.astype(np.float64),
                displacement=u,
                part=2 * int(validation),
                origin=0,
                iteration=int(iteration),
            )


def fresh_samples(cantilever: Cantilever, seed: int) -> Iterator[Sample]:
    """Our own solves: optimiser runs and random densities for training, two runs that choose, four runs that judge."""
    generator = np.random.default_rng(seed)
    for run in range(TRAIN_RUNS + CHOOSING_RUNS):
        optimiser = Optimiser(
            volume=generator.uniform(0.35, 0.6),
            radius=generator.choice([0.005, 0.012, 0.02, 0.03, 0.05]),
            move=generator.choice([0.03, 0.05, 0.1, 0.2]),
        )
        length = int(generator.integers(20, 70))
        kept = set(np.round(np.geomspace(1, length, 24) - 1).astype(int).tolist())
        start = first_density(run % 3, cantilever, optimiser.volume, generator)
        for iteration, (w, u) in zip(range(length), cantilever.optimised(start, optimiser)):
            if iteration in kept:
                part = int(run >= TRAIN_RUNS)
                yield Sample(density=w, displacement=u, part=part, origin=5, iteration=iteration)
    for _ in range(TRAIN_RANDOM):
        w = random_density(cantilever, generator)
        yield Sample(density=w, displacement=cantilever.displacement(w), part=0, origin=5)
    judge = np.random.default_rng(seed + 999)
    for number, (kind, optimiser) in enumerate(TEST_RUNS):
        start = first_density(kind, cantilever, optimiser.volume, judge)
        for iteration, (w, u) in zip(range(80), cantilever.optimised(start, optimiser)):
            if iteration % 4 == 0:
                yield Sample(density=w, displacement=u, part=2, origin=1 + number, iteration=iteration)


def write_store(raw: Path, store: Path, seed: int = 0) -> None:
    """Published and fresh solves as one store; densities that do not carry the load are left out, published or not."""
    with np.load(raw, allow_pickle=False) as file:
        points, triangles = file["points"].astype(np.float64), file["triangles"].astype(np.int64)
        load = file["load_fy_nodes"]
    mesh, cantilever = mesh_of(points, load), Cantilever(points, triangles, load)
    about = {"source": "github lorenzonebolosi/HydraGNN df609217, and fresh solves by scikit-fem"}
    with StoreWriter(store, FIELDS, dim=0, attributes=about) as writer:
        for samples in (published_samples(raw), fresh_samples(cantilever, seed)):
            for sample in samples:
                if np.sqrt(np.square(sample.displacement).sum(axis=1).mean()) < BROKEN or sample.part == 2:
                    writer.write(sample_as_graph(sample, mesh))
