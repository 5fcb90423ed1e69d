"""Families of ops whose derivatives are ops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, dtype
from torch.autograd import Function

T = TypeVar("T")
Form = Callable[..., Tensor]
"""One way to compute an op, without derivatives: called with its tensors, then with its structure."""
Gradients = Callable[..., tuple[Tensor, ...] | None]
"""Function of tensors, incoming gradient and structure: gradients of all tensors, or None if it does not serve them."""
ANYWHERE = "any"
"""The name of the form in plain torch, for devices that have no form of their own."""


ACCELERATORS = frozenset({"cuda"} if find_spec("triton") else ())
"""Kinds of devices with forms in Triton, which torch brings along on them; torch calls ROCm devices ``cuda`` too."""

_open_blocks: list[None] = []  # no ContextVar: gradients are computed in threads of their own


@contextmanager
def plain_forms() -> Iterator[None]:
    """Compute all ops in plain torch within the block."""
    _open_blocks.append(None)
    try:
        yield
    finally:
        _open_blocks.pop()


def form_on(forms: Mapping[str, T], device: str) -> T:
    """Return the form for a kind of device (``"cpu"``, ``"cuda"``).

    It is plain torch if the device has no form of its own, and within ``plain_forms``.
    """
    if _open_blocks:
        return forms[ANYWHERE]
    return forms.get(_taken_for.get(device, device), forms[ANYWHERE])


def on_accelerators(form: Callable[..., T]) -> dict[str, Callable[..., T]]:
    """Return a Triton form by kind of device; empty without Triton."""
    return dict.fromkeys(ACCELERATORS, form)


def forms_of(
    plain: Callable[..., T], compiled: Callable[..., T | None], triton: Callable[..., T] | None = None
) -> dict[str, Callable[..., T]]:
    """Return the forms of an op; ``plain`` serves where ``compiled`` returns None."""

    def on_cpu(*inputs: Any, **options: Any) -> T:
        value = compiled(*inputs, **options)
        return plain(*inputs, **options) if value is None else value

    return {ANYWHERE: plain, "cpu": on_cpu, **({} if triton is None else on_accelerators(triton))}


def is_accelerated(device: str) -> bool:
    """Return True if ops use Triton forms on this device."""
    return not _open_blocks and _taken_for.get(device, device) in ACCELERATORS


_taken_for: dict[str, str] = {}


@contextmanager
def taken_for(device: str, kind: str) -> Iterator[None]:
    """Give one kind of device the forms of another within the block."""
    _taken_for[device] = kind
    try:
        yield
    finally:
        del _taken_for[device]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FamilyMember:
    """An op that is linear in each of its tensors.

    ``derivatives[i]`` says what tensor i receives: a member of the family, and what it is called with, by position among
    the op's tensors; ``INCOMING`` stands for the incoming gradient.
    """

    forms: Mapping[str, Form]
    derivatives: tuple[tuple[str, tuple[int, ...]], ...]
    together: Mapping[str, Gradients] = field(default_factory=dict)
    """By kind of device, a form that computes all derivatives in one pass."""
    tangents: Mapping[str, Callable[..., Tensor]] = field(default_factory=dict)
    """By kind of device, the derivative of the value along directions ``along`` of its tensors, in one pass."""
    items: tuple[str, ...] = ()
    """Items that each tensor has one of: ``rows`` (receivers), ``columns`` (senders), ``edges`` or ``weights`` (of edges or their pairs) of its topology; () without one."""


INCOMING = -1


class Partial(NamedTuple):
    """An op of a multilinear form: the gradient of one tensor, of all others."""

    name: str
    forms: Mapping[str, Form]
    tangent: Callable[..., Tensor]
    """Its Triton form, with directions ``along`` of its tensors."""
    together: Mapping[str, Gradients] = MappingProxyType({})


def multilinear(items: Mapping[str, str], ops: Mapping[str, Partial]) -> "Family":
    """Return the family of a scalar T, linear in each tensor.

    ``items`` says what each tensor has one of, in their order; ``ops`` has the op that leaves a tensor out, which takes the others in
    this order. Its derivative with respect to a tensor is the op that leaves this tensor out, with the incoming gradient in its own place.
    """
    inputs = {one: [other for other in items if other != one] for one in ops}

    def derivative(op: str, wanted: str) -> tuple[str, tuple[int, ...]]:
        places = (INCOMING if one == op else inputs[op].index(one) for one in inputs[wanted])
        return ops[wanted].name, tuple(places)

    return Family(
        {
            op.name: FamilyMember(
                forms=op.forms,
                derivatives=tuple(derivative(left_out, one) for one in inputs[left_out]),
                together=op.together,
                tangents=on_accelerators(op.tangent),
                items=tuple(items[one] for one in inputs[left_out]),
            )
            for left_out, op in ops.items()
        }
    )


def check_items(items: Sequence[str], tensors: Sequence[Tensor], structure: Any) -> None:
    """Check the sizes of tensors against their topology.

    Forms of a device read without such checks. Raises ValueError, which shows the shape, and IndexError where an edge joins what
    is not there.
    """
    for what, tensor in zip(items, tensors, strict=True):
        count = getattr(structure, f"num_{what}")
        if tensor.shape[0] != count:
            problem = f"a tensor of shape {list(tensor.shape)} goes with {count} {what} of {structure}"
            raise ValueError(f"{problem}; it needs one item for each")
    if structure.senders.is_cpu and not is_accelerated("cpu"):
        _ = structure.largest_ends


class Family:
    """Ops whose derivatives are ops of the same family.

    ``family(name, tensors, structure)`` is the value of a member; ``structure`` (a topology, winners) is the same for all of
    a computation and has no gradient. A gradient has the dtype of its tensor.
    """

    def __init__(self, members: Mapping[str, FamilyMember]) -> None:
        """Make an op of autograd for every member."""
        self.members = members
        self._values = {name: _value(member) for name, member in members.items()}
        self._shells = {name: _shell(name, member, self).apply for name, member in members.items()}
        self._together = {
            name: _together(name, member, self)
            for name, member in members.items()
            if member.together or member.tangents
        }

    def __call__(self, name: str, tensors: Sequence[Tensor], structure: Any) -> Tensor:
        """Return the op ``name`` of the tensors, with derivatives of every order."""
        return self._shells[name](structure, *tensors)

    def gradients(
        self, name: str, operands: Sequence[Tensor], structure: Any, dtypes: Sequence[dtype], needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Return the gradient of each tensor of the op ``name``.

        Gradients have the dtypes of their tensors and are differentiable; None if not needed. ``known`` are the tensors, if any
        derivative reads them, and the incoming gradient, last.
        """
        member = self.members[name]
        kind = _kind(operands[INCOMING])
        if all(needed) and not _open_blocks and (kind in member.together or kind in member.tangents):
            return self._together[name].apply(structure, *operands)
        recorded = torch.is_grad_enabled()  # a gradient that is not has no need of a function of autograd
        return [
            (self._shells if recorded else self._values)[derivative](
                structure, *[operands[argument] for argument in arguments]
            ).to(dtypes[place])
            if needed[place]
            else None
            for place, (derivative, arguments) in enumerate(member.derivatives)
        ]


