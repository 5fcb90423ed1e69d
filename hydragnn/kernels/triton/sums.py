"""Triton kernels of sums over the edges of a row, without atomics.

Rows of more than ``SPLIT`` edges are left out by ``sum_rows``, which with ``WINDOWS`` sums them in windows of ``SPLIT`` edges;
``join_windows`` adds the windows in their order. Every sum has one order, so that the same numbers give the same bits.

Names: C channels of one axis = ``units * VEC``, so that the compiler knows what divides C; BE x BF edges x channels of a
tile; ACC the dtype of sums; OFF that of offsets, int64 where a tensor has 2^31 elements. Position p of a sum is the edge
``order[p]``, which has the weight ``numbers[p]``; both are p unless ``ORDER``, ``NUMBERED``. ``WEIGHT``: 0 none, 1 per edge, 2 per edge and channel, 3 per edge and head of ``width`` channels. There is one sum per axis,
of x by axes where ``X_AXES``, of x times the edge's number for the axis where ``ALONG``; a program holds those of a ``GROUP`` of at
most three axes. Where ``INNER`` is more than 1, x has so many axes, which are summed along the edge's numbers before they are weighed.
Rows and axes of x and rows of weights per channel lie ``x_row``, ``x_axis`` and ``w_row`` units apart.

``FUNCTION``: 1 sums SiLU of x, 2 the functions of ``powers``, one per axis. ``TANGENTS`` are 1 for x, 2 for the weight, 4 for the edge's numbers, added: the sum is
then the derivative of that of products in the directions ``d_x``, ``d_weight`` and ``d_along``.
"""

import triton
import triton.language as tl

SIZES = ("units", "edges", "num_edges", "none", "width", "x_row", "x_axis", "w_row", "d_row", "d_axis", "dw_row",
         "lhs_row", "lhs_axis", "rhs_row", "rhs_axis", "dl_row", "dl_axis", "dr_row", "dr_axis", "g_row", "rows")  # fmt: skip
"""Arguments on whose values no kernel is specialised: one binary serves all sizes."""


@triton.jit
def tangent(v, t, w, dw, T: tl.constexpr, D: tl.constexpr):
    """Return the derivative of v * w in the directions t and dw, where ``T`` and ``D``."""
    result = v
    if T:
        result = t * w
        if D:
            result += v * dw
    else:
        if D:
            result = v * dw
    return result


@triton.jit
def silu_and_slope(x):
    """Return SiLU and its first derivative."""
    s = 1.0 / (1.0 + tl.exp(-x))
    return x * s, s * (1.0 + x * (1.0 - s))


@triton.jit
def powers_and_slopes(x):
    """Return t^4 and t^-4 with t = exp(asinh x), and the inverse of their growth's root."""
    root = tl.sqrt(1.0 + x * x)
    most = root + tl.abs(x)
    least = 1.0 / most
    most, least = most * most, least * least
    most, least = most * most, least * least
    return tl.where(x >= 0, most, least), tl.where(x >= 0, least, most), 1.0 / root


