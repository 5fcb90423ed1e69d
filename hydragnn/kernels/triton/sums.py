"""Triton kernels of sums over the edges of a row, without atomics.

Rows of more than ``SPLIT`` edges are left out by ``sum_rows``: ``sum_windows`` sums them in windows of ``SPLIT`` edges, and
``join_windows`` adds the windows in their order. Every sum has one order, so that the same numbers give the same bits.

Names: C channels of one axis = ``units * VEC``, so that the compiler knows what divides C; BE x BF edges x channels of a
tile; ACC the dtype of sums; OFF that of offsets, int64 where a tensor has 2^31 elements. Position p of a sum is the edge
``order[p]``, which has the weight ``numbers[p]``; both are p unless ``ORDER``, ``NUMBERED``. ``WEIGHT``: 0 none, 1 per edge, 2 per edge and channel, 3 per edge and head of ``width`` channels. There is one sum per axis,
of x by axes where ``X_AXES``, of x times the edge's number for the axis where ``ALONG``; a program holds those of a ``GROUP`` of at
most three axes. Where ``INNER`` is more than 1, x has so many axes, which are summed along the edge's numbers before they are weighed.
"""

import triton
import triton.language as tl

SIZES = ("units", "edges", "num_edges", "none", "width")
"""Arguments on whose values no kernel is specialised: one binary serves all sizes."""