def _kind(tensor: Tensor) -> str:
    return _taken_for.get(tensor.device.type, tensor.device.type)


def add(lhs: Tensor | None, rhs: Tensor | None) -> Tensor | None:
    """Return the sum of two tensors, either of which may be None."""
    return rhs if lhs is None else lhs if rhs is None else lhs + rhs


def _value(member: FamilyMember) -> Callable[..., Tensor]:
    plain = member.forms[ANYWHERE] if len(member.forms) == 1 else None

    def value(structure: Any, *tensors: Tensor) -> Tensor:
        form = plain or form_on(member.forms, tensors[0].device.type)
        if member.items and not _open_blocks:
            check_items(member.items, tensors, structure)
        return form(*tensors, structure)

    return value


def _shell(name: str, member: FamilyMember, family: Family) -> type[Function]:
    value = family._values[name]
    # the derivative of an op that is linear in all its tensors together reads none of them
    keeps = any(argument != INCOMING for _, arguments in member.derivatives for argument in arguments)

    class Shell(Function):
        @staticmethod
        def forward(ctx: Any, structure: Any, *tensors: Tensor) -> Tensor:
            if keeps:
                ctx.save_for_backward(*tensors)
            ctx.structure, ctx.dtypes = structure, [tensor.dtype for tensor in tensors]
            return value(structure, *tensors)

        @staticmethod
        def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
            operands = (*ctx.saved_tensors, incoming)
            return None, *family.gradients(name, operands, ctx.structure, ctx.dtypes, ctx.needs_input_grad[1:])

    Shell.__name__ = Shell.__qualname__ = name  # what profilers and grad_fn show
    return Shell


