"""Messages from states and lengths: EGNN (arXiv:2102.09844, eqs. 3 to 6)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, Searched, one_of, radial_basis
from hydragnn.kernels import Topology, activated_sum, gather_add, outer_sum, segment_sum, silu
from hydragnn.layers import MessageGraph, States, mlp


class EGNNSettings(GeometricSettings):
    """Messages from states and lengths, E(n)-equivariant (Satorras et al. 2021, arXiv:2102.09844)."""

    kind: str = "egnn"

    searched: ClassVar[Searched] = {**GeometricSettings.searched, "attention": one_of(False, True)}

    attention: bool = False
    """Weigh each message by a learned gate."""

    removed: ClassVar = {"moving_coordinates": False, "movement": "sum", "residual": True}


class EGNNLayer(nn.Module):
    """Layer of EGNN.

    m_ij = f_e(h_i, h_j, r_ij) (eq. 3), m_i = sum_j m_ij (eq. 5), h_i <- h_i + f_h(h_i, m_i) (eq. 6).

    Equation 6 has no h_i before f_h; the authors' program adds it.
    With ``attention``, m_ij is weighed by e_ij = sigmoid(linear(m_ij)) (eq. 8). Where a head wants vectors, equation 4
    feeds these: v_i <- v_i + sum_j f_x(m_ij) r_ij / |r_ij|. Nodes rest, as in the paper's models of QM9.
    The first linear map of [h_i, h_j, edge] is split into two maps of nodes and one of edges, which is the same sum.
    Deviates from the paper: a radial basis of the length instead of its square, an envelope on the messages, and in equation 4 a sum instead of a mean, so that nothing jumps where a neighbour comes or
    goes; for vectors also unit vectors and channels.
    """

    def __init__(self, settings: EGNNSettings, edge_width: int, *, vectors: bool) -> None:
        super().__init__()
        channels = settings.hidden_dim
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.from_edge = nn.Linear(edge_width, channels, bias=False)
        self.second = nn.Linear(channels, channels)
        self.gate = nn.Linear(channels, 1) if settings.attention else None
        self.nodes = mlp([2 * channels, channels, channels])
        self.coordinates = mlp([channels, channels, channels], last_bias=False) if vectors else None
        self.reads_messages = self.gate is not None or self.coordinates is not None
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states."""
        scalars, topology = states[0], graph.topology
        features, envelope = graph.paired_inputs[0], graph.envelope  # [items, width], [edges, 1]
        assert features is not None
        inner = self.inner(scalars, features, graph.sharing)  # [edges, channels]
        if envelope is not None and not self.reads_messages:
            # eq. 5, without an array of messages; [nodes, channels]
            received = activated_sum(inner, envelope, topology)
        else:
            messages = silu(inner)  # [edges, channels]; the gate of eq. 8 is [edges, 1]
            messages = messages if self.gate is None else messages * torch.sigmoid(self.gate(messages))
            if envelope is None:
                received = segment_sum(messages, topology.receivers, topology.num_rows)
            else:  # of messages * envelope, which is not made
                received = outer_sum(messages, envelope, topology).squeeze(1)
        increment = self.dropout(self.nodes(torch.cat([scalars, received], dim=-1)))  # eq. 6
        new = {**states, 0: scalars + increment}
        if self.coordinates is not None:
            weighed = messages if envelope is None else messages * envelope
            along = self.coordinates(weighed)  # [edges, channels]
            along = along if envelope is None else along * envelope
            vectors = outer_sum(along, graph.directions, topology)  # eq. 4; [nodes, dim, channels]
            new[1] = states[1] + vectors if 1 in states else vectors
        return new

    def inner(
        self, scalars: Float[Tensor, "nodes channels"], features: Float[Tensor, "items features"], topology: Topology
    ) -> Float[Tensor, "edges channels"]:
        """Equation 3 but for its last SiLU."""
        received, sent = self.from_receiver(scalars), self.from_sender(scalars)  # [nodes, channels]
        return self.second(silu(gather_add(received, sent, self.from_edge(features), topology)))


class EGNN(Architecture):
    """EGNN whose nodes rest."""

    kind = "egnn"
    Settings = EGNNSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    node_cost = 2
    cuttable = True

    def __init__(self, settings: EGNNSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec)
        self.carried = [frozenset({0}), *[spec.degrees] * settings.num_layers]
        self.layers = nn.ModuleList(
            EGNNLayer(settings, self.basis.width, vectors=1 in spec.degrees) for _ in range(settings.num_layers)
        )
