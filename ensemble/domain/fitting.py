"""A training domain from training graphs, with the scores of held-out graphs."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from hydragnn.datasets import GraphStore, pack
from hydragnn.ensemble.domain.detector import Channel, Detector, Fit
from hydragnn.ensemble.domain.domain import Domain, DomainScores, values_of
from hydragnn.ensemble.domain.geometry import NeighbourhoodsFit, StructureFit
from hydragnn.ensemble.domain.inputs import InputsFit, StatisticsFit
from hydragnn.ensemble.domain.kinds import CompositionFit, Kinds, KindsFit
from hydragnn.ensemble.domain.rarity import FALSE_ALARMS, fitted_rarity
from hydragnn.ensemble.domain.view import Array, GraphView, Numbers, length_scale, species_field
from hydragnn.ensemble.plan import default_budget
from hydragnn.ensemble.screening import read_screened
from hydragnn.graphs.field import Field
from hydragnn.graphs.levels import is_levels

REFERENCES = 2048
"""Training graphs, at equal steps, that new graphs are compared with one by one; ranges and moments are of all."""

Graphs = Int[np.ndarray, " graphs"]
Doubts = Mapping[str, Float[Array, "graphs _"]]


def fitted_domain(
    store: GraphStore,
    train: Int[np.ndarray, " train"],
    held_out: Graphs,
    inputs: Sequence[Field],
    read: Sequence[str],
    doubts: Doubts,
    of_members: Sequence[Detector],
    false_alarms: float = FALSE_ALARMS,
) -> Domain:
    """Return detectors of the training part with scores of held-out graphs.

    ``inputs`` are fields of members, ``read`` the names of all fields to read; detectors ``of_members`` use doubts alone.
    """
    scale = _scale(store, train, read)
    detectors = _detectors(store, train, inputs, read, scale, of_members)
    if not detectors:
        return Domain()
    values = [values_of(detectors, view) for _, view in views(store, held_out, read, scale, doubts)]
    rarity = fitted_rarity(
        np.concatenate([*values, np.zeros((0, len(channels_of(detectors))))]), channels_of(detectors), false_alarms
    )
    return Domain(detectors=detectors, rarity=rarity, scale=scale)


def cross_fitted_domain(
    store: GraphStore,
    train: Int[np.ndarray, " train"],
    held_out: Sequence[tuple[Numbers, Mapping[str, Array]]],
    inputs: Sequence[Field],
    read: Sequence[str],
    of_members: Sequence[Detector],
    false_alarms: float = FALSE_ALARMS,
) -> tuple[Domain, DomainScores]:
    """Return the domain, and scores where folds hold out every graph.

    Detectors are fitted on all graphs ``train``. Scores of held-out graphs come from detectors fitted without a fold, on the graphs of that
    fold, with doubts of the members that held them out. Scores are NaN for graphs that are not valid.
    """
    scale = _scale(store, train, read)
    detectors = _detectors(store, train, inputs, read, scale, of_members)
    if not detectors:
        nothing = np.zeros((sum(len(graphs) for graphs, _ in held_out), 0))
        return Domain(), Domain().scores_of_values(nothing)
    channels = channels_of(detectors)
    values = []
    for graphs, doubts in held_out:
        without = _detectors(store, np.setdiff1d(train, graphs), inputs, read, scale, of_members)
        values.append(np.full((len(graphs), len(channels)), np.nan))
        if channels_of(without) == channels:  # else a field occurs in this fold alone
            for rows, view in views(store, graphs, read, scale, doubts):
                values[-1][rows] = values_of(without, view)
    together = np.concatenate(values)
    domain = Domain(detectors=detectors, rarity=fitted_rarity(together, channels, false_alarms), scale=scale)
    return domain, domain.scores_of_values(together)


def references_of(train: Int[np.ndarray, " train"]) -> Int[np.ndarray, " references"]:
    """Return at most ``REFERENCES`` of these graphs, at equal steps."""
    return train[:: max(1, -(-len(train) // REFERENCES))]


def channels_of(detectors: Sequence[Detector]) -> list[Channel]:
    """Return the channels of all detectors in order."""
    return [channel for detector in detectors for channel in detector.channels]


def _detectors(
    store: GraphStore,
    train: Int[np.ndarray, " train"],
    inputs: Sequence[Field],
    read: Sequence[str],
    scale: float,
    of_members: Sequence[Detector],
) -> tuple[Detector, ...]:
    """Return all detectors, fitted on these graphs."""
    inputs = [field for field in inputs if not is_levels(field)]  # numbers of clusters mean nothing
    species = species_field({field.name: field for field in inputs})
    detectors = _fitted(store, train, read, scale, [KindsFit(inputs), InputsFit(inputs), NeighbourhoodsFit(species)])
    kinds_of = {name: kinds for one in detectors if isinstance(one, Kinds) for name, kinds in one.kinds_of.items()}
    some = references_of(train)
    fits: list[Fit] = [CompositionFit(inputs, kinds_of, species), StructureFit(), StatisticsFit(inputs)]
    detectors += _fitted(store, some, read, scale, fits)
    return (*detectors, *of_members)


def scores_of(domain: Domain, store: GraphStore, graphs: Graphs, read: Sequence[str], doubts: Doubts) -> DomainScores:
    """Return scores of graphs in a store; NaN where invalid."""
    values = np.full((len(graphs), len(channels_of(domain.detectors))), np.nan)
    for rows, view in views(store, graphs, read, domain.scale, doubts):
        values[rows] = values_of(domain.detectors, view)
    return domain.scores_of_values(values)


def views(
    store: GraphStore, graphs: Graphs, read: Sequence[str], scale: float, doubts: Doubts | None = None
) -> Iterator[tuple[Numbers, GraphView]]:
    """Give the valid graphs batch by batch, with their positions."""
    sizes, first = store.sizes(), 0
    for numbers in pack(sizes, graphs, default_budget(sizes)):
        screening = read_screened(store, numbers, read, read)
        rows = first + np.flatnonzero(screening.fine)
        if screening.valid is not None:
            own = {name: values[rows] for name, values in (doubts or {}).items()}
            yield rows, GraphView(batch=screening.valid, scale=scale, doubts=own)
        first += len(numbers)


def _fitted(
    store: GraphStore, graphs: Graphs, read: Sequence[str], scale: float, fits: Sequence[Fit]
) -> list[Detector]:
    for _, view in views(store, graphs, read, scale):
        for fit in fits:
            fit.show(view)
    return [detector for fit in fits for detector in fit.detectors()]


def _scale(store: GraphStore, graphs: Graphs, read: Sequence[str]) -> float:
    """Return the longest edge of the first batch that has edges."""
    for _, view in views(store, graphs, read, 1.0):
        if view.batch.num_edges:
            return length_scale(view.batch)
    return 1.0
