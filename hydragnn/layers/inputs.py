"""Input fields as states: numbers by a network, classes by a table."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.kernels import SiLU, spread
from hydragnn.layers.by_class import ClassTable


def mlp(widths: Sequence[int], *, last_bias: bool = True) -> nn.Sequential:
    """Return linear layers from ``widths[0]`` to ``widths[-1]``, SiLU between them.

    >>> [type(layer).__name__ for layer in mlp([4, 8, 1])]
    ['Linear', 'SiLU', 'Linear']
    """
    layers: list[nn.Module] = []
    pairs = list(itertools.pairwise(widths))
    for number, (wide, narrow) in enumerate(pairs):
        last = number == len(pairs) - 1
        layers.append(nn.Linear(wide, narrow, bias=last_bias or not last))
        if not last:
            layers.append(SiLU())
    return nn.Sequential(*layers)


class ClassEmbedding(nn.Module):
    """One learned row per class."""

    shifts: Tensor

    def __init__(self, field: Field, channels: int) -> None:
        super().__init__()
        self.field = field
        self.table = ClassTable(field.classes * field.width, channels)
        self.register_buffer("shifts", torch.arange(field.width) * field.classes, persistent=False)

    def forward(self, values: Int[Tensor, "items *shape"]) -> Float[Tensor, "items channels"]:
        """The row of every item."""
        if self.field.width == 1:
            return self.table(values.flatten())
        flat = values.reshape(values.shape[0], self.field.width)  # [items, components]
        return self.table(flat + self.shifts).sum(1)  # [items, components, channels] -> [items, channels]


class NodeInputs(nn.Module):
    """First states of all nodes.

    h_i = o + sum_c T_c[class c of i] + sum_c T_c[class c of its graph] + network(numbers of i, numbers of its graph).

    o is one learned state, from which every node starts that has no input; T_c is a learned table of a categorical field.
    """

    def __init__(self, fields: Sequence[Field], channels: int) -> None:
        super().__init__()
        self.node_numbers = fields_on(fields, "node", classes=False)
        self.graph_numbers = fields_on(fields, "graph", classes=False)
        self.node_classes = fields_on(fields, "node", classes=True)
        self.graph_classes = fields_on(fields, "graph", classes=True)
        self.origin = nn.Parameter(torch.randn(channels) * channels**-0.5)
        self.node_tables = nn.ModuleList(ClassEmbedding(field, channels) for field in self.node_classes)
        self.graph_tables = nn.ModuleList(ClassEmbedding(field, channels) for field in self.graph_classes)
        width = sum(field.width for field in self.node_numbers + self.graph_numbers)
        self.network = mlp([width, channels, channels]) if width else None

    def forward(self, batch: GraphBatch) -> Float[Tensor, "nodes channels"]:
        """The states, in the dtype of the weights."""
        states = self.origins(batch.num_nodes)  # [nodes, channels]
        for field, table in zip(self.node_classes, self.node_tables):
            states = states + table(batch.nodes[field.name])
        for field, table in zip(self.graph_classes, self.graph_tables):
            states = states + spread(table(batch.graphs[field.name]), batch.owner("node"))
        if self.network is not None:
            node = [columns(batch.nodes[field.name], field) for field in self.node_numbers]
            graph = [columns(batch.graphs[field.name], field) for field in self.graph_numbers]
            # [nodes, width of the field] each
            broadcast = [values.index_select(0, batch.owner("node")) for values in graph]
            states = states + self.network(torch.cat([*node, *broadcast], dim=-1))
        return states

    def origins(self, nodes: int) -> Float[Tensor, "nodes channels"]:
        """The state from which every node starts."""
        return self.origin.expand(nodes, -1)


class EdgeInputs(nn.Module):
    """Edge inputs as one row per edge.

    e_ij = (numbers of ij, T_c[class c of ij], ...); learned rows have at most 16 numbers.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        super().__init__()
        self.numbers = fields_on(fields, "edge", classes=False)
        self.classes = fields_on(fields, "edge", classes=True)
        self.tables = nn.ModuleList(ClassEmbedding(field, min(field.classes, 16)) for field in self.classes)
        self.width = sum(field.width for field in self.numbers) + sum(min(f.classes, 16) for f in self.classes)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "edges width"] | None:
        """The rows; None without edge inputs."""
        if not self.width:
            return None
        numbers = [columns(batch.edges[field.name], field) for field in self.numbers]
        classes = [table(batch.edges[field.name]) for field, table in zip(self.classes, self.tables)]
        return torch.cat([*numbers, *classes], dim=-1)


def fields_on(fields: Sequence[Field], place: str, *, classes: bool) -> list[Field]:
    """The fields of one place that are classes, or that are numbers."""
    return [field for field in fields if field.on == place and bool(field.classes) == classes]


def columns(values: Tensor, field: Field) -> Tensor:
    """The numbers of every item in one row ``[items, width]``."""
    return values.reshape(values.shape[0], field.width)
