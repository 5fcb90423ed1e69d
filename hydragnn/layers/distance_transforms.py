"""Lengths of edges relative to the atoms at their ends."""

import torch
from ase.data import covalent_radii
from jaxtyping import Float, Int
from torch import Tensor, nn

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
