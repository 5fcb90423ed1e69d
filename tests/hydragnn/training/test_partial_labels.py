"""Labels that are missing inside graphs, and masks that part them: each part sees the present ones alone, whatever the source."""

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
from hydragnn.config import RunConfig
from hydragnn.datasets import (
    Budget,
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
from hydragnn.datasets.build import makers_of
from hydragnn.distributed.building import first_and_count
from hydragnn.graphs import Field, concatenate, field_from_json, from_pyg, graph_from_arrays, graphs_of_parts, unbatch
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.models import Point, load_model
from hydragnn.runs.label_notes import unlabelled
from hydragnn.scripts.report.data import fields_table
from hydragnn.scripts.report.data_facts import data_facts
from hydragnn.training import errors_on, trivial_predictor
from hydragnn.training.loss import label_counts, loss_sums
from hydragnn.training.metrics import Errors, target_moments
from tests.hydragnn.training.conftest import Trained
from tests.hydragnn.training.test_training_loss import target_of

GRAPHS = 8
ENDS = np.array([[0, 1], [1, 0], [1, 2], [2, 1], [2, 0], [0, 2]])
CORNERS = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
FIELDS = (
    Field(name="x", on="node", dtype="float64"),
    Field(name="charge", on="node", shape=(2,), role="target", dtype="float64"),
    Field(name="phase", on="node", role="target", classes=2, dtype="int64"),
    Field(name="gap", on="graph", role="target", dtype="float64"),
)
NODES = ("x", "charge", "phase")
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


def graph_of(arrays: dict[str, Any], optional: list[str] = OPTIONAL) -> GraphBatch:
    nodes, graphs = {name: arrays[name] for name in NODES}, {"gap": arrays["gap"]}
    ends = arrays["ends"].T
    return graph_from_arrays(arrays["positions"], *ends, fields=FIELDS, nodes=nodes, graphs=graphs, optional=optional)


def python_source(copies: int = 2) -> MemoryStore:
    return MemoryStore([graph_of(arrays_of(number, copies)) for number in range(GRAPHS)])


def xyz_source(folder: Path) -> dict[str, Any]:
    frames = []
    for arrays in map(arrays_of, range(GRAPHS)):
        frames.append(ase.Atoms("H6", arrays["positions"], info={"gap": arrays["gap"]}))
        frames[-1].arrays |= {name: arrays[name] for name in NODES}
    ase.io.write(folder / "all.xyz", frames)
    return {"kind": "ase", "files": ["all.xyz"], "cutoff": 2.0}


def npz_source(folder: Path) -> dict[str, Any]:
    every = [arrays_of(number) for number in range(GRAPHS)]
    whole = {key: np.concatenate([np.atleast_1d(arrays[key]) for arrays in every]) for key in every[0]}
    counts = np.full(GRAPHS, 6)
    np.savez(folder / "all.npz", counts=counts, pairs=2 * counts, **whole)
    names = {"nodes": "counts", "edge_counts": "pairs", "edges": "ends", "positions": "positions"}
    return {"kind": "npz", "files": ["all.npz"], **names}


def mesh_source(folder: Path) -> dict[str, Any]:
    lines, cells = ["file,gap"], [("triangle", [[0, 1, 2], [3, 4, 5]])]
    for number, arrays in enumerate(map(arrays_of, range(GRAPHS))):
        data = {name: arrays[name] for name in NODES}
        meshio.Mesh(arrays["positions"], cells, data).write(folder / f"{number}.vtu")
        lines.append(f"{number}.vtu,{'' if np.isnan(arrays['gap']) else arrays['gap']}")
    (folder / "gaps.csv").write_text("\n".join(lines))
    return {"kind": "mesh", "files": ["*.vtu"], "labels": "gaps.csv"}


def pyg_source(folder: Path) -> dict[str, Any]:
    data, graphs = torch_geometric("data").Data, []
    for arrays in map(arrays_of, range(GRAPHS)):
        values = {name: torch.tensor(arrays[name], dtype=torch.float64) for name in (*NODES, "gap")}
        ends = torch.tensor(arrays["ends"].T)
        graphs.append(data(pos=torch.tensor(arrays["positions"]), edge_index=ends, **values))
    torch.save(graphs, folder / "all.pt")
    return {"kind": "pyg", "files": ["all.pt"]}


WHOLE = {"data__inputs": ["x"], "batch__max_graphs": 32, "split__train": 0.5, "split__valid": 0.5}
"""All training graphs in one batch."""


def test_training_with_partial_labels_is_training_on_the_present_ones(trained: Trained) -> None:
    partial = trained("partial", "sage", HEADS, store=python_source(), **WHOLE)
    whole = trained("whole", "sage", HEADS, store=python_source(copies=1), **WHOLE)
    assert partial.curves.keys() == whole.curves.keys() and len(whole.curves["train/loss"]) == 3
    for name, values in whole.curves.items():
        if name.partition("/")[0] in ("train", "valid"):
            assert partial.curves[name] == pytest.approx(values, rel=1e-12, abs=1e-14), name
    assert partial.trivial == pytest.approx(whole.trivial, rel=1e-12)
    assert "24 of 48 labels of charge in graphs of the training part that have it are missing" in partial.notes[0]


@pytest.mark.parametrize("source", [xyz_source, npz_source, mesh_source, pyg_source])
def test_every_source_keeps_what_is_missing(source: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    settings = read_build_settings({**source(tmp_path), "fields": TABLES}, tmp_path / "BUILD.toml")
    build_store(settings, tmp_path / "out.h5")
    expected, batch = python_source().read(range(GRAPHS)), open_store(tmp_path / "out.h5").read(range(GRAPHS))
    ends = [{*zip(one.senders.tolist(), one.receivers.tolist())} for one in (batch, expected)]
    assert torch.equal(batch["x"], expected["x"]) and ends[0] == ends[1]  # so that a training is the same
    for name in OPTIONAL:
        torch.testing.assert_close(batch.labelled(name), expected.labelled(name))
        torch.testing.assert_close(batch[name], expected[name], equal_nan=True)
    assert batch.present("gap").tolist() == [number % 3 != 2 for number in range(GRAPHS)]
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
        graphs.append(graph_of(arrays))
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
    batch = python_source().read(range(GRAPHS))
    graphs = unbatch(batch)
    assert [sorted(graph.masks) for graph in graphs] == [["charge", "phase"]] * GRAPHS
    with StoreWriter(tmp_path / "out.h5", FIELDS, dim=3) as writer:
        writer.write_graphs(graphs[:4])
        writer.write(concatenate(graphs[4:]))
    assert open_store(tmp_path / "out.h5").fingerprint == python_source().fingerprint
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


def test_a_target_with_missing_labels_is_no_input(trained: Trained, tmp_path: Path) -> None:
    heads = [{"kind": "scalar", "field": "gap", "loss": "mae"}]
    with pytest.raises(InputError, match="graph 0 lacks 6 values of charge, which the model reads"):
        trained("run", "sage", heads, store=python_source(), data__inputs=["x", "charge"], split__seed=1)


def split_of(train: list[int], valid: list[int]) -> Split:
    none = np.zeros(0, dtype=np.int64)
    return Split(train=np.array(train), valid=np.array(valid), calibration=none, test=none)


def test_parts_without_any_label_are_refused_or_noted(trained: Trained) -> None:
    every = [arrays_of(number) for number in range(GRAPHS)]
    for arrays in every[2:4]:
        arrays.update({name: np.full(np.shape(arrays[name]), np.nan) for name in OPTIONAL})
    store = MemoryStore([graph_of(arrays) for arrays in every])
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
        trained("bare", "sage", HEADS, store=MemoryStore([graph_of(every[2])] * GRAPHS), **WHOLE)


PAPERS, MASKS = 60, ["train_mask", "val_mask", "test_mask"]
PAPER_FIELDS = [
    {"name": "x", "on": "node", "shape": [3], "dtype": "float64"},
    {"name": "y", "on": "node", "role": "target", "classes": 3, "dtype": "int64"},
]
TABLE = {"kind": "pyg", "files": ["one.pt"], "fields": PAPER_FIELDS, "node_split": MASKS}
TOPICS = [{"kind": "classes", "field": "y"}]


def citations(**changes: Any) -> Any:
    """One graph of three communities; a third of its nodes trains, a sixth validates, a third tests."""
    generator = np.random.default_rng(3)
    y = generator.integers(0, 3, PAPERS)
    linked = generator.random((PAPERS, PAPERS)) < np.where(y[:, None] == y, 0.2, 0.02)
    edges = np.stack(np.nonzero(np.triu(linked, 1) | np.triu(linked, 1).T))
    order, cuts = generator.permutation(PAPERS), (0, 20, 30, 50)
    masks = {name: np.isin(np.arange(PAPERS), order[a:b]) for name, a, b in zip(MASKS, cuts, cuts[1:])}
    values = {"x": np.eye(3)[y] + generator.normal(size=(PAPERS, 3)), "y": y, **masks, **changes}
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return torch_geometric("data").Data(edge_index=torch.tensor(edges), **tensors)


def built(folder: Path, data: Any, **more: Any) -> Path:
    torch.save(data, folder / "one.pt")
    build_store(read_build_settings({**TABLE, **more}, folder / "BUILD.toml"), folder / "out.h5")
    return folder / "out.h5"


def test_one_graph_trains_on_the_nodes_of_its_training_mask_alone(trained: Trained, tmp_path: Path) -> None:
    one, records = citations(), {}
    options: dict[str, Any] = {"store": None, "split__kind": "given", "split__field": "part", "data__inputs": ["x"]}
    swapped = torch.where(one.train_mask, one.y, (one.y + 1) % 3)
    for name, data in (("own", one), ("swapped", citations(y=swapped.numpy()))):
        (tmp_path / name).mkdir()
        path = str(built(tmp_path / name, data))
        records[name] = trained(f"run-{name}", "sage", TOPICS, data__store=path, **options)
    assert records["own"].curves["train/loss"] == records["swapped"].curves["train/loss"]
    assert records["own"].curves["valid/y/nll"] != records["swapped"].curves["valid/y/nll"]
    for name, labels in (("own", one.y), ("swapped", swapped)):  # early stopping and test judge their own nodes
        store, model = open_store(tmp_path / name / "out.h5"), load_model(tmp_path / f"run-{name}/model", torch.float64)
        logits = model.predict(store.read([0]))["y"].logits.double()
        for part, mask in enumerate(MASKS[1:], 1):
            chosen = data[mask]
            by_hand = torch.nn.functional.cross_entropy(logits[chosen], labels[chosen]).item()
            metrics = errors_on(model.predict, store, np.array([part]), model.targets, Budget(max_graphs=1))["y"]
            assert metrics["count"] == chosen.sum() and metrics["nll"] == pytest.approx(by_hand, rel=1e-12)
            if part == 1:
                assert records[name].best["valid/y/nll"] == pytest.approx(by_hand, rel=1e-12)


def test_counts_of_masks_are_those_by_hand(tmp_path: Path) -> None:
    store = built(tmp_path, citations())
    rows = {row["name"]: (row["labels"], row["missing_labels"]) for row in store_info(store).to_json()["fields"]}
    assert rows == {"x": (3 * 3 * PAPERS, 0), "y": (50, 3 * PAPERS - 50), "part": (3, 0)}
    assert list(open_store(store).texts["name"]) == ["one.pt#0, train", "one.pt#0, valid", "one.pt#0, test"]
    config = {"data": {"store": str(store)}, "split": {"kind": "given", "field": "part"}, "model": {"kind": "sage"}}
    table = fields_table(data_facts(RunConfig.parse({**config, "heads": TOPICS}), store))
    cells = dict(zip(table.header, next(row for row in table.rows if row[0] == "y")))
    assert cells["labels"] == "20 of 60 train, 10 of 60 valid, 20 of 60 test"


def test_masks_work_in_python_and_count_for_several_processes(tmp_path: Path) -> None:
    fields = [field_from_json(table) for table in PAPER_FIELDS]
    masks = [Field(name=name, on="node", role="auxiliary", classes=2, dtype="int64") for name in MASKS]
    parts, data = graphs_of_parts(from_pyg(citations(), [*fields, *masks]), MASKS), citations()
    assert [part.labelled("y").sum().item() for part in parts] == [20, 10, 20] and MASKS[0] not in parts[0].fields
    assert all(torch.equal(part.labelled("y"), data[mask]) for part, mask in zip(parts, MASKS))
    built(tmp_path, [data, data])
    settings = read_build_settings(TABLE, tmp_path / "BUILD.toml")
    assert first_and_count(settings, makers_of(settings))[1] == len(open_store(tmp_path / "out.h5")) == 6


GAP = {"name": "gap", "on": "graph", "role": "target"}
WRONG_MASKS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"node_split": None}, r"one.pt, graph 0 has train_mask, val_mask, test_mask; say node_split = \["),
    ({"val_mask": np.arange(PAPERS) < 40}, {}, "node [0-9]+ is in train_mask and in val_mask, so that errors"),
    ({"test_mask": np.zeros((PAPERS, 10), dtype=bool)}, {}, r"test_mask: shape \(60, 10\) is not \(60,\)"),
    ({}, {"node_split": ["train_mask", "valid_mask"]}, "no attribute valid_mask; did you mean val_mask"),
    ({}, {"node_split": ["train_mask"]}, "node_split"),
    (
        {"gap": np.ones(1)},
        {"fields": [*PAPER_FIELDS, GAP]},
        "target gap lives on graphs, and masks part the labels of nodes",
    ),
]


@pytest.mark.parametrize(("changes", "settings", "words"), WRONG_MASKS)
def test_wrong_masks_are_refused(changes: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        built(tmp_path, citations(**changes), **settings)
    assert not (tmp_path / "out.h5").exists()
