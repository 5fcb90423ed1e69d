"""A training domain from training graphs, with the scores of held-out graphs."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

from hydragnn.datasets import GraphStore, pack
from hydragnn.ensemble.domain import detector
from hydragnn.ensemble.domain.detector import LARGEST_TABLE, Detector, Doubts, GraphView, Numbers, length_scale
from hydragnn.ensemble.domain.domain import Domain, DomainScores, node_values_of, values_of
from hydragnn.ensemble.domain.kinds import Contacts, Kinds, fitted_statistics, items_of
from hydragnn.ensemble.domain.rarity import FALSE_ALARMS, expected_alarms, fitted_rarity
from hydragnn.ensemble.members.plan import default_budget
from hydragnn.ensemble.members.screening import read_screened
from hydragnn.graphs.field import Field
from hydragnn.graphs.levels import is_levels

REFERENCES = 2048
"""Training graphs, at equal steps, whose final states and statistics are fitted; kinds and contacts are of all."""

Graphs = Int[np.ndarray, " graphs"]


def fitted_domain(
    store: GraphStore,
    train: Int[np.ndarray, " train"],
    held_out: Sequence[tuple[Numbers, Doubts]],
    inputs: Sequence[Field],
    read: Sequence[str],
    of_members: Sequence[Detector],
    false_alarms: float = FALSE_ALARMS,
) -> tuple[Domain, DomainScores]:
    """Return the domain of training graphs, and scores of held-out ones.

    ``inputs`` are fields of members, ``read`` the names of all fields to read; detectors ``of_members`` use doubts alone. Graphs
    are held out in parts, each with the doubts of the members that have not seen it. Where training graphs are among them, their scores come from detectors fitted without
    that part.
    """
    batches = (view.batch for _, view in views(store, train, read, 1.0))
    scale = next((length_scale(batch) for batch in batches if batch.num_edges), 1.0)
    inputs = [field for field in inputs if not is_levels(field)]  # numbers of clusters mean nothing

    def fitted(graphs: Graphs) -> tuple[Detector, ...]:
        seen = (view for _, view in views(store, graphs, read, scale))
        references = (view for _, view in views(store, references_of(graphs), read, scale))
        return (*fitted_checks(seen, inputs), *fitted_statistics(references, inputs), *of_members)

    detectors, total = fitted(train), sum(len(graphs) for graphs, _ in held_out)
    if not detectors:
        return Domain(), Domain().scores_of_values(np.zeros((total, 0)))
    channels = channels_of(detectors)
    node_channels = [channel for one in detectors for channel in one.node_channels]
    every = np.full((total, len(channels)), np.nan)
    nodes, owners = [np.zeros((0, len(node_channels)))], [np.zeros(0, dtype=np.int64)]
    first = 0
    for graphs, doubts in held_out:
        rest = np.setdiff1d(train, graphs)
        own = fitted(rest) if len(rest) < len(train) else detectors
        if channels_of(own) == channels:  # else a field occurs in this part alone
            for rows, view in views(store, graphs, read, scale, doubts):
                every[first + rows] = values_of(own, view)
                nodes.append(node_values_of(own, view))
                owners.append(first + np.repeat(rows, np.diff(view.node_rows)))
        first += len(graphs)
    values = every[~np.isnan(every).all(axis=1)]
    domain = Domain(
        detectors=detectors,
        rarity=fitted_rarity(values, channels, false_alarms),
        expected_alarms=expected_alarms(values, channels, false_alarms),
        of_nodes=fitted_rarity(np.concatenate(nodes), node_channels, false_alarms, np.concatenate(owners)),
        scale=scale,
    )
    return domain, domain.scores_of_values(every)


def fitted_checks(seen: Iterable[GraphView], inputs: Sequence[Field]) -> list[Detector]:
    """Return checks of kinds and contacts, from views of training graphs."""
    species = detector.species_field({field.name: field for field in inputs})
    kinds_by_field = {field.name: np.zeros(0, dtype=np.int64) for field in inputs if field.classes}
    kinds, shortest, lonely = np.zeros(0, dtype=np.int64), np.full((LARGEST_TABLE, LARGEST_TABLE), np.inf), False
    for view in seen:
        kinds_by_field = {
            name: np.union1d(kinds_of, items_of(view.batch, name)[0]) for name, kinds_of in kinds_by_field.items()
        }
        own = view.kinds(species)
        kinds, lonely = np.union1d(kinds, own), lonely or bool((np.diff(view.edge_rows) == 0).any())
        if len(view.lengths):
            ends = own[view.batch.senders.numpy()], own[view.batch.receivers.numpy()]
            np.minimum.at(shortest, ends, view.lengths)
    kinds_by_field = {name: kinds_of for name, kinds_of in kinds_by_field.items() if len(kinds_of)}
    checks: list[Detector] = [Kinds(kinds_of=kinds_by_field)] if kinds_by_field else []
    if len(kinds):
        own = np.pad(shortest[np.ix_(kinds, kinds)], (0, 1), constant_values=np.inf)
        own[~np.isfinite(own)] = own.min()  # of strangers the shortest of all
        checks.append(Contacts(species=species, kinds=kinds, shortest=own, lonely=lonely))
    return checks


def references_of(train: Int[np.ndarray, " train"]) -> Int[np.ndarray, " references"]:
    """Return at most ``REFERENCES`` of these graphs, at equal steps."""
    return train[:: max(1, -(-len(train) // REFERENCES))]


def channels_of(detectors: Sequence[Detector]) -> list[detector.Channel]:
    """Return the channels of all detectors in order."""
    return [channel for one in detectors for channel in one.channels]


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
    ends = np.concatenate([[0], np.cumsum(sizes.nodes[graphs])])
    for numbers in pack(sizes, graphs, default_budget(sizes)):
        screening = read_screened(store, numbers, read, read)
        rows = first + np.flatnonzero(screening.fine)
        if screening.valid is not None:
            nodes = ends[first] + np.flatnonzero(np.repeat(screening.fine, sizes.nodes[numbers]))
            own = (doubts or Doubts()).select(rows, nodes)
            yield rows, GraphView(batch=screening.valid, scale=scale, doubts=own)
        first += len(numbers)
