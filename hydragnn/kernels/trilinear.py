"""Weighted sums over edges and products of their ends.

All three ops are partial maps of T(w, x, g) = sum over edges of <w_e * x_sender, g_receiver>:

    row_sum(x, w)_i      = sum of w_e * x_sender over the edges that i receives
    column_sum(g, w)_j   = sum of w_e * g_receiver over the edges that j sends
    edge_product(x, g)_e = x_sender * g_receiver, summed to the shape of a weight

With u for the incoming gradient, their derivatives are

    row_sum         x' = column_sum(u, w)    w' = edge_product(x, u)
    column_sum      g' = row_sum(u, w)       w' = edge_product(u, g)
    edge_product    x' = column_sum(g, u)    g' = row_sum(x, u)

The tables at the end of the file state them once. Energies, forces and training on forces need no other kernel.

Weights are absent (1), one number per edge ``[edges]``, one per edge and channel ``[edges, channels]``, or one per edge and head
``[edges, heads, 1]`` of states with channels ``[heads, width]``. States are ``[nodes, channels]`` or, for vectors,
``[nodes, dim, channels]``; axes share the weight. Edges may share weights (``Topology.sharing``): then there is one per pair.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import INCOMING, Family, FamilyMember, Gradients, Partial, forms_of, multilinear
from hydragnn.kernels.pairs import gives_weights, reads_weights
from hydragnn.kernels.triton import forms as triton_forms

Per = Literal["edge", "head", "channel"]
"""Unit that has a weight of its own."""


def gather_multiply_sum(
    x: Float[Tensor, "columns *features"], weight: Float[Tensor, "items *channels"] | None, topology: Topology
) -> Float[Tensor, "rows *features"]:
    """Return each node's weighted sum of the states of its senders.

    A node without edges receives zeros. Atomics: none, and the same bits again; on CUDA and ROCm long rows are split and their
    parts joined in one order.

    >>> edges = Topology.square(torch.tensor([1, 2]), torch.tensor([0, 0]), 3)
    >>> gather_multiply_sum(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([10.0, 1.0]), edges).squeeze(1)
    tensor([23.,  0.,  0.])
    """
    if weight is None:
        return PLAIN("row_sum", (x,), topology)
    return _by_weight(weight)("row_sum", (x, weight), topology)


def scatter_multiply_sum(
    g: Float[Tensor, "rows *features"], weight: Float[Tensor, "items *channels"] | None, topology: Topology
) -> Float[Tensor, "columns *features"]:
    """Return each node's weighted sum of the states of its receivers.

    It is the transpose of ``gather_multiply_sum``. Atomics: as in ``gather_multiply_sum``.
    """
    if weight is None:
        return PLAIN("column_sum", (g,), topology)
    return _by_weight(weight)("column_sum", (g, weight), topology)


def edge_product(
    x: Float[Tensor, "columns *features"], g: Float[Tensor, "rows *features"], topology: Topology, per: Per
) -> Float[Tensor, "items *channels"]:
    """Return the product of the states of sender and receiver.

    It is summed over axes, and over channels except those that ``per`` keeps. They are ``[edges]``, ``[edges, heads, 1]`` or
    ``[edges, channels]``, as weights are. Atomics: none; its derivatives have those of ``gather_multiply_sum``.
    """
    return {"edge": PER_EDGE, "head": PER_HEAD, "channel": PER_CHANNEL}[per]("edge_product", (x, g), topology)


def _by_weight(weight: Tensor) -> Family:
    return (PER_EDGE, PER_CHANNEL, PER_HEAD)[weight.dim() - 1]


def plain_row_sum(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum weighted states of senders in plain torch."""
    if weight is None or weight.dim() == 1:
        return segment_bag(x, topology.senders, topology.row_offsets, weight)
    messages = x.index_select(0, topology.senders) * _align(weight, x)  # [edges, *features]
    return messages.new_zeros(topology.num_rows, *x.shape[1:]).index_add_(0, topology.receivers, messages)


