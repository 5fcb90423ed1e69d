"""Nothing is lost, nothing is done twice, everything stays in order and within budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn.datasets import Budget, pack, packing
from hydragnn.datasets.packing import graph_costs
from hydragnn.datasets.store import Sizes
from hydragnn.ensemble.members.plan import Chunks, certificate, chunks_of, default_budget, makespan


def cut_before(chunks: Chunks, graphs: int) -> np.ndarray:
    """Marks graphs of the store before which no batch may go on: those that stand alone, that follow one, or a failed one."""
    marks = np.zeros(graphs + 2, dtype=np.bool_)
    position = 0
    for chunk in chunks:
        if chunk.reason:
            marks[position] = marks[position + len(chunk.graphs)] = True
        position += len(chunk.graphs)
    return marks[:graphs]


@pytest.mark.parametrize("window", [1, 3, packing.WINDOW])
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40), st.booleans()), max_size=40),
    st.integers(0, 5),
    st.integers(4, 30),
)
def test_every_graph_is_in_exactly_one_chunk_and_in_order(
    window: int, graphs: list[tuple[int, int, bool]], max_graphs: int, max_nodes: int
) -> None:
    built = [(n, e) for n, e, failed in graphs if not failed]
    numbers = np.array([i for i, (_, _, failed) in enumerate(graphs) if not failed], dtype=np.int64)
    failures = {i: "duplicate atoms" for i, (_, _, failed) in enumerate(graphs) if failed}
    sizes = Sizes(
        nodes=np.array([n for n, _ in built], dtype=np.int64), edges=np.array([e for _, e in built], dtype=np.int64)
    )
    budget = Budget(max_graphs=max_graphs, max_nodes=max_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "WINDOW", window)
        chunks = chunks_of(sizes, numbers, budget, failures)
    assert [int(n) for chunk in chunks for n in chunk.numbers] == list(range(len(graphs)))
    assert [int(g) for chunk in chunks for g in chunk.graphs] == list(range(len(built)))
    for chunk in chunks:
        if not chunk.reason:
            assert sizes.nodes[chunk.graphs].sum() <= max_nodes
            assert not max_graphs or len(chunk.graphs) <= max_graphs
    fine = [chunk.graphs.tolist() for chunk in chunks if not chunk.reason]
    assert [chunk.load for chunk in chunks] == [float(graph_costs(sizes, chunk.graphs).sum()) for chunk in chunks]
    between = np.split(np.arange(len(built)), np.flatnonzero(cut_before(chunks, len(built))))
    alone = {int(chunk.graphs[0]) for chunk in chunks if chunk.reason and len(chunk.graphs)}
    packed = [pack(sizes, part, budget) for part in between if len(part) and int(part[0]) not in alone]
    assert fine == [graphs.tolist() for batches in packed for graphs in batches]


def test_a_graph_above_the_budget_stands_alone_and_says_what_it_needs() -> None:
    sizes = Sizes(nodes=np.array([2, 9, 2]), edges=np.array([0, 0, 0]))
    chunks = chunks_of(sizes, np.arange(3), Budget(max_nodes=8), {})
    assert [chunk.reason for chunk in chunks] == [
        "",
        "9 nodes are more than the budget of 8; raise batch.max_nodes to at least 9",
        "",
    ]


def test_no_graph_is_too_large_for_the_default_budget() -> None:
    sizes = Sizes(nodes=np.array([5, 5]), edges=np.array([10, 10_000_000]))
    assert not any(chunk.reason for chunk in chunks_of(sizes, np.arange(2), default_budget(sizes), {}))


def test_a_batch_of_small_graphs_has_thousands_of_them() -> None:
    sizes = Sizes(nodes=np.full(20_000, 6), edges=np.full(20_000, 30))
    assert 2000 < len(chunks_of(sizes, None, default_budget(sizes), {})[0].graphs) < 3000


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=60), st.integers(1, 9))
def test_longest_first_is_within_four_thirds_of_the_bound_that_nobody_beats(costs: list[float], workers: int) -> None:
    longest_first = makespan(sorted(costs, reverse=True), workers)
    bound = max(sum(costs) / workers, max(costs))
    assert longest_first >= bound * (1 - 1e-12)
    # Graham 1969: 4/3 - 1/(3 m) of the optimum, and list scheduling never exceeds mean + largest
    assert longest_first <= sum(costs) / workers + max(costs) + 1e-9


def test_the_certificate_of_nothing_is_perfect() -> None:
    assert certificate(np.zeros(0), np.zeros(0), workers=2)["ratio"] == 1.0
