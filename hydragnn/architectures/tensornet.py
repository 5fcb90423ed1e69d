"""Tensors of rank 2 and their products: TensorNet (arXiv:2306.06482)."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures import base
from hydragnn.base.errors import InputError
from hydragnn.kernels import gather_multiply_sum, gather_outer_sum, outer_sum, silu
from hydragnn.layers import MessageGraph, States, inputs_at_zero, radial_inputs
from hydragnn.layers.harmonics import coupling

DEGREES = (0, 1, 2)
"""Degrees of the parts I, A and S."""
SQUARES = (3.0, 2.0, 1.0)
"""Sum of squares of the entries of the matrix that belongs to one component of a part."""


class TensorParts(nn.Module):
    """Conversion between 3 x 3 matrices and their parts.

    X = i Id + [a] + sum_k s_k E_k: a number i, a vector a with [a] b = a x b, and five components s of what is symmetric and has no trace.

    With vectors a and b that change their sign with the positions, [a] [b] + [b] [a] has no part [c], and [a] E + E [a] has that part alone: A
    stays a vector and I and S stay even, through whatever products of this form (Simeon and De Fabritiis 2023, arXiv:2306.06482, section 3.1).
    E_k are orthonormal.

    >>> tensors = TensorParts()
    >>> vector = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> tensors.matrices({0: torch.ones(1, 1), 1: vector, 2: torch.zeros(1, 5, 1)})[0, :, :, 0]
    tensor([[ 1., -3.,  2.],
            [ 3.,  1., -1.],
            [-2.,  1.,  1.]])
    """

    rows: Tensor
    columns: Tensor
    symmetric: Tensor

    def __init__(self) -> None:
        super().__init__()
        identity = torch.eye(3, dtype=torch.float64).view(1, 9)
        axes = torch.eye(3, dtype=torch.float64)
        cross = torch.linalg.cross(axes.view(3, 1, 3), axes.view(1, 3, 3)).mT.reshape(3, 9)  # column b is e_k x e_b
        symmetric = torch.from_numpy(coupling(1, 1, 2)).reshape(9, 5)
        rows = torch.cat([identity, cross, symmetric.T])  # [components, entries]
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", rows / rows.square().sum(1, keepdim=True), persistent=False)
        self.register_buffer("symmetric", symmetric, persistent=False)

    def matrices(self, parts: States) -> Float[Tensor, "nodes 3 3 channels"]:
        """X of every node and channel."""
        components = torch.cat([parts[0].unsqueeze(1), parts[1], parts[2]], dim=1)  # [nodes, components, channels]
        return (self.rows.T.to(components.dtype) @ components).unflatten(1, (3, 3))

    def parts(self, matrices: Float[Tensor, "nodes 3 3 channels"]) -> States:
        """Number, vector and symmetric part of matrices: what ``matrices`` makes them of."""
        components = self.columns.to(matrices.dtype) @ matrices.flatten(1, 2)
        scalars, vectors, symmetric = components.split((1, 3, 5), dim=1)
        return {0: scalars.squeeze(1), 1: vectors, 2: symmetric}

    def of_directions(self, directions: Float[Tensor, "edges 3"]) -> Float[Tensor, "edges 5"]:
        """The symmetric part of u u^T; zeros of a direction without length."""
        outer = (directions.unsqueeze(2) * directions.unsqueeze(1)).flatten(1)  # [edges, entries]
        return outer @ self.symmetric.to(outer.dtype)


def squares(parts: States) -> dict[int, Float[Tensor, "nodes channels"]]:
    """Return the sums of squares of I, A and S.

    >>> squares({0: torch.ones(1, 1), 1: torch.ones(1, 3, 1), 2: torch.zeros(1, 5, 1)})[1]
    tensor([[6.]])
    """
    sums = [parts[0].square(), parts[1].square().sum(1), parts[2].square().sum(1)]
    return {degree: weight * one for degree, weight, one in zip(DEGREES, SQUARES, sums)}


def times(parts: States, factors: dict[int, Float[Tensor, "nodes channels"]]) -> States:
    """Every part times the factor of its degree."""
    return {degree: parts[degree] * (factors[degree].unsqueeze(1) if degree else factors[0]) for degree in DEGREES}


def product(
    first: Float[Tensor, "nodes 3 3 channels"], second: Float[Tensor, "nodes 3 3 channels"]
) -> Float[Tensor, "nodes 3 3 channels"]:
    """Return products of matrices, channel by channel."""
    terms = [first[:, :, k, None] * second[:, None, k] for k in range(3)]
    return terms[0] + terms[1] + terms[2]


Filters = dict[int, Tensor]
"""Factors of the parts I, A and S, by their degrees: ``[edges, channels]``, or ``[graphs, channels]`` at length zero."""


class TensorNetSettings(base.GeometricSettings):
    """Cartesian tensors of rank 2 and their products, O(3)-equivariant (Simeon and De Fabritiis 2023, arXiv:2306.06482)."""

    kind: str = "tensornet"

    searched: ClassVar[base.Searched] = {
        "hidden_dim": base.steps(16, 64, 16),
        "num_layers": base.steps(1, 3),
        "num_radial": base.steps(8, 32, 8),
        "radial": base.one_of("exponential", "sinc"),
    }

    num_layers: int = Setting(default=2, ge=1, le=64)
    """Message-passing layers (interactions) after the tensors of neighbourhoods."""
    num_radial: int = Setting(default=32, ge=1, le=512)
    """Radial basis functions per edge."""
    radial: Literal["bessel", "sinc", "gaussian", "exponential"] = "exponential"
    """Radial basis: exponential (Gaussians of exp(-5 r / cutoff), as published), or those of other architectures."""


class PartLinears(nn.Module):
    """Linear maps of tensors: W_I I + W_A A + W_S S."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in DEGREES)

    def forward(self, parts: States) -> States:
        """The parts, mixed."""
        return {degree: linear(parts[degree]) for degree, linear in enumerate(self.linears)}


