"""Weights with gradient, optimizer and average, as ranks hold them."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hydragnn.base.clock import phase
from hydragnn.config import TrainSettings
from hydragnn.training import buckets
from hydragnn.training.buckets import Buckets, ParameterBlock, VectorPeers, Wait, blocks_of
from hydragnn.training.gathering import GatheredBlocks
from hydragnn.training.pieces import Piece, whole_piece

ALIGNMENT = 64
"""Bytes; every weight begins on such a boundary, so that matrix kernels give the same bits in every process."""
SHARDED_BLOCKS = 48
"""Blocks, about, of weights that are gathered one after the other: up to eight are in memory at once, as weights, gradients and copies of gloo."""


class RankRows(NamedTuple):
    """Consecutive weights that this rank updates."""

    at: slice
    """Their positions in the vectors of weights and gradient."""
    own: slice
    """Their positions in the vectors of states, which hold the weights that this rank updates and no others."""
    factor: float = 1.0


Groups = Sequence[RankRows]


class Optimizer:
    """AdamW (arXiv:1711.05101), or SGD with Nesterov momentum 0.9 and L2 decay.

    Sutskever et al. 2013. By torch's fused kernels, not its classes: those import the compiler, a third of a second in every trial's process.
    """

    def __init__(self, kind: str, weights: Tensor, gradient: Tensor, decay: float, own: int) -> None:
        """No moments yet, of the ``own`` weights that this rank updates."""
        self.kind, self.weights, self.gradient, self.decay = kind, weights, gradient, decay
        self.names = ("exp_avg", "exp_avg_sq") if kind in ("adamw", "lamb") else ("momentum_buffer",)
        self.moments = {name: gradient.new_zeros(own) for name in self.names}
        if kind == "adamw":
            self.moments["step"] = torch.zeros((), dtype=torch.float32, device=gradient.device)

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        kernel: Any = adamw if self.kind == "adamw" else sgd
        counts = [torch.zeros(())] * len(groups)
        if self.kind == "adamw":
            step = self.moments["step"]
            if not groups:
                step.add_(1)  # ranks of a model all count the same steps
            counts = [*(step.clone() for _ in groups[1:]), step]  # each call counts one
        for (rows, own, factor), count in zip(groups, counts):
            tensors = [[one] for one in (self.weights[rows], self.gradient[rows])]
            tensors += [[self.moments[name][own]] for name in self.names]
            options: dict[str, Any] = {"lr": rate * factor, "weight_decay": self.decay, "maximize": False}
            options |= {"foreach": False, "fused": True}
            if self.kind == "adamw":
                options |= {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
                kernel(*tensors, [], [count], **options)
            else:
                kernel(*tensors, momentum=0.9, dampening=0.0, nesterov=True, **options)


class LayerwiseOptimizer(Optimizer):
    """LAMB (arXiv:1904.00962) or LARS (arXiv:1708.03888).

    By ``pytorch_optimizer``. Every weight tensor has a rate by its norm and that of its update, so that this rank holds whole ones.
    """

    def __init__(
        self, kind: str, gradient: Tensor, decay: float, own: int, tensors: Sequence[tuple[nn.Parameter, int, float]]
    ) -> None:
        """``tensors``: weights, positions in vectors of states, factors of rates."""
        super().__init__(kind, gradient, gradient, decay, own)
        from pytorch_optimizer import LARS, Lamb

        # otherwise the library divides LAMB's rate by the bias of a moment that its norm takes out: first steps are ten times as long
        whole_steps = {"adam_debias": True} if kind == "lamb" else {}
        groups, state = dict[float, list[nn.Parameter]](), dict[nn.Parameter, dict[str, Tensor]]()
        for one, at, factor in tensors:  # with two axes: the library's LARS moves biases by the whole rate
            row = nn.Parameter(one.detach().view(len(one) if one.ndim > 1 else 1, -1))
            row.grad = None if one.grad is None else one.grad.view_as(row)
            groups.setdefault(factor, []).append(row)
            state[row] = {name: every[at : at + row.numel()].view_as(row) for name, every in self.moments.items()}
        params = [{"params": rows, "factor": factor} for factor, rows in groups.items()]
        self.steps = (Lamb if kind == "lamb" else LARS)(params, weight_decay=decay, **whole_steps)
        self.steps.state.update(state)

    def step(self, rate: float, groups: Groups) -> None:
        """Move the weights once along their gradient."""
        for group in self.steps.param_groups:
            group["lr"] = rate * group["factor"]
        self.steps.step()


Layout = list[tuple[str, list[int], int]]
"""Name, shape and first position of every weight."""


class ParameterSpan(NamedTuple):
    """Numbers of one parameter that this rank updates."""

    name: str
    piece: Piece
    at: int
    """Position in the vectors of states."""
    first: int
    last: int
    """Half-open range of the flat parameter, as this rank's ``piece`` has it."""
    counted: bool = True
    """False where another rank has the same numbers and counts them."""


