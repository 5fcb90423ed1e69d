"""Means of neighbours: GraphSAGE (Hamilton et al. 2017, arXiv:1706.02216, algorithm 1)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, ArchitectureSettings, GraphSpec
from hydragnn.kernels import gather_multiply_sum, silu
from hydragnn.layers import MessageGraph, States


class SAGESettings(ArchitectureSettings):
    """Means of neighbours beside the node itself; blind to geometry (Hamilton et al. 2017, arXiv:1706.02216)."""

    kind: str = "sage"


class SAGELayer(nn.Module):
    """Mean of neighbours, and the node itself.

    silu(W_1 h_i + W_2 mean_j h_j), the mean over the neighbours of i; zero where there are none (algorithm 1, lines 4 and 5).

    The paper's matrix on [h_i, mean] is W_1 and W_2 side by side. Deviates from the paper: SiLU instead of its sigma, the mean over all
    neighbours instead of a sample of them, no division by the length of the result (line 7), and what it gives is an increment.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.from_self = nn.Linear(channels, channels, bias=False)
        self.from_mean = nn.Linear(channels, channels)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Increments of degree 0."""
        received = gather_multiply_sum(states[0], None, graph.topology)  # [nodes, channels]
        degrees = graph.once(("degrees", received.dtype), lambda: self.degrees(graph, received.dtype))  # [nodes, 1]
        return {0: silu(self.from_self(states[0]) + self.from_mean(received / degrees))}

    def degrees(self, graph: MessageGraph, dtype: torch.dtype) -> Float[Tensor, "nodes 1"]:
        """The edges that every node receives; 1 where there are none."""
        return graph.topology.degrees.clamp_min(1).to(dtype).unsqueeze(-1)


class SAGE(Architecture):
    """h <- h + dropout(SAGE(norm(h))), layer by layer.

    Deviates from the paper: a layer norm before and a residual around each layer.
    """

    kind = "sage"
    Settings = SAGESettings
    residual = True
    cuttable = True

    def __init__(self, settings: SAGESettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.layers = nn.ModuleList(SAGELayer(settings.hidden_dim) for _ in range(settings.num_layers))
