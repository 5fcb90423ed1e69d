"""A batch computed in parts: the same steps with less memory."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.datasets import MemoryStore
from hydragnn.graphs import concatenate
from hydragnn.graphs.validate import validate
from hydragnn.training.data import even_cuts, micro_batches
from tests.graphs.geometry import assert_same_geometry
from tests.hydragnn.training.conftest import Configs, Trained, assert_same_curves

COSTS = st.lists(st.integers(1, 50), max_size=7)


@given(costs=COSTS, number=st.integers(1, 9))
def test_cuts_lose_no_graph_and_the_largest_part_is_the_smallest_possible(costs: list[int], number: int) -> None:
    cuts = even_cuts(costs, number)
    assert cuts == sorted(set(cuts)) and cuts[0] == 0 and cuts[-1] == len(costs) and len(cuts) - 1 <= number

    def largest(places: Sequence[int]) -> int:
        return max((sum(costs[a:b]) for a, b in pairwise([0, *places, len(costs)])), default=0)

    inner = range(1, max(1, len(costs)))
    best = min(
        largest(places) for count in range(min(number, max(1, len(costs)))) for places in combinations(inner, count)
    )
    assert largest(cuts[1:-1]) == best


@settings(max_examples=25, deadline=None)
@given(numbers=st.lists(st.integers(0, 39), max_size=9), number=st.integers(1, 6))
def test_parts_are_valid_batches_that_make_up_the_whole(numbers: list[int], number: int, store: MemoryStore) -> None:
    batch = store.read(numbers)
    parts = list(micro_batches(batch, number))
    assert len(parts) <= number and all(part.num_graphs for part in parts)
    assert sum(part.num_graphs for part in parts) == len(numbers)
    if not parts:
        return
    whole = concatenate([validate(part) for part in parts])
    assert_same_geometry(whole, batch)
    for name in batch.fields:
        assert torch.equal(whole[name], batch[name]) and torch.equal(whole.present(name), batch.present(name)), name


def test_a_part_takes_views_of_the_batch(store: MemoryStore) -> None:
    batch = store.read(range(8))
    first, *_ = micro_batches(batch, 2)
    assert first.positions.data_ptr() == batch.positions.data_ptr()


@pytest.mark.parametrize("model", ["painn", "pna"])
def test_parts_take_the_steps_of_the_whole_batch(model: str, trained: Trained, make_config: Configs) -> None:
    # batches of nine leave one graph to the last step of an epoch, fewer than parts; charges are missing here and there
    config = make_config(model, batch__max_graphs=9, train__ema_decay=0.9)
    whole = trained("1", config)
    for count in (2, 4):  # in fp64, where only sums are in another order
        assert_same_curves(whole, trained(str(count), config, micro_batches=count), rel=1e-10)


def test_a_run_in_parts_is_cut_and_resumed_with_the_same_bits_under_dropout(
    trained: Trained, make_config: Configs
) -> None:
    config = make_config(model__dropout=0.2, train__precision="fp32")
    whole = trained("whole", config, micro_batches=3)
    trained("cut", config, micro_batches=3, until=1)
    assert trained("cut", config, micro_batches=3, resume=True).curves == whole.curves
