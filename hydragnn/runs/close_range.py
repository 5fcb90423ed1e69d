"""Shortest distances of the training part, for repulsion."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn.datasets.manifest import cutoff_of
from hydragnn.distributed.ranks import Ranks
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.units import in_ase_units, length_in_angstrom
from hydragnn.layers import CloseRangeLimits
from hydragnn.layers.close_range import bonds
from hydragnn.models import ModelDescription
from hydragnn.runs.graph_statistics import species_of, training_rows
from hydragnn.runs.statistics_cache import StatisticsCache, digest_of
from hydragnn.training.data import BranchData, RunData

OFTEN = 20
"""Graphs in which pairs of elements have limits of their own: shortest distances of fewer say little about the next graph."""


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


def close_range_of(
    models: Sequence[ModelDescription], data: RunData, ranks: Ranks, device: torch.device, heartbeat: Callable[[], None]
) -> list[ModelDescription]:
    """Return the descriptions with the limits of all training parts; collective."""
    if not any(model.repels for model in models):
        return list(models)
    caches = [
        StatisticsCache(store=one.store, ranks=ranks, device=device, heartbeat=heartbeat) for one in data.branches
    ]
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

    def measured() -> list[list[float]]:
        one: list[float] = merged(training_rows(branch, cache, width, row)).tolist()
        return [one]

    of: Mapping[str, Any] = {
        "what": "shortest distances",
        "train": digest_of(branch.split.train),
        "species": closest.species,
    }
    return np.array(cache.value({**of, "cutoff": closest.cutoff}, measured))


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
