"""Broken geometry: nodes closer than in training, and nodes without neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector, Stored
from hydragnn.ensemble.domain.view import LARGEST_TABLE, Array, GraphView, Numbers, per_segment

CLOSER = 0.05
"""Relative distance by which nodes may always be closer than in training."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contacts(Detector):
    """Shortest edges between kinds; the last stands for unknown ones."""

    name: ClassVar[str] = "contacts"

    species: str
    kinds: Numbers
    shortest: Float[Array, "kinds_plus_one kinds_plus_one"]
    """The shortest edge between two kinds, in units of the scale; the shortest of all where they never were neighbours."""
    lonely: bool
    """True where training had nodes without neighbours."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return shortest edge, and nodes without neighbours."""
        return (Channel(slack=CLOSER), Channel(slack=0.1, exact=True))

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return the same."""
        return self.channels

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return closeness and lack of neighbours of the strangest node."""
        return view.largest(self.node_values(view))

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return closeness and lack of neighbours of every node."""
        of_nodes = np.zeros((view.batch.num_nodes, 2))
        if len(view.lengths):
            kinds = view.kinds(self.species)
            place = np.minimum(np.searchsorted(self.kinds, kinds), len(self.kinds) - 1)
            kind = np.where(self.kinds[place] == kinds, place, len(self.kinds))
            one, other = kind[view.batch.senders.numpy()], kind[view.batch.receivers.numpy()]
            closeness = np.log(self.shortest[one, other] / view.lengths)
            of_nodes[:, 0] = per_segment(np.maximum, closeness[:, None], view.edge_rows)[:, 0].clip(min=0.0)
        of_nodes[:, 1] = 0.0 if self.lonely else np.diff(view.edge_rows) == 0
        return of_nodes

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the words for what is strange about the node."""
        node = f"node {view.most(graph, self.node_values(view)[:, channel])}"
        return (
            f"{node} is closer to a neighbour than in the training data, {np.exp(-value):.2g} of the least distance there",
            f"{node} has no neighbours, which the training data never showed",
        )[channel]

    def settings(self) -> dict[str, Any]:
        """Return all that is no tensor."""
        return {"species": self.species, "lonely": self.lonely}

    def tensors(self) -> dict[str, Array]:
        """Return everything else."""
        return {"kinds": self.kinds.astype(np.float64), "shortest": self.shortest}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Contacts":
        """Return the detector with these tensors."""
        species = settings["species"]
        kinds = stored.kinds("kinds", species) if species else stored.numbers("kinds", 1).astype(np.int64)
        shortest = stored.numbers("shortest", len(kinds) + 1, len(kinds) + 1, largest=np.inf)
        if not (shortest > 0).all():
            raise ValueError("a shortest edge has no length")
        return cls(species=species, lonely=bool(settings["lonely"]), kinds=kinds, shortest=shortest)


class ContactsFit:
    """Notes the shortest edge between every two kinds of nodes."""

    def __init__(self, species: str) -> None:
        """Take the field of kinds; "" where all nodes are alike."""
        self._species = species
        self._kinds: set[int] = set()
        self._shortest = np.full((LARGEST_TABLE, LARGEST_TABLE), np.inf)
        self._lonely = False

    def show(self, view: GraphView) -> None:
        """Note the edges of some graphs."""
        kinds = view.kinds(self._species)
        self._kinds.update(np.unique(kinds).tolist())
        if len(view.lengths):
            ends = kinds[view.batch.senders.numpy()], kinds[view.batch.receivers.numpy()]
            np.minimum.at(self._shortest, ends, view.lengths)
        self._lonely |= bool((np.diff(view.edge_rows) == 0).any())

    def detectors(self) -> list[Detector]:
        """Return the shortest edges; of strangers the shortest of all."""
        if not self._kinds:
            return []
        kinds = np.array(sorted(self._kinds))
        shortest = np.pad(self._shortest[np.ix_(kinds, kinds)], (0, 1), constant_values=np.inf)
        shortest[~np.isfinite(shortest)] = shortest.min()
        return [Contacts(species=self._species, kinds=kinds, shortest=shortest, lonely=self._lonely)]
