"""Shares of kinds and of neighbouring kinds, against the nearest training graph."""

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

    kinds_of: Mapping[str, Numbers]
    """Per field of classes those that occurred."""
    species: str
    """The field whose pairs of neighbours are looked at."""
    references: References

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The distance."""
        return (Channel(slack=SLACK),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the shares that differ from the nearest training graph."""
        return self.references.distances(shares(view, self.kinds_of, self.species))[:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """The share."""
        return f"{value:.2g} of it would have to change to be composed like a training graph"

    def settings(self) -> dict[str, Any]:
        """The fields in their order."""
        return {"fields": list(self.kinds_of), "species": self.species}

    def tensors(self) -> dict[str, Array]:
        """Kinds and training graphs."""
        kinds = {f"kinds/{name}": kinds_of.astype(np.float64) for name, kinds_of in self.kinds_of.items()}
        return {**kinds, "references": self.references.points}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Composition":
        """Return the detector with these tensors.

        ValueError, KeyError or TypeError where they do not fit the graphs.

        ValueError, KeyError or TypeError where they do not fit the graphs.
        """
        kinds_of = {name: stored.kinds(f"kinds/{name}", name) for name in settings["fields"]}
        species = settings["species"]
        points = stored.numbers("references", None, sum(_widths(kinds_of, species)))
        return cls(kinds_of=kinds_of, species=species, references=References(points, 1))


def shares(view: GraphView, kinds_of: Mapping[str, Numbers], species: str) -> Float[Array, "graphs features"]:
    """Return half the shares of kinds, and of pairs along edges.

    Sums of differences between two such rows, over the number of fields and pairs, lie between 0 and 1.
    """
    batch, columns = view.batch, []
    for name, kinds in kinds_of.items():
        field = batch.fields.get(name)
        on = field.on if field is not None else "node"
        items = batch[name].reshape(-1).numpy() if field is not None else np.zeros(batch.num_nodes, dtype=np.int64)
        columns.append(_histogram(_position(items, kinds), batch.owner(on).numpy(), len(view), len(kinds) + 1))
    if species in kinds_of and len(kinds_of[species]) <= PAIRED:
        kind = _position(view.kinds(species), kinds_of[species])
        one, other = kind[batch.senders.numpy()], kind[batch.receivers.numpy()]
        least, most = np.minimum(one, other), np.maximum(one, other)
        pairs, count = most * (most + 1) // 2 + least, len(kinds_of[species]) + 1
        columns.append(_histogram(pairs, batch.owner("edge").numpy(), len(view), count * (count + 1) // 2))
    return np.concatenate(columns, axis=1) / (2 * len(columns))


def _widths(kinds_of: Mapping[str, Numbers], species: str) -> list[int]:
    """Return the number of shares of every field, and of pairs."""
    widths = [len(kinds) + 1 for kinds in kinds_of.values()]
    if species in kinds_of and len(kinds_of[species]) <= PAIRED:
        count = len(kinds_of[species]) + 1
        widths.append(count * (count + 1) // 2)
    return widths


class CompositionFit:
    """Collects compositions."""

    def __init__(self, inputs: Sequence[Field], kinds_of: Mapping[str, Numbers], species: str) -> None:
        """Take fields on nodes and edges with few classes."""
        names = [field.name for field in inputs if field.on != "graph" and 0 < field.classes <= LARGEST_TABLE]
        self._known = {name: kinds_of[name] for name in names if name in kinds_of}
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
        return [Composition(kinds_of=self._known, species=self._species, references=References(points, 1))]


def _position(kinds: Numbers, kinds_of: Numbers) -> Numbers:
    """Return the position of every kind; one past the last where unknown."""
    place = np.searchsorted(kinds_of, kinds)
    is_known = kinds_of[np.minimum(place, len(kinds_of) - 1)] == kinds
    return np.where(is_known, place, len(kinds_of))


def _histogram(kinds: Numbers, owners: Numbers, graphs: int, count: int) -> Float[Array, "graphs kinds"]:
    """Return the share of every kind per graph; zeros without items."""
    counts = np.bincount(owners * count + kinds, minlength=graphs * count).reshape(graphs, count)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
