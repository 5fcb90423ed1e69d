"""PyTorch Geometric's convolutions with the weights of our layers, which tests compare and ``bench_kinds`` times.

Each maps ``(states, edge_index, features)`` to new states, what stands around our layer (norm, residual, activation) included.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch

geometric = pytest.importorskip("torch_geometric.nn")


class Around(nn.Module):
    """states + after(convolution(norm(states))), the convolution with features of edges or without."""

    def __init__(self, norm: nn.Module, convolution: nn.Module, after: nn.Module, featured: bool) -> None:
        super().__init__()
        self.norm, self.convolution, self.after, self.featured = norm, convolution, after, featured

    def forward(self, states: Tensor, edge_index: Tensor, features: Tensor) -> Tensor:
        given = (features,) if self.featured else ()
        return states + self.after(self.convolution(self.norm(states), edge_index, *given))


def gin(residual: Any, batch: GraphBatch) -> nn.Module:
    """GINConv; its epsilon is that of our layer."""
    mine = residual.layer
    theirs = geometric.GINConv(nn.Identity(), train_eps=True, eps=float(mine.epsilon))
    theirs.nn = mine.network  # which it would fill with new weights
    return Around(residual.norm, theirs, nn.Identity(), featured=False)


def sage(residual: Any, batch: GraphBatch) -> nn.Module:
    mine = residual.layer
    theirs = geometric.SAGEConv(mine.from_self.in_features, mine.from_self.out_features, aggr="mean")
    theirs.lin_l.load_state_dict(mine.from_mean.state_dict())
    theirs.lin_r.load_state_dict(mine.from_self.state_dict())
    return Around(residual.norm, theirs, nn.SiLU(), featured=False)


def mfc(residual: Any, batch: GraphBatch) -> nn.Module:
    """MFConv, whose weights of all degrees are ours."""
    mine = residual.layer.by_degree
    channels = mine.weight.shape[1] // 2
    theirs = geometric.MFConv(channels, channels, len(mine.bias) // channels - 1)
    for degree, (weight, bias) in enumerate(zip(mine.weight.split(channels), mine.bias.split(channels))):
        theirs.lins_r[degree].weight.data, theirs.lins_l[degree].weight.data = weight.split(channels, dim=1)
        theirs.lins_l[degree].bias.data = bias
    return Around(residual.norm, theirs, nn.SiLU(), featured=False)


def gatv2(residual: Any, batch: GraphBatch) -> nn.Module:
    """GATv2Conv; it takes edges to oneself away, where we have images of oneself."""
    mine = residual.layer
    heads, width = mine.attention.shape  # of its vectors
    options = {"edge_dim": mine.from_edge.in_features, "fill_value": 0.0, "negative_slope": mine.negative_slope}
    theirs = geometric.GATv2Conv(heads * width, width, heads=heads, **options)
    theirs.lin_l.load_state_dict(mine.from_sender.state_dict())
    theirs.lin_r.load_state_dict(mine.from_receiver.state_dict())
    theirs.lin_edge.load_state_dict(mine.from_edge.state_dict())
    theirs.att.data.copy_(mine.attention.unsqueeze(0))
    theirs.bias.data.copy_(mine.bias)
    return Around(residual.norm, theirs, nn.Identity(), featured=True)


class CGCNN(nn.Module):
    """CGConv, which adds the states itself."""

    def __init__(self, mine: Any, batch: GraphBatch) -> None:
        super().__init__()
        self.convolution = geometric.CGConv(mine.from_sender.in_features, dim=mine.from_edge.in_features)
        weight = torch.cat([mine.from_receiver.weight, mine.from_sender.weight, mine.from_edge.weight], dim=1)
        self.convolution.lin_f.weight.data, self.convolution.lin_s.weight.data = weight.chunk(2)
        self.convolution.lin_f.bias.data, self.convolution.lin_s.bias.data = mine.from_receiver.bias.chunk(2)

    def forward(self, states: Tensor, edge_index: Tensor, features: Tensor) -> Tensor:
        convolved: Tensor = self.convolution(states, edge_index, features)
        return convolved


class OurStd(geometric.aggr.Aggregation):
    """sqrt(variance + 1e-5), where theirs is sqrt(max(variance, 1e-5)) and zero below; PNA's paper has sqrt(relu(variance) + e)."""

    def __init__(self) -> None:
        super().__init__()
        self.variance = geometric.aggr.VarAggregation()

    def forward(self, x: Tensor, *where: Any, **more: Any) -> Tensor:
        variance: Tensor = self.variance(x, *where, **more)
        return (variance + 1e-5).sqrt()


