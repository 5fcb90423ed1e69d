"""Data of torch_geometric: packed attributes, data sets in memory, several kinds of nodes and edges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydragnn
from hydragnn.base.errors import InputError
from hydragnn.datasets import open_store
from hydragnn.graphs import GraphBatch
from hydragnn.graphs.pyg import torch_geometric
from tests.refusals import refuses

Build = Callable[..., GraphBatch]
EDGES = torch.tensor([[0, 1], [1, 0]])


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(fields: list[dict[str, Any]], data: Any = None, **table: Any) -> GraphBatch:
        out = tmp_path / f"{len([*tmp_path.iterdir()])}.h5"
        files = {} if data is not None else {"files": [str(tmp_path / "data.pt")]}
        hydragnn.build_store({"kind": "pyg", **files, "fields": fields, **table}, out, data=data, quiet=True)
        return open_store(out)[:]

    return build


def packed(count: int = 3) -> list[Any]:
    """Graphs of two nodes with seven labels in one row, as in QM9."""
    x, y = torch.arange(6.0).reshape(2, 3), torch.arange(7.0)[None]
    more = {"edge_index": EDGES, "charges": torch.tensor([1.0, 2.0])}
    return [torch_geometric("data").Data(x=x + 10 * k, y=y + 100 * k, **more) for k in range(count)]


PACKED = [
    {"name": "gap", "on": "graph", "role": "target", "key": "y", "column": 3},
    {"name": "pair", "on": "graph", "shape": [2], "role": "target", "key": "y", "column": [0, 6]},
    {"name": "kind", "on": "node", "key": "x", "column": 0},
    {"name": "rest", "on": "node", "shape": [2], "key": "x", "column": [1, 2]},
    {"name": "charge", "on": "node", "key": "charges", "role": "target"},
]


def test_columns_of_packed_attributes_become_fields(build: Build, tmp_path: Path) -> None:
    torch_geometric("data").InMemoryDataset.save(packed(), tmp_path / "data.pt")
    graphs = build(PACKED)
    assert graphs["gap"].tolist() == [3, 103, 203] and graphs["pair"].tolist() == [[0, 6], [100, 106], [200, 206]]
    assert graphs["kind"].tolist() == [0, 3, 10, 13, 20, 23] and graphs["rest"][1].tolist() == [4, 5]
    assert graphs["charge"].tolist() == [1, 2] * 3
    for change, words in (({"column": 7}, "there is no column 7 in values of shape"), ({"key": "z"}, "no attribute z")):
        refuses(words, build, [PACKED[0] | change])


def test_data_sets_and_generators_in_memory_are_stores(build: Build) -> None:
    class Many(torch_geometric("data").Dataset):  # type: ignore[misc]
        def len(self) -> int:
            return 3

        def get(self, number: int) -> Any:
            return packed()[number]

    class InMemory(torch_geometric("data").InMemoryDataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.data, self.slices = self.collate(packed())

    stores = [build(PACKED, data) for data in (packed(), Many(), InMemory(), iter(packed()))]
    assert all(np.array_equal(store["gap"], [3, 103, 203]) for store in stores)
    assert list(stores[0].names) == ["data#0", "data#1", "data#2"]


def papers(width: int = 2, **y: Any) -> Any:
    """Two papers and an author who wrote both, with features of equal width unless told otherwise."""
    data = torch_geometric("data").HeteroData()
    data["paper"].x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    data["author"].x = torch.full((1, width), 5.0)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 0], [0, 1]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1], [0]])
    data["paper"].y = torch.tensor([7.0, 8.0])
    data.total = torch.tensor([3.0])
    return data


HETERO = [
    {"name": "x", "on": "node", "shape": [2]},
    {"name": "y", "on": "node", "role": "target", "optional": True},
    {"name": "total", "on": "graph", "role": "target"},
]


def test_kinds_of_nodes_are_an_input_and_kinds_of_edges_relations(build: Build, tmp_path: Path) -> None:
    torch.save([papers(), papers()], tmp_path / "data.pt")
    graphs = build(HETERO)
    one = graphs.select([0])
    assert one["node_kind"].tolist() == [0, 1, 1] and one["x"].tolist() == [[5, 5], [1, 2], [3, 4]]
    edges = sorted(zip(one.senders.tolist(), one.receivers.tolist(), one["relation"].tolist()))
    assert edges == [(0, 1, 0), (0, 2, 0), (2, 1, 1)]
    units = one.fields["node_kind"].unit, one.fields["relation"].unit  # which tell other kinds apart
    assert units == ("author, paper", "author writes paper, paper cites paper")
    assert one.labelled("y").tolist() == [False, True, True] and one["total"].tolist() == [3.0]
    kind, relation = one.fields["node_kind"], one.fields["relation"]
    assert (kind.classes, relation.classes, relation.role) == (2, 2, "input")


def test_kinds_that_do_not_fit_together_are_sentences(build: Build) -> None:
    other = papers()
    other["editor"].x = torch.zeros(1, 2)
    masked = papers()
    masked["paper"].train_mask = torch.tensor([True, False])
    bare = papers()
    del bare["author"].x
    bare["author"].num_nodes = 1
    shapes = r"graph 0, x: the shapes are \{'author': \(3,\), 'paper': \(2,\)\} by kind, and zeros beside the shorter"
    for data, words in [
        ([papers(width=3)], shapes),
        ([papers(), other], "graph 1 has the kinds"),
        ([bare], "graph 0, x: author lacks it; add it"),
        ([masked], "graph 0 has train_mask; say node_split"),
        ([papers(), *packed(1)], "Data and HeteroData are in one data set"),
    ]:
        refuses(words, build, HETERO, data)
    with pytest.raises(InputError, match="graph 0, y: author lacks it; add it, or make a target optional = true"):
        build([HETERO[0], {**HETERO[1], "optional": False}], [papers()])


PLAIN = [{"name": "x", "on": "node"}, {"name": "y", "on": "graph", "role": "target"}]


def plain(**changes: Any) -> Any:
    values = {"x": torch.ones(2), "edge_index": EDGES, "y": torch.ones(1), "num_nodes": 2} | changes
    return torch_geometric("data").Data(**{key: value for key, value in values.items() if value is not None})


CRYSTAL = {"pos": torch.rand(2, 3), "cell": 4 * torch.eye(3)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": torch.ones(2).to_sparse()}, "field x: a sparse"),
        ({"x": torch.ones(2, device="meta")}, "field x: a sparse, quantised or meta"),
        ({"edge_index": torch.ones(2, 2).to_sparse()}, "edge_index: a sparse"),
        ({"edge_index": None, "adj_t": torch.ones(2, 2).to_sparse()}, "edges in adj_t are not read"),
        ({"x": ["Cu", "Ni"]}, "texts such as 'Cu' are not numbers"),
        ({"x": [[1.0], [2.0, 3.0]]}, "rows of different lengths"),
        ({"y": "1.5"}, "texts such as '1.5'"),
        ({"y": {"gap": 1.5}}, "object values are not numbers"),
        ({"pos": "xyz"}, "pos: texts such as"),
        ({"pos": torch.rand(2, 3), "cell": "abc"}, "cell: texts such as"),
        ({**CRYSTAL, "pbc": torch.tensor([True, False])}, "one flag per axis"),
        ({**CRYSTAL, "pbc": torch.tensor([1, 0.5, 0])}, "one flag per axis"),
    ],
)
def test_attributes_that_are_no_numbers_are_refused(build: Build, changes: dict[str, Any], said: str) -> None:
    refuses(said, build, PLAIN, data=[plain(**changes)])


def test_a_python_float_keeps_its_digits(build: Build) -> None:
    energy = -40123.456789
    graphs = build(PLAIN, data=[plain(y=energy)])
    assert graphs["y"].item() == energy


def test_a_relation_without_edges_is_refused(build: Build) -> None:
    pair = torch_geometric("data").HeteroData()
    pair["a"].x = torch.ones(2)
    pair["a", "to", "a"].weight = torch.ones(1)
    refuses("has no edge_index", build, PLAIN, data=[pair])
