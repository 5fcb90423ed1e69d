"""Neural fingerprints with weights per degree: MFC (arXiv:1509.09292, algorithm 2)."""

from typing import ClassVar

import torch
from pydantic import Field as Setting
from torch import nn

from hydragnn.architectures.base import Architecture, ArchitectureSettings, GraphSpec, Searched, one_of, steps
from hydragnn.kernels import gather_multiply_sum, silu
from hydragnn.layers import Classes, LinearByClass, MessageGraph, States, classes_of


class MFCSettings(ArchitectureSettings):
    """Sums of neighbours with weights for every number of them; blind to geometry (Duvenaud et al. 2015, arXiv:1509.09292)."""

    kind: str = "mfc"

    searched: ClassVar[Searched] = {
        **ArchitectureSettings.searched,
        "hidden_dim": steps(16, 64, 16),
        "max_degree": one_of(6, 10),
    }

    max_degree: int = Setting(default=10, ge=1, le=256)
    """Nodes that receive so many edges or more share their weights, whose number grows with it."""


class MFCLayer(nn.Module):
    """Layer with matrices per number of neighbours.

    silu(U_d h_i + V_d sum_j h_j + b_d) with matrices of their own for every number d of neighbours (algorithm 2, lines 8 to 10).

    d is the number of edges that node i receives, at most ``max_degree``. Deviates from the paper: the node itself has matrices of its
    own (U = V there), as in PyTorch Geometric's MFConv; SiLU instead of the sigmoid, and what it gives is an increment.
    """

    def __init__(self, channels: int, max_degree: int) -> None:
        super().__init__()
        self.max_degree = max_degree
        self.by_degree = LinearByClass(2 * channels, channels, max_degree + 1)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Increments of degree 0."""
        received = gather_multiply_sum(states[0], None, graph.topology)  # [nodes, channels]
        joined = torch.cat([states[0], received], dim=-1)  # [nodes, 2 channels]
        degrees = graph.once(("by degree", self.max_degree), lambda: self.degrees(graph))
        return {0: silu(self.by_degree(joined, degrees))}

    def degrees(self, graph: MessageGraph) -> Classes:
        """Return the degree of every node, up to the largest with weights."""
        return classes_of(graph.topology.degrees.clamp_max(self.max_degree), self.max_degree + 1)


class MFC(Architecture):
    """h <- h + dropout(MFC(norm(h))), layer by layer.

    Deviates from the paper: a layer norm before and a residual around each layer, and heads read the last states, not the sum of
    soft indices of all layers (lines 11 and 12).
    """

    kind = "mfc"
    Settings = MFCSettings
    residual = True
    cuttable = True

    def __init__(self, settings: MFCSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, degree = settings.hidden_dim, settings.max_degree
        self.layers = nn.ModuleList(MFCLayer(channels, degree) for _ in range(settings.num_layers))
