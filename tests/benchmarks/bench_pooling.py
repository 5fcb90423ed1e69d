"""What coarser levels bring at equal CPU time, on a regular grid, a mesh and polycrystals.

    python -m tests.benchmarks.bench_pooling DATA [--seconds N] [--seeds N] [darcy darcy-32 cantilever terfenol]
    python -m tests.benchmarks.bench_pooling steps
    python -m tests.benchmarks.bench_pooling DATA --levels

``DATA`` holds the folders ``darcy``, ``cantilever`` and ``terfenol`` of raw data; ``darcy-32`` are squares of our own. ``steps`` says how long
steps take whose batches make their levels, over those whose store has made them once, ``--levels`` which share of the CPU time of a short run
(SHORT epochs) goes into levels that are made at its start. Every row is one architecture with so many layers, with
and without levels; each trains for so many seconds of CPU time (its epochs are as many as two of them say fit), on one thread. Errors are
those of the held-out part, which chooses nothing: mean over the seeds, and the least and the largest; beside them the trivial
predictor, the mean of the training part. Of grids and meshes it is the relative L2 error, of polycrystals sum |error| / sum |label|.
"""

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.io import read
from numpy.typing import NDArray
from torch import nn

from hydragnn.config import RunConfig
from hydragnn.conformance.cases import small_settings
from hydragnn.datasets import MemoryStore, open_store
from hydragnn.graphs import (
    CLUSTERS,
    Field,
    GraphBatch,
    clusters_field,
    from_ase,
    graph_from_arrays,
    with_contracted_levels,
    with_voxel_levels,
)
from hydragnn.models import TrainedModel, build_model, load_model, parse_head
from hydragnn.runs import train
from hydragnn.scripts.recipes.cantilever import (
    NODE_INPUTS,
    TEST_RUNS,
    inputs_as_graph,
    published_samples,
    read_mesh,
)
from hydragnn.scripts.recipes.judging import carries_load
from hydragnn.scripts.recipes.porous import fresh_square
from hydragnn.scripts.recipes.simp import first_density, random_density
from hydragnn.scripts.recipes.terfenol import TARGETS
from hydragnn.scripts.recipes.terfenol import write_store as write_terfenol
from tests.benchmarks.harness import in_turns

Array = NDArray[np.float64]
PART = Field(name="part", on="graph", classes=3, dtype="int64", role="auxiliary")
LEVELS = 4
SHORT = 10  # epochs
ROUNDS = 65  # steps of each way, of which the first five do not count
SQUARES, SEED = 1000, 32  # of 32 x 32 points
RANDOM, ITERATIONS = 150, 40  # densities drawn for training; length of the runs that judge cantilevers


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Graphs with levels, what is learned from them, and the networks that are compared."""

    store: MemoryStore
    heads: list[dict[str, Any]]
    part: str
    batch: int
    settings: tuple[dict[str, Any], ...]


def neighbours(points: Array, reach: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Senders and receivers of all pairs within ``reach``."""
    from scipy.spatial import cKDTree

    pairs = cKDTree(points).query_pairs(reach, output_type="ndarray")
    return np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])


def grid_points(side: int) -> Array:
    """Points at whole numbers, so many a side."""
    return np.stack(np.divmod(np.arange(side * side), side), axis=1).astype(float)


def on_one_mesh(
    points: Array, reach: float, fields: list[Field], values: Iterator[tuple[dict[str, Any], int]]
) -> MemoryStore:
    """Graphs that differ in what their nodes hold, and share edges and levels."""
    senders, receivers = neighbours(points, reach)
    bare = with_voxel_levels(graph_from_arrays(points, senders, receivers), LEVELS)
    graphs = []
    for nodes, part in values:
        tensors = {name: torch.as_tensor(np.asarray(value), dtype=torch.float32) for name, value in nodes.items()}
        graphs.append(
            bare.with_fields(
                {**tensors, "part": torch.tensor([part]), CLUSTERS: bare[CLUSTERS]},
                fields=[*fields, PART, clusters_field(LEVELS)],
            )
        )
    return MemoryStore(graphs)


def darcy(data: Path, _: Path) -> Problem:
    """Pressure in a porous square of 16 x 16 points: 700 train, 100 choose the epoch, 200 judge."""
    with np.load(data / "darcy" / "darcy_train_16.npz") as file:
        return porous(file["x"], file["y"], {"levels": 3})


