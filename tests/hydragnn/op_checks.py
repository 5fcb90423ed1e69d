"""Every op with its specification, its forms and its tolerance, and the graphs that tests compare them on.

Specifications are short and slow, and share no kernel with what they specify. torch differentiates them, so that they specify the
derivatives of every order too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import ends, gathered_outer, ops, outer, per_receiver, pointwise, trilinear
from hydragnn.kernels.family import ANYWHERE, Form
from hydragnn.kernels.function_sums import ACTIVATED, POWER_SUMS
from hydragnn.kernels.ops import Case

ROUNDED: Mapping[torch.dtype, float] = {torch.float16: 0.006, torch.bfloat16: 0.05}
TOLERANCE: Mapping[torch.dtype, float] = {torch.float64: 1e-12, torch.float32: 1e-5, **ROUNDED}
"""Some tens of roundings in a row."""
PHASES = {**TOLERANCE, torch.float16: 0.03, torch.bfloat16: 0.2}
"""Plain torch rounds phases in half precision, of which waves make a turn; models compute lengths in more."""


def graph(num_columns: int, num_rows: int, pairs: list[tuple[int, int]]) -> Topology:
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    senders, receivers = (end.contiguous() for end in both)
    return Topology(senders=senders, receivers=receivers, num_columns=num_columns, num_rows=num_rows)


def case_graphs() -> dict[str, Topology]:
    return {
        "no edges": graph(3, 3, []),
        "one node": graph(1, 1, [(0, 0)]),
        "one edge": graph(3, 3, [(2, 0)]),
        "lone node": graph(4, 4, [(0, 0), (1, 0), (2, 1), (0, 2)]),
        "self loop, repeated edge": graph(2, 2, [(0, 0), (1, 0), (1, 0), (0, 1)]),
        "more rows than columns": graph(2, 4, [(1, 1), (0, 1), (1, 3)]),
        "all to the last": graph(5, 5, [(4 - e % 5, 4) for e in range(12)]),
        "backwards, most from one": graph(
            5, 4, [(4, 0), (3, 0), (4, 1), (4, 1), (2, 1), (4, 2), (1, 2), (4, 3), (0, 3)]
        ),
        "many": graph(6, 6, [((7 * e + e * e) % 6, e // 4) for e in range(20)]),
    }


def by_row(values: Tensor, owners: Tensor, rows: int, reduce: Callable[[Tensor], Tensor], alone: float = 0.0) -> Tensor:
    """Return ``reduce`` of each row's values, ``alone`` without any."""
    of_rows = [values[owners == row] for row in range(rows)]
    return torch.stack([reduce(own) if len(own) else values.new_full(values.shape[1:], alone) for own in of_rows])


def summed(values: Tensor, owners: Tensor, rows: int) -> Tensor:
    return by_row(values, owners, rows, lambda own: own.sum(0))


def times(values: Tensor, weight: Tensor | None, t: Topology) -> Tensor:
    """w_e v_e, with the weight of the edge or of its pair."""
    if weight is None:
        return values
    weight = weight if t.pair is None else weight[t.pair]
    return values * weight.view(len(weight), *[1] * (values.dim() - weight.dim()), *weight.shape[1:])


def edge_product(x: Tensor, g: Tensor, t: Topology, per: str) -> Tensor:
    product = x[t.senders] * g[t.receivers]
    while product.dim() > {"edge": 1, "head": 3, "channel": 2}[per]:
        product = product.sum(1)
    product = product.sum(-1, keepdim=True) if per == "head" else product
    return product if t.pair is None else summed(product, t.pair, t.num_weights)


def gather_add(received: Tensor | None, sent: Tensor, edges: Tensor | None, t: Topology) -> Tensor:
    value = sent[t.senders] if received is None else sent[t.senders] + received[t.receivers]
    return value if edges is None else value + (edges if t.pair is None else edges[t.pair])


def outer_sum(messages: Tensor, directions: Tensor, t: Topology) -> Tensor:
    return summed(messages.unsqueeze(1) * directions.unsqueeze(2), t.receivers, t.num_rows)


