"""Graph isomorphism network: GIN (Xu et al. 2019, arXiv:1810.00826, equation 4.1)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, ArchitectureSettings, GraphSpec
from hydragnn.kernels import gather_multiply_sum
from hydragnn.layers import MessageGraph, States, mlp
from hydragnn.layers.stacked import by_member


class GINSettings(ArchitectureSettings):
    """Sums of neighbours, as powerful as the Weisfeiler-Lehman test; blind to geometry (Xu et al. 2019, arXiv:1810.00826)."""

    kind: str = "gin"

    removed: ClassVar = {"epsilon": 0.0}


class GINLayer(nn.Module):
    """Layer of GIN.

    MLP((1 + e) h_i + sum_j h_j) with a learned e (eq. 4.1).

    Deviates from the paper: SiLU instead of ReLU, no batch norm inside the network, and what it gives is an increment.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.tensor(0.0))
        self.network = mlp([channels, channels, channels])

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Increments of degree 0."""
        received = gather_multiply_sum(states[0], None, graph.topology)  # [nodes, channels]
        return {0: self.network(self.own_share(states[0]) + received)}  # eq. 4.1; [nodes, channels]

    def own_share(self, states: Float[Tensor, "nodes channels"]) -> Float[Tensor, "nodes channels"]:
        """Return (1 + e) h_i."""
        return (1 + self.epsilon) * states


class StackedGINLayer(GINLayer):
    """GIN with the e of every member."""

    def own_share(self, states: Float[Tensor, "nodes channels"]) -> Float[Tensor, "nodes channels"]:
        """Return (1 + e_m) h_i of the nodes of member m."""
        return ((1 + self.epsilon).view(-1, 1, 1) * by_member(states, len(self.epsilon))).flatten(0, 1)


class GIN(Architecture):
    """h <- h + dropout(GIN(norm(h))), layer by layer.

    Deviates from the paper: a layer norm before and a residual around each layer, and heads read the last states, not those
    of all layers (eq. 4.2).
    """

    kind = "gin"
    Settings = GINSettings
    residual = True
    stacked: ClassVar = {GINLayer: StackedGINLayer}
    cuttable = True

    def __init__(self, settings: GINSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.layers = nn.ModuleList(GINLayer(settings.hidden_dim) for _ in range(settings.num_layers))
