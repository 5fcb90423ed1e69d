"""Encoder and heads: from a normalised batch to predictions."""

from collections.abc import Iterable, Sequence
from functools import partial, reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures import Architecture
from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch, edge_vectors, volumes
from hydragnn.graphs.coarse import Level
from hydragnn.graphs.field import ATOMIC_NUMBERS, Location
from hydragnn.graphs.levels import CLUSTERS, levels_of
from hydragnn.graphs.padding import is_padded
from hydragnn.graphs.wider import wider
from hydragnn.kernels import first_derivatives, received_and_sent, segment_sum
from hydragnn.layers.close_range import CloseRange
from hydragnn.layers.halo import HaloExchange
from hydragnn.layers.inputs import EdgeInputs
from hydragnn.layers.message_graph import MessageGraph, States
from hydragnn.layers.pooling import GraphUNet
from hydragnn.layers.wrapping import ConditionInputs, PooledCondition
from hydragnn.models.description import ModelDescription
from hydragnn.models.distributions import Distribution, Point
from hydragnn.models.heads import HeadContext, HeadSettings
from hydragnn.models.wrapping import basis_of_pairs, wrap_layers

BUCKETS: tuple[str, Location] = ("buckets", "node")
PAIRS: tuple[str, Location] = ("pairs", "edge")
WITH_BATCH = (BUCKETS, PAIRS)
"""Keys of values that a batch may bring; layers would make them, and wait for sizes."""


