"""Scalar and vector states: PaiNN (Schuett et al. 2021, arXiv:2102.03150)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, radial_basis
from hydragnn.kernels import Topology, gated, gather_multiply_sum, gather_outer_sum, measured
from hydragnn.layers import LayerSplit, MessageGraph, Plan, RadialFilters, States, mlp


class PaiNNSettings(GeometricSettings):
    """Scalar and vector states, rotation-equivariant (Schuett et al. 2021, arXiv:2102.03150)."""

    kind: str = "painn"

    norm: Literal["smooth", "paper"] = "smooth"
    """Length of a vector in the updates: smooth is sqrt(|v|^2 + 1) - 1; paper is sqrt(|v|^2 + 1e-8), whose energies have cusps
    where vectors vanish, at symmetric sites."""

    removed: ClassVar = {"directions": "unit", "tanh_networks": False, "edge_network": False}

    @property
    def kinks(self) -> str:
        """Kinks of the paper's norm."""
        if self.norm == "smooth":
            return ""
        return (
            'with norm = "paper" forces change by a step of some 1e-4 A where vectors vanish by symmetry, so that force '
            'constants of perfect crystals diverge down to there; norm = "smooth" has none'
        )


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


class PaiNNLayer(RadialFilters):
    """Layer of a message and an update (figure 2a).

    Deviates from the paper: dropout on the increments of scalars; in a last layer whose vectors no head reads, dv is left out.
    """

    def __init__(
        self, filters: Sequence[nn.Linear], message: PaiNNMessage, update: PaiNNUpdate, dropout: float
    ) -> None:
        super().__init__()
        self.filters = nn.ModuleList(filters)
        self.message = message
        self.update = update
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states of degrees 0 and 1."""
        filters = self.filters_of(graph)  # 2 or 3 x [items, channels]
        scalars, vectors = states[0], states.get(1)
        d_scalars, d_vectors = self.message(scalars, vectors, filters, graph.directions, graph.sharing)
        scalars = scalars + self.dropout(d_scalars)
        vectors = d_vectors if vectors is None else vectors + d_vectors
        d_scalars, more = self.update(scalars, vectors)
        return {0: scalars + self.dropout(d_scalars), 1: vectors if more is None else vectors + more}

    def split_plan(self) -> Plan:
        """Return channels of filters, messages and updates."""
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
        return [linear(graph.ended_inputs) for linear in self.filters]


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
        filters = [[nn.Linear(self.basis.width, channels, bias=False) for _ in range(part)] for part in parts]
        messages = [PaiNNMessage(channels, part) for part in parts]
        updates = [
            PaiNNUpdate(channels, last=number == count - 1 and 1 not in spec.degrees, norm=settings.norm)
            for number in range(count)
        ]
        self.layers = nn.ModuleList(
            PaiNNLayer(of_layer, message, update, settings.dropout)
            for of_layer, message, update in zip(filters, messages, updates)
        )
