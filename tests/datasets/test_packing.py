"""Packing and sharding lose nothing, repeat nothing and stay within their bounds."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn.datasets import Budget, Sizes, pack, share_of
from hydragnn.datasets.packing import BLOCK, TEAM, costs_of, graph_costs
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
    costs = graph_costs(sizes, batch)
    longest = max(int(graph_costs(sizes, share).sum()) for share in shares)
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
    loads = [int(graph_costs(sizes, share).sum()) for share in shares]
    assert max(loads) <= 1.02 * max(np.mean(loads), graph_costs(sizes, np.arange(len(edges))).max())


@pytest.mark.parametrize(("what", "limit"), [("nodes", 8), ("edges", 30)])
def test_a_graph_larger_than_the_budget_says_how_much_it_needs(what: str, limit: int) -> None:
    sizes = sizes_of([(3, 10), (9, 31), (2, 5)])
    settings = Budget(**{f"max_{what}": limit})
    words = f"graph 1 has {limit + 1} {what}, more than the budget of {limit}; raise batch.max_{what} to at least {limit + 1}"
    refuses(words, pack, sizes, np.array([0, 1, 2]), settings)
    assert len(pack(sizes, np.array([0, 2]), settings)) == 1