class FilteredPNA(geometric.PNAConv):
    """Their convolution with edge attributes, whose messages are multiplied with a linear filter of these."""

    def __init__(self, *arguments: Any, filters: nn.Module, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.filters = filters

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        """Of one edge; ``[edges, towers, channels]``."""
        messages: Tensor = super().message(x_i, x_j, edge_attr)
        return messages * self.filters(edge_attr).unsqueeze(1)


def pna(mine: Any, batch: GraphBatch) -> nn.Module:
    """PNAConv with the four statistics and the scalers of our layer; one linear map of edges instead of its two."""
    theirs = pna_convolution(geometric.PNAConv, mine, batch)
    theirs.edge_encoder = nn.Linear(mine.from_edge.in_features, mine.from_edge.out_features, bias=False)
    theirs.edge_encoder.load_state_dict(mine.from_edge.state_dict())
    first = torch.eye(mine.from_edge.out_features, dtype=mine.mix.weight.dtype)
    return around_pna(theirs, mine, first)


def pnaplus(mine: Any, batch: GraphBatch) -> nn.Module:
    theirs = pna_convolution(FilteredPNA, mine, batch, filters=mine.filters)
    theirs.edge_encoder = nn.Sequential(mine.from_edge[0], nn.SiLU())
    return around_pna(theirs, mine, mine.from_edge[2].weight)


def pna_convolution(form: Callable[..., Any], mine: Any, batch: GraphBatch, **more: nn.Module) -> Any:
    """Their layer of the width of ours, on the degrees of the batch."""
    channels = mine.mix.in_features
    statistics, histogram = ["mean", "min", "max", OurStd()], torch.bincount(batch.topology.degrees)
    return form(channels, channels, statistics, [*mine.scalers.names], histogram, edge_dim=channels, **more)


def around_pna(theirs: Any, mine: Any, from_edge: Tensor) -> nn.Module:
    """Their layer with our weights before and after the statistics."""
    pre, post = theirs.pre_nns[0][0], theirs.post_nns[0][0]
    pre.weight.data = torch.cat([mine.from_receiver.weight, mine.from_sender.weight, from_edge], dim=1)
    pre.bias.data = mine.from_receiver.bias.clone()
    statistics = mine.from_statistics.weight.chunk(len(mine.scalers.names))
    post.weight.data = torch.cat([mine.from_self.weight, *statistics], dim=1)
    post.bias.data = mine.from_self.bias.clone()
    theirs.lin.load_state_dict(mine.mix.state_dict())
    return Around(mine.norm, theirs, nn.SiLU(), featured=True)


class NormedGIN(nn.Module):
    """What stands inside our residual: GPSConv adds the states itself."""

    def __init__(self, residual: Any) -> None:
        super().__init__()
        self.norm, self.conv = residual.norm, geometric.GINConv(nn.Identity(), train_eps=True)
        self.conv.nn = residual.layer.network

    def reset_parameters(self) -> None:
        """The weights are ours and stay."""

    def forward(self, states: Tensor, edges: Tensor) -> Tensor:
        convolved: Tensor = self.conv(self.norm(states), edges)
        return convolved


class GPS(nn.Module):
    """GPSConv around GIN: multi-head attention inside graphs, layer norms per node, SiLU."""

    def __init__(self, mine: Any, batch: GraphBatch) -> None:
        super().__init__()
        channels, heads = mine.attention.out.in_features, mine.attention.heads
        norm = {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}
        self.convolution = geometric.GPSConv(channels, NormedGIN(mine.local), heads=heads, act="silu", **norm)
        theirs = self.convolution
        theirs.attn.in_proj_weight.data = mine.attention.project.weight.clone()
        theirs.attn.in_proj_bias.data = mine.attention.project.bias.clone()
        theirs.attn.out_proj.load_state_dict(mine.attention.out.state_dict())
        theirs.mlp[0].load_state_dict(mine.network[0].state_dict())
        theirs.mlp[3].load_state_dict(mine.network[3].state_dict())
        for norm_of_ours, its in zip(mine.norms, (theirs.norm1, theirs.norm2, theirs.norm3)):
            its.load_state_dict(norm_of_ours.state_dict())
        self.register_buffer("graphs", batch.owner("node"), persistent=False)

    def forward(self, states: Tensor, edge_index: Tensor, features: Tensor) -> Tensor:
        convolved: Tensor = self.convolution(states, edge_index, self.graphs)
        return convolved


class Relational(nn.Module):
    """RGCNConv between our layer norm and our matrix after it, with a residual; kinds of edges are given."""

    def __init__(self, mine: Any, batch: GraphBatch) -> None:
        super().__init__()
        channels = mine.own.in_features
        self.norm, self.out = mine.norm, mine.out
        reduced = {"sum": "add", "mean": "mean"}[mine.settings.reduce]
        self.convolution = geometric.RGCNConv(channels, channels, mine.relations, aggr=reduced)
        kinds = mine.told.weight.view(channels, mine.relations, channels)
        self.convolution.weight.data = kinds.permute(1, 2, 0).contiguous()
        self.convolution.root.data = mine.own.weight.T.contiguous()
        self.convolution.bias.data.copy_(mine.own.bias)
        self.register_buffer("relation", batch.edges[mine.settings.relation], persistent=False)

    def forward(self, states: Tensor, edge_index: Tensor, features: Tensor) -> Tensor:
        convolved = self.convolution(self.norm(states), edge_index, self.relation)
        increment: Tensor = self.out(nn.functional.silu(convolved))
        return states + increment


CONVOLUTIONS: dict[str, Callable[[Any, GraphBatch], Any]] = {
    "gin": gin,
    "sage": sage,
    "mfc": mfc,
    "gatv2": gatv2,
    "cgcnn": CGCNN,
    "pna": pna,
    "pnaplus": pnaplus,
    "relational": Relational,
    "gps": GPS,
}
"""From a layer of ours and the batch that it will see."""