def finer_darcy(_: Path, __: Path) -> Problem:
    """The same with fresh squares of 32 x 32 points, and one level more."""
    squares = [fresh_square(32, np.random.default_rng([SEED, number])) for number in range(SQUARES)]
    phases, pressures = zip(*squares)
    return porous(np.stack(phases), np.stack(pressures), {"levels": 4})


def porous(x: NDArray[np.bool_], y: Array, pooling: dict[str, Any]) -> Problem:
    """Pressures ``y`` in squares of phases ``x``: seven in ten train, one chooses the epoch, two judge."""
    count, side = x.shape[:2]
    x, y = x.reshape(count, -1), y.reshape(count, -1)
    points = grid_points(side)
    fields = [
        Field(name="permeability", on="node"),
        Field(name="place", on="node", shape=(2,)),
        Field(name="pressure", on="node", role="target"),
    ]
    values = (
        (
            {"permeability": 2.0 * x[k] - 1, "place": points / (side - 1) - 0.5, "pressure": y[k]},
            int(10 * k >= 7 * count) + int(10 * k >= 8 * count),
        )
        for k in range(count)
    )
    known = {"hidden_dim": 32, "cutoff": 3.0}
    settings = tuple(
        {"kind": kind, **known, **more}
        for kind in ("schnet", "egnn", "pnaplus")
        for more in ({"num_layers": 4}, {"num_layers": 7}, {"num_layers": 7, "pooling": pooling})
    )
    heads = [relative("pressure")]
    return Problem(
        store=on_one_mesh(points, 1.5, fields, values), heads=heads, part="part", batch=16, settings=settings
    )


def cantilever(data: Path, _: Path) -> Problem:
    """Displacement of densities: random ones and a third of the published run train, others of that run choose, two fresh runs judge."""
    raw = data / "cantilever" / "cantilever_196.npz"
    mesh, solver = read_mesh(raw)
    generator = np.random.default_rng(0)

    def samples() -> Iterator[tuple[Array, Array, int]]:
        for _ in range(RANDOM):
            density = random_density(solver, generator)
            yield density, solver.displacement(density), 0
        for number, sample in enumerate(published_samples(raw)):
            if sample.part == 0 and (number % 3 == 0 or number % 10 == 1):
                yield sample.density, sample.displacement, int(number % 3 != 0)
        for kind, optimiser in (TEST_RUNS[1], TEST_RUNS[3]):
            start = first_density(kind, solver, optimiser.volume, generator)
            for iteration, (density, displacement) in zip(range(ITERATIONS), solver.optimise(start, optimiser)):
                if iteration % 2 == 0:
                    yield density, displacement, 2

    def values() -> Iterator[tuple[dict[str, Any], int]]:
        for density, displacement, part in samples():
            if carries_load(displacement[None])[0]:
                inputs = inputs_as_graph(density, mesh).nodes
                yield {**{name: inputs[name] for name in NODE_INPUTS}, "displacement": displacement}, part

    fields = [Field(name=name, on="node") for name in NODE_INPUTS]
    fields.append(Field(name="displacement", on="node", shape=(2,), role="target"))
    store = on_one_mesh(mesh.points, 1.5 * 0.025, fields, values())
    known = {"kind": "gin", "hidden_dim": 16}
    settings = tuple(
        {**known, **more}
        for more in ({"num_layers": 5}, {"num_layers": 9}, {"num_layers": 9, "pooling": {"levels": 4}})
    )
    heads = [relative("displacement")]
    return Problem(store=store, heads=heads, part="part", batch=1, settings=settings)


def terfenol(data: Path, out: Path) -> Problem:
    """Magnetostriction of polycrystals by the contacts of their grains, which have no positions: the first fold of the recipe."""
    write_terfenol(data / "terfenol" / "terfenol_394.npz", out / "terfenol.h5")
    store = open_store(out / "terfenol.h5")
    graphs = [with_contracted_levels(store.read([number]), LEVELS) for number in range(len(store))]
    known = {"kind": "gin", "hidden_dim": 32, "dropout": 0.1}
    settings = tuple(
        {**known, **more}
        for more in ({"num_layers": 2}, {"num_layers": 5}, {"num_layers": 5, "pooling": {"levels": 2}})
    )
    heads = [{"kind": "scalar", "field": name, "pool": "mean", "loss": "mae"} for name in TARGETS]
    return Problem(store=MemoryStore(graphs), heads=heads, part="part_0_0", batch=32, settings=settings)


