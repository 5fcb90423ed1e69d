"""PNA with filters of distance: PNA+ (after arXiv:2004.05718)."""

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GraphSpec, radial_basis
from hydragnn.architectures.pna import PNASettings, StatisticsLayer
from hydragnn.kernels import Topology, gather_add, silu
from hydragnn.layers import MessageGraph, States, aggregated, mlp


class PNAPlusSettings(PNASettings):
    """Principal neighbourhood aggregation of messages with filters of distance (PNA+ of HydraGNN; Corso et al. 2020, arXiv:2004.05718)."""

    kind: str = "pnaplus"


class PNAPlusLayer(StatisticsLayer):
    """Layer of PNA+.

    h_i <- h_i + silu(U(h_i, S (x) A over j of m_ij)), m_ij = F(r_ij) * M(h_i, h_j, G(r_ij)), A = (mean, min, max, std).

    S are the scalers of the degree (eq. 5), M is linear, F a linear filter of the radial functions of the distance, G a network of
    them with one hidden layer. Without F and with a linear G this is PNA (eqs. 7, 8).

    Deviates from the public HydraGNN: F and G see edge features too, F has the envelope, which ends messages at the cutoff, scalers
    are the paper's (d_i / mean d is ``scalers = [..., "linear"]``), the frequencies of radial functions are not learned, a layer norm before and SiLU after the
    layer instead of batch norm and ReLU, and a residual. The standard deviation is sqrt(variance + 1e-5). With ``statistics = "smooth"`` A
    and S are those of ``PNALayer`` in that form, and the envelope weighs messages in A instead of ending F.
    """

    def add_edge_maps(self, edge_width: int, channels: int) -> None:
        """Add the network of M and the filters."""
        self.from_edge = mlp([edge_width, channels, channels], last_bias=False)  # M of G
        self.filters = nn.Linear(edge_width, channels, bias=False)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degree 0."""
        features, envelope = graph.paired_inputs  # [items, width], [items, 1]; both directions of an edge say the same
        filters = self.filters(features)  # [items, channels]
        ends = envelope is not None and self.statistics == "paper"
        filters = graph.to_edges(filters * envelope if ends else filters)  # [edges, channels]
        assert self.from_edge is not None
        received = self.received(self.norm(states[0]), self.from_edge(features), filters, graph.envelope, graph.sharing)
        return {0: states[0] + self.dropout(silu(received))}

    def received(
        self,
        states: Float[Tensor, "nodes channels"],
        edges: Float[Tensor, "items channels"],
        filters: Float[Tensor, "edges channels"],
        envelope: Float[Tensor, "edges 1"] | None,
        topology: Topology,
    ) -> Float[Tensor, "nodes channels"]:
        """Return U of the node and of the scaled statistics of messages."""
        # M; [edges, channels]
        joined = gather_add(self.from_receiver(states), self.from_sender(states), edges, topology)
        # A; 4 x [nodes, channels]
        statistics, _, degrees = aggregated(self.statistics, joined * filters, envelope, topology)
        return self.mixed(states, statistics, degrees)


class PNAPlus(Architecture):
    """PNA+: statistics of filtered messages at three scales."""

    kind = "pnaplus"
    Settings = PNAPlusSettings
    sees = frozenset({"lengths", "edge_features"})
    requires = frozenset({"lengths"})
    needs = frozenset({"degrees"})
    cuttable = True

    def __init__(self, settings: PNAPlusSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, scalers = settings.hidden_dim, settings.degree_scalers(spec)
        self.basis = radial_basis(settings, spec)
        self.layers = nn.ModuleList(
            PNAPlusLayer(channels, self.basis.width, scalers, settings.dropout, settings.statistics)
            for _ in range(settings.num_layers)
        )