def _along(
    name: str,
    family: Family,
    operands: Sequence[Tensor],
    incoming: Sequence[Tensor | None],
    needed: Sequence[bool],
    structure: Any,
) -> Iterator[Tensor | None]:
    """Yield the gradients of all derivatives of a member by its operands.

    What tensor i receives from all of them is the derivative of its own one along the incoming gradients; what the incoming gradient
    receives is that of the member.
    """
    member, kind = family.members[name], _kind(operands[INCOMING])
    directions = (*incoming, None)
    maps = (*member.derivatives, (name, tuple(range(len(incoming)))))
    for (derivative, arguments), operand, wanted in zip(maps, operands, needed, strict=True):
        tensors = [operands[argument] for argument in arguments]
        along = [directions[argument] for argument in arguments]
        present = [place for place, direction in enumerate(along) if direction is not None]
        if not wanted or not present:
            yield None
            continue
        form = family.members[derivative].tangents.get(kind)
        if form is not None and len(present) > 1:
            yield form(*tensors, structure, along=along).to(operand.dtype)
            continue
        total: Tensor | None = None
        for one in present:
            inputs = [along[place] if place == one else tensor for place, tensor in enumerate(tensors)]
            total = add(total, family._values[derivative](structure, *inputs))
        assert total is not None
        yield total.to(operand.dtype)


def _together(name: str, member: FamilyMember, family: Family) -> type[Function]:
    def one_by_one(operands: Sequence[Tensor], structure: Any) -> tuple[Tensor, ...]:
        values = []
        for (derivative, arguments), tensor in zip(member.derivatives, operands):
            form = form_on(family.members[derivative].forms, tensor.device.type)
            values.append(form(*[operands[a] for a in arguments], structure).to(tensor.dtype))
        return tuple(values)

    class Together(Function):
        @staticmethod
        def forward(ctx: Any, structure: Any, *operands: Tensor) -> tuple[Tensor, ...]:
            ctx.save_for_backward(*operands)
            ctx.structure = structure
            ctx.set_materialize_grads(False)
            form = member.together.get(_kind(operands[INCOMING]))
            values = None if form is None else form(*operands, structure)
            return one_by_one(operands, structure) if values is None else values

        @staticmethod
        def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
            operands, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
            if not torch.is_grad_enabled() and not _open_blocks and _kind(operands[INCOMING]) in member.tangents:
                return None, *_along(name, family, operands, incoming, needed, ctx.structure)
            totals: list[Tensor | None] = [None] * len(operands)
            for (derivative, arguments), u in zip(member.derivatives, incoming):
                if u is None:
                    continue
                tensors = [operands[argument] for argument in arguments]
                dtypes, wanted = [tensor.dtype for tensor in tensors], [needed[argument] for argument in arguments]
                parts = family.gradients(derivative, (*tensors, u), ctx.structure, dtypes, wanted)
                for argument, part in zip(arguments, parts):
                    totals[argument] = add(totals[argument], part)
            return None, *totals

    Together.__name__ = Together.__qualname__ = f"{name}, all derivatives"
    return Together
