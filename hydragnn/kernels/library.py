"""Operators ``torch.ops.hydragnn.*`` for tracers and compilers.

Each is made from its table in ``family.py``. Its kernel is the form of the device; its fake kernel derives shapes from the form for
compilers; its derivatives are operators of the same family. A topology becomes flat arguments (``BY_ROW``), a pair of indices and a
number two (``INDICES``), or five with their order (``SEGMENTS``). Eager calls do not use these operators, since torch's dispatcher costs more than small ops do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology, searched_offsets
from hydragnn.kernels import ends, gathered_outer, outer, per_receiver, softmax, statistics, trilinear
from hydragnn.kernels.family import (
    ANYWHERE,
    FUSABLE,
    INCOMING,
    Family,
    Member,
    check_items,
    form_on,
    is_accelerated,
    operators,
    plain_forms,
)
from hydragnn.kernels.nonlinear import Nonlinear
from hydragnn.kernels.segment_order import SegmentOrder, remember_order, segment_order

ROWS = ("row_offsets", "largest_ends")
COLUMNS = ("sorted_senders", "by_sender", "column_offsets", "receivers_by_sender")
"""Arrays that follow from the edges, made once for all operators of a graph."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Structure:
    """Structure as flat arguments: schema, flattening and rebuilding."""

    schema: str
    flatten: Callable[[Any], tuple[Any, ...]]
    rebuild: Callable[..., Any]


def on_host(index: Tensor) -> bool:
    """Return True if forms for CPUs, or none, read this index."""
    return index.is_cpu and not is_accelerated(index.device.type)


def _flatten_topology(topology: Topology, *, transposed: bool) -> tuple[Any, ...]:
    arrays = _derive(topology, transposed or not on_host(topology.senders))
    operands = [arrays.get(name) for name in (*ROWS, *COLUMNS)]
    sizes = topology.num_columns, topology.num_rows, topology.num_pairs
    return topology.senders, topology.receivers, *operands, topology.pair, *sizes


def _derive(topology: Topology, transposed: bool) -> Mapping[str, Tensor]:
    """Return arrays that follow from the edges; kept with the topology."""
    senders, receivers, arrays = topology.senders, topology.receivers, topology.index_arrays
    if "row_offsets" not in arrays:
        arrays["row_offsets"] = searched_offsets(receivers, topology.num_rows)
    if on_host(senders) and "largest_ends" not in arrays:
        sizes = topology.num_columns, topology.num_rows
        arrays["largest_ends"] = torch.ops.hydragnn.largest_ends(senders, receivers, *sizes)
    if transposed and "column_offsets" not in arrays:
        arrays["sorted_senders"], arrays["by_sender"] = torch.sort(senders, stable=True)
        arrays["column_offsets"] = searched_offsets(arrays["sorted_senders"], topology.num_columns)
    if transposed:
        _ = topology.receivers_by_sender
    return arrays


def _topology(senders: Tensor, receivers: Tensor, *rest: Any) -> Topology:
    *operands, pair, num_columns, num_rows, num_pairs = rest
    edges = Topology(senders=senders, receivers=receivers, num_columns=num_columns, num_rows=num_rows)
    topology = edges if pair is None else edges.sharing(pair, num_pairs)
    topology.index_arrays.update({name: value for name, value in zip((*ROWS, *COLUMNS), operands) if value is not None})
    return topology


TOPOLOGY_SCHEMA = (
    "Tensor senders, Tensor receivers, "
    + "".join(f"Tensor? {name}, " for name in (*ROWS, *COLUMNS))
    + "Tensor? pair, SymInt num_columns, SymInt num_rows, SymInt num_pairs"
)
BY_ROW, BY_COLUMN = (
    Structure(
        schema=TOPOLOGY_SCHEMA,
        flatten=partial(_flatten_topology, transposed=transposed),
        rebuild=_topology,
    )
    for transposed in (False, True)
)
"""A topology; where forms of the family in plain torch read it by its columns, with the order of these."""
INDICES = Structure(
    schema="Tensor index, SymInt count", flatten=lambda pair: pair, rebuild=lambda index, count: (index, count)
)


def _flatten_segments(segments: tuple[Tensor, int]) -> tuple[Any, ...]:
    index, count = segments
    if not is_accelerated(index.device.type):
        return index, None, None, None, count
    order, owners, offsets, _ = segment_order(index, count)
    return index, order, None if order is None else owners, offsets, count


