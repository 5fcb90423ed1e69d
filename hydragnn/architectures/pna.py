"""Principal neighbourhood aggregation: PNA (arXiv:2004.05718, eqs. 5 to 8)."""

from typing import Annotated, Any

from jaxtyping import Float
from pydantic import AfterValidator
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, radial_basis
from hydragnn.kernels import Topology, ended, gather_add, joined, normalised, silu
from hydragnn.layers import DegreeScalers, MessageGraph, Scaler, States, StatisticsForm, aggregated, scaled_statistics


def _different(scalers: list[Scaler]) -> list[Scaler]:
    if len({*scalers}) < len(scalers):
        raise ValueError("a scaler stands there twice; leave one of them out")
    return scalers


class PNASettings(GeometricSettings):
    """Principal neighbourhood aggregation (Corso et al. 2020, arXiv:2004.05718) with edge lengths and features."""

    kind: str = "pna"

    scalers: Annotated[list[Scaler], AfterValidator(_different)] = Setting(
        default=["identity", "amplification", "attenuation"], min_length=1
    )
    """By what the statistics of a node with d edges are multiplied: 1, s = log(d + 1) / mean log(d + 1), 1 / s, and of "linear" and "inverse_linear"
    t = d / mean d and 1 / t. The paper's three; the public HydraGNN has "linear" as well, and in PNAEq "inverse_linear", too."""

    statistics: StatisticsForm = "paper"
    """Weight of neighbours in mean, least, largest and deviation, and in the degree of the scalers: paper, each as one, which jumps where one crosses
    the cutoff; smooth, each as much as its envelope says, in forms without jumps and cusps (``smooth_statistics``)."""

    def degree_scalers(self, spec: GraphSpec) -> DegreeScalers:
        """The scalers with the means of the training part."""
        own, names = spec.statistics, tuple(self.scalers)
        assert own is not None
        return DegreeScalers(names=names, mean_log_degree=own.mean_log_degree, mean_degree=own.mean_degree)

    @property
    def kinks(self) -> str:
        """Description of the kinks of minima, maxima and means."""
        if self.statistics == "smooth":
            return ""
        return (
            'with statistics = "paper" energies jump where a neighbour crosses the cutoff, because it counts at once, and forces '
            "jump where another neighbour becomes the least or the largest, so that perfect crystals have no force constants; "
            'statistics = "smooth" has no such steps'
        )


class StatisticsLayer(nn.Module):
    """Base of layers that read scaled statistics of messages."""

    from_edge: nn.Module | None

    def __init__(
        self, channels: int, edge_width: int, scalers: DegreeScalers, dropout: float, statistics: StatisticsForm
    ) -> None:
        super().__init__()
        self.scalers = scalers
        self.statistics: StatisticsForm = statistics
        self.norm = nn.LayerNorm(channels)
        self.from_receiver = nn.Linear(channels, channels)
        self.from_sender = nn.Linear(channels, channels, bias=False)
        self.add_edge_maps(edge_width, channels)
        self.from_self = nn.Linear(channels, channels)
        self.from_statistics = nn.Linear(4 * channels, len(scalers.names) * channels, bias=False)
        self.mix = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def add_edge_maps(self, edge_width: int, channels: int) -> None:
        """Add the maps of edge inputs."""
        self.from_edge = nn.Linear(edge_width, channels, bias=False) if edge_width else None

    def mixed(self, states: Tensor, statistics: Any, degrees: Any) -> Tensor:
        """Return U of the node and of its scaled statistics ``[nodes, channels]``."""
        scaled = scaled_statistics(statistics, self.from_statistics, degrees, self.scalers)
        result: Tensor = self.mix(self.from_self(states) + scaled)
        return result


class PNALayer(StatisticsLayer):
    """Layer of PNA.

    h_i <- h_i + silu(U(h_i, S (x) A over j of M(h_i, h_j, e_ij))), A = (mean, min, max, std), S = (1, s_i, 1 / s_i) (eqs. 7, 8).

    s_i = log(d_i + 1) / (mean of log(d + 1) over the training part), with d_i the edges that node i receives (eq. 5); other S are ``scalers``.

    The receiver's part of a message is the same for all edges of a node, so it is added after the aggregation; and the
    scalers, one number per node, act after the linear map of the four statistics. Both are exact. Deviates from the paper:
    messages end at the envelope; the standard deviation is sqrt(variance + 1e-5) (eq. 4 has sqrt(relu(variance) + e) and does not
    say which e); a layer norm before and SiLU after the layer (the paper has batch norm and ReLU). With ``statistics = "smooth"`` A are those
    of ``smooth_statistics``, to which messages come without the envelope, and d_i in S is their n_i = sqrt(1 + D_i^2), D_i = sum of the envelopes,
    so that 1 / s_i stays finite without neighbours; means over the training part are those of d.
    """

    def forward(self, states: States, graph: MessageGraph) -> States:
        """New states of degree 0."""
        features, envelope = graph.paired_inputs[0], graph.envelope  # [items, width], [edges, 1]
        received = self.received(normalised(self.norm, states[0]), features, envelope, graph.sharing)
        return {0: states[0] + self.dropout(silu(received))}

    def received(
        self,
        states: Float[Tensor, "nodes channels"],
        features: Float[Tensor, "items features"] | None,
        envelope: Float[Tensor, "edges 1"] | None,
        topology: Topology,
    ) -> Float[Tensor, "nodes channels"]:
        """Equations 5 to 8 on linear messages."""
        edges = None if self.from_edge is None or features is None else self.from_edge(features)  # [items, channels]
        messages = gather_add(None, self.from_sender(states), edges, topology)  # [edges, channels]
        if self.statistics == "paper" and envelope is not None:
            messages = ended(messages, envelope)
        (mean, low, high, std), presence, degrees = aggregated(self.statistics, messages, envelope, topology)
        own = self.from_receiver(states) * presence  # [nodes, channels]; no message, no share of the receiver
        return self.mixed(states, joined([own + mean, own + low, own + high, std], -1), degrees)


class PNA(Architecture):
    """PNA: four statistics of neighbours at three scales (figure 2)."""

    kind = "pna"
    Settings = PNASettings
    sees = frozenset({"lengths", "edge_features"})
    needs = frozenset({"degrees"})
    node_cost = 15
    cuttable = True

    def __init__(self, settings: PNASettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, scalers = settings.hidden_dim, settings.degree_scalers(spec)
        self.basis = radial_basis(settings, spec) if spec.dim else None
        width = self.basis.width if self.basis else spec.edge_width
        self.layers = nn.ModuleList(
            PNALayer(channels, width, scalers, settings.dropout, settings.statistics)
            for _ in range(settings.num_layers)
        )
