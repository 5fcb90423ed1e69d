"""The next coarser level by learned scores: the nodes that score highest, and the edges between them."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hydragnn.kernels import spread
from hydragnn.layers.coarser import Coarser, part_of
from hydragnn.layers.message_graph import MessageGraph
from hydragnn.layers.spherical_bessel import without_autocast

TIE = 1e-5
"""Scores that differ by less than this, beside the largest of their graph, are equal: no rounding decides who stays."""


class TopK(nn.Module):
    """y = h p / |p|; of every graph the ceil(ratio n) nodes with the highest y stay, with states of every degree times tanh(y).

    Cangea et al. 2018, arXiv:1811.01287, section 2 (Gao and Ji 2019, arXiv:1905.05178, section 3.1, with another gate). Edges between nodes that
    stay are kept as they are. Deviates from the papers: all nodes that score as high as the last one stay too, so that neither the order of
    nodes nor what else is in the batch decides between nodes that are alike; the papers' programs keep exactly so many.
    """

    def __init__(self, channels: int, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio
        self.direction = nn.Parameter(torch.randn(channels) / math.sqrt(channels))

    def forward(self, states: Float[Tensor, "nodes channels"], graph: MessageGraph) -> Coarser:
        """The level of the nodes that stay; its ``pooled`` multiplies with the gate, and the others hear nothing from ``unpooled``."""
        # rounded to 8 bits, many scores of a large graph would be equal, and all of them stay
        with without_autocast(states.device.type):
            scores = states.to(self.direction.dtype) @ (self.direction / self.direction.norm())  # [nodes]
        stay = highest(scores.detach(), graph, self.ratio)
        edges = graph.topology
        between = (stay[edges.senders] & stay[edges.receivers]).nonzero().squeeze(1)
        return part_of(graph, stay, between, share=spread(scores, stay.nonzero().squeeze(1)).tanh())


def highest(scores: Float[Tensor, " nodes"], graph: MessageGraph, ratio: float) -> Bool[Tensor, " nodes"]:
    """Which nodes are among the ceil(ratio n) highest of their graph, or as high as the last of them."""
    if not len(scores):
        return torch.zeros_like(scores, dtype=torch.bool)
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[torch.argsort(graph.owner[order], stable=True)]  # graph by graph, each from its highest score down
    counts = graph.nodes_per_graph
    first = counts.cumsum(0) - counts

    def at(place: Tensor) -> Tensor:  # of graphs without nodes nobody asks
        return scores[order[place.clamp(0, len(scores) - 1)]]

    # a product that should be a whole number may lie just above it
    wanted = (counts * ratio - 1e-9).ceil().long().clamp_min(1)
    largest = torch.maximum(at(first).abs(), at(first + counts - 1).abs())
    lowest = at(first + wanted - 1)
    return scores >= (lowest - TIE * largest)[graph.owner]
