"""Transformer with a token per input field, on irregular meshes.

The role of ClimaX (Nguyen et al. 2023, arXiv:2301.10343).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, Searched, one_of, radial_basis
from hydragnn.base.errors import InputError, nearest
from hydragnn.graphs.field import Field
from hydragnn.kernels import gather_add, outer_sum, segment_sum, silu, spread
from hydragnn.layers import FieldTokens, LayerSplit, MessageGraph, NodeInputs, Plan, States, mlp


class FieldTokensSettings(GeometricSettings):
    """Transformer with tokens per field (after Nguyen et al. 2023, arXiv:2301.10343)."""

    kind: str = "field_tokens"

    acts_on: ClassVar = {**GeometricSettings.acts_on, "angles": "lengths"}

    searched: ClassVar[Searched] = {**GeometricSettings.searched, "heads": one_of(2, 4, 8)}
    own_of_run: ClassVar[tuple[str, ...]] = (*GeometricSettings.own_of_run, "optional_inputs")

    heads: int = Setting(default=4, ge=1, le=64)
    """Attention heads over fields; they divide hidden_dim."""

    angles: int = Setting(default=0, ge=0, le=4)
    """Largest power of the cosines between edges on which messages depend; 0: on lengths alone. Operators on irregular meshes depend on the cells between edges: 3
    resolves them, at a third more time."""

    lead_time: str | None = None
    """Graph input with the time from the inputs to the targets: a condition of every node, no token. Predictions beyond the lead times of training are
    refused."""

    optional_inputs: list[str] = Setting(default_factory=list)
    """Inputs that graphs may lack; these have no token then. A graph that lacks another input is refused."""


class EdgeAngles(nn.Module):
    """Inputs of an edge from all edges of its receiver.

    c_ij^p = sum_l (G_p e_il) (r_ij . r_il / |r_ij| |r_il|)^p for p = 0 ... P, and a_ij = silu(A e_ij + sum_p B_p c_ij^p + b).

    Powers of cosines are products of tensors of directions, so that no pairs of edges are made (moment tensors, arXiv:1512.06054). e and a end at the cutoff.
    No published form.
    """

    SUMS, WIDTH = 4, 16

    def __init__(self, width: int, largest: int) -> None:
        super().__init__()
        self.largest = largest
        self.sums = nn.Linear(width, (largest + 1) * self.SUMS, bias=False)
        self.inputs = nn.Linear(width + (largest + 1) * self.SUMS, self.WIDTH)

    def forward(self, graph: MessageGraph) -> Float[Tensor, "edges width"]:
        """Return a_ij times the envelope."""
        topology, power = graph.topology, torch.ones_like(graph.directions[:, :1])  # [edges, dim^p]
        parts = [graph.to_edges(graph.ended_inputs)]
        for weights in self.sums(parts[0]).chunk(self.largest + 1, dim=1):
            moments = outer_sum(weights, power, topology)  # [nodes, dim^p, sums]
            parts.append((spread(moments, topology.receivers) * power.unsqueeze(2)).sum(1))  # [edges, sums]
            power = (power.unsqueeze(2) * graph.directions.unsqueeze(1)).flatten(1)
        inputs = silu(self.inputs(torch.cat(parts, dim=1)))
        return inputs if graph.envelope is None else inputs * graph.envelope


class EdgeMixing(nn.Module):
    """Messages along edges, which carry the positions.

    d_ij = A h_j - A h_i + B h_i, s_i = sum_j F_1(e_ij) d_ij, v_i = sum_j F_2(e_ij) d_ij r_ij / |r_ij|, g_i = sum_j F_3(e_ij) r_ij / |r_ij|, and out([s_i, <U v_i, g_i>]).

    F are linear in radial functions and edge features, or with ``angles`` in what ``EdgeAngles`` makes of these, and end at the cutoff. All is linear in states, as are gradients and divergences on a mesh: with B = 0
    constants give nothing, and g_i, the lopsidedness of the neighbours, takes off what v_i adds to a sum over them.
    """

    def __init__(self, channels: int, width: int, *, directed: bool, angles: int = 0) -> None:
        super().__init__()
        self.angles = EdgeAngles(width, angles) if angles and directed else None
        width = width if self.angles is None else self.angles.WIDTH
        self.sent = nn.Linear(channels, channels, bias=False)
        self.own = nn.Linear(channels, channels)
        self.filters = nn.Linear(width, channels, bias=False) if width else None
        self.along = nn.Linear(width, channels, bias=False) if directed else None
        self.sides = nn.Linear(width, channels, bias=False) if directed else None
        self.mix = nn.Linear(channels, channels, bias=False) if directed else None
        self.out = nn.Linear((2 if directed else 1) * channels, channels)

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """Return what every node receives."""
        sent, topology = self.sent(states), graph.topology
        joined = gather_add(self.own(states) - sent, sent, None, topology)  # [edges, channels]
        angles = None if self.angles is None else self.angles(graph)  # [edges, width]
        messages = joined if self.filters is None else joined * self.weights(self.filters, graph, angles)
        received = segment_sum(messages, topology.receivers, topology.num_rows)
        if self.along is None or self.sides is None or self.mix is None:
            return self.out(received)
        vectors = outer_sum(joined * self.weights(self.along, graph, angles), graph.directions, topology)
        sides = outer_sum(self.weights(self.sides, graph, angles), graph.directions, topology)  # [nodes, dim, channels]
        return self.out(torch.cat([received, (self.mix(vectors) * sides).sum(1)], dim=-1))

    def split_plan(self) -> Plan:
        """Return channels of messages and sums."""
        blocks = 1 if self.mix is None else 2
        return {
            "": LayerSplit(takes=(("copy",), ("copy",))),
            **dict.fromkeys(("angles.sums", "angles.inputs"), LayerSplit(weights="shared")),
            **dict.fromkeys(("sent", "own", "filters", "along", "sides"), LayerSplit(weights="columns")),
            "mix": LayerSplit(weights="columns", takes=(("gather", "copy"),)),
            "out": LayerSplit(weights="rows", blocks=blocks),
        }

    def weights(
        self, filters: nn.Linear, graph: MessageGraph, angles: Float[Tensor, "edges width"] | None
    ) -> Float[Tensor, "edges channels"]:
        """Return F(e_ij), or F(a_ij), of every edge."""
        if angles is not None:
            return filters(angles)
        if graph.basis is None:
            assert graph.edge_features is not None
            return filters(graph.edge_features)
        return graph.to_edges(filters(graph.ended_inputs))


class FieldTokensLayer(nn.Module):
    """Transformer layer with norms first (arXiv:2002.04745).

    h <- h + edges(h), h <- h + network(norm(h)).

    Deviates from ClimaX: nodes read each other and positions along edges, where the paper has attention of all nodes and an embedding of the place on its grid;
    no norm comes before edges, since it takes the amplitude off, to which a linear equation is proportional.
    """

    def __init__(self, settings: FieldTokensSettings, width: int, *, directed: bool) -> None:
        super().__init__()
        channels = settings.hidden_dim
        self.norms = nn.ModuleList([nn.LayerNorm(channels)])  # a list in saved models
        self.edges = EdgeMixing(channels, width, directed=directed, angles=settings.angles)
        self.network = mlp([channels, 4 * channels, channels])
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degree 0."""
        rows = states[0] + self.dropout(self.edges(states[0], graph))
        return {**states, 0: rows + self.dropout(self.network(self.norms[0](rows)))}


