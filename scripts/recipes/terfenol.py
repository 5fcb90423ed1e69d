"""Magnetostriction of Terfenol-D polycrystals at the measured fields: one head per field, split by microstructure.

Every fold is predicted by the average of five models; member m leaves another tenth of the fold's training
microstructures out of training, and these choose its epoch. What one model does is told beside it, and what a random
forest does that sees the texture and no graph. All members with edges together are one ensemble by cross-validation.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import Make, OwnBuild, StoreWriter, find_files, open_store, rule_of
from hydragnn.datasets.sources.table_files import read_npz
from hydragnn.ensemble import build_ensemble
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays, relation_field, rotation_matrices
from hydragnn.record import RunRecord
from hydragnn.scripts.recipes.raw import pieces, raw_arrays
from hydragnn.scripts.recipes.table import Figure, evaluation_of, show_figures
from hydragnn.scripts.recipes.training import model_of, predictions, recipe_table, train_recipe

Array = NDArray[np.float64]
FOLDS, MEMBERS, TENTHS, SEED = 5, 5, 10, 1234
RANGES = (("all fields", 0, 22.0), ("600 kA/m and more", 600, 9.0), ("1000 kA/m", 1000, 4.5))
SHARP = 0.9  # texture index from which a polycrystal is nearly one crystal
STRENGTHS = (100, 200, 300, 400, 500, 600, 800, 1000)  # kA/m
TARGETS = tuple(f"magnetostriction_{strength}" for strength in STRENGTHS)
EASY = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]]) / np.sqrt(3)


def part_name(fold: int, member: int) -> str:
    """Return the graph field with the part for a member of a fold.

    Its values train, choose or test.
    """
    return f"part_{fold}_{member}"


FIELDS = (
    Field(name="orientation", on="node", shape=(13,)),
    Field(name="size", on="node", shape=(3,)),
    Field(name="log_grains", on="graph"),
    relation_field(1, "contact"),
    *(Field(name=name, on="graph", unit="1e-3", role="target") for name in TARGETS),
    Field(name="texture_index", on="graph", role="auxiliary"),
    *(
        Field(name=part_name(fold, member), on="graph", classes=3, dtype="int64", role="auxiliary")
        for fold in range(FOLDS)
        for member in range(MEMBERS)
    ),
)
Sums = dict[str, tuple[Array, Array]]  # absolute errors and absolute labels of each target


def orientation_of(euler: Array) -> Array:
    """Return features of crystals along the field (the x axis), ``[grains, 13]``.

    The sorted squares of the direction cosines to the cube axes, the sorted cosines to the four easy axes <111> and their
    squares, and the two cubic invariants: equal for all symmetry-equivalent orientations.
    """
    along = rotation_matrices(euler)[:, 0, :]
    squares = np.sort(along**2, axis=1)
    easy = np.sort(np.abs(along @ EASY.T), axis=1)
    x, y, z = (along**2).T
    invariants = np.stack([3 * (x * y + y * z + z * x), 27 * x * y * z], axis=1)
    return np.concatenate([squares, easy, easy**2, invariants], axis=1)


def texture_index(euler: Array, volumes: Array) -> float:
    """Return the order of easy axes: 0 random, 1 a single crystal.

    Norm of the volume mean of the fourth-order tensor of <111>, less that of the isotropic mean; 1 for one crystal.
    """
    axes = np.einsum("gsc,vc->gvs", rotation_matrices(euler), EASY)
    tensors = np.einsum("gva,gvb,gvc,gvd->gabcd", axes, axes, axes, axes)
    one = np.eye(3)
    pairs = sum(np.einsum(f"{pattern}->abcd", one, one) for pattern in ("ab,cd", "ac,bd", "ad,bc"))
    mean = np.tensordot(volumes / volumes.sum(), tensors - 4 / 15 * pairs, axes=1)
    return float(np.linalg.norm(mean) / np.linalg.norm((tensors - 4 / 15 * pairs)[0]))


class Terfenol(OwnBuild):
    """Microstructures in npz files: ``n_grains``, ``n_edges``, and end to end ``euler_size_nnb`` [grains, 5] and ``edge`` [contacts, 2]."""

    kind: str = "hydragnn.scripts.recipes.terfenol:Terfenol"

    def graphs(self) -> Iterator[Make]:
        """One graph per microstructure without labels; InputError where a file has other arrays."""
        for path in find_files(self.files):
            table = read_npz(path)
            rows = pieces(table, "euler_size_nnb", ("grains", 5), "n_grains", path)
            pairs = pieces(table, "edge", ("contacts", 2), "n_edges", path, kinds="iu")
            if len(rows) != len(pairs):
                raise InputError(
                    f"{path}: n_grains counts {len(rows)} microstructures, n_edges {len(pairs)}; make them one"
                )
            for number, (grains, contacts) in enumerate(zip(rows, pairs)):
                name = f"{path.name}, microstructure {number}"
                yield partial(microstructure, grains.astype(np.float64), contacts.astype(np.int64), {}, {}, name)


def write_store(raw: Path, store: Path) -> None:
    """Build a store of microstructures from the raw npz file.

    A field strength that was not measured is a missing label.

    Fold k judges every fifth microstructure of a random order.
    """
    with raw_arrays(raw, "n_grains", "n_edges", "euler_size_nnb", "edge", "graph_index") as file:
        grains, contacts = file["n_grains"], file["n_edges"]
        table = np.split(file["euler_size_nnb"].astype(np.float64), np.cumsum(grains)[:-1])
        pairs = np.split(file["edge"].astype(np.int64), np.cumsum(contacts)[:-1])
        strength, strain, owner = file["field_kA_per_m"], 1e3 * file["magnetostriction"], file["graph_index"]
    rank = np.random.default_rng(SEED).permutation(len(grains))
    source = {
        "source": "github mehmetfdemirel/PolycrystalGraph 316b3dbc, MIT",
        "build": rule_of(Terfenol(files=[raw.name])),
    }
    with StoreWriter(store, FIELDS, dim=0, attributes=source) as writer:
        for number, (rows, edges) in enumerate(zip(table, pairs)):
            mine = owner == number
            labels = dict(zip((f"magnetostriction_{value:.0f}" for value in strength[mine]), strain[mine]))
            writer.write(
                microstructure(rows, edges, labels, parts_of(int(rank[number])), name=f"microstructure {number}")
            )


def parts_of(rank: int) -> dict[str, int]:
    """Return a microstructure's part for every member of every fold.

    0 trains, 1 chooses the epoch, 2 tests.

    >>> parts = parts_of(rank=11)
    >>> parts["part_1_0"], parts["part_0_2"], parts["part_0_3"]
    (2, 1, 0)
    """
    fold, tenth = rank % FOLDS, rank // FOLDS % TENTHS
    return {
        part_name(k, member): 2 if fold == k else int(tenth == member)
        for k in range(FOLDS)
        for member in range(MEMBERS)
    }


def microstructure(
    rows: Array, edges: NDArray[np.int64], labels: dict[str, float], parts: dict[str, int], name: str
) -> GraphBatch:
    """Return one graph: a node per grain, both directions of every contact.

    With the labels that were measured and the parts of folds.
    """
    size, neighbours = rows[:, 3], rows[:, 4]
    if not (len(rows) and np.isfinite(rows).all() and (size > 0).all()):
        raise InputError(f"{name}: every grain needs finite angles and a positive size; leave it out")
    sizes = np.stack([0.5 * np.log(size), np.cbrt(size) / 20, neighbours / 20], axis=1)
    senders, receivers = np.concatenate([edges, edges[:, ::-1]]).T
    present = [field for field in FIELDS if field.role == "input" or field.name in {"texture_index", *labels, *parts}]
    index = texture_index(rows[:, :3], size)
    graph_values = {"log_grains": np.log(len(rows) / 180.0), "texture_index": index, **labels, **parts}
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
    """Run the recipe: store, folds with edges and without, errors, ensemble.

    Five folds have five members each; the ensemble is of all with edges.
    """
    store = out / "terfenol.h5"
    if not store.exists():
        write_store(data / "terfenol_394.npz", store)
    errors: dict[str, list[Sums]] = {
        "means": [fold_means(store, fold) for fold in range(FOLDS)],
        "forest": [fold_forest(store, fold) for fold in range(FOLDS)],
    }
    records = []
    for kind in ("edges", "no-edges"):
        errors[kind], errors[f"one {kind}"] = [], []
        for fold in range(FOLDS):
            runs = [out / kind / f"fold-{fold}-{member}" for member in range(MEMBERS)]
            for member, folder in enumerate(runs):
                record = _trained_member(store, folder, fold, member, kind == "edges", epochs)
                records += [record] if kind == "edges" else []
                errors[f"one {kind}"].append(fold_errors([folder], store, fold))
            errors[kind].append(fold_errors(runs, store, fold))
    sharp = [_sharp(store, fold) for fold in range(FOLDS)]
    ensemble = out / "ensemble"
    if not ensemble.exists():
        build_ensemble(
            [out / "edges" / f"fold-{fold}-{member}" for fold in range(FOLDS) for member in range(MEMBERS)], ensemble
        )
    held_out = evaluation_of(ensemble)["parts"]["held-out"]
    show_figures("terfenol", [*_figures(errors, sharp), *_honesty(held_out)], records, out, epochs=epochs)
    hydragnn.report(ensemble, out / "report.html")


def _trained_member(store: Path, out: Path, fold: int, member: int, edges: bool, epochs: int | None) -> RunRecord:
    """One training run; heads are weighed so that the loss is the summed absolute error that is reported."""
    heads = []
    reader, part = open_store(store), part_name(fold, member)
    train = reader.column(part).values.reshape(-1) == 0
    for head in recipe_table("terfenol")["heads"]:
        column = reader.column(head["field"])
        values = column.values.reshape(-1)[column.present & train]
        heads.append({**head, "weight": float(len(values) / train.sum() * values.std())})
    choices = (f"split.field={part}", f"data.edges={str(edges).lower()}", f"train.seed={fold * MEMBERS + member}")
    return train_recipe("terfenol", store, out, *choices, epochs=epochs, heads=heads)


def held_out_graphs(store: Path, fold: int) -> NDArray[np.int64]:
    """The microstructures that a fold judges, the same for all its members."""
    return np.flatnonzero(open_store(store).column(part_name(fold, 0)).values.reshape(-1) == 2)


def fold_errors(runs: list[Path], store: Path, fold: int) -> Sums:
    """Absolute error of the runs' average and absolute label of every tested microstructure (0 where not measured)."""
    reader, tested = open_store(store), held_out_graphs(store, fold)
    predicted = [predictions(model_of(run), store, tested.tolist()) for run in runs]
    sums = {}
    for name in TARGETS:
        means = [torch.cat([block[name][0] for block in blocks]).reshape(-1).numpy() for blocks in predicted]
        column = reader.column(name)
        label, present = column.values.reshape(-1)[tested].astype(np.float64), column.present[tested]
        sums[name] = (np.abs(np.mean(means, axis=0) - label) * present, np.abs(label) * present)
    return sums


