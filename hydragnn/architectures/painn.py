"""Scalar and vector states: PaiNN (Schuett et al. 2021, arXiv:2102.03150)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, radial_basis
from hydragnn.base.errors import InputError
from hydragnn.kernels import Topology, gated, gather_multiply_sum, gather_outer_sum, measured
from hydragnn.layers import LayerSplit, MessageGraph, Plan, RadialFilters, States, mlp

Directions = Literal["unit", "over_length"]


NEAREST = 1 / 50
"""Share of the cutoff: what lies nearer is weighed as if it were there, .1 Angstrom for a cutoff of 5, since 1 / |r| has no end."""


def directions_of(graph: MessageGraph, form: Directions) -> Float[Tensor, "edges dim"]:
    """Return r_ij / |r_ij| of every edge, or zero."""
    if form == "unit":
        return graph.directions
    assert graph.basis is not None
    nearest = NEAREST * graph.basis.cutoff
    return graph.once(
        "directions over length", lambda: graph.directions / graph.lengths.clamp_min(nearest).unsqueeze(-1)
    )


class PaiNNSettings(GeometricSettings):
    """Scalar and vector states, rotation-equivariant (Schuett et al. 2021, arXiv:2102.03150)."""

    kind: str = "painn"

    norm: Literal["smooth", "paper"] = "smooth"
    """Length of a vector in the updates: smooth is sqrt(|v|^2 + 1) - 1; paper is sqrt(|v|^2 + 1e-8), whose energies have cusps
    where vectors vanish, at symmetric sites."""

    directions: Directions = "unit"
    """Vectors that a message adds: unit vectors along edges, or as in the public HydraGNN these over_length, r_ij / |r_ij|^2 in the store's unit
    of length, by which near neighbours outweigh far ones."""

    tanh_networks: bool = False
    """After every layer a network with tanh maps the scalars of every node, and a linear map its vectors, in their place, as in the public HydraGNN."""

    edge_network: bool = False
    """Edge features multiply the filters, through a network of their own, as in the public HydraGNN; false: filters see them beside the radial functions."""

    @property
    def kinks(self) -> str:
        """Kinks of the paper's norm, and of vectors over their length."""
        kinks = []
        if self.directions == "over_length":
            kinks.append(
                'with directions = "over_length" vectors grow without bound where two atoms meet, and forces jump there'
            )
        if self.norm != "smooth":
            kinks.append(
                'with norm = "paper" forces change by a step of some 1e-4 A where vectors vanish by symmetry, so that force '
                'constants of perfect crystals diverge down to there; norm = "smooth" has none'
            )
        return "; ".join(kinks)


class PaiNNMessage(nn.Module):
    """Message of PaiNN.

    ds_i = sum_j phi_s(s_j) * W_s(r_ij), and dv_i = sum_j v_j * phi_vv(s_j) * W_vv + phi_vs(s_j) * W_vs * r_ij / |r_ij| (eqs. 7, 8).

    phi are parts of one network of the sender's scalars, W linear filters of the distance. Deviates from the paper: the
    filters see edge features beside the radial basis.
    """

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.channels = channels
        self.states = mlp([channels, channels, filters * channels])

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        vectors: Float[Tensor, "nodes dim channels"] | None,
        filters: Sequence[Float[Tensor, "items channels"]],
        directions: Float[Tensor, "edges dim"],
        topology: Topology,
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"]]:
        """Return increments of scalars and vectors from the filters.

        The first layer has no filter of vectors. ``vectors`` is None in the first layer, where all are zero.
        """
        # phi_s, phi_vs and phi_vv v; [nodes, channels] twice, and [nodes, dim, channels]
        of_scalars, of_directions, of_vectors = gated(self.states(scalars), None, vectors)
        assert of_scalars is not None and of_directions is not None
        d_scalars = gather_multiply_sum(of_scalars, filters[0], topology)  # eq. 7
        # eq. 8, second term; [nodes, dim, channels]
        d_vectors = gather_outer_sum(of_directions, filters[1], directions, topology)
        if of_vectors is not None:
            d_vectors = d_vectors + gather_multiply_sum(of_vectors, filters[2], topology)
        return d_scalars, d_vectors


