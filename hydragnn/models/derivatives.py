"""Forces and stress: derivatives of an energy by edge vectors.

Models see positions only through edge vectors v_e = x_sender + shift - x_receiver, so dE/dv holds everything:
F_i = sum of dE/dv over the edges that i receives, minus that over the edges it sends, and the virial is the sum of
v (x) dE/dv over the edges of a graph, since a strain turns every v into v + strain v. Where layers see several sets of edges,
each contributes its own.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hydragnn.graphs.batch import GraphBatch, volumes
from hydragnn.kernels import received_and_sent, segment_sum
from hydragnn.layers.halo import HaloExchange


def energy_gradients(
    energy: Float[Tensor, "graphs *shape"],
    vectors: Sequence[Float[Tensor, "_ dim"]],
    *,
    differentiable: bool,
    halo: HaloExchange | None = None,
) -> Sequence[Float[Tensor, "_ dim"]]:
    """Return dE/dv of every edge; zeros for edges without effect."""
    if halo is not None:
        return halo.gradients(energy, vectors, differentiable=differentiable)
    if not energy.requires_grad:
        return [torch.zeros_like(one) for one in vectors]
    return torch.autograd.grad(
        energy.sum(), list(vectors), create_graph=differentiable, retain_graph=True, materialize_grads=True
    )


def forces_from(
    gradient: Float[Tensor, "edges dim"], batch: GraphBatch, halo: HaloExchange | None = None
) -> Float[Tensor, "nodes dim"]:
    """Return forces, which sum to zero over every graph."""
    received, sent = received_and_sent(gradient, batch.topology)  # [nodes, dim]
    forces = received - sent
    return forces if halo is None else halo.sum_to_owners(forces)


def stress_from(
    gradient: Float[Tensor, "edges dim"],
    vectors: Float[Tensor, "edges dim"],
    batch: GraphBatch,
    halo: HaloExchange | None = None,
) -> Float[Tensor, "graphs dim dim"]:
    """Return the stress: strain derivative over volume, positive under tension.

    A graph without a volume gets zeros.
    """
    outer = vectors.unsqueeze(-1) * gradient.unsqueeze(-2)  # [edges, dim, dim]
    virial = segment_sum(outer, batch.owner("edge"), batch.num_graphs)  # [graphs, dim, dim]
    virial = virial if halo is None else halo.total(virial)
    volume = volumes(batch).to(virial.dtype).view(-1, 1, 1)
    inverse = torch.where(volume > 0, 1 / volume.clamp_min(torch.finfo(volume.dtype).tiny), 0.0)
    return 0.5 * (virial + virial.transpose(-1, -2)) * inverse
