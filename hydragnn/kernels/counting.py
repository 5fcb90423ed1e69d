"""Operations and bytes of a computation, counted while it runs.

Own loops and Triton kernels are counted where they are called, all else where torch dispatches it; forms in plain torch are such calls.

- A product of matrices has 2 operations per multiplication, convolutions and attention those of torch's counter.
- Arithmetic by element has one per number of its result, whatever the function: exp, SiLU and + alike.
- Sums, means, norms, extremes and ``index_add`` have one per number that they read. Copies and gathers have none.
- A call moves the bytes of its distinct inputs, indices included, and of its results: caches hold all within a call and nothing
  between two. Views move nothing. Matrices that a network multiplies are moved again in every call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tag, Tensor, ops
from torch.utils._python_dispatch import TorchDispatchMode

ARITHMETIC: Mapping[str, int] = {
    "index_add": 1,
    "scatter_add": 1,
    "scatter_reduce": 1,
    "embedding_dense_backward": 1,
    "cumsum": 1,
    "_softmax": 4,
    "_softmax_backward_data": 3,
    "_log_softmax": 4,
    "_log_softmax_backward_data": 3,
    "native_layer_norm": 7,
    "native_layer_norm_backward": 11,
    "_fused_adamw": 12,
    "_fused_sgd": 5,
}
"""Operations per number of the largest input, of calls that are neither by element nor reductions."""

PER_NUMBER: Mapping[str, float] = {
    "radial_orders": 6.0,
    "lengths_orders": 3.0,
    "norms_orders": 1.5,
    "ended_orders": 0.5,
    "gated_orders": 0.5,
    "standard_orders": 4.0,
    "silu_slope_gradients": 2.0,
    "function_gradient": 4.0,
    "reduce_rows": 6.0,
    "reduce_rows_gradient": 3.0,
    "reduce_rows_second": 3.0,
}
"""Operations of Triton kernels, about, per number that they read or write."""

UNREAD = ("zero", "fill", "copy")
"""Calls that write their first tensor without a read."""

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Operations and bytes by the name of what was called."""

    by_op: Mapping[str, tuple[float, float]]

    @property
    def flops(self) -> float:
        """Return all operations."""
        return sum((flops for flops, _ in self.by_op.values()), 0.0)

    @property
    def bytes(self) -> float:
        """Return all bytes that are read and written."""
        return sum((moved for _, moved in self.by_op.values()), 0.0)

    def plus(self, other: "Counts", factor: float) -> "Counts":
        """Return the sum with ``factor`` times another one."""
        by_op = dict(self.by_op)
        for name, (flops, moved) in other.by_op.items():
            earlier = by_op.get(name, (0.0, 0.0))
            by_op[name] = earlier[0] + factor * flops, earlier[1] + factor * moved
        return Counts(by_op=by_op)


class Counter(TorchDispatchMode):
    """Counts all calls within its block, also in backward passes.

    With ``dry``, calls that write into their inputs are counted without being done.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch loads its compiler, for seconds

    def __init__(self, *, dry: bool = False) -> None:
        super().__init__()
        self.dry = dry
        self.by_op: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> "Counter":
        """Count from now on."""
        open_counters.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Count no longer."""
        super().__exit__(*error)
        open_counters.pop()

    @property
    def counts(self) -> Counts:
        """Return what was counted so far."""
        return Counts(by_op=dict(self.by_op))

    def add(self, name: str, flops: float, read: Iterable[Tensor], written: Iterable[Tensor] = ()) -> None:
        """Count a call."""
        moved = sum(map(size_of, {id(one): one for one in read}.values())) + sum(map(size_of, written))
        earlier = self.by_op.get(name, (0.0, 0.0))
        self.by_op[name] = earlier[0] + flops, earlier[1] + moved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do and count a call of torch."""
        options, (name, kind, places) = kwargs or {}, kind_of(func)
        if not (self.dry and places):
            result = func(*args, **options)
        else:
            result = args[0] if func._schema.returns else None
        if kind != "view":
            read = list(tensors_in((*args, *options.values())))
            written = list(tensors_in([args[place] for place in places if place < len(args)] or [result]))
            flops = flops_of(kind, name, args, read, written)
            self.add(name, flops, read[1:] if name in UNREAD and places else read, written)
        return result

    def add_launch(self, kernel: Any, inputs: Iterable[Any], options: Mapping[str, Any]) -> None:
        """Count the launch of a Triton kernel."""
        name = getattr(kernel, "fn", kernel).__name__
        tensors = list({id(one): one for one in inputs if isinstance(one, Tensor)}.values())
        self.add(name, launch_flops(name, tensors, options), tensors)


open_counters: list[Counter] = []  # no ContextVar: gradients are computed in threads of their own


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor in memory; expanded axes take none."""
    if 0 in tensor.stride() and tensor.numel():
        return tensor.element_size() * int(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1)
    return tensor.numel() * tensor.element_size()


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


