"""Relational convolution: one matrix per kind of edge (arXiv:1703.06103, eq. 2)."""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor, nn

from hydragnn.architectures.base import Architecture, ArchitectureSettings, GraphSpec, Searched, one_of, steps
from hydragnn.base.settings import REMOVED
from hydragnn.kernels import Topology, gather_multiply_sum, relation_topology, segment_mean, silu
from hydragnn.layers import MessageGraph, States

Reduce = Literal["sum", "mean", "sqrt"]


class RelationalSettings(ArchitectureSettings):
    """One full matrix per kind of edge (Schlichtkrull et al. 2017, arXiv:1703.06103): lattices, meshes, image grids."""

    kind: str = "relational"

    searched: ClassVar[Searched] = {
        **ArchitectureSettings.searched,
        "num_layers": steps(2, 6),
        "reduce": one_of("sum", "sqrt", "mean"),
    }

    removed: ClassVar = {"level": ..., "schedule": ...}

    relation: str = "relation"
    """Categorical edge field that names the kind of each edge."""

    reduce: Reduce = "sqrt"
    """Reduction over neighbours of one kind: summed, averaged, or summed and divided by the square root of their
    number, which keeps the spread of what arrives whatever the number."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_schedule(cls, value: Any) -> Any:
        """Refuse the schedule of earlier versions, without which layers would read other edges."""
        if isinstance(value, dict) and value.get("schedule"):
            raise ValueError(f"schedule is gone; {REMOVED['model.schedule']}")
        return value


class KeyedEdges(NamedTuple):
    """Edges keyed by (receiver, relation), and a weight for each (None: 1)."""

    topology: Topology
    weight: Float[Tensor, " edges"] | None


def keyed_edges(
    topology: Topology, relation: Int[Tensor, " edges"], relations: int, reduce: Reduce, dtype: torch.dtype
) -> KeyedEdges:
    """Return edges in rows of receiver and relation, with weights."""
    keyed = relation_topology(topology, relation, relations)
    if reduce == "sum":
        return KeyedEdges(keyed, None)
    shares = keyed.degrees.clamp_min(1).double().reciprocal()  # c_r; [nodes * relations]
    return KeyedEdges(keyed, (shares if reduce == "mean" else shares.sqrt()).to(dtype).index_select(0, keyed.receivers))


class RelationalLayer(nn.Module):
    """Relational convolution and a network per node.

    Sums (or means) over the neighbours of each kind, a matrix for every kind, and a network per node.

    h_i <- h_i + V silu(U norm(h_i) + sum over kinds r of W_r sum_j c_r norm(h_j)). Deviates from the paper (eq. 2): a layer
    norm before, the matrix V after, and a residual. V starts small, so that many layers in a row start near the identity.
    """

    def __init__(self, settings: RelationalSettings, relations: int) -> None:
        super().__init__()
        channels = settings.hidden_dim
        self.settings, self.relations = settings, relations
        self.norm = nn.LayerNorm(channels)
        self.own = nn.Linear(channels, channels)
        self.told = nn.Linear(relations * channels, channels, bias=False)
        self.out = nn.Linear(channels, channels)
        nn.init.normal_(self.out.weight, std=0.3 * channels**-0.5)
        nn.init.zeros_(self.out.bias)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states."""
        normed, kinds = self.norm(states[0]), graph.edge_kinds[self.settings.relation]
        key, dtype, reduce = ("keyed", normed.dtype), normed.dtype, self.settings.reduce
        edges = graph.once(key, lambda: keyed_edges(graph.topology, kinds, self.relations, reduce, dtype))
        # a row of sums per (receiver, relation), so that all W_r are one matrix: [nodes, relations * channels]
        sums = gather_multiply_sum(normed, edges.weight, edges.topology).reshape(len(normed), self.told.in_features)
        return {0: states[0] + self.dropout(self.out(silu(self.own(normed) + self.told(sums))))}


class Relational(Architecture):
    """Relational convolution.

    A matrix for every kind of edge (eq. 2); edge features enter as their mean over a node's edges.

    Deviates from the paper: edge features, a norm after the last layer, and no sharing among the matrices (its eqs. 3, 4).
    """

    kind = "relational"
    Settings: ClassVar[type[RelationalSettings]] = RelationalSettings
    sees = frozenset({"edge_kinds", "edge_features"})
    requires = frozenset({"edge_kinds"})
    cuttable = True

    def __init__(self, settings: RelationalSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        channels, relations = settings.hidden_dim, spec.edge_kinds[settings.relation]
        self.edge_inputs = nn.Linear(spec.edge_width, channels) if spec.edge_width else None
        self.layers = nn.ModuleList(RelationalLayer(settings, relations) for _ in range(settings.num_layers))
        self.norm = nn.LayerNorm(channels)

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """Return inputs plus a map of the mean edge features."""
        if self.edge_inputs is None or graph.edge_features is None:
            return {0: inputs}
        surrounding = segment_mean(graph.edge_features, graph.topology.receivers, graph.num_nodes)  # [nodes, features]
        return {0: inputs + self.edge_inputs(surrounding)}

    def finish(self, states: States, graph: MessageGraph) -> States:
        """The last states, normed."""
        return {0: self.norm(states[0])}

    @classmethod
    def kind_fields(cls, settings: RelationalSettings) -> tuple[str, ...]:
        """The relation."""
        return (settings.relation,)
