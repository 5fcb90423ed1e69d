"""Edges that are each other's reverse: what is a function of length alone is computed once for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from hydragnn.graphs.topology import Topology
from hydragnn.kernels import cpu
from hydragnn.kernels.family import ANYWHERE, as_operators, form_on
from hydragnn.kernels.per_receiver import SUMS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pairs:
    """Edge ``e`` belongs to pair ``pair[e]``; a node that is its own neighbour at distance zero is a pair of one edge."""

    first: Int[Tensor, " items"]
    """The first edge of every pair."""
    pair: Int[Tensor, " edges"]

    def spread(self, values: Float[Tensor, "items *features"]) -> Float[Tensor, "edges *features"]:
        """What each edge's pair holds."""
        return SUMS("spread", (values,), (self.pair, self.first.shape[0]))


def pairs_of(vectors: Float[Tensor, "edges dim"], topology: Topology) -> Pairs | None:
    """The pairs of edges j -> i and i -> j whose vectors are opposite, periodic images apart; None where an edge has no reverse.

    They are sought on a CPU alone, and where the compiled kernels are: elsewhere the search costs more than it saves; nor where a graph is traced.
    """
    if as_operators():  # how many there are depends on the numbers
        return None
    found: Any = form_on(PAIRING, vectors.device.type)(vectors.detach(), topology)
    return None if found is None else Pairs(first=found[0], pair=found[1])


PAIRING: Mapping[str, Any] = {
    ANYWHERE: lambda vectors, topology: None,
    "cpu": cpu.pair_edges,
}
