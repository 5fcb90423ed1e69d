"""The loader's batches depend on seed and epoch alone, and can be taken up at any step."""

import numpy as np
import pytest
import torch

from hydragnn.datasets import Budget, Loader, MemoryStore
from tests.refusals import refuses

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
