"""Collectives of torch on vectors that ranks hold together."""

import torch.distributed as dist
from torch import Tensor

from hydragnn.training.buckets import Wait

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
        work = dist.all_reduce(values, group=self.group, async_op=True)
        return lambda: work.wait()

    def begin_scatter(self, values: Tensor, own: Tensor) -> Wait:
        """Start the sum of ``values``; ``own`` receives this rank's share.

        The others' shares of ``values`` are no longer what they were.
        """
        if self.in_place:
            scattered = scatter(own, values, group=self.group, async_op=True)
            return lambda: scattered.wait()
        work = dist.all_reduce(values, group=self.group, async_op=True)  # in less memory than gloo's own scatter

        def wait() -> None:
            work.wait()
            own.copy_(values.chunk(self.count)[self.number])  # itself where it is a part of them

        return wait

    def begin_gather(self, values: Tensor, own: Tensor) -> Wait:
        """Start to put every rank's ``own`` into its share of ``values``."""
        source = own if self.in_place else own.clone()
        work = gather(values, source, group=self.group, async_op=True)

        def wait() -> None:
            work.wait()
            source.numel()  # in memory until here

        return wait