def fold_means(store: Path, fold: int) -> Sums:
    """The same for the mean of the training part at each field strength."""
    reader, tested = open_store(store), held_out_graphs(store, fold)
    sums = {}
    for name in TARGETS:
        column = reader.column(name)
        values, labelled = column.values.reshape(-1).astype(np.float64), column.present.copy()
        label, present = values[tested], labelled[tested]
        labelled[tested] = False
        sums[name] = (np.abs(values[labelled].mean() - label) * present, np.abs(label) * present)
    return sums


def fold_forest(store: Path, fold: int) -> Sums:
    """The same for a random forest (scikit-learn's own settings) on texture and field strength, without any graph."""
    reader, tested = open_store(store), held_out_graphs(store, fold)
    textures = np.stack([texture_features(reader.read([number])) for number in range(len(reader))])
    columns = [reader.column(name) for name in TARGETS]
    labels = np.stack([column.values.reshape(-1) for column in columns]).astype(np.float64)
    present = np.stack([column.present for column in columns])
    learnt = present.copy()
    learnt[:, tested] = False
    field, graph = np.nonzero(learnt)
    forest = RandomForestRegressor(n_estimators=300, random_state=SEED)
    forest.fit(np.column_stack([textures[graph], np.array(STRENGTHS)[field]]), labels[field, graph])
    sums = {}
    for row, (name, strength) in enumerate(zip(TARGETS, STRENGTHS)):
        predicted = forest.predict(np.column_stack([textures[tested], np.full(len(tested), strength)]))
        label, labelled = labels[row, tested], present[row, tested]
        sums[name] = (np.abs(predicted - label) * labelled, np.abs(label) * labelled)
    return sums


