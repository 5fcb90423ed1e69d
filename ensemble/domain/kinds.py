"""Kinds, compositions and contacts that training never showed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from hydragnn.ensemble.domain.detector import (
    LARGEST_TABLE,
    Array,
    Channel,
    Detector,
    GraphView,
    Numbers,
    Stored,
    per_segment,
)
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import ATOMIC_NUMBERS, Field


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kinds(Detector):
    """Kinds of nodes, edges and graphs that occurred, by field of classes."""

    name: ClassVar[str] = "kinds"
    node_channels: ClassVar = (Channel(slack=0.1, exact=True),)
    """One for all fields of nodes."""

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
    channels: ClassVar = (Channel(slack=0.1, exact=True),)

    elements: Numbers
    """Atomic numbers of labelled training graphs."""
    directions: Float[Array, "open elements"]
    """Orthonormal directions of counts that no training graph has."""

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return 1 for a composition that references leave open, else 0."""
        numbers, owners = _items(view.batch, ATOMIC_NUMBERS)
        counts = np.zeros((len(view), len(self.elements)))
        known = np.isin(numbers, self.elements)
        np.add.at(counts, (owners[known], np.searchsorted(self.elements, numbers[known])), 1.0)
        away = np.abs(counts @ self.directions.T).max(axis=1, keepdims=True, initial=0.0)
        return np.asarray(away > 1e-6 * np.maximum(np.diff(view.node_rows), 1)[:, None]).astype(np.float64)

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the cause in words."""
        return "compositions of training graphs do not determine the reference energy of its composition"

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "OpenReferences":
        """Return the detector with these tensors."""
        elements = stored.kinds("elements", ATOMIC_NUMBERS)
        return cls(elements=elements, directions=stored.numbers("directions", None, len(elements)))


CLOSER = 0.05
"""Relative distance by which nodes may always be closer than in training."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contacts(Detector):
    """Shortest edges between kinds; the last stands for unknown ones."""

    name: ClassVar[str] = "contacts"
    channels: ClassVar = (Channel(slack=CLOSER), Channel(slack=0.1, exact=True))
    """Shortest edge, and lack of neighbours."""
    node_channels: ClassVar = channels

    species: str
    kinds: Numbers
    shortest: Float[Array, "kinds_plus_one kinds_plus_one"]
    """The shortest edge between two kinds, in units of the scale; the shortest of all where they never were neighbours."""
    lonely: bool
    """True where training had nodes without neighbours."""

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
    """Notes the shortest edge between every two kinds of nodes, and spacings."""

    def __init__(self, species: str) -> None:
        """Take the field of kinds; "" where all nodes are alike."""
        self._species = species
        self._kinds: set[int] = set()
        self._shortest = np.full((LARGEST_TABLE, LARGEST_TABLE), np.inf)
        self._lonely, self._spacings = False, [np.zeros((0, 2))]

    def show(self, view: GraphView) -> None:
        """Note the edges of some graphs."""
        kinds = view.kinds(self._species)
        self._kinds.update(np.unique(kinds).tolist())
        if len(view.lengths):
            ends = kinds[view.batch.senders.numpy()], kinds[view.batch.receivers.numpy()]
            np.minimum.at(self._shortest, ends, view.lengths)
        self._lonely |= bool((np.diff(view.edge_rows) == 0).any())
        self._spacings.append(spacings_of(view))

    def detectors(self) -> list[Detector]:
        """Return the shortest edges, of strangers the shortest of all, and spacings."""
        if not self._kinds:
            return []
        kinds = np.array(sorted(self._kinds))
        shortest = np.pad(self._shortest[np.ix_(kinds, kinds)], (0, 1), constant_values=np.inf)
        shortest[~np.isfinite(shortest)] = shortest.min()
        contacts = Contacts(species=self._species, kinds=kinds, shortest=shortest, lonely=self._lonely)
        spacings = np.concatenate(self._spacings)
        spacings = spacings[~np.isnan(spacings[:, 0])]
        bounds = [spacings.min(axis=0), spacings.max(axis=0)] if len(spacings) else []
        return [contacts, *([Spacing(bounds=np.stack(bounds))] if bounds else [])]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spacing(Detector):
    """Distances to nearest neighbours, of whole graphs."""

    name: ClassVar[str] = "spacing"
    channels: ClassVar = (Channel(slack=CLOSER),) * 2
    """Their mean and the largest."""

    bounds: Float[Array, "2 2"]
    """Least and most of both in training, as logarithms in units of the scale."""

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return how far both are beyond training; 0 without edges."""
        spacings = spacings_of(view)
        return np.nan_to_num(np.maximum(self.bounds[0] - spacings, spacings - self.bounds[1]).clip(min=0.0))

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the distance in words, over the nearest in training."""
        is_finer = spacings_of(view)[graph, channel] < self.bounds[0, channel]
        which, side = ("mean", "largest")[channel], ("below the least", "beyond the most")[1 - is_finer]
        factor = np.exp(-value if is_finer else value)
        return f"the {which} distance of its nodes to their nearest neighbours is {side} in the training data ({factor:.2g} times)"

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Spacing":
        """Return the detector with these bounds."""
        return cls(bounds=stored.numbers("bounds", 2, 2))


def spacings_of(view: GraphView) -> Float[Array, "graphs 2"]:
    """Return logarithms of mean and largest distance to nearest neighbours; NaN without edges."""
    result = np.full((len(view), 2), np.nan)
    if len(view.lengths):
        has_edges = np.diff(view.edge_rows) > 0
        nearest = np.minimum.reduceat(view.lengths, view.edge_rows[:-1][has_edges])
        owners = np.repeat(np.arange(len(view)), np.diff(view.node_rows))[has_edges]
        counts = np.bincount(owners, minlength=len(view))
        result[counts > 0, 0] = (np.bincount(owners, nearest, len(view)) / np.maximum(counts, 1))[counts > 0]
        np.fmax.at(result[:, 1], owners, nearest)
    return np.log(result)
