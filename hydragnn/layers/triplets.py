"""Sums over triplets k -> j -> i."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hydragnn.kernels import Topology, along_directions, outer_sum, spread
from hydragnn.layers.harmonics import SphericalHarmonics
from hydragnn.layers.message_graph import MessageGraph

GENERIC = (0.5698402909980532, 0.7548776662466927, 0.3247179572447460)
"""A direction that no two images of a node share a component along, but for accidents of one in a million."""
CLOSE = 1e-6
"""Share of squares of vectors: a reverse is opposite but for rounding; other images are whole cells apart."""


def reverses_of(
    vectors: Float[Tensor, "edges dim"], topology: Topology
) -> tuple[Int[Tensor, " edges"], Bool[Tensor, " edges"]]:
    """Return the reverse of every edge through the same image.

    The second result says if there is one; the number is arbitrary otherwise.

    Between the same two nodes, edges through different images have different vectors. Edges are sorted by their ends and by their
    component along one direction; an edge walked back is looked for among its neighbours in that order. Sizes do not depend on
    values, so that it can be traced.

    >>> there_and_back = Topology.square(torch.tensor([1, 0, 0]), torch.tensor([0, 1, 1]), 2)
    >>> vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]])  # the last one through an image
    >>> [values.tolist()[:2] for values in reverses_of(vectors, there_and_back)]
    [[1, 0], [True, True]]
    """
    vectors, edges, nodes = vectors.detach(), topology.num_edges, topology.num_rows
    senders, receivers = topology.senders, topology.receivers
    along = torch.stack([number * values for number, values in zip(GENERIC, vectors.unbind(1))]).sum(0)  # [edges]
    ends = receivers * nodes + senders
    order = _sorted(ends, along)
    # where the edges walked back would stand among all edges
    both = _sorted(torch.cat([ends, senders * nodes + receivers]), torch.cat([along, -along]))
    place = torch.empty_like(both).scatter(0, both, torch.arange(2 * edges, device=both.device))
    rank = (both < edges).cumsum(0).index_select(0, place[edges:])  # [edges]; edges up to there
    best, result = torch.zeros_like(senders), torch.full_like(along, math.inf)
    for shift in (-2, -1, 0, 1):  # two on either side, lest rounding turns the order of two that are almost equal
        candidate = order.index_select(0, (rank + shift).clamp(min=0, max=edges - 1))
        fits = (senders.index_select(0, candidate) == receivers) & (receivers.index_select(0, candidate) == senders)
        gap = (vectors.index_select(0, candidate) + vectors).square().sum(-1)
        better = fits & (gap < result)
        best, result = torch.where(better, candidate, best), torch.where(better, gap, result)
    return best, result <= CLOSE * vectors.square().sum(-1)


def _sorted(ends: Int[Tensor, " items"], along: Float[Tensor, " items"]) -> Int[Tensor, " items"]:
    order = torch.argsort(along, stable=True)
    return order.index_select(0, torch.argsort(ends.index_select(0, order), stable=True))


class TripletSums(nn.Module):
    """Sums over edges into the sender, with the angle there.

    s_ji = sum over l and over edges k -> j of m_l,kj Y_l(angle), without the edge i -> j through the same image, walked back.

    Y_l(a) = sqrt((2 l + 1) / 4 pi) P_l(cos a), and cos a = u_kj . u_ji of the unit vectors of both edges, the angle by which a walk turns
    at j. By the addition theorem P_l is a sum of products of spherical harmonics of the two, 4 pi / (2 l + 1) sum over m of
    Y_lm(u_kj) Y_lm(u_ji): messages are summed at j for every (l, m) and read along u_ji by every edge that leaves j. Time and memory
    grow with edges, not with triplets, and no angle is ever computed: all is a polynomial in unit vectors, whose
    derivatives are finite in straight lines, too.
    """

    def __init__(self, num_spherical: int) -> None:
        super().__init__()
        self.harmonics = SphericalHarmonics(num_spherical - 1)
        degrees = range(num_spherical)
        # harmonics have squares that sum to 2 l + 1
        self.scales = [1 / math.sqrt(4 * math.pi * (2 * ell + 1)) for ell in degrees]
        self.opposite = [(-1) ** ell * math.sqrt((2 * ell + 1) / (4 * math.pi)) for ell in degrees]

    def forward(
        self, messages: Sequence[Float[Tensor, "edges channels"]], graph: MessageGraph
    ) -> Float[Tensor, "edges channels"]:
        """Return the sum at every edge of the messages into its sender."""
        vectors = graph.known_vectors("triplets")
        harmonics, joined = graph.once("harmonics of edges", lambda: self.of_edges(graph))
        leaving, place = graph.once("edges by sender", lambda: edges_by_sender(graph.topology))
        reverse, has_reverse = graph.once("reverses", lambda: reverses_of(vectors, graph.topology))
        # [nodes, components, channels]
        moments = torch.cat([outer_sum(m, y, graph.topology) for m, y in zip(messages, harmonics)], dim=1)
        read = spread(along_directions(joined, moments, leaving), place)  # [edges, channels]
        back = torch.stack([value * message for value, message in zip(self.opposite, messages)]).sum(0)
        return read - spread(back, reverse) * has_reverse.unsqueeze(1)

    def of_edges(self, graph: MessageGraph) -> tuple[list[Tensor], Float[Tensor, "edges components"]]:
        """Return scaled harmonics of every edge by degree, and unscaled ones."""
        directions = graph.directions
        harmonics = self.harmonics(nn.functional.pad(directions, (0, 3 - directions.shape[1])))  # also in a plane
        scaled = [scale * values for scale, values in zip(self.scales, harmonics)]
        return scaled, spread(torch.cat(harmonics, dim=1), graph.topology.by_sender)


def edges_by_sender(topology: Topology) -> tuple[Topology, Int[Tensor, " edges"]]:
    """Return reversed edges in the order of senders, and their order."""
    order = topology.by_sender
    turned = Topology(
        senders=topology.receivers_by_sender,
        receivers=topology.sorted_senders,
        num_columns=topology.num_rows,
        num_rows=topology.num_columns,
    )
    turned.index_arrays.update(row_offsets=topology.column_offsets, degrees=topology.column_offsets.diff())
    place = torch.empty_like(order).scatter(0, order, torch.arange(topology.num_edges, device=order.device))
    return turned, place
