"""The training domain of ensembles before version 3 of the manifest: classes, ranges, the shortest edge and usual spreads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import field as member
from typing import Any

import pydantic
import torch
from torch import Tensor

from hydragnn.base.errors import InputError
from hydragnn.base.settings import Finite, NotNegative, first_problem
from hydragnn.ensemble.domain.domain import DomainScores
from hydragnn.ensemble.domain.view import GraphView
from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import Field

MARGIN = 0.05
"""How far a value may lie outside the training range, as a fraction of it, before it counts as foreign."""


@pydantic.with_config(pydantic.ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """What the training part holds: classes, ranges per component, the shortest edge, and usual spreads."""

    classes: Mapping[str, tuple[int, ...]] = member(default_factory=dict)
    ranges: Mapping[str, tuple[tuple[Finite, Finite], ...]] = member(default_factory=dict)
    shortest_edge: NotNegative = 0.0
    spreads: Mapping[str, NotNegative] = member(default_factory=dict)
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


_RANGES = pydantic.TypeAdapter(Ranges)
"""Checks every number that is read."""


def ranges_from_json(value: Any, fields: Mapping[str, Field]) -> Ranges:
    """The ranges that ``Ranges.to_json`` wrote, of these fields; InputError on anything else."""
    try:
        ranges: Ranges = _RANGES.validate_python(value)
    except pydantic.ValidationError as error:
        raise InputError(f"the training domain is damaged ({first_problem(error)}); build the ensemble anew") from error
    for name in {*ranges.classes, *ranges.ranges} & set(fields):
        width = len(ranges.ranges.get(name, ()))
        if (name in ranges.classes and not fields[name].classes) or width not in (0, fields[name].width):
            raise InputError(
                f"the training domain is damaged (it means another field by {name}); build the ensemble anew"
            )
    return ranges


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
