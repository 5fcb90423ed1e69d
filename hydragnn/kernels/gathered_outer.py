"""Messages of senders along directions: sum of (w_e x_sender) (x) u_e at each receiver, in a family closed under differentiation.

All four are partial maps of T(x, w, u, G) = sum over edges, axes and channels of x_sender,c w_ec u_ea G_receiver,ac, so the
derivative of each with respect to a tensor is the one that leaves this tensor out, with the incoming gradient in its own place:

    V(x, w, u)_iac    X(w, u, G)_jc    W(x, u, G)_ec    U(x, w, G)_ea

Where edges share weights (``Topology.sharing``), w has one for each pair. On a CPU each is one compiled loop, on ROCm and CUDA one Triton kernel, and no array of edges x channels is made but by W, whose value is one.
"""

from collections.abc import Callable, Mapping

from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.ends import TO_SENDERS
from hydragnn.kernels.family import ANYWHERE, INCOMING, Family, Form, Member, form_on, on_accelerators
from hydragnn.kernels.outer import R_FORMS, S_FORMS, T_FORMS
from hydragnn.kernels.pairs import gives_weights, reads_weights
from hydragnn.kernels.triton import forms as triton_forms


def gather_outer_sum(
    x: Float[Tensor, "columns channels"],
    weight: Float[Tensor, "items channels"],
    directions: Float[Tensor, "edges dim"],
    topology: Topology,
) -> Float[Tensor, "rows dim channels"]:
    """Each node's sum of what its senders hold, times a weight and the direction of the edge; zeros without edges.

    Atomics: none, and the same bits again.
    """
    return GATHERED_OUTER("V", (x, weight, directions), topology)


def sum_along(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """V: weighted states of senders, then their outer products."""
    along = x.index_select(0, topology.senders) * weight  # [edges, channels]
    return form_on(S_FORMS, x.device.type)(along, directions, topology)


def collect_along(weight: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """X: what receivers hold along the edge, weighed and summed at the senders."""
    along = form_on(T_FORMS, weight.device.type)(directions, vectors, topology)  # [edges, channels]
    return form_on(TO_SENDERS, weight.device.type)(along * weight, topology)


def multiply_along(x: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """W: what senders hold times what receivers hold along the edge."""
    along = form_on(T_FORMS, x.device.type)(directions, vectors, topology)  # [edges, channels]
    return x.index_select(0, topology.senders) * along


def contract_along(x: Tensor, weight: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """U: weighted states of senders times what receivers hold, summed over channels."""
    along = x.index_select(0, topology.senders) * weight  # [edges, channels]
    return form_on(R_FORMS, x.device.type)(along, vectors, topology)


def _forms(plain: Form, compiled: Callable[..., Tensor | None], triton: Form) -> Mapping[str, Form]:
    return {ANYWHERE: plain, "cpu": cpu.or_plain(compiled, plain), **on_accelerators(triton)}


V_FORMS = _forms(reads_weights(sum_along, 1), cpu.sum_along, triton_forms.sum_along)
X_FORMS = _forms(reads_weights(collect_along, 0), cpu.collect_along, triton_forms.collect_along)
W_FORMS = _forms(gives_weights(multiply_along, 3), cpu.multiply_along, gives_weights(triton_forms.multiply_along, 3))
U_FORMS = _forms(reads_weights(contract_along, 1), cpu.contract_along, triton_forms.contract_along)
GATHERED_OUTER = Family(
    {
        "V": Member(
            forms=V_FORMS,
            derivatives=(("X", (1, 2, INCOMING)), ("W", (0, 2, INCOMING)), ("U", (0, 1, INCOMING))),
            together={"cpu": cpu.gradients_of_sum_along},
            items=("columns", "weights", "edges"),
        ),
        "X": Member(
            forms=X_FORMS,
            derivatives=(("W", (INCOMING, 1, 2)), ("U", (INCOMING, 0, 2)), ("V", (INCOMING, 0, 1))),
            items=("weights", "edges", "rows"),
        ),
        "W": Member(
            forms=W_FORMS,
            derivatives=(("X", (INCOMING, 1, 2)), ("U", (0, INCOMING, 2)), ("V", (0, INCOMING, 1))),
            items=("columns", "edges", "rows"),
        ),
        "U": Member(
            forms=U_FORMS,
            derivatives=(("X", (1, INCOMING, 2)), ("W", (0, INCOMING, 2)), ("V", (0, 1, INCOMING))),
            items=("columns", "weights", "rows"),
        ),
    }
)
