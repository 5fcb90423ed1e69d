"""Kinds that see distances: SchNet, DimeNet, PNAPlus and EGNN."""

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.model import FrozenModel, Statistics, summed
from hydragnn.frozen.settings import FrozenSettings
from hydragnn.graphs.pyg import torch_geometric


def new_positions(graph: FrozenGraph, steps: Tensor) -> Tensor:
    """Positions after the mean of a sender's steps, clamped at 100."""
    senders, count = graph.edge_index[0], len(graph.pos)
    mean = summed(steps.clamp(-100, 100), senders, count) / senders.bincount(minlength=count).clamp_min(1).unsqueeze(1)
    return graph.pos + mean


class _Layer(nn.Module):
    """Layer of one module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module_0 = module

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        return self.module_0(inv, equiv, graph)


class _EGNNConvolution(nn.Module):
    """Messages of states and lengths, summed at the sender (arXiv:2102.09844)."""

    def __init__(self, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, *, moves: bool) -> None:
        super().__init__()
        width, relu = settings.hidden_dim, nn.ReLU()
        first = nn.Linear(2 * in_dim + 1 + edge_dim, width)
        self.edge_mlp = nn.Sequential(first, relu, nn.Linear(width, width), relu)
        self.node_mlp = nn.Sequential(nn.Linear(width + in_dim, width), relu, nn.Linear(width, out_dim))
        self.coord_mlp = (
            nn.Sequential(nn.Linear(width, width), relu, nn.Linear(width, 1, bias=False), nn.Tanh()) if moves else None
        )
        self.squared, self.sign, self.edges = settings.squared_distances, 1 - 2 * settings.reversed_steps, edge_dim > 0

    def forward(self, inv: Tensor, pos: Tensor, graph: FrozenGraph) -> tuple[Tensor, Tensor]:
        graph, (row, column) = replace(graph, pos=pos), graph.edge_index
        vectors = graph.vectors()
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        parts = [inv[row], inv[column], vectors.square().sum(1, keepdim=True) if self.squared else lengths]
        if self.edges and graph.edge_attr is not None:
            parts.append(graph.edge_attr)
        messages = self.edge_mlp(torch.cat(parts, dim=1))
        if self.coord_mlp is not None:
            pos = new_positions(graph, self.sign * vectors / (lengths + 1) * self.coord_mlp(messages))
        return self.node_mlp(torch.cat([inv, summed(messages, row, len(inv))], dim=1)), pos


class EGNN(FrozenModel):
    """EGNN."""

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        moves = self.settings.equivariance and not last
        return _Layer(_EGNNConvolution(self.settings, in_dim, out_dim, edge_dim, moves=moves))


def near_nodes(positions: Tensor, batch: Tensor, radius: float, most: int) -> Tensor:
    """Return edges between near nodes of one graph, without periodic images.

    A node receives from at most so many others: the first by number.
    """
    edges = []
    for nodes in torch.arange(len(batch), device=batch.device).split(batch.bincount().tolist()):
        places = positions.detach()[nodes]
        near = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") < radius
        near.fill_diagonal_(False)
        edges.append(nodes[(near & (near.cumsum(1) <= most)).nonzero().T.flip(0)])
    return torch.cat(edges, dim=1)


class _SchNetConvolution(nn.Module):
    """Convolution with filters of distance, which a cosine ends (arXiv:1706.08566)."""

    def __init__(self, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int, *, moves: bool) -> None:
        super().__init__()
        gaussians, filters = settings.required("num_gaussians"), settings.required("num_filters")
        self.cutoff, self.sign, self.edges = settings.required("radius"), 1 - 2 * settings.reversed_steps, edge_dim > 0
        with torch.device("cpu"):  # they read their constants
            softplus = torch_geometric("nn.models.schnet").ShiftedSoftplus()
        if not settings.single_constants:
            softplus.shift = math.log(2)
        self.nn = nn.Sequential(nn.Linear(gaussians + edge_dim, filters), softplus, nn.Linear(filters, filters))
        self.lin1, self.lin2 = nn.Linear(in_dim, filters, bias=False), nn.Linear(filters, out_dim)
        last = nn.Linear(filters, 1, bias=False)
        self.coord_mlp = nn.Sequential(nn.Linear(filters, filters), nn.ReLU(), last) if moves else None

    def forward(self, inv: Tensor, pos: Tensor, graph: FrozenGraph) -> tuple[Tensor, Tensor]:
        edges, lengths, parts = graph.edge_index, graph.extra["lengths"], graph.extra["gaussians"]
        if self.edges and graph.edge_attr is not None:
            parts = torch.cat([parts, graph.edge_attr], dim=1)
        filters = self.nn(parts) * (0.5 * (torch.cos(lengths * math.pi / self.cutoff) + 1))
        received = summed(self.lin1(inv)[edges[0]] * filters, edges[1], len(inv))
        if self.coord_mlp is not None:
            pos = new_positions(graph, self.sign * graph.vectors() / (lengths + 1) * self.coord_mlp(filters))
        return self.lin2(received), pos


class _SchNetLayer(nn.Module):
    """Layer on edges found anew, without periodic images."""

    def __init__(self, settings: FrozenSettings, expansion: nn.Module, convolution: nn.Module) -> None:
        super().__init__()
        self.radius, self.most = settings.required("radius"), settings.required("max_neighbours")
        self.module_1, self.module_2, self.rebuilds = expansion, convolution, settings.rebuilt_graph

    def forward(self, inv: Tensor, pos: Tensor, graph: FrozenGraph) -> tuple[Tensor, Tensor]:
        graph = replace(graph, pos=pos)
        if self.rebuilds:
            edges = near_nodes(graph.pos, graph.batch, self.radius, self.most)
            graph = replace(graph, edge_index=edges, edge_shifts=None)
        lengths = graph.lengths()
        return self.module_2(inv, pos, replace(graph, extra={"lengths": lengths, "gaussians": self.module_1(lengths)}))


class SchNet(FrozenModel):
    """SchNet, which has no periodic images.

    With edge features or GPS it takes the edges of the graph, with lengths as if nothing were periodic.
    """

    def _add_common(self) -> None:
        super()._add_common()
        count, radius = self.settings.required("num_gaussians"), self.settings.required("radius")
        with torch.device("cpu"):
            self.distance_expansion = torch_geometric("nn.models.schnet").GaussianSmearing(0.0, radius, count)
        if not self.settings.single_constants:
            self.distance_expansion.coeff = -0.5 * ((count - 1) / radius) ** 2

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        moves = self.settings.equivariance and not last
        convolution = _SchNetConvolution(self.settings, in_dim, out_dim, edge_dim, moves=moves)
        return _Layer(convolution) if edge_dim else _SchNetLayer(self.settings, self.distance_expansion, convolution)

    def _start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        inv, pos, embedded = super()._start(graph)
        lengths = replace(graph, edge_shifts=None).lengths()
        extra = {"lengths": lengths, "gaussians": self.distance_expansion(lengths)}
        return inv, pos, replace(embedded, extra=embedded.extra | extra)


class _Embedding(nn.Module):
    """First messages of DimeNet, with edge features if there are any."""

    def __init__(self, num_radial: int, width: int, edge_dim: int) -> None:
        super().__init__()
        self.act = nn.SiLU()
        self.lin_rbf = nn.Linear(num_radial, width)
        self.edge_lin = nn.Linear(edge_dim, width) if edge_dim else None
        self.lin = nn.Linear((4 if edge_dim else 3) * width, width)

    def forward(self, inv: Tensor, graph: FrozenGraph) -> Tensor:
        senders, receivers = graph.edge_index
        parts = [inv[receivers], inv[senders], self.act(self.lin_rbf(graph.extra["radial"]))]
        if self.edge_lin is not None:
            parts.append(self.act(self.edge_lin(graph.edge_attr)))
        return self.act(self.lin(torch.cat(parts, dim=1)))


class _DimeNetLayer(nn.Module):
    """Blocks of DimeNet++, on new messages in every layer (arXiv:2011.14115)."""

    def __init__(self, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int) -> None:
        super().__init__()
        width, silu = out_dim if in_dim == 1 else in_dim, nn.SiLU()
        self.module_0 = nn.Linear(in_dim, width)
        num_radial = settings.required("num_radial")
        self.module_1 = _Embedding(num_radial, width, edge_dim)
        names = "int_emb_size", "basis_emb_size", "num_spherical", "num_radial", "num_before_skip", "num_after_skip"
        widths = {name: settings.required(name) for name in names}
        blocks, middle = torch_geometric("nn.models.dimenet"), settings.required("out_emb_size")
        self.module_2 = blocks.InteractionPPBlock(width, act=silu, **widths)
        self.module_3 = blocks.OutputPPBlock(num_radial, width, middle, out_dim, 1, silu)

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        extra = graph.extra
        messages = self.module_1(self.module_0(inv), graph)
        messages = self.module_2(messages, extra["radial"], extra["angular"], extra["first"], extra["second"])
        return self.module_3(messages, extra["radial"], graph.edge_index[1], len(inv)), equiv


class RadialModel(FrozenModel):
    """Model with radial functions of edges, whose frequencies learn."""

    def _add_common(self) -> None:
        super()._add_common()
        self.sizes = [self.settings.required(name) for name in ("num_radial", "radius", "envelope_exponent")]
        self.rbf = torch_geometric("nn.models.dimenet").BesselBasisLayer(*self.sizes)

    def _start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        inv, equiv, graph = super()._start(graph)
        lengths = graph.lengths().squeeze(1)
        if self.settings.zero_shifts:
            lengths = graph.vectors().square().sum(1).sqrt()  # rounded as there
        return inv, equiv, replace(graph, extra=graph.extra | {"lengths": lengths, "radial": self.rbf(lengths)})


class DimeNet(RadialModel):
    """DimeNet++ of PyTorch Geometric, layer after layer."""

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        return _DimeNetLayer(self.settings, in_dim, out_dim, edge_dim)

    @cached_property
    def sbf(self) -> Any:
        """Functions of distance and angle, derived in seconds, without weights."""
        return torch_geometric("nn.models.dimenet").SphericalBasisLayer(
            self.settings.required("num_spherical"), *self.sizes
        )

    def _start(self, graph: FrozenGraph) -> tuple[Tensor, Tensor | None, FrozenGraph]:
        inv, equiv, graph = super()._start(graph)
        first, second = triplets(graph.edge_index, len(inv))
        vectors, lengths = graph.vectors(), graph.extra["lengths"]
        near, far = vectors[second], vectors[second] + vectors[first]
        angles = torch.atan2(torch.linalg.vector_norm(torch.linalg.cross(near, far), dim=1), (near * far).sum(1))
        angular = lengths.new_zeros(0, self.settings.required("num_spherical") * self.sizes[0])
        if len(first):  # it cannot reshape what is empty
            angular = self.sbf(lengths, angles, first)
        extra = {"first": first, "second": second, "angular": angular}
        return inv, equiv, replace(graph, extra=graph.extra | extra)


def triplets(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Return both edges of triplets whose ends differ."""
    senders, receivers = edge_index
    order = receivers.argsort(stable=True)
    counts = torch.bincount(receivers, minlength=nodes)
    repeats = counts[senders]
    second = torch.arange(len(senders), device=senders.device).repeat_interleave(repeats)
    begins = (counts.cumsum(0) - counts)[senders] - (repeats.cumsum(0) - repeats)
    first = order[begins.repeat_interleave(repeats) + torch.arange(len(second), device=senders.device)]
    others = senders[first] != receivers[second]
    return first[others], second[others]


