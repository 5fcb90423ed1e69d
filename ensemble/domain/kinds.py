"""Kinds, compositions and contacts that training never showed, and unusual statistics of graphs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from hydragnn.ensemble.domain import detector
from hydragnn.ensemble.domain.detector import Array, Channel, Detector, GraphView, Numbers, Stored, per_segment
from hydragnn.ensemble.members.latent import whitening_of
from hydragnn.graphs.batch import GraphBatch, edge_vectors
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
            items, owners = items_of(view.batch, name)
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
        items, owners = items_of(view.batch, name)
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


def items_of(batch: GraphBatch, name: str) -> tuple[Numbers, Numbers]:
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
        numbers, owners = items_of(view.batch, ATOMIC_NUMBERS)
        counts = np.zeros((len(view), len(self.elements)))
        ours = np.isin(numbers, self.elements)
        np.add.at(counts, (owners[ours], np.searchsorted(self.elements, numbers[ours])), 1.0)
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


RIDGE = 0.01
"""Least variance of a direction, over the mean one."""

ALIKE = 0.1
"""Distance that is added to all, so that copies are no measure."""

NEAREST = 5
"""Training graphs with which a graph is compared."""

SHELLS = 10
"""Distances up to the scale at which neighbours are counted."""

FEW = 0.1
"""Least deviation of these numbers, so that one close pair is little."""

SIDED = 0.01
"""Least deviation of one-sidedness, so that perfect crystals are alike; beside a vacancy a node has some .08."""

OF_EDGES = 3 + SHELLS
"""Statistics of edges: nearest neighbours (mean, largest), one-sidedness, neighbours by distance."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Statistics(Detector):
    """Statistics of graphs, and one-sidedness of nodes."""

    name: ClassVar[str] = "statistics"
    channels: ClassVar = (Channel(slack=0.1),) * 4
    """Mahalanobis distance, that from the nearest training graphs over theirs from each other, two of one-sidedness."""

    columns: Mapping[str, int]
    """Inputs, and how many statistics each has."""
    mean: Float[Array, " statistics"]
    unit: Float[Array, " statistics"]
    """One over standard deviations of training graphs; 0 of constant inputs."""
    whitening: Float[Array, "statistics statistics"]
    training: Float[Array, "graphs statistics"]
    """Whitened statistics of training graphs."""

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return logarithms of distances; what a graph has not is as usual."""
        of_edges = _of_edges(view)
        own = self._away(view, of_edges) @ self.whitening.T
        tree, spacing = _tree(self)
        near, which = tree.query(own, k=range(1, spacing.shape[1] + 1))
        further = (near.mean(axis=1) + ALIKE) / (spacing[which].mean(axis=(1, 2)) + ALIKE)
        distance = np.maximum(np.linalg.norm(own, axis=1), 1e-6)
        return np.stack([np.log(distance), np.log(further), *of_edges[:, OF_EDGES:].T], axis=1)

    def _away(self, view: GraphView, of_edges: Float[Array, "graphs _"]) -> Float[Array, "graphs statistics"]:
        return np.nan_to_num((statistics_of(view, self.columns, of_edges) - self.mean) * self.unit)

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the statistic furthest from its mean in words."""
        away = self._away(view, _of_edges(view))[graph]
        most = int(np.abs(away).argmax())
        if channel > 1:
            return f"neighbours of node {view.most(graph, _one_sided(view)[:, 0])} lie on one side, more so than elsewhere in it"
        if abs(away[most]) < 3:
            return (
                "its numbers of neighbours by distance and its inputs are together unlike those of every training graph"
            )
        names = [f"the {which} distance of its nodes to their nearest neighbours" for which in ("mean", "largest")]
        names += [
            "the share of neighbours on one side",
            *(f"the number of neighbours at {view.scale * n / SHELLS:.3g}" for n in range(SHELLS)),
        ]
        for name, count in self.columns.items():
            classes = view.batch.fields[name].classes if name in view.batch.fields else 0
            whats = [f"share of class {n}" for n in range(classes)] or ["mean", "standard deviation"]
            names += [f"the {what} of its {name}" for what in whats for _ in range(count // len(whats))]
        side = "above" if away[most] > 0 else "below"
        return f"{names[most]} is {abs(away[most]):.2g} standard deviations {side} its mean over training graphs"

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Statistics":
        """Return the detector with these tensors."""
        columns = {str(name): int(count) for name, count in settings["columns"].items()}
        if columns != {name: stored.fields[name].classes or 2 * stored.fields[name].width for name in columns}:
            raise ValueError("inputs have other statistics")
        size = OF_EDGES + sum(columns.values())
        shapes = {"mean": (size,), "unit": (size,), "whitening": (size, size), "training": (None, size)}
        own = cls(columns=columns, **{name: stored.numbers(name, *shape) for name, shape in shapes.items()})
        if not len(own.training):
            raise ValueError("there are no statistics of training graphs")
        return own


def fitted_statistics(training: Iterable[GraphView], inputs: Sequence[Field]) -> list[Detector]:
    """Return the statistics of training graphs; none without graphs.

    Components of vectors turn with a graph, and have none.
    """
    tables = [one for one in inputs if one.parity == "scalar" and max(one.width, one.classes) <= detector.LARGEST_TABLE]
    columns = {one.name: one.classes or 2 * one.width for one in tables}
    seen = [statistics_of(view, columns, _of_edges(view)) for view in training]
    rows = np.concatenate([np.zeros((0, OF_EDGES + sum(columns.values()))), *seen])
    has = np.isfinite(rows)
    counts = np.maximum(has.sum(axis=0), 1)
    mean = np.where(has, rows, 0.0).sum(axis=0) / counts
    away = np.where(has, rows - mean, 0.0)
    deviation = np.sqrt((away**2).sum(axis=0) / counts)
    deviation[2:OF_EDGES] = np.maximum(deviation[2:OF_EDGES], [SIDED, *[FEW] * SHELLS])
    differs = deviation > 1e-6 * (np.abs(mean) + 1e-6)
    if not len(rows):
        return []
    unit = np.where(differs, 1 / np.where(differs, deviation, 1.0), 0.0)
    moments = (away * unit).T @ (away * unit) / len(rows)
    whitening = np.ascontiguousarray(whitening_of(moments, RIDGE * len(differs) / differs.sum()))
    own = (away * unit) @ whitening.T
    return [Statistics(columns=columns, mean=mean, unit=unit, whitening=whitening, training=own)]


@lru_cache(maxsize=4)
def _tree(of: Statistics) -> tuple[KDTree, Float[Array, "graphs nearest"]]:
    """Return training graphs as a tree, and distances from their nearest."""
    tree, nearest = KDTree(of.training), max(1, min(NEAREST, len(of.training) - 1))
    return tree, np.nan_to_num(tree.query(of.training, k=range(2, nearest + 2))[0], posinf=0.0)


def statistics_of(
    view: GraphView, columns: Mapping[str, int], of_edges: Float[Array, "graphs _"]
) -> Float[Array, "graphs statistics"]:
    """Return statistics of edges and of inputs; NaN without them."""
    batch, result = view.batch, [of_edges[:, :OF_EDGES]]
    for name, count in columns.items():
        own = np.full((len(view), count), np.nan)
        if field := batch.fields.get(name):
            values, rows = batch[name].reshape(-1, field.width).numpy(), batch.offsets(field.on).numpy()
            if field.classes:
                place = np.repeat(batch.owner(field.on).numpy(), field.width) * field.classes + values.ravel()
                own = np.bincount(place, minlength=own.size).reshape(own.shape) / np.maximum(np.diff(rows), 1)[:, None]
            else:
                mean, square = (_means(values.astype(np.float64) ** power, rows) for power in (1, 2))
                own = np.concatenate([mean, np.sqrt(np.maximum(square - mean**2, 0.0))], axis=1)
            own[~batch.present(name).numpy()] = np.nan
        result.append(own)
    return np.concatenate(result, axis=1)


def _of_edges(view: GraphView) -> Float[Array, "graphs _"]:
    """Return statistics of edges and of one-sidedness; NaN without edges."""
    if not len(view.lengths):
        return np.full((len(view), OF_EDGES + 2), np.nan)
    nearest, rows = per_segment(np.minimum, view.lengths[:, None], view.edge_rows), view.edge_rows[view.node_rows]
    distances = np.concatenate([_means(nearest, view.node_rows), view.largest(nearest)], axis=1)
    distances = np.log(np.maximum(distances, 1e-9))
    from_shells = np.minimum(np.abs(view.lengths[:, None] * SHELLS - np.arange(SHELLS)), 1.0)
    shells = (
        per_segment(np.add, 0.5 + 0.5 * np.cos(np.pi * from_shells), rows)
        / np.maximum(np.diff(view.node_rows), 1)[:, None]
    )
    sided = _one_sided(view)
    norms = [_means(sided**power, view.node_rows) ** (1 / power) for power in (1, 2, 4)]
    pairs = [np.log((more + SIDED) / (less + SIDED)) for more, less in zip((view.largest(sided), norms[2]), norms)]
    return np.where(np.diff(rows)[:, None] > 0, np.concatenate([distances, norms[0], shells, *pairs], axis=1), np.nan)


def _one_sided(view: GraphView) -> Float[Array, "nodes 1"]:
    """Return the length of the mean direction of neighbours, where nearer ones weigh more."""
    weights = 1 + np.cos(np.pi * np.minimum(view.lengths, 1.0))[:, None]
    directions = edge_vectors(view.batch).numpy() / (view.scale * view.lengths[:, None])
    sums, total = (per_segment(np.add, weights * one, view.edge_rows) for one in (directions, np.ones_like(weights)))
    return np.asarray(np.linalg.norm(sums, axis=1, keepdims=True) / np.maximum(total, 1e-9))


def _means(items: Float[Array, "items columns"], rows: Int[Numbers, " ends"]) -> Float[Array, "graphs columns"]:
    return per_segment(np.add, items, rows) / np.maximum(np.diff(rows), 1)[:, None]
