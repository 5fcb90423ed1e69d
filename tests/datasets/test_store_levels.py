"""Levels that a store in memory makes once: those that every batch would make of itself, to the bit."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hydragnn.conformance.cases import CORNERS, LEVELS
from hydragnn.datasets import MemoryStore
from hydragnn.graphs import CLUSTERS, GraphBatch, concatenate, from_voronoi, graph_from_arrays, with_contracted_levels
from hydragnn.graphs.coarse import Level
from hydragnn.graphs.levels import levels_of
from hydragnn.graphs.topology import Topology


def cells(seed: int, count: int) -> GraphBatch:
    return from_voronoi(np.random.default_rng(seed).random((count, 2)), [1.0, 1.0], False)


def without_edges(nodes: int) -> GraphBatch:
    fields = cells(0, 8)
    alone = graph_from_arrays(np.zeros((nodes, 2)), [], [])
    return concatenate([fields, alone]).select([1]).with_fields(drop=[*fields.fields])


def tensors(level: Level) -> Iterator[tuple[str, Tensor]]:
    """All that a level is, with what its topologies derive."""
    for name in ("topology", "joining", "leaving"):
        edges: Topology = getattr(level, name)
        derived = ("row_offsets", "degrees", "by_sender", "sorted_senders", "column_offsets", "receivers_by_sender")
        yield from ((f"{name}.{what}", getattr(edges, what)) for what in ("senders", "receivers", *derived))
        yield f"{name} sizes", torch.tensor([edges.num_columns, edges.num_rows])
    yield from (("owner", level.owner), ("share", level.share), ("nodes_per_graph", level.nodes_per_graph))
    yield from (("finer", level.merging.finer), ("coarser", level.merging.coarser))
    yield "edges", torch.tensor(level.merging.num_edges)
    yield from level.edge_kinds.items()
    if level.vectors is not None:
        yield "vectors", level.vectors


def check_equal(given: tuple[Level, ...], made: tuple[Level, ...]) -> None:
    for one, other in zip(given, made, strict=True):
        for (name, value), (_, expected) in zip(tensors(one), tensors(other), strict=True):
            assert torch.equal(value, expected), name
        assert (one.vectors is None) == (other.vectors is None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_store_gives_the_levels_that_its_batches_would_make(dtype: torch.dtype) -> None:
    graphs = [with_contracted_levels(cells(seed, 5 + 7 * seed), 3) for seed in range(6)]
    graphs.insert(2, with_contracted_levels(without_edges(3), 3))
    store = MemoryStore([graph.with_fields(drop=graph.fields.keys() - {CLUSTERS}) for graph in graphs])
    arrays = {
        name: torch.from_numpy(array).to(dtype).numpy() if array.dtype == np.float64 else array
        for name, array in store.flat.arrays.items()
    }
    store = MemoryStore(replace(store.flat, arrays=arrays)).with_levels(3)
    for numbers in ([0], [2], [4, 2, 2, 6, 0], [1, 2, 3, 4, 5], []):
        batch = store.read(numbers).to(dtype=dtype)
        assert batch._derived
        check_equal(levels_of(batch, 3), levels_of(replace(batch), 3))


def test_topologies_of_a_level_know_what_follows_from_their_edges() -> None:
    (level,) = levels_of(with_contracted_levels(cells(3, 30), 1), 1)
    for edges in (level.joining, level.leaving):
        anew = replace(edges)
        assert not anew.index_arrays
        for name in ("row_offsets", "degrees", "by_sender", "sorted_senders", "column_offsets", "receivers_by_sender"):
            assert torch.equal(getattr(edges, name), getattr(anew, name)), name


@pytest.mark.parametrize("corner", CORNERS)
def test_kinds_of_edges_stay_apart_in_the_levels_of_a_store(corner: str) -> None:
    graphs = [CORNERS[name]() for name in (corner, "two graphs")]
    bare = [graph.with_fields(drop=graph.fields.keys() - {CLUSTERS, "relation"}) for graph in graphs]
    store = MemoryStore(bare).with_levels(LEVELS, ["relation"])
    batch = store.read(np.arange(len(store))[::-1])
    assert batch._derived
    check_equal(levels_of(batch, LEVELS, ["relation"]), levels_of(replace(batch), LEVELS, ["relation"]))
    assert levels_of(batch, LEVELS)[0].edge_kinds == {}  # without kinds they are others


def test_levels_go_with_the_batch_and_never_outlive_their_clusters() -> None:
    store = MemoryStore([with_contracted_levels(cells(seed, 20), 2) for seed in range(3)]).with_levels(2)
    batch = store.read([0, 1])
    first = levels_of(batch, 2)[0]
    changed = batch.with_fields({"volume": 2 * batch["volume"]})
    assert levels_of(changed, 1)[0] is first
    single = levels_of(batch.to(dtype=torch.float32), 2)
    check_equal(single, tuple(level.mapped(lambda value: _single(value)) for level in levels_of(batch, 2)))
    apart = batch.with_fields({CLUSTERS: torch.arange(40).unsqueeze(1).expand(40, 2)})
    assert levels_of(apart, 2)[0].topology.num_rows == 40
    moved = replace(batch, positions=batch.positions * torch.tensor([2.0, 1.0]))
    assert not torch.equal(levels_of(moved, 1)[0].vectors, first.vectors)
    assert not store.read([0], [])._derived


def _single(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value
