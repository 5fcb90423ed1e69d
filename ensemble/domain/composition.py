"""What graphs consist of: shares of kinds, and which kinds are neighbours, against the nearest training graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector
from hydragnn.ensemble.domain.references import References
from hydragnn.ensemble.domain.stored import Stored
from hydragnn.ensemble.domain.view import LARGEST_TABLE, Array, GraphView, Numbers
from hydragnn.graphs.field import Field

SLACK = 0.02
"""Share of nodes, and of pairs of neighbours, that may always be of another kind."""

PAIRED = 8
"""Kinds of nodes up to which shares of pairs of neighbours are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Composition:
    """Compositions of training graphs."""

    name: ClassVar[str] = "composition"

    known: Mapping[str, Numbers]
    """Per field of classes those that occurred."""
    species: str
    """The field whose pairs of neighbours are looked at."""
    references: References

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The distance."""
        return (Channel(slack=SLACK),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """The share of nodes and of pairs that would have to change for the composition of the nearest training graph."""
        return self.references.distances(shares(view, self.known, self.species))[:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """The share."""
        return f"{value:.2g} of it would have to change to be composed like a training graph"

    def settings(self) -> dict[str, Any]:
        """The fields in their order."""
        return {"fields": list(self.known), "species": self.species}

    def tensors(self) -> dict[str, Array]:
        """Kinds and training graphs."""
        kinds = {f"kinds/{name}": known.astype(np.float64) for name, known in self.known.items()}
        return {**kinds, "references": self.references.points}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Composition":
        """The detector that these are of; ValueError, KeyError or TypeError where they do not fit the graphs."""
        known = {name: stored.kinds(f"kinds/{name}", name) for name in settings["fields"]}
        species = settings["species"]
        points = stored.numbers("references", None, sum(_widths(known, species)))
        return cls(known=known, species=species, references=References(points, 1))


def shares(view: GraphView, known: Mapping[str, Numbers], species: str) -> Float[Array, "graphs features"]:
    """Half the shares of every field's kinds among its items, and of pairs of kinds among edges; unknown kinds are one more.

    Sums of differences between two such rows, over the number of fields and pairs, lie between 0 and 1.
    """
    batch, columns = view.batch, []
    for name, kinds in known.items():
        field = batch.fields.get(name)
        on = field.on if field is not None else "node"
        items = batch[name].reshape(-1).numpy() if field is not None else np.zeros(batch.num_nodes, dtype=np.int64)
        columns.append(_histogram(_position(items, kinds), batch.owner(on).numpy(), len(view), len(kinds) + 1))
    if species in known and len(known[species]) <= PAIRED:
        kind = _position(view.kinds(species), known[species])
        one, other = kind[batch.senders.numpy()], kind[batch.receivers.numpy()]
        least, most = np.minimum(one, other), np.maximum(one, other)
        pairs, count = most * (most + 1) // 2 + least, len(known[species]) + 1
        columns.append(_histogram(pairs, batch.owner("edge").numpy(), len(view), count * (count + 1) // 2))
    return np.concatenate(columns, axis=1) / (2 * len(columns))


def _widths(known: Mapping[str, Numbers], species: str) -> list[int]:
    """How many shares there are of every field, and of pairs of neighbours."""
    widths = [len(kinds) + 1 for kinds in known.values()]
    if species in known and len(known[species]) <= PAIRED:
        count = len(known[species]) + 1
        widths.append(count * (count + 1) // 2)
    return widths


class CompositionFit:
    """Collects compositions."""

    def __init__(self, inputs: Sequence[Field], known: Mapping[str, Numbers], species: str) -> None:
        """Of the fields on nodes and edges with few classes, of which ``known`` occur."""
        names = [field.name for field in inputs if field.on != "graph" and 0 < field.classes <= LARGEST_TABLE]
        self._known = {name: known[name] for name in names if name in known}
        self._species = species
        self._points: list[Array] = []

    def show(self, view: GraphView) -> None:
        """Note the compositions of some graphs."""
        if self._known:
            self._points.append(shares(view, self._known, self._species))

    def detectors(self) -> list[Detector]:
        """Compositions that differ from one another."""
        if not self._points:
            return []
        points = np.unique(np.concatenate(self._points).round(6), axis=0)
        return [Composition(known=self._known, species=self._species, references=References(points, 1))]


def _position(kinds: Numbers, known: Numbers) -> Numbers:
    """The place of every kind among those that are known; their number for one that is not."""
    place = np.searchsorted(known, kinds)
    is_known = known[np.minimum(place, len(known) - 1)] == kinds
    return np.where(is_known, place, len(known))


def _histogram(kinds: Numbers, owners: Numbers, graphs: int, count: int) -> Float[Array, "graphs kinds"]:
    """The share of every kind among the items of every graph; zeros for a graph without items."""
    counts = np.bincount(owners * count + kinds, minlength=graphs * count).reshape(graphs, count)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
