"""Tensor parallelism: ranks hold some channels of every layer.

Megatron's scheme (Shoeybi et al. 2019, arXiv:1909.08053) on the plans of layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm, linear

from hydragnn.base.clock import phase
from hydragnn.base.errors import InputError
from hydragnn.distributed.mesh import Mesh
from hydragnn.kernels import SiLU
from hydragnn.layers import MessageGraph
from hydragnn.layers.split_plan import LayerSplit, Plan, Ways
from hydragnn.models import GraphModel
from hydragnn.parallel import heads_of
from hydragnn.training.pieces import Piece, whole_piece


class Between(torch.autograd.Function):
    """Way of an array between ranks, whose derivative is the adjoint way.

    Training on forces differentiates twice. ``DTensor`` and ``parallelize_module`` lose second derivatives without an error (torch 2.13), and refuse
    operators of ``torch.library``.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup, way: str) -> Tensor:
        """Return the array after the way."""
        context.group, context.way = group, way
        return WAYS[way][0](values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient after the adjoint way."""
        return Between.apply(gradients[0], context.group, WAYS[context.way][1]), None, None


@phase("collectives")
def _reduce(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


@phase("collectives")
def _gather(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    values = values.contiguous()
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values, group=group)
    return torch.cat(parts, dim=-1)


def _own(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    return values.chunk(dist.get_world_size(group), dim=-1)[dist.get_rank(group)].contiguous()


WAYS: dict[str, tuple[Callable[[Tensor, dist.ProcessGroup], Tensor], str]] = {
    "copy": (lambda values, group: values.view_as(values), "reduce"),
    "reduce": (_reduce, "copy"),
    "gather": (_gather, "own"),
    "own": (_own, "gather"),
}
"""Ways of plans by name, each with its adjoint."""

ELEMENTWISE = (SiLU, nn.Dropout, nn.Tanh)
"""Layers between the linear maps of a network whose hidden channels are split."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Channels:
    """This rank among those that share channels."""

    group: dist.ProcessGroup
    size: int
    rank: int
    heads: Mapping[int, dist.ProcessGroup] = field(default_factory=dict)
    """Ranks that share a head with this one, by the number of heads."""

    def along(self, values: Tensor, ways: Ways, blocks: int = 1) -> Tensor:
        """Return an array after these ways, block by block."""
        if blocks > 1 and ways != ("copy",):
            return self.along(values.unflatten(-1, (blocks, -1)), ways).flatten(-2)
        for way in ways:
            if way == "cut":
                values = values.chunk(self.size, dim=-1)[self.rank].contiguous()
            else:
                values = Between.apply(values, self.group, way)
        return values

    def in_head(self, values: Tensor, split: LayerSplit, group: dist.ProcessGroup) -> Tensor:
        """Return outputs after the ways among ranks that share a head."""
        parts = list(values.chunk(split.blocks, dim=-1))
        for number in range(max(1, split.blocks - 1)):
            for way in split.in_head:
                parts[number] = Between.apply(parts[number], group, way)
        return torch.cat(parts, dim=-1)

    def everywhere(self, value: Any, ways: Ways, blocks: int = 1) -> Any:
        """Return an argument or output with its arrays after these ways."""
        match value:
            case Tensor() if value.is_floating_point() and ways:
                return self.along(value, ways, blocks)
            case MessageGraph() if ways:
                return value.once("shared by channels", partial(self.shared, value))
            case dict():
                return {key: self.everywhere(one, ways, blocks) for key, one in value.items()}
            case tuple() | list():
                return type(value)(self.everywhere(one, ways, blocks) for one in value)
        return value

    def shared(self, graph: MessageGraph) -> MessageGraph:
        """Return a graph that layers of local channels may differentiate.

        Its geometry is made anew from copied vectors, so that derivatives are summed over ranks once for all layers.
        """
        inputs = {name: getattr(graph, name) for name in ("vectors", "edge_features", "condition")}
        copied = self.everywhere(inputs, ("copy",))
        own = replace(graph, wider=None if graph.wider is None else self.shared(graph.wider), **copied)
        own.cache.update({key: graph.cache[key] for key in OF_TOPOLOGY if key in graph.cache})
        return own

    def rows(self, count: int, blocks: int) -> tuple[tuple[int, int], ...]:
        """Return the own rows of every block."""
        each = count // blocks
        own, rest = divmod(each, self.size)
        assert not rest, f"{each} channels over {self.size} ranks"  # checked where the run is planned
        starts = [block * each + self.rank * own for block in range(blocks)]
        return tuple((start, start + own) for start in starts)


OF_TOPOLOGY = ("pairs", "buckets", "onward", "triplets")
"""Keys of values derived from edges, and not from their vectors."""


class SummedLinear(nn.Linear):
    """Linear map of local inputs: summands are added up, then the bias."""

    channels: Channels

    def forward(self, values: Tensor) -> Tensor:
        """Return whole outputs."""
        total = self.channels.along(linear(values, self.weight), ("reduce",))
        return total if self.bias is None else total + self.bias.to(total.dtype)


class SharedLinear(nn.Linear):
    """Linear map of shared arrays, with weights that all ranks hold."""

    channels: Channels

    def forward(self, values: Tensor) -> Tensor:
        """Return shared outputs."""
        return linear(values, *self.channels.everywhere([self.weight, self.bias], ("copy",)))


class SharedNorm(nn.LayerNorm):
    """Layer norm of shared arrays."""

    channels: Channels

    def forward(self, values: Tensor) -> Tensor:
        """Return shared outputs."""
        weight, bias = self.channels.everywhere([self.weight, self.bias], ("copy",))
        return layer_norm(values, self.normalized_shape, weight, bias, self.eps)


class ChannelDropout(nn.Dropout):
    """Dropout of local channels by the mask that one rank would draw."""

    channels: Channels

    def forward(self, values: Tensor) -> Tensor:
        """Draw for all channels; use the own ones."""
        if not self.training or not self.p:
            return values
        ones = values.new_ones(*values.shape[:-1], values.shape[-1] * self.channels.size)
        return values * self.channels.along(dropout(ones, self.p), ("cut",))


SHARED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: SharedLinear, nn.LayerNorm: SharedNorm}


