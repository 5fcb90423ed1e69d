"""Predictions of graphs: an estimate per field, status and domain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as member
from typing import Any, Never

import numpy as np
from jaxtyping import Bool, Float, Int

from hydragnn.base.errors import InputError, nearest
from hydragnn.base.shown import Shown
from hydragnn.ensemble.estimates.classes import ClassEstimate
from hydragnn.ensemble.estimates.estimate import Estimate
from hydragnn.ensemble.estimates.moments import Array
from hydragnn.ensemble.estimates.numbers import NumberEstimate
from hydragnn.graphs.texts import NAME, Texts, join_texts
from hydragnn.models import Categorical, Target

MOST = 10
"""Graphs that notebooks show."""


def estimates_of(target: Target) -> type[Estimate]:
    """Return the class of estimates of a target's distribution."""
    return ClassEstimate if issubclass(target.distribution, Categorical) else NumberEstimate


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Predictions(Shown):
    """Estimates for a number of graphs, in their order: ``predictions["energy"].mean``."""

    fields: Mapping[str, Estimate]
    nodes_per_graph: Int[np.ndarray, " graphs"]
    edges_per_graph: Int[np.ndarray, " graphs"]
    status: tuple[str, ...]
    """``ok``, or why a graph failed."""
    domain: tuple[str, ...]
    """Empty where a graph is like the training data, otherwise what is foreign about it."""
    domain_scores: Mapping[str, Float[Array, " graphs"]] = member(default_factory=dict)
    """By detector, 0 for usual graphs, and above 1 in a channel for a twentieth of those like training; NaN where unknown."""
    domain_score: Float[Array, " graphs"]
    """Conformal p-values: 0.01 means that one usual graph in a hundred is as unusual. Beyond all n held-out graphs it is below 1 / (n + 1)
    and ranks only; NaN if unknown."""
    node_domain_score: Float[Array, " nodes"]
    """P-values of nodes, which rank nodes and flag none: of a hundred nodes of graphs like those of training one has 0.01 or less."""
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

    def __repr__(self) -> str:
        return f"Predictions({self})"

    def shown(self) -> Mapping[str, Any]:
        """Return the first graphs with what is predicted of each."""
        columns: dict[str, Sequence[Any]] = {"status": self.status, "outside the domain because": self.domain}
        if any(self.names):
            columns = {"name": self.names, **columns}
        for name, one in self.fields.items():
            if one.field.on == "graph" and not one.field.shape:
                columns[f"{name} {one.field.unit}".strip()] = getattr(one, one.headline)[:MOST].tolist()
                columns[f"{one.doubt_name} of {name}"] = getattr(one, one.doubt_name)[:MOST].tolist()
        rows = [{key: values[graph] for key, values in columns.items()} for graph in range(min(MOST, len(self)))]
        return {f"first {len(rows)} graphs": rows}

    def __getitem__(self, name: str) -> Estimate:
        if name not in self.fields:
            raise InputError(f"there is no prediction of {name}; {nearest(name, list(self.fields))}")
        return self.fields[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of every graph; empty where it has none."""
        return tuple(self.texts[NAME]) if NAME in self.texts else ("",) * len(self)

    @property
    def ok(self) -> Bool[np.ndarray, " graphs"]:
        """Return which graphs were predicted."""
        return np.array([status == "ok" for status in self.status], dtype=np.bool_)

    def graph_of_item(self, name: str) -> Int[np.ndarray, " items"]:
        """Return the graph that each row of a field belongs to."""
        graphs = np.arange(len(self))
        counts = {"node": self.nodes_per_graph, "edge": self.edges_per_graph}.get(self[name].field.on)
        return graphs if counts is None else np.repeat(graphs, counts)

    def with_edges(self, rows: Callable[[], Int[np.ndarray, " edges"]]) -> "Predictions":
        """Return predictions with these rows of edges, if there are such fields."""
        on_edges = {name: one for name, one in self.fields.items() if one.field.on == "edge"}
        if not on_edges:
            return self
        order = rows()
        return replace(self, fields={**self.fields, **{name: one.items(order) for name, one in on_edges.items()}})


def concatenate_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Return predictions of consecutive graphs as one."""
    return Predictions(
        fields={
            name: type(first).join_parts([part[name] for part in parts]) for name, first in parts[0].fields.items()
        },
        nodes_per_graph=np.concatenate([part.nodes_per_graph for part in parts]),
        edges_per_graph=np.concatenate([part.edges_per_graph for part in parts]),
        status=tuple(status for part in parts for status in part.status),
        domain=tuple(flag for part in parts for flag in part.domain),
        domain_scores={
            name: np.concatenate([one.domain_scores.get(name, np.full(len(one), np.nan)) for one in parts])
            for name in dict.fromkeys(name for part in parts for name in part.domain_scores)
        },
        domain_score=np.concatenate([part.domain_score for part in parts]),
        node_domain_score=np.concatenate([part.node_domain_score for part in parts]),
        texts=join_texts([(part.texts, len(part)) for part in parts]),
    )