@triton.jit
def _sum_edges(first, last, index, order, numbers, weight, along, x, f, C, axis, width,
               GATHER: tl.constexpr, ORDER: tl.constexpr, NUMBERED: tl.constexpr, WEIGHT: tl.constexpr, ALONG: tl.constexpr,
               INNER: tl.constexpr, AXES: tl.constexpr, GROUP: tl.constexpr, X_AXES: tl.constexpr,
               ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum positions first to last, per place of the tile and axis."""
    acc0 = tl.full([BE, BF], 0.0, ACC)
    acc1 = acc0
    acc2 = acc0
    for start in range(first, last, BE):
        p = start + tl.arange(0, BE)
        valid = p < last
        mask = valid[:, None] & (f < C)[None, :]
        j = tl.load(index + p, mask=valid, other=0).to(OFF) if GATHER else p.to(OFF)
        edge = tl.load(order + p, mask=valid, other=0).to(OFF) if ORDER else p.to(OFF)
        k = tl.load(numbers + p, mask=valid, other=0).to(OFF) if NUMBERED else p.to(OFF)
        if INNER > 1:
            v0 = tl.full([BE, BF], 0.0, ACC)
            for inner in tl.static_range(INNER):
                held = tl.load(x + (j[:, None] * (C * INNER) + inner * C + f[None, :]), mask=mask, other=0.0).to(ACC)
                v0 += held * tl.load(along + edge * INNER + inner, mask=valid, other=0.0).to(ACC)[:, None]
            v1 = v0
            v2 = v0
        else:
            at = x + (j[:, None] * (C * AXES) + axis * C + f[None, :] if X_AXES else j[:, None] * C + f[None, :])
            v0 = tl.load(at, mask=mask, other=0.0).to(ACC)
            v1 = tl.load(at + C, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 1 else v0
            v2 = tl.load(at + 2 * C, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 2 else v0
        if WEIGHT == 1:
            w = tl.load(weight + k, mask=valid, other=0.0).to(ACC)[:, None]
            v0, v1, v2 = v0 * w, v1 * w, v2 * w
        if WEIGHT == 2:
            w = tl.load(weight + (k[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
            v0, v1, v2 = v0 * w, v1 * w, v2 * w
        if WEIGHT == 3:
            w = tl.load(weight + (k[:, None] * (C // width) + (f // width)[None, :]), mask=mask, other=0.0).to(ACC)
            v0, v1, v2 = v0 * w, v1 * w, v2 * w
        if ALONG:
            v0 = v0 * tl.load(along + edge * AXES + axis, mask=valid, other=0.0).to(ACC)[:, None]
            if GROUP > 1:
                v1 = v1 * tl.load(along + edge * AXES + axis + 1, mask=valid, other=0.0).to(ACC)[:, None]
            if GROUP > 2:
                v2 = v2 * tl.load(along + edge * AXES + axis + 2, mask=valid, other=0.0).to(ACC)[:, None]
        acc0 += v0
        if GROUP > 1:
            acc1 += v1
        if GROUP > 2:
            acc2 += v2
    return acc0, acc1, acc2


@triton.jit
def _store_axes(out, at, acc0, acc1, acc2, f, C, GROUP: tl.constexpr):
    """One row, axis after axis, from its sums per place."""
    kind = out.dtype.element_ty
    tl.store(out + at + f, tl.sum(acc0, 0).to(kind), mask=f < C)
    if GROUP > 1:
        tl.store(out + at + C + f, tl.sum(acc1, 0).to(kind), mask=f < C)
    if GROUP > 2:
        tl.store(out + at + 2 * C + f, tl.sum(acc2, 0).to(kind), mask=f < C)


@triton.jit(do_not_specialize=SIZES)
def sum_rows(offsets, index, order, numbers, weight, along, x, out, units, width,
             SPLIT: tl.constexpr, VEC: tl.constexpr,
             GATHER: tl.constexpr, ORDER: tl.constexpr, NUMBERED: tl.constexpr, WEIGHT: tl.constexpr, ALONG: tl.constexpr,
             INNER: tl.constexpr, AXES: tl.constexpr, GROUP: tl.constexpr, X_AXES: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum every row that is not long; ``join_windows`` overwrites the others."""
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    axis = tl.program_id(2) * GROUP
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    last = tl.where(last - first > SPLIT, first, last)
    acc0, acc1, acc2 = _sum_edges(first, last, index, order, numbers, weight, along, x, f, C, axis, width,
                                  GATHER, ORDER, NUMBERED, WEIGHT, ALONG, INNER, AXES, GROUP, X_AXES, ACC, OFF, BE, BF)  # fmt: skip
    _store_axes(out, row.to(OFF) * (C * AXES) + axis * C, acc0, acc1, acc2, f, C, GROUP)


@triton.jit(do_not_specialize=SIZES)
def sum_windows(offsets, owners, index, order, numbers, weight, along, x, partial, units, width, num_edges,
                SPLIT: tl.constexpr, VEC: tl.constexpr,
                GATHER: tl.constexpr, ORDER: tl.constexpr, NUMBERED: tl.constexpr, WEIGHT: tl.constexpr, ALONG: tl.constexpr,
                INNER: tl.constexpr, AXES: tl.constexpr, GROUP: tl.constexpr, X_AXES: tl.constexpr,
                ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum a window's share of long rows."""
    window = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    axis = tl.program_id(2) * GROUP
    first = window * SPLIT
    last = tl.minimum(first + SPLIT, num_edges)
    head = tl.load(owners + first)
    tail = tl.load(owners + last - 1)
    head_first = tl.load(offsets + head).to(tl.int32)
    head_last = tl.load(offsets + head + 1).to(tl.int32)
    if head_last - head_first > SPLIT:
        acc0, acc1, acc2 = _sum_edges(first, tl.minimum(head_last, last), index, order, numbers, weight, along, x, f, C, axis, width,
                                      GATHER, ORDER, NUMBERED, WEIGHT, ALONG, INNER, AXES, GROUP, X_AXES, ACC, OFF, BE, BF)  # fmt: skip
        _store_axes(partial, (2 * window).to(OFF) * (C * AXES) + axis * C, acc0, acc1, acc2, f, C, GROUP)
    tail_first = tl.load(offsets + tail).to(tl.int32)
    tail_last = tl.load(offsets + tail + 1).to(tl.int32)
    if (tail != head) & (tail_last - tail_first > SPLIT):
        acc0, acc1, acc2 = _sum_edges(tail_first, last, index, order, numbers, weight, along, x, f, C, axis, width,
                                      GATHER, ORDER, NUMBERED, WEIGHT, ALONG, INNER, AXES, GROUP, X_AXES, ACC, OFF, BE, BF)  # fmt: skip
        _store_axes(partial, (2 * window + 1).to(OFF) * (C * AXES) + axis * C, acc0, acc1, acc2, f, C, GROUP)


@triton.jit(do_not_specialize=SIZES)
def join_windows(offsets, partial, out, units,
                 SPLIT: tl.constexpr, VEC: tl.constexpr,
                 ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum the windows of long rows."""
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    if last - first > SPLIT:
        acc = tl.full([BE, BF], 0.0, ACC)
        end = (last - 1) // SPLIT + 1
        for start in range(first // SPLIT, end, BE):
            window = start + tl.arange(0, BE)
            slot = 2 * window + (window * SPLIT < first).to(tl.int32)
            mask = (window < end)[:, None] & (f < C)[None, :]
            acc += tl.load(partial + (slot.to(OFF)[:, None] * C + f[None, :]), mask=mask, other=0.0)
        tl.store(out + row.to(OFF) * C + f, tl.sum(acc, 0).to(out.dtype.element_ty), mask=f < C)
