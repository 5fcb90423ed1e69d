"""Uncertainty of members about whole graphs, and its detectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from hydragnn.ensemble.domain.detector import Array, Channel, Detector, Doubts, GraphView, Numbers, Stored
from hydragnn.ensemble.estimates.estimate import Estimate
from hydragnn.ensemble.members.latent import LatentSpace
from hydragnn.ensemble.members.member import MemberOutcome
from hydragnn.graphs.field import Location

STATES = "final states"
"""Name among doubts, which no field can have: the distance of states from those of training."""

LISTED = 2
"""Items that a reason names."""


def item_doubts(one: Estimate, weights: Float[Array, " members"]) -> Float[Array, " items"]:
    """Return the doubt about every item before calibration; NaN without one.

    Of classes the entropy. Of numbers the standard deviation between members, as root mean square over components; of one
    member the noise that it predicts.
    """
    values = one[one.doubt_name]
    if one.doubt_name == "std":
        rows = np.flatnonzero(weights)  # of models: a simple predictor is the last
        away = one.members[rows] - np.average(one.members[rows], axis=0, weights=weights[rows])
        values = np.sqrt(np.average(away**2, axis=0, weights=weights[rows])) if len(rows) > 1 else one["aleatoric"]
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    return np.sqrt((flat**2).mean(axis=1)) if flat.shape[1] else np.full(len(flat), np.nan)


def doubts_of(
    estimates: Mapping[str, Estimate],
    owners: Mapping[str, Numbers],
    outcomes: Sequence[MemberOutcome],
    weights: Float[Array, " members"],
) -> tuple[Doubts, dict[str, Array]]:
    """Return doubts about graphs, nodes and items, by target and of states."""
    items = {name: item_doubts(one, weights) for name, one in estimates.items()}
    of_nodes = {name: items[name] for name, one in estimates.items() if one.field.on == "node"}
    graphs = {name: graph_doubts(doubt, owners[name], len(outcomes[0].reasons)) for name, doubt in items.items()}
    speaking, shares = [one for one, weight in zip(outcomes, weights, strict=True) if weight > 0], weights[weights > 0]
    graphs[STATES] = np.average([one.distances for one in speaking], axis=0, weights=shares)
    of_nodes[STATES] = np.average([one.node_distances for one in speaking], axis=0, weights=shares)
    return Doubts(of_graphs=graphs, of_nodes=of_nodes), items


def graph_doubts(
    doubt: Float[Array, " items"], owners: Int[Numbers, " items"], graphs: int
) -> Float[Array, "graphs two"]:
    """Return largest and root mean square doubt per graph, or NaN."""
    fine = np.isfinite(doubt)
    values, own, result = doubt[fine], owners[fine], np.full((graphs, 2), np.nan)
    np.fmax.at(result[:, 0], own, values)
    counts = np.bincount(own, minlength=graphs)
    squares = np.bincount(own, weights=values**2, minlength=graphs)
    result[counts > 0, 1] = np.sqrt(squares[counts > 0] / counts[counts > 0])
    return result


def doubted_items(on: Location, doubt: Float[Array, " items"], owners: Int[Numbers, " items"], graph: int) -> str:
    """Return the items that members doubt most in words; empty of graphs."""
    rows = np.flatnonzero(owners == graph)
    if on == "graph" or not len(rows):
        return ""
    most = np.argsort(-np.nan_to_num(doubt[rows]), kind="stable")[: min(LISTED, len(rows))]
    return f" of {on}{'s' if len(most) > 1 else ''} {' and '.join(map(str, sorted(most.tolist())))}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread(Detector):
    """Targets that members may disagree about."""

    name: ClassVar[str] = "spread"

    targets: Mapping[str, str]
    """The kind of doubt about each: std, entropy."""
    per_node: tuple[str, ...]
    """Targets that grow with the number of nodes, whose doubts are divided by it."""
    of_graphs: tuple[str, ...]
    """Targets with one item per graph, which have one channel."""
    of_nodes: tuple[str, ...] = ()
    """Targets on nodes."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return largest and root mean square doubt within a graph per target."""
        return tuple(Channel(slack=0.1) for _ in self.columns)

    @property
    def columns(self) -> list[tuple[str, int]]:
        """Return every channel's target, and 0 (largest) or 1 (mean square)."""
        return [(name, column) for name in self.targets for column in range(1 if name in self.of_graphs else 2)]

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return logarithms of doubts within every graph."""
        nodes = np.maximum(np.diff(view.node_rows), 1)
        doubts = view.doubts.of_graphs
        columns = [doubts[name][:, c] / (nodes if name in self.per_node else 1) for name, c in self.columns]
        return np.log(np.maximum(np.stack(columns, axis=1), 1e-30))

    @property
    def node_channels(self) -> tuple[Channel, ...]:
        """Return the doubt about each target on nodes."""
        return tuple(Channel(slack=0.1) for _ in self.of_nodes)

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return logarithms of doubts about every node."""
        columns = [np.zeros((view.batch.num_nodes, 0))]
        columns += [view.doubts.of_nodes[name][:, None] for name in self.of_nodes]
        return np.log(np.maximum(np.concatenate(columns, axis=1), 1e-30))

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return target and doubt in words."""
        name, column = self.columns[channel]
        where = view.items(name, graph) if view.items is not None else ""
        amount = f"{self.targets[name]} {view.doubts.of_graphs[name][graph, column]:.3g}"
        return f"members disagree about {name}{where} ({amount})"

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Spread":
        """Return the detector; ValueError where there is no such target."""
        unknown = [name for name in settings["targets"] if name not in stored.fields]
        if unknown:
            raise ValueError(f"there is no target {unknown[0]}")
        per_node, of_graphs, of_nodes = (tuple(settings[name]) for name in ("per_node", "of_graphs", "of_nodes"))
        if any(name not in settings["targets"] or stored.fields[name].on != "node" for name in of_nodes):
            raise ValueError("a target is not on nodes")
        return cls(targets=dict(settings["targets"]), per_node=per_node, of_graphs=of_graphs, of_nodes=of_nodes)


DISTANCES = (
    "final states of its nodes are unlike those of training graphs",
    "the final state of node {} is unlike those of training graphs",
    "its mean final state is unlike those of training graphs",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Latent(Detector):
    """Final states of training graphs, per member."""

    name: ClassVar[str] = "latent"
    channels: ClassVar = (Channel(slack=0.1),) * len(DISTANCES)
    """Distances: mean and largest of nodes, and of the graph."""
    node_channels: ClassVar = (Channel(slack=0.1),)

    spaces: tuple[LatentSpace, ...]
    """One per member."""

    def values(self, view: GraphView) -> Float[Array, "graphs channels"]:
        """Return logarithms of distances, mean of members."""
        return view.doubts.of_graphs[STATES]

    def node_values(self, view: GraphView) -> Float[Array, "nodes channels"]:
        """Return logarithms of distances, mean of members."""
        return view.doubts.of_nodes[STATES][:, None]

    def reason(self, view: GraphView, graph: int, channel: int, value: float) -> str:
        """Return the distance in words."""
        node = view.most(graph, view.doubts.of_nodes[STATES])
        return f"{DISTANCES[channel].format(node)} (distance {np.exp(value):.3g})"

    def settings(self) -> dict[str, Any]:
        """Return the number of members."""
        return {"members": len(self.spaces)}

    def tensors(self) -> dict[str, Array]:
        """Return matrices per member."""
        return {
            f"{number}{suffix}": values
            for number, space in enumerate(self.spaces)
            for suffix, values in (("", space.whitening), ("/mean", space.mean), ("/of_graphs", space.of_graphs))
        }

    @classmethod
    def load(cls, settings: Mapping[str, Any], stored: Stored) -> "Latent":
        """Return the detector; ValueError unless every member has square matrices."""
        spaces = []
        for number in range(settings["members"]):
            whitening = stored.numbers(str(number), None, None)
            size = len(whitening)
            if whitening.shape[1] != size:
                raise ValueError("second moments of states are no square")
            mean = stored.numbers(f"{number}/mean", size)
            of_graphs = stored.numbers(f"{number}/of_graphs", size, size)
            spaces.append(LatentSpace(whitening=whitening, mean=mean, of_graphs=of_graphs))
        return cls(spaces=tuple(spaces))
