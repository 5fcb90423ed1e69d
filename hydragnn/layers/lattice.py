"""Graphs that are all one lattice: what their kinds of edges do to states is a product in their common modes.

Sites of a periodic lattice are alike, so that the matrices A_r of its shells (which sites are neighbours of kind r) commute
and have eigenvectors in common, A_r = U diag(a_r) U^T. Then

    sum over kinds r of A_r X W_r = U Y, where mode m of Y is mode m of U^T X times sum over kinds r of a_rm W_r:

one matrix for every mode in place of one for every kind.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydragnn.kernels import Topology
from hydragnn.kernels.family import is_traced

LEAST_GRAPHS = 8
"""With fewer, the matrices of the modes cost more than they save."""

TOLERANCE = 1e-9
"""Largest error of the common eigenvectors, in units of the largest sum of a row."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Modes:
    """The common eigenvectors of the kinds of edges of a lattice, and their eigenvalues."""

    vectors: Float[Tensor, "sites sites"]
    """A column for every mode; those with equal eigenvalues stand side by side and are one space."""
    values: Float[Tensor, "spaces kinds"]
    sizes: tuple[int, ...]
    """How many modes each space has."""

    def to(self, dtype: torch.dtype) -> "Modes":
        """The same in another dtype."""
        return replace(self, vectors=self.vectors.to(dtype), values=self.values.to(dtype))

    def told(
        self,
        states: Float[Tensor, "nodes channels"],
        own: Float[Tensor, "out channels"],
        kinds: Float[Tensor, "out kinds_channels"],
    ) -> Float[Tensor, "nodes out"]:
        """X W^T + sum over kinds r of A_r X W_r^T, with ``own`` W and ``kinds`` all W_r side by side."""
        sites, (out, channels) = self.vectors.shape[0], own.shape
        graphs = states.shape[0] // sites
        # [spaces, kinds] @ [out, kinds, channels] -> [spaces, out, channels]
        maps = (self.values @ kinds.view(out, -1, channels)).transpose(0, 1) + own
        by_site = states.view(graphs, sites, channels).transpose(0, 1).reshape(sites, graphs * channels)
        modes: Tensor = MapsOfSpaces.apply(self.vectors.t() @ by_site, maps, self.sizes)
        return (self.vectors @ modes).view(sites, graphs, out).transpose(0, 1).reshape(graphs * sites, out)


class MapsOfSpaces(torch.autograd.Function):
    """y_m = x_m M_s^T for the modes m of every space s; one product for each space, which writes where its results belong."""

    @staticmethod
    def forward(ctx: Any, modes: Tensor, maps: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Of ``modes`` [sites, graphs * channels] and ``maps`` [spaces, out, channels]: [sites, graphs * out]."""
        ctx.save_for_backward(modes, maps)
        out, channels = maps.shape[1:]
        graphs = modes.shape[1] // channels
        ctx.rows = [size * graphs for size in sizes]
        result = modes.new_empty(modes.shape[0], graphs * out)
        rows = (values.view(-1, width).split(ctx.rows) for values, width in ((modes, channels), (result, out)))
        for part, into, matrix in zip(*rows, maps.unbind(0)):
            torch.mm(part, matrix.t(), out=into)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """What modes and maps receive."""
        modes, maps = ctx.saved_tensors
        out, channels = maps.shape[1:]
        for_modes, for_maps = torch.empty_like(modes), torch.empty_like(maps)
        known = ((gradient.contiguous(), out), (modes, channels), (for_modes, channels))
        rows = (values.view(-1, width).split(ctx.rows) for values, width in known)
        for given, part, for_part, matrix, for_matrix in zip(*rows, maps.unbind(0), for_maps.unbind(0)):
            torch.mm(given, matrix, out=for_part)
            torch.mm(given.t(), part, out=for_matrix)
        return for_modes, for_maps, None


def lattice_modes(
    topology: Topology,
    nodes_per_graph: Int[Tensor, " graphs"],
    kind: Int[Tensor, " edges"],
    kinds: int,
    reduce: str,
    channels: int,
) -> Modes | None:
    """The modes of the kinds of edges, whose sums are joined as ``reduce`` says; None where the graphs are not all one lattice.

    None, too, where a product with all modes would take longer than one for every kind. It looks at values, so it is for CPUs,
    where nobody waits for them, and not for tracers or for arithmetic of fewer digits.
    """
    graphs = nodes_per_graph.shape[0]
    if is_traced() or not kind.is_cpu or torch.is_autocast_enabled("cpu") or graphs < LEAST_GRAPHS:
        return None
    sites, edges = int(nodes_per_graph[0]), topology.num_edges // graphs
    if 2 * sites > kinds * channels or not edges or bool((nodes_per_graph != sites).any()):
        return None
    if edges * graphs != topology.num_edges:
        return None
    first = torch.arange(graphs).unsqueeze(1) * sites
    ends = (topology.receivers.view(graphs, edges) - first, topology.senders.view(graphs, edges) - first)
    parts = (*ends, kind.view(graphs, edges))
    if any(bool((part != part[0]).any()) for part in parts):
        return None
    if any(
        bool(((end[0] < 0) | (end[0] >= sites)).any()) for end in ends
    ):  # graphs that only share their edges out alike
        return None
    return _modes(*(part[0].numpy().tobytes() for part in parts), sites, kinds, reduce)


@lru_cache(maxsize=8)
def _modes(receivers: bytes, senders: bytes, kind: bytes, sites: int, kinds: int, reduce: str) -> Modes | None:
    """The modes of one graph, by the values of its edges; None where the matrices of its kinds do not commute or have directions."""
    rows, columns, numbers = (np.frombuffer(given, np.int64) for given in (receivers, senders, kind))
    matrices = np.zeros((kinds, sites, sites))
    np.add.at(matrices, (numbers, rows, columns), 1.0)
    degrees = np.maximum(matrices.sum(axis=2, keepdims=True), 1.0)
    matrices /= {"sum": 1.0, "mean": degrees, "sqrt": np.sqrt(degrees)}[reduce]
    most = TOLERANCE * matrices.sum(axis=2).max()
    if np.abs(matrices - matrices.transpose(0, 2, 1)).max() > most:
        return None
    mixture = np.random.default_rng(0).uniform(
        1.0, 2.0, kinds
    )  # eigenvectors of a generic sum are those of all its parts
    vectors: NDArray[np.float64] = np.linalg.eigh(np.tensordot(mixture, matrices, 1))[1]
    diagonal = np.einsum("sm,ksm->mk", vectors, matrices @ vectors)  # [sites, kinds]
    if np.abs(matrices @ vectors - vectors * diagonal.T[:, None, :]).max() > most:
        return None
    _, space = np.unique(np.round(diagonal / (1e3 * most)), axis=0, return_inverse=True)
    order, sizes = np.argsort(space.reshape(-1), kind="stable"), np.bincount(space.reshape(-1))
    ends = np.cumsum(sizes)
    values = np.stack([diagonal[order[end - size : end]].mean(axis=0) for end, size in zip(ends, sizes)])
    return Modes(
        vectors=torch.from_numpy(vectors[:, order].copy()), values=torch.from_numpy(values), sizes=tuple(sizes.tolist())
    )
