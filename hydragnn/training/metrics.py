"""Errors in units of fields, as sums that merge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydragnn.datasets import Normalisation
from hydragnn.graphs.batch import GraphBatch
from hydragnn.models import Categorical, Distribution, Target
from hydragnn.training.class_metrics import BINS, class_sums, class_values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunningMoments:
    """Number, mean and squared deviations of components (Chan et al. 1979)."""

    count: Float[Tensor, ""] | Float[Tensor, " components"]
    """One number where all components have as many labels."""
    mean: Float[Tensor, " components"]
    squares: Float[Tensor, " components"]

    def merged(self, other: "RunningMoments") -> "RunningMoments":
        """The moments of both parts together."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1.0)
        shift = other.mean - self.mean
        return RunningMoments(
            count=count,
            mean=self.mean + shift * share,
            squares=self.squares + other.squares + shift.square() * self.count * share,
        )


def moments_of(
    values: Float[Tensor, "items components"], labelled: Bool[Tensor, "items components"] | None = None
) -> RunningMoments:
    """The moments of present labels; zeros without any.

    >>> moments = moments_of(torch.tensor([[1.0], [3.0]]))
    >>> moments.merged(moments_of(torch.tensor([[5.0]]))).squares
    tensor([8.], dtype=torch.float64)
    """
    values = values.to(torch.float64)
    if labelled is not None and not bool(labelled.all()):
        values, count = torch.where(labelled, values, 0.0), labelled.sum(0).to(torch.float64)
        mean = values.sum(0) / count.clamp(min=1)
        return RunningMoments(count=count, mean=mean, squares=torch.where(labelled, values - mean, 0.0).square().sum(0))
    mean = values.sum(0) / max(1, len(values))
    return RunningMoments(
        count=torch.tensor(float(len(values)), dtype=torch.float64, device=values.device),
        mean=mean,
        squares=(values - mean).square().sum(0),
    )


class NumberTally:
    """Absolute and squared errors of a numeric target."""

    size = 5

    def __init__(self, target: Target) -> None:
        self.target = target

    def row(self, prediction: Distribution, batch: GraphBatch, std: Tensor | None) -> Float[Tensor, " sums"]:
        """Return the sums of a batch, in the field's unit."""
        name, width = self.target.field.name, self.target.field.width
        error = prediction.to(batch.positions.device, torch.float64).error(batch[name].to(torch.float64))
        error, labelled = error.reshape(-1, width), batch.labelled(name).reshape(-1, width)
        values = (error if std is None else error * std).masked_fill(~labelled, 0.0)
        extensive = self.target.extensive
        per_node = values / batch.nodes_per_graph.clamp(min=1).unsqueeze(1) if extensive else values[:0]
        present = batch.present_items(name)
        if present is not None:
            values, labelled = values[present], labelled[present]
            per_node = per_node[present] if extensive else per_node
        return torch.stack(
            [
                labelled.sum().to(torch.float64),
                values.abs().sum(),
                values.square().sum(),
                per_node.abs().sum(),
                per_node.square().sum(),
            ]
        )

    def values(self, sums: Sequence[float], moments: RunningMoments | None) -> dict[str, float | None]:
        """Return mae, rmse, r2 and count; None without labels.

        r2 is 1 minus squared errors over squared deviations from each component's mean; None where labels are all equal.
        """
        count, absolute, squares, node_absolute, node_squares = sums
        spread = 0.0 if moments is None else float(moments.squares.sum())
        result = {
            "mae": absolute / count if count else None,
            "rmse": (squares / count) ** 0.5 if count else None,
            "r2": 1.0 - squares / spread if spread > 0 else None,
            "count": count,
        }
        if self.target.extensive:
            result |= {
                "mae_per_node": node_absolute / count if count else None,
                "rmse_per_node": (node_squares / count) ** 0.5 if count else None,
            }
        return result


class ClassTally:
    """Confusion matrix and scores of a categorical target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.size = target.field.classes**2 + 2 + 2 * BINS

    def row(self, prediction: Distribution, batch: GraphBatch, std: Tensor | None) -> Float[Tensor, " sums"]:
        """The sums of one batch."""
        assert isinstance(prediction, Categorical)
        name, classes = self.target.field.name, self.target.field.classes
        labelled, output = batch.labelled(name).reshape(-1), prediction.to(batch.positions.device, torch.float64)
        labels = batch[name].reshape(-1)[labelled]
        output = Categorical(logits=output.logits.reshape(-1, classes)[labelled])
        return class_sums(output.probabilities, output.nll(labels), labels)

    def values(self, sums: Sequence[float], moments: RunningMoments | None) -> dict[str, float | None]:
        """Return the metrics of classes; None without labels."""
        return class_values(np.asarray(sums), self.target.field.classes)


class Errors:
    """Errors of several targets, as one vector of sums."""

    def __init__(self, targets: Sequence[Target], device: torch.device | str = "cpu") -> None:
        self.tallies: dict[str, NumberTally | ClassTally] = {
            one.name: ClassTally(one) if issubclass(one.distribution, Categorical) else NumberTally(one)
            for one in targets
        }
        ends = np.cumsum([0, *(tally.size for tally in self.tallies.values())]).tolist()
        self.spans = {name: slice(first, last) for name, first, last in zip(self.tallies, ends, ends[1:])}
        self.sums = torch.zeros(ends[-1], dtype=torch.float64, device=device)

    def add(
        self, target: Target, prediction: Distribution, batch: GraphBatch, normalisation: Normalisation | None = None
    ) -> None:
        """Add the errors of a target in its unit; skip missing labels."""
        scale = normalisation.scales.get(target.field.name) if normalisation else None
        std = None if scale is None else torch.tensor(scale.std, dtype=torch.float64, device=self.sums.device)
        self.sums[self.spans[target.name]] += self.tallies[target.name].row(prediction, batch, std)

    def values(self, moments: Mapping[str, RunningMoments]) -> dict[str, dict[str, float | None]]:
        """The metrics of every target, with r2 measured against ``moments``."""
        sums = self.sums.tolist()
        return {name: tally.values(sums[self.spans[name]], moments.get(name)) for name, tally in self.tallies.items()}


def target_moments(targets: Sequence[Target], batch: GraphBatch) -> dict[str, RunningMoments]:
    """Return the moments of a batch's labels; classes have none."""
    result = {}
    for target in targets:
        if target.field.classes:
            continue
        name, width = target.field.name, target.field.width
        values, labelled = batch[name].reshape(-1, width), batch.labelled(name).reshape(-1, width)
        present = batch.present_items(name)
        rows = slice(None) if present is None else present
        result[target.name] = moments_of(values[rows], labelled[rows])
    return result
