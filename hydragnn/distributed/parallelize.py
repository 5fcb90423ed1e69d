"""Wrappers that let ranks train a model, in their order."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydragnn.base.clock import phase
from hydragnn.config import TrainSettings
from hydragnn.distributed.channels import split_channels
from hydragnn.distributed.mesh import Mesh
from hydragnn.parallel import AXES, WHOLE_WEIGHTS, Axis
from hydragnn.training import buckets
from hydragnn.training.buckets import Wait
from hydragnn.training.data import DevicePlacement
from hydragnn.training.parameters import FlatParameters, Sharing, alone
from hydragnn.training.pieces import Piece

# torch 2.13 has other names for the same
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class TorchPeers:
    """Ranks of one process group; see ``Peers``."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.number, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.in_place = dist.get_backend(group) == "nccl"  # gloo copies all that is gathered or scattered

    def begin_sum(self, values: Tensor) -> Wait:
        """Start the sum of a tensor over the ranks, in place."""
        return phase("collectives")(dist.all_reduce(values, group=self.group, async_op=True).wait)

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        """Start the sum of ``values``; ``own`` receives this rank's share."""
        if self.in_place:
            return phase("collectives")(scatter(own, values, group=self.group, async_op=True).wait)
        work = dist.all_reduce(values, group=self.group, async_op=True)  # in less memory than gloo's own scatter

        @phase("collectives")
        def wait() -> None:
            work.wait()
            own.copy_(values.chunk(self.count)[self.number])  # itself where it is a part of them

        return wait

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        """Start to put every rank's ``own`` into its share of ``values``."""
        source = own if self.in_place else own.clone()
        work = gather(values, source, group=self.group, async_op=True)

        @phase("collectives")
        def wait() -> None:
            work.wait()
            source.numel()  # in memory until here

        return wait


COPIES: tuple[Axis, ...] = ("replicate", "graph")
"""Axes along which ranks hold the same weights and sum their gradients."""


def parallelize(
    model: nn.Module,
    mesh: Mesh,
    placement: DevicePlacement,
    settings: TrainSettings,
    rate_factors: Mapping[str, float] = MappingProxyType({}),
) -> FlatParameters:
    """Place the model and return the parameters that the loop updates."""
    # 1. this rank's channels of every layer
    pieces = split_channels(model, mesh) if mesh.size("tensor") > 1 else {}
    # 2. device and numbers, before the vector is made, so that it lies there
    model.to(device=placement.device, dtype=placement.dtype)
    # 3. one vector of weights and one of gradients, with optimizer, best weights and average; gradients are summed over ranks
    # once per step, in blocks that begin while the backward pass of the last micro-batch goes on; losses are divided by global counts
    sharing = sharing_of(model, mesh, pieces, settings.optimizer in WHOLE_WEIGHTS)
    return FlatParameters(model, settings, sharing, rate_factors)


def sharing_of(model: nn.Module, mesh: Mesh, pieces: Mapping[str, Piece], whole: bool = False) -> Sharing:
    """Return how the ranks of a mesh share weights and states; collective.

    By themselves, copies share their states where a library scatters sums in place, unless all weights are one block, which takes its time
    by latency, and no memory; or the optimizer needs ``whole`` weights.
    """
    copies, shards = peers_of(mesh, *COPIES), peers_of(mesh, "shard")
    size = sum(parameter.nbytes for parameter in model.parameters()) / mesh.size("shard")
    wants = mesh.states == "shared"
    if copies is not None and mesh.states == "auto":  # gloo: on two ranks a step took 1.2 to 2 times as long
        wants = copies.in_place and size > buckets.BYTES and not whole
    against = torch.tensor(float(not wants), device=next(model.parameters()).device)
    # stages have other weights, and decide together
    shares_states = copies is not None and not mesh.sum_in_place(against, "pipeline")
    differ: tuple[Axis, ...] = AXES if shares_states else ("shard", "pipeline", "tensor")

    complete = {name for name, _ in model.named_parameters() if name not in pieces or pieces[name].is_whole}
    return Sharing(
        copies=copies,
        shares_states=shares_states,
        shards=shards,
        sum_norm=alone if mesh.size(*differ) == 1 else lambda values: mesh.sum_in_place(values, *differ),
        pieces=pieces,
        repeated=frozenset(complete if mesh.coordinate("tensor") else ()),
    )


def peers_of(mesh: Mesh, *axes: Axis) -> TorchPeers | None:
    """Return the ranks along the axes; None where it is one."""
    group = mesh.group(*axes)
    return None if group is None else TorchPeers(group)
