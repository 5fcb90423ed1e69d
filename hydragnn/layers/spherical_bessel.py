"""Spherical Bessel functions of length that vanish at the cutoff."""

import itertools
import math
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn


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
        with without_autocast(t.device.type):  # sums of many terms, of which little is left
            values = torch.stack(polynomials, dim=-1) @ self.table.to(t.dtype)  # [edges, spherical * radial]
        return values.unflatten(-1, self.shape)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Compute products in the precision of their factors."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
