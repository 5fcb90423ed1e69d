"""Networks of heads: from final states to a distribution of every item."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.architectures import Architecture, ArchitectureSettings
from hydragnn.base.errors import InputError
from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.kernels import segment_sum, silu, spread
from hydragnn.layers.inputs import EdgeInputs, mlp
from hydragnn.layers.message_graph import MessageGraph, States
from hydragnn.layers.readout import GatedProducts, GatedVectors, Pool, pooled_nodes, shares_of_nodes
from hydragnn.models.distributions import VARIANCE_FLOOR, Categorical, Distribution, Normal, Number, Point
from hydragnn.models.heads.base import HeadContext
from hydragnn.models.wrapping import wrap_layers

D = TypeVar("D", bound=Distribution)


class DistributionHead(nn.Module, Generic[D]):
    """Raw outputs as a distribution; ``width`` outputs per item."""

    each: ClassVar = 1
    """Outputs per number."""

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.shape, self.classes = field.shape, field.classes
        self.width = self.each * field.width * max(field.classes, 1)


class PointOutput(DistributionHead[Point]):
    """One output per number: its value."""

    def forward(self, raw: Float[Tensor, "items width"]) -> Point:
        """The values in the field's shape."""
        return Point(mean=raw.reshape(-1, *self.shape))


class GaussianOutput(DistributionHead[Normal]):
    """Normal(mean, softplus(raw) + floor): two outputs per number.

    Nix and Weigend 1994, doi:10.1109/ICNN.1994.374138.
    Deviates from the paper: the variance is a softplus with a floor, where the paper has an exponential.
    """

    each = 2

    def forward(self, raw: Float[Tensor, "items width"]) -> Normal:
        """The normal distributions in the field's shape."""
        mean, variance = raw.chunk(2, dim=-1)  # [items, field.width] each
        return Normal(mean=mean.reshape(-1, *self.shape), variance=positive(variance).reshape(-1, *self.shape))


class ClassOutput(DistributionHead[Categorical]):
    """Categorical(softmax(raw)): one output per class of each component, its logit."""

    def forward(self, raw: Float[Tensor, "items width"]) -> Categorical:
        """The probabilities in the field's shape."""
        return Categorical(logits=raw.reshape(-1, *self.shape, self.classes))


NUMBER_OUTPUTS: Mapping[str, Callable[[Field], DistributionHead[Any]]] = {
    "point": PointOutput,
    "gaussian": GaussianOutput,
}


def positive(raw: Tensor) -> Tensor:
    """Return a variance above the floor, so that logarithms are finite."""
    return nn.functional.softplus(raw) + VARIANCE_FLOOR


def pool_numbers(of_node: Number, graph: MessageGraph, batch: GraphBatch, pool: Pool) -> Number:
    """Pool predictions of nodes into graphs; nodes count as independent."""
    of_graph = of_node.mapped(lambda values: pooled_nodes(values, graph, pool))
    return of_graph.mean_over(batch.nodes_per_graph.clamp_min(1)) if pool == "mean" else of_graph


class NodeHead(nn.Module):
    """y_i = output(network(h_i)) [+ a x_i]: one network on every node."""

    def __init__(
        self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, corrected: str | None = None
    ) -> None:
        super().__init__()
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])
        self.corrected = CorrectedInput(corrected, output.shape) if corrected else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per node, of the field's shape."""
        prediction: Distribution = self.output(self.network(states[0]))
        return prediction if self.corrected is None else prediction.shift_by(self.corrected(batch))