class TensorEmbedding(nn.Module):
    """First tensors from neighbours.

    X_i = sum_j u(r_ij) (U z_i + V z_j) (f_I(r_ij) Id + f_A(r_ij) [r_ij] + f_S(r_ij) S(r_ij)), then parts mixed and gated (section 3.2).

    [r] and S(r) are the parts of unit vectors, f linear in the radial basis, and gates a network of the norm of |X_i|^2. The sum over neighbours of
    products of what belongs to i, to j and to the edge is two sums, so that no array of edges and channels is made but f. A node is among its
    neighbours, as in the authors' code: its own term is u(0) (U z_i + V z_i) f_I(0) Id, without which a lone node would not know what it is.
    """

    def __init__(self, channels: int, edge_width: int) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Linear(edge_width, channels, bias=False) for _ in DEGREES)
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.norm = nn.LayerNorm(channels)
        self.first = nn.Linear(channels, 2 * channels)
        self.gates = nn.Linear(2 * channels, 3 * channels)
        self.mix = PartLinears(channels)
        self.tensors = TensorParts()

    def forward(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """The parts of X_i."""
        parts = self.of_neighbours(inputs, graph)
        size = squares(parts)
        hidden = silu(self.first(self.norm(size[0] + size[1] + size[2])))
        gates = silu(self.gates(hidden)).chunk(3, dim=-1)  # [nodes, channels] each
        return times(self.mix(parts), dict(enumerate(gates)))

    def of_neighbours(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """The sums over neighbours, the node itself among them."""
        received, sent, topology = self.from_receiver(inputs), self.from_sender(inputs), graph.topology
        filters = [graph.to_edges(self.filtered(linear, *radial_inputs(graph))) for linear in self.filters]
        ones = torch.ones_like(graph.lengths).unsqueeze(1)
        axes = [ones, graph.directions, self.tensors.of_directions(graph.directions)]
        parts = [
            received.unsqueeze(1) * outer_sum(one, along, topology) + gather_outer_sum(sent, one, along, topology)
            for one, along in zip(filters, axes)
        ]  # [nodes, components, channels] each
        at_zero = graph.to_nodes(self.filtered(self.filters[0], *inputs_at_zero(graph)))
        return {0: parts[0].squeeze(1) + (received + sent) * at_zero, 1: parts[1], 2: parts[2]}

    def filtered(self, linear: nn.Module, features: Tensor, envelope: Tensor | None) -> Float[Tensor, "items channels"]:
        """u f; the constant among the features is the bias of f."""
        return linear(features if envelope is None else features * envelope)


class TensorFilters(nn.Module):
    """Filters of length, three per edge.

    u(r) (f_I, f_A, f_S)(r) with f = s(W_3 s(W_2 s(W_1 e(r)))) and s = silu (section 3.2).
    """

    def __init__(self, channels: int, edge_width: int) -> None:
        super().__init__()
        self.first = nn.Linear(edge_width, channels, bias=False)
        self.second = nn.Linear(channels, 2 * channels)
        self.of_parts = nn.ModuleList(nn.Linear(2 * channels, channels) for _ in DEGREES)

    def forward(self, features: Float[Tensor, "items width"], envelope: Float[Tensor, "items 1"] | None) -> Filters:
        """The filters of the parts."""
        hidden = silu(self.second(silu(self.first(features))))
        filters = {degree: silu(linear(hidden)) for degree, linear in enumerate(self.of_parts)}
        return filters if envelope is None else {degree: one * envelope for degree, one in filters.items()}


class TensorLayer(nn.Module):
    """Layer of TensorNet.

    X <- X + D + D^2 with D = W' (Y M + M Y) / (|Y M + M Y|^2 + 1), Y = W X, M_i = sum_j f(r_ij) Y_j and X <- X / (|X|^2 + 1) before (section 3.2).

    W, W' and f act on the parts of their tensors, I, A and S, one by one. Y M + M Y, unlike Y M, keeps their parities apart. Deviates from the paper:
    a node is among its neighbours, as in the authors' code; dropout on the increment of I.
    """

    def __init__(self, channels: int, edge_width: int, dropout: float) -> None:
        super().__init__()
        self.filters = TensorFilters(channels, edge_width)
        self.before = PartLinears(channels)
        self.after = PartLinears(channels)
        self.tensors = TensorParts()
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New I, A and S."""
        states = self.bounded(states)
        own = self.before(states)  # Y
        lhs, rhs = self.tensors.matrices(own), self.tensors.matrices(self.messages(own, graph))
        mixed = self.tensors.parts(product(lhs, rhs) + product(rhs, lhs))
        change = self.after(self.bounded(mixed))  # D
        matrices = self.tensors.matrices(change)
        square = self.tensors.parts(product(matrices, matrices))
        new = {degree: change[degree] + square[degree] for degree in DEGREES}
        return {degree: states[degree] + (one if degree else self.dropout(one)) for degree, one in new.items()}

    def messages(self, own: States, graph: MessageGraph) -> States:
        """M: sums over neighbours, the node itself among them."""
        filters = self.filters(*radial_inputs(graph))
        at_zero = self.filters(*inputs_at_zero(graph))
        itself = times(own, {degree: graph.to_nodes(one) for degree, one in at_zero.items()})
        return {
            degree: itself[degree] + gather_multiply_sum(own[degree], filters[degree], graph.sharing)
            for degree in DEGREES
        }

    def bounded(self, parts: States) -> States:
        """X / (|X|^2 + 1)."""
        size = squares(parts)
        factor = 1 / (size[0] + size[1] + size[2] + 1)  # [nodes, channels]
        return times(parts, dict.fromkeys(DEGREES, factor))


class TensorNet(base.Architecture):
    """TensorNet.

    Tensors of neighbourhoods, then layers of products; heads read x = s(W norm(|I|^2, |A|^2, |S|^2)) and the vectors a of A (section 3.2).

    A is made of unit vectors and changes its sign with them: a is a vector like the positions, as all of degree 1 here, and I and S are even. The
    authors' scalar head is one with ``hidden_dims`` of half the channels. Deviates from the paper: the envelope is a polynomial unless ``cosine`` is
    asked for; filters see edge features beside the radial basis. Deviates from the authors' code, as the paper does: the radial basis is not
    multiplied with the envelope, filters are.
    """

    kind = "tensornet"
    Settings = TensorNetSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    cuttable = True
    embeds = frozenset({"embedding"})

    def __init__(self, settings: TensorNetSettings, spec: base.GraphSpec) -> None:
        super().__init__(settings, spec)
        channels = settings.hidden_dim
        self.basis = base.radial_basis(settings, spec)
        self.carried = [frozenset(DEGREES)] * (settings.num_layers + 1)
        width = self.basis.width
        self.embedding = TensorEmbedding(channels, width)
        self.layers = nn.ModuleList(TensorLayer(channels, width, settings.dropout) for _ in range(settings.num_layers))
        self.norm = nn.LayerNorm(3 * channels)
        self.linear = nn.Linear(3 * channels, channels)

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """The tensors of all neighbourhoods."""
        return self.embedding(inputs, graph)

    def finish(self, states: States, graph: MessageGraph) -> States:
        """Numbers from the squares of the parts, and the vectors of A."""
        size = squares(states)
        return {0: silu(self.linear(self.norm(torch.cat([size[degree] for degree in DEGREES], dim=-1)))), 1: states[1]}

    @classmethod
    def check(cls, settings: TensorNetSettings, spec: base.GraphSpec) -> None:
        """Refuse graphs that do not lie in space."""
        if spec.dim != 3:
            problem = f"model {cls.kind} needs graphs in 3 dimensions, and these have {spec.dim}"
            raise InputError(f"{problem}; choose an architecture that works in any")
