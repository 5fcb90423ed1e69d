"""Magnetostriction of Terfenol-D polycrystals at the measured fields: one head per field, split by microstructure."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets import StoreWriter, open_store
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, relation_field, rotation_matrices
from hydragnn.record import RunRecord
from hydragnn.scripts import face
from hydragnn.scripts.recipes.table import Figure, show_figures
from hydragnn.scripts.recipes.training import model_of, predictions, recipe_table, trained

Array = NDArray[np.float64]
FOLDS, SEED = 5, 1234
STRENGTHS = (100, 200, 300, 400, 500, 600, 800, 1000)  # kA/m
TARGETS = tuple(f"magnetostriction_{strength}" for strength in STRENGTHS)
EASY = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]]) / np.sqrt(3)
FIELDS = (
    Field(name="orientation", on="node", shape=(13,)),
    Field(name="size", on="node", shape=(3,)),
    Field(name="log_grains", on="graph"),
    relation_field(1, "contact"),
    *(Field(name=name, on="graph", unit="1e-3", role="target") for name in TARGETS),
    *(Field(name=f"part_{fold}", on="graph", classes=3, dtype="int64", role="auxiliary") for fold in range(FOLDS)),
)


def orientation_of(euler: Array) -> Array:
    """What a cubic crystal knows of the field's direction (the sample's x axis), ``[grains, 13]``.

    The sorted squares of the direction cosines to the cube axes, the sorted cosines to the four easy axes <111> and their
    squares, and the two cubic invariants: equal for all symmetry-equivalent orientations.
    """
    along = rotation_matrices(euler)[:, 0, :]
    squares = np.sort(along**2, axis=1)
    easy = np.sort(np.abs(along @ EASY.T), axis=1)
    x, y, z = (along**2).T
    invariants = np.stack([3 * (x * y + y * z + z * x), 27 * x * y * z], axis=1)
    return np.concatenate([squares, easy, easy**2, invariants], axis=1)


def write_store(raw: Path, store: Path) -> None:
    """The raw npz file as a store of microstructures; a field strength that was not measured is a missing label.

    Fold k tests every fifth microstructure of a random order; one in ten of the others chooses the epoch.
    """
    with np.load(raw, allow_pickle=False) as file:
        grains, contacts = file["n_grains"], file["n_edges"]
        table = np.split(file["euler_size_nnb"].astype(np.float64), np.cumsum(grains)[:-1])
        pairs = np.split(file["edge"].astype(np.int64), np.cumsum(contacts)[:-1])
        strength, strain, owner = file["field_kA_per_m"], 1e3 * file["magnetostriction"], file["graph_index"]
    generator = np.random.default_rng(SEED)
    fold = generator.permutation(len(grains)) % FOLDS
    choosing = generator.random(len(grains)) < 0.1
    source = {"source": "github mehmetfdemirel/PolycrystalGraph 316b3dbc, MIT"}
    with StoreWriter(store, FIELDS, dim=0, attributes=source) as writer:
        for number, (rows, edges) in enumerate(zip(table, pairs)):
            mine = owner == number
            labels = dict(zip((f"magnetostriction_{value:.0f}" for value in strength[mine]), strain[mine]))
            parts = {f"part_{k}": 2 if fold[number] == k else int(choosing[number]) for k in range(FOLDS)}
            writer.write(microstructure(rows, edges, labels, parts, name=f"microstructure {number}"))


def microstructure(
    rows: Array, edges: NDArray[np.int64], labels: dict[str, float], parts: dict[str, int], name: str
) -> GraphBatch:
    """One graph: a node per grain, both directions of every contact, the labels that were measured."""
    size, neighbours = rows[:, 3], rows[:, 4]
    sizes = np.stack([0.5 * np.log(size), np.cbrt(size) / 20, neighbours / 20], axis=1)
    senders, receivers = np.concatenate([edges, edges[:, ::-1]]).T
    present = [field for field in FIELDS if field.role != "target" or field.name in labels]
    graph_values = {"log_grains": np.log(len(rows) / 180.0), **labels, **parts}
    return graph_from_arrays(
        np.zeros((len(rows), 0)),
        senders,
        receivers,
        fields=present,
        nodes={"orientation": orientation_of(rows[:, :3]), "size": sizes},
        edges={"contact": np.zeros(len(senders), dtype=np.int64)},
        graphs={key: np.array([value]) for key, value in graph_values.items()},
        name=name,
    )


def run(data: Path, out: Path, epochs: int | None) -> None:
    """The store, five folds with edges and five without, and their errors over all microstructures."""
    store = out / "terfenol.h5"
    if not store.exists():
        write_store(data / "terfenol_394.npz", store)
    errors: dict[str, list[dict[str, tuple[float, float]]]] = {"edges": [], "no-edges": [], "means": []}
    seconds = 0.0
    for fold in range(FOLDS):
        errors["means"].append(fold_means(store, fold))
        for kind in ("edges", "no-edges"):
            record = _trained_fold(store, out / f"fold-{fold}-{kind}", fold, kind == "edges", epochs)
            errors[kind].append(fold_errors(out / f"fold-{fold}-{kind}", store, fold))
            seconds += record.cost.cpu_seconds if kind == "edges" else 0.0
    show_figures("terfenol", _figures(errors), seconds / 60, out)
    face.report(out / "fold-0-edges", out / "report.html")


def _trained_fold(store: Path, out: Path, fold: int, edges: bool, epochs: int | None) -> RunRecord:
    """One training run; heads are weighed so that the loss is the summed absolute error that is reported."""
    heads = []
    opened = open_store(store)
    train = opened.column(f"part_{fold}").values.reshape(-1) == 0
    for head in recipe_table("terfenol")["heads"]:
        column = opened.column(head["field"])
        values = column.values.reshape(-1)[column.present & train]
        heads.append({**head, "weight": float(len(values) / train.sum() * values.std())})
    choices = (f"split.field=part_{fold}", f"data.edges={str(edges).lower()}", f"train.seed={fold}")
    return trained("terfenol", store, out, *choices, epochs=epochs, heads=heads)


def fold_errors(run: Path, store: Path, fold: int) -> dict[str, tuple[float, float]]:
    """Summed absolute error and summed absolute label of the fold's test part, by target."""
    opened = open_store(store)
    tested = np.flatnonzero(opened.column(f"part_{fold}").values.reshape(-1) == 2)
    said = predictions(model_of(run), store, tested.tolist())
    found = {}
    for name in TARGETS:
        mean, label = (torch.cat([block[name][which] for block in said]).reshape(-1).numpy() for which in (0, 1))
        present = opened.column(name).present[tested]
        found[name] = (float(np.abs(mean - label)[present].sum()), float(np.abs(label)[present].sum()))
    return found


