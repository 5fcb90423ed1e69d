"""Heads whose predictions turn with the graph: vectors, and symmetric tensors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.graphs.field import Field
from hydragnn.kernels import segment_sum
from hydragnn.layers import GatedProducts, GatedVectors, MessageGraph, Pool, States, mlp
from hydragnn.models.distributions import Normal, Number, Point
from hydragnn.models.edge_heads import PairInputs
from hydragnn.models.head_context import HeadContext
from hydragnn.models.head_kinds import TensorHeadSettings, VectorHeadSettings
from hydragnn.models.outputs import pool_numbers, positive


class VectorHead(nn.Module):
    """y_i = GatedVectors(s_i, v_i), on nodes or (summed or averaged over nodes) on graphs: vectors that turn with the graph.

    After the read-out of Schuett et al. 2021 (arXiv:2102.03150, figure 3). Deviates from the paper: a dipole has no term of charges times positions.
    """

    def __init__(self, settings: VectorHeadSettings, field: Field, context: HeadContext) -> None:
        super().__init__()
        channels = context.channels
        self.shape = field.shape
        self.pool: Pool | None = (settings.pool or "mean") if field.on == "graph" else None
        hidden = settings.hidden_dims[0] if settings.hidden_dims else channels
        outputs = field.width // context.dim
        self.vectors = GatedVectors(channels, hidden, outputs)
        gaussian = settings.distribution == "gaussian"
        self.variance = mlp([channels, *settings.hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """Vectors of the field's shape; the variance of a vector is the same in all directions."""
        vectors = self.vectors(states[0], states[1])  # [nodes, outputs, dim]
        prediction: Number = Point(mean=vectors.reshape(-1, *self.shape))
        if self.variance is not None:
            spread = positive(self.variance(states[0])).unsqueeze(-1).expand_as(vectors)  # [nodes, outputs, dim]
            prediction = Normal(mean=prediction.mean, variance=spread.reshape(-1, *self.shape))
        return prediction if self.pool is None else pool_numbers(prediction, batch, self.pool)


class TensorHead(nn.Module):
    """Symmetric tensors that turn with the graph, on nodes or (summed or averaged over nodes) on graphs.

    T_i = a_i 1 + sum_k g_ik (l_ik r_ik^T + r_ik l_ik^T) / 2 + sum_j w_ij d_ij d_ij^T, with numbers a, g, w from scalar states, vectors l, r from
    the vector states (where the encoder has any), and the directions d_ij of the edges that node i receives. The last term is there where the vectors
    vanish by symmetry (at the centre of an octahedron), too. The first two are
    after Schuett et al. 2021 (arXiv:2102.03150), the third is our own. Each term is symmetric, and turns as R T R^T.
    """

    def __init__(self, settings: TensorHeadSettings, field: Field, context: HeadContext) -> None:
        super().__init__()
        channels, dim = context.channels, context.dim
        self.shape = field.shape
        self.pool: Pool | None = (settings.pool or "mean") if field.on == "graph" else None
        hidden = settings.hidden_dims[0] if settings.hidden_dims else channels
        outputs = field.width // dim**2
        self.isotropic = mlp([channels, *settings.hidden_dims, outputs])
        vectors = 1 in context.architecture.gives
        self.products = GatedProducts(channels, hidden, outputs) if vectors else None
        self.pairs = PairInputs(context)
        self.along = mlp([self.pairs.width, *settings.hidden_dims, outputs])
        gaussian = settings.distribution == "gaussian"
        self.variance = mlp([channels, *settings.hidden_dims, outputs]) if gaussian else None

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Number:
        """Tensors of the field's shape; the variance of a tensor is the same for all its components."""
        sizes: Float[Tensor, "nodes outputs"] = self.isotropic(states[0])
        dim = self.shape[-1]
        tensors = sizes[..., None, None] * torch.eye(
            dim, dtype=sizes.dtype, device=sizes.device
        )  # [nodes, outputs, dim, dim]
        if self.products is not None:
            tensors = tensors + self.products(states[0], states[1])  # the second term
        tensors = tensors + self.along_edges(states, graph, batch)
        prediction: Number = Point(mean=tensors.reshape(-1, *self.shape))
        if self.variance is not None:
            spread = positive(self.variance(states[0]))[..., None, None].expand_as(tensors)
            prediction = Normal(mean=prediction.mean, variance=spread.reshape(-1, *self.shape))
        return prediction if self.pool is None else pool_numbers(prediction, batch, self.pool)

    def along_edges(
        self, states: States, graph: MessageGraph, batch: GraphBatch
    ) -> Float[Tensor, "nodes outputs dim dim"]:
        """The third term: squares of the directions of a node's edges, which end at the cutoff as messages do."""
        weights = self.along(self.pairs(states, graph, batch))  # [edges, outputs]
        envelope = graph.envelope
        weights = weights if envelope is None else weights * envelope
        directions = graph.directions
        squares = directions.unsqueeze(-1) * directions.unsqueeze(-2)  # [edges, dim, dim]
        each = weights[..., None, None] * squares.unsqueeze(1)  # [edges, outputs, dim, dim]
        return segment_sum(each, graph.topology.receivers, graph.num_nodes)
