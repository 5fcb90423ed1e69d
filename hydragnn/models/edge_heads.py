"""Predictions of edges, from the states of their two ends and what is known of the edge itself."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydragnn.graphs.batch import GraphBatch
from hydragnn.kernels import spread
from hydragnn.layers import EdgeInputs, MessageGraph, States, mlp
from hydragnn.models.distributions import Distribution
from hydragnn.models.head_context import HeadContext
from hydragnn.models.outputs import DistributionHead

Symmetry = Literal["symmetric", "antisymmetric"]


class PairInputs(nn.Module):
    """z_ij = [h_j, h_i, e_ij, basis(r_ij)] of every edge j -> i: states of its ends, all edge inputs, and its length in the encoder's basis."""

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        self.edge_inputs = EdgeInputs(context.description.input_fields)
        self.basis = None if context.basis is None else context.basis.basis
        lengths = 0 if context.basis is None else context.basis.width - context.edge_width - 1
        self.width = 2 * context.channels + self.edge_inputs.width + lengths

    def forward(self, states: States, graph: MessageGraph, batch: GraphBatch) -> Float[Tensor, "edges width"]:
        """The rows, in the order of the edges."""
        scalars = states[0]
        # [edges, channels] each
        parts = [spread(scalars, end) for end in (graph.topology.senders, graph.topology.receivers)]
        features = self.edge_inputs(batch)
        if features is not None:
            parts.append(features.to(scalars.dtype))
        if self.basis is not None:
            parts.append(self.basis(graph.lengths))  # [edges, radial]
        return torch.cat(parts, dim=-1)


class EdgeHead(nn.Module):
    """y_ij = output(network(z_ij)) of every edge; with a symmetry, joined with the raw outputs of the same edge in the other direction.

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
        """``values`` is how many of the outputs, from the first on, change their sign with the direction."""
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
        """A distribution per edge, of the field's shape; InputError for an edge without its reverse where there is a symmetry."""
        raw = self.network(self.pairs(states, graph, batch))  # [edges, outputs]
        if self.symmetry is not None:
            raw = 0.5 * (raw + self.signs.to(raw.dtype) * spread(raw, batch.reverse_edges))
        prediction: Distribution = self.output(raw)
        return prediction
