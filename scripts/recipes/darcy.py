"""Darcy flow: pressure in a porous square, from permeability and a coarse solve.

Layers work on the grid and on coarser levels of it.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, StoreWriter, find_files, open_store, rule_of
from hydragnn.datasets.sources.table_files import read_npz
from hydragnn.ensemble import Ensemble, NumberEstimate, build_ensemble
from hydragnn.graphs import (
    CLUSTERS,
    Field,
    GraphBatch,
    clusters_field,
    concatenate,
    graph_from_arrays,
    with_voxel_levels,
)
from hydragnn.scripts.recipes.porous import fresh_square, places, pressure
from hydragnn.scripts.recipes.raw import array_like, raw_arrays
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import BLOCK, make_store, train_recipe

Array = NDArray[np.float64]
MEMBERS = 2
RAW = "darcy_train_16.npz"
POINTS, LEVELS = 16, 3
TRAINING, VALID, CALIBRATION = 700, 40, 60  # of the file's first 800 fields; the last 200 judge
FRESH, SEED = 8000, 7  # squares of our own that train beside the published ones
FINER, UNSEEN = 32, 200  # points a side, and squares of our own, on which the model is asked without training for them
GOAL = 4.0
INPUTS = (
    Field(name="permeability", on="node"),
    Field(name="place", on="node", shape=(2,)),
    Field(name="coarse_pressure", on="node"),
    clusters_field(LEVELS),
)
FIELDS = (
    *INPUTS,
    Field(name="pressure", on="node", role="target"),
    Field(name="part", on="graph", classes=4, dtype="int64", role="auxiliary"),
)


class Darcy(OwnBuild):
    """Permeabilities in npz files: ``x`` [fields, 16, 16], where True is one of the two phases."""

    kind: str = "hydragnn.scripts.recipes.darcy:Darcy"

    def graphs(self) -> Iterator[Make]:
        """One graph per field without its pressure; InputError where a file has other arrays."""
        grid = grid_of(POINTS)
        for path in find_files(self.files):
            for field in array_like(read_npz(path), "x", ("fields", POINTS, POINTS), path, kinds="b"):
                yield partial(field_as_graph, grid, field)


def grid_of(points: int) -> GraphBatch:
    """Return a square grid with eight neighbours per point, and its levels.

    Levels are voxels of 2, 4 and 8 points a side.
    """
    row, column = np.divmod(np.arange(points**2), points)
    near = (np.abs(row[:, None] - row) <= 1) & (np.abs(column[:, None] - column) <= 1)
    senders, receivers = np.nonzero(near & ~np.eye(points**2, dtype=bool))
    positions = np.stack([row, column], axis=1).astype(np.float64)
    return with_voxel_levels(graph_from_arrays(positions, senders, receivers), LEVELS, side=2.0)


def field_as_graph(grid: GraphBatch, field: NDArray[np.bool_]) -> GraphBatch:
    """Return a graph of a permeability and the pressure of a solve.

    The pressure lies on the points of the solve alone; the boundary is known by place.
    """
    values = {
        "permeability": torch.from_numpy(2.0 * field.reshape(-1) - 1).float(),
        "place": torch.from_numpy(places(len(field))[grid.positions.long()] - 0.5).float(),
        "coarse_pressure": torch.from_numpy(pressure(field).reshape(-1)).float(),
        CLUSTERS: grid[CLUSTERS],
    }
    return grid.with_fields(values, fields=INPUTS)


def write_store(raw: Path, store: Path) -> None:
    """Write the fields with their pressures into a store.

    Fields of training come a second time with rows and columns exchanged; fresh ones come last.
    """
    with raw_arrays(raw, "x", "y") as file:
        arrays = {name: file[name] for name in ("x", "y")}
        fields = array_like(arrays, "x", ("fields", POINTS, POINTS), raw, kinds="b")
        pressures = array_like(arrays, "y", (len(fields), POINTS, POINTS), raw)
    parts = parts_of(len(fields))
    mirrored = np.flatnonzero(parts == 0)  # a problem as good: one source everywhere, sampled alike both ways
    fields = np.concatenate([fields, fields[mirrored].swapaxes(1, 2)])
    pressures = np.concatenate([pressures, pressures[mirrored].swapaxes(1, 2)])
    parts = np.concatenate([parts, np.zeros(len(mirrored) + FRESH, dtype=np.int64)])
    fresh = (fresh_square(POINTS, np.random.default_rng([SEED, number])) for number in range(FRESH))
    about = {
        "source": "github neuraloperator/neuraloperator, MIT, and fresh solves by finite volumes",
        "build": rule_of(Darcy(files=[RAW])),
    }
    grid = grid_of(POINTS)
    with StoreWriter(store, FIELDS, dim=2, attributes=about) as writer:
        for (field, label), part in zip(chain(zip(fields, pressures), fresh), parts):
            labels = {"pressure": torch.from_numpy(label.reshape(-1)).float(), "part": torch.tensor([int(part)])}
            writer.write(field_as_graph(grid, field).with_fields(labels, fields=FIELDS[-2:]))


def parts_of(count: int) -> NDArray[np.int64]:
    """Return the part of every field, in the order of the file.

    0 trains, 1 chooses the epoch, 3 calibrates, 2 tests.
    """
    used = TRAINING + VALID + CALIBRATION
    if count <= used:
        raise InputError(f"{count} fields leave none to judge after {used}; fetch the published file again")
    return np.repeat([0, 1, 3, 2], [TRAINING, VALID, CALIBRATION, count - used])


def run(data: Path, out: Path, epochs: int | None) -> None:
    """The store, members and their ensemble, and relative errors of the fields that judge."""
    store = out / "darcy.h5"
    make_store(store, FIELDS, partial(write_store, data / RAW))
    runs = [out / "members" / str(seed) for seed in range(MEMBERS)]
    records = [
        train_recipe("darcy", store, folder, f"train.seed={seed}", epochs=epochs) for seed, folder in enumerate(runs)
    ]
    ensemble = out / "ensemble"
    if not ensemble.exists():
        build_ensemble(runs, ensemble)
    simple = "; ".join(f"{name} {error:.3g} %" for name, error in simple_errors(store).items())
    figures = []
    for what, folder, goal in (("one model", runs[0], GOAL), (f"{MEMBERS} members", ensemble, None)):
        errors = relative_errors(hydragnn.load(folder), store)
        beside = f"{simple}; worst field {errors.max():.3g} %"
        text = f"mean relative L2 of the pressure, {what}"
        figures.append(Figure(what=text, value=float(errors.mean()), unit="%", goal=goal, beside=beside))
    figures += finer_figures(hydragnn.load(runs[0]))
    coverage = evaluation_of(ensemble)["parts"]["test"]["pressure"]["ensemble"]["coverage"]
    figures.append(Figure(what="pressure inside 90 % intervals", value=100 * coverage, unit="%"))
    show_figures("darcy", figures, records, out, epochs=epochs)
    hydragnn.report(ensemble, out / "report.html")


def relative_errors(ensemble: Ensemble, store: Path) -> Array:
    """Per cent relative L2 error of every field that judges."""
    reader = open_store(store)
    graphs = np.flatnonzero(reader.column("part").values.reshape(-1) == 2)
    errors = []
    for block in np.array_split(graphs, -(-len(graphs) // BLOCK)):
        batch = reader.read(block)
        predicted = ensemble.predict(batch)["pressure"]
        assert isinstance(predicted, NumberEstimate)
        labels = batch["pressure"].double().numpy().reshape(len(block), -1)
        errors.append(relative_l2(predicted.mean.reshape(len(block), -1), labels))
    return np.concatenate(errors)


def finer_figures(model: Ensemble) -> list[Figure]:
    """Return errors on fresh squares, on points of training and finer ones.

    No training saw the finer points. Errors of the solve on the same points stand beside both, and beside the finer ones also
    those of predictions on the points of training, interpolated.
    """
    generators = [np.random.default_rng([SEED + 1, number]) for number in range(UNSEEN)]
    fields, labels = (
        np.stack(arrays) for arrays in zip(*(fresh_square(FINER, one) for one in generators), strict=True)
    )
    every = FINER // POINTS  # the points of training are some of the finer ones
    coarse_fields, coarse_labels = (array[:, ::every, ::every] for array in (fields, labels))
    predicted, solved = pressures_of(model, fields)
    coarse_said, coarse_solved = pressures_of(model, coarse_fields)
    between = np.stack([interpolated(one, FINER) for one in coarse_said])
    text = "one model, fresh squares on {0} x {0} points"
    coarse_beside = f"coarse solve {_mean_error(coarse_solved, coarse_labels):.3g} %"
    beside = f"solve on these points {_mean_error(solved, labels):.3g} %; {POINTS} x {POINTS} interpolated {_mean_error(between, labels):.3g} %"
    return [
        Figure(what=text.format(POINTS), value=_mean_error(coarse_said, coarse_labels), unit="%", beside=coarse_beside),
        Figure(what=text.format(FINER), value=_mean_error(predicted, labels), unit="%", beside=beside),
    ]


def pressures_of(model: Ensemble, fields: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return pressures of the model and of the solve, ``[fields, points, points]``."""
    grid, predicted, solved = grid_of(fields.shape[1]), [], []
    for block in np.array_split(fields, -(-len(fields) // BLOCK)):
        batch = concatenate([field_as_graph(grid, field) for field in block])
        estimate = model.predict(batch)["pressure"]
        assert isinstance(estimate, NumberEstimate)
        predicted.append(estimate.mean.reshape(block.shape))
        solved.append(batch["coarse_pressure"].double().numpy().reshape(block.shape))
    return np.concatenate(predicted), np.concatenate(solved)


def interpolated(values: Array, points: int) -> Array:
    """Return pressures at more points a side, by bilinear interpolation.

    The pressure at walls is zero.

    >>> interpolated(np.ones((2, 2)), 4)[1].round(2).tolist()
    [1.0, 1.0, 1.0, 0.5]
    """
    axis = np.concatenate([[0.0], places(len(values)), [1.0]])
    return RegularGridInterpolator((axis, axis), np.pad(values, 1))(
        np.stack(np.meshgrid(*2 * [places(points)], indexing="ij"), axis=-1)
    )


def _mean_error(pressures: Array, labels: Array) -> float:
    return float(relative_l2(pressures.reshape(len(labels), -1), labels.reshape(len(labels), -1)).mean())


def simple_errors(store: Path) -> dict[str, float]:
    """Return mean errors of simple predictors.

    The mean pressure of training, the coarse solve, and the solve times one number fitted to training.
    """
    reader = open_store(store)
    part = reader.column("part").values.reshape(-1)
    labels, coarse = (
        reader.column(name).values.reshape(len(part), -1).astype(np.float64) for name in ("pressure", "coarse_pressure")
    )
    trained, held_out = part == 0, part == 2
    factor = np.vdot(coarse[trained], labels[trained]) / np.vdot(coarse[trained], coarse[trained])
    predicted = {
        "mean field": labels[trained].mean(axis=0),
        "coarse solve": coarse[held_out],
        f"coarse solve times {factor:.3f}": factor * coarse[held_out],
    }
    return {name: float(relative_l2(mean, labels[held_out]).mean()) for name, mean in predicted.items()}


def relative_l2(mean: Array, labels: Array) -> Array:
    """Per cent |mean - label| / |label| of every field."""
    errors: Array = 100 * np.linalg.norm(mean - labels, axis=1) / np.linalg.norm(labels, axis=1)
    return errors