class FieldTokensTransformer(Architecture):
    """Aggregation of field tokens, then transformer layers on all nodes."""

    kind = "field_tokens"
    Settings = FieldTokensSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    takes_new_inputs = True
    cuttable = True

    def __init__(self, settings: FieldTokensSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec) if spec.dim else None
        self.norm = nn.LayerNorm(settings.hidden_dim)
        width = self.basis.width if self.basis else spec.edge_width
        self.layers = nn.ModuleList(
            FieldTokensLayer(settings, width, directed=spec.dim > 0) for _ in range(settings.num_layers)
        )

    def finish(self, states: States, graph: MessageGraph) -> States:
        """Return the states after the last norm, which bounds roll-outs."""
        return {**states, 0: self.norm(states[0])}

    @classmethod
    def node_inputs(cls, settings: FieldTokensSettings, fields: Sequence[Field]) -> NodeInputs:
        """Return the tokens of fields, and the attention that reads them."""
        return FieldTokens(fields, settings.hidden_dim, settings.heads, settings.lead_time)

    @classmethod
    def optional_inputs(cls, settings: FieldTokensSettings) -> Sequence[str]:
        """Return the inputs that graphs may lack."""
        return settings.optional_inputs

    @classmethod
    def bounded_inputs(cls, settings: FieldTokensSettings) -> Sequence[str]:
        """Return the lead time."""
        return () if settings.lead_time is None else (settings.lead_time,)

    @classmethod
    def check_inputs(cls, settings: FieldTokensSettings, fields: Sequence[Field]) -> None:
        """Refuse names that are no inputs, or no number of a graph."""
        tokens = [field.name for field in fields if field.on != "edge" and field.name != settings.lead_time]
        for name in settings.optional_inputs:
            if name not in tokens:
                raise InputError(
                    f"model.optional_inputs: {name!r} is no input of nodes or graphs; {nearest(name, tokens)}"
                )
        numbers = [field.name for field in fields if field.on == "graph" and not field.classes and field.width == 1]
        if settings.lead_time is not None and settings.lead_time not in numbers:
            problem = f"model.lead_time = {settings.lead_time!r} is no input with one number per graph"
            raise InputError(f"{problem}; {nearest(settings.lead_time, numbers)}")
