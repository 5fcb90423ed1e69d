"""Statistics of the training part that models need."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.architectures import GraphStatistics, Statistic
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import in_ase_units, length_in_angstrom
from hydragnn.layers import CloseRangeLimits
from hydragnn.layers.close_range import bonds
from hydragnn.models import ModelDescription
from hydragnn.models.description import MOST_SPECIES, degree_sums, merged_degrees, species_in
from hydragnn.runs.preparation import BranchData, RunData
from hydragnn.runs.statistics_cache import Caches, StatisticsCache, digest_of, training_rows

RowOf = Callable[[NDArray[np.int64]], NDArray[np.float64]]
Reduce = Callable[[NDArray[np.float64]], NDArray[Any]]

OFTEN = 20
"""Graphs in which pairs of elements have limits of their own: shortest distances of fewer say little about the next graph."""


def training_statistics(
    data: RunData, caches: Caches, needs: Collection[Statistic], bounded: Sequence[str] = ()
) -> GraphStatistics | None:
    """Return the statistics of all branches; None where none are needed."""
    if not needs and not bounded:
        return None
    statistics = merged_degrees(sums for one in map(_degrees_of, data.branches, caches) for sums in one)
    if bounded:
        statistics = replace(statistics, ranges={name: range_of(name, data.branches, caches) for name in bounded})
    if "species" not in needs:
        return statistics
    species = {number for one in map(species_of, data.branches, caches) for number in one}
    return replace(statistics, species=tuple(sorted(species)))


def cached_rows(
    branch: BranchData, cache: StatisticsCache, of: dict[str, Any], width: int, row: RowOf, reduce: Reduce = np.asarray
) -> list[Any]:
    """Return what a reduction makes of the rows of the training part, computed once; collective."""
    train = branch.split.train
    key = {**of, "train": digest_of(train)}
    result: list[Any] = cache.value(key, lambda: reduce(training_rows(train, cache, width, row)).tolist())
    return result


def _degrees_of(branch: BranchData, cache: StatisticsCache) -> list[tuple[float, int, int]]:
    def sums(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array(degree_sums(branch.store.read(graphs, [])))

    table = cached_rows(branch, cache, {"what": "degrees"}, 3, sums)
    return [(float(total), int(nodes), int(edges)) for total, nodes, edges in table]


def species_of(branch: BranchData, cache: StatisticsCache) -> list[int]:
    """Return the atomic numbers of the training part, ascending."""
    if ATOMIC_NUMBERS not in {field.name for field in branch.store.fields()}:
        return []

    def present(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        row = np.zeros(MOST_SPECIES + 1)
        row[species_in(branch.store.read(graphs, [ATOMIC_NUMBERS]))] = 1
        return row

    return cached_rows(
        branch, cache, {"what": "species"}, MOST_SPECIES + 1, present, lambda rows: np.flatnonzero(rows.sum(0))
    )


def range_of(name: str, branches: Sequence[BranchData], caches: Caches) -> tuple[float, float]:
    """Return the least and the largest value of a graph input."""
    ends = []
    for branch, cache in zip(branches, caches):

        def row(graphs: NDArray[np.int64], branch: BranchData = branch) -> NDArray[np.float64]:
            values = branch.store.read(graphs, [name])[name].double()
            return np.array([float(values.min()), float(values.max())])

        rows = training_rows(branch.split.train, cache, 2, row)
        ends += [(float(rows[:, 0].min()), float(rows[:, 1].max()))]
    return min(low for low, _ in ends), max(high for _, high in ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class Closest:
    """Shortest distances of some graphs."""

    species: list[int]
    cutoff: float | None
    angstrom: float

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs of elements, in the order of a row."""
        return list(combinations_with_replacement(self.species, 2))

    def row(self, batch: GraphBatch) -> NDArray[np.float64]:
        """Return inverse shortest distances (0: none), and graphs with each pair."""
        numbers, topology = batch.nodes[ATOMIC_NUMBERS], batch.topology
        ends = torch.stack([numbers[topology.senders], numbers[topology.receivers]]).sort(dim=0).values
        inverse, owners = 1 / (edge_vectors(batch).double().norm(dim=1) * self.angstrom), batch.owner("edge")
        of_pairs = [(ends[0] == a) & (ends[1] == b) for a, b in self.pairs]
        largest = [float(inverse[of].max()) if bool(of.any()) else 0.0 for of in of_pairs]
        return np.array([*largest, *(float(len(owners[of].unique())) for of in of_pairs)])

    def limits(self, rows: NDArray[np.float64]) -> CloseRangeLimits:
        """Return the limits of all rows."""
        largest, graphs = np.split(merged(rows), 2)
        sums = bonds()
        occurring = [(a, b, float(1 / one), int(n)) for (a, b), one, n in zip(self.pairs, largest, graphs) if one]
        return CloseRangeLimits(
            shortest=tuple((a, b, length) for a, b, length, count in occurring if count >= OFTEN),
            share=min((length / float(sums[a, b]) for a, b, length, _ in occurring), default=0.0),
            species=tuple(self.species),
            cutoff=self.cutoff,
            angstrom=self.angstrom,
        )


def merged(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one row: maxima of the first half, sums of the second."""
    largest, graphs = np.split(rows, 2, axis=1)
    return np.concatenate([largest.max(axis=0), graphs.sum(axis=0)])


def close_range_of(models: Sequence[ModelDescription], data: RunData, caches: Caches) -> list[ModelDescription]:
    """Return the descriptions with the limits of all training parts; collective."""
    if not any(model.repels for model in models):
        return list(models)
    species = sorted({number for one in map(species_of, data.branches, caches) for number in one})
    settings = []
    for model, branch in zip(models, data.branches):
        angstrom = length_in_angstrom(branch.store.attributes)
        reach = getattr(model.model, "cutoff", None) or cutoff_of(branch.store.attributes)
        cutoff = None if reach is None else reach * angstrom
        settings.append(Closest(species=species, cutoff=cutoff, angstrom=angstrom))
    rows = np.concatenate([_rows(*one) for one in zip(data.branches, caches, settings)])
    return [
        replace(model, close_range=replace(of.limits(rows), energies=energies_of(model, branch)))
        for model, of, branch in zip(models, settings, data.branches)
    ]


def _rows(branch: BranchData, cache: StatisticsCache, closest: Closest) -> NDArray[np.float64]:
    """Return the row of a training part."""
    width = 2 * len(closest.pairs)

    def row(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        return closest.row(branch.store.read(graphs, [ATOMIC_NUMBERS]))

    of = {"what": "shortest distances", "species": closest.species, "cutoff": closest.cutoff}
    return np.array(cached_rows(branch, cache, of, width, row, lambda rows: merged(rows)[None]))


def energies_of(model: ModelDescription, branch: BranchData) -> dict[str, float]:
    """Return the normalised unit in eV of energies with derivatives."""
    energies = {}
    for head in model.heads:
        if head.kind != "energy" or not head.derivatives:
            continue
        field = model.fields[head.field]
        std = branch.normalisation.scales[field.name].std[0]
        factor = in_ase_units(field.unit, "energy", f"field {field.name}") if field.unit else 1.0
        energies[field.name] = std * factor
    return energies
