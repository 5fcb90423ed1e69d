"""Input fields as tokens, with the names of ClimaX (Nguyen et al. 2023, arXiv:2301.10343)."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.units import unit_features
from hydragnn.kernels import spread
from hydragnn.kernels.family import form_on
from hydragnn.layers.attention import ATTENTION_FORMS, by_head
from hydragnn.layers.inputs import NodeInputs, columns, mlp
from hydragnn.layers.split_plan import LayerSplit, Plan


class CrossAttention(nn.Module):
    """Multihead attention of one row over others (arXiv:1706.03762, eq. 1).

    Every projection is a linear map of its own, with the channels of each head side by side.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(
        self, query: Float[Tensor, " channels"], rows: Float[Tensor, "graphs size channels"], mask: Tensor | None
    ) -> Float[Tensor, "graphs channels"]:
        """Return what one query reads of the rows of every graph."""
        queries = self.queries(query).expand(len(rows), 1, -1)
        heads = (by_head(part, self.heads) for part in (queries, self.keys(rows), self.values(rows)))
        read = form_on(ATTENTION_FORMS, rows.device.type)(*heads, mask)  # [graphs, heads, 1, width]
        return self.out(read.flatten(1))

    def split_plan(self) -> Plan:
        """Return the heads."""
        own = LayerSplit(weights="columns", takes=(("copy",),))
        return {
            "": LayerSplit(counts=("heads",)),
            **dict.fromkeys(("queries", "keys"), replace(own, in_head=("gather", "copy"))),
            "values": own,
            "out": LayerSplit(weights="rows"),
        }


class FieldTokens(NodeInputs):
    """First states of nodes, from a token per input field.

    One learned query reads all tokens of a node.
    A number x of a field f is the token x a_f + b_f, where (a_f, b_f) = name_f + U u_f: name_f is learned for each component, u_f are the exponents of the
    unit's dimensions. A class is a row of a table. A field that a graph lacks has no token. Numbers of graphs are tokens of all their nodes.

    Deviates from ClimaX: the unit; a token per component; one more token, the same everywhere, so that a node without fields has one to read. The lead time
    is added after the aggregation as there, through a network with one hidden layer.
    """

    units: Tensor

    def __init__(self, fields: Sequence[Field], channels: int, heads: int, lead_time: str | None) -> None:
        classes = [field for field in fields if field.classes]
        super().__init__(classes, channels)
        self.variables = [field for field in fields if not field.classes and field.on != "edge"]
        self.lead = mlp([1, channels, channels]) if any(f.name == lead_time for f in self.variables) else None
        self.lead_time = lead_time if self.lead is not None else None
        self.variables = [field for field in self.variables if field.name != self.lead_time]
        self.names = nn.ParameterDict(
            {name_of(field): torch.randn(field.width, 2 * channels) * channels**-0.5 for field in self.variables}
        )
        features = [unit_features(field.unit) for field in self.variables]
        self.unit = nn.Linear(len(features[0]), 2 * channels, bias=False) if features else None
        self.register_buffer("units", torch.tensor(features), persistent=False)
        self.query = nn.Parameter(torch.randn(channels) * channels**-0.5)
        self.attention = CrossAttention(channels, heads)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "nodes channels"]:
        """The states, in the dtype of the weights."""
        own = [self.origins(batch.num_nodes).unsqueeze(1)]
        present: list[Tensor | None] = [None]
        for tokens, is_present in self.tokens(batch):
            own.append(tokens)
            present.append(is_present)
        rows = torch.cat(own, dim=1)  # [nodes, tokens, channels]
        mask = None
        if any(one is not None for one in present):  # minus infinity for absent tokens; [nodes, 1, 1, tokens]
            every = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
            masks = [every if one is None else one for one in present]
            absent = ~torch.cat([one[:, None].expand(-1, part.shape[1]) for one, part in zip(masks, own)], 1)
            mask = torch.zeros_like(absent, dtype=rows.dtype).masked_fill(absent, -torch.inf)[:, None, None]
        states: Tensor = self.attention(self.query, rows, mask)
        if self.lead is not None and self.lead_time is not None:
            states = states + spread(self.lead(batch.graphs[self.lead_time].reshape(-1, 1)), batch.owner("node"))
        return states

    def tokens(self, batch: GraphBatch) -> Iterator[tuple[Tensor, Bool[Tensor, " nodes"] | None]]:
        """Yield tokens of every field of the batch, and its nodes."""
        tables = zip(self.node_classes + self.graph_classes, [*self.node_tables, *self.graph_tables])
        for field, table in tables:
            if field.name in batch.on(field.on):
                yield self.of_nodes(table(batch[field.name]), field, batch).unsqueeze(1), presence(field, batch)
        units = self.unit(self.units) if self.unit is not None else ()  # [fields, 2 channels]
        for field, of_unit in zip(self.variables, units):
            if field.name in batch.on(field.on):
                slope, offset = (self.names[name_of(field)] + of_unit).chunk(2, dim=-1)  # [components, channels]
                values = self.of_nodes(columns(batch[field.name], field), field, batch)
                yield values.unsqueeze(-1) * slope + offset, presence(field, batch)

    def of_nodes(self, rows: Tensor, field: Field, batch: GraphBatch) -> Tensor:
        """Return the rows of every node."""
        return spread(rows, batch.owner("node")) if field.on == "graph" else rows

    @torch.no_grad()
    def begin_fields(self, new: Collection[str]) -> None:
        """Begin new fields faint, as the mean of those of their unit.

        Without any of their unit they begin as zero. Their tokens have scores that are lower by ``FAINT`` in every head and do not depend on values, so that
        the states of nodes hardly change before the first step.
        """
        query, keys = self.attention.queries(self.query), self.attention.keys.weight
        heads = self.attention.heads
        scores = torch.einsum("hw,hwc->hc", query.view(heads, -1), keys.view(heads, -1, keys.shape[1]))
        scores = scores / (keys.shape[0] / heads) ** 0.5  # of a token, by head; [heads, channels]
        inverse = torch.linalg.pinv(scores)
        for field in (one for one in self.variables if one.name in new):
            features = unit_features(field.unit)
            alike = [
                self.names[name_of(one)].mean(0)
                for one in self.variables
                if one.name not in new and unit_features(one.unit) == features
            ]
            row = torch.stack(alike).mean(0) if alike else torch.zeros_like(self.names[name_of(field)][0])
            slope, offset = row.chunk(2)
            of_unit = torch.zeros_like(row) if self.unit is None else self.unit(row.new_tensor(features))
            slope = slope - inverse @ (scores @ (slope + of_unit[: len(slope)]))
            self.names[name_of(field)].copy_(torch.cat([slope, offset - FAINT * inverse.sum(1)]))


FAINT = 12.0
"""Scores by which tokens of new fields begin below others: e^-12 of their share, 6e-6. A fiftieth was more than the errors of small steps."""


def name_of(field: Field) -> str:
    """Return a parameter's key, which is no method of a dictionary."""
    return f"of_{field.name}"


def presence(field: Field, batch: GraphBatch) -> Bool[Tensor, " nodes"] | None:
    """Return which nodes have a field; None where all have it."""
    mask = batch.masks.get(field.name)
    return None if mask is None else mask.index_select(0, batch.owner("node"))