def relative(field: str) -> dict[str, Any]:
    """A head whose loss is the relative L2 error."""
    return {"kind": "scalar", "field": field, "hidden_dims": [32], "loss": "relative", "graph_scale": True}


PROBLEMS: dict[str, Callable[[Path, Path], Problem]] = {
    "darcy": darcy,
    "darcy-32": finer_darcy,
    "cantilever": cantilever,
    "terfenol": terfenol,
}


def held_out_error(problem: Problem, predicted: Callable[[GraphBatch, str], Array]) -> float:
    """Of the part that chose nothing, in per cent."""
    store = problem.store
    graphs = [g for g in range(len(store)) if int(store.read([g])[problem.part][0]) == 2]
    sums, ratios = np.zeros(2), []
    for number in graphs:
        graph = store.read([number])
        for name in (head["field"] for head in problem.heads):
            if name not in graph.fields or not bool(graph.present(name).all()):
                continue
            label = graph[name].double().numpy()
            error = predicted(graph, name) - label
            ratios.append(float(np.linalg.norm(error) / np.linalg.norm(label)))
            sums += np.abs(error).sum(), np.abs(label).sum()
    of_graphs = problem.heads[0]["field"] in TARGETS
    return 100 * float(sums[0] / sums[1] if of_graphs else np.mean(ratios))


def predicted_mean(model: TrainedModel, graph: GraphBatch, field: str) -> Array:
    """What a model says of one graph."""
    mean: Array = model.predict(graph)[field].mean.double().numpy()
    return mean


def means_of_training(problem: Problem) -> dict[str, Array]:
    """The mean label of the training part: of every node on one mesh, of graphs otherwise."""
    store = problem.store
    known: dict[str, list[Array]] = {head["field"]: [] for head in problem.heads}
    for number in range(len(store)):
        graph = store.read([number])
        for name, values in known.items():
            if int(graph[problem.part][0]) == 0 and name in graph.fields and bool(graph.present(name).all()):
                values.append(graph[name].double().numpy())
    return {name: np.mean(values, axis=0) for name, values in known.items()}


def config_of(problem: Problem, model: dict[str, Any], epochs: int, seed: int) -> RunConfig:
    """One network, trained for so many epochs."""
    return RunConfig.parse(
        {
            "data": {"store": "in memory"},
            "split": {"kind": "given", "field": problem.part},
            "batch": {"max_graphs": problem.batch},
            "model": model,
            "heads": problem.heads,
            "train": {
                "epochs": epochs,
                "seed": seed,
                "learning_rate": 3e-3,
                "weight_decay": 1e-4,
                "warmup_epochs": 0.5,
                "schedule": "cosine",
                "clip_norm": 1.0,
            },
        }
    )


def compare(name: str, options: argparse.Namespace, out: Path) -> None:
    """Print the rows of one problem."""
    problem = PROBLEMS[name](options.data, out)
    means = means_of_training(problem)
    trivial = held_out_error(problem, lambda _, field: means[field])
    print(f"{name}: {len(problem.store)} graphs, trivial {trivial:.1f} %", flush=True)
    for number, model in enumerate(problem.settings):
        errors: list[float] = []
        seconds: list[float] = []
        first = train(config_of(problem, model, 2, 0), out / f"{name}-{number}", store=problem.store)
        epochs = max(2, round(2 * options.seconds / first.cost.cpu_seconds))
        for seed in range(options.seeds):
            folder = out / f"{name}-{number}-{seed}"
            record = train(config_of(problem, model, epochs, seed), folder, store=problem.store)
            seconds.append(record.cost.cpu_seconds)
            errors.append(held_out_error(problem, partial(predicted_mean, load_model(folder / "model"))))
        row = {key: value for key, value in model.items() if key not in ("cutoff", "dropout")}
        spread = f"{np.mean(errors):6.2f} % ({min(errors):.2f} to {max(errors):.2f})"
        print(f"  {row}: {epochs} epochs, {np.mean(seconds):.0f} CPU s: {spread}", flush=True)


