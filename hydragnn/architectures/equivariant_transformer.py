"""Equivariant transformer: attention among neighbours (arXiv:2202.02541)."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, Searched, one_of, radial_basis
from hydragnn.kernels import edge_product, gather_multiply_sum, gather_outer_sum, silu
from hydragnn.layers import LayerSplit, MessageGraph, Plan, States, inputs_at_zero, radial_inputs


class EquivariantTransformerSettings(GeometricSettings):
    """Attention among neighbours on scalars and vectors, rotation-equivariant (Thoelke and De Fabritiis 2022, arXiv:2202.02541)."""

    kind: str = "equivariant_transformer"

    searched: ClassVar[Searched] = {
        **GeometricSettings.searched,
        "radial": one_of("exponential", "sinc"),
        "heads": one_of(2, 4, 8),
    }

    radial: Literal["bessel", "sinc", "gaussian", "exponential"] = "exponential"
    """Radial basis: exponential (Gaussians of exp(-5 r / cutoff), as published), or those of other architectures."""
    heads: int = Setting(default=8, ge=1, le=64)
    """Attention heads; they divide hidden_dim."""


class NeighbourEmbedding(nn.Module):
    """First states from a node and its neighbours.

    x_i = W [z_i, sum_j u(r_ij) (V z_j) f(r_ij)] with f linear in the radial basis (eqs. 3, 4).

    Deviates from the paper: neighbours are embedded by a linear map V of the inputs, which need not be species, instead of a second table.
    """

    def __init__(self, channels: int, edge_width: int) -> None:
        super().__init__()
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.filters = nn.Linear(edge_width, channels, bias=False)
        self.combine = nn.Linear(2 * channels, channels)
        self.surrounding = nn.Identity()  # a name for plans

    def forward(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Float[Tensor, "nodes channels"]:
        """Return the states with their neighbours."""
        features, envelope = radial_inputs(graph)
        filters = self.filters(features if envelope is None else features * envelope)
        surrounding = self.surrounding(gather_multiply_sum(self.from_sender(inputs), filters, graph.sharing))
        return self.combine(torch.cat([inputs, surrounding], dim=-1))

    def split_plan(self) -> Plan:
        """Return channels of filters and sums."""
        return {
            "": LayerSplit(takes=((), ("copy",))),
            "from_sender": LayerSplit(weights="columns", takes=(("copy",),)),
            "filters": LayerSplit(weights="columns"),
            "surrounding": LayerSplit(gives=("gather",)),
            "combine": LayerSplit(weights="rows", blocks=2, takes=(("own",),), joined=2),
        }


class ScalarVectorAttention(nn.Module):
    """Increments of scalars and vectors by attention (eqs. 5 to 12).

    A head of i attends to j by a_ij = s(sum over its channels of q_i k_j s(D_k e_ij)), without a softmax. With u_ij s(D_v e_ij) v_j in three parts
    (m, m1, m2), y_i = sum_j a_ij m, and dv_i = sum_j m1 v_j + m2 r_ij / |r_ij| + (O1 y_i) U3 v_i; ds_i = O3 y_i + (O2 y_i) <U1 v_i, U2 v_i>. A node is
    among its neighbours, as in the authors' code. Deviates from the paper: u ends all three parts and not the attention alone (``vector_cutoff`` of the
    authors' code), since forces jump at the cutoff otherwise; what would multiply vectors that are zero, in the first layer, or give vectors
    that are not read, in the last, is left out.
    """

    def __init__(self, channels: int, heads: int, edge_width: int, *, takes_vectors: bool, gives_vectors: bool) -> None:
        super().__init__()
        self.heads, self.takes_vectors, self.gives_vectors = heads, takes_vectors, gives_vectors
        parts = 1 + gives_vectors + (takes_vectors and gives_vectors)
        self.norm = nn.LayerNorm(channels)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.values = nn.ModuleList(nn.Linear(channels, channels) for _ in range(parts))
        self.key_filter = nn.Linear(edge_width, channels, bias=False)
        self.value_filters = nn.ModuleList(nn.Linear(edge_width, channels, bias=False) for _ in range(parts))
        outs = 1 + takes_vectors + (takes_vectors and gives_vectors)
        self.outs = nn.ModuleList(nn.Linear(channels, channels) for _ in range(outs))
        mixed = 2 + gives_vectors if takes_vectors else 0
        self.mix = nn.Linear(channels, mixed * channels, bias=False) if mixed else None
        self.read, self.own, self.scores = nn.Identity(), nn.Identity(), nn.Identity()  # names for plans

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        vectors: Float[Tensor, "nodes dim channels"] | None,
        graph: MessageGraph,
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"] | None]:
        """Return increments; None for vectors that are not read."""
        scalars = self.norm(scalars)
        values = [linear(scalars) for linear in self.values]
        filters = [silu(linear(radial_inputs(graph)[0])) for linear in self.value_filters]
        at_zero = [graph.to_nodes(silu(linear(inputs_at_zero(graph)[0]))) for linear in self.value_filters]
        envelope = radial_inputs(graph)[1]
        if envelope is not None:
            filters = [one * envelope for one in filters]
        attended = self.read(self.attended(scalars, values[0], filters[0], at_zero[0], graph))
        d_scalars = self.outs[0](attended)
        mixed = None if self.mix is None or vectors is None else self.mix(vectors).chunk(2 + self.gives_vectors, dim=-1)
        if mixed is not None:
            d_scalars = d_scalars + self.outs[1](attended) * (mixed[0] * mixed[1]).sum(-2)
        if not self.gives_vectors:
            return d_scalars, None
        d_vectors = gather_outer_sum(values[1], filters[1], graph.directions, graph.sharing)
        if mixed is not None and vectors is not None:
            update = values[2].unsqueeze(-2) * self.own(vectors)  # [nodes, dim, channels]
            d_vectors = d_vectors + gather_multiply_sum(update, filters[2], graph.sharing)
            d_vectors = d_vectors + at_zero[2].unsqueeze(-2) * update
            d_vectors = d_vectors + self.outs[2](attended).unsqueeze(-2) * mixed[2]
        return d_scalars, d_vectors

    def split_plan(self) -> Plan:
        """Return heads and their channels; y_i is gathered."""
        maps = ("query", "key", "values.*", "key_filter", "value_filters.*", "outs.*")
        return {
            "": LayerSplit(takes=(("copy",),) * 3, gives=("gather",), counts=("heads",)),
            "norm": LayerSplit(weights="shared"),
            **dict.fromkeys(maps, LayerSplit(weights="columns")),
            "mix": LayerSplit(weights="columns", blocks=2 + self.gives_vectors),
            "own": LayerSplit(gives=("cut",)),
            "read": LayerSplit(gives=("gather", "copy")),
            "scores": LayerSplit(in_head=("reduce", "copy")),
        }

    def attended(
        self,
        scalars: Float[Tensor, "nodes channels"],
        values: Float[Tensor, "nodes channels"],
        filters: Float[Tensor, "items channels"],
        at_zero: Float[Tensor, "nodes channels"],
        graph: MessageGraph,
    ) -> Float[Tensor, "nodes channels"]:
        """y_i: what every node reads from its neighbours and itself."""
        queries, keys = self.query(scalars), self.key(scalars)
        key_filters = graph.to_edges(silu(self.key_filter(radial_inputs(graph)[0])))
        shares = self.shares(edge_product(keys, queries, graph.topology, per="channel") * key_filters)
        own_filters = graph.to_nodes(silu(self.key_filter(inputs_at_zero(graph)[0])))
        own_shares = self.shares(queries * keys * own_filters)
        others = gather_multiply_sum(values, shares * graph.to_edges(filters), graph.topology)
        return others + own_shares * at_zero * values

    def shares(self, products: Float[Tensor, "items channels"]) -> Float[Tensor, "items channels"]:
        """The attention of every head on all its channels."""
        of_heads = silu(self.scores(products.unflatten(-1, (self.heads, -1)).sum(-1)))  # [items, heads]
        return of_heads.unsqueeze(-1).expand(-1, -1, products.shape[-1] // self.heads).flatten(1)


class EquivariantTransformerLayer(nn.Module):
    """Attention on scalars and vectors; dropout on ds is ours."""

    def __init__(self, attention: ScalarVectorAttention, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degrees 0 and 1."""
        vectors = states.get(1)
        d_scalars, d_vectors = self.attention(states[0], vectors, graph)
        new = {**states, 0: states[0] + self.dropout(d_scalars)}
        if d_vectors is not None:
            new[1] = d_vectors if vectors is None else vectors + d_vectors
        return new


