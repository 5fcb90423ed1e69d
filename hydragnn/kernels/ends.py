"""Sums of both ends of an edge and of the edge.

    gather_add(g, x, e)_e = g_receiver + x_sender + e_e    g' = sum over received edges of u, x' = over sent edges, e' = u

The ops are linear, so their derivatives read no tensor again. Where edges share items (``Topology.sharing``), e_e is the item of
the edge's pair, and e' is the sum over the edges of a pair.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, FamilyMember, Form, forms_of, on_accelerators
from hydragnn.kernels.pairs import gives_weights, reads_weights
from hydragnn.kernels.per_receiver import sum_to_receivers
from hydragnn.kernels.triton import forms as triton_forms


def gather_add(
    received: Float[Tensor, "rows *features"] | None,
    sent: Float[Tensor, "columns *features"],
    edges: Float[Tensor, "items *features"] | None,
    topology: Topology,
) -> Float[Tensor, "edges *features"]:
    """Return the sum of receiver, sender and edge for every edge.

    None is left out. ``edges`` may hold one item per pair where edges share items. Atomics: none, and the same bits again.

    >>> import torch
    >>> pair = Topology.square(torch.tensor([1, 0]), torch.tensor([0, 1]), 2)
    >>> gather_add(torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [20.0]]), None, pair).squeeze(1)
    tensor([21., 12.])
    """
    if received is not None and edges is not None:
        return ENDS("both ends and edges", (received, sent, edges), topology)
    if received is not None:
        return ENDS("both ends", (received, sent), topology)
    if edges is not None:
        return ENDS("senders and edges", (sent, edges), topology)
    return ENDS("senders", (sent,), topology)


def received_and_sent(
    messages: Float[Tensor, "edges *features"], topology: Topology
) -> tuple[Float[Tensor, "rows *features"], Float[Tensor, "columns *features"]]:
    """Return each node's sums over edges that it receives and sends.

    Atomics: none, and the same bits again.
    """
    return ENDS("to receivers", (messages,), topology), ENDS("to senders", (messages,), topology)


def plain_gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, topology: Topology) -> Tensor:
    """Add both ends and the edge in plain torch."""
    joined = sent.index_select(0, topology.senders)  # [edges, *features]
    joined = joined if received is None else received.index_select(0, topology.receivers) + joined
    return joined if edges is None else joined + edges


GATHER_ADD_FORMS = forms_of(
    reads_weights(plain_gather_add, 2), cpu.gather_add, reads_weights(triton_forms.gather_add, 2)
)


def _summed(end: str, items: str, launched: Form) -> dict[str, Form]:
    """Return the forms of sums of messages at one end of edges."""

    def at_end(form: Callable[..., Any]) -> Callable[..., Any]:
        return lambda messages, t: form(messages, (getattr(t, end), getattr(t, items)))

    return forms_of(at_end(sum_to_receivers), at_end(cpu.sum_to_receivers), launched)


def _gathered(end: str) -> dict[str, Form]:
    """Return the forms of the rows at one end of every edge."""
    launched = on_accelerators(lambda x, t: triton_forms.gather(x, getattr(t, end)))
    return {ANYWHERE: lambda x, t: x.index_select(0, getattr(t, end)), **launched}


TO_RECEIVERS = _summed("receivers", "num_rows", triton_forms.sum_to_receivers)
TO_SENDERS = _summed("senders", "num_columns", triton_forms.sum_to_senders)
RECEIVED = ("to receivers", (INCOMING,))
SENT = ("to senders", (INCOMING,))
ITEMS = ("to items", (INCOMING,))
ENDS = Family(
    {
        "both ends and edges": FamilyMember(
            forms=GATHER_ADD_FORMS, derivatives=(RECEIVED, SENT, ITEMS), items=("rows", "columns", "weights")
        ),
        "both ends": FamilyMember(
            forms={name: lambda g, x, t, add=add: add(g, x, None, t) for name, add in GATHER_ADD_FORMS.items()},
            derivatives=(RECEIVED, SENT),
            items=("rows", "columns"),
        ),
        "senders and edges": FamilyMember(
            forms={name: lambda x, e, t, add=add: add(None, x, e, t) for name, add in GATHER_ADD_FORMS.items()},
            derivatives=(SENT, ITEMS),
            items=("columns", "weights"),
        ),
        "senders": FamilyMember(forms=_gathered("senders"), derivatives=(SENT,), items=("columns",)),
        "receivers": FamilyMember(forms=_gathered("receivers"), derivatives=(RECEIVED,), items=("rows",)),
        "items": FamilyMember(
            forms={
                ANYWHERE: reads_weights(lambda items, _: items, 0),
                **on_accelerators(lambda x, t: x if t.pair is None else triton_forms.gather(x, t.pair)),
            },
            derivatives=(ITEMS,),
            items=("weights",),
        ),
        "to items": FamilyMember(
            forms={ANYWHERE: gives_weights(lambda messages, _: messages, 1)},
            derivatives=(("items", (INCOMING,)),),
            items=("edges",),
        ),
        "to receivers": FamilyMember(forms=TO_RECEIVERS, derivatives=(("receivers", (INCOMING,)),), items=("edges",)),
        "to senders": FamilyMember(forms=TO_SENDERS, derivatives=(("senders", (INCOMING,)),), items=("edges",)),
    }
)