def power_sums(x: Tensor, w: Tensor, t: Topology) -> Tensor:
    growth = torch.asinh(x)
    functions = x.square(), torch.exp(4 * growth), torch.exp(-4 * growth)
    return torch.stack([summed(w * one, t.receivers, t.num_rows) for one in functions])


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def mean(m: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    return by_row(m, receivers, nodes, lambda own: own.mean(0))


def variance(m: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    return by_row(m, receivers, nodes, lambda own: (own - own.mean(0)).square().mean(0))


def largest(m: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    """The first among equals has the gradient."""
    return by_row(m, receivers, nodes, lambda own: own.max(0).values)


def smallest(m: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    return -largest(-m, receivers, nodes)


def std(m: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    return (variance(m, receivers, nodes) + 1e-5).sqrt()


def shares(scores: Tensor, receivers: Tensor, nodes: int) -> Tensor:
    powers = (scores - largest(scores.detach(), receivers, nodes)[receivers]).exp()
    return powers / summed(powers, receivers, nodes)[receivers]


def segment_forms(forms: Mapping[str, Any]) -> dict[str, Form]:
    return {kind: lambda x, r, nodes, form=form: form(x, (r, nodes)) for kind, form in forms.items()}


REFERENCES: Mapping[str, Callable[..., Any]] = {
    "gather_multiply_sum": lambda x, w, t: summed(times(x[t.senders], w, t), t.receivers, t.num_rows),
    "scatter_multiply_sum": lambda g, w, t: summed(times(g[t.receivers], w, t), t.senders, t.num_columns),
    "edge_product": edge_product,
    "gather_add": ops.with_absent(gather_add),
    "gather_outer_sum": lambda x, w, u, t: outer_sum(times(x[t.senders], w, t), u, t),
    "outer_sum": outer_sum,
    "along_directions": lambda u, v, t: (u.unsqueeze(2) * v[t.receivers]).sum(1),
    "along_channels": lambda m, v, t: (m.unsqueeze(1) * v[t.receivers]).sum(2),
    "segment_sum": summed,
    "segment_mean": mean,
    "segment_max": largest,
    "segment_statistics": lambda *inputs: tuple(one(*inputs) for one in (mean, smallest, largest, std)),
    "spread": lambda values, owners: values[owners],
    "activated_sum": lambda m, w, t: summed(w * silu(m), t.receivers, t.num_rows),
    "power_sums": power_sums,
    "segment_softmax": shares,
    "silu": silu,
    "lengths_and_directions": pointwise.plain_lengths,
    "radial_functions": lambda r, options: pointwise.plain_radial(r, **options)[: ops.results_of(options)],
    "ended": lambda x, y: x * y,
    "measured": lambda scalars, halves, smooth: pointwise.plain_norms(scalars, halves, smooth=smooth),
    "normalised": lambda x: pointwise.STANDARD.plain(x, floor=0.1),
    "gated": ops.with_gates(pointwise.plain_gated),
}
FORMS: Mapping[str, Mapping[str, Form]] = {
    "gather_multiply_sum": trilinear.ROW_SUM_FORMS,
    "scatter_multiply_sum": trilinear.COLUMN_SUM_FORMS,
    "edge_product": trilinear.EDGE_PRODUCT_FORMS,
    "gather_add": {kind: ops.with_absent(form) for kind, form in ends.GATHER_ADD_FORMS.items()},
    "gather_outer_sum": gathered_outer.SUM_ALONG_FORMS,
    "outer_sum": outer.OUTER_SUM_FORMS,
    "along_directions": outer.ALONG_DIRECTIONS_FORMS,
    "along_channels": outer.ALONG_CHANNELS_FORMS,
    "segment_sum": segment_forms(per_receiver.SUM_FORMS),
    "activated_sum": ACTIVATED.forms,
    "power_sums": POWER_SUMS.forms,
}
"""Ways to compute values by kind of device, of ops that are not made of others."""


CALL = "call"
"""The form that the device of the tensors has."""


class OpErrors(NamedTuple):
    """Largest differences, relative to the reference where that exceeds 1."""

    forward: float
    backward: float = 0.0
    twice: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op(ops.Op):
    reference: Callable[..., Any]
    forms: Mapping[str, Form]
    tolerance: Mapping[torch.dtype, float]

    def compare(
        self, case: Case, *, dtype: torch.dtype = torch.float64, device: str = "cpu", form: str | None = None
    ) -> OpErrors:
        """Return the differences from the reference, up to second derivatives.

        With ``form`` only the values of that form, or of a ``CALL``, are compared. The reference is computed on the CPU in fp64 from the same
        rounded numbers.
        """
        inputs = case.to(dtype=dtype)
        exact, tried = inputs.to(dtype=torch.float64), inputs.to(device)
        if form is not None:
            values = parts_of((self.call if form == CALL else self.forms[form])(*tried.tensors, *tried.rest))
            expected = parts_of(self.reference(*exact.tensors, *exact.rest))
            assert [(one.shape, one.dtype) for one in values] == [(one.shape, dtype) for one in expected]
            return OpErrors(_difference(_together(values), _together(expected)))
        actual, expected = _with_derivatives(self.call, tried), _with_derivatives(self.reference, exact)
        return OpErrors(*(_difference(ours, theirs) for ours, theirs in zip(actual, expected)))

    def within(self, errors: OpErrors, dtype: torch.dtype = torch.float64) -> bool:
        return max(errors) <= self.tolerance[dtype]


OPS: Mapping[str, Op] = {
    name: Op(
        name=name,
        call=op.call,
        variants=op.variants,
        reference=REFERENCES[name],
        forms=FORMS.get(name, {ANYWHERE: op.call}),
        tolerance=PHASES if name == "radial_functions" else TOLERANCE,
    )
    for name, op in ops.OPS.items()
}


def parts_of(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _together(value: Tensor | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts_of(value)])


def _with_derivatives(function: Callable[..., Any], case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, directional gradient and its gradient, as rows."""
    recorded = replace(case, tensors=tuple(tensor.requires_grad_() for tensor in case.tensors))
    value = _together(function(*recorded.tensors, *recorded.rest))
    # a sum that is zero records every tensor, also where an op without edges does not
    nothing = sum((tensor.sum() for tensor in recorded.tensors), value.new_zeros(())) * 0
    direction = _direction(value).requires_grad_()
    total = (value * direction).sum() + nothing * nothing
    first = torch.autograd.grad(total, recorded.tensors, create_graph=True, materialize_grads=True)
    gradient = _together(first)
    tensors = (*recorded.tensors, direction)
    second = torch.autograd.grad((gradient * _direction(gradient)).sum(), tensors, materialize_grads=True)
    return value, gradient, _together(second)


def _direction(like: Tensor) -> Tensor:
    steps = torch.arange(1, like.numel() + 1, dtype=torch.float64).cos().to(torch.bfloat16)
    return steps.to(device=like.device, dtype=like.dtype)


def _difference(actual: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    actual, expected = actual.detach().to("cpu", torch.float64), expected.detach()
    if not bool(actual.isfinite().all()):
        return float("inf")
    return float((actual - expected).abs().max() / expected.abs().max().clamp_min(1.0))