def texture_features(graph: GraphBatch) -> Array:
    """Return features of polycrystals without contacts, for a simple predictor."""
    orientation = graph.nodes["orientation"].double().numpy()
    volumes = np.exp(2 * graph.nodes["size"][:, 0].double().numpy())
    mean = np.average(orientation, axis=0, weights=volumes)
    spread = np.sqrt(np.average((orientation - mean) ** 2, axis=0, weights=volumes))
    whole = np.concatenate(
        [graph.graphs[name].double().numpy().reshape(-1) for name in ("log_grains", "texture_index")]
    )
    return np.concatenate([mean, spread, whole])


def relative(errors: list[Sums], lowest: int, subset: list[NDArray[np.bool_]] | None = None) -> float:
    """Return the sum of errors over the sum of values in per cent.

    Over all folds and field strengths from ``lowest`` kA/m.

    ``subset`` chooses among the tested microstructures of every fold.
    """
    names = [name for name, strength in zip(TARGETS, STRENGTHS) if strength >= lowest]
    totals = np.zeros(2)
    for number, fold in enumerate(errors):
        for name in names:
            rows = np.stack(fold[name])
            totals += (rows if subset is None else rows[:, subset[number]]).sum(axis=1)
    return float(100 * totals[0] / totals[1])


def _sharp(store: Path, fold: int) -> NDArray[np.bool_]:
    index: NDArray[np.bool_] = (
        open_store(store).column("texture_index").values.reshape(-1)[held_out_graphs(store, fold)] >= SHARP
    )
    return index


