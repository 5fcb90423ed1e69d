"""Heads: from final states to the predictions of one field; one builder per kind of settings."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.kernels import silu
from hydragnn.layers import MessageGraph, Pool, States, mlp, pool_nodes
from hydragnn.models.convolved import ConvolvedHead
from hydragnn.models.distributions import Distribution, Number
from hydragnn.models.edge_heads import EdgeHead
from hydragnn.models.head_context import HeadContext
from hydragnn.models.head_kinds import ClassesHeadSettings, EnergyHeadSettings, ScalarHeadSettings
from hydragnn.models.outputs import NUMBER_OUTPUTS, ClassOutput, DistributionHead, pool_numbers
from hydragnn.models.turning_heads import TensorHead, VectorHead


class NodeHead(nn.Module):
    """y_i = output(network(h_i)) [+ a x_i]: one network on every node, which may correct an input x."""

    def __init__(
        self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, corrected: str | None = None
    ) -> None:
        super().__init__()
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])
        self.corrected = CorrectedInput(corrected, output.shape) if corrected else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per node, of the field's shape."""
        prediction: Distribution = self.output(self.network(states[0]))
        return prediction if self.corrected is None else prediction.shift_by(self.corrected(batch))


class CorrectedInput(nn.Module):
    """a x_i: a node input times a learned number per component, which starts at 1. Both are normalised, so a is no ratio of units."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.name = name
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        """The input times its numbers, for every node."""
        return self.factor * batch.nodes[self.name]


class IndexedNodeHead(nn.Module):
    """y_i = output(network_k(h_i)) for the k-th node of its graph, in graphs that all have the same nodes in the same order.

    The networks are computed as one batched product.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, nodes: int) -> None:
        super().__init__()
        self.output = output
        self.nodes = nodes
        networks = [mlp([channels, *hidden_dims, output.width]) for _ in range(nodes)]
        layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
        self.weights = nn.ParameterList(torch.stack([one.weight.detach().T for one in of]) for of in zip(*layers))
        self.biases = nn.ParameterList(torch.stack([one.bias.detach() for one in of]) for of in zip(*layers))

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per node, of the field's shape; InputError for a graph with another number of nodes."""
        self.check(batch)
        # [nodes, graphs, channels], nodes of one graph first: the axis of the networks
        values = states[0].reshape(batch.num_graphs, self.nodes, states[0].shape[-1]).transpose(0, 1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            values = silu(values) if number else values
            values = torch.baddbmm(bias.unsqueeze(1), values, weight)  # [nodes, graphs, width]
        prediction: Distribution = self.output(values.transpose(0, 1).reshape(batch.num_nodes, self.output.width))
        return prediction

    def check(self, batch: GraphBatch) -> None:
        """Raise InputError for a graph with another number of nodes."""
        counts = batch.counts("node")
        other = (counts != self.nodes).nonzero()
        if len(other):
            number = int(other[0])
            raise InputError(
                f"graph {number} of the batch has {int(counts[number])} nodes, and a head with per_index = {self.nodes} has one network "
                f"for each of {self.nodes}; give graphs of equal size and order, or leave per_index out"
            )


class ScaledNodeHead(NodeHead):
    """y_i = exp(scale(mean_j h_j)) (output(network(h_i)) [+ a x_i]) - origin: a pattern times a positive factor of the graph. No published form.

    The factor multiplies values that may have been shifted by their mean, so a learned origin is taken off afterwards.
    """

    def __init__(
        self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, corrected: str | None = None
    ) -> None:
        super().__init__(output, hidden_dims, channels, corrected)
        self.scale = mlp([channels, *hidden_dims, 1])
        self.origin = nn.Parameter(torch.zeros(output.shape))

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """A distribution per node, of the field's shape."""
        pattern: Number = super().forward(states, graph, batch)  # type: ignore[assignment]  # [nodes, *shape]
        of_graph = pool_nodes(states[0], batch.owner("node"), batch.num_graphs, "mean")  # [graphs, channels]
        factor = graph.to_nodes(self.scale(of_graph).exp())  # [nodes, 1]
        factor = factor.view(-1, *[1] * (pattern.mean.dim() - 1))  # [nodes, 1, ...], as many axes as the field has
        return pattern.scale_by(factor).floor_variance().shift_by(-self.origin)


class GraphHead(nn.Module):
    """y = output(network(pool_i h_i)) with the mean or the largest, or y = sum_i output(network(h_i)): one value per graph.

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
            return pool_numbers(self.output(self.network(states[0])), batch, "sum")
        of_graph = pool_nodes(states[0], batch.owner("node"), batch.num_graphs, self.pool)  # [graphs, channels]
        prediction: Distribution = self.output(self.network(of_graph))
        return prediction


Head = NodeHead | IndexedNodeHead | ScaledNodeHead | GraphHead | EdgeHead | VectorHead | TensorHead | ConvolvedHead


def _scalar_head(settings: ScalarHeadSettings, field: Field, context: HeadContext) -> Head:
    output = NUMBER_OUTPUTS[settings.distribution](field)
    if field.on == "graph":
        return GraphHead(output, settings.hidden_dims, context.channels, settings.pool or "mean")
    if field.on == "edge":
        return EdgeHead(output, settings.hidden_dims, context, settings.symmetry, field.width)
    return _node_head(settings, output, context)


def _energy_head(settings: EnergyHeadSettings, field: Field, context: HeadContext) -> Head:
    return GraphHead(NUMBER_OUTPUTS[settings.distribution](field), settings.hidden_dims, context.channels, "sum")


def _classes_head(settings: ClassesHeadSettings, field: Field, context: HeadContext) -> Head:
    output = ClassOutput(field)
    if field.on == "graph":
        return GraphHead(output, settings.hidden_dims, context.channels, settings.pool or "mean")
    if field.on == "edge":
        return EdgeHead(output, settings.hidden_dims, context, settings.symmetry, 0)
    return _node_head(settings, output, context)


def _node_head(
    settings: ScalarHeadSettings | ClassesHeadSettings, output: DistributionHead[Any], context: HeadContext
) -> Head:
    """One network for all nodes or one per index, after message passing of its own where that is asked for."""
    hidden, channels = settings.hidden_dims, context.channels
    if settings.conv_layers:
        channels = context.description.model.hidden_dim
    if settings.per_index is not None:
        head: Head = IndexedNodeHead(output, hidden, channels, settings.per_index)
    elif isinstance(settings, ScalarHeadSettings) and settings.graph_scale:
        head = ScaledNodeHead(output, hidden, channels, settings.correction_of)
    else:
        head = NodeHead(output, hidden, channels, getattr(settings, "correction_of", None))
    return ConvolvedHead(head, context, settings.conv_layers) if settings.conv_layers else head


HEADS: Mapping[str, Callable[[Any, Field, HeadContext], Head]] = {
    "scalar": _scalar_head,
    "energy": _energy_head,
    "vector": VectorHead,
    "tensor": TensorHead,
    "classes": _classes_head,
}
"""Builders by kind: from settings, field and what the model offers to a head."""
