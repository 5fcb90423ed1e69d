"""Continuous-filter convolutions: SchNet (Schuett et al. 2017, arXiv:1706.08566, figure 2)."""

from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures.base import GraphSpec, radial_basis
from hydragnn.architectures.moving import MOVED, Movement, MovingArchitecture, MovingSettings, where_moved
from hydragnn.kernels import Topology, ended, gather_multiply_sum
from hydragnn.layers import LayerSplit, MessageGraph, Plan, RadialFilters, States, mlp


class SchNetSettings(MovingSettings):
    """Continuous-filter convolutions (Schuett et al. 2017, arXiv:1706.08566)."""

    kind: str = "schnet"


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
    beside the radial basis, has SiLU once instead of the shifted softplus twice, and the increment has dropout. With
    ``movement``, which the paper does not have, nodes move by d_i <- d_i + sum_j u(r_ij) f(F(r_ij)) r_ij.
    """

    def __init__(
        self,
        filters: nn.Module,
        interaction: SchNetInteraction,
        dropout: float,
        movement: Movement | None,
        *,
        at_rest: bool,
    ) -> None:
        super().__init__()
        self.at_rest = at_rest
        self.filters = filters
        self.interaction = interaction
        self.dropout = nn.Dropout(dropout)
        self.movement = movement

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states, with displacements if nodes move."""
        shifted_graph = where_moved(states, graph)
        # [items, channels]; both directions of an edge have one filter
        filters = self.filters_of(graph)[0] if shifted_graph is graph else self.ended_filters(shifted_graph, graph)
        new = {**states, 0: states[0] + self.dropout(self.interaction(states[0], filters, graph.sharing))}
        if self.movement is not None:
            new[MOVED] = self.movement(states, graph.to_edges(filters), graph.envelope, shifted_graph)
        return new

    def split_plan(self) -> Plan:
        """Return channels of filters and sums, where nodes rest."""
        if not self.at_rest:
            return {}
        return {
            "": LayerSplit(takes=((), ("copy",))),
            "filters.0": LayerSplit(weights="shared"),
            "filters.2": LayerSplit(weights="columns"),
            "interaction.before": LayerSplit(weights="columns", takes=(("copy",),)),
            "interaction.after": LayerSplit(takes=(("gather",),)),
        }

    def computed_filters(self, graph: MessageGraph) -> list[Float[Tensor, "items channels"]]:
        """The one filter of nodes at rest."""
        return [self.ended_filters(graph, graph)]

    def ended_filters(self, shifted_graph: MessageGraph, graph: MessageGraph) -> Float[Tensor, "items channels"]:
        """Return filters of moved lengths, ended by the original envelope."""
        features, envelope = shifted_graph.paired_inputs[0], graph.paired_inputs[1]  # [items, width], [items, 1]
        filters: Tensor = self.filters(features)
        return filters if envelope is None else ended(filters, envelope)


class SchNet(MovingArchitecture):
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
        moving = settings.num_layers - 1 if settings.moving_coordinates else 0
        movements = [None if number >= moving else Movement(channels) for number in numbers]
        self.layers = nn.ModuleList(
            SchNetLayer(f, i, settings.dropout, m, at_rest=not moving)
            for f, i, m in zip(filters, interactions, movements)
        )
