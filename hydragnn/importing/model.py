"""Models of the public HydraGNN as an architecture with heads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field as Setting
from torch import Tensor, nn

from hydragnn.architectures import Architecture, ArchitectureSettings, GraphSpec
from hydragnn.base.errors import InputError
from hydragnn.datasets.isolated_atoms import by_atomic_number
from hydragnn.frozen import FrozenGraph, FrozenSettings
from hydragnn.frozen.kinds import KINDS
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.graphs.joining import unbatch
from hydragnn.layers import MessageGraph, States
from hydragnn.layers.inputs import columns
from hydragnn.models.distributions import Distribution, Normal, Point
from hydragnn.models.heads import HeadSettings
from hydragnn.models.heads.base import HeadContext
from hydragnn.models.target import Target

KIND, OUTPUT = "hydragnn.importing:PublicModel", "hydragnn.importing:Output"
LENGTHS, ENCODING = "edge_attr", "pe"
"""Names of fields that are edge features and positional encodings there."""


class PublicSettings(ArchitectureSettings):
    """Settings of an imported model."""

    kind: str = KIND
    repulsion: Literal["none"] = "none"

    checkpoint: dict[str, Any]
    """Settings and generation of the code that wrote it."""
    columns: list[str]
    """Node fields that are the columns of ``x``, in their order."""
    images: bool = True
    """Graphs that it was trained on have edges through periodic images."""
    edge_lengths: float = 0
    """Unit of lengths that are edge features; 0 for others or none."""

    @property
    def frozen(self) -> FrozenSettings:
        """Return the settings of the module."""
        return FrozenSettings.model_validate(self.checkpoint)

    @property
    def cutoff(self) -> float | None:
        """Return the radius of edges, where no store says it."""
        return self.frozen.radius

    @property
    def max_neighbours(self) -> int | None:
        """Return the number of neighbours that nodes keep, the nearest ones."""
        return self.frozen.max_neighbours


class PublicInputs(nn.Module):
    """Whole imported model: final states of nodes, beside its outputs."""

    origin: Tensor

    def __init__(self, settings: PublicSettings, fields: Sequence[Field]) -> None:
        super().__init__()
        self.settings = settings
        self.by_name = {field.name: field for field in fields}
        self.model = KINDS[settings.frozen.kind](settings.frozen)
        self.register_buffer("origin", torch.zeros(()), persistent=False)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "nodes states_and_outputs"]:
        """Return states and outputs; those of graphs at every node."""
        frozen = self.model.settings
        if frozen.global_attn_engine == "GPS" and batch.num_graphs > 1:  # where graphs of a batch would mix
            return torch.cat([self(graph) for graph in unbatch(batch)])
        recording = torch.is_grad_enabled()
        if frozen.interatomic and torch.is_inference_mode_enabled():
            raise InputError("forces are derivatives, which torch.inference_mode forbids; use torch.no_grad")
        with torch.set_grad_enabled(recording or frozen.interatomic):
            graph = self.graph(batch)
            states: list[Tensor] = []  # scalars after the last layer
            last = self.model.graph_convs[-1]
            with last.register_forward_hook(lambda module, arguments, result: states.append(result[0])):
                if frozen.interatomic:
                    graph = replace(graph, pos=graph.pos.detach().requires_grad_())
                    energy = self.model.energy(graph)
                    forces = -torch.autograd.grad(energy.sum(), graph.pos, create_graph=recording)[0]
                    outputs = [energy.index_select(0, graph.batch)[:, None], forces]
                else:
                    parts = [part for pair in self.model(graph) for part in pair if part is not None]
                    levels = [head.level for head in frozen.heads for _ in range(1 + frozen.variance)]
                    pairs = zip(levels, parts)
                    outputs = [one.index_select(0, graph.batch) if level == "graph" else one for level, one in pairs]
        values = torch.cat([states[-1], *outputs], dim=1)
        return values if recording else values.detach()

    def graph(self, batch: GraphBatch) -> FrozenGraph:
        """Return the batch as its code saw it; else InputError."""
        settings, dtype = self.settings, self.origin.dtype
        x = torch.cat([columns(batch.nodes[name], self.by_name[name]).to(dtype) for name in settings.columns], dim=1)
        edges = torch.stack([batch.senders, batch.receivers])
        if not settings.images and bool(batch.edge_shifts.any()):
            raise InputError(
                "this model was trained on graphs without periodic images; set pbc to false in the structures"
            )
        shifts = -batch.edge_shifts.to(dtype)  # theirs are added at the receiver
        graph = FrozenGraph(x, batch.positions.to(dtype), edges, batch.owner("node"), batch.num_graphs, shifts)
        more: dict[str, Any] = {}
        if settings.edge_lengths:
            more["edge_attr"] = (graph.lengths() / settings.edge_lengths).detach()
        elif LENGTHS in self.by_name:
            more["edge_attr"] = columns(batch.edges[LENGTHS], self.by_name[LENGTHS]).to(dtype)
        attributes = [field for field in self.by_name.values() if field.on == "graph"]
        if attributes:
            more["graph_attr"] = torch.cat([columns(batch.graphs[one.name], one) for one in attributes], 1).to(dtype)
        if ENCODING in self.by_name:
            encoding = columns(batch.nodes[ENCODING], self.by_name[ENCODING]).to(dtype)
            more |= {"pe": encoding, "rel_pe": (encoding[edges[0]] - encoding[edges[1]]).abs()}
        return replace(graph, **more)


class Unchanged(nn.Module):
    """Layer that returns its states: others lie in the inputs."""

    def forward(self, states: States, graph: MessageGraph) -> States:
        """Return the states."""
        return states


class PublicModel(Architecture):
    """Model of the public HydraGNN, as its own code computes it."""

    kind = KIND
    Settings = PublicSettings
    sees = frozenset({"lengths", "edge_features"})
    requires = frozenset({"lengths"})
    attends = True

    def __init__(self, settings: PublicSettings, spec: GraphSpec) -> None:
        super().__init__(settings, spec)
        self.layers = nn.ModuleList([Unchanged()])
        frozen = settings.frozen  # energy and forces, or what heads give
        self.outputs = 4 if frozen.interatomic else sum(head.dim for head in frozen.heads) * (1 + frozen.variance)

    @classmethod
    def node_inputs(cls, settings: PublicSettings, fields: Sequence[Field]) -> Any:
        """Return the whole model, which sees inputs of nodes and graphs."""
        return PublicInputs(settings, fields)

    def embed(self, inputs: Float[Tensor, "nodes channels"], graph: MessageGraph) -> States:
        """Return the final states; outputs are kept for the heads."""
        graph.cache["outputs"] = inputs[:, -self.outputs :]
        return {0: inputs[:, : -self.outputs]}


class Output(HeadSettings):
    """Output of an imported model."""

    kind: str = OUTPUT

    column: int
    """Its first number among all outputs."""

    loss: str = "mse"
    distribution: Literal["point", "gaussian"] = "point"

    extensive: bool = False
    """It grows with the number of nodes: an energy."""
    references: dict[str, float] = Setting(default_factory=dict)
    """Energies of elements that it is without, by atomic number."""
    derivative_of: str | None = None
    """Energy that it is the force of."""

    def targets(self, fields: Any) -> tuple[Target, ...]:
        """Return the target."""
        source = self.derivative_of or ""
        target = Target(
            field=fields[self.field],
            weight=self.weight,
            loss=self.loss,
            distribution=Normal if self.distribution == "gaussian" else Point,
            extensive=self.extensive,
            per_node=self.extensive,
            references=bool(self.references),
            given_references=by_atomic_number(self.references),
            derivative="forces" if source else "",
            source=source,
        )
        return (target,)

    def build(self, field: Field, context: HeadContext) -> nn.Module:
        """Return the part that picks it."""
        return PickedOutput(field, self)


class PickedOutput(nn.Module):
    """Output of an imported model, out of all."""

    def __init__(self, field: Field, settings: Output) -> None:
        super().__init__()
        self.field, self.first, self.gaussian = field, settings.column, settings.distribution == "gaussian"

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """Return its values, one row per node or graph."""
        rows = graph.cache["outputs"]
        if self.field.on == "graph":
            rows = rows.index_select(0, batch.node_offsets[:-1])
        width, shape = self.field.width, (len(rows), *self.field.shape)
        mean = rows[:, self.first : self.first + width].reshape(shape)
        if not self.gaussian:
            return Point(mean=mean)
        variance = rows[:, self.first + width : self.first + 2 * width].reshape(shape)
        return Normal(mean=mean, variance=variance)
