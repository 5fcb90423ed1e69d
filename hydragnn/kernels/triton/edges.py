"""Triton kernels with one result per edge, without atomics."""

import triton
import triton.language as tl

from hydragnn.kernels.triton.sums import SIZES


@triton.jit(do_not_specialize=SIZES)
def multiply_ends(senders, receivers, lhs, rhs, factor, out, units, num_edges,
                  GATHER: tl.constexpr, FACTOR: tl.constexpr, AXES: tl.constexpr, VEC: tl.constexpr,
                  ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum lhs * rhs[receiver, axis, c] over axes, per edge and channel.

    lhs is [sender, axis, c] if ``GATHER``, else [e, axis].

    Where ``FACTOR``, times factor[sender, c].
    """
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    valid = e < num_edges
    mask = valid[:, None] & (f < C)[None, :]
    i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
    j = tl.load(senders + e, mask=valid, other=0).to(OFF) if GATHER or FACTOR else e.to(OFF)
    acc = tl.full([BE, BF], 0.0, ACC)
    for axis in tl.static_range(AXES):
        held = tl.load(rhs + (i[:, None] * (C * AXES) + axis * C + f[None, :]), mask=mask, other=0.0).to(ACC)
        if GATHER:
            at = lhs + (j[:, None] * (C * AXES) + axis * C + f[None, :])
            acc += held * tl.load(at, mask=mask, other=0.0).to(ACC)
        else:
            acc += held * tl.load(lhs + e.to(OFF) * AXES + axis, mask=valid, other=0.0).to(ACC)[:, None]
    if FACTOR:
        acc = acc * tl.load(factor + (j[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
    tl.store(out + (e.to(OFF)[:, None] * C + f[None, :]), acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def dot_ends(senders, receivers, lhs, rhs, pair, weight, out, units, num_edges,
             GATHER: tl.constexpr, PAIR: tl.constexpr, WEIGHT: tl.constexpr, LEFT_AXES: tl.constexpr,
             AXES: tl.constexpr, GROUP: tl.constexpr, VEC: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum lhs * rhs[receiver, axis, c] over channels, per edge and axis.

    lhs is [sender or e, c]; with ``WEIGHT``, times the weight of e and c.

    Where ``LEFT_AXES``, lhs is [sender, axis, c], and ``GROUP`` is 1.
    """
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    axis = tl.program_id(1) * GROUP
    valid = e < num_edges
    i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
    j = tl.load(senders + e, mask=valid, other=0).to(OFF) if GATHER else e.to(OFF)
    k = tl.load(pair + e, mask=valid, other=0).to(OFF) if PAIR else e.to(OFF)
    acc0 = tl.full([BE, BF], 0.0, ACC)
    acc1 = acc0
    acc2 = acc0
    for start in range(0, C, BF):
        f = start + tl.arange(0, BF)
        mask = valid[:, None] & (f < C)[None, :]
        held = lhs + (j[:, None] * (C * AXES) + axis * C + f[None, :] if LEFT_AXES else j[:, None] * C + f[None, :])
        one = tl.load(held, mask=mask, other=0.0).to(ACC)
        if WEIGHT:
            one = one * tl.load(weight + (k[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
        at = rhs + (i[:, None] * (C * AXES) + axis * C + f[None, :])
        acc0 += one * tl.load(at, mask=mask, other=0.0).to(ACC)
        if GROUP > 1:
            acc1 += one * tl.load(at + C, mask=mask, other=0.0).to(ACC)
        if GROUP > 2:
            acc2 += one * tl.load(at + 2 * C, mask=mask, other=0.0).to(ACC)
    place = out + e.to(OFF) * AXES + axis
    kind = out.dtype.element_ty
    tl.store(place, tl.sum(acc0, 1).to(kind), mask=valid)
    if GROUP > 1:
        tl.store(place + 1, tl.sum(acc1, 1).to(kind), mask=valid)
    if GROUP > 2:
        tl.store(place + 2, tl.sum(acc2, 1).to(kind), mask=valid)


@triton.jit(do_not_specialize=SIZES)
def add_ends(senders, receivers, sent, received, carried, out, units, num_edges,
             RECEIVED: tl.constexpr, CARRIED: tl.constexpr, VEC: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Add sent[sender, c], and received[receiver, c] and carried[e, c] if given."""
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    valid = e < num_edges
    mask = valid[:, None] & (f < C)[None, :]
    j = tl.load(senders + e, mask=valid, other=0).to(OFF)
    place = e.to(OFF)[:, None] * C + f[None, :]
    acc = tl.load(sent + (j[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
    if RECEIVED:
        i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
        acc += tl.load(received + (i[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
    if CARRIED:
        acc += tl.load(carried + place, mask=mask, other=0.0).to(ACC)
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=mask)