def alone(values: Tensor) -> Tensor:
    """Return the values: the sum over ranks where there is one."""
    return values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sharing:
    """Ranks that share the weights of a model, or their states."""

    copies: VectorPeers | None = None
    """Ranks that hold the same weights and sum their gradients; None where this one is alone."""
    shares_states: bool = False
    """Each of these copies updates its share of the weights, and keeps their states (ZeRO-1, arXiv:1910.02054)."""
    shards: VectorPeers | None = None
    """Ranks that hold a share each, and gather the weights of a block where it is used."""
    sum_norm: Callable[[Tensor], Tensor] = alone
    """Sums a tensor over all ranks with other weights to update, in place; the same bits on each."""
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    """Pieces of the parameters that a model of this rank has in part."""
    repeated: frozenset[str] = frozenset()
    """Parameters whose norm another rank of ``sum_norm`` counts."""


class FlatParameters:
    """All weights of a rank as one vector.

    The parameters are views of it, or are gathered from the shares of several ranks. One norm, one optimizer kernel and one average
    serve any number of layers. The vector has zeros between weights (for alignment); their gradient is zero, so they stay zero.
    Only the context managers and what files need make the host wait for the device.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainSettings,
        sharing: Sharing | None = None,
        rate_factors: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Move the parameters into the vector; all have one dtype.

        Without ``sharing`` there is one rank. ``rate_factors`` of the learning rate are by name, 1 by default; parameters with 0 are frozen.
        """
        self.clip_norm, self.decay = settings.clip_norm, settings.ema_decay
        self.sharing = sharing = sharing or Sharing()
        named = list(model.named_parameters())
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        for name, parameter in named:
            parameter.requires_grad_(rate_factors.get(name, 1.0) > 0)
        shapes = [list(parameter.shape) for parameter in self.parameters]
        whole_blocks, positions = self._divided()
        self.layout: Layout = list(zip(self.names, shapes, positions))
        shards, copies = sharing.shards, sharing.copies if sharing.shares_states else None
        local = [block.share(shards.number, shards.count) if shards else block.share(0, 1) for block in whole_blocks]
        self.blocks = _end_to_end(whole_blocks, local)
        first = self.parameters[0]
        self.vector = torch.zeros(self.blocks[-1].end, dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.vector)
        self.leaves: list[list[nn.Parameter]]
        self.gathered: GatheredBlocks | None = None
        if shards:
            self.gathered = GatheredBlocks(model, whole_blocks, self.layout, shards)
            self.gathered.store(self.vector, self.gradient, self.blocks)
            self.leaves = [[leaf] for leaf in self.gathered.leaves]
        else:
            for parameter, position in zip(self.parameters, positions):
                at, shape = slice(position, position + parameter.numel()), parameter.shape
                self.vector[at] = parameter.detach().flatten()
                parameter.data, parameter.grad = self.vector[at].view(shape), self.gradient[at].view(shape)
            self.leaves = [self.parameters[block.first : block.last] for block in self.blocks]
        self.trained = [leaf for block in self.leaves for leaf in block if leaf.requires_grad]
        parts = [block.share(copies.number, copies.count) if copies else block.share(0, 1) for block in self.blocks]
        states = _end_to_end(self.blocks, parts)
        self.own = [RankRows(part, slice(block.start, block.end)) for part, block in zip(parts, states)]
        self.spans = self._spans(whole_blocks, local, positions)
        self.groups = rows_of(self.spans, self.own, rate_factors)
        self.counted = rows_of(self.spans, self.own, dict.fromkeys(sharing.repeated, 0.0))
        self.own = rows_of(self.spans, self.own, {})
        self.buckets = Buckets(self.leaves, self._begin_sum) if sharing.copies else None
        length = states[-1].end
        kind, decay = settings.optimizer, settings.weight_decay
        if kind in ("adamw", "sgd"):
            self.optimizer = Optimizer(kind, self.vector, self.gradient, decay, length)
        else:
            weights = dict(named)
            tensors = [(weights[one.name], one.at, rate_factors.get(one.name, 1.0)) for one in self.spans]
            self.optimizer = LayerwiseOptimizer(kind, self.gradient, decay, length, [one for one in tensors if one[2]])
        self.best_vector = self.vector.new_zeros(length)
        self.average_vector = torch.zeros_like(self.best_vector) if settings.ema_decay else None
        for rows in self.own:
            for vector in (self.best_vector, self.average_vector):
                if vector is not None:
                    vector[rows.own].copy_(self.vector[rows.at])

    def _divided(self) -> tuple[list[ParameterBlock], list[int]]:
        """Return blocks of the whole vector, and positions of parameters."""
        sharing, size = self.sharing, self.parameters[0].element_size()
        sizes = [parameter.numel() for parameter in self.parameters]
        shares = sharing.shards.count if sharing.shards else 1
        shares *= sharing.copies.count if sharing.copies and sharing.shares_states else 1
        least = sum(sizes) / SHARDED_BLOCKS if sharing.shards else buckets.BYTES / size
        return blocks_of(sizes, least, ALIGNMENT // size, shares)

    def _spans(
        self, whole: Sequence[ParameterBlock], local: Sequence[slice], positions: Sequence[int]
    ) -> list[ParameterSpan]:
        """Return the part of every parameter that this rank updates."""
        spans = []
        for block, part, packed, own in zip(whole, local, self.blocks, self.own):
            begin = part.start + own.at.start - packed.start  # in the whole vector
            end = begin + own.own.stop - own.own.start
            for number in range(block.first, block.last):
                name, shape, position = self.layout[number]
                first, last = max(begin, position), min(end, position + math.prod(shape))
                if first < last:
                    piece = self.sharing.pieces.get(name) or whole_piece(tuple(shape))
                    at = own.own.start + first - begin
                    counted = name not in self.sharing.repeated
                    spans.append(ParameterSpan(name, piece, at, first - position, last - position, counted))
        return spans

    @property
    def count(self) -> int:
        """Return the number of weights, without the zeros between them."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of whole parameters by name."""
        pieces = self.sharing.pieces
        return {name: pieces[name].shape if name in pieces else tuple(shape) for name, shape, _ in self.layout}

    @property
    def is_whole(self) -> bool:
        """Return True where parameters are views of the vector, and whole."""
        return self.gathered is None and all(piece.is_whole for piece in self.sharing.pieces.values())

    @property
    def is_written(self) -> bool:
        """Return True where no other rank writes the same into checkpoints."""
        return self.sharing.copies is None or self.sharing.shares_states or self.sharing.copies.number == 0

    @property
    def in_step(self) -> bool:
        """Return True where weights are gathered, which all ranks do together."""
        return self.gathered is not None

    @property
    def bytes(self) -> int:
        """Return the largest memory of weights, gradient, states and gathered blocks."""
        states = [self.best_vector, self.best_vector, *self.optimizer.moments.values()]
        states += [] if self.average_vector is None else [self.average_vector]
        gathered = self.gathered.bytes if self.gathered else 0
        return sum(vector.nbytes for vector in (self.vector, self.gradient, *states)) + gathered

    def zero_gradient(self) -> None:
        """Forget the gradient of the step before."""
        self.gradient.zero_()

    def expect_sum(self) -> None:
        """Let the next backward pass begin the sum over ranks."""
        if self.buckets:
            self.buckets.expect()

    def in_use(self, use: Hashable = 0) -> AbstractContextManager[None]:
        """Gather weights in the block where they are shared."""
        return self.gathered.in_use(use) if self.gathered else nullcontext()

    @phase("backward")
    def add_gradient(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a loss."""
        if self.buckets:
            loss.backward(inputs=self.trained)
            return
        new_gradients = torch.autograd.grad(loss, self.trained, allow_unused=True)
        pairs = [(one.grad, new) for one, new in zip(self.trained, new_gradients) if new is not None]
        torch._foreach_add_([old for old, _ in pairs if old is not None], [new for _, new in pairs])

    def _begin_sum(self, number: int) -> Wait:
        """Start the sum of a block's gradient over the copies."""
        copies, block = self.sharing.copies, self.blocks[number]
        assert copies is not None
        values = self.gradient[block.start : block.end]
        if not self.sharing.shares_states:
            return copies.begin_sum(values)
        return copies.begin_scatter(values, self.gradient[block.share(copies.number, copies.count)])

    def sum_gradient(self) -> None:
        """Add up the gradients of all ranks."""
        if self.buckets:
            self.buckets.finish()

    def clip(self) -> Float[Tensor, ""]:
        """Shorten the gradient to the largest norm allowed; give the norm before."""
        if self.sharing.sum_norm is alone:
            return clip_in_place(self.gradient, self.clip_norm)
        squares = self.gradient.new_zeros((), dtype=torch.float64)
        for rows in self.counted:
            squares += torch.linalg.vector_norm(self.gradient[rows.at]).to(torch.float64).square()
        norm = self.sharing.sum_norm(squares).sqrt()
        for rows in self.own:
            shorten(self.gradient[rows.at], norm, self.clip_norm)
        return norm.to(self.gradient.dtype)

    def step(self, rate: float) -> None:
        """Move the weights once along their gradient."""
        self.optimizer.step(rate, self.groups)
        self._share_weights()

    def _share_weights(self) -> None:
        """Give all copies the weights that this rank has updated."""
        copies = self.sharing.copies
        if copies is not None and self.sharing.shares_states:
            waits: list[Wait] = []
            for block in self.blocks:
                own = self.vector[block.share(copies.number, copies.count)]
                waits.append(copies.begin_gather(self.vector[block.start : block.end], own))
                if len(waits) > 1:  # gloo has a copy of each that is on its way
                    waits.pop(0)()
            for wait in waits:
                wait()

    def average(self, steps: int) -> None:
        """Update the average of weights after ``steps`` steps."""
        if self.average_vector is not None:
            for rows in self.own:
                average_in_place(self.average_vector[rows.own], self.vector[rows.at], self.decay, steps)

    def swap_in_eval_parameters(self) -> AbstractContextManager[None]:
        """Use the validated weights for the length of the block."""
        return nullcontext() if self.average_vector is None else self._swap_in(self.average_vector)

    def keep_best(self) -> None:
        """Remember the weights that are validated now as the best so far."""
        for rows in self.own:
            source = self.vector[rows.at] if self.average_vector is None else self.average_vector[rows.own]
            self.best_vector[rows.own].copy_(source)

    def best(self) -> AbstractContextManager[None]:
        """Use the best weights so far in the block."""
        return self._swap_in(self.best_vector)

    def state(self) -> dict[str, Tensor]:
        """Return this rank's tensors by name, for checkpoints; not to be changed."""
        whole = len(self.best_vector) == len(self.vector)
        named = {"weights": self.vector if whole else self._own_weights(), "best": self.best_vector}
        if self.average_vector is not None:
            named["average"] = self.average_vector
        return named | {f"optimizer/{name}": value for name, value in self.optimizer.moments.items()}

    def _own_weights(self) -> Tensor:
        """Return the weights that this rank updates, as states lie."""
        weights = torch.zeros_like(self.best_vector)
        for rows in self.own:
            weights[rows.own].copy_(self.vector[rows.at])
        return weights

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over tensors as ``state`` gives them."""
        own = self.state()
        for name, values in state.items():
            if name != "weights":
                own[name].copy_(values)
        if "weights" in state:
            self._write(state["weights"])
            self._share_weights()

    def _write(self, values: Tensor) -> None:
        for rows in self.own:
            self.vector[rows.at].copy_(values[rows.own])

    @contextmanager
    def _swap_in(self, values: Tensor) -> Iterator[None]:
        previous = self._own_weights()
        self._write(values)
        self._share_weights()
        try:
            yield
        finally:
            self._write(previous)
        self._share_weights()


def _end_to_end(blocks: Sequence[ParameterBlock], parts: Sequence[slice]) -> list[ParameterBlock]:
    """Return the blocks of a vector of these parts alone."""
    position, packed = 0, []
    for block, part in zip(blocks, parts):
        end = position + part.stop - part.start
        packed.append(ParameterBlock(block.first, block.last, position, end))
        position = end
    return packed


def rows_of(spans: Sequence[ParameterSpan], own: Sequence[RankRows], factors: Mapping[str, float]) -> list[RankRows]:
    """Return consecutive rows of one rate factor, without those of 0.

    ``own`` are the rows of every block that this rank updates. Zeros between weights belong to the weight before.

    >>> every = [RankRows(slice(0, 64), slice(0, 64))]
    >>> spans = [ParameterSpan(name, whole_piece((9,)), at, 0, 9) for name, at in (("a", 0), ("b", 16), ("c", 32), ("d", 48))]
    >>> [(rows.at, rows.factor) for rows in rows_of(spans, every, {"a": 0.0, "b": 0.5, "c": 0.5})]
    [(slice(16, 48, None), 0.5), (slice(48, 64, None), 1.0)]
    """
    rows: list[RankRows] = []
    for block in own:
        shift = block.at.start - block.own.start
        inside = [span for span in spans if block.own.start <= span.at < block.own.stop]
        ends = [*(span.at for span in inside[1:]), block.own.stop]
        for span, end in zip(inside, ends):
            start, factor = span.at, factors.get(span.name, 1.0)
            if rows and (rows[-1].own.stop, rows[-1].at.stop, rows[-1].factor) == (start, start + shift, factor):
                start = rows.pop().own.start
            if factor:
                rows.append(RankRows(slice(start + shift, end + shift), slice(start, end), factor))
    return rows


def clip_in_place(gradient: Float[Tensor, " weights"], largest: float) -> Float[Tensor, ""]:
    """Clip the gradient to norm ``largest``; return the norm before."""
    norm = torch.linalg.vector_norm(gradient)
    shorten(gradient, norm.to(torch.float64), largest)
    return norm


def shorten(gradient: Float[Tensor, " weights"], norm: Float[Tensor, ""], largest: float) -> None:
    """Divide the gradient by what its norm is over the largest."""
    if largest > 0:
        # the quotient of two tensors, since torch takes number / tensor as a product with the reciprocal
        gradient.mul_((torch.full_like(norm, largest) / norm).clamp(max=1.0).to(gradient.dtype))


def average_in_place(average: Tensor, weights: Tensor, decay: float, steps: int) -> None:
    """Move the average of weights towards the weights after ``steps`` steps.

    The decay grows with the steps, min(decay, (1 + steps) / (10 + steps)), so that the random start is forgotten soon.
    """
    average.lerp_(weights, 1.0 - min(decay, (1.0 + steps) / (10.0 + steps)))
