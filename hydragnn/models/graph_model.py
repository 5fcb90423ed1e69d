"""An encoder and its heads: from a normalised batch to a prediction of every target."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch, edge_vectors
from hydragnn.graphs.field import ATOMIC_NUMBERS
from hydragnn.graphs.levels import CLUSTERS
from hydragnn.kernels import first_derivatives
from hydragnn.layers import ConditionInputs, EdgeInputs, MessageGraph, NodeInputs, PooledCondition, States
from hydragnn.models.derivatives import energy_gradient, forces_from, stress_from
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Distribution, Point
from hydragnn.models.head_context import HeadContext
from hydragnn.models.head_settings import HeadSettings
from hydragnn.models.heads import HEADS
from hydragnn.models.wrapping import wrap_layers


class GraphModel(nn.Module):
    """Inputs, encoder and one head per target field; everything in normalised units.

    ``build_model`` checks the description; this class trusts it.
    """

    def __init__(self, description: ModelDescription) -> None:
        super().__init__()
        self.description = description
        model = description.model
        inputs = [field for field in description.input_fields if field.name not in description.structure_fields]
        of_graphs = [field for field in inputs if field.on == "graph"] if model.conditioning != "concat" else []
        self.node_inputs = NodeInputs([field for field in inputs if field not in of_graphs], model.hidden_dim)
        self.edge_inputs = EdgeInputs(inputs)
        self.encoder = description.architecture(model, description.spec(self.edge_inputs.width))
        self.condition_inputs = ConditionInputs(of_graphs, model.hidden_dim) if of_graphs else None
        wrap_layers(self.encoder, model, description.degrees, conditioned=bool(of_graphs))
        every = description.architecture.readout == "every layer"
        self.channels = model.hidden_dim * (len(self.encoder.layers) if every else 1)
        summary = of_graphs and model.conditioning == "pooled"
        self.pooled_condition = PooledCondition(self.channels, model.hidden_dim) if summary else None
        self.heads = build_heads(description, self)

    def forward(self, batch: GraphBatch) -> dict[str, Distribution]:
        """Predictions by field name: every head's field, then its forces and its stress where declared."""
        return self.with_states(batch)[0]

    def with_states(self, batch: GraphBatch) -> tuple[dict[str, Distribution], States]:
        """Predictions by field name, and the final states of all nodes that heads read.

        Derivatives are differentiable again where the caller records gradients, and all is detached where it does not.
        """
        recording = torch.is_grad_enabled()
        if not any(head.derivatives for head in self.description.heads):
            with first_derivatives():
                graph = self.message_graph(batch, self.edge_vectors(batch))
                states = self.encode(batch, graph)
                heads = zip(self.description.heads, self.heads)
                return {settings.field: head(states, graph, batch) for settings, head in heads}, states
        with torch.enable_grad():
            vectors = edge_vectors(batch).detach().requires_grad_()
            graph = self.message_graph(batch, vectors, derived_once=not recording)
            states = self.encode(batch, graph)
            predictions: dict[str, Distribution] = {}
            for settings, head in zip(self.description.heads, self.heads):
                prediction = predictions[settings.field] = head(states, graph, batch)
                if settings.derivatives:
                    predictions |= _derivatives(settings, prediction.mean, vectors, batch, differentiable=recording)
        if recording:
            return predictions, states
        return {name: value.detach() for name, value in predictions.items()}, {d: s.detach() for d, s in states.items()}

    def edge_vectors(self, batch: GraphBatch) -> Float[Tensor, "edges dim"] | None:
        """Vectors of all edges; None for graphs without geometry, and where no layer looks at it."""
        model = self.description.model
        seen = self.description.architecture.sees_positions() or model.pooling is not None
        return edge_vectors(batch) if self.description.dim and seen else None

    @property
    def without_vectors(self) -> str:
        """Why layers get no vectors of edges where they get none, and what the author of the architecture does then."""
        kind = self.description.model.kind
        if self.description.architecture.sees_positions():
            return (
                f'these graphs have no positions; add "lengths" or "directions" to `requires` of the class of model {kind}, which '
                "refuses such graphs, or let the class do without where spec.dim is 0"
            )
        return (
            f'model {kind} does not declare that it sees any; add "lengths" or "directions" to `sees` of its class, and to '
            "`requires` if it cannot do without"
        )

    def message_graph(
        self, batch: GraphBatch, vectors: Float[Tensor, "edges dim"] | None, *, derived_once: bool = False
    ) -> MessageGraph:
        """What the layers see of a batch whose edges have these vectors."""
        species = "species" in self.description.architecture.sees and ATOMIC_NUMBERS in self.description.inputs
        levels = batch.nodes[CLUSTERS] if self.description.model.pools_clusters else None
        return MessageGraph(
            topology=batch.topology,
            owner=batch.owner("node"),
            nodes_per_graph=batch.counts("node"),
            vectors=vectors,
            without_vectors=self.without_vectors,
            edge_features=self.edge_inputs(batch),
            edge_kinds={name: batch.edges[name] for name in self.description.kind_fields},
            species=batch.nodes[ATOMIC_NUMBERS] if species else None,
            condition=None if self.condition_inputs is None else self.condition_inputs(batch),
            basis=self.encoder.basis,
            clusters=levels,
            positions=batch.positions if levels is not None and vectors is not None else None,
            derived_once=derived_once,
        )

    def encode(self, batch: GraphBatch, graph: MessageGraph) -> States:
        """Final states of all nodes, as the heads read them."""
        if self.description.model.checkpoint_activations:
            graph.prepare()
        states = self.encoder.embed(self.node_inputs(batch), graph)
        of_layers = []
        for layer in self.encoder.layers:
            states = layer(states, graph)
            of_layers.append(states)
        if self.description.architecture.readout == "every layer":
            states = side_by_side(of_layers)
        states = self.encoder.finish(states, graph)
        return states if self.pooled_condition is None else self.pooled_condition(states, graph)


def build_heads(description: ModelDescription, trunk: GraphModel) -> nn.ModuleList:
    """The heads of a description, on the states that ``trunk`` gives."""
    context = HeadContext(
        description=description,
        channels=trunk.channels,
        basis=trunk.encoder.basis,
        edge_width=trunk.edge_inputs.width,
        conditioned=trunk.condition_inputs is not None,
    )
    return nn.ModuleList(HEADS[head.kind](head, description.fields[head.field], context) for head in description.heads)


def side_by_side(of_layers: list[States]) -> States:
    """The channels of all layers in one row, for every degree that all of them have (Xu et al. 2018, arXiv:1806.03536)."""
    degrees = set.intersection(*(set(states) for states in of_layers))
    return {degree: torch.cat([states[degree] for states in of_layers], dim=-1) for degree in sorted(degrees)}


def _derivatives(
    head: HeadSettings, energy: Tensor, vectors: Tensor, batch: GraphBatch, *, differentiable: bool
) -> dict[str, Distribution]:
    gradient = energy_gradient(energy, vectors, differentiable=differentiable)
    values = {"forces": lambda: forces_from(gradient, batch), "stress": lambda: stress_from(gradient, vectors, batch)}
    return {name: Point(mean=values[what]()) for what, name in head.derivatives.items()}
