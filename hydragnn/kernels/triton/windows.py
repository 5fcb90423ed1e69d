"""Triton kernels of reductions of long rows, by windows and joins.

A window holds parts of at most two long rows that others hold too: its slot 0 is that of the row that owns its first position,
slot 1 that of another that owns its last. One program per slot reads it; one per row joins slots in their order: no atomics,
and the same bits again.
"""

import triton
import triton.language as tl

from hydragnn.kernels.triton.segments import (
    NOWHERE,
    exponentials,
    first_of,
    merge_moments,
    reduce_edges,
    spread_edges,
    store_extreme,
    store_moments,
    store_shares,
)
from hydragnn.kernels.triton.sums import SIZES


@triton.jit
def _part(offsets, owners, num_edges, SPLIT: tl.constexpr):
    """Return row, bounds and positions of this program's slot."""
    start = (tl.program_id(0) // 2) * SPLIT
    stop = tl.minimum(start + SPLIT, num_edges)
    second = tl.program_id(0) % 2 == 1
    head = tl.load(owners + start)
    row = tl.where(second, tl.load(owners + stop - 1), head)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    begin = tl.maximum(first, start)
    idle = (last - first <= SPLIT) | (second & (row == head))
    return row, first, last, begin, tl.where(idle, begin, tl.minimum(last, stop))


@triton.jit
def _slot(window, first, SPLIT: tl.constexpr):
    """Return the slot of a window's part of the row at ``first``."""
    return 2 * window + (window * SPLIT < first).to(tl.int32)


@triton.jit(do_not_specialize=SIZES)
def reduce_windows(offsets, owners, order, x, partial, partial_edge, units, num_edges,
                   MOMENTS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, WINNERS: tl.constexpr,
                   SPLIT: tl.constexpr, VEC: tl.constexpr,
                   ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Reduce every slot to moments, extremes and their first edges."""
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    _row, _first, _last, begin, end = _part(offsets, owners, num_edges, SPLIT)
    centre, squares, count, least, least_at, most, most_at = reduce_edges(
        begin, end, order, x, f, C, MOMENTS, LOW, HIGH, WINNERS, ORDER, ACC, OFF, BE, BF)  # fmt: skip
    at = tl.program_id(0).to(OFF) * (4 * C) + f
    edge_at = tl.program_id(0).to(OFF) * (2 * C) + f
    mask = f < tl.where(end > begin, C, 0)
    if MOMENTS:
        middle, spread = merge_moments(centre, squares, count, (end - begin).to(ACC))
        tl.store(partial + at, middle, mask=mask)
        tl.store(partial + at + C, spread, mask=mask)
    if LOW:
        smallest = tl.min(least, 0)
        tl.store(partial + at + 2 * C, smallest, mask=mask)
        if WINNERS:
            tl.store(partial_edge + edge_at, first_of(least, least_at, smallest), mask=mask)
    if HIGH:
        largest = tl.max(most, 0)
        tl.store(partial + at + 3 * C, largest, mask=mask)
        if WINNERS:
            tl.store(partial_edge + edge_at + C, first_of(most, most_at, largest), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def join_reductions(offsets, partial, partial_edge, mean, variance, low, high, low_edge, high_edge, units, none,
                    MOMENTS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, WINNERS: tl.constexpr,
                    SPLIT: tl.constexpr, VEC: tl.constexpr,
                    ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Long rows from their slots, window after window."""
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    if last - first > SPLIT:
        centre = tl.full([BE, BF], 0.0, ACC)
        squares = tl.full([BE, BF], 0.0, ACC)
        count = tl.full([BE], 0.0, ACC)
        least = tl.full([BE, BF], float("inf"), ACC)
        most = tl.full([BE, BF], float("-inf"), ACC)
        least_at = tl.full([BE, BF], NOWHERE, tl.int32)
        most_at = tl.full([BE, BF], NOWHERE, tl.int32)
        windows = (last - 1) // SPLIT + 1
        for start in range(first // SPLIT, windows, BE):
            window = start + tl.arange(0, BE)
            slot = _slot(window, first, SPLIT).to(OFF)
            mask = (window < windows)[:, None] & (f < C)[None, :]
            at = partial + (slot[:, None] * (4 * C) + f[None, :])
            edge_at = partial_edge + (slot[:, None] * (2 * C) + f[None, :])
            if MOMENTS:
                held = tl.minimum(window * SPLIT + SPLIT, last) - tl.maximum(window * SPLIT, first)
                added = tl.where(window < windows, held, 0).to(ACC)
                away = tl.load(at, mask=mask, other=0.0) - centre
                share = (added / tl.maximum(count + added, 1.0))[:, None]
                squares += tl.load(at + C, mask=mask, other=0.0) + away * away * count[:, None] * share
                centre += away * share
                count += added
            if LOW:
                v = tl.load(at + 2 * C, mask=mask, other=float("inf"))
                lower = mask & ((v < least) | (least_at == NOWHERE)) if WINNERS else mask & (v < least)
                least = tl.where(lower, v, least)
                if WINNERS:
                    least_at = tl.where(lower, tl.load(edge_at, mask=mask, other=NOWHERE), least_at)
            if HIGH:
                v = tl.load(at + 3 * C, mask=mask, other=float("-inf"))
                higher = mask & ((v > most) | (most_at == NOWHERE)) if WINNERS else mask & (v > most)
                most = tl.where(higher, v, most)
                if WINNERS:
                    most_at = tl.where(higher, tl.load(edge_at + C, mask=mask, other=NOWHERE), most_at)
        place = row.to(OFF) * C + f
        if MOMENTS:
            store_moments(mean, variance, place, centre, squares, count, (last - first).to(ACC), f < C)
        if LOW:
            store_extreme(low, low_edge, place, tl.min(least, 0), least, least_at, True, none, f < C, WINNERS)
        if HIGH:
            store_extreme(high, high_edge, place, tl.max(most, 0), most, most_at, True, none, f < C, WINNERS)


@triton.jit(do_not_specialize=SIZES)
def reduce_windows_gradient(offsets, owners, order, x, mean, low_edge, high_edge, to_mean, to_variance, to_low, to_high,
                            out, units, g_row, num_edges, EXTREMES: tl.constexpr, SPLIT: tl.constexpr, VEC: tl.constexpr,
                            ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store the gradient of the messages of long rows."""
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    row, first, last, begin, end = _part(offsets, owners, num_edges, SPLIT)
    spread_edges(begin, end, last - first, row.to(OFF) * C + f, row.to(OFF) * (g_row * VEC).to(OFF) + f, order, x, mean, low_edge, high_edge,
                 to_mean, to_variance, to_low, to_high, out, f, C, ORDER, ACC, OFF, BE, BF, EXTREMES)  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def softmax_windows(offsets, owners, order, x, partial, units, num_edges, SPLIT: tl.constexpr, VEC: tl.constexpr,
                    ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Largest number of every slot, and the sum of exp(x - largest)."""
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    _row, _first, _last, begin, end = _part(offsets, owners, num_edges, SPLIT)
    largest, sums = exponentials(begin, end, order, x, f, C, ORDER, ACC, OFF, BE, BF)
    at = partial + tl.program_id(0).to(OFF) * (2 * C) + f
    mask = f < tl.where(end > begin, C, 0)
    tl.store(at, largest, mask=mask)
    tl.store(at + C, sums, mask=mask)


@triton.jit(do_not_specialize=SIZES)
def join_softmax(offsets, partial, units, SPLIT: tl.constexpr, VEC: tl.constexpr,
                 ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store the largest number and inverse sum of every long row."""
    row = tl.program_id(0)
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = tl.load(offsets + row).to(tl.int32)
    last = tl.load(offsets + row + 1).to(tl.int32)
    if last - first > SPLIT:
        most = tl.full([BE, BF], -3.0e38, ACC)
        total = tl.full([BE, BF], 0.0, ACC)
        windows = (last - 1) // SPLIT + 1
        for start in range(first // SPLIT, windows, BE):
            window = start + tl.arange(0, BE)
            mask = (window < windows)[:, None] & (f < C)[None, :]
            at = partial + (_slot(window, first, SPLIT).to(OFF)[:, None] * (2 * C) + f[None, :])
            v = tl.load(at, mask=mask, other=-3.0e38)
            higher = tl.maximum(most, v)
            total = total * tl.exp(most - higher) + tl.load(at + C, mask=mask, other=0.0) * tl.exp(v - higher)
            most = higher
        largest = tl.max(most, 0)
        sums = tl.sum(total * tl.exp(most - largest[None, :]), 0)
        place = partial + _slot(first // SPLIT, first, SPLIT).to(OFF) * (2 * C) + f
        tl.store(place, largest, mask=f < C)
        tl.store(place + C, 1.0 / tl.where(sums == 0.0, 1.0, sums), mask=f < C)


@triton.jit(do_not_specialize=SIZES)
def softmax_parts(offsets, owners, order, x, partial, out, units, num_edges, SPLIT: tl.constexpr, VEC: tl.constexpr,
                  ORDER: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store the shares of long rows from their first slots."""
    C = (units * VEC).to(OFF)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    _row, first, _last, begin, end = _part(offsets, owners, num_edges, SPLIT)
    mask = f < tl.where(end > begin, C, 0)
    place = partial + _slot(first // SPLIT, first, SPLIT).to(OFF) * (2 * C) + f
    largest = tl.load(place, mask=mask, other=0.0)
    scale = tl.load(place + C, mask=mask, other=0.0)
    store_shares(begin, end, order, x, out, largest, scale, f, C, ORDER, ACC, OFF, BE, BF)
