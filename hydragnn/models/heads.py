"""Heads: from final states to the predictions of one field; one builder per kind of settings."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.layers import GatedVectors, MessageGraph, Pool, States, mlp, pooled
from hydragnn.models.distributions import VARIANCE_FLOOR, Categorical, Distribution, Normal, Number, Point
from hydragnn.models.head_kinds import ClassesHeadSettings, EnergyHeadSettings, ScalarHeadSettings, VectorHeadSettings
from hydragnn.models.head_settings import HeadSettings

D = TypeVar("D", bound=Distribution)


class DistributionHead(nn.Module, Generic[D]):
    """Raw outputs of a network as a distribution; ``width`` is how many of them an item needs."""

    def __init__(self, field: Field, width: int) -> None:
        super().__init__()
        self.shape = field.shape
        self.width = width


class PointOutput(DistributionHead[Point]):
    """One output per number: its value."""

    def __init__(self, field: Field) -> None:
        super().__init__(field, field.width)

    def forward(self, raw: Float[Tensor, "items width"]) -> Point:
        """The values in the field's shape."""
        return Point(mean=raw.reshape(-1, *self.shape))


class GaussianOutput(DistributionHead[Normal]):
    """Two outputs per number: its mean and its variance, the latter made positive."""

    def __init__(self, field: Field) -> None:
        super().__init__(field, 2 * field.width)

    def forward(self, raw: Float[Tensor, "items width"]) -> Normal:
        """The normal distributions in the field's shape."""
        mean, spread = raw.chunk(2, dim=-1)
        return Normal(mean=mean.reshape(-1, *self.shape), variance=_positive(spread).reshape(-1, *self.shape))


class ClassOutput(DistributionHead[Categorical]):
    """One output per class: its logit."""

    def __init__(self, field: Field) -> None:
        super().__init__(field, field.width * field.classes)
        self.classes = field.classes

    def forward(self, raw: Float[Tensor, "items width"]) -> Categorical:
        """The probabilities in the field's shape."""
        return Categorical(logits=raw.reshape(-1, *self.shape, self.classes))


NUMBER_OUTPUTS: Mapping[str, Callable[[Field], DistributionHead[Any]]] = {
    "point": PointOutput,
    "gaussian": GaussianOutput,
}


class NodeHead(nn.Module):
    """A network on every node."""

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int) -> None:
        super().__init__()
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per node, of the field's shape."""
        said: Distribution = self.output(self.network(states[0]))
        return said


class ScaledNodeHead(nn.Module):
    """A network on every node times a positive factor that a second network reads off the graph.

    The factor multiplies values that may have been shifted by their mean, so a learned origin is taken off afterwards.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int) -> None:
        super().__init__()
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])
        self.scale = mlp([channels, *hidden_dims, 1])
        self.origin = nn.Parameter(torch.zeros(output.shape))

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """A distribution per node, of the field's shape."""
        pattern: Number = self.output(self.network(states[0]))
        of_graph = pooled(states[0], batch.owner("node"), batch.num_graphs, "mean")
        factor = self.scale(of_graph).exp().index_select(0, batch.owner("node"))  # [nodes, 1]
        factor = factor.view(-1, *[1] * (pattern.mean.dim() - 1))
        return pattern.scaled(factor).floored().shifted(-self.origin)


class GraphHead(nn.Module):
    """A network on every graph's pooled states (mean, max), or on every node, summed.

    With ``sum`` the value is extensive: two graphs side by side hold the sum of their values.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, pool: Pool) -> None:
        super().__init__()
        self.pool: Pool = pool
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per graph, of the field's shape."""
        if self.pool == "sum":
            return _pooled_numbers(self.output(self.network(states[0])), batch, "sum")
        of_graph = pooled(states[0], batch.owner("node"), batch.num_graphs, self.pool)
        said: Distribution = self.output(self.network(of_graph))
        return said


class VectorHead(nn.Module):
    """Vectors that turn with the graph, on nodes or (summed or averaged over nodes) on graphs."""

    def __init__(self, settings: VectorHeadSettings, field: Field, channels: int, dim: int) -> None:
        super().__init__()
        self.shape = field.shape
        self.pool: Pool | None = (settings.pool or "mean") if field.on == "graph" else None
        hidden = settings.hidden_dims[0] if settings.hidden_dims else channels
        outputs = field.width // dim
        self.vectors = GatedVectors(channels, hidden, outputs)
        gaussian = settings.distribution == "gaussian"
        self.variance = mlp([channels, *settings.hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """Vectors of the field's shape; the variance of a vector is the same in all directions."""
        vectors = self.vectors(states[0], states[1])
        said: Number = Point(mean=vectors.reshape(-1, *self.shape))
        if self.variance is not None:
            spread = _positive(self.variance(states[0])).unsqueeze(-1).expand_as(vectors)
            said = Normal(mean=said.mean, variance=spread.reshape(-1, *self.shape))
        return said if self.pool is None else _pooled_numbers(said, batch, self.pool)


def _positive(raw: Tensor) -> Tensor:
    """A variance: never below the floor, so that its logarithm and its inverse stay finite."""
    return nn.functional.softplus(raw) + VARIANCE_FLOOR


def _pooled_numbers(of_node: Number, batch: GraphBatch, pool: Pool) -> Number:
    """Node predictions as one of the graph; nodes count as independent, so variances add up (and shrink in a mean)."""
    owners, graphs = batch.owner("node"), batch.num_graphs
    of_graph = of_node.mapped(lambda values: pooled(values, owners, graphs, pool))
    return of_graph.averaged(batch.counts("node").clamp_min(1)) if pool == "mean" else of_graph


Head = NodeHead | ScaledNodeHead | GraphHead | VectorHead


def _scalar_head(settings: ScalarHeadSettings, field: Field, channels: int, dim: int) -> Head:
    output = NUMBER_OUTPUTS[settings.distribution](field)
    if field.on == "graph":
        return GraphHead(output, settings.hidden_dims, channels, settings.pool or "mean")
    kind = ScaledNodeHead if settings.graph_scale else NodeHead
    return kind(output, settings.hidden_dims, channels)


def _energy_head(settings: EnergyHeadSettings, field: Field, channels: int, dim: int) -> Head:
    return GraphHead(NUMBER_OUTPUTS[settings.distribution](field), settings.hidden_dims, channels, "sum")


def _classes_head(settings: ClassesHeadSettings, field: Field, channels: int, dim: int) -> Head:
    if field.on == "graph":
        return GraphHead(ClassOutput(field), settings.hidden_dims, channels, settings.pool or "mean")
    return NodeHead(ClassOutput(field), settings.hidden_dims, channels)


HEADS: Mapping[str, Callable[[Any, Field, int, int], Head]] = {
    "scalar": _scalar_head,
    "energy": _energy_head,
    "vector": VectorHead,
    "classes": _classes_head,
}


def build_head(settings: HeadSettings, field: Field, channels: int, dim: int) -> Head:
    """The head that the settings describe, for states with so many channels."""
    return HEADS[settings.kind](settings, field, channels, dim)
