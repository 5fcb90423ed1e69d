"""Principal neighbourhood aggregation: PNA (Corso et al. 2020, arXiv:2004.05718, equations 5 to 8)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.kernels import Topology, segment_statistics


class PNALayer(nn.Module):
    """Mean, min, max and std of linear messages, each as is, amplified and attenuated by the receiver's degree.

    The receiver's part of a message is the same for all edges of a node, so it is added after the aggregation; and the
    scalers, one number per node, act after the linear map of the four statistics. Both are exact.
    """

    def __init__(self, channels: int, edge_width: int, mean_log_degree: float) -> None:
        super().__init__()
        self.channels = channels
        self.mean_log_degree = mean_log_degree if mean_log_degree > 0 else 1.0
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.from_edge = nn.Linear(edge_width, channels, bias=False) if edge_width else None
        self.from_self = nn.Linear(channels, channels)
        self.from_statistics = nn.Linear(4 * channels, 3 * channels, bias=False)
        self.mix = nn.Linear(channels, channels)

    def forward(
        self,
        states: Float[Tensor, "nodes channels"],
        features: Float[Tensor, "edges features"] | None,
        envelope: Float[Tensor, "edges 1"] | None,
        topology: Topology,
    ) -> Float[Tensor, "nodes channels"]:
        """New states of all nodes."""
        messages = self.from_sender(states).index_select(0, topology.senders)
        if self.from_edge is not None and features is not None:
            messages = messages + self.from_edge(features)
        if envelope is not None:
            messages = messages * envelope
        mean, low, high, std = segment_statistics(messages, topology.receivers, topology.num_rows)
        degrees = topology.degrees.to(states.dtype).unsqueeze(-1)
        own = self.from_receiver(states) * (degrees > 0)
        statistics = torch.cat([own + mean, own + low, own + high, std], dim=-1)
        plain, amplified, attenuated = self.from_statistics(statistics).split(self.channels, dim=-1)
        size = torch.log1p(degrees) / self.mean_log_degree
        scaled = plain + size * amplified + attenuated / torch.where(degrees > 0, size, 1.0)
        return self.mix(self.from_self(states) + scaled)
