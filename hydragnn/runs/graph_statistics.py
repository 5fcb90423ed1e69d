"""Statistics of the training part that models need."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.architectures import GraphStatistics, Statistic
from hydragnn.datasets.manifest import cutoff_of
from hydragnn.distributed.sharing import first_ranks_value
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import in_ase_units, length_in_angstrom
from hydragnn.layers import CloseRangeLimits
from hydragnn.layers.close_range import USUAL, bonds, nuclear_repulsion, screening, shortest_distances
from hydragnn.models import ModelDescription, read_description
from hydragnn.models.description import MOST_SPECIES, degree_sums, merged_degrees, species_in
from hydragnn.runs.attempt import keep_beating
from hydragnn.runs.preparation import BranchData, RunData
from hydragnn.runs.statistics_cache import Caches, StatisticsCache, digest_of, training_rows

RowOf = Callable[[NDArray[np.int64]], NDArray[np.float64]]
Reduce = Callable[[NDArray[np.float64]], NDArray[Any]]

SAMPLE, PIECES = 200, 12
"""Graphs (and as many nearest) whose forces measure pair forces, and linear pieces of those in the logarithm of distances."""
SOFTEST = 0.15
"""Least force of a pair at its shortest distance, as a share of that of its nuclei."""
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
    """Return a reduction of rows of the training part; collective."""
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

    of = {"what": "species"}
    return cached_rows(branch, cache, of, MOST_SPECIES + 1, present, lambda rows: np.flatnonzero(rows.sum(0)))


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
        """Return inverse shortest distances (0: none), numbers of graphs, and nearest graphs."""
        numbers, topology = batch.nodes[ATOMIC_NUMBERS], batch.topology
        ends = torch.stack([numbers[topology.senders], numbers[topology.receivers]]).sort(dim=0).values
        inverse, owners = 1 / (edge_vectors(batch).double().norm(dim=1) * self.angstrom), batch.owner("edge")
        row = np.zeros((3, len(self.pairs)))
        for number, (a, b) in enumerate(self.pairs):
            if len(of := ((ends[0] == a) & (ends[1] == b)).nonzero().flatten()):
                nearest = of[inverse[of].argmax()]
                row[:, number] = float(inverse[nearest]), len(owners[of].unique()), int(owners[nearest])
        return row.flatten()

    def limits(self, rows: NDArray[np.float64]) -> CloseRangeLimits:
        """Return the limits of all rows."""
        largest, graphs, _ = np.split(merged(rows), 3)
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
    """Return one row: maxima, sums, and graphs of the maxima."""
    largest, graphs, nearest = np.split(rows, 3, axis=1)
    row = np.take_along_axis(nearest, largest.argmax(axis=0)[None], axis=0)[0]
    return np.concatenate([largest.max(axis=0), graphs.sum(axis=0), row])


def close_range_of(
    models: Sequence[ModelDescription], data: RunData, caches: Caches, begun: Path | None
) -> list[ModelDescription]:
    """Return the descriptions with the limits of all training parts; collective."""
    if begun is not None and (begun / "model.json").is_file():  # a run that goes on keeps its own
        return [replace(model, close_range=read_description(begun, model.branch)[0].close_range) for model in models]
    if not any(model.repels for model in models):
        return list(models)
    species = sorted({number for one in map(species_of, data.branches, caches) for number in one})
    settings = []
    for model, branch in zip(models, data.branches):
        angstrom = length_in_angstrom(branch.store.attributes)
        reach = getattr(model.model, "cutoff", None) or cutoff_of(branch.store.attributes)
        settings.append(Closest(species=species, cutoff=reach and reach * angstrom, angstrom=angstrom))
    rows = [_rows(*one) for one in zip(data.branches, caches, settings)]
    described = []
    for model, branch, cache, of, own in zip(models, data.branches, caches, settings, rows):
        limits = of.limits(np.concatenate(rows))
        names = [head.derivatives["forces"] for head in model.heads if "forces" in head.derivatives]
        shares = _stiffness(branch, cache, names[0], limits, dict(zip(of.pairs, own.reshape(3, -1).T))) if names else []
        limits = replace(limits, stiffness=tuple(map(tuple, shares)), energies=energies_of(model, branch))
        described.append(replace(model, close_range=limits))
    return described


def _stiffness(
    branch: BranchData, cache: StatisticsCache, name: str, limits: CloseRangeLimits, columns: dict[Any, Any]
) -> Any:
    """Return the stiffness by sampled and nearest graphs; collective."""
    train = branch.split.train
    nearest = [int(columns[a, b][2]) for a, b, _ in limits.shortest if columns[a, b][0]][:SAMPLE]

    def measured() -> Any:
        some = np.union1d(train[:: max(1, len(train) // SAMPLE)], np.array(nearest, np.int64))
        return stiffness_of(branch.store.read(some, [ATOMIC_NUMBERS, name]), name, limits)

    key = {"what": "stiffness", "train": digest_of(train), "field": name, "limits": limits.to_json()}
    with keep_beating(cache.heartbeat):
        return cache.value(key, lambda: first_ranks_value(measured, cache.ranks))


def stiffness_of(batch: GraphBatch, name: str, limits: CloseRangeLimits) -> list[tuple[int, int, float]]:
    """Return pair forces at the shortest distances, over those of nuclei.

    A force per pair of elements is fitted to a field of forces, by least squares.
    """
    from scipy.sparse import coo_matrix  # only trainings need them
    from scipy.sparse.linalg import lsqr

    field = batch.fields[name]
    unit = in_ase_units(field.unit, "forces", f"field {name}") if field.unit else 1.0
    present, every = batch.labelled(name).all(dim=1), edge_vectors(batch).double() * limits.angstrom
    edges = present[batch.receivers] & (every.norm(dim=1) > 0)
    if not bool(edges.any()):
        return []
    receivers, vectors = batch.receivers[edges].numpy(), every[edges].numpy()
    ends = batch.nodes[ATOMIC_NUMBERS][torch.stack([batch.senders, batch.receivers])[:, edges]].sort(dim=0).values
    kinds, pair = (one.numpy() for one in torch.unique(ends, dim=1, return_inverse=True))
    lengths, nearest = np.linalg.norm(vectors, axis=1), shortest_distances(limits)[kinds[0], kinds[1]]
    at = torch.from_numpy(nearest).requires_grad_()
    energies = nuclear_repulsion(at, *(torch.from_numpy(table[kinds[0], kinds[1]]) for table in screening()))
    forces_of_nuclei = -torch.autograd.grad(energies.sum(), at)[0].numpy()
    directions = -vectors * (forces_of_nuclei[pair] / lengths)[:, None]  # [edges, 3]
    places = PIECES * np.log(lengths / nearest[pair]) / np.log(1.001 * lengths.max() / nearest)[pair]
    knots = places.astype(np.int64)
    values = np.concatenate([(1 - places + knots)[:, None] * directions, (places - knots)[:, None] * directions])
    rows = np.tile(3 * receivers[:, None] + np.arange(3), (2, 1))
    columns = np.concatenate([knots, knots + 1]) + np.tile((PIECES + 1) * pair, 2)
    forces = torch.where(present[:, None], batch[name].double() * unit, 0.0).flatten().numpy()
    shape = (len(forces), (PIECES + 1) * len(nearest))
    matrix = coo_matrix((values.ravel(), (rows.ravel(), columns.repeat(3))), shape=shape)
    # damped by the usual misfit: in small cells, images of a pair hide its force, and the usual one stays
    usual = np.tile(USUAL * 0.5 ** np.arange(PIECES + 1), len(nearest))
    shares = lsqr(matrix.tocsr(), forces, damp=0.03 * forces.std() + 1e-9, x0=usual)[0][:: PIECES + 1]
    return [(int(a), int(b), round(float(share), 3)) for a, b, share in zip(*kinds, shares.clip(SOFTEST, 1.0))]


def _rows(branch: BranchData, cache: StatisticsCache, closest: Closest) -> NDArray[np.float64]:
    """Return the row of a training part."""
    width = 3 * len(closest.pairs)

    def row(graphs: NDArray[np.int64]) -> NDArray[np.float64]:
        own = closest.row(branch.store.read(graphs, [ATOMIC_NUMBERS]))
        own[2 * width // 3 :] = graphs[own[2 * width // 3 :].astype(np.int64)]
        return own

    of = {"what": "shortest distances and graphs", "species": closest.species, "cutoff": closest.cutoff}
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
