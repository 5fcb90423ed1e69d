"""Atoms nearer than in training: nuclear repulsion, and distances that layers see."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import field as member
from typing import Any

import numpy as np
import torch
from ase.data import covalent_radii
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydragnn.datasets.normalisation import ELEMENTS
from hydragnn.kernels import Topology, segment_sum
from hydragnn.kernels.family import ANYWHERE, form_on

COULOMB = 14.399645  # eV Angstrom, e^2 / (4 pi eps_0)
SCREENING = ((0.18175, 3.19980), (0.50986, 0.94229), (0.28022, 0.40290), (0.02817, 0.20162))
RADIUS, POWER = 0.46850, 0.23  # Angstrom, of the screening length

FLAT, ALIKE = 0.90, 0.94
"""Shares of the shortest trained distance: below the first, learned parts see no change of a distance; from the second on they see it as it is."""
FULL, BEGIN = 0.82, 0.92
"""Shares of the shortest trained distance: repulsion without ``stiffness`` begins below the second, and is complete below the first."""
JOINED = 1.05
"""Unit of shares over the shortest trained distance, where the repulsion goes on with the trained force: it begins at .987 of that distance."""
BARE = 0.5
"""Share below which nuclei repel as bare ones do."""
USUAL = 0.3
"""Stiffness where no forces tell it."""
ANSWERS = {ANYWHERE: False, "cpu": True}
"""Devices that are asked whether there are contacts."""

LEAST = 1e-3  # Angstrom and eV; no limit is smaller, so that padding, which has no element, divides by none


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseRangeLimits:
    """Limits of the training part, and units of a model."""

    shortest: tuple[tuple[int, int, float], ...]
    """Shortest distance (Angstrom) of every pair of elements that occurs often, the smaller atomic number first."""
    share: float
    """Smallest shortest distance over the sum of both covalent radii: the limit of all other pairs."""
    species: tuple[int, ...]
    """Elements of the training part, ascending."""
    cutoff: float | None = None
    """Distance (Angstrom) at which the repulsion ends; None where edges do not come from a cutoff."""
    angstrom: float = 1.0
    """Unit of positions in Angstrom."""
    energies: Mapping[str, float] = member(default_factory=dict)
    """Normalised unit of every energy with derivatives, in eV."""
    stiffness: tuple[tuple[int, int, float], ...] | None = None
    """Trained force at the shortest distance of pairs of elements over that of their nuclei; None for models of 0.2.0, with another wall."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ``limits_from_json`` gives the same object back."""
        return asdict(self)


def limits_from_json(value: Mapping[str, Any]) -> CloseRangeLimits:
    """Return the object that ``to_json`` wrote; TypeError or ValueError if damaged.

    Version 0.2.0 wrote limits of crowding by element, too, and energies that atoms fade to.
    """
    limits = CloseRangeLimits(
        shortest=tuple((int(a), int(b), float(length)) for a, b, length in value["shortest"]),
        share=float(value["share"]),
        species=tuple(int(n) for n in value.get("species") or [number for number, _ in value["crowding"]]),
        cutoff=None if value["cutoff"] is None else float(value["cutoff"]),
        angstrom=float(value["angstrom"]),
        energies={
            str(name): float(unit[0] if isinstance(unit, list) else unit) for name, unit in value["energies"].items()
        },
    )
    if value.get("stiffness") is not None:
        limits = replace(limits, stiffness=tuple((int(a), int(b), float(share)) for a, b, share in value["stiffness"]))
    stiffness = limits.stiffness or ()
    numbers = [*(one for a, b, _ in (*limits.shortest, *stiffness) for one in (a, b)), *limits.species]
    sizes = [length for *_, length in limits.shortest]
    sizes += [limits.share, limits.angstrom, *limits.energies.values()]
    if not limits.species or not all(0 <= number < ELEMENTS for number in numbers):
        raise ValueError("the limits of close range are of no element")
    if not all(0 <= size < float("inf") for size in sizes) or limits.cutoff == 0 or limits.angstrom == 0:
        raise ValueError("a limit of close range is no positive number")
    if not all(0 < share <= 1 for *_, share in stiffness):
        raise ValueError("a stiffness of close range is not between 0 and 1")
    return limits


def bonds() -> np.ndarray:
    """Return summed covalent radii of pairs of elements, in Angstrom."""
    radii = covalent_radii[np.minimum(np.arange(ELEMENTS), len(covalent_radii) - 1)]
    return radii[:, None] + radii[None, :]


def shortest_distances(limits: CloseRangeLimits) -> np.ndarray:
    """Return the shortest distance of all pairs of elements, in Angstrom.

    A pair that did not occur, or seldom, has that share of the sum of its covalent radii that the nearest pair in training has.
    """
    table: np.ndarray = limits.share * bonds()
    for a, b, length in limits.shortest:
        table[a, b] = table[b, a] = length
    table[0], table[:, 0] = 0.0, 0.0
    return np.maximum(table, LEAST)


def screening() -> tuple[np.ndarray, np.ndarray]:
    """Return inverse screening lengths and charge products of all pairs of elements."""
    charges = np.arange(ELEMENTS, dtype=np.float64)
    powers = charges**POWER
    inverse = (powers[:, None] + powers[None, :]) / RADIUS  # 1 / Angstrom
    return inverse, COULOMB * charges[:, None] * charges[None, :]  # eV Angstrom


