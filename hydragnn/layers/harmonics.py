"""Real spherical harmonics, their coupling, and spherical Bessel functions."""

import itertools
import math
from contextlib import nullcontext
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn


@cache
def coupling(first: int, second: int, third: int) -> NDArray[np.float64]:
    """Return C[a, b, c] that couples two degrees to ``third``.

    The sum over a, b of C x_a y_b turns as ``third`` if x and y turn as the other two.

    Real Clebsch-Gordan coefficients, from Racah's sum over integers and the unitary map from complex harmonics to real ones. For
    independent x and y of unit variance every component of the result has variance 1: the squares sum to 2 ``third`` + 1. Components of
    degree 1 are x, y, z, and those of degree l run from -l to l around the y axis.

    >>> [round(float(row[i]), 4) for i, row in enumerate(coupling(1, 1, 0)[:, :, 0])]  # the product of two vectors over sqrt(3)
    [0.5774, 0.5774, 0.5774]
    """
    table = np.zeros((2 * first + 1, 2 * second + 1, 2 * third + 1))
    for a in range(-first, first + 1):
        for b in range(max(-second, -third - a), min(second, third - a) + 1):
            table[first + a, second + b, third + a + b] = _complex_coefficient(first, second, third, a, b)
    maps = [_real_from_complex(degree) for degree in (first, second, third)]
    real = np.einsum("abc,ia,jb,kc->ijk", table, maps[0], maps[1], maps[2].conj())
    part = real.real if (first + second + third) % 2 == 0 else real.imag  # the other part is zero
    assert np.allclose(np.square(part).sum(), 2 * third + 1)
    part = np.where(np.abs(part) < 1e-14, 0.0, part)  # rounding of what is zero
    return part * (1 if part[np.abs(part) > 1e-9][0] > 0 else -1)


def _complex_coefficient(first: int, second: int, third: int, a: int, b: int) -> float:
    """Return <first a second b | third a+b>."""
    f, c = math.factorial, a + b
    low = max(0, second - third - a, first - third + b)
    high = min(first + second - third, first - a, second + b)
    total = 0.0
    for k in range(low, high + 1):
        below = f(k) * f(first + second - third - k) * f(first - a - k) * f(second + b - k)
        total += (-1) ** k / (below * f(third - second + a + k) * f(third - first - b + k))
    triangle = f(third + first - second) * f(third - first + second) * f(first + second - third)
    squares = f(third + c) * f(third - c) * f(first - a) * f(first + a) * f(second - b) * f(second + b)
    return total * math.sqrt((2 * third + 1) * triangle * squares / f(first + second + third + 1))


def _real_from_complex(degree: int) -> NDArray[np.complex128]:
    rows = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=np.complex128)
    rows[degree, degree] = 1
    for m in range(1, degree + 1):
        sign = (-1) ** m
        rows[degree + m, degree + m], rows[degree + m, degree - m] = sign / math.sqrt(2), 1 / math.sqrt(2)
        rows[degree - m, degree + m], rows[degree - m, degree - m] = -1j * sign / math.sqrt(2), 1j / math.sqrt(2)
    return rows


class SphericalHarmonics(nn.Module):
    """Spherical harmonics of unit vectors.

    Y_0 = 1, Y_1 = sqrt(3) u and Y_(l+1) in proportion to the coupling of Y_l with u, of a unit vector u: |Y_l|^2 = 2 l + 1.

    At u = (0, 1, 0) the middle component is sqrt(2 l + 1) and the others are zero. Of a vector of length zero all but Y_0 are zero.

    >>> [round(float(y.square().sum()), 4) for y in SphericalHarmonics(2)(torch.tensor([[0.6, 0.0, 0.8]]))]
    [1.0, 3.0, 5.0]
    """

    def __init__(self, max_ell: int) -> None:
        super().__init__()
        self.max_ell = max_ell
        for degree in range(1, max_ell):
            table = coupling(degree, 1, degree + 1)
            at_pole = math.sqrt(3 * (2 * degree + 1) / (2 * degree + 3)) * table[degree, 1, degree + 1]
            # rows are pairs of components; float64, so that a model in double precision has all digits
            step = torch.from_numpy(table.reshape(-1, 2 * degree + 3) / at_pole)
            self.register_buffer(f"step{degree}", step, persistent=False)

    def forward(self, directions: Float[Tensor, "edges 3"]) -> list[Tensor]:
        """Y_l ``[edges, 2 l + 1]`` for l = 0 ... max_ell."""
        vector = math.sqrt(3) * directions
        result = [torch.ones_like(directions[:, :1]), vector]
        for degree in range(1, self.max_ell):
            pairs = (result[-1].unsqueeze(2) * vector.unsqueeze(1)).flatten(1)  # [edges, 3 (2 l + 1)]
            step: Tensor = getattr(self, f"step{degree}")
            result.append(pairs @ step.to(pairs.dtype))
        return result[: self.max_ell + 1]


