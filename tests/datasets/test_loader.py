"""Packing and sharding lose nothing, repeat nothing and stay within their bounds; the loader's batches depend on seed and epoch alone."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.datasets import Budget, Loader, MemoryStore, Sizes, pack, share_of
from hydragnn.datasets.packing import BLOCK, TEAM, costs_of
from tests.refusals import refuses

Counts = list[tuple[int, int]]
COUNTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), min_size=1, max_size=120)


def sizes_of(counts: Counts) -> Sizes:
    table = np.array(counts, dtype=np.int64)
    return Sizes(nodes=table[:, 0], edges=table[:, 1])


@settings(deadline=None, max_examples=80)
@given(COUNTS, st.integers(0, 12), st.integers(0, 120), st.integers(0, 900), st.randoms(use_true_random=False))
def test_packing_keeps_graphs_and_budgets(counts: Counts, graphs: int, nodes: int, edges: int, random: Random) -> None:
    sizes = sizes_of(counts)
    nodes = nodes and max(nodes, int(sizes.nodes.max()))
    edges = edges and max(edges, int(sizes.edges.max()))
    if not (graphs or nodes or edges):
        graphs = 1
    order = np.array(random.sample(range(len(counts)), len(counts)))
    batches = pack(sizes, order, Budget(max_graphs=graphs, max_nodes=nodes, max_edges=edges))
    assert np.concatenate(batches).tolist() == order.tolist()
    for batch in batches:
        assert 1 <= len(batch) <= (graphs or len(counts))
        assert not nodes or sizes.nodes[batch].sum() <= nodes
        assert not edges or sizes.edges[batch].sum() <= edges


@settings(deadline=None, max_examples=80)
@given(COUNTS)
def test_a_batch_is_closed_only_when_the_next_graph_would_not_fit(counts: Counts) -> None:
    sizes = sizes_of(counts)
    budget = int(sizes.nodes.max())
    batches = pack(sizes, np.arange(len(counts)), Budget(max_nodes=budget))
    for batch, following in pairwise(batches):
        assert sizes.nodes[batch].sum() + sizes.nodes[following[0]] > budget


def shares_of(batch: np.ndarray, sizes: Sizes, ranks: int) -> list[np.ndarray]:
    return [share_of(batch, costs_of(sizes), ranks, rank) for rank in range(ranks)]


@settings(deadline=None, max_examples=80)
@given(COUNTS, st.integers(1, 9) | st.sampled_from([TEAM + 1, 3 * TEAM, 50]))
def test_sharding_loses_nothing_within_the_bound_of_longest_first(counts: Counts, ranks: int) -> None:
    sizes = sizes_of(counts)
    batch = np.arange(len(counts))[::-1].copy()
    shares = shares_of(batch, sizes, ranks)
    assert len(shares) == ranks
    assert sorted(np.concatenate(shares).tolist()) == sorted(batch.tolist())
    for share in shares:
        positions = [batch.tolist().index(number) for number in share.tolist()]
        assert positions == sorted(positions)
    if ranks > 9:
        return
    costs = costs_of(sizes)[batch]
    longest = max(int(costs_of(sizes)[share].sum()) for share in shares)
    # any list schedule ends at most one job after the mean (Graham 1966), and longest first never beats the largest job
    assert longest <= costs.sum() / ranks + costs.max() * (1 - 1 / ranks) + 1e-9


@pytest.mark.parametrize("ranks", [TEAM, 100, BLOCK + 300])
@pytest.mark.parametrize("spread", [0.5, 1.2])
def test_shares_stay_balanced_with_many_ranks_and_some_much_larger_graphs(ranks: int, spread: float) -> None:
    """Within 2 % of the mean, or of the largest graph where that is more."""
    random = np.random.default_rng(0)
    edges = np.exp(random.normal(6, spread, 24 * ranks)).astype(np.int64)
    sizes = Sizes(nodes=edges // 20 + 1, edges=edges)
    shares = shares_of(random.permutation(len(edges)), sizes, ranks)
    assert sorted(np.concatenate(shares).tolist()) == [*range(len(edges))]
    loads = [int(costs_of(sizes)[share].sum()) for share in shares]
    assert max(loads) <= 1.02 * max(np.mean(loads), costs_of(sizes)[np.arange(len(edges))].max())


@pytest.mark.parametrize(("what", "limit"), [("nodes", 8), ("edges", 30)])
def test_a_graph_larger_than_the_budget_says_how_much_it_needs(what: str, limit: int) -> None:
    sizes = sizes_of([(3, 10), (9, 31), (2, 5)])
    settings = Budget(**{f"max_{what}": limit})
    words = f"graph 1 has {limit + 1} {what}, more than the budget of {limit}; raise batch.max_{what} to at least {limit + 1}"
    refuses(words, pack, sizes, np.array([0, 1, 2]), settings)
    assert len(pack(sizes, np.array([0, 2]), settings)) == 1


BUDGETS = {"graphs": Budget(max_graphs=8), "nodes": Budget(max_nodes=30)}


def labels(loader: Loader, epoch: int, start: int = 0) -> list[tuple[int, list[float]]]:
    return [(graphs, batch["energy"].tolist()) for graphs, batch in loader.epoch(epoch, start)]


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_an_epoch_serves_every_graph_once(store: MemoryStore, budget: Budget, window: int | None) -> None:
    graphs = np.arange(1, 60, 2)
    loader = Loader(store, graphs, budget, seed=3, window=window)
    served_graphs = np.concatenate(loader.batches(0))
    assert sorted(served_graphs.tolist()) == graphs.tolist()
    assert [count for count, _ in loader.epoch(0)] == [len(batch) for batch in loader.batches(0)]
    served = torch.cat([batch["forces"] for _, batch in loader.epoch(0)])
    assert torch.equal(served, store.read(served_graphs)["forces"])


@pytest.mark.parametrize("window", [None, 24])
def test_the_order_depends_on_seed_and_epoch_only(store: MemoryStore, window: int | None) -> None:
    def make(seed: int) -> Loader:
        return Loader(store, np.arange(60), BUDGETS["graphs"], seed=seed, window=window)

    assert labels(make(1), 4) == labels(make(1), 4)
    assert labels(make(1), 4) != labels(make(1), 5)
    assert labels(make(1), 4) != labels(make(2), 4)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_an_epoch_taken_up_in_the_middle_ends_the_same(store: MemoryStore, budget: Budget, window: int | None) -> None:
    loader = Loader(store, np.arange(60), budget, seed=3, window=window)
    whole = labels(loader, 2)
    for start in range(len(whole) + 2):
        assert labels(loader, 2, start) == whole[start:]


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("ranks", [2, 3, 11])
def test_the_ranks_together_hold_the_global_batch(store: MemoryStore, ranks: int, window: int | None) -> None:
    def energies_of(**rank: int) -> list[tuple[int, list[float]]]:
        return labels(Loader(store, np.arange(60), BUDGETS["graphs"], seed=1, window=window, **rank), 0)

    shares = [energies_of(rank=rank, ranks=ranks) for rank in range(ranks)]
    for step, (count, energies) in enumerate(energies_of()):
        together = [energy for share in shares for energy in share[step][1]]
        assert sorted(together) == sorted(energies)
        assert all(share[step][0] == count == len(energies) for share in shares)


def test_ranks_share_work_of_which_nodes_have_what_is_said(store: MemoryStore) -> None:
    loader = Loader(store, np.arange(60), Budget(max_graphs=4), ranks=2, node_cost=3)
    assert loader.costs.tolist() == (store.sizes().edges + 3 * store.sizes().nodes).tolist()


def test_without_shuffling_graphs_come_in_their_order_with_the_asked_fields_alone(store: MemoryStore) -> None:
    loader = Loader(store, np.array([5, 3, 9]), Budget(max_graphs=2), shuffle=False, fields=["energy"])
    assert [batch.tolist() for batch in loader.batches(7)] == [[5, 3], [9]]
    assert all(list(batch.fields) == ["energy"] for _, batch in loader.epoch(0))


def test_a_window_reads_blocks_of_neighbours(store: MemoryStore) -> None:
    loader = Loader(store, np.arange(60), Budget(max_graphs=4), seed=0, window=32)
    first_window = np.concatenate(loader.batches(0))[:32]
    assert sorted(set((first_window // 2).tolist())) != list(range(16))
    assert len(set((first_window // 2).tolist())) == 16  # blocks of two neighbours, each whole


def test_a_graph_beyond_the_budget_is_refused_before_training(store: MemoryStore) -> None:
    refuses("more than the budget of 7", Loader, store, np.arange(60), Budget(max_nodes=7))
