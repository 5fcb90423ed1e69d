"""Kinds whose layers are those of torch_geometric."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.model import FrozenModel
from hydragnn.frozen.settings import FrozenSettings
from hydragnn.graphs.pyg import torch_geometric

GAT_HEADS = 6
STATISTICS = {
    "aggregators": ["mean", "min", "max", "std"],
    "scalers": ["identity", "amplification", "attenuation", "linear"],
}


def gin(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer whose activation is ReLU, whatever that of the model is."""
    network = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))
    return library.GINConv(network, eps=100.0, train_eps=True)


def sage(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer of means."""
    return library.SAGEConv(in_dim, out_dim)


def mfc(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer with weights for every degree."""
    return library.MFConv(in_dim, out_dim, max_degree=settings.required("max_neighbours"))


def pna(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer with one tower; its means of degrees are in the checkpoint."""
    degrees = torch.tensor(settings.required("pna_deg"), device="cpu")
    return library.PNAConv(in_dim, out_dim, deg=degrees, edge_dim=edge_dim or None, divide_input=False, **STATISTICS)


def gat(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer whose heads lie side by side; the last averages them."""
    edges = edge_dim or None
    return library.GATv2Conv(in_dim, out_dim, heads=GAT_HEADS, negative_slope=0.05, edge_dim=edges, concat=not last)


def cgcnn(library: Any, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, last: bool) -> nn.Module:
    """Layer as wide as its input."""
    return library.CGConv(in_dim, dim=edge_dim, aggr="add")


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "GIN": gin,
    "SAGE": sage,
    "MFC": mfc,
    "PNA": pna,
    "GAT": gat,
    "CGCNN": cgcnn,
}
SEE_EDGES = ("PNA", "GAT", "CGCNN")


class Convolution(nn.Module):
    """Layer over edges, with their features if it sees any."""

    def __init__(self, convolution: nn.Module, sees_edges: bool) -> None:
        super().__init__()
        self.module_0 = convolution
        self.module_1: nn.Module | None = None
        self.sees_edges = sees_edges

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        """Scalars after the layer; equivariant states as they are."""
        features = [graph.edge_attr] if self.sees_edges else []
        inv = self.module_0(inv, graph.edge_index, *features)
        return (inv if self.module_1 is None else self.module_1(inv)), equiv


class Convolutional(FrozenModel):
    """Kind with a layer of torch_geometric, whose import takes seconds."""

    normed = True

    @property
    def spread(self) -> int:
        """Heads of GAT, unless a linear map joins them before global attention."""
        return GAT_HEADS if self.settings.kind == "GAT" and not self.settings.global_attn_engine else 1

    def layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        """Layer of the encoder or of a convolutional node head."""
        kind = self.settings.kind
        layer = LAYERS[kind](torch_geometric("nn"), self.settings, in_dim, out_dim, edge_dim, last)
        convolution = Convolution(layer, edge_dim > 0 and kind in SEE_EDGES)
        if kind == "GAT" and self.settings.global_attn_engine and not last:
            convolution.module_1 = nn.Linear(out_dim * GAT_HEADS, out_dim)
        return convolution


KINDS: dict[str, type[FrozenModel]] = dict.fromkeys(LAYERS, Convolutional)
