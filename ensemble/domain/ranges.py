"""The training domain of ensembles before version 3 of the manifest: classes, ranges, the shortest edge and usual spreads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import field as member
from typing import Any

import torch
from torch import Tensor

from hydragnn.ensemble.domain.domain import DomainScores
from hydragnn.ensemble.domain.view import GraphView
from hydragnn.errors import InputError
from hydragnn.graphs.batch import GraphBatch, edge_vectors

MARGIN = 0.05
"""How far a value may lie outside the training range, as a fraction of it, before it counts as foreign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """What the training part holds: classes, ranges per component, the shortest edge, and usual spreads."""

    classes: Mapping[str, tuple[int, ...]] = member(default_factory=dict)
    ranges: Mapping[str, tuple[tuple[float, float], ...]] = member(default_factory=dict)
    shortest_edge: float = 0.0
    spreads: Mapping[str, float] = member(default_factory=dict)
    """Per target field: the largest doubt (calibrated standard deviation, entropy of classes) that 99 % of the validation graphs stay below."""

    @property
    def scale(self) -> float:
        """Lengths are measured in their own unit."""
        return 1.0

    @property
    def file_content(self) -> bytes:
        """There is no file."""
        return b""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``ranges_from_json`` gives the same back."""
        return {
            **asdict(self),
            "classes": {name: list(known) for name, known in self.classes.items()},
            "ranges": {name: [list(pair) for pair in pairs] for name, pairs in self.ranges.items()},
        }

    def scores(self, view: GraphView) -> DomainScores:
        """For every graph what the training part never saw; there were no scores then."""
        reasons = foreign(self, view.batch)
        for name, limit in self.spreads.items():
            for graph, doubt in enumerate(view.doubts.get(name, ())):
                if doubt > limit:
                    reasons[graph].append(_unusual(name, float(doubt), limit))
        return DomainScores(scores={}, reasons=tuple("; ".join(sentences) for sentences in reasons))


def ranges_from_json(value: Mapping[str, Any]) -> Ranges:
    """The ranges that ``Ranges.to_json`` wrote; InputError on anything else."""
    try:
        return Ranges(
            classes={name: tuple(known) for name, known in value["classes"].items()},
            ranges={name: tuple((low, high) for low, high in pairs) for name, pairs in value["ranges"].items()},
            shortest_edge=value["shortest_edge"],
            spreads=dict(value["spreads"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the training domain is damaged ({error}); build the ensemble anew") from error


def foreign(domain: Ranges, batch: GraphBatch) -> list[list[str]]:
    """For every graph what of its classes, values and edges the training part never saw."""
    reasons: list[list[str]] = [[] for _ in range(len(batch))]

    def note(bad: Tensor, owners: Tensor, says: str) -> None:
        for graph in torch.unique(owners[bad]).tolist():
            reasons[graph].append(says)

    for name in (name for name in [*domain.classes, *domain.ranges] if name in batch.fields):
        field = batch.fields[name]
        values, owners = batch[name].reshape(-1, field.width), batch.owner(field.on)
        if name in domain.classes:
            known = torch.tensor(domain.classes[name], dtype=values.dtype, device=values.device)
            for unseen in torch.unique(values[~torch.isin(values, known)]).tolist():
                note((values == unseen).any(dim=1), owners, f"{name} {unseen} is not in the training data")
        else:
            low, high = torch.tensor(domain.ranges[name], dtype=values.dtype, device=values.device).T
            margin = MARGIN * (high - low) + 1e-6 * torch.maximum(low.abs(), high.abs())
            outside = ((values < low - margin) | (values > high + margin)).any(dim=1)
            note(outside, owners, f"{name} is outside its range in the training data")
    if domain.shortest_edge > 0 and batch.dim and batch.num_edges:
        close = edge_vectors(batch).norm(dim=1) < (1 - MARGIN) * domain.shortest_edge
        says = f"nodes are closer than {domain.shortest_edge:.4g}, the least in the training data"
        note(close, batch.owner("edge"), says)
    return reasons


def _unusual(name: str, doubt: float, limit: float) -> str:
    return (
        f"members disagree on {name} more than on 99 % of the validation graphs ({doubt:.3g}, usual below {limit:.3g})"
    )
