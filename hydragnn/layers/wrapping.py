"""Wrappers of layers: residual, checkpointing, and the condition of a graph."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.layers.inputs import ClassEmbedding, columns, fields_on, mlp
from hydragnn.layers.message_graph import MessageGraph, States


class Residual(nn.Module):
    """Residual with norm and dropout.

    h <- h + dropout(layer(norm(h))) on degree 0 (norm first: Xiong et al. 2020, arXiv:2002.04745), for layers that give increments only.

    Higher degrees add up without a norm.
    """

    def __init__(self, layer: nn.Module, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.layer = layer
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states."""
        increments = self.layer({**states, 0: self.norm(states[0])}, graph)
        increments = {**increments, 0: self.dropout(increments[0])}
        new = {degree: states[degree] + value if degree in states else value for degree, value in increments.items()}
        return {**states, **new}


class Checkpointed(nn.Module):
    """Layer with activations computed again in the backward pass (arXiv:1604.06174)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return the states; bits do not depend on a backward pass."""
        from torch.utils.checkpoint import checkpoint

        degrees, previous = list(states), graph.again()

        def compute(*values: Tensor) -> States:
            return self.layer(dict(zip(degrees, values)), previous.again())

        if not any(value.requires_grad for value in states.values()) and not any(
            parameter.requires_grad for parameter in self.layer.parameters()
        ):
            return compute(*states.values())
        # which is set on the host; layers that draw are compared before they are recorded, and differ
        recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        return checkpoint(compute, *states.values(), use_reentrant=False, preserve_rng_state=not recorded)


class ConditionInputs(nn.Module):
    """Condition of every graph from its inputs.

    g = network(numbers) + sum of table_k[class_k]. No published form.
    """

    def __init__(self, fields: Sequence[Field], channels: int) -> None:
        super().__init__()
        self.numbers = fields_on(fields, "graph", classes=False)
        self.classes = fields_on(fields, "graph", classes=True)
        self.tables = nn.ModuleList(ClassEmbedding(field, channels) for field in self.classes)
        width = sum(field.width for field in self.numbers)
        self.network = mlp([width, channels, channels]) if width else None

    def forward(self, batch: GraphBatch) -> Float[Tensor, "graphs channels"]:
        """Return the rows; there must be at least one graph input."""
        rows = [table(batch.graphs[field.name]) for field, table in zip(self.classes, self.tables)]
        if self.network is not None:
            rows.append(self.network(torch.cat([columns(batch.graphs[f.name], f) for f in self.numbers], dim=-1)))
        return torch.stack(rows).sum(0)  # [inputs, graphs, channels] -> [graphs, channels]


class FiLM(nn.Module):
    """Layer with states scaled and shifted by the condition.

    h <- (1 + tanh(s(g))) h + b(g) after a layer, with g the condition of the node's graph (arXiv:1709.07871, eq. 1).

    Deviates from the paper: the scale is 1 + tanh(s), bounded as in the public HydraGNN. States of higher degree stay as they are.
    """

    def __init__(self, layer: nn.Module, channels: int) -> None:
        super().__init__()
        self.layer = layer
        self.modulation = nn.Linear(channels, 2 * channels)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states, modulated."""
        assert graph.condition is not None
        states = self.layer(states, graph)
        # [graphs, 2 channels] -> [nodes, channels] each
        scale, shift = graph.to_nodes(self.modulation(graph.condition)).chunk(2, dim=-1)
        return {**states, 0: (1 + torch.tanh(scale)) * states[0] + shift}


class PooledCondition(nn.Module):
    """Condition on states that heads read: h <- h + f([h, g])."""

    def __init__(self, channels: int, condition: int) -> None:
        super().__init__()
        self.network = mlp([channels + condition, channels, channels])

    def forward(self, states: States, graph: MessageGraph) -> States:
        """The states with their graph's condition."""
        assert graph.condition is not None
        of_node = graph.to_nodes(graph.condition)  # [nodes, condition]
        return {**states, 0: states[0] + self.network(torch.cat([states[0], of_node], dim=-1))}
