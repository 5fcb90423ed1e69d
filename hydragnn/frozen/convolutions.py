"""Kinds whose layers are those of torch_geometric."""

from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.model import FrozenModel
from hydragnn.graphs.pyg import torch_geometric

GAT_HEADS = 6


def geometric(name: str) -> Any:
    """Return a layer class of torch_geometric, whose import takes seconds."""
    return getattr(torch_geometric("nn"), name)


class Convolution(nn.Module):
    """Layer over edges, with their features if it sees any."""

    def __init__(self, convolution: nn.Module, edge_dim: int = 0) -> None:
        super().__init__()
        self.module_0 = convolution
        self.module_1: nn.Module | None = None
        self.edge_dim = edge_dim

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        """Scalars after the layer; equivariant states as they are."""
        features = [graph.edge_attr] if self.edge_dim else []
        inv = self.module_0(inv, graph.edge_index, *features)
        return (inv if self.module_1 is None else self.module_1(inv)), equiv


class GIN(FrozenModel):
    """Sums of neighbours."""

    normed = True

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer whose activation is ReLU."""
        network = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))
        return Convolution(geometric("GINConv")(network, eps=100.0, train_eps=True))


class SAGE(FrozenModel):
    """Means of neighbours."""

    normed = True

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer with torch_geometric's defaults."""
        return Convolution(geometric("SAGEConv")(in_dim, out_dim))


class MFC(FrozenModel):
    """Sums of neighbours with weights for every degree."""

    normed = True

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer with as many degrees as neighbours."""
        return Convolution(geometric("MFConv")(in_dim, out_dim, max_degree=self.settings.max_neighbours))


class PNA(FrozenModel):
    """Several statistics of neighbours, scaled by the degree."""

    normed = True

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer with one tower."""
        layer = geometric("PNAConv")(
            in_dim,
            out_dim,
            aggregators=["mean", "min", "max", "std"],
            scalers=["identity", "amplification", "attenuation", "linear"],
            deg=torch.tensor(self.settings.pna_deg or [0, 1], device="cpu"),
            edge_dim=edge_dim or None,
            divide_input=False,
        )
        return Convolution(layer, edge_dim)


class GAT(FrozenModel):
    """Attention to neighbours; the last layer averages heads."""

    normed = True
    fewest_layers = 2

    @property
    def spread(self) -> int:
        """Heads, unless a linear map joins them before global attention."""
        return 1 if self.settings.global_attn_engine else GAT_HEADS

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer with loops of its own."""
        layer = geometric("GATv2Conv")(
            in_dim, out_dim, heads=GAT_HEADS, negative_slope=0.05, edge_dim=edge_dim or None, concat=not last
        )
        convolution = Convolution(layer, edge_dim)
        if self.settings.global_attn_engine and not last:
            convolution.module_1 = nn.Linear(out_dim * GAT_HEADS, out_dim)
        return convolution


class CGCNN(FrozenModel):
    """Gated sums of neighbours, as wide as the input."""

    normed = True

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer with a residual."""
        return Convolution(geometric("CGConv")(in_dim, dim=edge_dim, aggr="add"), edge_dim)


KINDS: dict[str, type[FrozenModel]] = {"GIN": GIN, "SAGE": SAGE, "MFC": MFC, "PNA": PNA, "GAT": GAT, "CGCNN": CGCNN}