class GraphModel(nn.Module):
    """Inputs, encoder and one head per target field; everything in normalised units.

    ``build_model`` checks the description; this class trusts it.
    """

    def __init__(self, description: ModelDescription) -> None:
        super().__init__()
        self.description = description
        model = description.model
        no_features = {*description.kind_fields, *((CLUSTERS,) if model.pooling is not None else ())}
        inputs = [field for field in description.input_fields if field.name not in no_features]
        of_graphs = [field for field in inputs if field.on == "graph"] if model.conditioning != "concat" else []
        of_nodes = [field for field in inputs if field not in of_graphs]
        self.node_inputs = description.architecture.node_inputs(model, of_nodes)
        self.edge_inputs = EdgeInputs(inputs)
        self.encoder = description.architecture(model, description.spec(self.edge_inputs.width))
        self.condition_inputs = ConditionInputs(of_graphs, model.hidden_dim) if of_graphs else None
        attention = model.global_attention
        has_pairs = attention is not None and attention.has_pairs
        self.basis_of_pairs = basis_of_pairs(attention, self.encoder.basis) if attention and has_pairs else None
        every = description.architecture.readout == "every layer"
        self.channels = model.hidden_dim * (len(self.encoder.layers) if every else 1)
        wrap_layers(self.encoder, model, description.degrees, conditioned=bool(of_graphs))
        summary = of_graphs and model.conditioning == "pooled"
        self.pooled_condition = PooledCondition(self.channels, model.hidden_dim) if summary else None
        self.close_range = None if description.close_range is None else CloseRange(description.close_range)
        self.heads = build_heads(description, self)

    def forward(self, batch: GraphBatch) -> dict[str, Distribution]:
        """Predict by field name: every head, then its derivatives."""
        return self.with_states(batch)[0]

    def with_states(self, batch: GraphBatch) -> tuple[dict[str, Distribution], States]:
        """Predict by field name, with the final states of all nodes.

        Derivatives are differentiable again where the caller records gradients, and all is detached where it does not.
        """
        recording = torch.is_grad_enabled()
        if not any(head.derivatives for head in self.description.heads):
            with first_derivatives():
                graph = self.message_graph(batch, self.edge_vectors(batch))
                states = self.encode(batch, graph)
                heads = zip(self.description.heads, self.heads)
                results = {settings.field: head(states, graph, batch) for settings, head in heads}
                return tied(results, graph), states
        if torch.is_inference_mode_enabled():  # where every derivative would be zero without a word
            raise InputError("forces and stress are derivatives, which torch.inference_mode forbids; use torch.no_grad")
        with torch.enable_grad():
            edge_sets = self.edge_sets(batch)
            vectors = [edge_vectors(edges).detach().requires_grad_() for edges in edge_sets]
            graph = self.message_graph(batch, *vectors, derived_once=not recording)
            states = self.encode(batch, graph)
            predictions: dict[str, Distribution] = {}
            for settings, head in zip(self.description.heads, self.heads):
                prediction = predictions[settings.field] = head(states, graph, batch)
                if settings.derivatives:
                    pairs = [(prediction.mean, energy_seed(prediction.mean, graph.halo))]
                    gradients = gradients_of(pairs, vectors, differentiable=recording, halo=graph.halo)
                    derivatives = energy_derivatives(settings, gradients, vectors, edge_sets, graph.halo)
                    predictions |= {name: Point(mean=derivatives[what]) for what, name in settings.derivatives.items()}
        if recording:
            return tied(predictions, graph), states
        return {name: value.detach() for name, value in predictions.items()}, {d: s.detach() for d, s in states.items()}

    def edge_sets(self, batch: GraphBatch) -> list[GraphBatch]:
        """Return the batch, and its pairs of equivariant attention if any."""
        attention = self.description.model.global_attention
        if self.basis_of_pairs is None or attention is None:
            return [batch]
        return [batch, wider(batch, attention.cutoff)]

    def edge_vectors(self, batch: GraphBatch) -> Float[Tensor, "edges dim"] | None:
        """Return vectors of all edges; None where no layer uses them."""
        return edge_vectors(batch) if self.description.dim and self.description.architecture.sees_positions() else None

    @property
    def without_vectors(self) -> str:
        """Return the error for layers that ask for absent edge vectors."""
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
        self,
        batch: GraphBatch,
        vectors: Float[Tensor, "edges dim"] | None,
        of_pairs: Float[Tensor, "pairs dim"] | None = None,
        *,
        derived_once: bool = False,
    ) -> MessageGraph:
        """Return the message graph of a batch with these edge vectors.

        ``of_pairs`` are vectors of the pairs of attention; absent: those of the positions.
        """
        species = "species" in self.description.architecture.sees and ATOMIC_NUMBERS in self.description.inputs
        repulsion, numbers = None, batch.nodes.get(ATOMIC_NUMBERS)
        # training steps see the training part, which has no contacts
        if self.close_range is not None and not self.encoder.training and vectors is not None and numbers is not None:
            vectors, repulsion = self.close_range(vectors, batch.topology, numbers, recorded=is_padded(batch))
        graph = MessageGraph(
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
            levels=self.levels(batch),
            wider=self.graph_of_pairs(batch, of_pairs),
            repulsion=repulsion,
            derived_once=derived_once,
            halo=None if batch.halo is None else HaloExchange(batch.halo, self.anchor),
        )
        graph.cache.update({key[0]: value for key, value in batch._derived.items() if key in WITH_BATCH})
        return graph

    @property
    def anchor(self) -> Tensor:
        """Return a weight that learns, if any does."""
        return max(self.parameters(), key=lambda weight: weight.requires_grad)

    def graph_of_pairs(self, batch: GraphBatch, vectors: Float[Tensor, "pairs dim"] | None) -> MessageGraph | None:
        """Return the graph of attention's pairs; None where it has none."""
        if self.basis_of_pairs is None:
            return None
        pairs = self.edge_sets(batch)[1]
        owner, counts = batch.owner("node"), batch.counts("node")
        vectors = edge_vectors(pairs) if vectors is None else vectors
        return MessageGraph(
            topology=pairs.topology, owner=owner, nodes_per_graph=counts, vectors=vectors, basis=self.basis_of_pairs
        )

    def levels(self, batch: GraphBatch) -> tuple[Level, ...]:
        """Return the coarser levels of a batch that layers work on."""
        pooling = self.description.model.pooling
        return () if pooling is None else levels_of(batch, pooling.levels, self.description.kind_fields)

    def encode(self, batch: GraphBatch, graph: MessageGraph) -> States:
        """Final states of all nodes, as the heads read them."""
        if self.description.model.checkpoint_activations:
            graph.prepare()
        states = self.encoder.embed(self.node_inputs(batch), graph)
        return self.final_states(self.after_layers(states, self.encoder.layers, graph), graph)

    def after_layers(
        self, states: States, layers: Iterable[nn.Module], graph: MessageGraph, earlier: Sequence[States] = ()
    ) -> list[States]:
        """Return the states that ``final_states`` reads.

        They are those after all of these layers and ``earlier`` ones, or after the last alone.
        """
        every = self.description.architecture.readout == "every layer"
        of_layers = list(earlier)
        # states before the first layer follow from inputs, which copies have, too
        reads_edges = type(self.encoder).embed is not Architecture.embed
        for number, layer in enumerate(layers, start=len(earlier)):
            states = graph.filled(states) if number > 0 or reads_edges else states
            outputs = (
                layer.of_every_layer(states, graph)
                if every and isinstance(layer, GraphUNet)
                else [layer(states, graph)]
            )
            states = outputs[-1]
            of_layers = [*of_layers, *outputs] if every else [states]
        return of_layers

    def final_states(self, of_layers: list[States], graph: MessageGraph) -> States:
        """Return the states that heads read."""
        every = self.description.architecture.readout == "every layer"
        states = self.encoder.finish(side_by_side(of_layers) if every else of_layers[-1], graph)
        return states if self.pooled_condition is None else self.pooled_condition(states, graph)


