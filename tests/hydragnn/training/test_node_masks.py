"""Node classification on one graph: masks of nodes part its labels, and every part sees its own alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydragnn.base.errors import InputError
from hydragnn.config import RunConfig
from hydragnn.datasets import build_store, open_store, read_build_settings, store_info
from hydragnn.datasets.build import makers_of
from hydragnn.distributed.building import first_and_count
from hydragnn.graphs import Field, field_from_json, from_pyg, graphs_of_parts
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.models import load_model
from hydragnn.record import RunRecord
from hydragnn.scripts.report.data import fields_table
from hydragnn.scripts.report.data_facts import data_facts
from hydragnn.training import evaluate

NODES, MASKS = 60, ["train_mask", "val_mask", "test_mask"]
FIELDS = [
    {"name": "x", "on": "node", "shape": [3], "dtype": "float64"},
    {"name": "y", "on": "node", "role": "target", "classes": 3, "dtype": "int64"},
]
TABLE = {"kind": "pyg", "files": ["one.pt"], "fields": FIELDS, "node_split": MASKS}
HEADS = [{"kind": "classes", "field": "y"}]


def citations(**changes: Any) -> Any:
    """One graph of three communities; a third of its nodes trains, a sixth validates, a third tests."""
    generator = np.random.default_rng(3)
    y = generator.integers(0, 3, NODES)
    linked = generator.random((NODES, NODES)) < np.where(y[:, None] == y, 0.2, 0.02)
    edges = np.stack(np.nonzero(np.triu(linked, 1) | np.triu(linked, 1).T))
    order, cuts = generator.permutation(NODES), (0, 20, 30, 50)
    masks = {name: np.isin(np.arange(NODES), order[a:b]) for name, a, b in zip(MASKS, cuts, cuts[1:])}
    values = {"x": np.eye(3)[y] + generator.normal(size=(NODES, 3)), "y": y, **masks, **changes}
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    return torch_geometric("data").Data(edge_index=torch.tensor(edges), **tensors)


def built(folder: Path, data: Any, **more: Any) -> Path:
    torch.save(data, folder / "one.pt")
    build_store(read_build_settings({**TABLE, **more}, folder / "BUILD.toml"), folder / "out.h5")
    return folder / "out.h5"


@pytest.fixture
def run(trained: Callable[..., RunRecord]) -> Callable[[Path, str], RunRecord]:
    """Trains three epochs on the masks of a store."""

    def go(store: Path, name: str) -> RunRecord:
        options = {"split__kind": "given", "split__field": "part", "data__inputs": ["x"], "data__store": str(store)}
        return trained(name, "sage", HEADS, store=None, **options)

    return go


def test_one_graph_trains_on_the_nodes_of_its_training_mask_alone(
    run: Callable[[Path, str], RunRecord], tmp_path: Path
) -> None:
    one, records = citations(), {}
    swapped = torch.where(one.train_mask, one.y, (one.y + 1) % 3)
    for name, data in (("own", one), ("swapped", citations(y=swapped.numpy()))):
        (tmp_path / name).mkdir()
        records[name] = run(built(tmp_path / name, data), f"run-{name}")
    assert records["own"].curves["train/loss"] == records["swapped"].curves["train/loss"]
    assert records["own"].curves["valid/y/nll"] != records["swapped"].curves["valid/y/nll"]
    for name, labels in (("own", one.y), ("swapped", swapped)):  # early stopping and test judge their own nodes
        store, model = open_store(tmp_path / name / "out.h5"), load_model(tmp_path / f"run-{name}/model", torch.float64)
        logits = model.predict(store.read([0]))["y"].logits.double()
        for part, mask in enumerate(MASKS[1:], 1):
            chosen = data[mask]
            by_hand = torch.nn.functional.cross_entropy(logits[chosen], labels[chosen]).item()
            metrics = evaluate(model, store, np.array([part]))["y"]
            assert metrics["count"] == chosen.sum() and metrics["nll"] == pytest.approx(by_hand, rel=1e-12)
            if part == 1:
                assert records[name].best["valid/y/nll"] == pytest.approx(by_hand, rel=1e-12)


def test_counts_of_masks_are_those_by_hand(tmp_path: Path) -> None:
    store = built(tmp_path, citations())
    rows = {row["name"]: (row["labels"], row["missing_labels"]) for row in store_info(store).to_json()["fields"]}
    assert rows == {"x": (3 * 3 * NODES, 0), "y": (50, 3 * NODES - 50), "part": (3, 0)}
    assert list(open_store(store).texts["name"]) == ["one.pt#0, train", "one.pt#0, valid", "one.pt#0, test"]
    config = {"data": {"store": str(store)}, "split": {"kind": "given", "field": "part"}, "model": {"kind": "sage"}}
    table = fields_table(data_facts(RunConfig.parse({**config, "heads": HEADS}), store))
    cells = dict(zip(table.header, next(row for row in table.rows if row[0] == "y")))
    assert cells["labels"] == "20 of 60 train, 10 of 60 valid, 20 of 60 test"


def test_masks_work_in_python_and_count_for_several_processes(tmp_path: Path) -> None:
    fields = [field_from_json(table) for table in FIELDS]
    masks = [Field(name=name, on="node", role="auxiliary", classes=2, dtype="int64") for name in MASKS]
    parts, data = graphs_of_parts(from_pyg(citations(), [*fields, *masks]), MASKS), citations()
    assert [part.labelled("y").sum().item() for part in parts] == [20, 10, 20] and MASKS[0] not in parts[0].fields
    assert all(torch.equal(part.labelled("y"), data[mask]) for part, mask in zip(parts, MASKS))
    built(tmp_path, [data, data])
    settings = read_build_settings(TABLE, tmp_path / "BUILD.toml")
    assert first_and_count(settings, makers_of(settings))[1] == len(open_store(tmp_path / "out.h5")) == 6


GAP = {"name": "gap", "on": "graph", "role": "target"}
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"node_split": None}, r"one.pt, graph 0 has train_mask, val_mask, test_mask; say node_split = \["),
    ({"val_mask": np.arange(NODES) < 40}, {}, "node [0-9]+ is in train_mask and in val_mask, so that errors"),
    ({"test_mask": np.zeros((NODES, 10), dtype=bool)}, {}, r"test_mask: shape \(60, 10\) is not \(60,\)"),
    ({}, {"node_split": ["train_mask", "valid_mask"]}, "no attribute valid_mask; did you mean val_mask"),
    ({}, {"node_split": ["train_mask"]}, "node_split"),
    ({"gap": np.ones(1)}, {"fields": [*FIELDS, GAP]}, "target gap lives on graphs, and masks part the labels of nodes"),
]


@pytest.mark.parametrize(("changes", "settings", "words"), WRONG)
def test_masks_that_cannot_part_nodes_are_refused(
    changes: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        built(tmp_path, citations(**changes), **settings)
    assert not (tmp_path / "out.h5").exists()
