"""Graphs of similar sizes lie together, every node in a row of its own, and little is added to them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.layers.size_buckets import MORE, MORE_PER_NODE, MOST, SizeBuckets, bucket_sizes, size_buckets


def buckets_of(sizes: list[int]) -> SizeBuckets:
    counts = torch.tensor(sizes, dtype=torch.int64)
    return size_buckets(counts, torch.arange(len(sizes)).repeat_interleave(counts))


@given(st.lists(st.integers(0, 60), max_size=40))
def test_every_graph_lies_whole_in_one_bucket(sizes: list[int]) -> None:
    graph = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64)) + 1.0
    values = torch.stack([graph, torch.arange(sum(sizes)) + 1.0], dim=1)
    buckets = buckets_of(sizes)
    parts = buckets.spread(values)
    assert torch.equal(buckets.collect(parts), values)
    found = []
    for part, bucket in zip(parts, buckets.buckets, strict=True):
        assert part.shape == (bucket.graphs, bucket.size, 2)
        for row, graph_rows in enumerate(part):
            size = bucket.size if bucket.is_node is None else int(bucket.is_node[row].sum())
            number = int(graph_rows[0, 0])
            found.append((number, size))
            assert (graph_rows[:size, 0] == number).all() and not graph_rows[size:].any()
            assert (graph_rows[:size, 1].diff() == 1).all()
    assert sorted(found) == [(number + 1, size) for number, size in enumerate(sizes) if size]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60))
def test_what_is_added_is_bounded_in_every_bucket(sizes: list[int]) -> None:
    distinct = sorted(set(sizes))
    ends = bucket_sizes(distinct, [sizes.count(size) for size in distinct])
    assert ends == sorted(set(ends)) and set(ends) <= set(sizes) and ends[-1] == max(sizes)
    for low, end in zip([0, *ends], ends):
        mine = [size for size in sizes if low < size <= end]
        pairs = sum(size**2 for size in mine)
        assert len(mine) * end**2 - pairs <= min(MORE * pairs + MORE_PER_NODE * sum(mine), MOST)


def test_similar_sizes_need_few_buckets() -> None:
    assert len(buckets_of([*range(1, 65)]).buckets) <= 10
    assert len(buckets_of([*range(20, 30)]).buckets) <= 2


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1], []], ids=str)
def test_graphs_of_one_size_lie_as_they_are(sizes: list[int]) -> None:
    buckets = buckets_of(sizes)
    assert len(buckets.buckets) == 1 and buckets.buckets[0].is_node is None
    values = torch.randn(sum(sizes), 3)
    assert buckets.spread(values)[0].data_ptr() == values.data_ptr()