def build_heads(description: ModelDescription, trunk: GraphModel) -> nn.ModuleList:
    """The heads of a description, on the states that ``trunk`` gives."""
    context = HeadContext(
        model=description.model,
        spec=description.spec(trunk.edge_inputs.width),
        input_fields=description.input_fields,
        channels=trunk.channels,
        basis=trunk.encoder.basis,
        conditioned=trunk.condition_inputs is not None,
        close_range=description.close_range,
    )
    return nn.ModuleList(head.build(description.fields[head.field], context) for head in description.heads)


def side_by_side(of_layers: list[States]) -> States:
    """Return the channels of all layers side by side, by degree.

    Xu et al. 2018, arXiv:1806.03536.
    """
    degrees = set.intersection(*(set(states) for states in of_layers))
    return {degree: torch.cat([states[degree] for states in of_layers], dim=-1) for degree in sorted(degrees)}


def tied(predictions: dict[str, Distribution], graph: MessageGraph) -> dict[str, Distribution]:
    """Return predictions whose gradients pass through all exchanges."""
    halo = graph.halo
    return predictions if halo is None else {name: one.mapped(halo.tied) for name, one in predictions.items()}


def energy_seed(energy: Float[Tensor, "graphs *shape"], halo: HaloExchange | None) -> Float[Tensor, "graphs *shape"]:
    """Return ones; zeros on all but one of ranks that share graphs."""
    return torch.full_like(energy, float(halo is None or halo.halo.peers.rank == 0))


def gradients_of(
    pairs: Sequence[tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor],
    *,
    differentiable: bool,
    halo: HaloExchange | None = None,
) -> Sequence[Tensor]:
    """Return the gradients by inputs of outputs with seeds; zeros without effect."""
    if halo is not None:
        return halo.gradients(pairs, inputs, differentiable=differentiable)
    pairs = [pair for pair in pairs if pair[0].requires_grad]
    if not pairs:
        return [torch.zeros_like(one) for one in inputs]
    outputs, seeds = zip(*pairs)
    how = {"create_graph": differentiable, "retain_graph": True, "materialize_grads": True}
    return torch.autograd.grad(outputs, list(inputs), seeds, **how)


def energy_derivatives(
    head: HeadSettings,
    gradients: Sequence[Float[Tensor, "_ dim"]],
    vectors: Sequence[Float[Tensor, "_ dim"]],
    edge_sets: Sequence[GraphBatch],
    halo: HaloExchange | None,
) -> dict[str, Tensor]:
    """Return forces and stress of a head from dE/dv of every edge.

    Models see positions only through edge vectors v = x_sender + shift - x_receiver, so dE/dv holds everything: a node's force is the sum over the edges it
    receives minus that over those it sends, and the virial is the sum of v (x) dE/dv, since a strain turns every v into v + strain v.
    """
    of_sets = {
        "forces": map(partial(forces_from, halo=halo), gradients, edge_sets),
        "stress": map(partial(stress_from, halo=halo), gradients, vectors, edge_sets),
    }
    return {what: reduce(torch.add, of_sets[what]) for what in head.derivatives}


def forces_from(
    gradient: Float[Tensor, "edges dim"], batch: GraphBatch, halo: HaloExchange | None = None
) -> Float[Tensor, "nodes dim"]:
    """Return forces, which sum to zero over every graph."""
    received, sent = received_and_sent(gradient, batch.topology)  # [nodes, dim]
    forces = received - sent
    return forces if halo is None else halo.sum_to_owners(forces)


def stress_from(
    gradient: Float[Tensor, "edges dim"],
    vectors: Float[Tensor, "edges dim"],
    batch: GraphBatch,
    halo: HaloExchange | None = None,
) -> Float[Tensor, "graphs dim dim"]:
    """Return the stress: strain derivative over volume, positive under tension.

    A graph without a volume gets zeros.
    """
    outer = vectors.unsqueeze(-1) * gradient.unsqueeze(-2)  # [edges, dim, dim]
    virial = segment_sum(outer, batch.owner("edge"), batch.num_graphs)  # [graphs, dim, dim]
    virial = virial if halo is None else halo.total(virial)
    volume = volumes(batch).to(virial.dtype).view(-1, 1, 1)
    inverse = torch.where(volume > 0, 1 / volume.clamp_min(torch.finfo(volume.dtype).tiny), 0.0)
    return 0.5 * (virial + virial.transpose(-1, -2)) * inverse


Predicted = tuple[dict[str, Distribution], Float[Tensor, "nodes channels"]]
"""Predictions by field name, and the invariant states that heads read."""