def _figures(errors: dict[str, list[Sums]], sharp: list[NDArray[np.bool_]]) -> list[Figure]:
    figures = []
    for what, lowest, goal in RANGES:
        beside = f"field means {relative(errors['means'], lowest):.3g} %"
        beside += f"; random forest on texture {relative(errors['forest'], lowest):.3g} %"
        per_fold = [relative([fold], lowest) for fold in errors["edges"]]
        beside += f"; folds {min(per_fold):.1f} to {max(per_fold):.1f} %"
        one, five = relative(errors["one edges"], lowest), relative(errors["edges"], lowest)
        figures.append(Figure(what=f"grouped 5-fold CV, {what}, one model", value=one, unit="%", goal=goal))
        name = f"grouped 5-fold CV, {what}, {MEMBERS} models averaged"
        figures.append(Figure(what=name, value=five, unit="%", goal=goal, beside=beside))
        alone = relative(errors["no-edges"], lowest)
        figures.append(Figure(what=f"the same without edges, {what}", value=alone, unit="%"))
        crystals = relative(errors["edges"], lowest, sharp)
        others = relative(errors["edges"], lowest, [~subset for subset in sharp])
        name = f"the same, {what}, only the {sum(int(subset.sum()) for subset in sharp)} nearly single crystals"
        figures.append(Figure(what=name, value=crystals, unit="%", beside=f"all others {others:.3g} %"))
    return figures


def _honesty(held_out: dict[str, Any]) -> list[Figure]:
    """Return the coverage of 90 % intervals of held-out labels."""
    figures = []
    for name, strength in zip(TARGETS, STRENGTHS):
        scores = held_out[name]["ensemble"]
        beside = f"mean width {scores['interval_width']:.3g}e-3; Spearman of spread and error {scores['spearman']:.2f}"
        what = f"coverage at {strength} kA/m (90 nominal)"
        figures.append(Figure(what=what, value=100 * scores["coverage"], unit="%", beside=beside))
    return figures
