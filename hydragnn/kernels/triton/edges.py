"""Triton kernels with one result per edge or number, without atomics.

Names as in ``sums``. ``TANGENTS`` are 1 for lhs, 2 for rhs, 4 for the factor or weight, added: the result is then the derivative of that of products in
the directions ``d_lhs``, ``d_rhs`` and ``d_factor``.
"""

import triton
import triton.language as tl

from hydragnn.kernels.triton.sums import SIZES, powers_and_slopes, silu_and_slope, tangent


@triton.jit(do_not_specialize=SIZES)
def multiply_ends(senders, receivers, lhs, rhs, factor, d_lhs, d_rhs, d_factor, out, units, num_edges,
                  lhs_row, lhs_axis, rhs_row, rhs_axis, w_row, dl_row, dl_axis, dr_row, dr_axis, dw_row,
                  GATHER: tl.constexpr, FACTOR: tl.constexpr, AXES: tl.constexpr, TANGENTS: tl.constexpr, VEC: tl.constexpr,
                  ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum lhs * rhs[receiver, axis, c] over axes, per edge and channel.

    lhs is [sender, axis, c] if ``GATHER``, else [e, axis]. Where ``FACTOR``, times factor[sender, c].
    """
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    valid = e < num_edges
    mask = valid[:, None] & (f < C)[None, :]
    i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
    j = tl.load(senders + e, mask=valid, other=0).to(OFF) if GATHER or FACTOR else e.to(OFF)
    acc = tl.full([BE, BF], 0.0, ACC)
    change = acc
    right = rhs + (i[:, None] * (rhs_row * VEC).to(OFF) + f[None, :])
    left = lhs + (j[:, None] * (lhs_row * VEC).to(OFF) + f[None, :])
    d_right = d_rhs + (i[:, None] * (dr_row * VEC).to(OFF) + f[None, :])
    d_left = d_lhs + (j[:, None] * (dl_row * VEC).to(OFF) + f[None, :])
    for axis in tl.static_range(AXES):
        held = tl.load(right + axis * (rhs_axis * VEC), mask=mask, other=0.0).to(ACC)
        if GATHER:
            one = tl.load(left + axis * (lhs_axis * VEC), mask=mask, other=0.0).to(ACC)
        else:
            one = tl.load(lhs + e.to(OFF) * AXES + axis, mask=valid, other=0.0).to(ACC)[:, None]
        acc += held * one
        if TANGENTS & 1:
            if GATHER:
                change += held * tl.load(d_left + axis * (dl_axis * VEC), mask=mask, other=0.0).to(ACC)
            else:
                change += held * tl.load(d_lhs + e.to(OFF) * AXES + axis, mask=valid, other=0.0).to(ACC)[:, None]
        if TANGENTS & 2:
            change += one * tl.load(d_right + axis * (dr_axis * VEC), mask=mask, other=0.0).to(ACC)
    if FACTOR:
        w = tl.load(factor + (j[:, None] * (w_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(ACC)
        dw = w
        if TANGENTS & 4:
            dw = tl.load(d_factor + (j[:, None] * (dw_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(ACC)
        if TANGENTS:
            change = tangent(acc, change, w, dw, TANGENTS & 3, TANGENTS & 4)
        acc = acc * w
    result = change if TANGENTS else acc
    tl.store(out + (e.to(OFF)[:, None] * C + f[None, :]), result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def dot_ends(senders, receivers, lhs, rhs, pair, weight, d_lhs, d_rhs, d_weight, out, units, num_edges,
             lhs_row, lhs_axis, rhs_row, rhs_axis, w_row, dl_row, dl_axis, dr_row, dr_axis, dw_row,
             GATHER: tl.constexpr, PAIR: tl.constexpr, WEIGHT: tl.constexpr, LEFT_AXES: tl.constexpr,
             AXES: tl.constexpr, GROUP: tl.constexpr, TANGENTS: tl.constexpr, VEC: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Sum lhs * rhs[receiver, axis, c] over channels, per edge and axis.

    lhs is [sender or e, c]; with ``WEIGHT``, times the weight of e and c. Where ``LEFT_AXES``, lhs is [sender, axis, c], and
    ``GROUP`` is 1.
    """
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    axis = tl.program_id(1) * GROUP
    valid = e < num_edges
    i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
    j = tl.load(senders + e, mask=valid, other=0).to(OFF) if GATHER else e.to(OFF)
    k = tl.load(pair + e, mask=valid, other=0).to(OFF) if PAIR else e.to(OFF)
    r_axis = (rhs_axis * VEC).to(OFF)
    d_axis = (dr_axis * VEC).to(OFF)
    left = j * (lhs_row * VEC).to(OFF) + (axis * (lhs_axis * VEC) if LEFT_AXES else 0)
    d_left = j * (dl_row * VEC).to(OFF) + (axis * (dl_axis * VEC) if LEFT_AXES else 0)
    right = i * (rhs_row * VEC).to(OFF) + axis * r_axis
    d_right = i * (dr_row * VEC).to(OFF) + axis * d_axis
    acc0 = tl.full([BE, BF], 0.0, ACC)
    acc1 = acc0
    acc2 = acc0
    for start in range(0, C, BF):
        f = start + tl.arange(0, BF)
        mask = valid[:, None] & (f < C)[None, :]
        one = tl.load(lhs + (left[:, None] + f[None, :]), mask=mask, other=0.0).to(ACC)
        change = one
        if TANGENTS & 1:
            change = tl.load(d_lhs + (d_left[:, None] + f[None, :]), mask=mask, other=0.0).to(ACC)
        if WEIGHT:
            w = tl.load(weight + (k[:, None] * (w_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(ACC)
            dw = w
            if TANGENTS & 4:
                dw = tl.load(d_weight + (k[:, None] * (dw_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(
                    ACC
                )
            if TANGENTS & 5:
                change = tangent(one, change, w, dw, TANGENTS & 1, TANGENTS & 4)
            one = one * w
        at = rhs + (right[:, None] + f[None, :])
        d_at = d_rhs + (d_right[:, None] + f[None, :])
        acc0 += _product(one, change, at, d_at, mask, TANGENTS, ACC)
        if GROUP > 1:
            acc1 += _product(one, change, at + r_axis, d_at + d_axis, mask, TANGENTS, ACC)
        if GROUP > 2:
            acc2 += _product(one, change, at + 2 * r_axis, d_at + 2 * d_axis, mask, TANGENTS, ACC)
    place = out + e.to(OFF) * AXES + axis
    kind = out.dtype.element_ty
    tl.store(place, tl.sum(acc0, 1).to(kind), mask=valid)
    if GROUP > 1:
        tl.store(place + 1, tl.sum(acc1, 1).to(kind), mask=valid)
    if GROUP > 2:
        tl.store(place + 2, tl.sum(acc2, 1).to(kind), mask=valid)


@triton.jit
def _product(one, change, at, d_at, mask, TANGENTS: tl.constexpr, ACC: tl.constexpr):
    """Return one times what is at ``at``, or its derivative."""
    result = one
    if (TANGENTS & 5) | (TANGENTS == 0):
        held = tl.load(at, mask=mask, other=0.0).to(ACC)
        result = change * held if TANGENTS else one * held
    if TANGENTS & 2:
        added = one * tl.load(d_at, mask=mask, other=0.0).to(ACC)
        result = result + added if TANGENTS & 5 else added
    return result


@triton.jit(do_not_specialize=SIZES)
def add_ends(senders, receivers, sent, received, carried, out, units, num_edges, lhs_row, rhs_row, x_row,
             RECEIVED: tl.constexpr, CARRIED: tl.constexpr, VEC: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Add sent[sender, c], and received[receiver, c] and carried[e, c] if given."""
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    valid = e < num_edges
    mask = valid[:, None] & (f < C)[None, :]
    j = tl.load(senders + e, mask=valid, other=0).to(OFF)
    acc = tl.load(sent + (j[:, None] * (lhs_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(ACC)
    if RECEIVED:
        i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
        acc += tl.load(received + (i[:, None] * (rhs_row * VEC).to(OFF) + f[None, :]), mask=mask, other=0.0).to(ACC)
    if CARRIED:
        place = e.to(OFF)[:, None] * (x_row * VEC).to(OFF) + f[None, :]
        acc += tl.load(carried + place, mask=mask, other=0.0).to(ACC)
    tl.store(out + (e.to(OFF)[:, None] * C + f[None, :]), acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def function_gradient(receivers, x, weight, g, d_x, d_weight, out, out_weight, units, num_edges, rhs_row, rhs_axis,
                      FUNCTION: tl.constexpr, TANGENTS: tl.constexpr, VEC: tl.constexpr,
                      ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store w g f'(x) per edge and channel, and the sum of g f(x) over channels.

    Where ``TANGENTS``, the gradients of both for u at the first and v at the second: w g u f''(x) + v g f'(x), and the sum of g u f'(x).
    """
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    valid = e < num_edges
    i = tl.load(receivers + e, mask=valid, other=0).to(OFF)
    w = tl.load(weight + e, mask=valid, other=0.0).to(ACC)[:, None]
    v = w
    if TANGENTS:
        v = tl.load(d_weight + e, mask=valid, other=0.0).to(ACC)[:, None]
    total = tl.full([BE, BF], 0.0, ACC)
    axis = (rhs_axis * VEC).to(OFF)
    for start in range(0, C, BF):
        f = start + tl.arange(0, BF)
        mask = valid[:, None] & (f < C)[None, :]
        place = e.to(OFF)[:, None] * C + f[None, :]
        at = g + (i[:, None] * (rhs_row * VEC).to(OFF) + f[None, :])
        held = tl.load(x + place, mask=mask, other=0.0).to(ACC)
        arrived = tl.load(at, mask=mask, other=0.0).to(ACC)
        if FUNCTION == 1:
            s = 1.0 / (1.0 + tl.exp(-held))
            value, slope = silu_and_slope(held)
            value, slope = value * arrived, slope * arrived
            bend = s * (1.0 - s) * (2.0 + held * (1.0 - 2.0 * s)) * arrived
        else:
            up, down, inverse = powers_and_slopes(held)
            up = up * tl.load(at + axis, mask=mask, other=0.0).to(ACC)
            down = down * tl.load(at + 2 * axis, mask=mask, other=0.0).to(ACC)
            value = held * held * arrived + up + down
            slope = 2.0 * held * arrived + 4.0 * inverse * (up - down)
            square = inverse * inverse
            turn = 4.0 * held * square * inverse
            bend = 2.0 * arrived + up * (16.0 * square - turn) + down * (16.0 * square + turn)
        if TANGENTS:
            u = tl.load(d_x + place, mask=mask, other=0.0).to(ACC)
            value = u * slope
            slope = w * u * bend + v * slope
        else:
            slope = w * slope
        total += tl.where(mask, value, 0.0)
        tl.store(out + place, slope.to(out.dtype.element_ty), mask=mask)
    tl.store(out_weight + e, tl.sum(total, 1).to(out_weight.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=SIZES)
def silu_slope_gradients(x, g, u, of_x, of_g, units,
                         VEC: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Store g u silu''(x) and u silu'(x)."""
    C = (units * VEC).to(OFF)
    f = tl.program_id(0).to(OFF) * (BE * BF) + tl.arange(0, BE * BF)
    mask = f < C
    held = tl.load(x + f, mask=mask, other=0.0).to(ACC)
    arrived = tl.load(u + f, mask=mask, other=0.0).to(ACC)
    s = 1.0 / (1.0 + tl.exp(-held))
    bend = s * (1.0 - s) * (2.0 + held * (1.0 - 2.0 * s))
    _value, slope = silu_and_slope(held)
    other = tl.load(g + f, mask=mask, other=0.0).to(ACC)
    tl.store(of_x + f, (other * arrived * bend).to(of_x.dtype.element_ty), mask=mask)
    tl.store(of_g + f, (arrived * slope).to(of_g.dtype.element_ty), mask=mask)
