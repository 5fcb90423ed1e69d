"""Operations between ranks that are each other's derivatives.

Training on forces differentiates them twice. ``DTensor`` and ``parallelize_module`` lose second derivatives without an error (torch 2.13), and refuse operators
of ``torch.library``.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Copy(torch.autograd.Function):
    """Identity whose derivative sums over ranks."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the values."""
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients."""
        return Reduce.apply(gradients[0], context.group), None


class Reduce(torch.autograd.Function):
    """Sum over ranks whose derivative is the identity."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum, the same bits on all ranks."""
        context.group = group
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return Copy.apply(gradients[0], context.group), None


class Gather(torch.autograd.Function):
    """Channels of all ranks; the derivative takes the own ones."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the last dimensions one after the other."""
        context.group = group
        values = values.contiguous()
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, values, group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the own channels of the gradient."""
        return Own.apply(gradients[0], context.group), None


class Own(torch.autograd.Function):
    """Own channels of a whole array; the derivative gathers."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return this rank's share of the last dimension."""
        context.group = group
        return values.chunk(dist.get_world_size(group), dim=-1)[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of all channels."""
        return Gather.apply(gradients[0], context.group), None


DUALS: dict[str, type[Copy | Reduce | Gather | Own]] = {"copy": Copy, "reduce": Reduce, "gather": Gather, "own": Own}
"""By the name of the way in plans."""
