"""Triton kernel with one result per number, without atomics."""

import triton
import triton.language as tl

from hydragnn.kernels.triton.sums import SIZES, silu_and_slope


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