def _segments(index: Tensor, order: Tensor | None, owners: Tensor | None, offsets: Tensor | None, count: int) -> Any:
    if offsets is None:
        return index, count
    index = index.detach()  # compilers write other numbers into a tensor that they need no more
    remember_order(index, count, SegmentOrder(order, index if owners is None else owners, offsets, None))
    return index, count


SEGMENTS = Structure(
    schema="Tensor index, Tensor? order, Tensor? owners, Tensor? offsets, SymInt count",
    flatten=_flatten_segments,
    rebuild=_segments,
)
FAMILIES: Mapping[str, tuple[Family, Structure]] = {
    "plain": (trilinear.PLAIN, BY_COLUMN),
    "per_edge": (trilinear.PER_EDGE, BY_COLUMN),
    "per_head": (trilinear.PER_HEAD, BY_ROW),
    "per_channel": (trilinear.PER_CHANNEL, BY_ROW),
    "ends": (ends.ENDS, BY_ROW),
    "vectors": (outer.OUTER, BY_ROW),
    "gathered_outer": (gathered_outer.GATHERED_OUTER, BY_ROW),
    "sums": (per_receiver.SUMS, SEGMENTS),
    "winners": (per_receiver.WINNERS, INDICES),
}
"""All families by the name that their operators begin with."""
NONLINEAR: Sequence[Nonlinear] = (
    *(op for pair in statistics.STATISTICS_OPS.values() for op in pair),
    statistics.HOLDERS,
    softmax.SOFTMAX,
    softmax.GRADIENT,
    softmax.CURVATURE,
)


def operator_name(prefix: str, member: str) -> str:
    """Return the name of a member's operator, without its namespace."""
    return f"{prefix}_{member.replace(' ', '_')}"


def _call(prefix: str, name: str, tensors: Sequence[Tensor], structure: Any) -> Tensor:
    value: Tensor = OPERATORS[operator_name(prefix, name)](*tensors, *FAMILIES[prefix][1].flatten(structure))
    return value


