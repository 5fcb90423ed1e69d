"""Errors in the units of the fields, gathered as sums so that parts and ranks can be merged without loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.models.settings import HeadSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A predicted field and how its errors are stated."""

    name: str
    width: int = 1
    extensive: bool = False
    """The value grows with the number of nodes: errors are stated per graph and per node."""
    derived: bool = False
    """Forces and stress: their trivial prediction is zero."""


def targets_of(heads: Sequence[HeadSettings], fields: Mapping[str, Field]) -> tuple[Target, ...]:
    """The predicted fields, in the order of the heads."""
    return tuple(
        Target(
            name=name,
            width=fields[name].width,
            extensive=name == head.field and fields[name].on == "graph" and (head.per_node or head.pool == "sum"),
            derived=name != head.field,
        )
        for head in heads
        for name in head.outputs
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Moments:
    """Number, mean and summed squared deviations of each component; two parts merge exactly (Chan et al. 1979)."""

    count: Float[Tensor, ""]
    mean: Float[Tensor, " components"]
    squares: Float[Tensor, " components"]

    def merged(self, other: "Moments") -> "Moments":
        """The moments of both parts together."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1.0)
        shift = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + shift * share,
            squares=self.squares + other.squares + shift.square() * self.count * share,
        )


def moments_of(values: Float[Tensor, "items components"]) -> Moments:
    """The moments of one part; zeros for a part without items.

    >>> moments = moments_of(torch.tensor([[1.0], [3.0]]))
    >>> moments.merged(moments_of(torch.tensor([[5.0]]))).squares
    tensor([8.], dtype=torch.float64)
    """
    values = values.to(torch.float64)
    mean = values.sum(0) / max(1, len(values))
    return Moments(
        count=torch.tensor(float(len(values)), dtype=torch.float64, device=values.device),
        mean=mean,
        squares=(values - mean).square().sum(0),
    )


class Errors:
    """The errors of several fields, as sums: for each field a number, absolute and squared errors, per graph and per node."""

    def __init__(self, targets: Sequence[Target], device: torch.device | str = "cpu") -> None:
        """Nothing gathered yet."""
        self.targets = tuple(targets)
        self.sums = torch.zeros(len(self.targets), 5, dtype=torch.float64, device=device)

    def add(self, target: Target, error: Float[Tensor, "items ..."], batch: GraphBatch) -> None:
        """Gather errors of one field in its unit; items whose label is missing are passed over."""
        values = error.to(torch.float64).reshape(error.shape[0], -1)
        per_node = values / batch.counts("node").clamp(min=1).unsqueeze(1) if target.extensive else values[:0]
        present = batch.present_items(target.name)
        if present is not None:
            values = values[present]
            per_node = per_node[present] if target.extensive else per_node
        row = (
            values.new_tensor(float(values.numel())),
            values.abs().sum(),
            values.square().sum(),
            per_node.abs().sum(),
            per_node.square().sum(),
        )
        self.sums[self.targets.index(target)] += torch.stack(row)

    def values(self, moments: Mapping[str, Moments]) -> dict[str, dict[str, float | None]]:
        """mae, rmse, r2 and count of every field, for extensive fields also per node; None where there is no label.

        r2 is 1 minus squared errors over squared deviations from each component's mean; None where labels are all equal.
        """
        result: dict[str, dict[str, float | None]] = {}
        for target, row in zip(self.targets, self.sums.tolist()):
            count, absolute, squares, node_absolute, node_squares = row
            spread = float(moments[target.name].squares.sum())
            result[target.name] = {
                "mae": absolute / count if count else None,
                "rmse": (squares / count) ** 0.5 if count else None,
                "r2": 1.0 - squares / spread if spread > 0 else None,
                "count": count,
            }
            if target.extensive:
                result[target.name] |= {
                    "mae_per_node": node_absolute / count if count else None,
                    "rmse_per_node": (node_squares / count) ** 0.5 if count else None,
                }
        return result


def target_moments(targets: Sequence[Target], batch: GraphBatch) -> dict[str, Moments]:
    """The moments of the labels that are present in a batch in the fields' units."""
    result = {}
    for target in targets:
        values = batch[target.name].reshape(-1, target.width)
        present = batch.present_items(target.name)
        result[target.name] = moments_of(values if present is None else values[present])
    return result
