"""Parts of graphs: kinds that training never showed, and their shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import Channel, Detector, References, Stored
from hydragnn.ensemble.domain.view import LARGEST_TABLE, Array, GraphView, Numbers
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field

SLACK = 0.02
"""Share of nodes, and of pairs of neighbours, that may always be of another kind."""

PAIRED = 8
"""Kinds of nodes up to which shares of pairs of neighbours are compared."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kinds(Detector):
    """Kinds of nodes, edges and graphs that occurred, by field of classes."""

    name: ClassVar[str] = "kinds"

    kinds_of: Mapping[str, Numbers]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return one per field."""
        return tuple(Channel(slack=0.1, exact=True) for _ in self.kinds_of)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return 1 for a graph with an unknown kind, else 0."""
        result = np.zeros((len(view), len(self.kinds_of)))
        for channel, name in enumerate(self.kinds_of):
            items, owners = _items(view.batch, name)
            result[owners[~np.isin(items, self.kinds_of[name])], channel] = 1.0
        return result

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return one for all fields of nodes."""
        return (Channel(slack=0.1, exact=True),)

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return 1 for a node of an unknown kind, else 0."""
        result = np.zeros((view.batch.num_nodes, 1))
        for name, kinds_of in self.kinds_of.items():
            field = view.batch.fields.get(name)
            if field is not None and field.on == "node":
                present = view.batch.present(name)[view.batch.owner("node")].numpy()
                unknown = ~np.isin(view.batch[name].reshape(-1, field.width).numpy(), kinds_of).all(axis=1)
                result[present & unknown, 0] = 1.0
        return result

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the kinds that are not known."""
        name = list(self.kinds_of)[channel]
        items, owners = _items(view.batch, name)
        unknown = np.setdiff1d(items[owners == graph], self.kinds_of[name])
        listed = ", ".join(str(kind) for kind in unknown[:5].tolist()) + (", ..." if len(unknown) > 5 else "")
        return f"{name} {listed} {'is' if len(unknown) == 1 else 'are'} not in the training data"

    def settings(self) -> dict[str, Any]:
        """Return the fields in their order."""
        return {"fields": list(self.kinds_of)}

    def tensors(self) -> dict[str, Array]:
        """Return the kinds that occurred."""
        return {name: kinds_of.astype(np.float64) for name, kinds_of in self.kinds_of.items()}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Kinds":
        """Return the detector with these tensors."""
        return cls(kinds_of={name: stored.kinds(name, name) for name in settings["fields"]})


class KindsFit:
    """Notes which kinds occur."""

    def __init__(self, inputs: Sequence[Field]) -> None:
        self._known: dict[str, set[int]] = {field.name: set() for field in inputs if field.classes}

    def show(self, view: GraphView) -> None:
        """Note the kinds of some graphs."""
        for name, kinds_of in self._known.items():
            kinds_of.update(np.unique(_items(view.batch, name)[0]).tolist())

    def detectors(self) -> list[Detector]:
        """Return the kinds that occurred, if there are any."""
        kinds_of = {name: np.array(sorted(kinds), dtype=np.int64) for name, kinds in self._known.items() if kinds}
        return [Kinds(kinds_of=kinds_of)] if kinds_of else []


def _items(batch: GraphBatch, name: str) -> tuple[Numbers, Numbers]:
    """Return the classes of a field with their graphs."""
    if name not in batch.fields:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    field = batch.fields[name]
    of_items = batch.owner(field.on)
    is_present = batch.present(name)[of_items].numpy()
    owners = np.repeat(of_items.numpy()[is_present], field.width)
    return batch[name].reshape(-1, field.width).numpy()[is_present].reshape(-1), owners


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OpenReferences(Detector):
    """Compositions whose reference energies follow from those of training graphs."""

    name: ClassVar[str] = "references"

    elements: Numbers
    """Atomic numbers of labelled training graphs."""
    directions: Float[Array, "open elements"]
    """Orthonormal directions of counts that no training graph has."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return one."""
        return (Channel(slack=0.1, exact=True),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return 1 for a composition that is no sum of those of training graphs, else 0."""
        numbers, owners = _items(view.batch, ATOMIC_NUMBERS)
        counts = np.zeros((len(view), len(self.elements)))
        known = np.isin(numbers, self.elements)
        np.add.at(counts, (owners[known], np.searchsorted(self.elements, numbers[known])), 1.0)
        away = np.abs(counts @ self.directions.T).max(axis=1, keepdims=True, initial=0.0)
        return np.asarray(away > 1e-6 * np.maximum(np.diff(view.node_rows), 1)[:, None]).astype(np.float64)

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the cause in words."""
        return "compositions of training graphs do not determine the reference energy of its composition"

    def settings(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def tensors(self) -> dict[str, Array]:
        """Return elements and directions."""
        return {"elements": self.elements.astype(np.float64), "directions": self.directions}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "OpenReferences":
        """Return the detector with these tensors."""
        elements = stored.kinds("elements", ATOMIC_NUMBERS)
        return cls(elements=elements, directions=stored.numbers("directions", None, len(elements)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Composition(Detector):
    """Shares of kinds and of neighbouring kinds, against the nearest training graph."""

    name: ClassVar[str] = "composition"

    kinds_of: Mapping[str, Numbers]
    """Kinds that occurred, by field of classes."""
    species: str
    """The field whose pairs of neighbours are compared."""
    references: References

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the distance."""
        return (Channel(slack=SLACK),)

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return the shares that differ from the nearest training graph."""
        return self.references.distances(shares(view, self.kinds_of, self.species))[:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the share in words."""
        return f"{value:.2g} of it would have to change to be composed like a training graph"

    def settings(self) -> dict[str, Any]:
        """Return the fields in their order."""
        return {"fields": list(self.kinds_of), "species": self.species}

    def tensors(self) -> dict[str, Array]:
        """Return kinds and training graphs."""
        kinds = {f"kinds/{name}": kinds_of.astype(np.float64) for name, kinds_of in self.kinds_of.items()}
        return {**kinds, "references": self.references.points}

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Composition":
        """Return the detector with these tensors."""
        kinds_of = {name: stored.kinds(f"kinds/{name}", name) for name in settings["fields"]}
        species = settings["species"]
        widths = [len(kinds) + 1 for kinds in kinds_of.values()]
        if species in kinds_of and len(kinds_of[species]) <= PAIRED:
            widths.append(_pairs_of(len(kinds_of[species]) + 1))
        points = stored.numbers("references", None, sum(widths))
        return cls(kinds_of=kinds_of, species=species, references=References(points, 1))


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
        """Return compositions that differ from one another."""
        if not self._points:
            return []
        points = np.unique(np.concatenate(self._points).round(6), axis=0)
        return [Composition(kinds_of=self._known, species=self._species, references=References(points, 1))]


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
        pairs, count = most * (most + 1) // 2 + least, _pairs_of(len(kinds_of[species]) + 1)
        columns.append(_histogram(pairs, batch.owner("edge").numpy(), len(view), count))
    return np.concatenate(columns, axis=1) / (2 * len(columns))


def _pairs_of(kinds: int) -> int:
    return kinds * (kinds + 1) // 2


def _position(kinds: Numbers, kinds_of: Numbers) -> Numbers:
    """Return the position of every kind; one past the last where unknown."""
    place = np.searchsorted(kinds_of, kinds)
    is_known = kinds_of[np.minimum(place, len(kinds_of) - 1)] == kinds
    return np.where(is_known, place, len(kinds_of))


def _histogram(kinds: Numbers, owners: Numbers, graphs: int, count: int) -> Float[Array, "graphs kinds"]:
    """Return the share of every kind per graph; zeros without items."""
    counts = np.bincount(owners * count + kinds, minlength=graphs * count).reshape(graphs, count)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