class _PNAPlusConvolution(Statistics):
    """Statistics of messages with filters of distance."""

    def __init__(self, settings: FrozenSettings, in_dim: int, out_dim: int, edge_dim: int) -> None:
        super().__init__(settings, in_dim, out_dim, 3)
        self.lin = nn.Linear(out_dim, out_dim)
        num_radial = settings.required("num_radial")
        self.rbf_lin = nn.Linear(num_radial, in_dim, bias=False)
        self.rbf_emb = nn.Sequential(nn.Linear(num_radial, in_dim), nn.ReLU())
        self.edge_encoder = nn.Linear(in_dim + edge_dim, in_dim) if edge_dim else None

    def forward(self, inv: Tensor, equiv: Tensor | None, graph: FrozenGraph) -> tuple[Tensor, Tensor | None]:
        (senders, receivers), radial = graph.edge_index, graph.extra["radial"]
        edges = self.rbf_emb(radial)
        if self.edge_encoder is not None:
            edges = self.edge_encoder(torch.cat([cast(Tensor, graph.edge_attr), edges], dim=1))
        messages = self.pre_nns[0](torch.cat([inv[receivers], inv[senders], edges], dim=1)) * self.rbf_lin(radial)
        return self.lin(self.read(inv, messages, receivers)), equiv


class PNAPlus(RadialModel):
    """PNA with filters of distance."""

    normed = True

    def _layer(self, in_dim: int, out_dim: int, *, number: int, last: bool, edge_dim: int) -> nn.Module:
        return _Layer(_PNAPlusConvolution(self.settings, in_dim, out_dim, edge_dim))
