"""Global attention around local layers: GPS and the equivariant transformer."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn.base.errors import InputError
from hydragnn.frozen.graph import FrozenGraph
from hydragnn.frozen.irreps import Blocks, Couplings, Irreps, IrrepsLinear, paths_between
from hydragnn.frozen.settings import FLAT, FrozenSettings
from hydragnn.graphs.pyg import torch_geometric
from hydragnn.kernels import segment_softmax
from hydragnn.layers import SphericalHarmonics

GPS, EQUIVARIANT = "GPS", "EquivariantTransformer"
DEGREES = {"PAINN": 2, "PNAEq": 2, "SchNet": 1, "DimeNet": 1, "MACE": 0}
"""Degrees of the states of kinds with an equivariant transformer; those of MACE are in its settings."""


def embeddings(settings: FrozenSettings) -> dict[str, nn.Module]:
    """Return the modules that embed nodes and edges, by name."""
    engine, hidden = settings.global_attn_engine, settings.hidden_dim
    if not engine:
        return {}
    if not (settings.kind != "MACE" if engine == GPS else engine == EQUIVARIANT and settings.kind in DEGREES):
        raise InputError(f"config.json: global_attn_engine = {engine:.40} of {settings.kind} is not read")
    sizes = {"node_emb": settings.input_dim}
    if engine == GPS:
        sizes |= {"pos_emb": settings.pe_dim, "node_lin": 2 * hidden}
        if settings.kind not in FLAT:
            sizes["rel_pos_emb"] = settings.pe_dim
            sizes |= {"edge_emb": settings.edge_dim, "edge_lin": 2 * hidden} if settings.edge_dim else {}
    return {name: nn.Linear(size, hidden, bias=False) for name, size in sizes.items()}


def wrap(settings: FrozenSettings, layer: nn.Module, *, last: bool) -> nn.Module:
    """Return the layer with attention beside it."""
    if settings.global_attn_engine == GPS:
        return _GPSLayer(settings, layer)
    if settings.global_attn_engine == EQUIVARIANT and not (settings.kind == "MACE" and last):
        return _EquivariantLayer(settings, layer)
    return layer


def embed(model: nn.Module, graph: FrozenGraph) -> FrozenGraph:
    """Return the graph with embedded nodes and edges."""
    has = dict(model.named_children())
    if "node_emb" not in has:
        return graph
    nodes, edges = [has["node_emb"](graph.x)], []
    if "edge_emb" in has:
        edges.append(has["edge_emb"](graph.edge_attr))
    for name, encoding, parts in (("pos_emb", graph.pe, nodes), ("rel_pos_emb", graph.rel_pe, edges)):
        if name in has:
            parts.append(has[name](encoding))
    x = has["node_lin"](torch.cat(nodes, dim=1)) if len(nodes) > 1 else nodes[0]
    if edges:
        graph = replace(graph, edge_attr=has["edge_lin"](torch.cat(edges, dim=1)) if len(edges) > 1 else edges[0])
    return replace(graph, x=x)


class _GPSLayer(nn.Module):
    """Layer with attention among all nodes beside it.

    norm(h + local(h)) + norm(h + attention(h)), then a network with residual and norm (arXiv:2205.12454, eqs. 2 to 4).
    Graphs of a batch are one graph, as they were there: a prediction depends on its batch.
    """

    def __init__(self, settings: FrozenSettings, conv: nn.Module) -> None:
        super().__init__()
        width, heads, kind = settings.hidden_dim, settings.global_attn_heads, settings.global_attn_type
        if kind not in ("multihead", "performer") or heads < 1 or width % heads:
            raise InputError(f"config.json: GPS has no {kind} attention with {heads} heads in {width} channels")
        with torch.device("cpu"):  # Performer draws a projection, which that of the file replaces
            parts = torch_geometric("nn").GPSConv(width, None, heads, attn_type=kind)
        for name, part in parts.named_children():
            self.add_module(name, part)
        self.conv = conv

    def forward(self, inv: Tensor, equiv: Any, graph: FrozenGraph) -> tuple[Tensor, Any]:
        local, equiv = self.conv(inv, equiv, graph)
        rows, part = inv.unsqueeze(0), self.get_submodule
        attention = part("attn")
        multihead = isinstance(attention, nn.MultiheadAttention)
        read = attention(rows, rows, rows, need_weights=False)[0] if multihead else attention(rows)
        both = part("norm1")(local + inv) + part("norm2")(read.squeeze(0) + inv)
        return part("norm3")(both + part("mlp")(both)), equiv


TARGETS_AT_ONCE = 16
"""Nodes whose pairs are in memory at the same time."""


class _EquivariantLayer(nn.Module):
    """Layer with equivariant attention beside it, or after it (``sequential``)."""

    def __init__(self, settings: FrozenSettings, conv: nn.Module) -> None:
        super().__init__()
        heads, lmax = settings.global_attn_heads, settings.equivariant_attn_lmax
        if not (1 <= heads <= 1024 and 0 <= lmax <= 11):
            raise InputError(f"config.json: {EQUIVARIANT} has no function with {heads} heads and lmax = {lmax}")
        degrees = DEGREES[settings.kind] or settings.required("node_max_ell") + 1
        irreps = [(settings.hidden_dim, degree) for degree in range(degrees)]
        self.mace, self.irreps = settings.kind == "MACE", irreps
        self.sequential = settings.equivariant_attn_coupling_mode == "sequential"
        self.conv, self.global_layer = conv, GlobalLayer(settings, irreps)

    def forward(self, inv: Tensor, equiv: Any, graph: FrozenGraph) -> tuple[Tensor, Any]:
        if graph.edge_shifts is not None and graph.edge_shifts.any():
            raise InputError(f"{EQUIVARIANT} has no function for periodic graphs: it refused shifts of edges")
        local, equiv_after = self.conv(inv, equiv, graph)
        states = self.blocks(local, equiv_after)
        read = self.global_layer.attended(states if self.sequential else self.blocks(inv, equiv), graph)
        scalars, *others = self.global_layer(read if self.sequential else added(states, read))
        vectors = others[0].transpose(1, 2) if others else equiv_after
        return scalars.squeeze(2), others if self.mace else vectors

    def blocks(self, inv: Tensor, equiv: Any) -> Blocks:
        """Return states by degree; those that do not exist yet are zero."""
        others = equiv if self.mace else [equiv.transpose(1, 2)] if len(self.irreps) > 1 else []
        absent = self.irreps[1 + len(others) :]
        return [inv.unsqueeze(2), *others, *(inv.new_zeros(*inv.shape, 2 * degree + 1) for _, degree in absent)]


class GlobalLayer(nn.Module):
    """Attention and a network, each with a norm before and a residual."""

    def __init__(self, settings: FrozenSettings, irreps: Irreps) -> None:
        super().__init__()
        middle = [(settings.equivariant_attn_feedforward_multiplier * width, degree) for width, degree in irreps]
        self.attention_norm, self.feedforward_norm = (nn.ParameterDict({"gain": torch.ones(())}) for _ in range(2))
        self.attention = PairAttention(settings, irreps)
        self.feedforward = nn.Sequential(IrrepsLinear(irreps, middle), _Gate(), IrrepsLinear(middle, irreps))

    def attended(self, states: Blocks, graph: FrozenGraph) -> Blocks:
        """Return states with what they read of all other nodes."""
        return added(states, self.attention(normed(states, self.attention_norm["gain"]), graph))

    def forward(self, states: Blocks) -> Blocks:
        """States after the network."""
        return added(states, self.feedforward(normed(states, self.feedforward_norm["gain"])))


def added(first: Blocks, second: Blocks) -> Blocks:
    """Return the sums of blocks."""
    return [one + other for one, other in zip(first, second)]


def normed(states: Blocks, gain: Tensor) -> Blocks:
    """Return states over their root mean square, times a gain."""
    square = torch.cat([block.flatten(1) for block in states], dim=1).square().mean(1)
    return [block * (gain * (square + 1e-8).rsqrt()).view(-1, 1, 1) for block in states]


class _Gate(nn.Module):
    """Every state times the sigmoid of its length."""

    def forward(self, states: Blocks) -> Blocks:
        return [block * block.square().sum(2, keepdim=True).clamp_min(1e-16).sqrt().sigmoid() for block in states]


class PairAttention(nn.Module):
    """Attention over all other nodes of a graph.

    Their states are coupled with harmonics of the direction: y_i = O sum_j a_ij V(r_ij) (x_j x Y(r_ij)), a_ij = softmax over j of <Q x_i, K x_j> / sqrt(numbers of x), for every head.
    """

    def __init__(self, settings: FrozenSettings, irreps: Irreps) -> None:
        super().__init__()
        lmax, radial = settings.equivariant_attn_lmax, settings.equivariant_attn_num_radial
        self.heads, self.width = settings.global_attn_heads, settings.hidden_dim
        paths = paths_between(len(irreps), lmax + 1, len(irreps))
        many = [*irreps] * self.heads
        self.query, self.key, self.output = (
            IrrepsLinear(*ends) for ends in ((irreps, many), (irreps, many), (many, irreps))
        )
        self.value_tensor_product, self.harmonics = Couplings(paths), SphericalHarmonics(lmax)
        self.radial_mlp = nn.Sequential(
            nn.Linear(radial, radial), nn.SiLU(), nn.Linear(radial, self.heads * len(paths) * self.width**2)
        )
        self.register_buffer("radial_centers", torch.zeros(radial))
        self.scales = [math.sqrt(self.width * sum(path[2] == degree for path in paths)) for _, degree in irreps]

    def forward(self, states: Blocks, graph: FrozenGraph) -> Blocks:
        """Return the readings of every node."""
        queries, keys = (
            torch.cat([block.flatten(1) for block in linear(states)], dim=1).unflatten(1, (self.heads, -1))
            for linear in (self.query, self.key)
        )
        nodes = torch.arange(len(graph.pos), device=graph.pos.device)
        parts = []
        for targets in nodes.split(TARGETS_AT_ONCE):
            pairs = (graph.batch[targets, None] == graph.batch) & (targets[:, None] != nodes)
            target, source = pairs.nonzero(as_tuple=True)
            scores = (queries[targets[target]] * keys[source]).sum(2) / math.sqrt(queries.shape[2])
            weights = segment_softmax(scores, target, num_nodes=len(targets))[:, :, None, None]
            values = self.values(states, graph.pos[source] - graph.pos[targets[target]], source)
            zeros = [value.new_zeros(len(targets), *value.shape[1:]) for value in values]
            parts.append([zero.index_add(0, target, weights * value) for zero, value in zip(zeros, values)])
        read = [torch.cat(blocks) for blocks in zip(*parts)]  # [nodes, heads, channels, 2 l + 1]
        return self.output([block[:, head] for head in range(self.heads) for block in read])

    def values(self, states: Blocks, vectors: Tensor, source: Tensor) -> Blocks:
        """Return V(r) (x x Y(r)) ``[pairs, heads, channels, 2 l + 1]``."""
        lengths, centers = torch.linalg.vector_norm(vectors, dim=1, keepdim=True), self.get_buffer("radial_centers")
        radial = torch.exp(-((max(len(centers) - 1, 1) * (lengths / (1 + lengths) - centers)) ** 2))
        weights = self.radial_mlp(radial).unflatten(1, (self.heads, -1, self.width, self.width))
        harmonics = self.harmonics(nn.functional.normalize(vectors, dim=1))
        values: list[Any] = [0] * len(states)
        for number, path in enumerate(self.value_tensor_product.paths):
            a, b, c = path
            coupled = states[a][source] @ self.value_tensor_product.coupled(path, harmonics[b]) / self.scales[c]
            values[c] = values[c] + torch.einsum("ehuv,euk->ehvk", weights[:, :, number], coupled)
        return values
