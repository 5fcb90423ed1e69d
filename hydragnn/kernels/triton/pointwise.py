"""Triton kernels of functions that are computed row by row.

Each serves a function and its derivatives. ``ORDER`` 0 is its value; 1 is the gradient of its tensors from the incoming ``u``; 2 is the gradient of
that, of its tensors and of ``u``, from the incoming ``v``. Arguments are tensors x, incoming u and v, and results; what an order does not read is any of them.
"""

import triton
import triton.language as tl

from hydragnn.kernels.triton.sums import SIZES


@triton.jit
def _tile(units, rows, VEC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):
    """Return rows and channels of a tile, their number, and a mask."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    C = (units * VEC).to(OFF)
    return e.to(OFF)[:, None], f[None, :], C, (e < rows)[:, None] & (f < C)[None, :]


@triton.jit
def _read(array, place, mask, ACC: tl.constexpr):
    return tl.load(array + place, mask=mask, other=0.0).to(ACC)


@triton.jit
def _write(array, place, mask, values):
    tl.store(array + place, values.to(array.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def lengths_orders(x, u0, u1, v, out0, out1, out2, units, rows,
                   ORDER: tl.constexpr, DIM: tl.constexpr, VEC: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr,
                   BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Length r and direction d = x / r of vectors.

    P = 1 - d d^T is the slope of d times r.
    """
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.arange(0, 4)
    one, mask = e < rows, (e < rows)[:, None] & (f < DIM)[None, :]
    place = e.to(OFF)[:, None] * DIM + f[None, :]
    a = _read(x, place, mask, ACC)
    square = tl.sum(a * a, 1)
    r = tl.sqrt(tl.where(square == 0, square + 1e-12, square))
    inverse = tl.where(square == 0, 0.0, 1 / r)
    d = a * inverse[:, None]
    if ORDER == 0:
        _write(out0, e, one, r)
        _write(out1, place, mask, d)
    else:
        g, h = _read(u0, e, one, ACC), _read(u1, place, mask, ACC)
        along = tl.sum(h * d, 1)
        across = (h - d * along[:, None]) * inverse[:, None]
        if ORDER == 1:
            _write(out0, place, mask, g[:, None] * d + across)
        else:
            w = _read(v, place, mask, ACC)
            w_along = tl.sum(w * d, 1)
            w_across = (w - d * w_along[:, None]) * inverse[:, None]
            bent = w_across * along[:, None] + across * w_along[:, None] + d * tl.sum(w * across, 1)[:, None]
            _write(out0, place, mask, w_across * g[:, None] - bent * inverse[:, None])
            _write(out1, e, one, w_along)
            _write(out2, place, mask, w_across)


@triton.jit
def _power(x, N: tl.constexpr):
    result = x * 0 + 1
    for _ in tl.static_range(N):
        result = result * x
    return result