def fold_means(store: Path, fold: int) -> dict[str, tuple[float, float]]:
    """The same for the mean of the training part at each field strength."""
    opened = open_store(store)
    part = opened.column(f"part_{fold}").values.reshape(-1)
    found = {}
    for name in TARGETS:
        column = opened.column(name)
        values = column.values.reshape(-1)
        label = values[column.present & (part == 2)]
        mean = values[column.present & (part != 2)].mean()
        found[name] = (float(np.abs(label - mean).sum()), float(np.abs(label).sum()))
    return found


def relative(errors: list[dict[str, tuple[float, float]]], lowest: int) -> float:
    """Sum of errors over sum of values in per cent, over all folds and field strengths from ``lowest`` kA/m."""
    kept = [fold[name] for fold in errors for name, strength in zip(TARGETS, STRENGTHS) if strength >= lowest]
    return 100 * sum(error for error, _ in kept) / sum(value for _, value in kept)


def _figures(errors: dict[str, list[dict[str, tuple[float, float]]]]) -> list[Figure]:
    figures = []
    for what, lowest, goal in (("all fields", 0, 22.0), ("600 kA/m and more", 600, 9.0), ("1000 kA/m", 1000, 4.5)):
        means = f"field means {relative(errors['means'], lowest):.3g} %"
        beside = means + ("; random forest on texture 22.1 %" if lowest == 0 else "")
        per_fold = [relative([fold], lowest) for fold in errors["edges"]]
        spread = f"folds {min(per_fold):.1f} to {max(per_fold):.1f} %"
        value = relative(errors["edges"], lowest)
        figures.append(
            Figure(what=f"grouped 5-fold CV, {what}", value=value, unit="%", goal=goal, beside=f"{beside}; {spread}")
        )
        alone = relative(errors["no-edges"], lowest)
        figures.append(Figure(what=f"the same without edges, {what}", value=alone, unit="%"))
    return figures