def split_channels(model: nn.Module, mesh: Mesh) -> dict[str, Piece]:
    """Replace parameters by this rank's channels; return all pieces by name.

    All ranks call it together. Layers without a plan stay whole, but for networks of linear maps in them, whose hidden channels are split
    where they divide.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    pieces = {name: whole_piece(tuple(parameter.shape)) for name, parameter in model.named_parameters()}
    group = mesh.group("tensor")
    if group is None:
        return pieces
    own_weights = [
        id(weight) for layer in model.modules() for weight in layer._parameters.values() if weight is not None
    ]
    if len(own_weights) > len(set(own_weights)):
        raise InputError("parallel.tensor: layers of this model share weights, which would be split twice; use shard")
    size = mesh.size("tensor")
    trunk = next(part for part in model.modules() if isinstance(part, GraphModel))
    fewer = sorted({count for count in heads_of(trunk.description).values() if count < size})
    heads = {count: mesh.new_group("tensor", neighbours=size // count) for count in fewer}
    channels = Channels(group=group, size=size, rank=mesh.coordinate("tensor"), heads=heads)
    claimed: set[int] = set()
    for layer in list(model.modules()):
        plan: Plan = getattr(layer, "split_plan", dict)()
        of_head = heads.get(getattr(layer, "heads", size))
        if isinstance(layer, nn.Sequential) and not claimed & {id(part) for part in layer}:
            plan = plan_of_network(layer, channels.size)
        for part, split in parts_of(layer, plan):
            if isinstance(part, nn.Module) and split.weights:
                claimed.add(id(part))
            for owner, key, piece in pieces_of(layer, part, split, channels):
                whole = owner.get_parameter(key)
                pieces[names[id(whole)]] = piece
                setattr(owner, key, nn.Parameter(piece.of(whole.detach()).clone(), requires_grad=whole.requires_grad))
            if isinstance(part, nn.Module):
                set_ways(part, split, channels, of_head)
    return pieces


def plan_of_network(network: nn.Sequential, size: int) -> Plan:
    """Return the plan of pairs of linear maps with functions between."""
    maps = {key: part for key, part in network.named_children() if type(part) is nn.Linear}
    plan: dict[str, LayerSplit] = {}
    if not all(type(part) is nn.Linear or isinstance(part, ELEMENTWISE) for part in network):
        return plan
    for first, second in list(pairwise(maps))[::2]:
        if maps[first].out_features % size == 0:
            plan[first] = LayerSplit(weights="columns", takes=(("copy",),))
            between = range(int(first) + 1, int(second))
            plan |= {str(key): LayerSplit(weights="columns") for key in between if isinstance(network[key], nn.Dropout)}
            plan[second] = LayerSplit(weights="rows")
    return plan


def parts_of(layer: nn.Module, plan: Plan) -> Iterator[tuple[nn.Module | nn.Parameter, LayerSplit]]:
    """Yield the parts that a plan names."""
    for path, split in plan.items():
        if (parameter := layer._parameters.get(path)) is not None:
            yield parameter, split
        for name, part in layer.named_modules():
            if fnmatchcase(name, path):
                yield part, split


def pieces_of(
    layer: nn.Module, part: nn.Module | nn.Parameter, split: LayerSplit, channels: Channels
) -> Iterator[tuple[nn.Module, str, Piece]]:
    """Yield owner, name and piece of the parameters that are split."""
    if split.weights in (None, "shared"):
        return
    if isinstance(part, nn.Parameter):
        key = next(key for key, one in layer.named_parameters(recurse=False) if one is part)
        owner, named = layer, [(key, part)]
    else:
        owner, named = part, list(part.named_parameters(recurse=False))
    for key, whole in named:
        if split.weights != "columns" and whole.dim() < 2:
            continue  # the bias of a sum
        dim = 0 if split.weights == "columns" else 1
        rows = channels.rows(whole.shape[dim], split.blocks)
        yield owner, key, Piece(shape=tuple(whole.shape), dim=dim, rows=rows)


def set_ways(part: nn.Module, split: LayerSplit, channels: Channels, of_head: dist.ProcessGroup | None = None) -> None:
    """Let a part compute with local weights, arguments and outputs."""
    form = {"rows": SummedLinear, "shared": SHARED.get(type(part))}.get(split.weights or "")
    if isinstance(part, nn.Dropout):
        form = ChannelDropout
    if form is not None:
        own: Any = part
        own.__class__, own.channels = form, channels  # in place: views of branches hold the same layer
    for name in split.counts:
        setattr(part, name, max(1, getattr(part, name) // channels.size))
    if split.takes:
        ways: Sequence[Ways] = split.takes

        def take(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            inputs = (channels.everywhere(one, way, split.joined) for one, way in zip(arguments, ways))
            return (*inputs, *arguments[len(ways) :])

        part.register_forward_pre_hook(take)
    if split.in_head and of_head is not None:
        part.register_forward_hook(lambda _, arguments, outputs: channels.in_head(outputs, split, of_head))
    if split.gives:
        part.register_forward_hook(lambda _, arguments, outputs: channels.everywhere(outputs, split.gives))
