"""Operations and bytes of a computation, counted while it runs.

Own loops and Triton kernels are counted where they are called, all else where torch dispatches it; forms in plain torch are such calls.

- A product of matrices has 2 operations per multiplication; attention is its products, and 5 for 2 of them in its gradient.
- Arithmetic by element has one per number of its result, whatever the function: exp, SiLU and + alike.
- Sums, means, norms, extremes and ``index_add`` have one per number that they read. Copies and gathers have none.
- A call moves the bytes of its distinct inputs, indices included, and of its results: caches hold all within a call and nothing
  between two. Views move nothing. Matrices that a network multiplies are moved again in every call.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tag, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
SUMS = ("index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward", "cumsum")
LARGE: Mapping[str, int] = {"softmax": 4, "layer_norm": 9, "fused_adamw": 12, "fused_sgd": 5}
"""Operations per number of the largest input, of calls with these words in their names."""
UNREAD = ("zero", "fill", "copy")
"""Calls that write their first tensor without a read."""
FREE = ("_unsafe_view", "_local_scalar", "empty", "new_empty")
"""Beginnings of names of calls that move nothing."""

KERNELS: Mapping[str, float] = {
    "radial_orders": 6.0,
    "norms_orders": 1.5,
    "ended_orders": 0.5,
    "gated_orders": 0.5,
    "silu_slope_gradients": 2.0,
    "function_gradient": 4.0,
    "reduce_rows": 6.0,
}
"""Operations of Triton kernels, about, per number that they read or write; others that sum no products have 3."""


class Counter(TorchDispatchMode):
    """Counts all calls within its block, also in backward passes.

    What cannot be counted makes its numbers NaN; the computation goes on.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch loads its compiler, for seconds

    def __init__(self) -> None:
        super().__init__()
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
    def totals(self) -> tuple[float, float]:
        """Return all operations, and all bytes that are read and written."""
        flops, moved = zip((0.0, 0.0), *self.by_op.values())
        return sum(flops), sum(moved)

    def add(self, name: str, amounts: Callable[[], tuple[float, float]]) -> None:
        """Count a call by its operations and bytes."""
        try:
            flops, moved = amounts()
        except Exception:  # a step must not end by its count
            flops = moved = math.nan
        earlier = self.by_op.get(name, (0.0, 0.0))
        self.by_op[name] = earlier[0] + flops, earlier[1] + moved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do and count a call of torch."""
        result = func(*args, **(kwargs or {}))
        if open_counters[-1] is self and not is_view(func):
            name = func._schema.name.partition("::")[2]
            self.add(name.removesuffix("_"), lambda: call_amounts(func, (*args, *(kwargs or {}).values()), result))
        return result


open_counters: list[Counter] = []  # no ContextVar: gradients are computed in threads of their own


def bytes_of(*groups: Iterable[Any]) -> float:
    """Return the bytes of each group's distinct tensors; expanded axes take none."""
    total = 0
    for tensor in (one for group in groups for one in {id(one): one for one in tensors_in(group)}.values()):
        numbers = tensor.numel()
        if numbers and 0 in tensor.stride():
            numbers = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        total += numbers * tensor.element_size()
    return float(total)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


@cache
def is_view(func: Any) -> bool:
    """Return True for calls of torch that neither compute nor move."""
    aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
    return func.namespace != "aten" or aliases or func._schema.name.removeprefix("aten::").startswith(FREE)


def call_amounts(func: Any, args: Sequence[Any], result: Any) -> tuple[float, float]:
    """Return the operations and bytes of a call of torch."""
    places = [
        n for n, one in enumerate(func._schema.arguments) if one.alias_info is not None and one.alias_info.is_write
    ]
    name = func._schema.name.removeprefix("aten::")
    name = name.removesuffix("_") if places else name
    read, written = [*tensors_in(args)], [*tensors_in([args[n] for n in places if n < len(args)] or [result])]
    moved = bytes_of(read[1:] if name in UNREAD and places else read, written)
    largest, base = max((one.numel() for one in read), default=0), name.removeprefix("_foreach_")
    if name in PRODUCTS:
        lhs, rhs = read[-2:]
        return 2.0 * lhs.numel() * (rhs.shape[-1] if rhs.dim() > 1 else 1), moved
    if "attention" in name:
        queries, keys = read[1:3] if (back := "backward" in name) else read[:2]
        return float((10 if back else 4) * queries.numel() * keys.shape[-2]), moved
    if "embedding_bag" in name:  # a sum of rows, with weights or without
        return float(args[1].numel() * args[0].shape[1] * (2 if len(args) > 6 and args[6] is not None else 1)), moved
    large = next((number for word, number in LARGE.items() if word in name), int(base in SUMS))
    if large or Tag.reduction in func.tags:
        return float(max(large, 1) * largest), moved
    if name not in ("clone", *UNREAD) and (Tag.pointwise in func.tags or base not in (name, *UNREAD)):
        return float((1 + name.startswith("addc")) * sum(one.numel() for one in written)), moved
    return 0.0, moved


def launch_amounts(name: str, inputs: Iterable[Any], options: Mapping[str, Any]) -> tuple[float, float]:
    """Return the operations and bytes of a Triton kernel.

    Products of edges are multiplied and summed; a derivative along directions is a sum of such products.
    """
    tensors = list({id(one): one for one in tensors_in(inputs)}.values())
    *operands, out = (one for one in tensors if one.is_floating_point())
    every, moved = sum(one.numel() for one in (*operands, out)), bytes_of(tensors)
    if name == "add_ends":
        return float((len(operands) - 1) * out.numel()), moved
    if name not in ("sum_rows", "multiply_ends", "dot_ends"):
        return KERNELS.get(name, 3.0) * every, moved
    along = int(options["TANGENTS"]).bit_count()
    factors, widths = len(operands) - along, [one[:1].numel() for one in (*operands, out)]
    numbers = max(map(len, tensors)) * max(widths)
    flops = numbers * ((factors > 1) + (out.numel() < numbers)) + max(0, factors - 2) * numbers / max(1, min(widths))
    functions = (0, 1, 7)[options.get("FUNCTION", 0)] * max(one.numel() for one in operands)
    return float(max(1, along) * (flops + functions)), moved