def nuclear_repulsion(
    lengths: Float[Tensor, " edges"], inverse: Float[Tensor, " edges"], product: Float[Tensor, " edges"]
) -> Float[Tensor, " edges"]:
    """Return Z_i Z_j e^2 / r phi(r / a) in eV, with lengths in Angstrom.

    a = 0.46850 / (Z_i^0.23 + Z_j^0.23) (Ziegler, Biersack and Littmark 1985, The Stopping and Range of Ions in Solids).

    >>> inverse, product = (torch.from_numpy(table[29, 29:30]) for table in screening())
    >>> nuclear_repulsion(torch.tensor([0.3], dtype=torch.float64), inverse, product).round(decimals=1)
    tensor([5844.7000], dtype=torch.float64)
    """
    reduced = lengths * inverse
    screened = sum(share * torch.exp(-rate * reduced) for share, rate in SCREENING)
    return product / lengths * screened


def ending(lengths: Float[Tensor, " edges"], cutoff: float | None) -> Float[Tensor, " edges"]:
    """Return 1 - 28 x^6 + 48 x^7 - 21 x^8 with x = r / cutoff, 0 beyond."""
    if cutoff is None:
        return torch.ones_like(lengths)
    x = (lengths / cutoff).clamp_max(1.0)
    return 1 - x.pow(6) * (28 - 48 * x + 21 * x.square())


def smooth_step(t: Float[Tensor, " items"]) -> Float[Tensor, " items"]:
    """Return a step on [0, 1] with two continuous derivatives."""
    t = t.clamp(0.0, 1.0)
    return t.pow(3) * (10 - 15 * t + 6 * t.square())


class CloseRange(nn.Module):
    """Repulsion of atoms, and distances as learned parts see them.

    E_i = e_i + sum_j (u(r_ij) - u(d_ij)) / 2 with the learned e_i, which sees distances d_ij: those are r_ij, but no shorter than 0.966 of the
    shortest in training. u is the repulsion of nuclei times a factor that falls from 1 at half that distance to the stiffness, so that the force
    goes on as trained. No published form; all have two continuous derivatives. Models of 0.2.0 add s(r_ij) V(r_ij) / 2, with a switch s.
    """

    looks: Tensor
    pairs: Tensor

    def __init__(self, limits: CloseRangeLimits) -> None:
        super().__init__()
        self.limits = limits
        shortest, (inverse, product) = shortest_distances(limits), screening()
        if limits.stiffness is not None:
            shortest = np.minimum(JOINED * shortest, (limits.cutoff or np.inf) / ALIKE)
        pairs = limits.stiffness or ()  # the median where unknown
        stiffness = np.full((ELEMENTS, ELEMENTS), np.median([share for *_, share in pairs]) if pairs else USUAL)
        for a, b, share in pairs:
            stiffness[a, b] = stiffness[b, a] = share
        tables = {
            "looks": np.square(ALIKE * shortest / limits.angstrom).reshape(-1),
            "pairs": np.stack([shortest, inverse, product, np.log(stiffness)], axis=-1).reshape(-1, 4),
        }
        for name, table in tables.items():
            self.register_buffer(name, torch.tensor(table, dtype=torch.float32), persistent=False)

    def forward(
        self,
        vectors: Float[Tensor, "edges dim"],
        topology: Topology,
        species: Int[Tensor, " nodes"],
        *,
        recorded: bool = False,
    ) -> tuple[Float[Tensor, "edges dim"], Float[Tensor, " nodes"] | None]:
        """Return the vectors that layers see, and the repulsion; None as in training.

        Each atom has half the repulsion of itself and its neighbours, in eV.

        Only a CPU is asked whether it is, and nothing that is ``recorded``: others compute faster than they answer.
        """
        # [edges], rows of the tables
        pair = species.index_select(0, topology.receivers) * ELEMENTS + species.index_select(0, topology.senders)
        if form_on(ANSWERS, vectors.device.type) and not recorded:
            with torch.no_grad():
                least = self.looks.to(vectors.dtype).index_select(0, pair)  # [edges], squares
                if not bool((vectors.square().sum(-1) < least).any()):
                    return vectors, None
        # padded edges may have length 0, where a root has no slope
        tiny = torch.finfo(vectors.dtype).tiny ** 0.5
        # [edges] each
        shortest, inverse, product, softer = self.pairs.to(vectors.dtype).index_select(0, pair).unbind(-1)
        squares = vectors.square().sum(-1).clamp_min(tiny)
        lengths = squares.sqrt() * self.limits.angstrom
        shares = lengths / shortest
        factors = stretching(shares)
        if self.limits.stiffness is None:
            every = 0.5 * nuclear_repulsion(lengths, inverse, product) * ending(lengths, self.limits.cutoff)
            near = every * smooth_step((BEGIN - shares) / (BEGIN - FULL))
        else:
            near, hidden = (
                0.5 * nuclear_repulsion(factor * lengths, inverse, product) * torch.exp(softer * smooth_step(t))
                for factor, t in ((one, (one * shares - BARE) / (ALIKE - BARE)) for one in (1.0, factors))
            )
            near = near - hidden
        repulsion = segment_sum(near.unsqueeze(-1), topology.receivers, topology.num_rows).squeeze(-1)
        return vectors * factors.unsqueeze(-1), repulsion


def stretching(shares: Float[Tensor, " edges"]) -> Float[Tensor, " edges"]:
    """Return the factor of vectors that hides short distances from learned parts.

    Of a share x of the shortest trained distance it is 1 from ``ALIKE`` on, and (FLAT + ALIKE) / 2 / x up to ``FLAT``.

    >>> stretching(torch.tensor([0.5, 0.95, 1.5]))
    tensor([1.8400, 1.0000, 1.0000])
    """
    t = ((shares - FLAT) / (ALIKE - FLAT)).clamp(0.0, 1.0)
    seen = ALIKE - (ALIKE - FLAT) * (0.5 - t.pow(4) * (2.5 - 3 * t + t.square()))
    return torch.where(shares < ALIKE, seen / shares, torch.ones_like(shares))