def _register(library: torch.library.Library, prefix: str, name: str, members: Mapping[str, Member]) -> None:
    """Define the operator of a member: schema, kernel, shapes, derivatives."""
    member, structure = members[name], FAMILIES[prefix][1]
    count, operator = len(member.derivatives), operator_name(prefix, name)
    tensors = ", ".join(f"Tensor tensor{place}" for place in range(count))
    library.define(f"{operator}({tensors}, {structure.schema}) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))

    def kernel(*inputs: Any) -> Tensor:
        rebuilt = structure.rebuild(*inputs[count:])
        if member.items:
            check_items(member.items, inputs[:count], rebuilt)
        value = form_on(member.forms, inputs[0].device.type)(*inputs[:count], rebuilt)
        mine = all(value is not tensor for tensor in inputs)  # what is given belongs to the caller
        return value if mine else value.clone()

    def fake(*inputs: Any) -> Tensor:
        return torch.empty_like(_fusable(member, structure, *inputs), memory_format=torch.contiguous_format)

    library.impl(operator, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hydragnn::{operator}", fake, lib=library)
    setup, backward = _derivatives(prefix, member, count)
    torch.library.register_autograd(f"hydragnn::{operator}", backward, setup_context=setup, lib=library)


def _fusable(member: Member, structure: Structure, *inputs: Any) -> Tensor:
    """Compute a member in operations that a compiler fuses."""
    count = len(member.derivatives)
    with plain_forms():
        form = member.forms.get(FUSABLE, member.forms[ANYWHERE])
        return form(*inputs[:count], structure.rebuild(*inputs[count:]))


GATHERS = frozenset(
    {
        *("edge_product", "along_directions", "along_channels", "multiply_along", "contract_along"),
        *("both ends and edges", "both ends", "senders and edges", "senders", "receivers", "items", "to items"),
        *("spread", "from winner"),
    }
)
"""Members that add nothing over edges: what they read stands at the ends of one edge."""


def gathers() -> Mapping[torch._ops.OpOverload, Callable[..., Tensor]]:
    """Return operators without sums over edges, as operations that a compiler fuses.

    Where edges share weights some do sum, and give NotImplemented: they stay operators.
    """

    def fused(member: Member, structure: Structure, *inputs: Any) -> Any:
        rebuilt = structure.rebuild(*inputs[len(member.derivatives) :])
        shares = getattr(rebuilt, "pair", None) is not None
        return NotImplemented if shares else _fusable(member, structure, *inputs)

    return {
        OPERATORS[operator_name(prefix, name)]: partial(fused, member, structure)
        for prefix, (family, structure) in FAMILIES.items()
        for name, member in family.members.items()
        if name in GATHERS
    }


def _derivatives(prefix: str, member: Member, count: int) -> tuple[Callable[..., None], Callable[..., Any]]:
    """Return the functions that save a call and compute its gradients."""
    retained = {place for _, arguments in member.derivatives for place in arguments if place != INCOMING}

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        saved = {
            place: value
            for place, value in enumerate(inputs)
            if isinstance(value, Tensor) and (place in retained or place >= count)
        }
        ctx.rest = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.places = list(saved)
        ctx.save_for_backward(*saved.values())
        ctx.dtypes = [tensor.dtype for tensor in inputs[:count]]

    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        operands = list(ctx.rest)
        for place, tensor in zip(ctx.places, ctx.saved_tensors):
            operands[place] = tensor
        structure, operands = operands[count:], [*operands[:count], incoming]
        gradients: list[Tensor | None] = []
        for place, (derivative, arguments) in enumerate(member.derivatives):
            if not ctx.needs_input_grad[place]:
                gradients.append(None)
                continue
            operator = OPERATORS[operator_name(prefix, derivative)]
            gradient = operator(*[operands[argument] for argument in arguments], *structure)
            gradients.append(gradient.to(ctx.dtypes[place]))
        return *gradients, *[None] * len(structure)

    return setup, backward


def _call_nonlinear(name: str, tensors: Sequence[Tensor | None], structure: Any) -> Any:
    return OPERATORS[name](*tensors, *SEGMENTS.flatten(structure))


def _register_nonlinear(library: torch.library.Library, op: Nonlinear) -> None:
    """Define the operator of an op of edges and their receivers."""
    optional = ["?" * (place >= op.tensors - op.optional) for place in range(op.tensors)]
    tensors = ", ".join(f"Tensor{mark} tensor{place}" for place, mark in enumerate(optional))
    results = "Tensor" if op.results == 1 else f"({', '.join(['Tensor'] * op.results)})"
    tags = (torch.Tag.needs_fixed_stride_order,)
    library.define(f"{op.name}({tensors}, {SEGMENTS.schema}) -> {results}", tags=tags)

    def results_of(arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return op.value(arguments[: op.tensors], SEGMENTS.rebuild(*arguments[op.tensors :]))

    def kernel(*arguments: Any) -> Any:
        return _unpacked(results_of(arguments))

    def fake(*arguments: Any) -> Any:
        with plain_forms():
            return _unpacked(tuple(torch.empty_like(value).contiguous() for value in results_of(arguments)))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, index, order, owners, offsets, count = inputs
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*(tensors if op.keeps_tensors else ()), *results, index, order, owners, offsets)
        ctx.count = count
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(one is None for one in incoming):
            return (None,) * (op.tensors + 5)
        *saved, index, order, owners, offsets = ctx.saved_tensors
        segments = SEGMENTS.rebuild(index, order, owners, offsets, ctx.count)
        with operators():
            return *op.gradients(op.record(tuple(saved), incoming), segments), *[None] * 5

    library.impl(op.name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hydragnn::{op.name}", fake, lib=library)
    torch.library.register_autograd(f"hydragnn::{op.name}", backward, setup_context=setup, lib=library)


def _unpacked(values: tuple[Tensor, ...]) -> Any:
    return values if len(values) > 1 else values[0]


def _largest_ends(senders: Tensor, receivers: Tensor, num_columns: int, num_rows: int) -> Tensor:
    return Topology(senders=senders, receivers=receivers, num_columns=num_columns, num_rows=num_rows).largest_ends


def _register_all() -> torch.library.Library:
    library = torch.library.Library("hydragnn", "DEF")
    library.define("largest_ends(Tensor senders, Tensor receivers, SymInt num_columns, SymInt num_rows) -> Tensor")
    library.impl("largest_ends", _largest_ends, "CompositeExplicitAutograd")
    torch.library.register_fake("hydragnn::largest_ends", lambda senders, *_: senders.new_empty(2), lib=library)
    for prefix, (family, _) in FAMILIES.items():
        for name in family.members:
            _register(library, prefix, name, family.members)
        family.operator = partial(_call, prefix)
    for op in NONLINEAR:
        _register_nonlinear(library, op)
        op.operator = partial(_call_nonlinear, op.name)
    return library


LIBRARY = _register_all()
"""Keeps the operators registered for as long as this module is loaded."""
OPERATORS: Mapping[str, torch._ops.OpOverload] = {
    name: getattr(torch.ops.hydragnn, name).default
    for name in (
        *(operator_name(prefix, member) for prefix, (family, _) in FAMILIES.items() for member in family.members),
        *(op.name for op in NONLINEAR),
    )
}
"""All operators of ops by name."""
