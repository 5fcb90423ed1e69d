"""Layers of several models of one shape at once.

Weights have a leading axis of members; rows are ordered by member.

A batch that holds the graphs of all members end to end, as many nodes, edges and graphs of each, goes through such layers as
one larger batch; sums over edges need no change, since no edge joins two members.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from hydragnn.layers.by_class import Classes, ClassTable, LinearByClass, rows_of
from hydragnn.layers.inputs import NodeInputs


class NotStackable(ValueError):
    """These models cannot be computed as one."""


def by_member(values: Tensor, members: int) -> Tensor:
    """Return rows ``[members, rows of each, ...]``; NotStackable if their numbers differ."""
    if values.shape[0] % members:
        raise NotStackable(f"{values.shape[0]} rows do not belong to {members} members in equal parts")
    return values.reshape(members, values.shape[0] // members, *values.shape[1:])


def products(layer: nn.Linear, values: Float[Tensor, "rows *axes inputs"]) -> Float[Tensor, "rows *axes outputs"]:
    """Return W_m x + b_m for the rows of member m."""
    weight = layer.weight.transpose(1, 2)  # [members, inputs, outputs]
    rows = by_member(values, weight.shape[0]).flatten(1, -2)  # [members, rows of each, inputs]
    bias = layer._parameters["bias"]  # what nn.Linear says of its type leaves out None
    result = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return result.view(*values.shape[:-1], weight.shape[-1])


class StackedLinear(nn.Linear):
    """y = W_m x + b_m on the rows of member m."""

    def forward(self, values: Float[Tensor, "rows *axes inputs"]) -> Float[Tensor, "rows *axes outputs"]:
        """The outputs of all members."""
        return products(self, values)


class StackedLinearByClass(LinearByClass):
    """Linear maps per member and class: y = W_mc x + b_mc."""

    def forward(  # type: ignore[override]  # a map of rows and their classes
        self, values: Float[Tensor, "rows inputs"], classes: Classes
    ) -> Float[Tensor, "rows outputs"]:
        """Return the result of the member and class of every row."""
        return self.select(products(self, values), classes)


class StackedEmbedding(nn.Embedding):
    """Row T_m[class] of the items of member m."""

    def forward(self, classes: Int[Tensor, " *items"]) -> Float[Tensor, "*items channels"]:
        """The rows of all members' items."""
        members, count, channels = self.weight.shape
        first = torch.arange(0, members * count, count, device=classes.device)
        # [members, items of each, ...]
        shifted = by_member(classes, members) + first.view(-1, *[1] * classes.ndim)
        return rows_of(self.weight.reshape(members * count, channels), shifted.flatten(0, 1))


class StackedLayerNorm(nn.LayerNorm):
    """y = g_m norm(x) + b_m on the rows of member m."""

    def forward(self, values: Float[Tensor, "rows channels"]) -> Float[Tensor, "rows channels"]:
        """The normalised rows of all members."""
        rows = by_member(layer_norm(values, self.normalized_shape, eps=self.eps), self.weight.shape[0])
        return (rows * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)).flatten(0, 1)


class StackedNodeInputs(NodeInputs):
    """First states of nodes, from an origin of every member."""

    def origins(self, nodes: int) -> Float[Tensor, "nodes channels"]:
        """The state from which every node starts."""
        members, channels = self.origin.shape
        return self.origin.unsqueeze(1).expand(-1, nodes // members, -1).reshape(nodes, channels)


STACKED: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Linear: StackedLinear,
    LinearByClass: StackedLinearByClass,
    nn.Embedding: StackedEmbedding,
    ClassTable: StackedEmbedding,
    nn.LayerNorm: StackedLayerNorm,
    NodeInputs: StackedNodeInputs,
}
"""The layers that own weights, and what each becomes: the same, but that all its weights have a leading axis of members."""