def plain_column_sum(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """Sum weighted states of receivers in plain torch, as ``plain_row_sum``."""
    if weight is None or weight.dim() == 1:
        ordered = None if weight is None else weight.index_select(0, topology.by_sender)
        return segment_bag(g, topology.receivers_by_sender, topology.column_offsets, ordered)
    messages = g.index_select(0, topology.receivers) * _align(weight, g)  # [edges, *features]
    return messages.new_zeros(topology.num_columns, *g.shape[1:]).index_add_(0, topology.senders, messages)


def plain_edge_product(x: Tensor, g: Tensor, topology: Topology, per: Per) -> Tensor:
    """Multiply the states of both ends in plain torch."""
    if per == "head":
        return _product_over_axes(x, g, topology, 2).sum(-1, keepdim=True)
    product = _product_over_axes(x, g, topology, 1)  # [edges, channels]
    return product if per == "channel" else product.sum(-1)


def _product_over_axes(x: Tensor, g: Tensor, topology: Topology, last: int) -> Tensor:
    """Multiply both ends and sum over axes before the last."""
    if x.dim() == 1 + last:
        return x.index_select(0, topology.senders) * g.index_select(0, topology.receivers)
    total: Tensor | None = None
    for sent, received in zip(x.flatten(1, -1 - last).unbind(1), g.flatten(1, -1 - last).unbind(1)):
        lhs = sent.index_select(0, topology.senders)  # [edges, channels]
        rhs = received.index_select(0, topology.receivers)
        total = lhs * rhs if total is None else total.addcmul_(lhs, rhs)
    assert total is not None
    return total


def segment_bag(x: Tensor, index: Tensor, offsets: Tensor, weight: Tensor | None) -> Tensor:
    """Sum rows of x per segment by ``embedding_bag``.

    On CPUs it is 1.3 to 3 times faster than sparse CSR @ x.
    """
    if index.shape[0] == 0:
        return x.new_zeros(offsets.shape[0] - 1, *x.shape[1:])
    flat = x.dim() == 2  # of small graphs a step is mostly calls, of which these are some
    table = x if flat else x.reshape(x.shape[0], x.shape[1:].numel())  # [columns, product of features]
    inputs = None if weight is None else weight.to(table.dtype)
    summed = torch.embedding_bag(table, index, offsets, False, 0, False, inputs, True)[0]  # sums; offsets have an end
    return summed if flat else summed.view(-1, *x.shape[1:])


def _align(weight: Tensor, x: Tensor) -> Tensor:
    """Return the weight with length-1 axes for axes of x."""
    return weight.view(weight.shape[0], *[1] * (x.dim() - weight.dim()), *weight.shape[1:])


WEIGHT = 1  # position among the tensors of both sums
ROW_SUM_FORMS = forms_of(reads_weights(plain_row_sum, WEIGHT), cpu.row_sum, triton_forms.row_sum)
COLUMN_SUM_FORMS = forms_of(reads_weights(plain_column_sum, WEIGHT), cpu.column_sum, triton_forms.column_sum)
EDGE_PRODUCT_FORMS = forms_of(
    gives_weights(plain_edge_product, 2), cpu.edge_product, gives_weights(triton_forms.edge_product, 2)
)


def _trilinear(per: Per) -> Family:
    """Return the family of three ops for one kind of weight."""
    products = {name: partial(form, per=per) for name, form in EDGE_PRODUCT_FORMS.items()}

    def in_one_pass(gradients: Gradients) -> Mapping[str, Gradients]:
        """Return the form for all tensors; none for weights per edge."""
        return {} if per == "edge" else {"cpu": gradients}

    of_rows, of_columns = (partial(cpu.sum_gradients, of_rows=which) for which in (True, False))
    product_along = gives_weights(partial(triton_forms.edge_product, per=per), 2)
    return multilinear(
        {"x": "columns", "g": "rows", "weight": "weights"},
        {
            "g": Partial("row_sum", ROW_SUM_FORMS, triton_forms.row_sum, in_one_pass(of_rows)),
            "x": Partial("column_sum", COLUMN_SUM_FORMS, triton_forms.column_sum, in_one_pass(of_columns)),
            "weight": Partial("edge_product", products, product_along, in_one_pass(cpu.edge_product_gradients)),
        },
    )


PER_EDGE, PER_HEAD, PER_CHANNEL = _trilinear("edge"), _trilinear("head"), _trilinear("channel")
PLAIN = Family(
    {
        "row_sum": FamilyMember(
            forms={name: lambda x, t, form=form: form(x, None, t) for name, form in ROW_SUM_FORMS.items()},
            derivatives=(("column_sum", (INCOMING,)),),
            items=("columns",),
        ),
        "column_sum": FamilyMember(
            forms={name: lambda g, t, form=form: form(g, None, t) for name, form in COLUMN_SUM_FORMS.items()},
            derivatives=(("row_sum", (INCOMING,)),),
            items=("rows",),
        ),
    }
)
