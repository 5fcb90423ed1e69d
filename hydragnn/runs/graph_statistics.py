"""Statistics of the training part that architectures need."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.architectures import GraphStatistics, Statistic
from hydragnn.distributed.ranks import Ranks
from hydragnn.distributed.sharing import shared_rows
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.models.description import MOST_SPECIES, degree_sums, merged_degrees, species_in
from hydragnn.runs.preparation import BranchData, RunData
from hydragnn.runs.statistics_cache import StatisticsCache, digest_of

DEGREE_BLOCK = 4096
"""Graphs whose edges are read at once to count them."""


def training_statistics(
    data: RunData,
    needs: Collection[Statistic],
    ranks: Ranks,
    device: torch.device,
    heartbeat: Callable[[], None],
    bounded: Sequence[str] = (),
) -> GraphStatistics | None:
    """Return the statistics of all branches; None where none are needed.

    ``bounded`` are graph inputs whose ranges are asked for.
    """
    if not needs and not bounded:
        return None
    caches = [
        StatisticsCache(store=one.store, ranks=ranks, device=device, heartbeat=heartbeat) for one in data.branches
    ]
    statistics = merged_degrees(sums for one in map(_degrees_of, data.branches, caches) for sums in one)
    if bounded:
        statistics = replace(statistics, ranges={name: range_of(name, data.branches, caches) for name in bounded})
    if "species" not in needs:
        return statistics
    species = {number for one in map(species_of, data.branches, caches) for number in one}
    return replace(statistics, species=tuple(sorted(species)))


def _degrees_of(branch: BranchData, cache: StatisticsCache) -> list[tuple[float, int, int]]:
    of = {"what": "degrees", "train": digest_of(branch.split.train)}

    def sums(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array(degree_sums(branch.store.read(graphs, [])))

    table = cache.value(of, lambda: training_rows(branch, cache, 3, sums).tolist())
    return [(float(total), int(nodes), int(edges)) for total, nodes, edges in table]


def species_of(branch: BranchData, cache: StatisticsCache) -> list[int]:
    """Return the atomic numbers of the training part, ascending."""
    if ATOMIC_NUMBERS not in {field.name for field in branch.store.fields()}:
        return []

    def present(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        row = np.zeros(MOST_SPECIES + 1)
        row[species_in(branch.store.read(graphs, [ATOMIC_NUMBERS]))] = 1
        return row

    def numbers() -> list[int]:
        rows = training_rows(branch, cache, MOST_SPECIES + 1, present)
        return [int(number) for number in np.flatnonzero(rows.sum(0))]

    return [int(one) for one in cache.value({"what": "species", "train": digest_of(branch.split.train)}, numbers)]


def range_of(name: str, branches: Sequence[BranchData], caches: Sequence[StatisticsCache]) -> tuple[float, float]:
    """Return the least and the largest value of a graph input."""
    ends = []
    for branch, cache in zip(branches, caches):

        def row(graphs: NDArray[np.int64], branch: BranchData = branch) -> NDArray[np.float64]:
            values = branch.store.read(graphs, [name])[name].double()
            return np.array([float(values.min()), float(values.max())])

        rows = training_rows(branch, cache, 2, row)
        ends += [(float(rows[:, 0].min()), float(rows[:, 1].max()))]
    return min(low for low, _ in ends), max(high for _, high in ends)


def training_rows(
    branch: BranchData, cache: StatisticsCache, width: int, row_of: Callable[[NDArray[np.int64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return a row per block of the training part, shared by ranks."""
    indices = branch.split.train

    def row(block: int) -> NDArray[np.float64]:
        cache.heartbeat()
        return row_of(indices[block * DEGREE_BLOCK : (block + 1) * DEGREE_BLOCK])

    return shared_rows(cache.ranks, cache.device)(-(-len(indices) // DEGREE_BLOCK), width, row)