class PaiNNUpdate(nn.Module):
    """Update of PaiNN.

    ds_i = a_ss + a_sv <U v_i, V v_i> (eq. 10) and dv_i = a_vv U v_i (eq. 9), with (a_ss, a_sv, a_vv) = a(s_i, |V v_i|).

    a is a network of the scalars and of the lengths of the vectors; U and V are linear, per axis. Deviates from the paper: the
    length of a vector is that of ``norm_of``, smooth unless the paper's is asked for.
    """

    def __init__(self, channels: int, *, last: bool, norm: Literal["smooth", "paper"] = "smooth") -> None:
        super().__init__()
        self.channels = channels
        self.last = last
        self.norm: dict[str, Any] = {"smooth": norm == "smooth"}
        self.mix = nn.Linear(channels, 2 * channels, bias=False)
        self.gates = mlp([2 * channels, channels, (2 if last else 3) * channels])

    def forward(
        self, scalars: Float[Tensor, "nodes channels"], vectors: Float[Tensor, "nodes dim channels"]
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"] | None]:
        """Return increments of scalars and vectors (None if not read)."""
        mixed = self.mix(vectors)  # U v beside V v; [nodes, dim, 2 channels]
        inputs, products = measured(scalars, mixed, **self.norm)  # [nodes, 2 channels], [nodes, channels]
        d_scalars, _, d_vectors = gated(self.gates(inputs), products, None if self.last else mixed)  # eqs. 10, 9
        assert d_scalars is not None
        return d_scalars, d_vectors


class TanhNetwork(nn.Module):
    """Network after every layer, as in the public HydraGNN.

    s <- W_2 tanh(W_1 s + b_1) + b_2 and v <- W v; without ``vectors`` scalars alone.
    """

    def __init__(self, channels: int, *, vectors: bool) -> None:
        super().__init__()
        self.scalars = nn.Sequential(nn.Linear(channels, channels), nn.Tanh(), nn.Linear(channels, channels))
        self.vectors = nn.Linear(channels, channels, bias=False) if vectors else None

    def forward(self, states: States) -> States:
        """Return states of degrees 0 and 1; unread vectors are unchanged."""
        vectors = states[1] if self.vectors is None else self.vectors(states[1])
        return {0: self.scalars(states[0]), 1: vectors}


class PaiNNLayer(RadialFilters):
    """Layer of a message and an update (figure 2a).

    Deviates from the paper: dropout on the increments of scalars; in a last layer whose vectors no head reads, dv is left out. With ``edges`` a network of
    the edge features multiplies the filters, which see all but these; ``after`` is what comes after both.
    """

    def __init__(
        self,
        filters: Sequence[nn.Linear],
        message: PaiNNMessage,
        update: PaiNNUpdate,
        dropout: float,
        directions: Directions = "unit",
        edges: nn.Module | None = None,
        following: TanhNetwork | None = None,
    ) -> None:
        super().__init__()
        self.filters = nn.ModuleList(filters)
        self.message = message
        self.update = update
        self.dropout = nn.Dropout(dropout)
        self.directions: Directions = directions
        self.edges = edges
        self.after = following

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states of degrees 0 and 1."""
        directions = directions_of(graph, self.directions)
        filters = self.filters_of(graph)  # 2 or 3 x [items, channels]
        scalars, vectors = states[0], states.get(1)
        d_scalars, d_vectors = self.message(scalars, vectors, filters, directions, graph.sharing)
        scalars = scalars + self.dropout(d_scalars)
        vectors = d_vectors if vectors is None else vectors + d_vectors
        d_scalars, more = self.update(scalars, vectors)
        new = {0: scalars + self.dropout(d_scalars), 1: vectors if more is None else vectors + more}
        return new if self.after is None else self.after(new)

    def split_plan(self) -> Plan:
        """Return channels of filters, messages and updates."""
        if self.edges is not None:
            return {}
        parts, gates = len(self.filters), 2 if self.update.last else 3
        whole = LayerSplit(takes=(("copy",),), weights="columns")
        return {
            "": LayerSplit(takes=((), ("copy",))),
            "filters.*": LayerSplit(weights="columns"),
            "message": LayerSplit(takes=((), ("own",)), gives=("gather",)),
            "message.states.0": whole,
            "message.states.2": replace(whole, takes=(("gather", "copy"),), blocks=parts),
            "update": LayerSplit(takes=(("own",),), gives=("gather",)),
            "update.mix": replace(whole, blocks=2),
            "update.gates.0": replace(whole, takes=(("gather", "copy"),), joined=2),
            "update.gates.2": replace(whole, takes=(("gather", "copy"),), blocks=gates),
        }

    def computed_filters(self, graph: MessageGraph) -> list[Float[Tensor, "items channels"]]:
        """Linear functions of edge inputs that end at the cutoff."""
        features = graph.ended_inputs
        if self.edges is None:
            return [linear(features) for linear in self.filters]
        own = graph.edge_features
        assert own is not None  # so that every edge is an item
        gates = self.edges(own.to(features.dtype)).chunk(len(self.filters), dim=-1)  # [edges, channels] each
        return [linear(features[:, : -own.shape[1]]) * gate for linear, gate in zip(self.filters, gates)]


class PaiNN(Architecture):
    """PaiNN.

    Layers of a message and an update (figure 2a), from v = 0 and s the inputs of every node.

    Deviates from the paper: the radial functions sin(n pi r / c) / r have an amplitude, see ``SincBasis``; the envelope is a polynomial unless ``cosine`` is asked for, and the first layer has no filter
    of vectors, which are zero there.
    """

    kind = "painn"
    Settings = PaiNNSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    cuttable = True

    def __init__(self, settings: PaiNNSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, count = settings.hidden_dim, settings.num_layers
        self.basis = radial_basis(settings, spec)
        self.carried = [frozenset({0}), *[self.gives] * (settings.num_layers - 1), spec.degrees]
        parts = [2 if number == 0 else 3 for number in range(count)]  # no vectors come into the first layer
        own = spec.edge_width if settings.edge_network else 0
        if settings.edge_network and not own:
            raise InputError("model.edge_network maps edge features, and these graphs have none; leave it out")
        filters = [[nn.Linear(self.basis.width - own, channels, bias=False) for _ in range(part)] for part in parts]
        messages = [PaiNNMessage(channels, part) for part in parts]
        updates = [
            PaiNNUpdate(channels, last=number == count - 1 and 1 not in spec.degrees, norm=settings.norm)
            for number in range(count)
        ]
        edges = [mlp([own, channels, part * channels]) if own else None for part in parts]
        following = [TanhNetwork(channels, vectors=not u.last) if settings.tanh_networks else None for u in updates]
        self.layers = nn.ModuleList(
            PaiNNLayer(of_layer, message, update, settings.dropout, settings.directions, network, last)
            for of_layer, message, update, network, last in zip(filters, messages, updates, edges, following)
        )