class CorrectedInput(nn.Module):
    """a x_i: a node input times learned numbers, which start at 1.

    Both are normalised, so a is no ratio of units.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.name = name
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        """The input times its numbers; 0 where graphs lack it."""
        return self.factor * batch.nodes[self.name] if self.name in batch.nodes else 0 * self.factor


class IndexedNodeHead(nn.Module):
    """y_i = output(network_k(h_i)) for the k-th node of each graph.

    All graphs have the same nodes in the same order.
    The networks are computed as one batched product.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, nodes: int) -> None:
        super().__init__()
        self.output = output
        self.nodes = nodes
        networks = [mlp([channels, *hidden_dims, output.width]) for _ in range(nodes)]
        layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
        self.weights = nn.ParameterList(torch.stack([one.weight.detach().T for one in of]) for of in zip(*layers))
        self.biases = nn.ParameterList(torch.stack([one.bias.detach() for one in of]) for of in zip(*layers))

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """Predict every node; InputError for another number of nodes."""
        counts = batch.counts("node")
        other = (counts != self.nodes).nonzero()
        if len(other):
            number = int(other[0])
            raise InputError(
                f"graph {number} of the batch has {int(counts[number])} nodes, and a head with per_index = {self.nodes} has one network "
                f"for each of {self.nodes}; give graphs of equal size and order, or leave per_index out"
            )
        # [nodes, graphs, channels], nodes of one graph first: the axis of the networks
        values = states[0].reshape(-1, self.nodes, states[0].shape[-1]).transpose(0, 1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            values = silu(values) if number else values
            values = torch.baddbmm(bias.unsqueeze(1), values, weight)  # [nodes, graphs, width]
        return self.output(values.transpose(0, 1).reshape(batch.num_nodes, self.output.width))


class ConservedHead(nn.Module):
    """y_i = a_i + (total - sum_j a_j) / nodes, with a from another head.

    The sum runs over the nodes of a graph, whose values therefore add up to its total.
    The total is a normalised graph input with the scale of the field, or zero. Variances stay those of the other head, which learns them for y.
    """

    def __init__(self, head: nn.Module, total: str) -> None:
        super().__init__()
        self.head = head
        self.total = total

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """A distribution per node, of the field's shape."""
        prediction: Number = self.head(states, graph, batch)
        values = prediction.mean
        ones = values.new_ones(values.shape[0], 1)
        shares = ones / graph.to_nodes(graph.sum_over_nodes(ones))  # [nodes, 1], which add up to 1
        lacking = -graph.sum_over_nodes(values)  # [graphs, *shape]
        if self.total:
            lacking = lacking + batch.graphs[self.total].reshape(lacking.shape)
        return prediction.shift_by(shares.view(-1, *[1] * (values.dim() - 1)) * graph.to_nodes(lacking))


class AttentionHead(nn.Module):
    """y = output(sum_i a_i network(h_i)), a = softmax_i(gate(h_i)).

    Weights a_i are positive and sum to one in a graph: a mean over nodes that stand for unequal parts, as grains do for volumes (global attention
    pooling, Li et al. 2016, arXiv:1511.05493, eq. 7). Deviates from the paper: weights share one sum, and values have no tanh. The
    value is intensive: a graph and two copies of it as one have the same value.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int) -> None:
        super().__init__()
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])
        self.gate = mlp([channels, *hidden_dims, 1])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per graph, of the field's shape."""
        weights = shares_of_nodes(self.gate(states[0]), graph)  # [nodes, 1]
        return self.output(graph.sum_over_nodes(weights * self.network(states[0])))


class GraphHead(nn.Module):
    """y = output(network(pool_i h_i)), or y = sum_i output(network(h_i)).

    Pools with the mean or the largest; one value per graph.
    With ``sum`` the value is extensive: two graphs side by side hold the sum of their values.
    """

    def __init__(self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, pool: Pool) -> None:
        super().__init__()
        self.pool: Pool = pool
        self.output = output
        self.network = mlp([channels, *hidden_dims, output.width])

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """A distribution per graph, of the field's shape."""
        if self.pool == "sum":
            return pool_numbers(self.output(self.network(states[0])), graph, batch, "sum")
        of_graph = pooled_nodes(states[0], graph, self.pool)  # [graphs, channels]
        return self.output(self.network(of_graph))


class EnergyHead(GraphHead):
    """y = sum_i output(network(h_i)), plus the repulsion of atoms nearer than in training (``CloseRange``)."""

    unit: Tensor

    def __init__(
        self, output: DistributionHead[Any], hidden_dims: list[int], channels: int, unit: float | None
    ) -> None:
        """Repel in a normalised ``unit``, in eV; not without one."""
        super().__init__(output, hidden_dims, channels, "sum")
        self.repels = unit is not None
        if unit is not None:
            self.register_buffer("unit", torch.tensor(unit), persistent=False)

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """The energy of every graph."""
        if graph.repulsion is None or not self.repels:
            return super().forward(states, graph, batch)
        learned: Point = self.output(self.network(states[0]))  # [nodes, *shape]
        repulsion = (graph.repulsion / self.unit).view(-1, *[1] * (learned.mean.dim() - 1))
        return pool_numbers(Point(mean=learned.mean + repulsion), graph, batch, "sum")


Symmetry = Literal["symmetric", "antisymmetric"]


class PairInputs(nn.Module):
    """z_ij = [h_j, h_i, e_ij, basis(r_ij)] of every edge j -> i.

    States of its ends, all edge inputs, and its length in the encoder's basis.
    """

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        self.edge_inputs = EdgeInputs(context.input_fields)
        self.basis = None if context.basis is None else context.basis.basis
        lengths = 0 if context.basis is None else context.basis.width - context.spec.edge_width - 1
        self.width = 2 * context.channels + self.edge_inputs.width + lengths

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Float[Tensor, "edges width"]:
        """The rows, in the order of the edges."""
        scalars = graph.filled({0: states[0]})[0]
        # [edges, channels] each
        parts = [spread(scalars, end) for end in (graph.topology.senders, graph.topology.receivers)]
        features = self.edge_inputs(batch)
        if features is not None:
            parts.append(features.to(scalars.dtype))
        if self.basis is not None:
            parts.append(self.basis(graph.lengths))  # [edges, radial]
        return torch.cat(parts, dim=-1)


class EdgeHead(nn.Module):
    """y_ij = output(network(z_ij)) of every edge.

    With a symmetry, it is joined with the raw outputs of the edge in the other direction.
    symmetric: f(i, j) + f(j, i), halved; antisymmetric: f(i, j) - f(j, i), halved, so that what flows from i to j is minus what flows
    from j to i (a variance stays the same). Both hold exactly, whatever the weights.
    """

    signs: Tensor

    def __init__(
        self,
        output: DistributionHead[Any],
        hidden_dims: list[int],
        context: HeadContext,
        symmetry: Symmetry | None,
        values: int,
    ) -> None:
        """Let the first ``values`` outputs change sign with the direction."""
        super().__init__()
        self.output = output
        self.symmetry = symmetry
        self.pairs = PairInputs(context)
        self.network = mlp([self.pairs.width, *hidden_dims, output.width])
        signs = torch.ones(output.width)
        if symmetry == "antisymmetric":
            signs[:values] = -1.0
        self.register_buffer("signs", signs, persistent=False)

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """Predict every edge; InputError for a missing reverse edge."""
        raw = self.network(self.pairs(states, graph, batch))  # [edges, outputs]
        if self.symmetry is not None:
            raw = 0.5 * (raw + self.signs.to(raw.dtype) * spread(raw, batch.reverse_edges))
        return self.output(raw)


class VectorHead(nn.Module):
    """y_i = GatedVectors(s_i, v_i): vectors that turn with the graph.

    On nodes, or summed or averaged over nodes.
    After the read-out of Schuett et al. 2021 (arXiv:2102.03150, figure 3). Deviates from the paper: a dipole has no term of charges times positions.
    """

    def __init__(
        self, field: Field, context: HeadContext, *, hidden_dims: list[int], pool: Pool | None, gaussian: bool
    ) -> None:
        super().__init__()
        channels = context.channels
        self.shape = field.shape
        self.pool = pool
        hidden = hidden_dims[0] if hidden_dims else channels
        outputs = field.width // context.spec.dim
        self.vectors = GatedVectors(channels, hidden, outputs)
        self.variance = mlp([channels, *hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """Predict vectors, with one variance for all directions."""
        vectors = self.vectors(states[0], states[1])  # [nodes, outputs, dim]
        prediction: Number = Point(mean=vectors.reshape(-1, *self.shape))
        if self.variance is not None:
            variance = positive(self.variance(states[0])).unsqueeze(-1).expand_as(vectors)  # [nodes, outputs, dim]
            prediction = Normal(mean=prediction.mean, variance=variance.reshape(-1, *self.shape))
        return prediction if self.pool is None else pool_numbers(prediction, graph, batch, self.pool)


class TensorHead(nn.Module):
    """Symmetric tensors that turn with the graph, on nodes or graphs.

    T_i = a_i 1 + sum_k g_ik (l_ik r_ik^T + r_ik l_ik^T) / 2 + sum_j w_ij d_ij d_ij^T, with numbers a, g, w from scalar states, vectors l, r from
    the vector states (where the encoder has any), and the directions d_ij of the edges that node i receives. The last term is there where the vectors
    vanish by symmetry (at the centre of an octahedron), too. The first two are
    after Schuett et al. 2021 (arXiv:2102.03150), the third is our own. Each term is symmetric, and turns as R T R^T.
    """

    def __init__(
        self, field: Field, context: HeadContext, *, hidden_dims: list[int], pool: Pool | None, gaussian: bool
    ) -> None:
        super().__init__()
        channels, dim = context.channels, context.spec.dim
        self.shape = field.shape
        self.pool = pool
        hidden = hidden_dims[0] if hidden_dims else channels
        outputs = field.width // dim**2
        self.isotropic = mlp([channels, *hidden_dims, outputs])
        self.products = GatedProducts(channels, hidden, outputs) if 1 in context.architecture.gives else None
        self.pairs = PairInputs(context)
        self.along = mlp([self.pairs.width, *hidden_dims, outputs])
        self.variance = mlp([channels, *hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """Predict tensors, with one variance for all components."""
        sizes: Float[Tensor, "nodes outputs"] = self.isotropic(states[0])
        identity = torch.eye(self.shape[-1], dtype=sizes.dtype, device=sizes.device)
        tensors = sizes[..., None, None] * identity  # [nodes, outputs, dim, dim]
        if self.products is not None:
            tensors = tensors + self.products(states[0], states[1])  # the second term
        # of the third term, which ends at the cutoff; [edges, outputs]
        weights = self.along(self.pairs(states, graph, batch))
        weights = weights if graph.envelope is None else weights * graph.envelope
        squares = graph.directions.unsqueeze(-1) * graph.directions.unsqueeze(-2)  # [edges, dim, dim]
        each = weights[..., None, None] * squares.unsqueeze(1)  # [edges, outputs, dim, dim]
        tensors = tensors + segment_sum(each, graph.topology.receivers, graph.num_nodes)
        prediction: Number = Point(mean=tensors.reshape(-1, *self.shape))
        if self.variance is not None:
            variance = positive(self.variance(states[0]))[..., None, None].expand_as(tensors)
            prediction = Normal(mean=prediction.mean, variance=variance.reshape(-1, *self.shape))
        return prediction if self.pool is None else pool_numbers(prediction, graph, batch, self.pool)


class ConvolvedHead(nn.Module):
    """y = head(layers(narrow(h))): a head behind layers of its own.

    The layers start from the encoder's scalars.
    Where heads read the channels of all layers, a linear map brings them back to the architecture's width first.
    """

    def __init__(self, head: nn.Module, context: HeadContext, layers: int) -> None:
        super().__init__()
        settings = with_layers(context.model, layers)
        inputs, width = context.channels, settings.hidden_dim
        self.narrow = nn.Identity() if inputs == width else nn.Linear(inputs, width)
        spec = replace(context.spec, degrees=frozenset({0}))
        self.layers: Architecture = context.architecture(settings, spec)
        wrap_layers(self.layers, settings, spec.degrees, conditioned=context.conditioned)
        self.head = head

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Distribution:
        """Predict from the new states."""
        inputs = graph.filled({0: self.narrow(states[0])})[0]  # [nodes, hidden_dim]
        states = self.layers.embed(inputs, graph)
        for layer in self.layers.layers:
            states = layer(graph.filled(states), graph)
        return self.head(self.layers.finish(states, graph), graph, batch)


def with_layers(model: ArchitectureSettings, layers: int) -> ArchitectureSettings:
    """Return settings with another number of layers; InputError if impossible."""
    changed = {**model.to_json(), **model.of_own_layers(layers)}
    settings: ArchitectureSettings = type(model).parse(changed, f"conv_layers = {layers}")
    return settings
