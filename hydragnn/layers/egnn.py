"""Messages from states and lengths: EGNN (Satorras et al. 2021, arXiv:2102.09844, equations 3 to 6)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology, outer_sum, segment_sum
from hydragnn.layers.edges import States
from hydragnn.layers.mlp import mlp


class EGNNLayer(nn.Module):
    """Equations 3, 5 and 6 with resting positions; equation 4 feeds vectors instead where a head wants them.

    The first linear map of [h_i, h_j, edge] is split into two maps of nodes and one of edges, which is the same sum.
    """

    def __init__(self, channels: int, edge_width: int, *, attention: bool, vectors: bool) -> None:
        super().__init__()
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.from_edge = nn.Linear(edge_width, channels, bias=False)
        self.second = nn.Linear(channels, channels)
        self.gate = nn.Linear(channels, 1) if attention else None
        self.nodes = mlp([2 * channels, channels, channels])
        self.coordinates = mlp([channels, channels, channels], last_bias=False) if vectors else None

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        features: Float[Tensor, "edges features"],
        envelope: Float[Tensor, "edges 1"] | None,
        directions: Float[Tensor, "edges dim"],
        topology: Topology,
    ) -> States:
        """Increments of the scalars and, where asked for, of the vectors."""
        messages = self.messages(scalars, features, topology)
        if envelope is not None:
            messages = messages * envelope
        received = segment_sum(messages, topology.receivers, topology.num_rows)
        d_scalars = self.nodes(torch.cat([scalars, received], dim=-1))
        if self.coordinates is None:
            return States(d_scalars)
        along = self.coordinates(messages) if envelope is None else self.coordinates(messages) * envelope
        return States(d_scalars, outer_sum(along, directions, topology))

    def messages(
        self,
        scalars: Float[Tensor, "nodes channels"],
        features: Float[Tensor, "edges features"],
        topology: Topology,
    ) -> Float[Tensor, "edges channels"]:
        """Equation 3: what each edge carries, weighed by its gate where attention is on."""
        receiver = self.from_receiver(scalars).index_select(0, topology.receivers)
        sender = self.from_sender(scalars).index_select(0, topology.senders)
        hidden = nn.functional.silu(receiver + sender + self.from_edge(features))
        messages = nn.functional.silu(self.second(hidden))
        return messages if self.gate is None else messages * torch.sigmoid(self.gate(messages))
