"""Triton kernels of reductions per receiver, without atomics.

Names as in ``sums``; ``order[p]`` is the edge at position p where edges are sorted by receiver. One program reads a row.
"""

import triton
import triton.language as tl

from hydragnn.kernels.triton.sums import SIZES

NOWHERE = tl.constexpr(2147483647)


@triton.jit
def _store_extreme(value, edge, at, held, held_at, extreme, exists, none, mask, WINNERS: tl.constexpr):
    """Store an extreme of a row and its first edge, or ``none``."""
    tl.store(value + at, tl.where(exists, extreme, 0.0).to(value.dtype.element_ty), mask=mask)
    if WINNERS:
        winner = tl.min(tl.where(held == extreme[None, :], held_at, NOWHERE), 0)
        winner = tl.where(winner == NOWHERE, none, winner)
        tl.store(edge + at, winner.to(edge.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def reduce_rows(offsets, order, x, mean, variance, low, high, low_edge, high_edge, units, none,
                WHOLE: tl.constexpr, WINNERS: tl.constexpr, VEC: tl.constexpr, ORDER: tl.constexpr,
                ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store moments and extremes of rows; the largest alone unless ``WHOLE``.

    Extremes have their first edge if ``WINNERS``. Rows without edges get zeros and the edge ``none``. Moments per place of the tile are
    merged at the end (Chan, Golub and LeVeque 1983).
    """
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    centre = tl.full([BE, BF], 0.0, ACC)
    squares = tl.full([BE, BF], 0.0, ACC)
    count = tl.full([BE], 0.0, ACC)
    least = tl.full([BE, BF], float("inf"), ACC)
    most = tl.full([BE, BF], float("-inf"), ACC)
    least_at = tl.full([BE, BF], NOWHERE, tl.int32)
    most_at = tl.full([BE, BF], NOWHERE, tl.int32)
    for start in range(first, last, BE):
        p = start + tl.arange(0, BE)
        valid = p < last
        e = tl.load(order + p, mask=valid, other=0).to(tl.int32) if ORDER else p.to(tl.int32)
        mask = valid[:, None] & (f < C)[None, :]
        v = tl.load(x + (e.to(OFF)[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
        if WHOLE:
            count += valid.to(ACC)
            away = tl.where(mask, v - centre, 0.0)
            centre += away / tl.maximum(count, 1.0)[:, None]
            squares += away * tl.where(mask, v - centre, 0.0)
            lower = mask & ((v < least) | (least_at == NOWHERE)) if WINNERS else mask & (v < least)
            least = tl.where(lower, v, least)
            if WINNERS:
                least_at = tl.where(lower, e[:, None], least_at)
        higher = mask & ((v > most) | (most_at == NOWHERE)) if WINNERS else mask & (v > most)
        most = tl.where(higher, v, most)
        if WINNERS:
            most_at = tl.where(higher, e[:, None], most_at)
    at = row.to(OFF) * C + f
    column = f < C
    if WHOLE:
        edges = tl.maximum((last - first).to(ACC), 1.0)
        middle = tl.sum(centre * count[:, None], 0) / edges
        away = centre - middle[None, :]
        spread = tl.sum(squares + away * away * count[:, None], 0)
        tl.store(mean + at, middle.to(mean.dtype.element_ty), mask=column)
        tl.store(variance + at, (spread / edges).to(variance.dtype.element_ty), mask=column)
        _store_extreme(low, low_edge, at, least, least_at, tl.min(least, 0), last > first, none, column, WINNERS)
    _store_extreme(high, high_edge, at, most, most_at, tl.max(most, 0), last > first, none, column, WINNERS)


@triton.jit(do_not_specialize=SIZES)
def reduce_rows_gradient(offsets, order, x, mean, low_edge, high_edge, to_mean, to_variance, to_low, to_high, out, units, g_row,
                         VEC: tl.constexpr, ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store the gradient of messages from the results of ``reduce_rows``."""
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    at = row.to(OFF) * C + f
    g_at = row.to(OFF) * (g_row * VEC).to(OFF) + f
    column = f < C
    share = 1.0 / tl.maximum(last - first, 1).to(ACC)
    middle = tl.load(mean + at, mask=column, other=0.0).to(ACC)
    level = tl.load(to_mean + g_at, mask=column, other=0.0).to(ACC) * share
    slope = tl.load(to_variance + g_at, mask=column, other=0.0).to(ACC) * (2.0 * share)
    least = tl.load(to_low + g_at, mask=column, other=0.0).to(ACC)
    most = tl.load(to_high + g_at, mask=column, other=0.0).to(ACC)
    least_at = tl.load(low_edge + at, mask=column, other=-1).to(tl.int32)
    most_at = tl.load(high_edge + at, mask=column, other=-1).to(tl.int32)
    for start in range(first, last, BE):
        p = start + tl.arange(0, BE)
        valid = p < last
        e = tl.load(order + p, mask=valid, other=0).to(tl.int32) if ORDER else p.to(tl.int32)
        mask = valid[:, None] & column[None, :]
        place = e.to(OFF)[:, None] * C + f[None, :]
        v = tl.load(x + place, mask=mask, other=0.0).to(ACC)
        gradient = level[None, :] + (v - middle[None, :]) * slope[None, :]
        gradient += tl.where(e[:, None] == least_at[None, :], least[None, :], 0.0)
        gradient += tl.where(e[:, None] == most_at[None, :], most[None, :], 0.0)
        tl.store(out + place, gradient.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def reduce_rows_second(offsets, order, v, x, mean, to_variance, low_edge, high_edge, out, of_to_mean, of_to_variance,
                       of_low, of_high, units, VEC: tl.constexpr,
                       ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store the gradients of ``reduce_rows_gradient``, of messages with those of their mean.

    Where both were stored, lower precision would round away their sum.
    """
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    column = f < C
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    at = row.to(OFF) * C + f
    share = 1.0 / tl.maximum(last - first, 1).to(ACC)
    middle = tl.load(mean + at, mask=column, other=0.0).to(ACC)
    slope = tl.load(to_variance + at, mask=column, other=0.0).to(ACC) * (2.0 * share)
    total = tl.full([BE, BF], 0.0, ACC)
    turned = total
    least = total
    most = total
    least_at = tl.load(low_edge + at, mask=column, other=-1).to(tl.int32)
    most_at = tl.load(high_edge + at, mask=column, other=-1).to(tl.int32)
    for start in range(first, last, BE):
        p = start + tl.arange(0, BE)
        valid = p < last
        e = tl.load(order + p, mask=valid, other=0).to(tl.int32) if ORDER else p.to(tl.int32)
        mask = valid[:, None] & column[None, :]
        place = e.to(OFF)[:, None] * C + f[None, :]
        held = tl.load(v + place, mask=mask, other=0.0).to(ACC)
        message = tl.load(x + place, mask=mask, other=0.0).to(ACC)
        total += held
        turned += held * (message - middle[None, :])
        least += tl.where(e[:, None] == least_at[None, :], held, 0.0)
        most += tl.where(e[:, None] == most_at[None, :], held, 0.0)
    average = tl.sum(total, 0) * share
    for start in range(first, last, BE):
        p = start + tl.arange(0, BE)
        valid = p < last
        e = tl.load(order + p, mask=valid, other=0).to(OFF) if ORDER else p.to(OFF)
        mask = valid[:, None] & column[None, :]
        place = e[:, None] * C + f[None, :]
        held = tl.load(v + place, mask=mask, other=0.0).to(ACC)
        tl.store(out + place, ((held - average[None, :]) * slope[None, :]).to(out.dtype.element_ty), mask=mask)
    kind = of_to_mean.dtype.element_ty
    tl.store(of_to_mean + at, average.to(kind), mask=column)
    tl.store(of_to_variance + at, (tl.sum(turned, 0) * (2.0 * share)).to(kind), mask=column)
    tl.store(of_low + at, tl.sum(least, 0).to(of_low.dtype.element_ty), mask=column)
    tl.store(of_high + at, tl.sum(most, 0).to(of_high.dtype.element_ty), mask=column)