class EquivariantTransformer(Architecture):
    """Equivariant transformer.

    Neighbours embedded, layers of attention on scalars and vectors, and a norm of the scalars at the end (figure 2).

    Attention reaches as far as edges do, through periodic boundaries too. Deviates from the paper: the envelope is a polynomial unless ``cosine``
    is asked for, and is no factor of the radial basis; filters see edge features beside it.
    """

    kind = "equivariant_transformer"
    Settings = EquivariantTransformerSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    cuttable = True
    embeds = frozenset({"embedding"})

    def __init__(self, settings: EquivariantTransformerSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, last = settings.hidden_dim, settings.num_layers - 1
        self.basis = radial_basis(settings, spec)
        self.carried = [frozenset({0}), *[self.gives] * (settings.num_layers - 1), spec.degrees]
        width = self.basis.width
        self.embedding = NeighbourEmbedding(channels, width)
        attentions = [
            ScalarVectorAttention(
                channels,
                settings.heads,
                width,
                takes_vectors=number > 0,
                gives_vectors=number < last or 1 in spec.degrees,
            )
            for number in range(settings.num_layers)
        ]
        self.layers = nn.ModuleList(EquivariantTransformerLayer(one, settings.dropout) for one in attentions)
        self.norm = nn.LayerNorm(channels)

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """Return inputs of a node and its neighbours; vectors are zero."""
        return {0: self.embedding(inputs, graph)}

    def finish(self, states: States, graph: MessageGraph) -> States:
        """The scalars, normed."""
        return {**states, 0: self.norm(states[0])}
