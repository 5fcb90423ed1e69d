"""Relational convolution by levels of edges, as a multigrid cycle."""

from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Bool, Int
from pydantic import Field as Setting
from pydantic import model_validator
from torch import Tensor

from hydragnn.architectures import GraphSpec
from hydragnn.architectures.relational import Relational, RelationalLayer, RelationalSettings
from hydragnn.base.errors import InputError
from hydragnn.graphs.coarse import Merging
from hydragnn.kernels import Topology, spread
from hydragnn.layers import Coarser, MessageGraph, States


class MultilevelSettings(RelationalSettings):
    """One matrix per kind of edge, and one level of edges per layer."""

    kind: str = "hydragnn.scripts.recipes.multilevel:Multilevel"

    level_field: str = "level"
    """Categorical edge field that names the level of each edge."""

    cycle: list[Annotated[int, Setting(ge=0)]]
    """Level whose edges each layer uses, one entry per layer: coarse levels carry information far (a V-cycle is 0, 1, 2, 1, 0)."""

    @model_validator(mode="after")
    def _check(self) -> "MultilevelSettings":
        if len(self.cycle) != self.num_layers:
            raise ValueError(
                f"cycle has {len(self.cycle)} entries for num_layers = {self.num_layers}; give one per layer"
            )
        return self


class MultilevelLayer(RelationalLayer):
    """Relational convolution on one level of edges; other nodes keep their states."""

    def __init__(self, settings: MultilevelSettings, relations: int, level: int) -> None:
        super().__init__(settings, relations)
        self.level_field, self.level = settings.level_field, level

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return new states."""
        part = graph.once(("level", self.level), lambda: level_of(graph, self.level_field, self.level))
        increment = self.dropout(self.increment(part.pooled(states[0]), part.graph))  # [level_nodes, channels]
        return {0: states[0] + part.unpooled(increment.to(states[0].dtype))}


class Multilevel(Relational):
    """Multigrid cycle of relational convolutions, whose skip connections are the residuals."""

    kind = "hydragnn.scripts.recipes.multilevel:Multilevel"
    Settings = MultilevelSettings

    def layer(self, settings: MultilevelSettings, relations: int, number: int) -> MultilevelLayer:  # type: ignore[override]
        """Return a new layer on its level."""
        return MultilevelLayer(settings, relations, settings.cycle[number])

    @classmethod
    def kind_fields(cls, settings: MultilevelSettings) -> tuple[str, ...]:  # type: ignore[override]
        """The relation and the level."""
        return settings.relation, settings.level_field

    @classmethod
    def unpoolable(cls, settings: MultilevelSettings) -> str:
        """Return the reason: the cycle has levels of its own."""
        return "has levels of its own"

    @classmethod
    def check(cls, settings: MultilevelSettings, spec: GraphSpec) -> None:
        """Refuse a cycle with levels that do not exist."""
        levels = spec.edge_kinds[settings.level_field]
        if max(settings.cycle) >= levels:
            raise InputError(
                f"model.cycle asks for level {max(settings.cycle)}, but field {settings.level_field} has levels 0 to {levels - 1}; lower it"
            )


def level_of(graph: MessageGraph, field: str, level: int) -> Coarser:
    """The edges of one level, and the nodes at their ends."""
    edges = (graph.edge_kinds[field] == level).nonzero().squeeze(1)
    touched = torch.zeros(graph.num_nodes, dtype=torch.bool, device=edges.device)
    touched[graph.topology.senders[edges]] = True
    touched[graph.topology.receivers[edges]] = True
    return part_of(graph, touched, edges)


def part_of(
    graph: MessageGraph,
    stay: Bool[Tensor, " nodes"],
    edges: Int[Tensor, " kept_edges"],
) -> Coarser:
    """Return the level of some nodes and edges, unchanged."""
    retained = stay.nonzero().squeeze(1)
    count, nodes = retained.shape[0], graph.num_nodes
    each = torch.arange(count, device=retained.device)
    number = stay.long().cumsum(0) - 1  # of every node that stays
    senders, receivers = (number[end[edges]] for end in (graph.topology.senders, graph.topology.receivers))
    owner = graph.owner[retained]

    def of(values: Tensor | None, which: Tensor) -> Tensor | None:
        return None if values is None else spread(values, which)

    part = replace(
        graph,
        topology=Topology.square(senders, receivers, count),
        owner=owner,
        nodes_per_graph=torch.bincount(owner, minlength=graph.num_graphs),
        vectors=of(graph.vectors, edges),
        edge_features=of(graph.edge_features, edges),
        edge_kinds={name: kinds[edges] for name, kinds in graph.edge_kinds.items()},
        species=of(graph.species, retained),
        levels=(),
    )
    return Coarser(
        graph=part,
        joining=Topology(senders=retained, receivers=each, num_columns=nodes, num_rows=count),
        leaving=Topology(senders=each, receivers=retained, num_columns=count, num_rows=nodes),
        share=None,
        merging=Merging(finer=edges, coarser=torch.arange(len(edges), device=edges.device), num_edges=len(edges)),
        finer_edges=graph.topology.num_edges,
    )
