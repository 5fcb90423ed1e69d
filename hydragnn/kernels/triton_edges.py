"""Triton kernels with a result per edge, for ROCm and CUDA: one program per block of edges, no atomics.

Names as in ``triton_sums``. Left is what the sender holds where ``GATHER``, else what the edge holds.
"""

import triton
import triton.language as tl

from hydragnn.kernels.triton_sums import SIZES


@triton.jit(do_not_specialize=SIZES)
def multiply_ends(senders, receivers, left, right, out, units, num_edges,
                  GATHER: tl.constexpr, AXES: tl.constexpr, VEC: tl.constexpr,
                  ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """out[e, c] = sum over axes of left * right[receiver, axis, c]; left is [sender, axis, c], else [e, axis]."""
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    known = e < num_edges
    mask = known[:, None] & (f < C)[None, :]
    i = tl.load(receivers + e, mask=known, other=0).to(OFF)
    j = tl.load(senders + e, mask=known, other=0).to(OFF) if GATHER else e.to(OFF)
    acc = tl.full([BE, BF], 0.0, ACC)
    for axis in tl.static_range(AXES):
        held = tl.load(right + (i[:, None] * (C * AXES) + axis * C + f[None, :]), mask=mask, other=0.0).to(ACC)
        if GATHER:
            acc += held * tl.load(left + (j[:, None] * (C * AXES) + axis * C + f[None, :]), mask=mask, other=0.0).to(
                ACC
            )
        else:
            acc += held * tl.load(left + j * AXES + axis, mask=known, other=0.0).to(ACC)[:, None]
    tl.store(out + (e.to(OFF)[:, None] * C + f[None, :]), acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def dot_ends(senders, receivers, left, right, out, units, num_edges,
             GATHER: tl.constexpr, AXES: tl.constexpr, VEC: tl.constexpr,
             ACC: tl.constexpr, OFF: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """out[e, axis] = sum over c of left[sender or e, c] * right[receiver, axis, c]."""
    C = (units * VEC).to(OFF)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    known = e < num_edges
    i = tl.load(receivers + e, mask=known, other=0).to(OFF)
    j = tl.load(senders + e, mask=known, other=0).to(OFF) if GATHER else e.to(OFF)
    for axis in tl.static_range(AXES):
        acc = tl.full([BE, BF], 0.0, ACC)
        for start in range(0, C, BF):
            f = start + tl.arange(0, BF)
            mask = known[:, None] & (f < C)[None, :]
            one = tl.load(left + (j[:, None] * C + f[None, :]), mask=mask, other=0.0).to(ACC)
            acc += one * tl.load(right + (i[:, None] * (C * AXES) + axis * C + f[None, :]), mask=mask, other=0.0).to(
                ACC
            )
        tl.store(out + e.to(OFF) * AXES + axis, tl.sum(acc, 1).to(out.dtype.element_ty), mask=known)