@cache
def kind_of(func: Any) -> tuple[str, str, tuple[int, ...]]:
    """Return name and kind of a call of torch, and the places of arguments that it writes."""
    name, schema = func._schema.name.partition("::")[2], func._schema
    writes = tuple(
        place for place, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write
    )
    name = name.removesuffix("_") if writes else name
    aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    base = name.removeprefix("_foreach_")
    if func.namespace != "aten" or aliases or name.startswith(("_unsafe_view", "_local_scalar", "empty", "new_empty")):
        kind = "view"
    elif name in PRODUCTS:
        kind = "product"
    elif "attention" in name or "convolution" in name:
        kind = "torch"
    elif "embedding_bag" in name:
        kind = "bag"
    elif Tag.reduction in func.tags or base in ARITHMETIC:
        kind = "reading"
    elif name not in ("clone", *UNREAD) and (Tag.pointwise in func.tags or base not in (name, *UNREAD)):
        kind = "writing"
    else:
        kind = "copy"
    return name, kind, writes


def flops_of(kind: str, name: str, args: Sequence[Any], read: Sequence[Tensor], written: Sequence[Tensor]) -> float:
    """Return the operations of a call of torch."""
    if kind == "product":
        lhs, rhs = read[-2:]
        return 2.0 * lhs.numel() * (rhs.shape[-1] if rhs.dim() > 1 else 1)
    if kind == "bag":  # a sum of rows, with weights or without
        return float(args[1].numel() * args[0].shape[1] * (2 if len(args) > 6 and args[6] is not None else 1))
    if kind == "writing":
        return float((1 + name.startswith("addc")) * sum(one.numel() for one in written))
    if kind == "reading":
        return float(ARITHMETIC.get(name, 1) * max((one.numel() for one in read), default=0))
    return torch_flops(name, args, read, written) if kind == "torch" else 0.0


def torch_flops(name: str, args: Sequence[Any], read: Sequence[Tensor], written: Sequence[Tensor]) -> float:
    """Return those of attention and convolutions by torch's counter."""
    from torch.utils import flop_counter  # which loads for a sixth of a second

    if "attention" in name:
        first = "backward" in name  # whose first tensor is the incoming gradient
        forward = float(flop_counter.sdpa_flop_count(*(tuple(one.shape) for one in read[first : first + 3])))
        return 2.5 * forward if first else forward
    formula = flop_counter.flop_registry.get(getattr(ops.aten, name), lambda *_, out_val: 0)
    return float(formula(*args, out_val=written[0] if len(written) == 1 else tuple(written)))


def launch_flops(name: str, tensors: Sequence[Tensor], options: Mapping[str, Any]) -> float:
    """Return the operations of a Triton kernel.

    Products of edges are multiplied and summed; a derivative along directions is a sum of such products.
    """
    *operands, out = (one for one in tensors if one.is_floating_point())
    if name == "add_ends":
        return float((len(operands) - 1) * out.numel())
    if name not in ("sum_rows", "multiply_ends", "dot_ends"):
        return PER_NUMBER.get(name, 1.0) * sum((one.numel() for one in (*operands, out)), 0.0)
    along = int(options["TANGENTS"]).bit_count()
    factors = len(operands) - along
    items, widths = max(map(len, tensors)), [one[:1].numel() for one in (*operands, out)]
    numbers = items * max(widths)
    flops = numbers * ((factors > 1) + (out.numel() < numbers)) + max(0, factors - 2) * numbers / max(1, min(widths))
    functions = (0, 1, 7)[options.get("FUNCTION", 0)] * max(one.numel() for one in operands)
    return float(max(1, along) * (flops + functions))
