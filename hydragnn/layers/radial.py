"""Edge lengths as smooth features, and the envelope at the cutoff."""

import math
from typing import Any, Literal

import torch
from ase.data import covalent_radii
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.kernels.pointwise import LEAST, bessel_functions, envelope_at, gaussian_functions, radial_functions
from hydragnn.kernels.pointwise import RADIAL as ROWS

ELEMENTS_WITH_RADIUS = 96
"""Covalent radii are known from hydrogen to curium; the published programs give all others 0.2 Angstrom."""


class DistanceTransform(nn.Module):
    """Transform of lengths.

    A length r (Angstrom) as T(r; r_0), with r_0 made of the covalent radii of both ends (Cordero et al. 2008, doi:10.1039/b801115j).
    """

    radii: Tensor
    range: float | None = None
    """The largest value; None where it grows with the length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("radii", torch.from_numpy(covalent_radii), persistent=False)

    def bonds(self, first: Int[Tensor, " edges"], second: Int[Tensor, " edges"]) -> Float[Tensor, " edges"]:
        """The sum of the covalent radii of two atomic numbers, in Angstrom."""
        last = len(self.radii) - 1
        return self.radii.index_select(0, first.clamp_max(last)) + self.radii.index_select(0, second.clamp_max(last))

    def forward(self, lengths: Float[Tensor, " edges"], bonds: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
        """Return the transformed lengths."""
        raise NotImplementedError


class AgnesiTransform(DistanceTransform):
    """Agnesi transform.

    T = 1 / (1 + a x^q / (1 + x^(q - p))) with x = r / r_0, r_0 the mean of both radii (Witt et al. 2023, doi:10.1063/5.0158783).

    The constants are those of mace-torch. x^q / (1 + x^(q - p)) is written x^p / (1 + x^(p - q)), which has derivatives at x = 0.

    >>> AgnesiTransform()(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0]))
    tensor([1.0000, 0.6492])
    """

    range = 1.0
    a, p, q = 1.0805, 4.5791, 0.9183

    def forward(self, lengths: Float[Tensor, " edges"], bonds: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
        """Return numbers from 1 at zero down to 0, without unit."""
        x = lengths / (0.5 * bonds).to(lengths.dtype)
        return 1 / (1 + self.a * x.pow(self.p) / (1 + x.pow(self.p - self.q)))


class SoftTransform(DistanceTransform):
    """Soft transform.

    T = p_0 + (r - p_0) (1 + tanh(s (r - m))) / 2, which grows no shorter than p_0 = 3/4 r_0; r_0 is the sum of both radii.

    With p_1 = 4/3 r_0, m = (p_0 + p_1) / 2 and s = 4 / (p_1 - p_0), as in mace-torch (Batatia et al. 2024, arXiv:2401.00096).

    >>> SoftTransform()(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 1.0]))
    tensor([0.7500, 9.0000])
    """

    steepness = 4.0

    def forward(self, lengths: Float[Tensor, " edges"], bonds: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
        """Lengths in Angstrom, those of bonds and above as they are."""
        bonds = bonds.to(lengths.dtype)
        low, high = 3 / 4 * bonds, 4 / 3 * bonds
        share = 0.5 * (1 + torch.tanh(self.steepness / (high - low) * (lengths - 0.5 * (low + high))))
        return low + (lengths - low) * share


DISTANCE_TRANSFORMS: dict[str, type[DistanceTransform]] = {"agnesi": AgnesiTransform, "soft": SoftTransform}


class BesselBasis(nn.Module):
    """Bessel functions of length.

    sqrt(2 / c) sin(n pi r / c) / r for n = 1 ... num_radial (Gasteiger et al. 2020, arXiv:2003.03123, eq. 7).

    Orthonormal on the ball of radius c. Deviates from the paper: the frequencies n pi / c are not learned.

    >>> BesselBasis(cutoff=5.0, num_radial=4)(torch.tensor([1.0, 5.0])).shape
    torch.Size([2, 4])
    """

    orders: Tensor

    def __init__(self, cutoff: float, num_radial: int) -> None:
        super().__init__()
        self.amplitude = math.sqrt(2 / cutoff)
        self.step = math.pi / cutoff
        self.register_buffer("orders", torch.arange(1.0, num_radial + 1), persistent=False)

    def forward(self, lengths: Float[Tensor, " edges"]) -> Float[Tensor, "edges radial"]:
        """Return the basis at every length (Angstrom, or the store's unit)."""
        return bessel_functions(lengths, self.orders, self.step, self.amplitude)


class SincBasis(BesselBasis):
    """Bessel functions with an amplitude that suits any unit.

    sqrt(2 / 5) sin(n pi x) / (5 x) with x = r / c: the Bessel functions of cutoff 5 (Angstrom), for a cutoff in any unit.

    Deviates from the paper in its amplitude alone, which grows as c^-1.5 there: 500 times larger for the same graph in
    tens of nanometres, and PaiNN, cubic in its filters, overflows.

    >>> near, far = (SincBasis(cutoff, 4)(torch.tensor([0.6 * cutoff])) for cutoff in (0.1, 5.0))
    >>> torch.allclose(near, far, rtol=1e-5)
    True
    """

    def __init__(self, cutoff: float, num_radial: int) -> None:
        super().__init__(cutoff, num_radial)
        self.amplitude *= (cutoff / 5) ** 1.5


class GaussianBasis(nn.Module):
    """Gaussians of length.

    exp(-(r - m_k)^2 / (2 s^2)) with centres m_k from 0 to the cutoff, s their distance (Schuett et al. 2017, arXiv:1706.08566).

    Deviates from the paper: 1 / (2 s^2) follows from the distance of the centres, where the paper has 10 / Angstrom^2 and
    centres every 0.1 Angstrom.
    """

    orders: Tensor

    def __init__(self, cutoff: float, num_radial: int) -> None:
        super().__init__()
        self.step = cutoff / max(num_radial - 1, 1)
        self.register_buffer("orders", torch.arange(0.0, num_radial), persistent=False)

    def forward(self, lengths: Float[Tensor, " edges"]) -> Float[Tensor, "edges radial"]:
        """The basis at every length."""
        return gaussian_functions(lengths, self.orders, self.step)


class ExponentialBasis(nn.Module):
    """Gaussians of the exponential of length.

    exp(-b (exp(-5 x) - m_k)^2) with x = r / c, m_k from exp(-5) to 1 and b = (2 (1 - exp(-5)) / K)^-2: fine near nodes, coarse far away.

    After Unke and Meuwly 2019 (arXiv:1902.08408, eq. 7). Deviates from the paper: exp(-r / Angstrom) stands there for exp(-5 x), the same at a
    cutoff of 5, and the factor that ends at the cutoff is apart.

    >>> ExponentialBasis(cutoff=5.0, num_radial=4)(torch.tensor([0.0, 5.0])).shape
    torch.Size([2, 4])
    """

    centres: Tensor

    def __init__(self, cutoff: float, num_radial: int) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.sharpness = (2 * (1 - math.exp(-5)) / num_radial) ** -2
        centres = torch.linspace(math.exp(-5), 1, num_radial, dtype=torch.float64)
        self.register_buffer("centres", centres, persistent=False)

    def forward(self, lengths: Float[Tensor, " edges"]) -> Float[Tensor, "edges radial"]:
        """The basis at every length."""
        places = torch.exp(lengths * (-5 / self.cutoff)).unsqueeze(-1)
        # [edges, 1] - [radial]
        values = torch.exp(-self.sharpness * (places - self.centres.to(places.dtype)).square())
        return nn.functional.threshold(values, LEAST, 0.0)


class ChebyshevBasis(nn.Module):
    """Chebyshev polynomials of length.

    T_1(x) ... T_K(x) with x = r / c: Chebyshev polynomials of the first kind, between -1 and 1.

    Deviates from mace-torch: there x is the length itself (Angstrom), whose powers explode beyond 1, unless a transform keeps it below. Where r is
    beyond c the basis stays what it is at c.

    >>> ChebyshevBasis(cutoff=5.0, num_radial=3)(torch.tensor([0.0, 2.5, 5.0]))
    tensor([[ 0.0000, -1.0000, -0.0000],
            [ 0.5000, -0.5000, -1.0000],
            [ 1.0000,  1.0000,  1.0000]])
    """

    def __init__(self, cutoff: float, num_radial: int) -> None:
        super().__init__()
        self.cutoff, self.num_radial = cutoff, num_radial

    def forward(self, lengths: Float[Tensor, " edges"]) -> Float[Tensor, "edges radial"]:
        """The basis at every length."""
        x = (lengths / self.cutoff).clamp_max(1.0)
        values = [torch.ones_like(x), x]
        for _ in range(self.num_radial - 1):
            values.append(2 * x * values[-1] - values[-2])  # T_n+1 = 2 x T_n - T_n-1
        return torch.stack(values[1:], dim=-1)


RADIAL = {
    "sinc": SincBasis,
    "bessel": BesselBasis,
    "gaussian": GaussianBasis,
    "exponential": ExponentialBasis,
    "chebyshev": ChebyshevBasis,
}


class RadialFeatures(nn.Module):
    """Radial basis and edge inputs of every edge, with the envelope.

    [basis(r), 1, edge inputs] and u(r), kept apart: layers multiply messages or filters with it.
    The constant takes the place of a bias, so that linear filters times u end at the cutoff as a whole. With a ``transform`` the basis sees transformed
    lengths; the envelope never does.
    """

    def __init__(
        self,
        cutoff: float,
        num_radial: int,
        radial: str,
        envelope: Literal["polynomial", "cosine", "none"],
        inputs: int,
        transform: DistanceTransform | None = None,
        exponent: int = 6,
    ) -> None:
        super().__init__()
        largest = None if transform is None or radial != "chebyshev" else transform.range
        self.basis = RADIAL[radial](cutoff if largest is None else largest, num_radial)
        self.transform = transform
        self.cutoff = cutoff
        self.envelope: Literal["polynomial", "cosine", "none"] = envelope
        self.exponent = exponent
        self.width = num_radial + inputs + 1
        self.rows = self._rows(num_radial, inputs)

    def _rows(self, count: int, inputs: int) -> dict[str, Any] | None:
        """Return the options of ``radial_functions``; None for what it does not compute."""
        basis, exponent = self.basis, {"polynomial": self.exponent, "cosine": 0, "none": -1}[self.envelope]
        if inputs or self.transform is not None or exponent == 1:
            return None
        if not isinstance(basis, BesselBasis | GaussianBasis):
            return None
        gaussian = isinstance(basis, GaussianBasis)
        amplitude = 1.0 if gaussian else basis.amplitude
        forms = {"gaussian": gaussian, "count": count, "step": basis.step, "amplitude": amplitude}
        return {**forms, "envelope": exponent, "cutoff": float(self.cutoff)}

    def ended(
        self,
        lengths: Float[Tensor, " edges"],
        features: Float[Tensor, "edges features"] | None,
        bonds: Float[Tensor, " edges"] | None = None,
    ) -> Float[Tensor, "edges width"]:
        """Return features times the envelope."""
        if self.rows is not None and ROWS.serves(lengths):
            return radial_functions(lengths, **self.rows, ended=True)[0]
        values, envelope = self(lengths, features, bonds)
        return values if envelope is None else values * envelope

    def forward(
        self,
        lengths: Float[Tensor, " edges"],
        features: Float[Tensor, "edges features"] | None,
        bonds: Float[Tensor, " edges"] | None = None,
    ) -> tuple[Float[Tensor, "edges width"], Float[Tensor, "edges 1"] | None]:
        """Return features and envelope of every edge (None: no end)."""
        if self.rows is not None and ROWS.serves(lengths):
            functions, factor = radial_functions(lengths, **self.rows, ended=False)
            return functions, None if self.envelope == "none" else factor.unsqueeze(-1)
        visible = lengths
        if self.transform is not None:
            assert bonds is not None
            visible = self.transform(lengths, bonds)
        parts = [self.basis(visible), torch.ones_like(lengths).unsqueeze(-1)]  # [edges, radial], [edges, 1]
        if features is not None:
            parts.append(features.to(lengths.dtype))
        envelope = envelope_at(lengths, self.cutoff, self.envelope, self.exponent)
        return torch.cat(parts, dim=-1), None if envelope is None else envelope.unsqueeze(-1)
