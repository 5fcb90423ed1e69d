"""Stores as Python users take graphs from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from hydragnn.base.errors import InputError
from hydragnn.datasets import MemoryStore, StoreDataset, WithAbsent, WithoutEdges, open_store
from hydragnn.datasets.access import numbers_of
from hydragnn.datasets.formats.memory import checked_indices
from hydragnn.graphs import Field, GraphBatch, graph_from_arrays
from hydragnn.graphs.pyg import torch_geometric
from tests.refusals import refuses


def equal(one: GraphBatch, other: GraphBatch) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one.tensors(), other.tensors()))


def test_indices_mean_what_they_mean_for_arrays(path: Path) -> None:
    store, every = open_store(path), np.arange(60)
    flags = every % 7 == 0
    for index in (3, -1, [0, -1], range(4), np.array([1, 1]), torch.tensor([3]), flags, flags.tolist()):
        assert equal(store[index], store.read(np.atleast_1d(every[index]))), index
    for index in (slice(5), slice(-3, None), slice(None, None, -20), slice(9, 3)):
        assert equal(store[index], store.read(every[index]))
    assert equal(store[np.int64(4)], store[4]) and equal(store[(5, 2)], store[[5, 2]]) and len(store[[]]) == 0


@pytest.mark.parametrize("wrong", [1.5, "a", None, [1.5], [[1]], {"a": 1}, slice(0.5), ["a"], [1, [2]]])
def test_a_wrong_index_gets_a_sentence(wrong: Any) -> None:
    refuses(r"is no index of graphs|is no slice of graphs", getattr(numbers_of, "__wrapped__", numbers_of), wrong, 5)


def test_a_number_or_flags_beyond_the_store_get_a_sentence(store: MemoryStore) -> None:
    for wrong in (60, -61, [0, 60]):
        with pytest.raises(InputError, match=r"there is no graph (60|-61); the store has 60 graphs"):
            store[wrong]
    with pytest.raises(InputError, match="2 flags for 60 graphs"):
        store[[True, False]]


@pytest.mark.parametrize("wrong", [[1.0], [True, False], "a", None])
def test_reading_takes_whole_numbers_alone(wrong: Any) -> None:
    refuses("are no numbers of graphs", getattr(checked_indices, "__wrapped__", checked_indices), wrong, 5)


def test_iteration_gives_every_graph_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydragnn.datasets.access.BLOCK", 7)
    for one in (store, WithoutEdges(store)):
        graphs = list(one)
        assert len(graphs) == 60 and all(equal(graph, one[number]) for number, graph in enumerate(graphs))


def test_absent_fields_are_masked_in_every_graph(path: Path) -> None:
    store = open_store(path)
    fields = [Field(name="warmth", on="node", shape=(2,)), Field(name="phase", on="graph", classes=3, dtype="int64")]
    wider = WithAbsent(store, fields)
    names, own = [field.name for field in store.fields()], store.fields()[0].name
    assert [field.name for field in wider.fields()] == [*names, "warmth", "phase"]
    assert wider.fingerprint != store.fingerprint and len(wider) == 60
    both = wider.read([4, 2], [own, "warmth", "phase"])
    assert equal(both.with_fields(drop=["warmth", "phase"]), store.read([4, 2], [own]))
    assert both["warmth"].shape == (both.num_nodes, 2) and both["phase"].dtype == torch.int64
    assert not any(both.masks[name].any() for name in ("warmth", "phase"))
    column = wider.column("warmth", 3, 5)
    assert column.present.tolist() == [False, False] and len(column.values) == store.sizes().nodes[3:5].sum()
    assert equal(wider.read_checked([1])[0], wider[1])
    assert np.array_equal(wider.column(own).values, store.column(own).values)


def test_loaders_of_torch_make_batches(path: Path) -> None:
    store = open_store(path)
    batches = list(DataLoader(store.dataset(), batch_size=25))
    assert [len(batch) for batch in batches] == [25, 25, 10] and equal(batches[1], store[25:50])
    subset = DataLoader(Subset(store.dataset(), [4, 2]), batch_size=2, num_workers=1)
    assert equal(next(iter(subset)), store[[4, 2]])
    with pytest.raises(IndexError, match="there is no graph 60"):
        store.dataset()[60]


def partly_labelled() -> MemoryStore:
    fields = [Field(name="gap", on="graph"), Field(name="phase", on="graph", classes=3, dtype="int64")]
    graphs = [graph_from_arrays(torch.zeros(k + 1, 2), [0], [0], name=f"{k}") for k in range(3)]
    graphs[1] = graphs[1].with_fields({"gap": torch.tensor([2.0]), "phase": torch.tensor([1])}, fields=fields)
    graphs[2] = graphs[2].with_texts({"name": ["third"]})
    return MemoryStore(graphs)


def test_loaders_make_batches_in_which_a_loss_of_missing_labels_is_loud() -> None:
    store, loader = partly_labelled(), torch_geometric("loader").DataLoader
    own = next(iter(DataLoader(store.dataset(), batch_size=3)))
    assert own["gap"].isnan().tolist() == [True, False, True] == (~own.labelled("gap")).tolist()
    assert own["phase"].tolist() == [-1, 1, -1] and store[0]["gap"].tolist() == [0.0]
    (batch,) = loader(store.to_pyg(), batch_size=3)
    assert batch.gap[1] == 2.0 and batch.gap[[0, 2]].isnan().all() and batch.name == ["", "", "third"]
    assert batch.phase.tolist() == [-1, 1, -1] and batch.batch.tolist() == [0, 1, 1, 2, 2, 2]


def test_stores_show_themselves(path: Path, store: MemoryStore) -> None:
    on_disk = open_store(path)
    names = "atomic_numbers (node), energy (graph), forces (node), charge (node), label (graph)"
    assert repr(on_disk) == f"DiskStore({path}: 60 graphs, dim 3; {names})"
    assert repr(store) == f"MemoryStore(60 graphs, dim 3; {names})"
    assert repr(StoreDataset(store)) == f"StoreDataset({store!r}, pyg=False)"
    html = on_disk._repr_html_()
    assert html.count("<tr>") == 1 + 1 + 1 + 6 and "eV/Angstrom" in html
