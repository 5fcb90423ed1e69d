"""Distance of final states from those of a member's training graphs."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.ensemble.estimates.moments import Array

RIDGE = 1e-4
"""Addition to the mean square of states in every direction, in units of its mean: less is rounding."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LatentSpace:
    """Whitening matrices of final states of training nodes and of graphs.

    d^2 = f^T (F^T F / n + ridge)^-1 f, the inverse of the last-layer prediction rigidity times n (Bigi et al. 2024,
    arXiv:2403.02251), of every node; the intercept of heads is left out, and states need not have mean 0. Of a graph the same
    of its mean state less ``mean`` (Mahalanobis distance).
    """

    whitening: Float[Array, "channels channels"]
    mean: Float[Array, " channels"]
    of_graphs: Float[Array, "channels channels"]

    def distances(
        self, states: Float[Tensor, "nodes channels"], owners: Int[Tensor, " nodes"], graphs: int
    ) -> tuple[Float[Array, "graphs 3"], Float[Array, " nodes"]]:
        """Return logarithms of distances of graphs and of nodes.

        Of a graph the mean and the largest of its nodes, and its own; -69 without nodes.
        """
        exact = states if states.dtype == torch.float64 else states.float()
        matrix = torch.from_numpy(self.whitening).to(exact)
        lengths = torch.linalg.vector_norm(exact @ matrix.T, dim=1).double().cpu()
        means = graph_means(exact, owners, graphs) - self.mean
        own, result = owners.cpu(), np.zeros((graphs, 3))
        counts = np.bincount(own, minlength=graphs)
        result[:, 0] = np.bincount(own, weights=lengths, minlength=graphs) / np.maximum(counts, 1)
        result[:, 1] = torch.zeros(graphs, dtype=torch.float64).scatter_reduce(0, own, lengths, "amax").numpy()
        result[counts > 0, 2] = np.linalg.norm(means[counts > 0] @ self.of_graphs.T, axis=1)
        return np.log(np.maximum(result, 1e-30)), np.log(np.maximum(lengths.numpy(), 1e-30))


def graph_means(
    states: Float[Tensor, "nodes channels"], owners: Int[Tensor, " nodes"], graphs: int
) -> Float[Array, "graphs channels"]:
    """Return mean states of graphs; zeros without nodes."""
    sums = torch.zeros(graphs, states.shape[1], dtype=torch.float64, device=states.device)
    sums.index_add_(0, owners.to(states.device), states.detach().double())
    counts = np.bincount(owners.cpu(), minlength=graphs)
    return np.asarray(sums.cpu().numpy() / np.maximum(counts, 1)[:, None])


def fitted_space(channels: int, states: Iterable[tuple[Tensor, Tensor, int]]) -> LatentSpace:
    """Return the space of states of nodes, their graphs and the number of these, batch by batch.

    States that are not finite are left out; distances are 0 without states.
    """
    squares, nodes, of_graphs = np.zeros((channels, channels)), 0, [np.zeros((0, channels))]
    for some, owners, graphs in states:
        exact = some.detach().double().cpu()
        means = graph_means(exact, owners, graphs)[np.bincount(owners.cpu(), minlength=graphs) > 0]
        of_graphs.append(means[np.isfinite(means).all(axis=1)])
        exact = exact[exact.isfinite().all(dim=1)]
        squares += (exact.T @ exact).numpy()
        nodes += len(exact)
    means = np.concatenate(of_graphs)
    mean = means.mean(axis=0) if len(means) else np.zeros(channels)
    away = means - mean
    return LatentSpace(
        whitening=whitening_of(squares / max(nodes, 1), RIDGE),
        mean=mean,
        of_graphs=whitening_of(away.T @ away / max(len(means), 1), max(RIDGE, 1 / max(len(means), 1))),
    )


def whitening_of(moments: Float[Array, "channels channels"], ridge: float) -> Float[Array, "channels channels"]:
    """Return the matrix of unit second moments; 0 where all are 0."""
    values, vectors = np.linalg.eigh(moments)
    values = np.maximum(values, 0.0)
    floor = ridge * values.mean()
    scales = 1 / np.sqrt(values + floor) if floor > 0 else np.zeros_like(values)
    return np.asarray(vectors.T * scales[:, None])
