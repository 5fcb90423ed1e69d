"""Weights that ranks share, gathered block by block where they are used.

A gather is an operation of autograd, whose gradient is the sum over ranks of this rank's share (as in torchtitan's SimpleFSDP). What
autograd keeps for a backward pass are views of a gathered block by their place, and the block is gathered again for them. So a
derivative of any order is exact, and a block is in memory only while it is used.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hydragnn.base.errors import InputError
from hydragnn.training.buckets import ParameterBlock, VectorPeers, Wait

AT_HAND = 2
"""Blocks that stay gathered: one that begins in the middle of a layer, and the next."""


class BlockView(NamedTuple):
    """Place of a tensor in a gathered block."""

    block: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class LazyParameters(dict[str, nn.Parameter | None]):
    """Parameters of a module, gathered as they are read.

    Iterating gives what stands for them: their shape, dtype and device, without numbers.
    """

    def __init__(self, parameters: dict[str, nn.Parameter | None], look_up: Callable[[nn.Parameter], Tensor]) -> None:
        super().__init__(parameters)
        self.look_up = look_up

    def __getitem__(self, name: str) -> Any:
        """Return a parameter with its numbers."""
        parameter = super().__getitem__(name)
        return None if parameter is None else self.look_up(parameter)


class GatheredBlocks:
    """Blocks of a model's weights, of which each rank has a share.

    All ranks have to use the same blocks in the same order, so that they gather together. In the first pass of a kind they compare every
    operation before it begins, and later passes do as the first one did: anything else raises InputError, as it would mix weights.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[ParameterBlock],
        layout: Sequence[tuple[str, list[int], int]],
        shards: VectorPeers,
    ) -> None:
        """Take the parameters out of the model."""
        self.blocks, self.shards = blocks, shards
        self.leaves: list[nn.Parameter] = []
        self.parameters = list(model.parameters())
        self.places = [(shape, start) for _, shape, start in layout]
        self.open: OrderedDict[int, Tensor] = OrderedDict()
        self.views: dict[tuple[int, bool], list[Tensor]] = {}
        self.storages: dict[int, int] = {}
        self.ahead: tuple[int, Tensor, Wait] | None = None
        self.orders: dict[tuple[Hashable, ...], list[int]] = {}
        self.expected: list[int] = []
        self.order: list[int] = []
        """Operations of this pass: blocks that were gathered, and -1 - block for sums of a gradient."""
        self.active, self.model = False, model
        self.block_of = {
            id(self.parameters[each]): (number, each - block.first)
            for number, block in enumerate(blocks)
            for each in range(block.first, block.last)
        }
        for module in model.modules():
            if module._parameters:
                module.__dict__["_parameters"] = LazyParameters(module._parameters, self.look_up)

    def store(self, vector: Tensor, gradient: Tensor, local: Sequence[ParameterBlock]) -> None:
        """Put this rank's share into the vector and forget the others'."""
        for block, own in zip(self.blocks, local):
            whole = vector.new_zeros(block.end - block.start)
            for number in range(block.first, block.last):
                parameter, (shape, start) = self.parameters[number], self.places[number]
                whole[start - block.start : start - block.start + prod(shape)] = parameter.detach().flatten()
                parameter.data = vector.new_zeros(()).expand(shape)  # a shape without memory
            part = block.share(self.shards.number, self.shards.count)
            vector[own.start : own.end] = whole[part.start - block.start : part.stop - block.start]
            leaf = nn.Parameter(vector[own.start : own.end])
            leaf.requires_grad_(any(p.requires_grad for p in self.parameters[block.first : block.last]))
            leaf.grad = gradient[own.start : own.end]
            self.leaves.append(leaf)

    @property
    def bytes(self) -> int:
        """Return what gathered blocks take, with the gradient of one of them."""
        largest = max(block.end - block.start for block in self.blocks)
        return (AT_HAND + 3) * largest * self.leaves[0].element_size()

    @contextmanager
    def in_use(self, use: Hashable = 0) -> Iterator[None]:
        """Gather weights in the block, in the order of the same ``use``."""
        kind = (torch.is_grad_enabled(), self.model.training, use)
        self.expected, self.order, self.active = self.orders.get(kind, []), [], True
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
            self._agree(len(self.blocks))  # that this was all
            self.orders[kind] = self.order
        finally:
            self.active, self.ahead = False, None
            self.open.clear()
            self.views.clear()
            self.storages.clear()

    def look_up(self, parameter: nn.Parameter) -> Tensor:
        """Return a parameter with its numbers, where they are in use."""
        if not self.active:
            return parameter
        number, position = self.block_of[id(parameter)]
        flat, key = self._flat(number), (number, torch.is_grad_enabled())
        if key not in self.views:
            self.views[key] = self._views(number, flat)
        return self.views[key][position]

    def _views(self, number: int, flat: Tensor) -> list[Tensor]:
        """Return the parameters of a gathered block."""
        block, leaf = self.blocks[number], self.leaves[number]
        values: Tensor = _Gather.apply(leaf, flat, self, number)
        members = range(block.first, block.last)
        ends = [*(self.places[member][1] for member in members[1:]), block.end]
        widths = [end - self.places[member][1] for member, end in zip(members, ends)]
        views = []
        for member, part in zip(members, values.split_with_sizes(widths)):
            shape, _ = self.places[member]
            view = part[: prod(shape)].view(shape)
            views.append(view if self.parameters[member].requires_grad else view.detach())
        return views

    def _flat(self, number: int) -> Tensor:
        """Return the numbers of a block, gathered unless at hand."""
        if number in self.open:
            self.open.move_to_end(number)
            return self.open[number]
        while len(self.open) >= AT_HAND:
            old, flat = self.open.popitem(last=False)
            for recorded in (False, True):
                self.views.pop((old, recorded), None)
            del self.storages[flat.untyped_storage().data_ptr()]
            del flat
        flat = self._gathered(number)
        self.open[number] = flat
        self.storages[flat.untyped_storage().data_ptr()] = number
        return flat

    def _gathered(self, number: int) -> Tensor:
        """Gather a block, and begin with the one that followed before."""
        self._agree(number)
        _, flat, wait = self.ahead or self._begin(number)
        wait()
        following = self.expected[len(self.order) : -1]
        self.ahead = next((self._begin(each) for each in following if each >= 0), None)
        return flat

    def _agree(self, operation: int) -> None:
        """Note an operation; raise InputError unless all ranks begin it now."""
        position = len(self.order)
        self.order.append(operation)
        if self.expected:
            differs = self.expected[position : position + 1] != [operation]
        else:
            own = torch.tensor([operation], device=self.leaves[0].device)
            every = own.repeat(self.shards.count)
            self.shards.begin_gather(every, own)()
            differs = bool((every != operation).any())
        if differs:
            raise InputError(
                "parallel.shard: the model takes other weights for this batch than on other ranks or for batches before, and ranks gather them "
                "together; let it use all weights in every batch, times zero where they shall not count, or set parallel.shard = 1"
            )

    def _begin(self, number: int) -> tuple[int, Tensor, Wait]:
        block, own = self.blocks[number], self.leaves[number].detach()
        flat = own.new_empty(block.end - block.start)
        return number, flat, self.shards.begin_gather(flat, own)

    def scattered(self, number: int, gradient: Tensor) -> Tensor:
        """Return this rank's share of a block's gradient, summed over ranks."""
        self._agree(-1 - number)
        own = torch.empty_like(self.leaves[number])
        self.shards.begin_scatter(gradient.contiguous(), own)()
        return own

    def _pack(self, values: Tensor) -> Tensor | BlockView:
        """Return the position of a view of a block; other tensors unchanged."""
        number = self.storages.get(values.untyped_storage().data_ptr())
        if number is None:
            return values
        return BlockView(number, values.size(), values.stride(), int(values.storage_offset()))

    def _unpack(self, packed: Tensor | BlockView) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        return self._flat(packed.block).as_strided(packed.size, packed.stride, packed.offset)


class _Gather(torch.autograd.Function):
    """Whole block; its gradient is this rank's share of the sum."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, flat: Tensor, blocks: GatheredBlocks, number: int) -> Tensor:
        """Return the block, gathered before."""
        ctx.blocks, ctx.number = blocks, number
        return flat.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Return this rank's share of the summed gradient."""
        return ctx.blocks.scattered(ctx.number, gradient), None, None, None
