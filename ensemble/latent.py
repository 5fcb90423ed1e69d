"""Distance of final states from those of a member's training graphs."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Array = np.ndarray  # a class, as shapes need one: an alias of NDArray is none from numpy 2.5 on

RIDGE = 1e-4
"""Addition to the mean square of states in every direction, in units of its mean: less is rounding."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LatentSpace:
    """Whitening matrix of the final states of training nodes.

    d^2 = f^T (F^T F / n + ridge)^-1 f, the inverse of the last-layer prediction rigidity times n (Bigi et al. 2024,
    arXiv:2403.02251), of every node; the intercept of heads is left out, and states need not have mean 0.
    """

    whitening: Float[Array, "channels channels"]

    def distances(
        self, states: Float[Tensor, "nodes channels"], owners: Int[Tensor, " nodes"], graphs: int
    ) -> Float[Array, " graphs"]:
        """Return the logarithm of the mean distance per graph; -69 without nodes."""
        exact = states if states.dtype == torch.float64 else states.float()
        matrix = torch.from_numpy(self.whitening).to(exact)
        lengths = torch.linalg.vector_norm(exact @ matrix.T, dim=1).double().cpu().numpy()
        counts = np.bincount(owners.cpu(), minlength=graphs)
        mean = np.bincount(owners.cpu(), weights=lengths, minlength=graphs) / np.maximum(counts, 1)
        return np.log(np.maximum(mean, 1e-30))


class LatentFit:
    """Adds up second moments of states, batch by batch."""

    def __init__(self, channels: int) -> None:
        self._squares, self._nodes = np.zeros((channels, channels)), 0

    def show(self, states: Float[Tensor, "nodes channels"]) -> None:
        """Add the finite states of some nodes."""
        exact = states.detach().double().cpu()
        exact = exact[exact.isfinite().all(dim=1)]
        self._squares += (exact.T @ exact).numpy()
        self._nodes += len(exact)

    def space(self) -> LatentSpace:
        """Return the fitted space; distances are 0 without states."""
        values, vectors = np.linalg.eigh(self._squares / max(self._nodes, 1))
        values = np.maximum(values, 0.0)
        floor = RIDGE * values.mean()
        scales = 1 / np.sqrt(values + floor) if floor > 0 else np.zeros_like(values)
        return LatentSpace(whitening=vectors.T * scales[:, None])
