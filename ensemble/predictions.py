"""Predictions of graphs: an estimate per field, status and domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Never

import numpy as np
from jaxtyping import Bool, Float, Int

from hydragnn.base.errors import InputError, nearest
from hydragnn.ensemble.calibration.protocol import AnyCalibration
from hydragnn.ensemble.classes import ClassEstimate
from hydragnn.ensemble.domain import joint_score
from hydragnn.ensemble.estimates import Estimate
from hydragnn.ensemble.members import Outcome
from hydragnn.ensemble.numbers import NumberEstimate
from hydragnn.ensemble.uncertainty import Array
from hydragnn.graphs.texts import NAME, Texts, join_texts
from hydragnn.models import Categorical, Distribution, Normal, Point, Target

ESTIMATES: Mapping[type[Distribution], type[Estimate]] = {
    Point: NumberEstimate,
    Normal: NumberEstimate,
    Categorical: ClassEstimate,
}


def estimates_of(target: Target) -> type[Estimate]:
    """Return the class of estimates of a target's distribution."""
    return ESTIMATES[target.distribution]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Predictions:
    """Estimates for a number of graphs, in their order: ``predictions["energy"].mean``."""

    fields: Mapping[str, Estimate]
    nodes_per_graph: Int[np.ndarray, " graphs"]
    edges_per_graph: Int[np.ndarray, " graphs"]
    status: tuple[str, ...]
    """``ok``, or why a graph failed."""
    domain: tuple[str, ...]
    """Empty where a graph looks like the training data, otherwise what is foreign about it."""
    domain_scores: Mapping[str, Float[Array, " graphs"]] = member(default_factory=dict)
    """By detector, 0 for what is usual and above 1 for what is foreign; NaN for graphs that nothing could be said about."""
    texts: Mapping[str, Texts] = member(default_factory=dict)
    """One text per graph and key, such as its ``name``."""

    def __len__(self) -> int:
        return len(self.status)

    def __iter__(self) -> Never:
        """Raise TypeError; iteration would ask for fields named 0, 1, 2."""
        example = next(iter(self.fields))
        raise TypeError(
            f'predictions are not iterated; take a field by its name, such as predictions["{example}"].mean with the rows of '
            f"{len(self)} graphs, or all of them from predictions.fields"
        )

    def __str__(self) -> str:
        """Return the fields and counts of predicted graphs."""
        foreign = sum(map(bool, self.domain))
        outside = f", {foreign} outside the training domain" if foreign else ""
        return f"{', '.join(self.fields)} of {self.ok.sum()} of {len(self)} graphs{outside}"

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.fields:
            raise InputError(f"there is no prediction of {name}; {nearest(name, list(self.fields))}")
        return self.fields[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every graph; empty where it has none."""
        return tuple(self.texts[NAME]) if NAME in self.texts else ("",) * len(self)

    @property
    def ok(self) -> Bool[np.ndarray, " graphs"]:
        """Return which graphs were predicted."""
        return np.array([status == "ok" for status in self.status], dtype=np.bool_)

    @property
    def domain_score(self) -> Float[Array, " graphs"]:
        """One score of all detectors.

        Above 1 a graph is outside the training domain; NaN where nothing is known.
        """
        return joint_score(self.domain_scores, len(self))

    def graph_of_item(self, name: str) -> Int[np.ndarray, " items"]:
        """The graph that each row of a field belongs to."""
        graphs = np.arange(len(self))
        counts = {"node": self.nodes_per_graph, "edge": self.edges_per_graph}.get(self[name].field.on)
        return graphs if counts is None else np.repeat(graphs, counts)


def combine_outcomes(
    targets: Sequence[Target],
    outcomes: Sequence[Outcome],
    names: Sequence[str],
    weights: Float[Array, " members"],
    calibrations: Mapping[str, AnyCalibration],
    nodes_per_graph: Int[np.ndarray, " graphs"],
    edges_per_graph: Int[np.ndarray, " graphs"],
    reasons: Sequence[str],
) -> Predictions:
    """All members' outcomes on the same graphs as one prediction.

    A graph that one member failed on has failed.

    ``reasons`` says of graphs that are not valid why no member was asked; empty where all were.
    """
    estimates: dict[str, Estimate] = {}
    for target in targets:
        members = [outcome.predictions[target.name] for outcome in outcomes]
        nodes = np.repeat(nodes_per_graph, items_per_graph(target, nodes_per_graph, edges_per_graph))
        estimates[target.name] = estimates_of(target).of(target, members, weights, calibrations.get(target.name), nodes)
    status = [
        refused or next((f"member {name}: {reason}" for name, reason in zip(names, others) if reason), "ok")
        for refused, *others in zip(reasons, *(outcome.reasons for outcome in outcomes))
    ]
    return Predictions(
        fields=estimates,
        nodes_per_graph=nodes_per_graph,
        edges_per_graph=edges_per_graph,
        status=tuple(status),
        domain=("",) * len(status),
    )


def items_per_graph(
    target: Target, nodes: Int[np.ndarray, " graphs"], edges: Int[np.ndarray, " graphs"]
) -> Int[np.ndarray, " graphs"]:
    """Return the number of items of a target in every graph."""
    return {"node": nodes, "edge": edges}.get(target.field.on, np.ones_like(nodes))


def nothing(targets: Sequence[Target], members: int, nodes: int, edges: int, reason: str) -> Predictions:
    """The prediction for one graph that could not even be tried."""
    items = {"node": nodes, "edge": edges, "graph": 1}
    return Predictions(
        fields={one.name: estimates_of(one).blank(one, members, items[one.field.on]) for one in targets},
        nodes_per_graph=np.array([nodes]),
        edges_per_graph=np.array([edges]),
        status=(reason,),
        domain=("",),
    )


def concatenate_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of consecutive graphs as one."""
    return Predictions(
        fields={
            name: type(first).join_parts([part[name] for part in parts]) for name, first in parts[0].fields.items()
        },
        nodes_per_graph=np.concatenate([part.nodes_per_graph for part in parts]),
        edges_per_graph=np.concatenate([part.edges_per_graph for part in parts]),
        status=tuple(status for part in parts for status in part.status),
        domain=tuple(flag for part in parts for flag in part.domain),
        domain_scores={name: _scores(parts, name) for part in parts for name in part.domain_scores},
        texts=join_texts([(part.texts, len(part)) for part in parts]),
    )


def _scores(parts: Sequence[Predictions], detector: str) -> Float[Array, " graphs"]:
    """A detector's scores of consecutive graphs; NaN where it said nothing."""
    return np.concatenate([part.domain_scores.get(detector, np.full(len(part), np.nan)) for part in parts])