@triton.jit
def _weights(weight, k, w_row, f, C, width, valid, mask,
             WEIGHT: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """Load the weights of a tile."""
    if WEIGHT == 1:
        w = tl.load(weight + k, mask=valid, other=0.0).to(ACC)[:, None]
    elif WEIGHT == 2:
        w = tl.load(weight + (k[:, None] * w_row + f[None, :]), mask=mask, other=0.0).to(ACC)
    else:
        w = tl.load(weight + (k[:, None] * (C // width) + (f // width)[None, :]), mask=mask, other=0.0).to(ACC)
    return w


@triton.jit
def _sum_edges(first, last, index, order, numbers, weight, along, x, d_weight, d_along, d_x, f, C, axis, width,
               x_row, x_axis, w_row, d_row, d_axis, dw_row,
               GATHER: tl.constexpr, ORDER: tl.constexpr, NUMBERED: tl.constexpr, WEIGHT: tl.constexpr, ALONG: tl.constexpr,
               INNER: tl.constexpr, AXES: tl.constexpr, GROUP: tl.constexpr, X_AXES: tl.constexpr,
               FUNCTION: tl.constexpr, TANGENTS: tl.constexpr,
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
            t0 = v0
            for inner in tl.static_range(INNER):
                held = tl.load(x + (j[:, None] * x_row + inner * x_axis + f[None, :]), mask=mask, other=0.0).to(ACC)
                u = tl.load(along + edge * INNER + inner, mask=valid, other=0.0).to(ACC)[:, None]
                v0 += held * u
                if TANGENTS & 1:
                    t0 += u * tl.load(
                        d_x + (j[:, None] * d_row + inner * d_axis + f[None, :]), mask=mask, other=0.0
                    ).to(ACC)
                if TANGENTS & 4:
                    t0 += held * tl.load(d_along + edge * INNER + inner, mask=valid, other=0.0).to(ACC)[:, None]
            v1 = v0
            v2 = v0
            t1 = t0
            t2 = t0
        else:
            at = x + (j[:, None] * x_row + axis * x_axis + f[None, :])
            v0 = tl.load(at, mask=mask, other=0.0).to(ACC)
            v1 = tl.load(at + x_axis, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 1 else v0
            v2 = tl.load(at + 2 * x_axis, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 2 else v0
            t0 = v0
            t1 = v1
            t2 = v2
            if TANGENTS & 1:
                at = d_x + (j[:, None] * d_row + axis * d_axis + f[None, :])
                t0 = tl.load(at, mask=mask, other=0.0).to(ACC)
                t1 = tl.load(at + d_axis, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 1 else t0
                t2 = tl.load(at + 2 * d_axis, mask=mask, other=0.0).to(ACC) if X_AXES and GROUP > 2 else t0
        if FUNCTION == 1:
            v0, slope = silu_and_slope(v0)
            t0 = t0 * slope
        if FUNCTION == 2:
            up, down, inverse = powers_and_slopes(v0)
            t1 = 4.0 * up * inverse * t0
            t2 = -4.0 * down * inverse * t0
            t0 = 2.0 * v0 * t0
            v0, v1, v2 = v0 * v0, up, down
        if WEIGHT:
            w = _weights(weight, k, w_row, f, C, width, valid, mask, WEIGHT, ACC)
            dw = w
            if TANGENTS & 2:
                dw = _weights(d_weight, k, dw_row, f, C, width, valid, mask, WEIGHT, ACC)
            if TANGENTS:
                t0 = tangent(v0, t0, w, dw, (TANGENTS & 1) + (TANGENTS & 4) * (INNER > 1), TANGENTS & 2)
                t1 = tangent(v1, t1, w, dw, TANGENTS & 1, TANGENTS & 2)
                t2 = tangent(v2, t2, w, dw, TANGENTS & 1, TANGENTS & 2)
            v0, v1, v2 = v0 * w, v1 * w, v2 * w
        if ALONG:
            for a in tl.static_range(GROUP):
                u = tl.load(along + edge * AXES + axis + a, mask=valid, other=0.0).to(ACC)[:, None]
                du = u
                if TANGENTS & 4:
                    du = tl.load(d_along + edge * AXES + axis + a, mask=valid, other=0.0).to(ACC)[:, None]
                if a == 0:
                    t0 = tangent(v0, t0, u, du, TANGENTS & 3, TANGENTS & 4)
                    v0 = v0 * u
                if a == 1:
                    t1 = tangent(v1, t1, u, du, TANGENTS & 3, TANGENTS & 4)
                    v1 = v1 * u
                if a == 2:
                    t2 = tangent(v2, t2, u, du, TANGENTS & 3, TANGENTS & 4)
                    v2 = v2 * u
        acc0 += t0 if TANGENTS else v0
        if GROUP > 1:
            acc1 += t1 if TANGENTS else v1
        if GROUP > 2:
            acc2 += t2 if TANGENTS else v2
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
def sum_rows(offsets, owners, index, order, numbers, weight, along, x, d_weight, d_along, d_x, out,
             units, width, x_row, x_axis, w_row, d_row, d_axis, dw_row, num_edges,
             WINDOWS: tl.constexpr, SPLIT: tl.constexpr, VEC: tl.constexpr,
             GATHER: tl.constexpr, ORDER: tl.constexpr, NUMBERED: tl.constexpr, WEIGHT: tl.constexpr, ALONG: tl.constexpr,
             INNER: tl.constexpr, AXES: tl.constexpr, GROUP: tl.constexpr, X_AXES: tl.constexpr,
             FUNCTION: tl.constexpr, TANGENTS: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum every row that is not long; ``join_windows`` overwrites the others.

    Where ``WINDOWS``, sum a window's share of long rows into two slots: slot 0 is the row of its first edge, slot 1 that of its last if another.
    """
    place = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    axis = tl.program_id(2) * GROUP
    start = place // 2 * SPLIT
    stop = tl.minimum(start + SPLIT, num_edges)
    row = tl.load(owners + tl.where(place % 2 == 0, start, stop - 1)) if WINDOWS else place
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    long = last - first > SPLIT
    if WINDOWS:
        other = (place % 2 == 0) | (row != tl.load(owners + start))
        first = tl.maximum(first, start)
        last = tl.where(long & other, tl.minimum(last, stop), first)
    else:
        last = tl.where(long, first, last)
    acc0, acc1, acc2 = _sum_edges(first, last, index, order, numbers, weight, along, x, d_weight, d_along, d_x, f, C, axis, width,
                                  (x_row * VEC).to(OFF), (x_axis * VEC).to(OFF), (w_row * VEC).to(OFF),
                                  (d_row * VEC).to(OFF), (d_axis * VEC).to(OFF), (dw_row * VEC).to(OFF),
                                  GATHER, ORDER, NUMBERED, WEIGHT, ALONG, INNER, AXES, GROUP, X_AXES, FUNCTION, TANGENTS,
                                  ACC, OFF, BE, BF)  # fmt: skip
    _store_axes(out, place.to(OFF) * (C * AXES) + axis * C, acc0, acc1, acc2, f, C, GROUP)


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
