"""Kinds whose layers are those of torch_geometric."""

import torch
from torch import Tensor, nn

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.model import AGGREGATORS, GAT_HEADS, SCALERS, FrozenModel
from hydragnn.frozen.settings import FLAT
from hydragnn.graphs.pyg import torch_geometric


class _Convolution(nn.Module):
    """Layer over edges, with their features if it sees any."""

    def __init__(self, convolution: nn.Module, sees_edges: bool) -> None:
        super().__init__()
        self.module_0 = convolution
        self.module_1: nn.Module = nn.Identity()
        self.sees_edges = sees_edges

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        features = [graph.edge_attr] if self.sees_edges else []
        return self.module_1(self.module_0(inv, graph.edge_index, *features)), equiv


class Convolutional(FrozenModel):
    """Kind with a layer of torch_geometric."""

    normed = True

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        settings, library = self.settings, torch_geometric("nn")
        match settings.kind:
            case "GIN":  # with ReLU, whatever the activation of the model is
                network = nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))
                one = library.GINConv(network, eps=100.0, train_eps=True)
            case "SAGE":
                one = library.SAGEConv(in_dim, out_dim)
            case "MFC":
                one = library.MFConv(in_dim, out_dim, max_degree=settings.required("max_neighbours"))
            case "PNA":
                deg = torch.tensor(settings.required("pna_deg"), device="cpu")
                one = library.PNAConv(in_dim, out_dim, AGGREGATORS, SCALERS, deg, edge_dim or None)
            case "GAT":  # heads lie side by side; the last layer averages them
                sizes = {"heads": GAT_HEADS, "negative_slope": 0.05, "edge_dim": edge_dim or None}
                one = library.GATv2Conv(in_dim, out_dim, concat=not last, **sizes)
            case _:
                one = library.CGConv(in_dim, dim=edge_dim, aggr="add")
        layer = _Convolution(one, edge_dim > 0 and settings.kind not in FLAT)
        if settings.kind == "GAT" and settings.global_attn_engine and not last:
            layer.module_1 = nn.Linear(out_dim * GAT_HEADS, out_dim)
        return layer
