"""Crystal graph convolutions: CGCNN (Xie and Grossman 2018, doi:10.1103/PhysRevLett.120.145301, equation 5)."""

import torch
from torch import nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, radial_basis
from hydragnn.kernels import gather_add, segment_sum
from hydragnn.layers import MessageGraph, States


class CGCNNSettings(GeometricSettings):
    """Gated convolutions of crystals (Xie and Grossman 2018, doi:10.1103/PhysRevLett.120.145301)."""

    kind: str = "cgcnn"


class CGCNNLayer(nn.Module):
    """Gated convolution over neighbours.

    h_i <- h_i + sum_j sigmoid(z_ij W_f + b_f) * softplus(z_ij W_s + b_s) with z_ij = [h_i, h_j, e_ij] (eq. 5).

    The linear map of z is split into maps of receiver, sender and edge, which is the same sum. Deviates from the paper: no batch
    norm, which would let a prediction depend on its batch; dropout on the sum; and the envelope ends messages at the cutoff.
    """

    def __init__(self, channels: int, edge_width: int, dropout: float) -> None:
        super().__init__()
        self.from_receiver = nn.Linear(channels, 2 * channels)
        self.from_sender = nn.Linear(channels, 2 * channels, bias=False)
        self.from_edge = nn.Linear(edge_width, 2 * channels, bias=False) if edge_width else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degree 0."""
        topology = graph.topology
        features, envelope = graph.paired_inputs[0], graph.envelope  # [items, width], [edges, 1]
        edges = None if self.from_edge is None or features is None else self.from_edge(features)
        received, sent = self.from_receiver(states[0]), self.from_sender(states[0])  # [nodes, 2 channels]
        joined = gather_add(received, sent, edges, graph.sharing)  # [edges, 2 channels]
        gate, core = joined.chunk(2, dim=-1)  # [edges, channels] each
        messages = torch.sigmoid(gate) * nn.functional.softplus(core)  # [edges, channels]
        messages = messages if envelope is None else messages * envelope
        received = segment_sum(messages, topology.receivers, topology.num_rows)  # [nodes, channels]
        return {0: states[0] + self.dropout(received)}


class CGCNN(Architecture):
    """Gated convolutions with the paper's residual (equation 5), one after the other.

    Deviates from the paper: edges say their length in the radial basis of the settings.
    """

    kind = "cgcnn"
    Settings = CGCNNSettings
    sees = frozenset({"lengths", "edge_features"})
    node_cost = 1
    cuttable = True

    def __init__(self, settings: CGCNNSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.basis = radial_basis(settings, spec) if spec.dim else None
        width = self.basis.width if self.basis else spec.edge_width
        self.layers = nn.ModuleList(
            CGCNNLayer(settings.hidden_dim, width, settings.dropout) for _ in range(settings.num_layers)
        )
