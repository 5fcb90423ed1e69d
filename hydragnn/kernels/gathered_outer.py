"""Sums of weighted states of senders times directions of edges.

All four ops are partial maps of T(x, w, u, G) = sum over edges, axes and channels of x_sender,c w_ec u_ea G_receiver,ac. The
derivative of each with respect to a tensor is the op that leaves this tensor out, with the incoming gradient in its own place:

    sum_along(x, w, u)_iac    collect_along(w, u, G)_jc    multiply_along(x, u, G)_ec    contract_along(x, w, G)_ea

Edges may share weights (``Topology.sharing``): then there is one per pair. Each op is one compiled loop on a CPU and one Triton
kernel on ROCm and CUDA. None makes an array of edges x channels, except ``multiply_along``, whose value is one.
"""

from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels.cpu import forms as cpu
from hydragnn.kernels.ends import TO_SENDERS
from hydragnn.kernels.family import Partial, form_on, forms_of, multilinear
from hydragnn.kernels.outer import ALONG_CHANNELS_FORMS, ALONG_DIRECTIONS_FORMS, OUTER_SUM_FORMS
from hydragnn.kernels.pairs import gives_weights, reads_weights
from hydragnn.kernels.triton import forms as triton_forms


def gather_outer_sum(
    x: Float[Tensor, "columns channels"],
    weight: Float[Tensor, "items channels"],
    directions: Float[Tensor, "edges dim"],
    topology: Topology,
) -> Float[Tensor, "rows dim channels"]:
    """Return each node's sum of weighted senders times directions.

    A node without edges receives zeros. Atomics: none, and the same bits again.
    """
    return GATHERED_OUTER("sum_along", (x, weight, directions), topology)


def plain_sum_along(x: Tensor, weight: Tensor, directions: Tensor, topology: Topology) -> Tensor:
    """Sum weighted states of senders times directions."""
    along = x.index_select(0, topology.senders) * weight  # [edges, channels]
    return form_on(OUTER_SUM_FORMS, x.device.type)(along, directions, topology)


def plain_collect_along(weight: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Sum projected, weighted vectors of receivers at senders."""
    along = form_on(ALONG_DIRECTIONS_FORMS, weight.device.type)(directions, vectors, topology)  # [edges, channels]
    return form_on(TO_SENDERS, weight.device.type)(along * weight, topology)


def plain_multiply_along(x: Tensor, directions: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Multiply states of senders with projected vectors of receivers."""
    along = form_on(ALONG_DIRECTIONS_FORMS, x.device.type)(directions, vectors, topology)  # [edges, channels]
    return x.index_select(0, topology.senders) * along


def plain_contract_along(x: Tensor, weight: Tensor, vectors: Tensor, topology: Topology) -> Tensor:
    """Contract weighted states of senders with vectors of receivers."""
    along = x.index_select(0, topology.senders) * weight  # [edges, channels]
    return form_on(ALONG_CHANNELS_FORMS, x.device.type)(along, vectors, topology)


SUM_ALONG_FORMS = forms_of(reads_weights(plain_sum_along, 1), cpu.sum_along, triton_forms.sum_along)
COLLECT_ALONG_FORMS = forms_of(reads_weights(plain_collect_along, 0), cpu.collect_along, triton_forms.collect_along)
MULTIPLY_ALONG_FORMS = forms_of(
    gives_weights(plain_multiply_along, 3), cpu.multiply_along, gives_weights(triton_forms.multiply_along, 3)
)
CONTRACT_ALONG_FORMS = forms_of(reads_weights(plain_contract_along, 1), cpu.contract_along, triton_forms.contract_along)
GATHERED_OUTER = multilinear(
    {"x": "columns", "weight": "weights", "directions": "edges", "vectors": "rows"},
    {
        "vectors": Partial(
            "sum_along", SUM_ALONG_FORMS, triton_forms.sum_along, together={"cpu": cpu.sum_along_gradients}
        ),
        "x": Partial("collect_along", COLLECT_ALONG_FORMS, triton_forms.collect_along),
        "weight": Partial("multiply_along", MULTIPLY_ALONG_FORMS, gives_weights(triton_forms.multiply_along, 3)),
        "directions": Partial("contract_along", CONTRACT_ALONG_FORMS, triton_forms.contract_along),
    },
)
