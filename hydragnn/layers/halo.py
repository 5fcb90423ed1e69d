"""Exchanges of states between the ranks that share graphs, with all derivatives.

Autograd calls the adjoint of an exchange when the gradients that it needs are there, and leaves it out where nothing depends on it. On a
rank without edges this would be at another time than on its peers, or never, and they would wait. So every exchange takes a token and gives the
next one, a zero that is added to the predictions at the end and depends on a weight at the start: all exchanges of a pass, of the
pass for forces and of the pass through both lie on one chain, in the same order on every rank.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from hydragnn.graphs.halo import Halo
from hydragnn.kernels import segment_max, segment_sum


class Exchange(Function):
    """Exchange of rows; its adjoint is the exchange back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, halo: Halo, back: bool) -> tuple[Tensor, Tensor]:
        """Send rows to their copies, or ``back`` to their owners."""
        ctx.halo, ctx.back = halo, back
        counts = (halo.copies_from, halo.sent_to) if back else (halo.sent_to, halo.copies_from)
        return halo.peers.swap(rows.contiguous(), *counts), torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the rows, sent the other way."""
        rows, token = Exchange.apply(*gradients, ctx.halo, not ctx.back)
        return rows, token, None, None


class Total(Function):
    """Sum over the ranks, on each of them; its adjoint is itself."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, halo: Halo) -> tuple[Tensor, Tensor]:
        """Return the sum, and the next token."""
        ctx.halo = halo
        return halo.peers.total(values.contiguous()), torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the sum of the gradients of all ranks."""
        values, token = Total.apply(*gradients, ctx.halo)
        return values, token, None


class HaloExchange:
    """Exchanges of one pass through a model, one after the other.

    All travel in the numbers of the weights, since under autocast those of a rank without nodes or edges may be others than its peers'.
    """

    def __init__(self, halo: Halo, anchor: Float[Tensor, "*any"]) -> None:
        """Begin a chain of tokens that depends on ``anchor``, a weight."""
        self.halo = halo
        self.start: Tensor = anchor.reshape(-1)[:0].sum() if anchor.requires_grad else anchor.new_zeros(())
        if not self.start.requires_grad:
            self.start.requires_grad_()
        self.token = self.start

    def fill(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Return states ``[nodes, ...]`` with copies from their owners, by one exchange."""
        halo = self.halo
        if not halo.crosses:
            return list(states)
        rows = torch.cat([one.index_select(0, halo.sent).flatten(1) for one in states], dim=1)  # [sent, all features]
        rows, self.token = Exchange.apply(rows.to(self.start.dtype), self.token, halo, False)
        parts = rows.split([math.prod(one.shape[1:]) for one in states], dim=1)
        copies = [part.reshape(len(part), *one.shape[1:]).to(one.dtype) for one, part in zip(states, parts)]
        return [one.index_copy(0, halo.rows, own) for one, own in zip(states, copies)]

    def sum_to_owners(self, values: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        """Return values with those of copies added to their owners' rows."""
        halo = self.halo
        if not halo.crosses:
            return values
        rows = values.index_select(0, halo.rows).to(self.start.dtype)
        arrived, self.token = Exchange.apply(rows, self.token, halo, True)
        return values.index_add(0, halo.sent, arrived.to(values.dtype))

    def total(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the sum over the ranks."""
        result, self.token = Total.apply(values.to(self.start.dtype), self.token, self.halo)
        return result

    def tied(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the values, whose gradient passes through all exchanges."""
        return values + self.token

    def owned(self, values: Float[Tensor, "nodes *features"], other: float = 0.0) -> Float[Tensor, "nodes *features"]:
        """Return the values with ``other`` in the rows of copies."""
        return torch.where(self.halo.owned.view(-1, *[1] * (values.dim() - 1)), values, other)

    def gradients(
        self, pairs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], *, differentiable: bool
    ) -> Sequence[Tensor]:
        """Return the gradients of outputs with seeds by each rank's inputs."""
        own = self.token if differentiable else torch.zeros_like(self.token)
        (outputs, seeds), ends = zip(*pairs, (self.token, own)), [*inputs, self.start]
        how = {"create_graph": differentiable, "retain_graph": True, "materialize_grads": True}
        *gradients, token = torch.autograd.grad(outputs, ends, seeds, **how)
        self.token = 0 * token  # which outputs that are tied would make another number where nothing is exchanged
        return gradients

    def sum_over_nodes(self, values: Tensor, owner: Tensor, num_graphs: int) -> Float[Tensor, "graphs *features"]:
        """Return the sum over the nodes of every graph, on all ranks."""
        return self.total(segment_sum(self.owned(values), owner, num_graphs))

    def largest_of_nodes(self, values: Tensor, owner: Tensor, num_graphs: int) -> Float[Tensor, "graphs *features"]:
        """Return the largest value over the nodes of every graph, or zero."""
        peers = self.halo.peers
        counts = segment_sum(self.owned(values.new_ones(len(values), 1)), owner, num_graphs)  # [graphs, 1]
        largest = segment_max(self.owned(values, -math.inf), owner, num_graphs)
        absent = (counts == 0).view(-1, *[1] * (values.dim() - 1))
        of_ranks = [torch.zeros_like(largest)] * peers.size
        of_ranks[peers.rank] = largest.masked_fill(absent, -math.inf)
        all_largest = self.total(torch.stack(of_ranks)).amax(0)  # [ranks, graphs, *features] -> [graphs, *features]
        return torch.where(all_largest == -math.inf, 0.0, all_largest)
