"""Continuous-filter convolutions: SchNet (Schuett et al. 2017, arXiv:1706.08566, figure 2)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, GeometricSettings, GraphSpec, radial_basis
from hydragnn.kernels import Topology, ended, gather_multiply_sum
from hydragnn.layers import LayerSplit, MessageGraph, Plan, RadialFilters, States, mlp


class SchNetSettings(GeometricSettings):
    """Continuous-filter convolutions (Schuett et al. 2017, arXiv:1706.08566)."""

    kind: str = "schnet"

    removed: ClassVar = {"moving_coordinates": False, "movement": "sum"}


class SchNetInteraction(nn.Module):
    """Interaction of SchNet.

    v_i = f(sum_j (W x_j) * F(r_ij)), the increment of x_i, with a network f per node and filters F of length (eq. 2, figure 2).

    Deviates from the paper: SiLU instead of the shifted softplus, and W has no bias.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Linear(channels, channels, bias=False)
        self.after = mlp([channels, channels, channels])

    def forward(
        self, scalars: Float[Tensor, "nodes channels"], filters: Float[Tensor, "items channels"], topology: Topology
    ) -> Float[Tensor, "nodes channels"]:
        """Increment of the states."""
        # eq. 2: the sum over neighbours is [nodes, channels], and no [edges, channels] array of messages is kept
        return self.after(gather_multiply_sum(self.before(scalars), filters, topology))


class SchNetLayer(RadialFilters):
    """Layer of SchNet.

    x_i <- x_i + v_i (figure 2, left), with filters F(r) = network(radial basis of r) * envelope(r) (figure 2, right).

    Deviates from the paper: the envelope ends the filters at the cutoff, the network sees edge features and a constant
    beside the radial basis, has SiLU once instead of the shifted softplus twice, and the increment has dropout.
    """

    def __init__(self, filters: nn.Module, interaction: SchNetInteraction, dropout: float) -> None:
        super().__init__()
        self.filters = filters
        self.interaction = interaction
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states."""
        (filters,) = self.filters_of(graph)  # [items, channels]; both directions of an edge have one filter
        return {**states, 0: states[0] + self.dropout(self.interaction(states[0], filters, graph.sharing))}

    def split_plan(self) -> Plan:
        """Return channels of filters and sums."""
        return {
            "": LayerSplit(takes=((), ("copy",))),
            "filters.0": LayerSplit(weights="shared"),
            "filters.2": LayerSplit(weights="columns"),
            "interaction.before": LayerSplit(weights="columns", takes=(("copy",),)),
            "interaction.after": LayerSplit(takes=(("gather",),)),
        }

    def computed_filters(self, graph: MessageGraph) -> list[Float[Tensor, "items channels"]]:
        """The one filter, ended by the envelope."""
        features, envelope = graph.paired_inputs  # [items, width], [items, 1]
        filters: Tensor = self.filters(features)
        return [filters if envelope is None else ended(filters, envelope)]


class SchNet(Architecture):
    """Interactions with filters of distance, one after the other (figure 2, left).

    Deviates from the paper: the read-out belongs to the heads; an energy is the sum of a network on every node there, too.
    """

    kind = "schnet"
    Settings = SchNetSettings
    sees = frozenset({"lengths", "edge_features"})
    requires = frozenset({"lengths"})
    node_cost = 2
    cuttable = True

    def __init__(self, settings: SchNetSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, numbers = settings.hidden_dim, range(settings.num_layers)
        self.basis = radial_basis(settings, spec)
        filters = [mlp([self.basis.width, channels, channels]) for _ in numbers]
        interactions = [SchNetInteraction(channels) for _ in numbers]
        self.layers = nn.ModuleList(SchNetLayer(f, i, settings.dropout) for f, i in zip(filters, interactions))
