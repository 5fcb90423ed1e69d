"""Geometry around the strangest node, and of whole graphs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector, References, Stored, whitening
from hydragnn.ensemble.domain.view import LARGEST_TABLE, Array, GraphView, Numbers, per_segment

PRIOR = 50
"""Nodes as which the covariance of all kinds counts among those of one kind."""

CLOSER = 0.05
"""Relative distance by which nodes may always be closer than in training."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Neighbourhoods(Detector):
    """Mean and whitening of features per kind; the last for unknown kinds."""

    name: ClassVar[str] = "neighbourhoods"

    species: str
    kinds: Numbers
    mean: Float[Array, "kinds_plus_one features"]
    whitening: Float[Array, "kinds_plus_one features features"]
    shortest: Float[Array, "kinds_plus_one kinds_plus_one"]
    """The shortest edge between two kinds, in units of the scale; infinite where they never were neighbours."""
    lonely: bool
    """True where training had nodes without neighbours."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return distance from the mean, shortest edge, nodes without neighbours."""
        return (Channel(slack=1.0), Channel(slack=CLOSER), Channel(slack=0.1, exact=True))

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return the same."""
        return self.channels

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return distance, closeness and lack of neighbours of the strangest node."""
        return view.largest(self.node_values(view))

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return distance, closeness and lack of neighbours of every node."""
        return view.once(self.name, lambda: self._node_values(view))

    def _node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        kind = self._kind(view)
        of_nodes = np.zeros((view.batch.num_nodes, 3))
        for number in np.unique(kind):
            rows = kind == number
            away = (view.neighbourhoods[rows] - self.mean[number]) @ self.whitening[number].T
            of_nodes[rows, 0] = np.linalg.norm(away, axis=1)
        if len(view.lengths):
            one, other = kind[view.batch.senders.numpy()], kind[view.batch.receivers.numpy()]
            closeness = np.log(self.shortest[one, other] / view.lengths)
            of_nodes[:, 1] = per_segment(np.maximum, closeness[:, None], view.edge_rows)[:, 0].clip(min=0.0)
        of_nodes[:, 2] = 0.0 if self.lonely else np.diff(view.edge_rows) == 0
        return of_nodes

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for what is strange about the node."""
        node = f"node {view.most(graph, self.node_values(view)[:, channel])}"
        return (
            f"{node} has neighbours at distances, or a number of them, unlike those in the training data",
            f"{node} is closer to a neighbour than in the training data, {np.exp(-value):.2g} of the least distance there",
            f"{node} has no neighbours, which the training data never showed",
        )[channel]

    def settings(self) -> dict[str, Any]:
        """Return all that is no tensor."""
        return {"species": self.species, "lonely": self.lonely}

    def tensors(self) -> dict[str, Array]:
        """Return everything else."""
        kinds = self.kinds.astype(np.float64)
        return {"kinds": kinds, "mean": self.mean, "whitening": self.whitening, "shortest": self.shortest}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Neighbourhoods":
        """Return the detector with these tensors."""
        species, features = settings["species"], stored.features
        kinds = stored.kinds("kinds", species) if species else stored.numbers("kinds", 1).astype(np.int64)
        count = len(kinds) + 1
        shortest = stored.numbers("shortest", count, count, largest=np.inf)
        if not (shortest > 0).all():
            raise ValueError("a shortest edge has no length")
        return cls(
            species=species,
            lonely=bool(settings["lonely"]),
            kinds=kinds,
            mean=stored.numbers("mean", count, features),
            whitening=stored.numbers("whitening", count, features, features),
            shortest=shortest,
        )

    def _kind(self, view: GraphView) -> Numbers:
        node_kinds = view.kinds(self.species)
        place = np.minimum(np.searchsorted(self.kinds, node_kinds), len(self.kinds) - 1)
        return np.where(self.kinds[place] == node_kinds, place, len(self.kinds))