def step_times() -> None:
    """Print how long training steps on 16 grids of 16 x 16 points take, reading included, in turns, with 32 channels, seven layers, three levels."""
    points = grid_points(16)
    fields = [Field(name="load", on="node"), Field(name="answer", on="node", role="target")]
    generator = np.random.default_rng(0)
    draws = (({name: generator.normal(size=256) for name in ("load", "answer")}, 0) for _ in range(64))
    store = on_one_mesh(points, 1.5, fields, draws)
    arrays = {name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in store.flat.arrays.items()}
    each = MemoryStore(replace(store.flat, arrays=arrays))
    once = each.with_levels(3)
    for kind, more in (("gin", {}), ("schnet", {"cutoff": 3.0}), ("egnn", {"cutoff": 3.0})):
        settings = small_settings(kind, hidden_dim=32, num_layers=7, pooling={"levels": 3}, **more)
        head = parse_head({"kind": "scalar", "field": "answer", "hidden_dims": [32]})
        known = [*fields, clusters_field(LEVELS)]
        model = build_model(settings, [head], known, inputs=["load", CLUSTERS], dim=2, seed=0)

        def step(store: MemoryStore, model: nn.Module = model) -> None:
            batch = store.read(generator.permutation(64)[:16]).to(dtype=torch.float32)
            model.zero_grad()
            (model(batch)["answer"].mean - batch["answer"]).square().mean().backward()

        turns = in_turns({"each": partial(step, each), "once": partial(step, once)}, ROUNDS - 5, warm_up=5)
        before, after, ratio = *map(turns.milliseconds, ("each", "once")), turns.ratio("each", "once")
        print(f"{kind}: {before:.1f} ms, {after:.1f} ms with levels made once, ratio {ratio:.2f}", flush=True)


def copper(data: Path, _: Path) -> Problem:
    """Energies of copper cells, most of them of 108 atoms, with three levels by contraction."""
    with gzip.open(data / "mlearn" / "Cu_train.extxyz.gz", "rt") as file:
        frames = read(file, ":", format="extxyz")
    energy = Field(name="energy", on="graph", role="target")
    graphs = []
    for number, atoms in enumerate(frames):
        atoms.info["energy"] = atoms.get_potential_energy()
        graph = with_contracted_levels(from_ase(atoms, 4.0, fields=[energy]), 3)
        graphs.append(graph.with_fields({"part": torch.tensor([number % 10 // 9])}, fields=[PART]))
    settings = tuple(
        {"kind": kind, "hidden_dim": 32, "num_layers": 5, "pooling": {"levels": 3}} for kind in ("schnet", "painn")
    )
    return Problem(
        store=MemoryStore(graphs),
        heads=[{"kind": "scalar", "field": "energy", "pool": "sum", "extensive": True}],
        part="part",
        batch=8,
        settings=settings,
    )


def share_of_levels(data: Path, folder: Path) -> None:
    """Print the CPU seconds of short runs that pool, and the share of them in which levels are made."""
    make, spent = MemoryStore.with_levels, 0.0

    def timed(store: MemoryStore, count: int, kinds: Sequence[str] = ()) -> MemoryStore:
        nonlocal spent
        start = time.process_time()
        result = make(store, count, kinds)
        spent += time.process_time() - start
        return result

    MemoryStore.with_levels = timed  # type: ignore[method-assign]
    for name, problem in (("darcy", darcy(data, folder)), ("copper", copper(data, folder))):
        for settings in (one for one in problem.settings if "pooling" in one):
            spent, start = 0.0, time.process_time()
            path = folder / f"{name}-{settings['kind']}"
            train(config_of(problem, settings, SHORT, 0), path, store=problem.store)
            whole = time.process_time() - start
            print(f"{name}, {settings['kind']}: {spent:.2f} of {whole:.1f} s, {spent / whole:.1%}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--levels", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if str(options.data) == "steps":
        return step_times()
    with tempfile.TemporaryDirectory() as folder:
        if options.levels:
            return share_of_levels(options.data, Path(folder))
        for name in options.problems:
            compare(name, options, Path(folder))
    return None


if __name__ == "__main__":
    main()
