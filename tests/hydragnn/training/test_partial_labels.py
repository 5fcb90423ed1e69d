"""Labels that are missing inside graphs: training, statistics and metrics are those of the present ones, whatever the source."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase
import ase.io
import meshio
import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.datasets import (
    GraphStore,
    MemoryStore,
    Normalisation,
    Split,
    StoreWriter,
    build_store,
    check_store,
    fit_normalisation,
    open_store,
    read_build_settings,
    store_info,
)
from hydragnn.graphs import Field, GraphBatch, concatenate, graph_from_arrays, unbatch
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.models import Point
from hydragnn.record import RunRecord
from hydragnn.runs.label_notes import unlabelled
from hydragnn.training import trivial_predictor
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors, target_moments
from tests.hydragnn.training.test_training_metrics import target_of

GRAPHS = 8
ENDS = np.array([[0, 1], [1, 0], [1, 2], [2, 1], [2, 0], [0, 2]])
CORNERS = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
FIELDS = (
    Field(name="x", on="node", dtype="float64"),
    Field(name="charge", on="node", shape=(2,), role="target", dtype="float64"),
    Field(name="phase", on="node", role="target", classes=2, dtype="int64"),
    Field(name="gap", on="graph", role="target", dtype="float64"),
)
OPTIONAL = [field.name for field in FIELDS if field.role == "target"]
TABLES = [
    {**{k: v for k, v in field.to_json().items() if k != "parity"}, "optional": field.role == "target"}
    for field in FIELDS
]
HEADS = [
    {"kind": "scalar", "field": "charge", "loss": "mse"},
    {"kind": "classes", "field": "phase", "class_weights": "balanced"},
    {"kind": "scalar", "field": "gap", "loss": "mae", "pool": "mean"},
]


def arrays_of(number: int, copies: int = 2) -> dict[str, Any]:
    """A triangle, and the same once more far away without labels; every third has no gap."""
    x = np.round(np.sin(1.0 + number + np.arange(3.0)), 6)  # extended XYZ has eight digits
    charge, phase = np.round(np.stack([x**2, np.cos(x)], axis=1), 6), (x > 0.3).astype(float)
    more, far = copies - 1, np.array([9.0, 9.0, 0.0])
    return {
        "x": np.tile(x, copies),
        "charge": np.concatenate([charge, np.full((3 * more, 2), np.nan)]),
        "phase": np.concatenate([phase, np.full(3 * more, np.nan)]),
        "gap": np.nan if number % 3 == 2 else round(float(x.sum()), 6),
        "positions": np.concatenate([CORNERS + far * k for k in range(copies)]),
        "ends": np.concatenate([ENDS + 3 * k for k in range(copies)]),
    }


def graph_of(arrays: dict[str, Any], **more: Any) -> GraphBatch:
    nodes = {name: arrays[name] for name in ("x", "charge", "phase")}
    gap = {} if "gap" not in arrays else {"gap": arrays["gap"]}
    fields = [field for field in FIELDS if field.name != "gap" or gap]
    return graph_from_arrays(arrays["positions"], *arrays["ends"].T, fields=fields, nodes=nodes, graphs=gap, **more)


def present_only(number: int) -> GraphBatch:
    """The first triangle alone, without a gap where it is missing: nothing here is missing inside a graph."""
    arrays = arrays_of(number, copies=1)
    if np.isnan(arrays["gap"]):
        del arrays["gap"]
    return graph_of({**arrays, "phase": arrays["phase"].astype(int)})


def python_source(folder: Path) -> GraphStore:
    return MemoryStore([graph_of(arrays_of(number), optional=OPTIONAL) for number in range(GRAPHS)])


def xyz_source(folder: Path) -> GraphStore:
    frames = []
    for number in range(GRAPHS):
        arrays = arrays_of(number)
        frame = ase.Atoms("H6", arrays["positions"], info={"gap": arrays["gap"]})
        for name in ("x", "charge", "phase"):
            frame.arrays[name] = arrays[name]
        frames.append(frame)
    ase.io.write(folder / "all.xyz", frames)
    return built(folder, kind="ase", files=["all.xyz"], cutoff=2.0, fields=TABLES)


def csv_source(folder: Path) -> GraphStore:
    def cell(value: float) -> Any:
        return "" if np.isnan(value) else value

    rows: dict[str, list[list[Any]]] = {
        "nodes": [["graph", "x", "px", "py", "pz", "charge_0", "charge_1", "phase"]],
        "edges": [["graph", "sender", "receiver"]],
        "graphs": [["graph", "gap"]],
    }
    for number in range(GRAPHS):
        arrays = arrays_of(number)
        for x, position, charge, phase in zip(*(arrays[key] for key in ("x", "positions", "charge", "phase"))):
            phase_cell = "NA" if np.isnan(phase) else int(phase)
            rows["nodes"].append([number, x, *position, *map(cell, charge), phase_cell])
        rows["edges"] += [[number, *pair] for pair in arrays["ends"].tolist()]
        rows["graphs"].append([number, cell(arrays["gap"])])
    for name, lines in rows.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    tables = [{**table, **({"key": ["charge_0", "charge_1"]} if table["name"] == "charge" else {})} for table in TABLES]
    names = {"edges": "edges.csv", "graphs": "graphs.csv", "positions": ["px", "py", "pz"]}
    return built(folder, kind="grains", files=["nodes.csv"], fields=tables, **names)


def npz_source(folder: Path) -> GraphStore:
    every = [arrays_of(number) for number in range(GRAPHS)]
    whole = {key: np.concatenate([arrays[key] for arrays in every]) for key in every[0] if key != "gap"}
    counts = np.full(GRAPHS, 6)
    gap = np.array([arrays["gap"] for arrays in every])
    np.savez(folder / "all.npz", counts=counts, pairs=2 * counts, gap=gap, **whole)
    names = {"nodes": "counts", "edge_counts": "pairs", "edges": "ends", "positions": "positions"}
    return built(folder, kind="npz", files=["all.npz"], fields=TABLES, **names)


def mesh_source(folder: Path) -> GraphStore:
    lines = ["file,gap"]
    for number in range(GRAPHS):
        arrays = arrays_of(number)
        data = {name: arrays[name] for name in ("x", "charge", "phase")}
        meshio.Mesh(arrays["positions"], [("triangle", [[0, 1, 2], [3, 4, 5]])], data).write(folder / f"{number}.vtu")
        lines.append(f"{number}.vtu,{'' if np.isnan(arrays['gap']) else arrays['gap']}")
    (folder / "gaps.csv").write_text("\n".join(lines))
    return built(folder, kind="mesh", files=["*.vtu"], labels="gaps.csv", fields=TABLES)


def pyg_source(folder: Path) -> GraphStore:
    data = torch_geometric("data").Data
    graphs = []
    for number in range(GRAPHS):
        arrays = arrays_of(number)
        values = {name: torch.tensor(arrays[name], dtype=torch.float64) for name in ("x", "charge", "phase", "gap")}
        ends = torch.tensor(arrays["ends"].T)
        graphs.append(data(pos=torch.tensor(arrays["positions"]), edge_index=ends, **values))
    torch.save(graphs, folder / "all.pt")
    return built(folder, kind="pyg", files=["all.pt"], fields=TABLES)


SOURCES: dict[str, Callable[[Path], GraphStore]] = {
    "Python": python_source,
    "extended XYZ": xyz_source,
    "CSV": csv_source,
    "npz": npz_source,
    "mesh": mesh_source,
    "PyG": pyg_source,
}


def built(folder: Path, **table: Any) -> GraphStore:
    build_store(read_build_settings(table, folder / "BUILD.toml"), folder / "out.h5")
    return open_store(folder / "out.h5")


Train = Callable[[GraphStore, str], RunRecord]


@pytest.fixture
def run(trained: Callable[..., RunRecord]) -> Train:
    """Trains three epochs with all training graphs in one batch."""

    def go(store: GraphStore, name: str) -> RunRecord:
        options = {"data__inputs": ["x"], "batch__max_graphs": 32, "split__train": 0.5, "split__valid": 0.5}
        return trained(name, "sage", HEADS, store=store, **options)

    return go


def test_training_with_partial_labels_is_training_on_the_present_ones(run: Train, tmp_path: Path) -> None:
    partial = run(python_source(tmp_path), "partial")
    whole = run(MemoryStore([*map(present_only, range(GRAPHS))]), "whole")
    assert partial.curves.keys() == whole.curves.keys() and len(whole.curves["train/loss"]) == 3
    for name, values in whole.curves.items():
        if name.partition("/")[0] in ("train", "valid"):
            assert partial.curves[name] == pytest.approx(values, rel=1e-12, abs=1e-14), name
    assert partial.trivial == pytest.approx(whole.trivial, rel=1e-12)
    assert "24 of 48 labels of charge in graphs of the training part that have it are missing" in partial.notes[0]


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_keeps_the_graphs_what_is_missing_and_its_counts(source: str, tmp_path: Path) -> None:
    expected, store = python_source(tmp_path).read(range(GRAPHS)), SOURCES[source](tmp_path)
    batch = store.read(range(GRAPHS))
    ends = [{*zip(one.senders.tolist(), one.receivers.tolist())} for one in (batch, expected)]
    assert torch.equal(batch["x"], expected["x"]) and ends[0] == ends[1]  # so that a training is the same
    for name in OPTIONAL:
        torch.testing.assert_close(batch.labelled(name), expected.labelled(name))
        torch.testing.assert_close(batch[name], expected[name], equal_nan=True)
    assert batch.present("gap").tolist() == [number % 3 != 2 for number in range(GRAPHS)]
    if source != "Python":
        rows = {row["name"]: row for row in store_info(tmp_path / "out.h5").to_json()["fields"]}
        counts = {name: (rows[name]["labels"], rows[name]["missing_labels"]) for name in OPTIONAL}
        assert counts == {"charge": (48, 48), "phase": (24, 24), "gap": (6, 2)}
        assert check_store(tmp_path / "out.h5") == []


def scattered() -> tuple[MemoryStore, torch.Tensor, torch.Tensor]:
    """Graphs of which single components of node labels are missing, and one that lacks the field."""
    generator, graphs = np.random.default_rng(5), []
    for number in range(GRAPHS):
        arrays = arrays_of(number, copies=1)
        arrays["charge"][generator.random((3, 2)) < (1.0 if number == 4 else 0.4)] = np.nan
        graphs.append(graph_of(arrays, optional=OPTIONAL))
    store = MemoryStore(graphs)
    batch = store.read(range(GRAPHS))
    return store, batch["charge"], batch.labelled("charge")


def test_a_component_that_is_missing_counts_in_no_loss_and_has_no_gradient() -> None:
    store, labels, labelled = scattered()
    batch = store.read(range(GRAPHS))
    mean = torch.linspace(-1, 1, labels.numel(), dtype=torch.float64).view(labels.shape)
    predictions = {"charge": Point(mean=mean.requires_grad_())}
    assert "charge" in batch.masks and "x" not in batch.masks
    for loss, by_hand in (("mse", torch.square), ("mae", torch.abs), ("nll", lambda e: 0.5 * e.square())):
        target = target_of(store, "charge", loss=loss)
        assert label_counts([target], batch).item() == labelled.sum()
        value = loss_sums([target], predictions, batch).sum()
        expected = by_hand((mean - labels)[labelled]).sum()
        assert value.item() == pytest.approx(expected.item(), rel=1e-14)
        gradients = [torch.autograd.grad(one, mean, retain_graph=True)[0] for one in (value, expected)]
        assert torch.equal(*gradients) and not gradients[0][~labelled].any()


def test_statistics_and_metrics_are_those_of_present_components() -> None:
    store, labels, labelled = scattered()
    target, batch = target_of(store, "charge"), store.read(range(GRAPHS))
    assert 4 not in np.flatnonzero(store.column("charge").present) and labelled.sum() < labels.numel()
    values = labels.masked_fill(~labelled, torch.nan).numpy()
    scale = fit_normalisation(store, np.arange(GRAPHS), inputs=[], targets=[target]).scales["charge"]
    np.testing.assert_allclose([scale.mean, scale.std], [np.nanmean(values, 0), np.nanstd(values, 0)], rtol=1e-13)
    errors, trivial = Errors([target]), trivial_predictor(store, np.arange(GRAPHS), [target], Normalisation())
    errors.add(target, trivial(batch)["charge"], batch)
    away = values - np.nanmean(values, 0)
    metrics = errors.values(target_moments([target], batch))["charge"]
    assert metrics["count"] == labelled.sum() and metrics["r2"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["mae"] == pytest.approx(np.nanmean(np.abs(away)), rel=1e-13)
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.nanmean(away**2)), rel=1e-13)
    first, second = (target_moments([target], store.read(part))["charge"] for part in (range(3), range(3, 8)))
    squares = target_moments([target], batch)["charge"].squares
    torch.testing.assert_close(first.merged(second).squares, squares)


def test_graphs_one_by_one_and_together_are_written_with_their_missing_labels(tmp_path: Path) -> None:
    batch = python_source(tmp_path).read(range(GRAPHS))
    graphs = unbatch(batch)
    assert [sorted(graph.masks) for graph in graphs] == [["charge", "phase"]] * GRAPHS
    with StoreWriter(tmp_path / "out.h5", FIELDS, dim=3) as writer:
        writer.write_graphs(graphs[:4])
        writer.write(concatenate(graphs[4:]))
    assert open_store(tmp_path / "out.h5").fingerprint == python_source(tmp_path).fingerprint
    bare = [replace(graph, masks={}) for graph in graphs[:1]]
    with (
        pytest.raises(InputError, match=r"graph 0, field charge: nan .*optional=\['charge'\] in Python"),
        StoreWriter(tmp_path / "bare.h5", FIELDS, dim=3) as writer,
    ):
        writer.write_graphs(bare)


WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "not declared": ({}, ["gap", "phase"], r"field charge: nan in row 3 .*: optional = true .*optional=\['charge'\]"),
    "classes not declared": ({}, ["gap", "charge"], "field phase: 2 classes but float64 values; give integers"),
    "minus one": ({"phase": [0, 1, -1, 0, 0, 0]}, ["charge"], r"class -1 is out of range; .*optional=\['phase'\]"),
    "inputs": ({"x": np.full(6, np.nan)}, ["x", *OPTIONAL], "x: nan in row 0 .*only labels of targets may be missing"),
    "infinity": ({"charge": np.full((6, 2), np.inf)}, OPTIONAL, "charge: inf in row 0"),
    "half a class": ({"phase": np.full(6, 0.5)}, OPTIONAL, "field phase: 2 classes but float64 values"),
}


@pytest.mark.parametrize("case", WRONG)
def test_only_labels_that_a_target_declares_optional_may_be_missing(case: str) -> None:
    changes, optional, words = WRONG[case]
    with pytest.raises(InputError, match=words):
        graph_of({**arrays_of(0), **changes}, optional=optional)


def test_a_target_with_missing_labels_is_no_input(trained: Callable[..., RunRecord], tmp_path: Path) -> None:
    heads = [{"kind": "scalar", "field": "gap", "loss": "mae"}]
    with pytest.raises(InputError, match="graph 0 lacks 6 values of charge, which the model reads"):
        trained("run", "sage", heads, store=python_source(tmp_path), data__inputs=["x", "charge"], split__seed=1)


def split_of(train: list[int], valid: list[int]) -> Split:
    none = np.zeros(0, dtype=np.int64)
    return Split(train=np.array(train), valid=np.array(valid), calibration=none, test=none)


def test_parts_without_any_label_are_refused_or_noted(run: Train) -> None:
    every = [arrays_of(number) for number in range(GRAPHS)]
    for arrays in every[2:4]:
        arrays.update({name: np.full(np.shape(arrays[name]), np.nan) for name in OPTIONAL})
    store = MemoryStore([graph_of(arrays, optional=OPTIONAL) for arrays in every])
    targets = [target_of(store, name) for name in ("charge", "gap")]
    assert unlabelled(store, split_of([0, 1, 4], [6, 7]), targets) == []
    assert "has no label of gap," in unlabelled(store, split_of([0, 1, 4], [5]), targets)[0]
    for train, valid, words in (
        ([0, 1, 4], [2, 3], "no label of charge, gap, so that no best epoch can be chosen"),
        ([5], [0, 1, 4], "no graph of the training part has a value of gap"),
    ):
        with pytest.raises(InputError, match=words):
            unlabelled(store, split_of(train, valid), targets)
    with pytest.raises(InputError, match="no graph of the training part has a value of charge"):
        run(MemoryStore([graph_of(every[2], optional=OPTIONAL)] * GRAPHS), "bare")