@triton.jit(do_not_specialize=SIZES)
def radial_orders(x, u0, u1, v, out0, out1, out2, units, rows,
                  ORDER: tl.constexpr, GAUSSIAN: tl.constexpr, COUNT: tl.constexpr, STEP: tl.constexpr, AMPLITUDE: tl.constexpr,
                  ENVELOPE: tl.constexpr, CUTOFF: tl.constexpr, ENDED: tl.constexpr,
                  VEC: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Radial functions of lengths, a one, zeros, and the envelope.

    Functions are a sin(n s r) / r, or exp(-(r / s - n)^2 / 2). ``ENVELOPE`` is -1 without, 0 for a cosine, else the exponent. Where ``ENDED``, functions are
    times the envelope. A program has all columns of its rows.
    """
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.arange(0, BF)
    C = (units * VEC).to(OFF)
    one, mask = e < rows, (e < rows)[:, None] & (f < C)[None, :]
    place = e.to(OFF)[:, None] * C + f[None, :]
    r = tl.load(x + e, mask=one, other=1.0).to(ACC)
    n = f.to(ACC)[None, :]
    if GAUSSIAN:
        t = r[:, None] * (1 / STEP) - n
        y = tl.exp(-0.5 * t * t)
        y = tl.where(y > 1e-30, y, 0.0)
        dy = -t * y * (1 / STEP)
        ddy = (t * t - 1) * y * (1 / STEP / STEP)
    else:
        k, inverse = (n + 1) * STEP, 1 / r[:, None]
        s, c = tl.sin(r[:, None] * k), tl.cos(r[:, None] * k)
        y = AMPLITUDE * s * inverse
        dy = (AMPLITUDE * k * c - y) * inverse
        ddy = -k * k * y - 2 * dy * inverse
    inside = (f < COUNT)[None, :]
    y = tl.where(inside, y, tl.where((f == COUNT)[None, :], 1.0, 0.0))
    dy, ddy = tl.where(inside, dy, 0.0), tl.where(inside, ddy, 0.0)
    z = tl.minimum(r * (1 / CUTOFF), 1.0)
    slope = tl.where(r < CUTOFF, z * 0 + 1 / CUTOFF, 0.0)
    if ENVELOPE > 0:
        P: tl.constexpr = ENVELOPE
        A: tl.constexpr = -(ENVELOPE + 1) * (ENVELOPE + 2) / 2
        B: tl.constexpr = ENVELOPE * (ENVELOPE + 2)
        D: tl.constexpr = -ENVELOPE * (ENVELOPE + 1) / 2
        low = _power(z, P - 2 if P > 2 else 0)
        below = low * z if P > 1 else low
        env = 1 + below * z * (A + z * (B + D * z))
        d_env = slope * below * (P * A + z * ((P + 1) * B + (P + 2) * D * z))
        dd_env = slope * slope * low * (P * (P - 1) * A + z * ((P + 1) * P * B + (P + 2) * (P + 1) * D * z))
    elif ENVELOPE == 0:
        angle, turn = z * 3.141592653589793, slope * 3.141592653589793
        env, d_env = 0.5 * (tl.cos(angle) + 1), -0.5 * turn * tl.sin(angle)
        dd_env = -0.5 * turn * turn * tl.cos(angle)
    else:
        env, d_env, dd_env = z * 0 + 1, z * 0, z * 0
    if ENDED:
        ddy = ddy * env[:, None] + 2 * dy * d_env[:, None] + y * dd_env[:, None]
        dy = dy * env[:, None] + y * d_env[:, None]
        y = y * env[:, None]
    if ORDER == 0:
        _write(out0, place, mask, y)
        _write(out1, e, one, env)
    else:
        g, h = _read(u0, place, mask, ACC), _read(u1, e, one, ACC)
        if ORDER == 1:
            _write(out0, e, one, tl.sum(g * dy, 1) + h * d_env)
        else:
            w = _read(v, e, one, ACC)
            _write(out0, e, one, w * (tl.sum(g * ddy, 1) + h * dd_env))
            _write(out1, place, mask, w[:, None] * dy)
            _write(out2, e, one, w * d_env)


@triton.jit(do_not_specialize=SIZES)
def ended_orders(x0, x1, u, v0, v1, out0, out1, out2, units, rows,
                 ORDER: tl.constexpr, VEC: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr,
                 BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Rows times a number each: x0 x1."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    C = (units * VEC).to(OFF)
    one = e < rows
    factor = _read(x1, e, one, ACC)[:, None]
    w = factor * 0
    if ORDER == 2:
        w = _read(v1, e, one, ACC)[:, None]
    total = tl.full([BE, BF], 0.0, ACC)
    for start in range(0, C, BF):
        f = start + tl.arange(0, BF)
        mask = one[:, None] & (f < C)[None, :]
        place = e.to(OFF)[:, None] * C + f[None, :]
        a = _read(x0, place, mask, ACC)
        if ORDER == 0:
            _write(out0, place, mask, a * factor)
        else:
            g = _read(u, place, mask, ACC)
            if ORDER == 1:
                _write(out0, place, mask, g * factor)
                total += g * a
            else:
                t = _read(v0, place, mask, ACC)
                _write(out0, place, mask, g * w)
                _write(out2, place, mask, t * factor + a * w)
                total += g * t
    if ORDER > 0:
        _write(out1, e, one, tl.sum(total, 1))


@triton.jit
def _mean(values, C):
    return (tl.sum(values, 1) / C)[:, None]


@triton.jit(do_not_specialize=SIZES)
def standard_orders(x, u, v, of_x, of_u, units, rows,
                    ORDER: tl.constexpr, FLOOR: tl.constexpr, VEC: tl.constexpr, ACC: tl.constexpr, OFF: tl.constexpr,
                    BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Rows of mean 0 and variance 1; programs have whole rows.

    Derivatives are by P z = z - <z> - y <z y>.
    """
    e, f, C, mask = _tile(units, rows, VEC, OFF, BE, BF)
    place = e * C + f
    a = _read(x, place, mask, ACC)
    centred = tl.where(mask, a - _mean(a, C), 0.0)
    slope = 1 / tl.sqrt(_mean(centred * centred, C) + FLOOR)
    y = centred * slope
    if ORDER == 0:
        _write(of_x, place, mask, y)
    else:
        g = _read(u, place, mask, ACC)
        g_mean, g_along = _mean(g, C), _mean(g * y, C)
        if ORDER == 1:
            _write(of_x, place, mask, slope * (g - g_mean - y * g_along))
        else:
            w = _read(v, place, mask, ACC)
            w_mean, w_along = _mean(w, C), _mean(w * y, C)
            both = g_along * w + w_along * g - (g_along * w_mean + w_along * g_mean) - y * (2 * g_along * w_along)
            share = _mean(w * g, C) - w_mean * g_mean - w_along * g_along
            _write(of_x, place, mask, -slope * slope * (y * share + both))
            _write(of_u, place, mask, slope * (w - w_mean - y * w_along))


@triton.jit(do_not_specialize=SIZES)
def norms_orders(x0, x1, u0, u1, v0, v1, out0, out1, out2, out3, units, rows,
                 ORDER: tl.constexpr, DIM: tl.constexpr, SMOOTH: tl.constexpr, FLOOR: tl.constexpr, VEC: tl.constexpr, ACC: tl.constexpr,
                 OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Scalars x0 beside lengths of the right half of vectors x1, and the products of both halves summed over axes."""
    e, f, C, mask = _tile(units, rows, VEC, OFF, BE, BF)
    place, left = e * C + f, e * (2 * C) + f
    square = tl.full([BE, BF], 0.0, ACC)
    dot, turned, crossed = square, square, square
    for axis in tl.static_range(DIM):
        at = e * (2 * C * DIM) + axis * 2 * C + f
        r = _read(x1, at + C, mask, ACC)
        square += r * r
        if ORDER == 0:
            dot += r * _read(x1, at, mask, ACC)
        if ORDER == 2:
            m, p = _read(x1, at, mask, ACC), _read(v1, at + C, mask, ACC)
            turned += r * p
            crossed += r * _read(v1, at, mask, ACC) + m * p
    # half the square root's slope, and its own
    root = tl.sqrt(square + FLOOR)
    if ORDER == 0:
        _write(out0, left, mask, _read(x0, place, mask, ACC))
        _write(out0, left + C, mask, square / (root + 1) if SMOOTH else root)
        _write(out1, place, mask, dot)
    else:
        g, h = _read(u0, left + C, mask, ACC), _read(u1, place, mask, ACC)
        slope = 1 / root
        if ORDER == 1:
            _write(out0, place, mask, _read(u0, left, mask, ACC))
        else:
            _write(out2, left, mask, _read(v0, place, mask, ACC))
            _write(out2, left + C, mask, slope * turned)
            _write(out3, place, mask, crossed)
        for axis in tl.static_range(DIM):
            at = e * (2 * C * DIM) + axis * 2 * C + f
            m, r = _read(x1, at, mask, ACC), _read(x1, at + C, mask, ACC)
            if ORDER == 1:
                _write(out1, at, mask, h * r)
                _write(out1, at + C, mask, h * m + slope * g * r)
            else:
                p, q = _read(v1, at, mask, ACC), _read(v1, at + C, mask, ACC)
                _write(out1, at, mask, h * q)
                _write(out1, at + C, mask, h * p + slope * g * (q - r * turned / (root * root)))


@triton.jit(do_not_specialize=SIZES)
def gated_orders(x0, x1, x2, u0, u1, u2, v0, v1, v2, out0, out1, out2, out3, out4, out5, units, rows,
                 ORDER: tl.constexpr, DOT: tl.constexpr, DIM: tl.constexpr, HALVES: tl.constexpr, VEC: tl.constexpr,
                 ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """Products and vectors with gates x0 = [a, b, c].

    a + b x1 where ``DOT``, else a and b apart; and c times the first half of vectors x2. Without vectors ``DIM`` is 0 and there is no c.
    """
    e, f, C, mask = _tile(units, rows, VEC, OFF, BE, BF)
    place, at = e * C + f, e * (C * (3 if DIM else 2)) + f
    b = _read(x0, at + C, mask, ACC)
    zero = b * 0
    d = _read(x1, place, mask, ACC) if DOT else zero
    c, of_c, u_of_c = zero, zero, zero
    if DIM:
        c = _read(x0, at + 2 * C, mask, ACC)
    if ORDER == 0:
        a = _read(x0, at, mask, ACC)
        _write(out0, place, mask, a + b * d if DOT else a)
        if not DOT:
            _write(out1, place, mask, b)
    else:
        g = _read(u0, place, mask, ACC)
        h = g * d if DOT else _read(u1, place, mask, ACC)
        if ORDER == 1:
            _write(out0, at, mask, g)
            _write(out0, at + C, mask, h)
            if DOT:
                _write(out1, place, mask, g * b)
        else:
            p, q = _read(v0, at, mask, ACC), _read(v0, at + C, mask, ACC)
            t = _read(v1, place, mask, ACC) if DOT else zero
            _write(out0, at, mask, zero)
            _write(out0, at + C, mask, t * g)
            if DOT:
                _write(out1, place, mask, q * g)
                _write(out3, place, mask, p + q * d + t * b)
            else:
                _write(out3, place, mask, p)
                _write(out4, place, mask, q)
            if DIM:
                u_of_c = _read(v0, at + 2 * C, mask, ACC)
    for axis in tl.static_range(DIM):
        own, half = e * (C * DIM) + axis * C + f, e * (HALVES * C * DIM) + axis * HALVES * C + f
        own_half = _read(x2, half, mask, ACC)
        if ORDER == 0:
            _write(out2, own, mask, c * own_half)
        else:
            k = _read(u2, own, mask, ACC)
            if ORDER == 1:
                of_c += k * own_half
                _write(out2, half, mask, c * k)
            else:
                w = _read(v2, half, mask, ACC)
                of_c += k * w
                _write(out2, half, mask, u_of_c * k)
                _write(out5, own, mask, u_of_c * own_half + c * w)
            if HALVES == 2:
                _write(out2, half + C, mask, zero)
    if DIM and ORDER > 0:
        _write(out0, at + 2 * C, mask, of_c)