@cache
def bessel_zeros(max_ell: int, count: int) -> NDArray[np.float64]:
    """Return the first ``count`` positive zeros of j_l, by l.

    Those of j_(l+1) lie between those of j_l.

    >>> bessel_zeros(1, 2).round(4).tolist()
    [[3.1416, 6.2832], [4.4934, 7.7253]]
    """
    from scipy.optimize import brentq  # a quarter of a second, which few commands need
    from scipy.special import spherical_jn

    zeros = np.pi * np.arange(1, count + max_ell + 1)
    rows = [zeros[:count]]
    for ell in range(1, max_ell + 1):
        between = itertools.pairwise(zeros)
        zeros = np.array([brentq(lambda x, ell=ell: spherical_jn(ell, x), a, b, xtol=1e-14) for a, b in between])
        rows.append(zeros[:count])
    return np.stack(rows)


@cache
def chebyshev_table(max_ell: int, count: int) -> NDArray[np.float64]:
    """Return Chebyshev coefficients of spherical Bessel functions.

    Coefficients ``[polynomials, l, n]`` of sqrt(2) j_l(z_ln x) / |j_(l+1)(z_ln)| in Chebyshev polynomials of 2 x - 1.

    As many polynomials as all digits of float64 need. These functions of x are orthonormal on the unit ball for every l.
    """
    from scipy.special import spherical_jn

    zeros = bessel_zeros(max_ell, count)
    points = int(zeros.max()) + 64  # coefficients fall faster than exponentially past half of the largest frequency
    angles = math.pi * (np.arange(points) + 0.5) / points
    values = np.stack(
        [
            math.sqrt(2)
            * spherical_jn(ell, np.outer((np.cos(angles) + 1) / 2, row))
            / np.abs(spherical_jn(ell + 1, row))
            for ell, row in enumerate(zeros)
        ],
        axis=1,
    )  # [points, l, n]
    # a discrete cosine transform: Chebyshev polynomials are orthogonal on these points
    table = np.einsum("kp,pln->kln", np.cos(np.outer(np.arange(points), angles)), values) * 2 / points
    table[0] /= 2
    needed = int(np.flatnonzero(np.abs(table).max(axis=(1, 2)) > 1e-15 * np.abs(table).max())[-1]) + 1
    return table[:needed]


class SphericalBesselBasis(nn.Module):
    """Spherical Bessel functions of length.

    sqrt(2) j_l(z_ln x) / |j_(l+1)(z_ln)| with x = r / c, for l < num_spherical and n = 1 ... num_radial (arXiv:2003.03123, eq. 6).

    z_ln is the n-th zero of j_l, so that all vanish at the cutoff c; they stay zero beyond. Deviates from the paper: lengths
    are in units of c, so that values are the same in every unit of length. They are summed from Chebyshev polynomials:
    closed forms of j_l lose all digits of float32 at short distances, where terms of x^-l cancel.

    >>> SphericalBesselBasis(cutoff=5.0, num_spherical=3, num_radial=4)(torch.tensor([1.0, 5.0])).shape
    torch.Size([2, 3, 4])
    """

    table: Tensor

    def __init__(self, cutoff: float, num_spherical: int, num_radial: int) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.shape = (num_spherical, num_radial)
        # float64, so that a model in double precision has all digits
        table = torch.from_numpy(chebyshev_table(num_spherical - 1, num_radial)).flatten(1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, lengths: Float[Tensor, " edges"]) -> Float[Tensor, "edges spherical radial"]:
        """The basis at every length."""
        t = 2 * (lengths / self.cutoff).clamp_max(1.0) - 1  # [edges], from -1 to 1
        polynomials = [torch.ones_like(t), t]
        while len(polynomials) < len(self.table):
            polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
        device, is_there = t.device.type, torch.amp.is_autocast_available(t.device.type)
        with (
            torch.autocast(device, enabled=False) if is_there else nullcontext()
        ):  # sums of many terms, of which little is left
            values = torch.stack(polynomials, dim=-1) @ self.table.to(t.dtype)  # [edges, spherical * radial]
        return values.unflatten(-1, self.shape)
