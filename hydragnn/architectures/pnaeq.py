"""PNA with vectors: PNAEq (after arXiv:2004.05718 and arXiv:2102.03150)."""

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GraphSpec, radial_basis
from hydragnn.architectures.painn import PaiNNUpdate
from hydragnn.architectures.pna import PNASettings
from hydragnn.kernels import gather_add, gather_multiply_sum, outer_sum, silu
from hydragnn.layers.message_graph import MessageGraph, States, radial_inputs
from hydragnn.layers.neighbour_statistics import DegreeScalers, StatisticsForm, aggregated, scaled_statistics


class PNAEqSettings(PNASettings):
    """Scalar and vector states as of PaiNN, scalars by principal neighbourhood aggregation (PNAEq of HydraGNN; arXiv:2004.05718, arXiv:2102.03150)."""

    kind: str = "pnaeq"

    removed: ClassVar = {"directions": "unit", "tanh_networks": False}


class PNAEqMessage(nn.Module):
    """Message of PNAEq.

    ds_i = U(s_i, S (x) A over j of a_ij) and dv_i = sum_j c_ij v_j + b_ij r_ij / |r_ij|, with A = (mean, min, max, std).

    (a_ij, b_ij, c_ij) = phi(s_i, s_j, e_ij) * W(r_ij): phi a network of both ends and of what the edge says (radial functions, edge
    features), W linear filters of the same, which end at the cutoff. S are PNA's scalers of the degree (arXiv:2004.05718, eq. 5). With
    phi of the sender alone and sums for U(S (x) A) these are eqs. 7 and 8 of PaiNN (arXiv:2102.03150). Vectors are summed:
    least and largest have no meaning for them.

    Deviates from the public HydraGNN: phi has one hidden layer with SiLU, as PaiNN's, instead of two with tanh and SiLU, and sees radial functions as
    they are, not a tanh of what is left of them at the cutoff; it sees a layer norm of the scalars; scalers are the paper's (d_i / mean d and its inverse: ``scalers = [..., "linear", "inverse_linear"]``). The standard deviation is
    sqrt(variance + 1e-5). With ``statistics = "smooth"`` A and S are those of ``PNALayer`` in that form, and the envelope weighs a_ij in A instead
    of ending its W.
    """

    def __init__(
        self, channels: int, edge_width: int, scalers: DegreeScalers, statistics: StatisticsForm, *, first: bool
    ) -> None:
        super().__init__()
        self.statistics: StatisticsForm = statistics
        parts = 2 if first else 3  # no vectors come into the first layer, so that there is no c
        self.scalers = scalers
        self.norm = nn.LayerNorm(channels)
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.from_edge = nn.Linear(edge_width, channels, bias=False)
        self.gates = nn.ModuleList(nn.Linear(channels, channels) for _ in range(parts))
        self.filters = nn.ModuleList(nn.Linear(edge_width, channels, bias=False) for _ in range(parts))
        self.from_self = nn.Linear(channels, channels)
        self.from_statistics = nn.Linear(4 * channels, len(scalers.names) * channels, bias=False)

    def forward(
        self,
        scalars: Float[Tensor, "nodes channels"],
        vectors: Float[Tensor, "nodes dim channels"] | None,
        graph: MessageGraph,
    ) -> tuple[Float[Tensor, "nodes channels"], Float[Tensor, "nodes dim channels"]]:
        """Return increments; ``vectors`` is None in the first layer."""
        topology, scalars = graph.topology, self.norm(scalars)
        messages = self.messages(scalars, graph)  # a, b and c; [edges, channels] each
        # A; 4 x [nodes, channels]
        statistics, _, degrees = aggregated(self.statistics, messages[0], graph.envelope, topology)
        scaled = scaled_statistics(statistics, self.from_statistics, degrees, self.scalers)
        d_vectors = outer_sum(messages[1], graph.directions, topology)  # [nodes, dim, channels]
        if vectors is not None:
            d_vectors = d_vectors + gather_multiply_sum(vectors, messages[2], topology)
        return self.from_self(scalars) + scaled, d_vectors

    def messages(
        self, scalars: Float[Tensor, "nodes channels"], graph: MessageGraph
    ) -> Sequence[Float[Tensor, "edges channels"]]:
        """a, b and, past the first layer, c of every edge."""
        features = radial_inputs(graph)[0]  # [items, width]
        ending = graph.ended_inputs  # W is linear, so the envelope acts once for all filters and layers
        received, sent = self.from_receiver(scalars), self.from_sender(scalars)  # [nodes, channels]
        hidden = silu(gather_add(received, sent, self.from_edge(features), graph.sharing))  # [edges, channels]
        filter_inputs = [features if self.statistics == "smooth" else ending, *[ending] * (len(self.filters) - 1)]
        return [
            gate(hidden) * graph.to_edges(filter_(inputs))
            for gate, filter_, inputs in zip(self.gates, self.filters, filter_inputs)
        ]


class PNAEqLayer(nn.Module):
    """Layer of a message, then of PaiNN's update.

    A last layer without vector heads leaves dv of the update out; increments of scalars have dropout.
    """

    def __init__(self, message: PNAEqMessage, update: PaiNNUpdate, dropout: float) -> None:
        super().__init__()
        self.message = message
        self.update = update
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degrees 0 and 1."""
        scalars, vectors = states[0], states.get(1)
        d_scalars, d_vectors = self.message(scalars, vectors, graph)
        scalars = scalars + self.dropout(d_scalars)
        vectors = d_vectors if vectors is None else vectors + d_vectors
        d_scalars, more = self.update(scalars, vectors)
        return {0: scalars + self.dropout(d_scalars), 1: vectors if more is None else vectors + more}


class PNAEq(Architecture):
    """PNAEq: layers of a message and an update, from v = 0."""

    kind = "pnaeq"
    Settings = PNAEqSettings
    sees = frozenset({"lengths", "directions", "edge_features"})
    requires = frozenset({"lengths", "directions"})
    gives = frozenset({0, 1})
    needs = frozenset({"degrees"})
    cuttable = True

    def __init__(self, settings: PNAEqSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, count, scalers = settings.hidden_dim, settings.num_layers, settings.degree_scalers(spec)
        self.basis = radial_basis(settings, spec)
        self.carried = [frozenset({0}), *[self.gives] * (settings.num_layers - 1), spec.degrees]
        blind = None if 1 in spec.degrees else count - 1  # the layer whose vectors are not read
        self.layers = nn.ModuleList(
            PNAEqLayer(
                PNAEqMessage(channels, self.basis.width, scalers, settings.statistics, first=number == 0),
                PaiNNUpdate(channels, last=number == blind),
                settings.dropout,
            )
            for number in range(count)
        )