class NeighbourhoodsFit:
    """Adds up moments of every kind of node."""

    def __init__(self, species: str) -> None:
        """Take the field of kinds; "" where all nodes are alike."""
        self._species = species
        self._moments: dict[int, tuple[int, Array, Array]] = {}
        self._shortest = np.full((LARGEST_TABLE, LARGEST_TABLE), np.inf)
        self._lonely = False

    def show(self, view: GraphView) -> None:
        """Add some graphs."""
        kinds = view.kinds(self._species)
        for kind in np.unique(kinds).tolist():
            rows = view.neighbourhoods[kinds == kind]
            count, sums, squares = self._moments.get(kind, (0, 0.0, 0.0))
            self._moments[kind] = (count + len(rows), sums + rows.sum(axis=0), squares + rows.T @ rows)
        if len(view.lengths):
            ends = kinds[view.batch.senders.numpy()], kinds[view.batch.receivers.numpy()]
            np.minimum.at(self._shortest, ends, view.lengths)
        self._lonely |= bool((np.diff(view.edge_rows) == 0).any())

    def detectors(self) -> list[Detector]:
        """Return mean and whitening per kind and of all kinds together."""
        if not self._moments:
            return []
        kinds = np.array(sorted(self._moments))
        counts, sums, squares = (np.array([self._moments[kind][part] for kind in kinds.tolist()]) for part in range(3))
        means = sums / counts[:, None]
        scatter = squares - counts[:, None, None] * means[:, :, None] * means[:, None, :]
        within = scatter.sum(axis=0) / counts.sum()
        mean = sums.sum(axis=0) / counts.sum()
        between = squares.sum(axis=0) / counts.sum() - np.outer(mean, mean)
        covariances = [(one + PRIOR * within) / (count + PRIOR) for one, count in zip(scatter, counts)]
        shortest_seen = self._shortest[np.ix_(kinds, kinds)]
        shortest = np.pad(shortest_seen, (0, 1), constant_values=shortest_seen.min())
        shortest = np.where(np.isfinite(shortest), shortest, shortest_seen.min())
        return [
            Neighbourhoods(
                species=self._species,
                kinds=kinds,
                mean=np.vstack([means, mean]),
                whitening=np.array([whitening(one) for one in [*covariances, between]]),
                shortest=shortest,
                lonely=self._lonely,
            )
        ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Structure(Detector):
    """Means and deviations of nodes' features, against the nearest training graph."""

    name: ClassVar[str] = "structure"

    mean: Float[Array, " features"]
    whitening: Float[Array, "features features"]
    references: References
    """Whitened."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the distance."""
        return (Channel(slack=1.0),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the distance from the nearest training graph, in standard deviations."""
        return self.references.distances((graph_features(view) - self.mean) @ self.whitening.T)[:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for a distant graph."""
        return "numbers and distances of neighbours are, over the graph, unlike those of any training graph"

    def tensors(self) -> dict[str, Array]:
        """Return everything."""
        return {"mean": self.mean, "whitening": self.whitening, "references": self.references.points}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Structure":
        """Return the detector with these tensors."""
        features = 2 * stored.features
        return cls(
            mean=stored.numbers("mean", features),
            whitening=stored.numbers("whitening", features, features),
            references=References(stored.numbers("references", None, features), 2),
        )


def graph_features(view: GraphView) -> Float[Array, "graphs features"]:
    """Return mean and standard deviation over the nodes of every graph."""
    counts = np.maximum(np.diff(view.node_rows), 1)[:, None]
    mean = per_segment(np.add, view.neighbourhoods, view.node_rows) / counts
    away = view.neighbourhoods - np.repeat(mean, np.diff(view.node_rows), axis=0)
    return np.concatenate([mean, np.sqrt(per_segment(np.add, away**2, view.node_rows) / counts)], axis=1)


class StructureFit:
    """Collects features of graphs."""

    def __init__(self) -> None:
        self._points: list[Array] = []

    def show(self, view: GraphView) -> None:
        """Note some graphs."""
        self._points.append(graph_features(view))

    def detectors(self) -> list[Detector]:
        """Return the graphs, whitened."""
        if not self._points:
            return []
        points = np.concatenate(self._points)
        mean = points.mean(axis=0)
        matrix = whitening(np.cov(points.T, bias=True).reshape(len(mean), len(mean)))
        return [Structure(mean=mean, whitening=matrix, references=References((points - mean) @ matrix.T, 2))]
