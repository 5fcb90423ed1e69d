"""The closed family: gather-multiply-sum (A), its transpose (B) and the edge-wise product (C).

All three are partial maps of the trilinear form T(w, x, g) = sum over edges of <w_e * x_sender, g_receiver>, so the
derivative of each is made of the other two: energy, forces and the training of forces need no further kernel and no
advanced indexing. The tables at the end of the file say so once, with the arguments in the order A(x, w), B(g, w), C(x, g).

    A(w, x)_i = sum of w_e * x_sender over the edges that i receives     dA: w' = C(x, u), x' = B(w, u)
    B(w, g)_j = sum of w_e * g_receiver over the edges that j sends      dB: w' = C(u, g), g' = A(w, u)
    C(x, g)_e = x_sender * g_receiver, summed to the shape of a weight   dC: x' = B(u, g), g' = A(u, x)

Weights are absent (1), one number per edge ``[edges]``, one per edge and channel ``[edges, channels]``, or one per edge and head
``[edges, heads, 1]`` of states whose channels are ``[heads, width]``; states are ``[nodes, channels]`` or, for vectors, ``[nodes, dim, channels]`` with the weight shared by the axes. Where the topology says that
edges share weights (``Topology.sharing``), there is one for each pair instead.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, FUSABLE, INCOMING, Family, Form, Gradients, Member, on_accelerators
from hydragnn.kernels.pairs import gives_weights, reads_weights
from hydragnn.kernels.triton import forms as triton_forms

Per = Literal["edge", "head", "channel"]
"""What has a weight of its own."""


def gather_multiply_sum(
    x: Float[Tensor, "columns *features"], weight: Float[Tensor, "items *channels"] | None, topology: Topology
) -> Float[Tensor, "rows *features"]:
    """Each node's sum of what its senders hold, times a weight per edge; a node without edges receives zeros.

    Atomics: none, and the same bits again; on CUDA and ROCm long rows are split and their parts joined in one order.

    >>> edges = Topology.square(torch.tensor([1, 2]), torch.tensor([0, 0]), 3)
    >>> gather_multiply_sum(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([10.0, 1.0]), edges).squeeze(1)
    tensor([23.,  0.,  0.])
    """
    if weight is None:
        return PLAIN("A", (x,), topology)
    return _by_weight(weight)("A", (x, weight), topology)


def scatter_multiply_sum(
    g: Float[Tensor, "rows *features"], weight: Float[Tensor, "items *channels"] | None, topology: Topology
) -> Float[Tensor, "columns *features"]:
    """The transpose of ``gather_multiply_sum``: each node's sum over the edges it sends, of what the receivers hold.

    Atomics: as in ``gather_multiply_sum``.
    """
    if weight is None:
        return PLAIN("B", (g,), topology)
    return _by_weight(weight)("B", (g, weight), topology)


def edge_product(
    x: Float[Tensor, "columns *features"], g: Float[Tensor, "rows *features"], topology: Topology, per: Per
) -> Float[Tensor, "items *channels"]:
    """What sender and receiver hold, multiplied; summed over axes of vectors, and over channels but those that ``per`` keeps.

    They are ``[edges]``, ``[edges, heads, 1]`` or ``[edges, channels]``, as weights are.

    Atomics: none; its derivatives have those of ``gather_multiply_sum``.
    """
    return {"edge": PER_EDGE, "head": PER_HEAD, "channel": PER_CHANNEL}[per]("C", (x, g), topology)


def _by_weight(weight: Tensor) -> Family:
    return (PER_EDGE, PER_CHANNEL, PER_HEAD)[weight.dim() - 1]


def sum_to_rows(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """A in plain torch; ``embedding_bag``, and ``index_add_`` where a weight has channels."""
    if weight is None or weight.dim() == 1:
        return segment_bag(x, topology.senders, topology.row_offsets, weight)
    messages = x.index_select(0, topology.senders) * _align(weight, x)  # [edges, *features]
    return messages.new_zeros(topology.num_rows, *x.shape[1:]).index_add_(0, topology.receivers, messages)


def sum_to_columns(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """B in plain torch; ``embedding_bag``, and ``index_add_`` where a weight has channels."""
    if weight is None or weight.dim() == 1:
        ordered = None if weight is None else weight.index_select(0, topology.by_sender)
        return segment_bag(g, topology.receivers_by_sender, topology.column_offsets, ordered)
    messages = g.index_select(0, topology.receivers) * _align(weight, g)  # [edges, *features]
    return messages.new_zeros(topology.num_columns, *g.shape[1:]).index_add_(0, topology.senders, messages)


def product_of_ends(x: Tensor, g: Tensor, topology: Topology, per: Per) -> Tensor:
    """C in plain torch."""
    if per == "head":
        return _product_over_axes(x, g, topology, 2).sum(-1, keepdim=True)
    product = _product_over_axes(x, g, topology, 1)  # [edges, channels]
    return product if per == "channel" else product.sum(-1)


def _product_over_axes(x: Tensor, g: Tensor, topology: Topology, last: int) -> Tensor:
    """x_sender * g_receiver summed over axes before the last, one axis at a time so that temporaries stay small."""
    if x.dim() == 1 + last:
        return x.index_select(0, topology.senders) * g.index_select(0, topology.receivers)
    total: Tensor | None = None
    for sent, received in zip(x.flatten(1, -1 - last).unbind(1), g.flatten(1, -1 - last).unbind(1)):
        left = sent.index_select(0, topology.senders)  # [edges, channels]
        right = received.index_select(0, topology.receivers)
        total = left * right if total is None else total.addcmul_(left, right)
    assert total is not None
    return total


def segment_bag(x: Tensor, index: Tensor, offsets: Tensor, weight: Tensor | None) -> Tensor:
    """Rows of x summed per segment; embedding_bag does on CPU what sparse CSR @ x does, 1.3 to 3 times faster."""
    if index.shape[0] == 0:
        return x.new_zeros(offsets.shape[0] - 1, *x.shape[1:])
    flat = x.dim() == 2  # of small graphs a step is mostly calls, of which these are some
    table = x if flat else x.reshape(x.shape[0], x.shape[1:].numel())  # [columns, product of features]
    given = None if weight is None else weight.to(table.dtype)
    summed = torch.embedding_bag(table, index, offsets, False, 0, False, given, True)[0]  # sums; offsets have an end
    return summed if flat else summed.view(-1, *x.shape[1:])


def add_to_rows(x: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """A as a compiler fuses it: gather, multiply and add, which becomes one loop over the edges."""
    messages = _times(x.index_select(0, topology.senders), weight)  # [edges, *features]
    return messages.new_zeros(topology.num_rows, *x.shape[1:]).index_add(0, topology.receivers, messages)


def add_to_columns(g: Tensor, weight: Tensor | None, topology: Topology) -> Tensor:
    """B as a compiler fuses it."""
    messages = _times(g.index_select(0, topology.receivers), weight)  # [edges, *features]
    return messages.new_zeros(topology.num_columns, *g.shape[1:]).index_add(0, topology.senders, messages)


def multiply_ends(x: Tensor, g: Tensor, topology: Topology, per: Per) -> Tensor:
    """C as a compiler fuses it."""
    product = x.index_select(0, topology.senders) * g.index_select(0, topology.receivers)  # [edges, *features]
    axes = [*range(1, x.dim() - {"edge": 0, "head": 2, "channel": 1}[per])]
    product = product.sum(axes) if axes else product
    return product.sum(-1, keepdim=True) if per == "head" else product


def _times(messages: Tensor, weight: Tensor | None) -> Tensor:
    """Messages times the weight of their edge, which may have channels."""
    if weight is None:
        return messages
    if weight.dim() == 1:  # of the dtype of states, as in ``segment_bag``
        return messages * weight.to(messages.dtype).view(-1, *[1] * (messages.dim() - 1))
    return messages * _align(weight, messages)


def _align(weight: Tensor, x: Tensor) -> Tensor:
    """The weight per channel or head with an axis of length 1 where x has vector axes."""
    return weight.view(weight.shape[0], *[1] * (x.dim() - weight.dim()), *weight.shape[1:])


def _without_weight(form: Form) -> Form:
    return lambda x, topology: form(x, None, topology)


def _reading(plain: Form, fusable: Form, compiled: Callable[..., Tensor | None], triton: Form) -> Mapping[str, Form]:
    """Forms of a sum, all of which read weights that edges share; compiled loops and Triton by themselves."""
    plain = reads_weights(plain, WEIGHT)
    return {
        ANYWHERE: plain,
        FUSABLE: reads_weights(fusable, WEIGHT),
        "cpu": cpu.or_plain(compiled, plain),
        **on_accelerators(triton),
    }


WEIGHT = 1  # its place among what A and B take
A_FORMS = _reading(sum_to_rows, add_to_rows, cpu.sum_to_rows, triton_forms.sum_to_rows)
B_FORMS = _reading(sum_to_columns, add_to_columns, cpu.sum_to_columns, triton_forms.sum_to_columns)
C_FORMS: Mapping[str, Form] = {
    ANYWHERE: gives_weights(product_of_ends, 2),
    FUSABLE: gives_weights(multiply_ends, 2),
    "cpu": cpu.or_plain(cpu.product_of_ends, gives_weights(product_of_ends, 2)),
    **on_accelerators(gives_weights(triton_forms.product_of_ends, 2)),
}


def _trilinear(per: Per) -> Family:
    """A, B and C with one kind of weight, each the derivative of the others."""
    products = {name: partial(form, per=per) for name, form in C_FORMS.items()}
    together: Mapping[str, Mapping[str, Gradients]] = {name: {} for name in TOGETHER} if per == "edge" else TOGETHER
    return Family(
        {
            "A": Member(
                forms=A_FORMS,
                derivatives=(("B", (INCOMING, 1)), ("C", (0, INCOMING))),
                together=together["A"],
                items=("columns", "weights"),
            ),
            "B": Member(
                forms=B_FORMS,
                derivatives=(("A", (INCOMING, 1)), ("C", (INCOMING, 0))),
                together=together["B"],
                items=("rows", "weights"),
            ),
            "C": Member(
                forms=products,
                derivatives=(("B", (1, INCOMING)), ("A", (0, INCOMING))),
                together=together["C"],
                items=("columns", "rows"),
            ),
        }
    )


TOGETHER: Mapping[str, Mapping[str, Gradients]] = {
    "A": {"cpu": cpu.gradients_of_row_sums},
    "B": {"cpu": cpu.gradients_of_column_sums},
    "C": {"cpu": cpu.gradients_of_products},
}
"""One pass over the edges for what all tensors of an op receive, with weights per channel or head."""
PER_EDGE, PER_HEAD, PER_CHANNEL = _trilinear("edge"), _trilinear("head"), _trilinear("channel")
PLAIN = Family(
    {
        "A": Member(
            forms={name: _without_weight(form) for name, form in A_FORMS.items()},
            derivatives=(("B", (INCOMING,)),),
            items=("columns",),
        ),
        "B": Member(
            forms={name: _without_weight(form) for name, form in B_FORMS.items()},
            derivatives=(("A", (INCOMING,)),),
            items=("rows",),
        ),
    }
)
