"""Encoders: from first node states and edges to final states, as the figures of their papers show."""

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import segment_mean
from hydragnn.layers import (
    Edges,
    EGNNLayer,
    Level,
    PaiNNMessage,
    PaiNNUpdate,
    PNALayer,
    RadialFeatures,
    RelationalLayer,
    SchNetInteraction,
    States,
    level_of,
    mlp,
)
from hydragnn.models.description import DegreeStatistics
from hydragnn.models.settings import EGNNSettings, PaiNNSettings, PNASettings, RelationalSettings, SchNetSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the data and the heads ask of an encoder."""

    dim: int
    """Spatial dimension; 0 without geometry."""

    edge_width: int
    """Numbers of the edge inputs."""

    relations: int = 0
    """Kinds of edges."""

    vectors: bool = False
    """Whether a head reads vectors."""

    statistics: DegreeStatistics | None = None
    """Degrees of the training part."""


class Encoder(Protocol):
    """First node states and edges in, final states out; ``scalars`` keep ``hidden_dim`` channels."""

    def __init__(self, settings: Any, surroundings: Surroundings) -> None: ...

    def __call__(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """The final states."""


class SchNet(nn.Module):
    """Interactions with filters of distance (arXiv:1706.08566, figure 2)."""

    def __init__(self, settings: SchNetSettings, surroundings: Surroundings) -> None:
        super().__init__()
        channels = settings.hidden_dim
        self.radial = _radial(settings, surroundings)
        self.filters = nn.ModuleList(mlp([self.radial.width, channels, channels]) for _ in range(settings.num_layers))
        self.interactions = nn.ModuleList(SchNetInteraction(channels) for _ in range(settings.num_layers))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """States of all nodes after all interactions."""
        assert edges.lengths is not None
        features, envelope = self.radial(edges.lengths, edges.features)
        for network, interaction in zip(self.filters, self.interactions):
            filters = network(features) if envelope is None else network(features) * envelope
            states = states + self.dropout(interaction(states, filters, edges.topology))
        return States(states)


class PaiNN(nn.Module):
    """Messages and updates of scalars and vectors (arXiv:2102.03150, figure 2)."""

    def __init__(self, settings: PaiNNSettings, surroundings: Surroundings) -> None:
        super().__init__()
        channels, layers = settings.hidden_dim, settings.num_layers
        self.radial = _radial(settings, surroundings)
        self.parts = [2 if number == 0 else 3 for number in range(layers)]
        self.filters = nn.ModuleList(nn.Linear(self.radial.width, channels, bias=False) for _ in range(sum(self.parts)))
        self.messages = nn.ModuleList(PaiNNMessage(channels, part) for part in self.parts)
        self.updates = nn.ModuleList(
            PaiNNUpdate(channels, last=number == layers - 1 and not surroundings.vectors) for number in range(layers)
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """Scalars and vectors of all nodes after all layers."""
        assert edges.lengths is not None and edges.directions is not None
        features, envelope = self.radial(edges.lengths, edges.features)
        features = features if envelope is None else features * envelope
        filters = iter(self.filters)
        scalars, vectors = states, None
        for part, message, update in zip(self.parts, self.messages, self.updates):
            filtered = [linear(features) for linear in itertools.islice(filters, part)]
            d_scalars, d_vectors = message(scalars, vectors, filtered, edges.directions, edges.topology)
            scalars = scalars + self.dropout(d_scalars)
            vectors = d_vectors if vectors is None else vectors + d_vectors
            d_scalars, d_vectors = update(scalars, vectors)
            scalars = scalars + self.dropout(d_scalars)
            vectors = vectors if d_vectors is None else vectors + d_vectors
        return States(scalars, vectors)


class EGNN(nn.Module):
    """Messages from states and lengths, positions at rest (arXiv:2102.09844, equations 3 to 6)."""

    def __init__(self, settings: EGNNSettings, surroundings: Surroundings) -> None:
        super().__init__()
        self.radial = _radial(settings, surroundings)
        self.layers = nn.ModuleList(
            EGNNLayer(
                settings.hidden_dim, self.radial.width, attention=settings.attention, vectors=surroundings.vectors
            )
            for _ in range(settings.num_layers)
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """Scalars and, where a head wants them, vectors of all nodes after all layers."""
        assert edges.lengths is not None and edges.directions is not None
        features, envelope = self.radial(edges.lengths, edges.features)
        vectors = None
        for layer in self.layers:
            d_scalars, d_vectors = layer(states, features, envelope, edges.directions, edges.topology)
            states = states + self.dropout(d_scalars)
            vectors = d_vectors if vectors is None else vectors + d_vectors
        return States(states, vectors)


class PNA(nn.Module):
    """Four statistics of the neighbours at three scales of the degree (arXiv:2004.05718, figure 2)."""

    def __init__(self, settings: PNASettings, surroundings: Surroundings) -> None:
        super().__init__()
        assert surroundings.statistics is not None
        channels, log_degree = settings.hidden_dim, surroundings.statistics.mean_log_degree
        self.radial = _radial(settings, surroundings) if surroundings.dim else None
        width = self.radial.width if self.radial else surroundings.edge_width
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(settings.num_layers))
        self.layers = nn.ModuleList(PNALayer(channels, width, log_degree) for _ in range(settings.num_layers))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """States of all nodes after all layers."""
        features, envelope = edges.features, None
        if self.radial is not None:
            assert edges.lengths is not None
            features, envelope = self.radial(edges.lengths, edges.features)
        for norm, layer in zip(self.norms, self.layers):
            received = layer(norm(states), features, envelope, edges.topology)
            states = states + self.dropout(nn.functional.silu(received))
        return States(states)


class Relational(nn.Module):
    """A matrix for every kind of edge (arXiv:1703.06103); edge inputs enter as their mean over a node's edges.

    With a schedule, each layer acts on one level of edges and on the nodes that they touch: a multigrid cycle whose
    skip connections are the residuals.
    """

    def __init__(self, settings: RelationalSettings, surroundings: Surroundings) -> None:
        super().__init__()
        channels, width = settings.hidden_dim, surroundings.edge_width
        self.relations = surroundings.relations
        self.reduce = settings.reduce
        self.schedule = tuple(settings.schedule)
        self.edge_inputs = nn.Linear(width, channels) if width else None
        self.layers = nn.ModuleList(
            RelationalLayer(channels, surroundings.relations) for _ in range(settings.num_layers)
        )
        self.norm = nn.LayerNorm(channels)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: Float[Tensor, "nodes channels"], edges: Edges) -> States:
        """States of all nodes after all layers."""
        topology = edges.topology
        if self.edge_inputs is not None and edges.features is not None:
            around = segment_mean(edges.features, topology.receivers, topology.num_rows)
            states = states + self.edge_inputs(around)
        for level, layer in zip(self.levels(edges, states.dtype), self.layers):
            if level.nodes is None:
                states = states + self.dropout(layer(states, level))
            else:
                increment = self.dropout(layer(states.index_select(0, level.nodes), level))
                states = states.index_add(0, level.nodes, increment.to(states.dtype))
        return States(self.norm(states))

    def levels(self, edges: Edges, dtype: torch.dtype) -> list[Level]:
        """The level of every layer, with weights in ``dtype``; each distinct one is made once."""
        assert edges.relation is not None
        about = (edges.topology, edges.relation, self.relations, self.reduce, dtype)
        if not self.schedule:
            return [level_of(*about)] * len(self.layers)
        assert edges.level is not None
        chosen = {number: (edges.level == number).nonzero().squeeze(1) for number in set(self.schedule)}
        made = {number: level_of(*about, numbers) for number, numbers in chosen.items()}
        return [made[number] for number in self.schedule]


def _radial(
    settings: SchNetSettings | PaiNNSettings | EGNNSettings | PNASettings, around: Surroundings
) -> RadialFeatures:
    return RadialFeatures(settings.cutoff, settings.num_radial, settings.radial, settings.envelope, around.edge_width)


MESSAGE_PASSING: dict[str, type[Encoder]] = {
    "schnet": SchNet,
    "painn": PaiNN,
    "egnn": EGNN,
    "pna": PNA,
    "relational": Relational,
}
GEOMETRIC = ("schnet", "painn", "egnn")
EQUIVARIANT = ("painn", "egnn")
