"""Heads: from final states to the predictions of one field, chosen by the field and its settings."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.layers import GatedVectors, MessageGraph, Pool, States, mlp, pooled
from hydragnn.models.prediction import Prediction
from hydragnn.models.settings import HeadSettings

VARIANCE_FLOOR = 1e-6


class NodeHead(nn.Module):
    """A network on every node; with ``graph_scale`` times a positive factor that a second network reads off the graph.

    The factor multiplies values that may have been shifted by their mean, so a learned origin is taken off afterwards.
    """

    def __init__(self, settings: HeadSettings, field: Field, channels: int) -> None:
        super().__init__()
        self.spread = Spread(settings, field)
        self.network = mlp([channels, *settings.hidden_dims, self.spread.width])
        self.scale = mlp([channels, *settings.hidden_dims, 1]) if settings.graph_scale else None
        self.origin = nn.Parameter(torch.zeros(field.shape)) if settings.graph_scale else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Prediction:
        """One value per node, of the field's shape."""
        found = self.spread(self.network(states[0]))
        if self.scale is None or self.origin is None:
            return found
        of_graph = pooled(states[0], batch.owner("node"), batch.num_graphs, "mean")
        factor = self.scale(of_graph).exp().index_select(0, batch.owner("node"))
        factor = factor.view(-1, *[1] * (found.mean.dim() - 1))
        variance = None if found.variance is None else found.variance * factor.square() + VARIANCE_FLOOR
        return Prediction(mean=found.mean * factor - self.origin, variance=variance)


class GraphHead(nn.Module):
    """A value per graph: nodes contribute and are summed, or states are pooled (mean, max) and a network follows.

    With ``sum`` the value is extensive: two graphs side by side hold the sum of their values.
    """

    def __init__(self, settings: HeadSettings, field: Field, channels: int) -> None:
        super().__init__()
        self.pool: Pool = settings.pool
        self.spread = Spread(settings, field)
        self.network = mlp([channels, *settings.hidden_dims, self.spread.width])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Prediction:
        """One value per graph, of the field's shape."""
        if self.pool == "sum":
            of_node = self.spread(self.network(states[0]))
            return _pooled_prediction(of_node, batch, "sum")
        of_graph = pooled(states[0], batch.owner("node"), batch.num_graphs, self.pool)
        return self.spread(self.network(of_graph))


class VectorHead(nn.Module):
    """Vectors that turn with the graph, on nodes or (summed or averaged over nodes) on graphs."""

    def __init__(self, settings: HeadSettings, field: Field, channels: int, dim: int) -> None:
        super().__init__()
        self.field = field
        self.pool: Pool | None = settings.pool if field.on == "graph" else None
        hidden = settings.hidden_dims[0] if settings.hidden_dims else channels
        outputs = field.width // dim
        self.vectors = GatedVectors(channels, hidden, outputs)
        gaussian = settings.distribution == "gaussian"
        self.variance = mlp([channels, *settings.hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Prediction:
        """Vectors of the field's shape; the variance of a vector is the same in all directions."""
        vectors = self.vectors(states[0], states[1])
        mean = vectors.reshape(-1, *self.field.shape)
        variance = None
        if self.variance is not None:
            spread = _positive(self.variance(states[0])).unsqueeze(-1).expand_as(vectors)
            variance = spread.reshape(-1, *self.field.shape)
        prediction = Prediction(mean=mean, variance=variance)
        return prediction if self.pool is None else _pooled_prediction(prediction, batch, self.pool)


class Spread(nn.Module):
    """Raw outputs as a prediction: values alone, or values and positive variances."""

    def __init__(self, settings: HeadSettings, field: Field) -> None:
        super().__init__()
        self.shape = field.shape
        self.gaussian = settings.distribution == "gaussian"
        self.width = field.width * (2 if self.gaussian else 1)

    def forward(self, raw: Float[Tensor, "items width"]) -> Prediction:
        """The prediction in the field's shape."""
        if not self.gaussian:
            return Prediction(mean=raw.reshape(-1, *self.shape))
        mean, spread = raw.chunk(2, dim=-1)
        return Prediction(mean=mean.reshape(-1, *self.shape), variance=_positive(spread).reshape(-1, *self.shape))


def _positive(raw: Tensor) -> Tensor:
    """A variance: never below the floor, so that its logarithm and its inverse stay finite."""
    return nn.functional.softplus(raw) + VARIANCE_FLOOR


def _pooled_prediction(of_node: Prediction, batch: GraphBatch, pool: Pool) -> Prediction:
    """Node predictions as one of the graph; nodes count as independent, so variances add up (and shrink in a mean)."""
    owners, graphs = batch.owner("node"), batch.num_graphs
    mean = pooled(of_node.mean, owners, graphs, pool)
    if of_node.variance is None:
        return Prediction(mean=mean)
    variance = pooled(of_node.variance, owners, graphs, pool)
    if pool == "mean":
        counts = batch.counts("node").clamp_min(1).to(variance.dtype)
        variance = variance / counts.view(-1, *[1] * (variance.dim() - 1))
    return Prediction(mean=mean, variance=variance)


Head = NodeHead | GraphHead | VectorHead


def build_head(settings: HeadSettings, field: Field, channels: int, dim: int) -> Head:
    """The head for a field: by its parity and its place; it reads states with so many ``channels``."""
    if field.parity == "vector":
        return VectorHead(settings, field, channels, dim)
    kind = NodeHead if field.on == "node" else GraphHead
    return kind(settings, field, channels)
