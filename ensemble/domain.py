"""Whether a graph looks like the training data: a flag, with its reason, for predictions that extrapolate."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as member
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn.errors import InputError
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import Field

MARGIN = 0.05
"""How far a value may lie outside the training range, as a fraction of it, before it counts as foreign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """What the training part holds: classes, ranges per component, the shortest edge, and usual spreads."""

    classes: Mapping[str, tuple[int, ...]] = member(default_factory=dict)
    ranges: Mapping[str, tuple[tuple[float, float], ...]] = member(default_factory=dict)
    shortest_edge: float = 0.0
    spreads: Mapping[str, float] = member(default_factory=dict)
    """Per target field: the largest doubt (calibrated standard deviation, entropy of classes) that 99 % of the validation graphs stay below."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``domain_from_json`` gives the same domain back."""
        return {
            **asdict(self),
            "classes": {name: list(known) for name, known in self.classes.items()},
            "ranges": {name: [list(pair) for pair in pairs] for name, pairs in self.ranges.items()},
        }


def domain_from_json(value: Mapping[str, Any]) -> Domain:
    """The domain that ``Domain.to_json`` wrote; InputError on anything else."""
    try:
        return Domain(
            classes={name: tuple(known) for name, known in value["classes"].items()},
            ranges={name: tuple((low, high) for low, high in pairs) for name, pairs in value["ranges"].items()},
            shortest_edge=value["shortest_edge"],
            spreads=dict(value["spreads"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the training domain is damaged ({error}); build the ensemble anew") from error


def training_domain(batches: Iterable[GraphBatch], inputs: Sequence[Field]) -> Domain:
    """Classes and ranges of the input fields over all graphs of ``batches``, and their shortest edge."""
    classes: dict[str, set[int]] = {field.name: set() for field in inputs if field.classes}
    lows: dict[str, Tensor] = {}
    highs: dict[str, Tensor] = {}
    shortest = math.inf
    for batch in batches:
        for field in inputs:
            values = _present_values(batch, field)
            if not len(values):
                continue
            if field.classes:
                classes[field.name].update(torch.unique(values).tolist())
            else:
                low, high = values.amin(dim=0), values.amax(dim=0)
                lows[field.name] = torch.minimum(lows.get(field.name, low), low)
                highs[field.name] = torch.maximum(highs.get(field.name, high), high)
        if batch.dim and batch.num_edges:
            shortest = min(shortest, float(edge_vectors(batch).norm(dim=1).min()))
    return Domain(
        classes={name: tuple(sorted(known)) for name, known in classes.items()},
        ranges={name: tuple(zip(lows[name].tolist(), highs[name].tolist())) for name in lows},
        shortest_edge=shortest if math.isfinite(shortest) else 0.0,
    )


def _present_values(batch: GraphBatch, field: Field) -> Tensor:
    """Values of a field as [items, width], without those of graphs that lack it."""
    if field.name not in batch.fields:
        return torch.zeros(0, field.width)
    values = batch[field.name].reshape(-1, field.width)
    return values[batch.present(field.name)[batch.owner(field.on)]]


def foreign(domain: Domain, batch: GraphBatch, inputs: Sequence[Field]) -> list[str]:
    """For every graph what the training part never saw; empty where there is nothing."""
    reasons: list[list[str]] = [[] for _ in range(len(batch))]

    def note(bad: Tensor, owners: Tensor, reason: str) -> None:
        for graph in torch.unique(owners[bad]).tolist():
            reasons[graph].append(reason)

    for field in inputs:
        if field.name not in batch.fields:
            continue
        values, owners = batch[field.name].reshape(-1, field.width), batch.owner(field.on)
        if field.name in domain.classes:
            known = torch.tensor(domain.classes[field.name], dtype=values.dtype, device=values.device)
            for unseen in torch.unique(values[~torch.isin(values, known)]).tolist():
                note((values == unseen).any(dim=1), owners, f"{field.name} {unseen} is not in the training data")
        elif field.name in domain.ranges:
            low, high = torch.tensor(domain.ranges[field.name], dtype=values.dtype, device=values.device).T
            margin = MARGIN * (high - low) + 1e-6 * torch.maximum(low.abs(), high.abs())
            outside = ((values < low - margin) | (values > high + margin)).any(dim=1)
            note(outside, owners, f"{field.name} is outside its range in the training data")
    if domain.shortest_edge > 0 and batch.dim and batch.num_edges:
        close = edge_vectors(batch).norm(dim=1) < (1 - MARGIN) * domain.shortest_edge
        note(
            close,
            batch.owner("edge"),
            f"nodes are closer than {domain.shortest_edge:.4g}, the least in the training data",
        )
    return ["; ".join(texts) for texts in reasons]


def graph_spread(std: np.ndarray, graph: np.ndarray, graphs: int) -> np.ndarray:
    """Largest standard deviation of a field within every graph; NaN for graphs without values."""
    result = np.full(graphs, -np.inf)
    np.maximum.at(
        result,
        graph,
        np.nan_to_num(std.reshape(len(graph), math.prod(std.shape[1:])), nan=-np.inf).max(axis=1, initial=-np.inf),
    )
    return np.where(np.isfinite(result), result, np.nan)


def unusually_uncertain(domain: Domain, name: str, spread: np.ndarray, measure: str = "std") -> list[str]:
    """For every graph whether the members disagree more than on 99 % of the validation graphs."""
    if name not in domain.spreads:
        return [""] * len(spread)
    limit = domain.spreads[name]
    reason = f"members disagree on {name} more than on 99 % of the validation graphs ({measure} {{:.3g}}, usual below {limit:.3g})"
    return [reason.format(value) if value > limit else "" for value in spread]
